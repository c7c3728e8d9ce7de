//! What this program has done to the machine, according to its journal. The machine tells which packages are installed and
//! held; only the journal tells by whom.

use std::collections::BTreeSet;

/// What only the journal tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ours {
    /// Packages that its standing transactions have installed.
    pub packages: BTreeSet<String>,
    /// Packages that it holds.
    pub held: BTreeSet<String>,
    /// Daemons of container runtimes whose last configuration failed or was interrupted: their files may say what they have
    /// not read, and `containerd config dump` shows files.
    pub unread: BTreeSet<&'static str>,
}

impl Ours {
    /// Whether somebody else holds a package that is held.
    #[must_use]
    pub fn is_held_by_others(&self, name: &str) -> bool {
        !self.held.contains(name)
    }
}
