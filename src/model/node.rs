//! The prepared node, as `install` and `status` show it.

use serde::{Deserialize, Serialize};

use super::{gpu::Flavor, version::DriverVersion};

/// A node that a successful `install` has prepared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct NodeSummary {
    /// The loaded driver.
    pub driver: Option<DriverVersion>,
    /// The flavor of its kernel modules.
    pub flavor: Option<Flavor>,
    /// The main package of the driver, of each runtime, of the toolkit and of the cluster.
    pub packages: Vec<NodePackage>,
    /// The name of each GPU.
    pub gpus: Vec<String>,
    /// Where the GPUs computed: `in a container of docker and containerd`, `on the host`. `None` if they were not validated.
    pub validated: Option<String>,
    /// The name of the node in its cluster. `None` if the machine did not join a cluster.
    pub node: Option<String>,
    /// The API server of this cluster: a URL, or the server in the settings of an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The state of the IMEX daemon, such as `READY`, if `fabric.imex` is `host`. The other nodes of the domain may start later,
    /// so the node is prepared in any state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imex: Option<String>,
    /// The number of reboots that `install` required.
    pub reboots: u32,
    /// The reason of each reboot, oldest first. Empty in journals of older versions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reboot_reasons: Vec<String>,
    /// Commands that use the node.
    pub commands: Vec<String>,
}

/// A package of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NodePackage {
    pub part: NodePart,
    pub name: String,
    pub version: String,
    /// Its version is held.
    pub held: bool,
}

/// What a package is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodePart {
    Driver,
    Runtime,
    Toolkit,
    Cluster,
}
