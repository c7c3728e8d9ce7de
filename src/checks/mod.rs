//! Health checks, one file for each family: problems that no change of this program can repair.

pub mod causes;
mod container;
mod libraries;
mod pci;

use crate::check::Check;

/// All checks.
#[must_use]
pub fn all() -> Vec<Box<dyn Check>> {
    vec![
        Box::new(container::Container),
        Box::new(pci::Pci),
        Box::new(libraries::Libraries),
    ]
}

#[cfg(test)]
mod tests {
    use super::all;

    #[test]
    fn names_are_unique() {
        let checks = all();
        let mut names: Vec<&str> = checks
            .iter()
            .flat_map(|check| check.ids())
            .map(|id| id.as_str())
            .collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
