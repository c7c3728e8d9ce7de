//! Why a probe failed.

use crate::{
    error::Report,
    exit::Exit,
    host::{ExecError, FilesError},
};

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Its files could not be written.
    #[error("prepare the container")]
    Files(#[from] FilesError),
    /// A command failed.
    #[error("run the container")]
    Exec(#[from] ExecError),
    /// The libraries of this process could not be found.
    #[error("find the libraries of this program: {why}")]
    Unknown {
        /// What is missing.
        why: String,
    },
    /// A library was replaced while this program ran, and the kernel does not give its content.
    #[error("read `{link}`, the running copy of `{path}`, which was replaced: {why}")]
    Replaced {
        /// The library.
        path: String,
        /// The kernel's link to the content.
        link: String,
        /// Why it cannot be read.
        why: String,
    },
    /// The container ran, but does not see what it should.
    #[error("the container sees {seen}, expected {expected}")]
    Blind {
        /// What it sees.
        seen: String,
        /// What it should.
        expected: String,
    },
}

impl Report for ProbeError {
    fn exit(&self) -> Exit {
        Exit::StepFailed
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Files(error) => error.reason().unwrap_or("proof-not-prepared"),
            Self::Unknown { .. } | Self::Replaced { .. } => "proof-not-prepared",
            Self::Exec(_) => "container-failed",
            Self::Blind { .. } => "container-sees-no-gpu",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Files(error) if error.disk().is_some() => return error.hint(),
            Self::Files(_) => "free space below `/var/lib`, then run again".to_owned(),
            Self::Unknown { .. } => "check that `/proc` is mounted, then run again".to_owned(),
            Self::Replaced { .. } => {
                "run `gpu-bootstrap install` again: it starts with the new library".to_owned()
            }
            Self::Exec(_) => {
                "run `gpu-bootstrap check`: it names the faulty layer (driver, CDI or runtime)"
                    .to_owned()
            }
            Self::Blind { .. } => {
                "compare `nvidia-ctk cdi list` with `ls /dev/nvidia*`, and look at \
                 `/etc/nvidia-container-runtime/config.toml`"
                    .to_owned()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::ProbeError;
    use crate::error::Report;

    #[test]
    fn each_failure_says_what_to_do() {
        let text = || "x".to_owned();
        for (error, hint) in [
            (ProbeError::Unknown { why: text() }, "`/proc` is mounted"),
            (
                ProbeError::Replaced {
                    path: text(),
                    link: text(),
                    why: text(),
                },
                "`gpu-bootstrap install` again",
            ),
            (
                ProbeError::Blind {
                    seen: text(),
                    expected: text(),
                },
                "`nvidia-ctk cdi list`",
            ),
        ] {
            let said = error.hint().unwrap_or_default();
            assert!(said.contains(hint), "{error}: {said}");
        }
    }
}
