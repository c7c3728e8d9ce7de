//! Our own changes, according to the journal. The machine shows which packages are installed and held, but only the journal
//! records whether gpu-bootstrap did it.

use std::collections::BTreeSet;

/// Data that only the journal contains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ours {
    /// Packages that were installed by applied transactions.
    pub packages: BTreeSet<String>,
    /// Packages that gpu-bootstrap holds.
    pub held: BTreeSet<String>,
    /// Container runtime daemons whose last configuration failed or was interrupted. They may not have read their current
    /// files. `containerd config dump` does not show this, because it prints the files.
    pub unread: BTreeSet<&'static str>,
}

impl Ours {
    /// Returns `true` if the hold on a held package was not set by gpu-bootstrap.
    pub fn is_held_by_others(&self, name: &str) -> bool {
        !self.held.contains(name)
    }
}
