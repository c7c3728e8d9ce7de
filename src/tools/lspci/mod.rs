//! `lspci`: its output as text, in place of the bus of a machine.
//!
//! The formats are those of pciutils: `-n`, `-nn`, `-nnk` and `-vvnn` (a line for each function, and
//! indented lines about it), and `-nmm` and `-nnmm` (fields in quotation marks), each with or without the
//! domain. Without `-n` there are no ids, and nothing can be known.
//!
//! This program never runs lspci, which reads the same sysfs and the same `pci.ids` as it does.

mod parse;
mod tree;

use crate::model::pci::{PciAddress, PciClass, PciId};

pub use parse::{LspciError, parse};
pub use tree::host;

/// What the text tells about the driver of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Driver {
    /// Nothing: `lspci` was called without `-k` and `-v`.
    NotTold,
    /// No driver is bound.
    None,
    Bound(String),
}

/// One function of the bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Where; the domain is 0 if the text has none.
    pub address: PciAddress,
    /// What kind.
    pub class: PciClass,
    /// What.
    pub id: PciId,
    /// Its name in `pci.ids`, where the text has it.
    pub name: Option<String>,
    /// The board; `None` if the text does not tell it.
    pub subsystem: Option<PciId>,
    /// The revision; 0xff if the function does not answer.
    pub revision: Option<u8>,
    pub driver: Driver,
    /// Its NUMA node, where the text has it.
    pub numa_node: Option<u32>,
}

impl Function {
    /// Whether the function does not answer: its configuration space reads as ones.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.revision == Some(0xff)
    }
}
