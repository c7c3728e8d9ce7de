//! Why a container runtime was not configured.

use super::ChangeError;
use crate::{error::Report, exit::Exit};

/// Why a container runtime was not configured.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// Its own program refuses the new configuration.
    #[error("use the new configuration of {runtime}: {why}")]
    Refused {
        runtime: &'static str,
        /// What it says.
        why: String,
    },
    /// Its daemon does not answer, or cannot be used.
    #[error("see {runtime} work within {seconds} s: {why}")]
    Silent {
        runtime: &'static str,
        /// The time limit in seconds.
        seconds: u64,
        /// What its client says.
        why: String,
    },
    /// It does not work with the new configuration; the former one is back.
    #[error("configure {runtime}, which has its former configuration again and works with it")]
    PutBack {
        runtime: &'static str,
        unit: String,
        /// What did not work.
        source: Box<ChangeError>,
    },
    /// It works neither with the new configuration nor with the former one.
    #[error("configure {runtime}, and put its former configuration back ({then})")]
    NotPutBack {
        runtime: &'static str,
        unit: String,
        /// What did not work.
        source: Box<ChangeError>,
        /// What did not work with the former configuration.
        then: String,
    },
}

impl Report for RuntimeError {
    fn exit(&self) -> Exit {
        Exit::StepFailed
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "configuration-refused",
            Self::Silent { .. } => "runtime-silent",
            Self::PutBack { .. } => "configuration-put-back",
            Self::NotPutBack { .. } => "configuration-not-put-back",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Silent { .. } => None,
            Self::Refused { runtime, .. } => Some(format!(
                "{runtime} was not restarted, and its files are as before; correct what it names in \
                 them, and run the command again"
            )),
            Self::PutBack { unit, source, .. } => source.hint().or(Some(format!(
                "see what {unit} says (`journalctl --unit={unit}`), correct its \
                 configuration, and run the command again"
            ))),
            Self::NotPutBack { unit, .. } => Some(format!(
                "see what {unit} says (`journalctl --unit={unit}`), correct its configuration until \
                 `systemctl restart {unit}` succeeds, and run the command again"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_done_is_told_for_each_failure() {
        let refused = || RuntimeError::Refused {
            runtime: "Docker",
            why: "no such key".into(),
        };
        let silent = || RuntimeError::Silent {
            runtime: "Docker",
            seconds: 30,
            why: "no answer".into(),
        };
        let put_back = |source: RuntimeError| RuntimeError::PutBack {
            runtime: "Docker",
            unit: "docker.service".into(),
            source: Box::new(ChangeError::Runtime(source)),
        };
        let rows = [
            (refused(), "configuration-refused", "was not restarted"),
            (silent(), "runtime-silent", ""),
            // What helps against its cause comes first.
            (
                put_back(refused()),
                "configuration-put-back",
                "was not restarted",
            ),
            (
                put_back(silent()),
                "configuration-put-back",
                "`journalctl --unit=docker.service`",
            ),
            (
                RuntimeError::NotPutBack {
                    runtime: "Docker",
                    unit: "docker.service".into(),
                    source: Box::new(ChangeError::Runtime(silent())),
                    then: "no answer".into(),
                },
                "configuration-not-put-back",
                "until `systemctl restart docker.service` succeeds",
            ),
        ];
        for (error, reason, hint) in rows {
            assert_eq!((error.exit(), error.reason()), (Exit::StepFailed, reason));
            let told = error.hint();
            assert_eq!(told.is_some(), !hint.is_empty(), "{error}: {told:?}");
            assert!(told.unwrap_or_default().contains(hint), "{error}");
        }
    }
}
