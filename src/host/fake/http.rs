//! A fake network with known URLs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::locked;
use crate::host::{Http, HttpError, HttpRequest, HttpResponse};

/// A server that responds to the requests of [`Http::ask`].
type Server = Arc<dyn Fn(&HttpRequest) -> HttpResponse + Send + Sync>;

/// URLs with their content, and servers. Any other URL returns 404.
#[derive(Clone, Default)]
pub struct FakeHttp {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    pages: BTreeMap<String, Vec<u8>>,
    /// By the start of their URLs.
    servers: BTreeMap<String, Server>,
    faults: BTreeMap<String, VecDeque<HttpError>>,
    log: Vec<String>,
}

impl FakeHttp {
    /// Serves this content at the URL.
    pub fn serve(&self, url: &str, content: impl Into<Vec<u8>>) {
        locked(&self.state)
            .pages
            .insert(url.to_owned(), content.into());
    }

    /// Sends each [`Http::ask`] for a URL that starts with `base` to this server.
    pub fn serve_with(
        &self,
        base: &str,
        server: impl Fn(&HttpRequest) -> HttpResponse + Send + Sync + 'static,
    ) {
        locked(&self.state)
            .servers
            .insert(base.to_owned(), Arc::new(server));
    }

    /// Removes a URL from the network.
    pub fn forget(&self, url: &str) {
        locked(&self.state).pages.remove(url);
    }

    /// Makes the next request for the URL fail. After several calls, the next requests fail with
    /// these errors in order.
    pub fn fail_next(&self, url: &str, error: HttpError) {
        locked(&self.state)
            .faults
            .entry(url.to_owned())
            .or_default()
            .push_back(error);
    }

    /// Returns all requested URLs in order.
    pub fn log(&self) -> Vec<String> {
        locked(&self.state).log.clone()
    }

    /// Returns the server of a URL, and logs the request.
    fn server(&self, url: &str) -> Option<Server> {
        let mut state = locked(&self.state);
        let server = (state.servers.iter())
            .find(|(base, _)| url.starts_with(base.as_str()))
            .map(|(_, server)| server.clone())?;
        state.log.push(url.to_owned());
        Some(server)
    }

    fn answer(&self, url: &str) -> Result<Vec<u8>, HttpError> {
        let mut state = locked(&self.state);
        state.log.push(url.to_owned());
        if let Some(error) = state.faults.get_mut(url).and_then(VecDeque::pop_front) {
            return Err(error);
        }
        state.pages.get(url).cloned().ok_or(HttpError::Status {
            url: url.to_owned(),
            status: 404,
        })
    }
}

#[async_trait]
impl Http for FakeHttp {
    async fn get(&self, url: &str, limit: u64) -> Result<Vec<u8>, HttpError> {
        let content = self.answer(url)?;
        if content.len() as u64 > limit {
            return Err(HttpError::TooLarge {
                url: url.to_owned(),
                limit,
            });
        }
        Ok(content)
    }

    async fn ask(&self, request: &HttpRequest) -> Result<HttpResponse, HttpError> {
        if let Some(server) = self.server(&request.url) {
            return Ok(server(request));
        }
        match self.get(&request.url, request.limit).await {
            Ok(body) => Ok(HttpResponse {
                status: 200,
                body,
                headers: Vec::new(),
            }),
            Err(HttpError::Status { status, .. }) => Ok(HttpResponse {
                status,
                body: Vec::new(),
                headers: Vec::new(),
            }),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn content_is_served_up_to_the_size_limit() {
        let http = FakeHttp::default();
        http.serve("https://a/key", "abc");
        assert_eq!(http.get("https://a/key", 3).await.unwrap(), b"abc");
        assert!(matches!(
            http.get("https://a/key", 2).await,
            Err(HttpError::TooLarge { limit: 2, .. })
        ));
        assert!(matches!(
            http.get("https://a/none", 2).await,
            Err(HttpError::Status { status: 404, .. })
        ));
        assert_eq!(http.log().len(), 3);
    }
}
