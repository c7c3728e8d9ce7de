//! What else a profile has for a machine: further branches of a source whose lists decide on the branch, and
//! a source with modules of the other kind.

use crate::{
    compat::pick::{Pick, Wish, pick},
    config::{desired::OtherSource, driver::DriverInputs, profile::DriverRow},
};

impl DriverInputs<'_> {
    /// The further branches that the matrix accepts, in its order, where only the package lists tell which
    /// branches the source has for a kernel. What else depends on the branch must be the same.
    pub(super) fn other_branches(
        &self,
        rows: &[&DriverRow],
        row: &DriverRow,
        first: &Pick,
    ) -> Vec<Pick> {
        let wish = self.wish();
        if !row.is_rolling() || wish.branch.is_some() {
            return Vec::new();
        }
        let mut left = self.candidates(rows, Some(first.flavour));
        left.retain(|version| version.branch() != first.branch);
        let mut found = Vec::new();
        while !left.is_empty() {
            let narrowed = Wish {
                flavour: Some(first.flavour),
                candidates: Some(left.clone()),
                ..wish.clone()
            };
            let Ok(next) = pick(self.matrix, &narrowed) else {
                break;
            };
            left.retain(|version| version.branch() != next.branch);
            let options = |pick: &Pick| self.options(row, pick.branch, pick.flavour);
            if row.branches.contains(&next.branch)
                && next.fabric == first.fabric
                && options(&next) == options(first)
            {
                found.push(next);
            }
        }
        found
    }

    /// Another source, which has modules in a way that this one has not: packaged, or compiled here.
    pub(super) fn alternative(&self, fitting: &[&DriverRow]) -> Option<OtherSource> {
        let build = fitting.first()?.build;
        if fitting.iter().any(|row| row.build != build) {
            return None;
        }
        let other = (self.profile.driver.iter()).find(|row| {
            row.source != fitting[0].source
                && row.flavour == fitting[0].flavour
                && row.build != build
                && self.served(row)
        })?;
        Some(OtherSource {
            source: other.source.clone(),
            compiled: other.build.is_compiled(),
        })
    }
}
