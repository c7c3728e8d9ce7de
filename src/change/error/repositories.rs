//! Why a repository was not added.

use camino::Utf8PathBuf;

use crate::{
    error::Report,
    exit::Exit,
    host::HttpError,
    tools::{openpgp::OpenPgpError, packages::Fault},
};

/// Why a repository was not added.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// The key could not be fetched.
    #[error("fetch the key of repository `{repository}`")]
    Fetch {
        repository: String,
        /// What happened.
        source: HttpError,
    },
    /// The downloaded file is not a key.
    #[error("read the key of repository `{repository}` from `{url}`")]
    NoKey {
        repository: String,
        /// The URL of the key.
        url: String,
        /// Why it cannot be parsed.
        source: OpenPgpError,
    },
    /// The downloaded key is not an accepted one.
    #[error(
        "trust the key of repository `{repository}`: `{url}` holds {}, and only {} is accepted",
        .found.join(", "),
        .accepted.join(" or ")
    )]
    KeyMismatch {
        repository: String,
        /// The URL of the key.
        url: String,
        /// Fingerprints in the downloaded file.
        found: Vec<String>,
        /// Fingerprints that the profile accepts.
        accepted: Vec<String>,
    },
    /// The key has expired.
    #[error("trust the key of repository `{repository}`: {fingerprint} expired on {on}")]
    KeyExpired {
        repository: String,
        /// The fingerprint of the key.
        fingerprint: String,
        /// The day on which it expired.
        on: String,
    },
    /// The owner of the key has revoked it.
    #[error("trust the key of repository `{repository}`: its owner has revoked {fingerprint}")]
    KeyRevoked {
        repository: String,
        /// The fingerprint of the key.
        fingerprint: String,
    },
    /// Another source file names the same repository with another key.
    #[error(
        "add repository `{repository}`: `{file}` names the same address {uri} with another \
         Signed-By ({theirs})"
    )]
    Conflict {
        repository: String,
        /// The other file.
        file: Utf8PathBuf,
        /// Its address and suite.
        uri: String,
        /// Its keyring.
        theirs: String,
    },
    /// The description of a repository is incomplete.
    #[error("add repository `{repository}`: {why}")]
    Incomplete {
        repository: String,
        /// What is missing.
        why: String,
    },
}

impl Report for RepositoryError {
    fn exit(&self) -> Exit {
        match self {
            Self::Fetch { .. } | Self::NoKey { .. } => Exit::StepFailed,
            _ => Exit::Blocked,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Fetch { .. } => "key-fetch",
            Self::NoKey { .. } => "key-malformed",
            Self::KeyMismatch { .. } => "key-mismatch",
            Self::KeyExpired { .. } => "key-expired",
            Self::KeyRevoked { .. } => "key-revoked",
            Self::Conflict { .. } => "repository-conflict",
            Self::Incomplete { .. } => "repository",
        }
    }

    fn passes(&self) -> bool {
        matches!(self, Self::Fetch { source, .. } if source.passes())
    }

    fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Conflict { file, .. } => {
                return Some(format!("remove `{file}`, or the entry in it"));
            }
            Self::KeyMismatch { .. } => {
                "nothing was changed. Ask the repository's vendor, over another way than this \
                 network, which fingerprint is right; a key that changed without notice can be \
                 an attack"
            }
            Self::KeyRevoked { .. } => {
                "nothing was changed. Ask the repository's vendor which key signs now, and name its fingerprint"
            }
            Self::KeyExpired { .. } => {
                "check the clock with `timedatectl`; if it is right, the vendor must renew the key"
            }
            Self::Fetch { .. } => Fault::Network.hint()?,
            Self::NoKey { .. } | Self::Incomplete { .. } => return None,
        };
        Some(text.to_owned())
    }
}
