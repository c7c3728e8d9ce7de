//! HTTP GET, bounded in time and size.

use async_trait::async_trait;

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

/// Fetches. `file://` addresses are allowed: an offline mirror is a folder.
#[async_trait]
pub trait Http: Send + Sync {
    /// A small document, at most `limit` bytes.
    ///
    /// # Errors
    /// See [`HttpError`]; passing faults were retried already.
    async fn get(&self, url: &str, limit: u64) -> Result<Vec<u8>, HttpError>;
}
