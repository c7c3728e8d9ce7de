//! The types of settings whose value is one of a few words.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The meaning of a true node condition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ConditionMeaning {
    /// The node is healthy, like `Ready` of the kubelet.
    #[default]
    Ready,
    /// The node has a problem, like `MemoryPressure` and the conditions of the node problem detector.
    Problem,
}

/// How to handle a driver that gpu-bootstrap did not install.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Existing {
    /// The run is blocked.
    #[default]
    Refuse,
    /// The driver is kept if it supports the GPUs.
    Keep,
    /// The driver is removed, and the configured one is installed.
    Replace,
}

/// Who runs IMEX, which connects the GPUs of several nodes in a rack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ImexMode {
    /// Not changed.
    #[default]
    Off,
    /// The unit of this machine, with a fixed list of nodes.
    Host,
    /// The DRA driver in the cluster, for each ComputeDomain. The unit of this machine must not run.
    Dra,
}

/// A kernel module for RDMA with GPU memory. The variants are in the order in which they are loaded.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum RdmaModule {
    /// The Elastic Fabric Adapter of AWS.
    Efa,
    /// The peer memory client of the driver, for RDMA stacks without DMA-BUF.
    NvidiaPeermem,
    /// GDRCopy.
    Gdrdrv,
    /// GPUDirect Storage.
    NvidiaFs,
}

impl RdmaModule {
    /// The name of the module.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Efa => "efa",
            Self::NvidiaPeermem => "nvidia-peermem",
            Self::Gdrdrv => "gdrdrv",
            Self::NvidiaFs => "nvidia-fs",
        }
    }
}

/// When to restart a daemon whose restart stops its containers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// While no container runs.
    #[default]
    WhenIdle,
    /// At any time.
    Always,
}

/// What happens to processes that use a GPU when an upgrade starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GpuProcesses {
    /// They block the upgrade.
    #[default]
    Block,
    /// The reboot ends them.
    End,
}
