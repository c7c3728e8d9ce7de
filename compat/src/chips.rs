//! For GPUs that have no entry: identifies the chip by a range of PCI IDs, or by a series of product names.

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
    /// A series of product names: a word and a range of numbers, such as `gtx 460` to `gtx 590`.
    Series {
        /// The word before the number, or the whole name: `rtx`, `titan v`.
        word: String,
        /// The first number. `None` if the name has no number.
        first: Option<u32>,
        /// The last number.
        last: Option<u32>,
        /// A chip of the series, or the common part of its chip names, such as `GF1xx`.
        chip: String,
    }
}

impl ChipRange {
    /// Returns `true` if the range contains an ID.
    pub fn contains(&self, id: PciId) -> bool {
        self.first.vendor == id.vendor && self.first <= id && id <= self.last
    }
}
