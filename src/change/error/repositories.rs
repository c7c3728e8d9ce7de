//! Why a repository was not added.

use camino::Utf8PathBuf;

use crate::{
    error::Report,
    exit::Exit,
    host::HttpError,
    tools::{openpgp::OpenPgpError, packages::Fault},
};

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// The key could not be fetched.
    #[error("fetch the key of repository `{repository}`")]
    Fetch {
        /// The repository.
        repository: String,
        /// What happened.
        source: HttpError,
    },
    /// What was fetched is no key.
    #[error("read the key of repository `{repository}` from `{url}`")]
    NoKey {
        /// The repository.
        repository: String,
        /// Where it came from.
        url: String,
        /// What is wrong with it.
        source: OpenPgpError,
    },
    /// The key is not the one that is trusted.
    #[error(
        "trust the key of repository `{repository}`: `{url}` holds {}, and only {} is accepted",
        .found.join(", "),
        .accepted.join(" or ")
    )]
    KeyMismatch {
        /// The repository.
        repository: String,
        /// Where it came from.
        url: String,
        /// Fingerprints found.
        found: Vec<String>,
        /// Fingerprints accepted.
        accepted: Vec<String>,
    },
    /// The key has expired.
    #[error("trust the key of repository `{repository}`: {fingerprint} expired on {on}")]
    KeyExpired {
        /// The repository.
        repository: String,
        /// Which key.
        fingerprint: String,
        /// The day.
        on: String,
    },
    /// Another source file contradicts.
    #[error(
        "add repository `{repository}`: `{file}` names the same address {uri} with another \
         Signed-By ({theirs})"
    )]
    Conflict {
        /// The repository.
        repository: String,
        /// The other file.
        file: Utf8PathBuf,
        /// The address and suite.
        uri: String,
        /// Its keyring.
        theirs: String,
    },
    /// A repository is not described well enough.
    #[error("add repository `{repository}`: {why}")]
    Incomplete {
        /// The repository.
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
            Self::Conflict { .. } => "repository-conflict",
            Self::Incomplete { .. } => "repository",
        }
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
            Self::KeyExpired { .. } => {
                "the vendor must publish the key anew; check the machine's clock, too"
            }
            Self::Fetch { .. } => Fault::Network.hint()?,
            Self::NoKey { .. } | Self::Incomplete { .. } => return None,
        };
        Some(text.to_owned())
    }
}
