//! Entries that identify the chip of a GPU without its own entry, by PCI ID or product name.

use crate::capability::ComputeCapability;
use crate::evidence::row;
use crate::identity::Architecture;
use crate::pci::PciId;

row! {
    /// A range of device IDs with one architecture.
    ChipRange {
        /// The first id.
        first: PciId,
        /// The last id.
        last: PciId,
        /// The architecture's name.
        architecture: Architecture,
        /// The chips in the range. Empty if their names are not needed.
        #[serde(default)]
        chips: Vec<String>,
        /// The compute capability. `None` if it differs within the range or is unknown.
        compute_capability: Option<ComputeCapability>,
    }
}

row! {
    /// Product names without an entry: a word and a range of numbers, such as `RTX 4070`.
    Series {
        /// The word before the number, or the whole name: `rtx`, `titan v`.
        word: String,
        /// The first number. `None` if the name has no number.
        first: Option<u32>,
        /// The last number.
        last: Option<u32>,
        /// A chip of the series.
        chip: String,
    }
}

impl ChipRange {
    /// Returns `true` if the range contains an ID.
    pub fn contains(&self, id: PciId) -> bool {
        self.first.vendor == id.vendor && self.first <= id && id <= self.last
    }
}
