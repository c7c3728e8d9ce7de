//! A network of known addresses.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use camino::Utf8Path;

use super::{FakeFiles, locked};
use crate::host::digest::sha256;
use crate::host::{Files, Http, HttpError};

/// Addresses with their content; anything else answers 404.
#[derive(Clone)]
pub struct FakeHttp {
    files: FakeFiles,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    pages: BTreeMap<String, Vec<u8>>,
    faults: BTreeMap<String, VecDeque<HttpError>>,
    log: Vec<String>,
}

impl FakeHttp {
    /// An empty network; downloads land in these files.
    #[must_use]
    pub fn new(files: &FakeFiles) -> Self {
        Self {
            files: files.clone(),
            state: Arc::default(),
        }
    }

    /// Serves this content at the address.
    pub fn serve(&self, url: &str, content: impl Into<Vec<u8>>) {
        locked(&self.state)
            .pages
            .insert(url.to_owned(), content.into());
    }

    /// Takes an address from the network.
    pub fn forget(&self, url: &str) {
        locked(&self.state).pages.remove(url);
    }

    /// Lets the next request for the address fail; several are served in order.
    pub fn fail_next(&self, url: &str, error: HttpError) {
        locked(&self.state)
            .faults
            .entry(url.to_owned())
            .or_default()
            .push_back(error);
    }

    /// Every address asked for, in order.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        locked(&self.state).log.clone()
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

    async fn download(&self, url: &str, to: &Utf8Path, expected: &str) -> Result<(), HttpError> {
        let content = self.answer(url)?;
        let actual = sha256(&content);
        if actual != expected {
            return Err(HttpError::Digest {
                url: url.to_owned(),
                expected: expected.to_owned(),
                actual,
            });
        }
        self.files
            .write(to, &content, 0o644)
            .map_err(|error| HttpError::Store {
                url: url.to_owned(),
                why: crate::host::chain(&error),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::ReadFiles;

    #[tokio::test]
    async fn serves_bounds_and_verifies() {
        let files = FakeFiles::new();
        let http = FakeHttp::new(&files);
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
        let to = Utf8Path::new("/var/key");
        assert!(matches!(
            http.download("https://a/key", to, "00").await,
            Err(HttpError::Digest { .. })
        ));
        assert_eq!(files.read(to).unwrap(), None);
        http.download("https://a/key", to, &sha256(b"abc"))
            .await
            .unwrap();
        assert_eq!(files.read_text(to).unwrap().unwrap(), "abc");
        assert_eq!(http.log().len(), 5);
    }
}
