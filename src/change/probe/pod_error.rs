//! Why a pod did not prove a GPU.

use crate::{
    error::{Report, attached},
    exit::Exit,
    host::ExecError,
    tools::kubernetes::kubectl::GPUS,
};

/// Why a pod did not prove a GPU.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// The node offers none.
    #[error(
        "run a pod with a GPU: after {seconds} s node `{node}` offers no {GPUS}{}",
        .instead.as_ref().map_or_else(
            || ": no device plugin has registered".to_owned(),
            |instead| format!(", but {instead}"),
        )
    )]
    NoDevicePlugin {
        /// The node.
        node: String,
        /// What it offers of NVIDIA's, under other names.
        instead: Option<String>,
        /// The bound.
        seconds: u64,
    },
    /// The API server did not make the pod.
    #[error("make a pod in namespace `{namespace}`")]
    NotMade {
        /// The namespace.
        namespace: String,
        /// What happened.
        source: ExecError,
    },
    /// The kubelet does not find the image.
    #[error("run a pod with a GPU: its image is not there ({why})")]
    NoImage {
        /// The kubelet's words.
        why: String,
    },
    /// The kubelet does not take the pod.
    #[error("run a pod with a GPU: the kubelet refuses it ({why})")]
    Refused {
        /// The kubelet's words.
        why: String,
    },
    /// The runtime does not start it.
    #[error("run a pod with a GPU: its container could not be started ({why})")]
    NotStarted {
        /// The runtime's words.
        why: String,
    },
    /// It has not ended in time.
    #[error("run a pod with a GPU: after {seconds} s it has not ended ({why}){}", attached(.last_words))]
    NotInTime {
        /// The bound.
        seconds: u64,
        /// How far it has come.
        why: String,
        /// The last lines of the kubelet in the journal.
        last_words: Option<String>,
    },
    /// The cluster does not say enough.
    #[error("run a pod with a GPU: {why}")]
    NotAsked {
        /// Why not.
        why: String,
    },
    /// It ended, and its log has no result.
    #[error("run a pod with a GPU: its log has no result of the probe{}", attached(.said))]
    NoResult {
        /// The end of the log.
        said: Option<String>,
    },
}

impl Report for PodError {
    fn exit(&self) -> Exit {
        Exit::StepFailed
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::NoDevicePlugin { .. } => "no-device-plugin",
            Self::NotMade { .. } => "pod-not-made",
            Self::NoImage { .. } => "image-missing",
            Self::Refused { .. } => "pod-refused",
            Self::NotStarted { .. } => "pod-not-started",
            Self::NotInTime { .. } => "pod-not-in-time",
            Self::NotAsked { .. } => "cluster-silent",
            Self::NoResult { .. } => "container-cannot-compute",
        }
    }

    fn hint(&self) -> Option<String> {
        let text = match self {
            Self::NoDevicePlugin {
                instead: Some(_), ..
            } => {
                "the pod asks for one whole or shared GPU: set `validation.pod = false` on nodes whose device plugin \
                 offers others"
            }
            Self::NoDevicePlugin { instead: None, .. } => {
                "install NVIDIA's device plugin or GPU operator in the cluster; if it is there, see whether its pod \
                 tolerates the node's taints, the startup taint included, and what its log says"
            }
            Self::NotMade { .. } => {
                "see whether the account of `cluster.kubeconfig-file` may create, get and delete pods in \
                 `validation.pod-namespace`, and whether that namespace exists"
            }
            Self::NoImage { .. } => {
                "see whether the kubelet uses another containerd (`gpu-bootstrap check`, `rt.kubelet.runtime`), and \
                 whether its disk is full: then the kubelet removes images"
            }
            Self::Refused { .. } => {
                "see whether other pods have all GPUs of this node (`kubectl describe node`)"
            }
            Self::NotStarted { .. } => {
                "run `gpu-bootstrap check`: it names the faulty layer (driver, CDI or runtime)"
            }
            Self::NotInTime { .. } => {
                "read the log of the kubelet (`journalctl --unit kubelet`): the pod network, the runtime, or a slow disk; \
                 `validation.pod-timeout-seconds` sets the bound"
            }
            Self::NotAsked { .. } => "run the command again when the cluster answers",
            Self::NoResult { .. } => {
                "run `gpu-bootstrap probe` on the node: it shows whether the GPUs work there"
            }
        };
        Some(text.to_owned())
    }
}
