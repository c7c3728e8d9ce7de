//! What this program has done to the packages of the machine, according to its journal. The machine tells
//! which packages are installed and held; only the journal tells by whom.

use std::collections::BTreeSet;

/// Packages that this program has installed, and holds that it has set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ours {
    /// Packages that its standing transactions have installed.
    pub packages: BTreeSet<String>,
    /// Packages that it holds.
    pub held: BTreeSet<String>,
}

impl Ours {
    /// Whether somebody else holds a package that is held.
    #[must_use]
    pub fn is_held_by_others(&self, name: &str) -> bool {
        !self.held.contains(name)
    }
}
