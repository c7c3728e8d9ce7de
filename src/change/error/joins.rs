//! Why a machine did not become a node, or a node was not admitted.

use camino::Utf8PathBuf;

use super::tokens::TokenError;
use crate::{
    error::{Report, attached},
    exit::Exit,
    host::ExecError,
    tools::kubernetes::kubeadm::Fault,
};

/// Why the work on the membership in a cluster failed.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A file with a secret cannot be used.
    #[error("use the secret in `{path}`: {why}")]
    Secret {
        /// The file.
        path: Utf8PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The token is not to be had.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// kubeadm did not join.
    #[error("join the cluster: {}{}", said(*.fault), attached(.last_words))]
    Kubeadm {
        /// The class of the failure.
        fault: Fault,
        /// The last lines of the kubelet in the journal, where it is the cause.
        last_words: Option<String>,
        /// What happened.
        source: Box<ExecError>,
    },
    /// A command of the administrator's did not join.
    #[error("join the cluster with your command")]
    Command {
        /// What happened, with its last words.
        source: Box<ExecError>,
    },
    /// What joins the machine has not done so in time.
    #[error("join the cluster: `{what}` has not joined it within {seconds} s{}", attached(.last_words))]
    NotJoined {
        /// The unit or program.
        what: String,
        /// The bound.
        seconds: u64,
        /// Its last lines in the journal.
        last_words: Option<String>,
    },
    /// The node is not Ready in time.
    #[error("wait until node `{node}` is Ready: after {seconds} s it is not ({why})")]
    NotReady {
        node: String,
        /// The bound.
        seconds: u64,
        /// What the kubelet says.
        why: String,
    },
    /// Somebody else has begun to join, or the kubelet has lost its certificate.
    #[error("join the cluster: {} there, of an earlier join that is not complete", are(.found))]
    Begun {
        /// What is left of it.
        found: Vec<&'static str>,
    },
    /// The machine is a control plane, or was one.
    #[error("join the cluster: `{found}` is there, which only a control plane has")]
    ControlPlane {
        /// What was found.
        found: Utf8PathBuf,
    },
    /// There is no kubectl.
    #[error("ask the cluster about node `{node}`: there is no kubectl on this machine")]
    NoKubectl { node: String },
}

/// `/a` is, `/a`, `/b` are.
fn are(paths: &[&str]) -> String {
    let all: Vec<String> = paths.iter().map(|path| format!("`{path}`")).collect();
    format!(
        "{} {}",
        all.join(", "),
        if all.len() == 1 { "is" } else { "are" }
    )
}

/// What a fault means.
fn said(fault: Fault) -> &'static str {
    match fault {
        Fault::TokenUnknown => {
            "the cluster does not know the token: it has expired, was deleted, or is of another cluster"
        }
        Fault::TokenWrong => "the token has a wrong secret part, or the server does not accept it",
        Fault::CaWrong => "the certificate authority of the server is not the one that was named",
        Fault::Unreachable => "the API server cannot be reached",
        Fault::Unavailable => "the API server answers that it cannot serve now",
        Fault::NotAllowed => "the API server does not let the machine read what a join needs",
        Fault::Clock => {
            "a certificate of the cluster is not valid at the time that this machine's clock shows"
        }
        Fault::Kubelet => "the kubelet does not become healthy",
        Fault::NoCertificate => "the cluster does not give the kubelet a certificate",
        Fault::Preflight => "kubeadm finds the machine unfit",
        Fault::Other => "kubeadm failed",
    }
}

impl JoinError {
    /// Whether another attempt is worth while.
    #[must_use]
    pub fn passes(&self) -> bool {
        match self {
            Self::Kubeadm { fault, .. } => fault.passes(),
            Self::Token(error) => error.passes(),
            _ => false,
        }
    }
}

impl Report for JoinError {
    fn exit(&self) -> Exit {
        Exit::StepFailed
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Secret { .. } => "join-secret",
            Self::Token(error) => error.reason(),
            Self::Kubeadm { fault, .. } => match fault {
                Fault::TokenUnknown => "join-token-unknown",
                Fault::TokenWrong => "join-token-wrong",
                Fault::CaWrong => "join-ca-wrong",
                Fault::Unreachable => "join-unreachable",
                Fault::Unavailable => "join-unavailable",
                Fault::NotAllowed => "join-not-allowed",
                Fault::Clock => "join-clock",
                Fault::Kubelet => "join-kubelet",
                Fault::NoCertificate => "join-no-certificate",
                Fault::Preflight => "join-preflight",
                Fault::Other => "join-failed",
            },
            Self::Command { .. } => "join-command",
            Self::NotJoined { .. } => "join-timeout",
            Self::NotReady { .. } => "node-not-ready",
            Self::Begun { .. } => "join-begun",
            Self::ControlPlane { .. } => "control-plane",
            Self::NoKubectl { .. } => "no-kubectl",
        }
    }

    fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Secret { .. } => {
                "write the secret into the file, with `chmod 600`, then run the command again"
            }
            Self::Token(error) => return error.hint(),
            Self::Kubeadm { fault, .. } => match fault {
                Fault::TokenUnknown | Fault::TokenWrong => {
                    "make a new token with `kubeadm token create` on the control plane (`kubeadm token list` shows \
                     those that live), write it where `cluster.token-file` or \
                     `cluster.token-source` says, then run the command again"
                }
                Fault::CaWrong => {
                    "take the digest from `kubeadm token create --print-join-command` of this very cluster; if \
                     `cluster.server` is right, somebody else may answer at its address"
                }
                Fault::Unreachable => {
                    "see that `cluster.server` is right and that routes and firewalls let this machine reach it, \
                     then run the command again"
                }
                Fault::Unavailable => "see how the control plane is, then run the command again",
                Fault::NotAllowed => {
                    "an API server that has just started answers so for some seconds; if it stays so, run \
                     `kubeadm init phase bootstrap-token` on the control plane, then run the command again"
                }
                Fault::Clock => {
                    "set the clock (`timedatectl` shows it), then run the command again"
                }
                Fault::Kubelet => {
                    "see what `journalctl --unit kubelet` says; the machine is joinable as before"
                }
                Fault::NoCertificate => {
                    "see on the control plane whether `kubectl get csr` shows requests that wait for an approval"
                }
                Fault::Preflight => {
                    "mend what the lines with `[ERROR …]` name, or name these checks in \
                     `cluster.ignore-preflight-errors`"
                }
                Fault::Other => {
                    "mend what kubeadm names; `journalctl --unit kubelet` may tell more. Then run the command again"
                }
            },
            Self::Command { source } => match **source {
                ExecError::Deadline { .. } | ExecError::Silent { .. } => {
                    "see what your command waits for, or set a longer `cluster.timeout`; what it has done by \
                     then stays. Then run the command again"
                }
                _ => {
                    "mend what your command says; what it has done before it failed stays, and nothing here undoes it. \
                     Then run the command again"
                }
            },
            Self::NotJoined { .. } => "see what its log says, then run the command again",
            Self::NotReady { .. } => {
                "a network plugin that is missing in the cluster is the most frequent reason; `kubectl describe node` \
                 tells more. The next `install` waits again"
            }
            Self::Begun { .. } => {
                "see whether a disk with `/var/lib/kubelet` is not mounted; if a `kubeadm join` that failed has left it, or \
                 the machine shall forget that cluster, run `kubeadm reset`, then run the command again"
            }
            Self::ControlPlane { .. } => {
                "this program prepares workers only, and never resets a control plane; run `kubeadm reset` yourself if \
                 the machine is none any more"
            }
            Self::NoKubectl { .. } => "install kubectl, then run the command again",
        };
        Some(text.to_owned())
    }
}
