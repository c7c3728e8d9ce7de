//! HTTP with limits on time and size.

use std::time::Duration;

use async_trait::async_trait;

use crate::{
    host::Clock,
    model::secret::{Secret, without_logins},
};

/// An HTTP error.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HttpError {
    /// Connection failed or too slow. For `file://`, the file is not readable.
    #[error("get `{url}`: {why}")]
    Transport {
        url: String,
        /// The chain of causes on one line.
        why: String,
    },
    /// The server returned an error status.
    #[error("get `{url}`: the server returned {status}")]
    Status { url: String, status: u16 },
    /// The response exceeds the size limit.
    #[error("get `{url}`: the response is larger than {limit} bytes")]
    TooLarge { url: String, limit: u64 },
}

impl HttpError {
    /// Whether a retry may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Transport { .. } => true,
            Self::Status { status, .. } => status_passes(*status),
            Self::TooLarge { .. } => false,
        }
    }
}

/// Whether a status is transient.
pub(crate) fn status_passes(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..)
}

/// The operation of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Method {
    Get,
    /// `PUT` without a body. AWS uses this to issue tokens.
    Put,
    /// `POST` with this document.
    Post(String),
    /// `PUT` with this content.
    Store(Vec<u8>),
}

/// The route of a request to its service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Without a proxy. Through a proxy, a metadata service would describe the machine of the proxy.
    Direct,
    /// Through the configured proxy, if any.
    Proxied,
}

/// A request to a cloud service, such as the metadata service.
#[derive(Debug, Clone)]
pub struct HttpRequest {
    pub method: Method,
    pub route: Route,
    pub url: String,
    /// The headers, whose values may be secret.
    pub headers: Vec<(&'static str, Secret)>,
    /// The maximum total time.
    pub within: Duration,
    /// The maximum size of the response in bytes.
    pub limit: u64,
}

/// A response with any status.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: u16,
    /// The content, which may be secret.
    pub body: Vec<u8>,
    /// The headers. Names are in lower case.
    pub headers: Vec<(String, String)>,
}

impl std::fmt::Debug for HttpResponse {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "[{}, {} bytes]", self.status, self.body.len())
    }
}

impl HttpResponse {
    /// The values of a header. The name is in lower case.
    pub fn header(&self, name: &str) -> impl Iterator<Item = &str> {
        let named = self.headers.iter().filter(move |(one, _)| one == name);
        named.map(|(_, value)| value.as_str())
    }

    /// Returns the content if the status is a success.
    ///
    /// # Errors
    /// [`HttpError::Status`] otherwise.
    pub fn successful(self, url: &str) -> Result<Vec<u8>, HttpError> {
        match self.status {
            200..300 => Ok(self.body),
            status => Err(HttpError::Status {
                url: without_logins(url).into_owned(),
                status,
            }),
        }
    }
}

/// An HTTP client. `file://` URLs are allowed, because an offline mirror may be a directory.
#[async_trait]
pub trait Http: Send + Sync {
    /// Downloads a small document of at most `limit` bytes.
    ///
    /// # Errors
    /// See [`HttpError`]. Transient errors were already retried.
    async fn get(&self, url: &str, limit: u64) -> Result<Vec<u8>, HttpError>;

    /// Sends one request. Redirects are not followed, because they would send the headers to
    /// another server.
    ///
    /// # Errors
    /// If there is no response, or it is too large. A redirect is returned as a status.
    async fn ask(&self, request: &HttpRequest) -> Result<HttpResponse, HttpError>;
}

/// The first pause after a transient error, such as "too many requests". Each pause is twice as
/// long as the previous one.
const PAUSE: Duration = Duration::from_millis(200);

/// The maximum pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The limits of retries.
#[derive(Debug, Clone, Copy)]
pub struct RetryLimit {
    /// The deadline on the monotonic clock, including pauses.
    pub until: Duration,
    /// The maximum number of attempts without a response. If nothing responds, there may be no
    /// service.
    pub silences: u32,
}

/// Sends a request, and retries transient errors until the limit.
///
/// # Errors
/// Permanent errors immediately. The last transient error when the limit is reached.
pub async fn ask_again(
    http: &dyn Http,
    clock: &dyn Clock,
    request: &HttpRequest,
    persistence: RetryLimit,
) -> Result<HttpResponse, HttpError> {
    let mut pause = PAUSE;
    let mut silences = 0;
    let left = || persistence.until.saturating_sub(clock.monotonic());
    loop {
        let request = HttpRequest {
            within: left().min(request.within),
            ..request.clone()
        };
        let error = match http.ask(&request).await {
            Ok(answer) if !status_passes(answer.status) => return Ok(answer),
            Ok(answer) => HttpError::Status {
                url: without_logins(&request.url).into_owned(),
                status: answer.status,
            },
            Err(error) if error.is_retryable() => error,
            Err(error) => return Err(error),
        };
        if matches!(error, HttpError::Transport { .. }) {
            silences += 1;
        }
        if silences >= persistence.silences || left() <= pause {
            return Err(error);
        }
        clock.sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
