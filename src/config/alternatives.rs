//! Alternatives in a profile for a machine: other branches of the selected source, if its package lists determine the
//! available branches, and a source with the other module method (precompiled or DKMS).

use crate::{
    compat::pick::{Constraints, Pick, pick},
    config::{desired::OtherSource, driver::DriverInputs, profile::DriverRow},
};

impl DriverInputs<'_> {
    /// Returns the other branches of the source that the matrix accepts, the preferred one first. Empty if a branch is
    /// configured, or if the available branches do not depend on the package lists. A branch is omitted if it requires
    /// a different fabric service or different options.
    pub(super) fn other_branches(
        &self,
        rows: &[&DriverRow],
        row: &DriverRow,
        first: &Pick,
    ) -> Vec<Pick> {
        let spec = self.spec();
        if !row.is_rolling() || spec.branch.is_some() {
            return Vec::new();
        }
        let mut left = self.candidates(rows, Some(first.flavor));
        left.retain(|version| version.branch() != first.branch);
        let mut found = Vec::new();
        while !left.is_empty() {
            let narrowed = Constraints {
                flavor: Some(first.flavor),
                candidates: Some(left.clone()),
                ..spec.clone()
            };
            let Ok(next) = pick(self.matrix, &narrowed) else {
                break;
            };
            left.retain(|version| version.branch() != next.branch);
            let options = |pick: &Pick| self.options(row, pick.branch, pick.flavor);
            if row.branches.contains(&next.branch)
                && Self::has_same_companions(&next, first)
                && options(&next) == options(first)
            {
                found.push(next);
            }
        }
        found
    }

    /// Returns another source with the module method (precompiled or DKMS) that the fitting entries lack.
    pub(super) fn alternative(&self, fitting: &[&DriverRow]) -> Option<OtherSource> {
        let build = fitting.first()?.build;
        if fitting.iter().any(|row| row.build != build) {
            return None;
        }
        let other = (self.profile.driver.iter()).find(|row| {
            row.source != fitting[0].source
                && row.flavor == fitting[0].flavor
                && row.build != build
                && self.served(row)
        })?;
        Some(OtherSource {
            source: other.source.clone(),
            compiled: other.build.is_compiled(),
        })
    }
}
