//! Uses the output of `lspci` instead of the PCI bus of a machine.
//!
//! The pciutils formats are supported: `-n`, `-nn`, `-nnk` and `-vvnn` (a line for each function, followed by indented
//! details), and `-nmm` and `-nnmm` (quoted fields), each with or without the domain. Without `-n` the output has no IDs and
//! cannot be used.
//!
//! gpu-bootstrap never runs lspci itself, because it reads the same sysfs files and the same `pci.ids`.

mod parse;
mod tree;

use crate::model::pci::{PciAddress, PciClass, PciId};

pub use parse::{LspciError, parse};
pub use tree::host;

/// The driver of a function, if the text shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Driver {
    /// Unknown: `lspci` was called without `-k` and `-v`.
    NotReported,
    /// No driver is bound.
    None,
    Bound(String),
}

/// A PCI function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The address. The domain is 0 if the text has none.
    pub address: PciAddress,
    /// The device class.
    pub class: PciClass,
    /// The vendor and device ID.
    pub id: PciId,
    /// The name in `pci.ids`, if the text contains it.
    pub name: Option<String>,
    /// The subsystem (board), or `None` if unknown.
    pub subsystem: Option<PciId>,
    /// The revision. It is 0xff if the function does not respond.
    pub revision: Option<u8>,
    pub driver: Driver,
    /// The NUMA node, if the text contains it.
    pub numa_node: Option<u32>,
}

impl Function {
    /// Whether the function does not respond: its config space reads as all ones.
    pub fn is_dead(&self) -> bool {
        self.revision == Some(0xff)
    }
}
