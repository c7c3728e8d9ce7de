//! Rows that tell the chip of a GPU that has no row of its own: by its id, and by its product name.

use crate::capability::ComputeCapability;
use crate::evidence::row;
use crate::identity::Architecture;
use crate::pci::PciId;

row! {
    /// A block of device ids whose GPUs all have one architecture.
    ChipRange {
        /// The first id.
        first: PciId,
        /// The last id.
        last: PciId,
        /// The architecture's name.
        architecture: Architecture,
        /// The chips in it; empty where their names do not matter.
        #[serde(default)]
        chips: Vec<String>,
        /// Their compute capability; `None` where they differ, or where it was not read.
        compute_capability: Option<ComputeCapability>,
    }
}

row! {
    /// Product names of cards without a row: a word and a range of numbers, as in `RTX 4070`.
    Series {
        /// The word before the number, or the whole name: `rtx`, `titan v`.
        word: String,
        /// The first number; `None` if the name has none.
        first: Option<u32>,
        /// The last number.
        last: Option<u32>,
        /// A chip of the series.
        chip: String,
    }
}

impl ChipRange {
    /// Whether an id is in the block.
    pub fn contains(&self, id: PciId) -> bool {
        self.first.vendor == id.vendor && self.first <= id && id <= self.last
    }
}
