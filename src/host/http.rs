//! HTTP, bounded in time and size.

use std::time::Duration;

use async_trait::async_trait;

use crate::model::secret::Secret;

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
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..),
            Self::TooLarge { .. } => false,
        }
    }
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// It reads.
    Get,
    /// It sends nothing but headers: so AWS gives out tokens.
    Put,
}

/// One request to a service beside the machine, such as a cloud's metadata service.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What it does.
    pub method: Method,
    /// The address.
    pub url: String,
    /// Headers; their values may be secret.
    pub headers: Vec<(&'static str, Secret)>,
    /// How long the whole may take.
    pub within: Duration,
    /// The bytes that the answer may have.
    pub limit: u64,
}

/// Fetches. `file://` addresses are allowed: an offline mirror is a folder.
#[async_trait]
pub trait Http: Send + Sync {
    /// A small document, at most `limit` bytes.
    ///
    /// # Errors
    /// See [`HttpError`]; passing faults were retried already.
    async fn get(&self, url: &str, limit: u64) -> Result<Vec<u8>, HttpError>;

    /// Asks once: through no proxy, which would answer for another machine, and without following a
    /// redirect.
    ///
    /// # Errors
    /// See [`HttpError`]. A redirect is a status.
    async fn ask(&self, request: &Ask) -> Result<Vec<u8>, HttpError>;
}
