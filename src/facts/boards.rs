//! What facts ask of the matrix, which lies in a layer above.

use crate::model::pci::PciId;

/// What the matrix knows of a GPU; what it does not know is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Board {
    /// `H100 SXM5 80GB`.
    pub name: Option<String>,
    /// `hopper`, ….
    pub architecture: Option<String>,
    /// `9.0`.
    pub compute_capability: Option<String>,
    /// `open`, `proprietary` or `either`.
    pub module_flavour: Option<String>,
    /// The subsystem is a slice that a hypervisor gave.
    pub vgpu: bool,
}

/// The matrix, as far as facts need it.
pub trait Boards: Send + Sync {
    /// The GPU with this id, told apart by its subsystem where the id alone is ambiguous. For one
    /// that no row names, `chip` is what `pci.ids` calls it: `GB299 [Some Product]`.
    fn describe(&self, id: PciId, subsystem: Option<PciId>, chip: Option<&str>) -> Board;

    /// Whether the id is an NVSwitch; other NVIDIA bridges share its class.
    fn is_nvswitch(&self, id: PciId) -> bool;

    /// The name of a device that is no GPU.
    fn name(&self, id: PciId) -> Option<String>;
}

/// How far looking may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// Programs may be asked, and NVML. Not so below `--root`: what lies there is data.
    pub executes: bool,
}
