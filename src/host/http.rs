//! HTTP GET, bounded in time and size.

use async_trait::async_trait;
use camino::Utf8Path;

/// What can go wrong with a request.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HttpError {
    /// No connection, a broken one, or too slow.
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
    /// The content is not what was promised.
    #[error("get `{url}`: SHA-256 is {actual}, expected {expected}")]
    Digest {
        /// The address.
        url: String,
        /// As promised.
        expected: String,
        /// As computed.
        actual: String,
    },
    /// It could not be stored.
    #[error("store what `{url}` sent: {why}")]
    Store {
        /// The address.
        url: String,
        /// The reason.
        why: String,
    },
}

/// Fetches. `file://` addresses are allowed: an offline mirror is a folder.
#[async_trait]
pub trait Http: Send + Sync {
    /// A small document, at most `limit` bytes.
    ///
    /// # Errors
    /// See [`HttpError`]; passing faults were retried already.
    async fn get(&self, url: &str, limit: u64) -> Result<Vec<u8>, HttpError>;

    /// A file whose SHA-256 (lower-case hex) is known; it appears at `to` only if it matches.
    ///
    /// # Errors
    /// See [`HttpError`].
    async fn download(&self, url: &str, to: &Utf8Path, sha256: &str) -> Result<(), HttpError>;
}
