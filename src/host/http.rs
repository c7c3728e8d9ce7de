//! HTTP, bounded in time and size.

use std::time::Duration;

use async_trait::async_trait;

use crate::{
    host::Clock,
    model::secret::{Secret, without_logins},
};

/// What can go wrong with a request.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HttpError {
    /// No connection, a broken one, or too slow; for `file://`, a file that cannot be read.
    #[error("get `{url}`: {why}")]
    Transport {
        /// The address.
        url: String,
        /// The chain of causes in one line.
        why: String,
    },
    /// The server answered with an error.
    #[error("get `{url}`: the server answered {status}")]
    Status {
        /// The address.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// More bytes than were allowed.
    #[error("get `{url}`: the answer is larger than {limit} bytes")]
    TooLarge {
        /// The address.
        url: String,
        /// The bound.
        limit: u64,
    },
}

impl HttpError {
    /// Whether another attempt may go better.
    #[must_use]
    pub fn passes(&self) -> bool {
        match self {
            Self::Transport { .. } => true,
            Self::Status { status, .. } => status_passes(*status),
            Self::TooLarge { .. } => false,
        }
    }
}

/// Whether a later answer may have another status.
fn status_passes(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..)
}

/// What a request does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Method {
    /// It reads.
    Get,
    /// It sends nothing but headers: so AWS gives out tokens.
    Put,
    /// It sends this document.
    Post(String),
    /// It stores this content.
    Store(Vec<u8>),
}

/// How a request reaches its service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Through no proxy, which would answer for another machine.
    Direct,
    /// Through the proxy of the configuration, if there is one.
    Proxied,
}

/// One request to a service of a cloud, such as its metadata service.
#[derive(Debug, Clone)]
pub struct HttpRequest {
    /// What it does.
    pub method: Method,
    /// How it gets there.
    pub route: Route,
    /// The address.
    pub url: String,
    /// Headers; their values may be secret.
    pub headers: Vec<(&'static str, Secret)>,
    /// How long the whole may take.
    pub within: Duration,
    /// The bytes that the answer may have.
    pub limit: u64,
}

/// What a service answers, whatever its status is.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpResponse {
    /// The HTTP status.
    pub status: u16,
    /// The content, which may be secret.
    pub body: Vec<u8>,
    /// The headers, by their names in small letters.
    pub headers: Vec<(String, String)>,
}

impl std::fmt::Debug for HttpResponse {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "[{}, {} bytes]", self.status, self.body.len())
    }
}

impl HttpResponse {
    /// The values of a header, by its name in small letters.
    pub fn header(&self, name: &str) -> impl Iterator<Item = &str> {
        let named = self.headers.iter().filter(move |(one, _)| one == name);
        named.map(|(_, value)| value.as_str())
    }

    /// The content, if the status is one of success.
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

/// Fetches. `file://` addresses are allowed: an offline mirror is a folder.
#[async_trait]
pub trait Http: Send + Sync {
    /// A small document, at most `limit` bytes.
    ///
    /// # Errors
    /// See [`HttpError`]; passing faults were retried already.
    async fn get(&self, url: &str, limit: u64) -> Result<Vec<u8>, HttpError>;

    /// Asks once, without following a redirect, which would take the headers elsewhere.
    ///
    /// # Errors
    /// No answer, or one that is too large. A redirect is a status.
    async fn ask(&self, request: &HttpRequest) -> Result<HttpResponse, HttpError>;
}

/// The first pause after an answer that passes, such as "too many requests"; the next are twice as long.
const PAUSE: Duration = Duration::from_millis(200);

/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How long to go on asking.
#[derive(Debug, Clone, Copy)]
pub struct RetryLimit {
    /// Until when on the monotonic clock, pauses included.
    pub until: Duration,
    /// How often the service may say nothing at all. Where nothing answers, there may be no service.
    pub silences: u32,
}

/// Asks, and asks again while the answer may pass and time is left.
///
/// # Errors
/// No answer; the last one, if it is still one that passes.
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
            Err(error) if error.passes() => error,
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
