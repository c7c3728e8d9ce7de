//! Merges the package changes of several steps into one transaction.

use std::collections::BTreeMap;

use crate::{change::Change, config::desired::PackageSpec};

/// One transaction for several steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Merged {
    /// The steps, by their index.
    pub steps: Vec<usize>,
    /// The required packages, each once.
    pub packages: Vec<PackageSpec>,
    /// Installed packages that the transaction replaces or removes.
    pub removing: Vec<String>,
}

/// Merges [`Change::InstallPackages`] of several steps, each with the index of its step. A step that conflicts with an earlier
/// one is left out, and so are other changes.
pub fn merge<'c>(changes: impl IntoIterator<Item = (usize, &'c Change)>) -> Merged {
    let mut steps = Vec::new();
    let mut specs: BTreeMap<&str, &PackageSpec> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    let mut gone: Vec<String> = Vec::new();
    for (at, change) in changes {
        let Change::InstallPackages {
            packages, removing, ..
        } = change
        else {
            continue;
        };
        let disagrees = packages.iter().any(|spec| {
            specs.get(spec.name.as_str()).is_some_and(|other| {
                spec.version.is_some() && other.version.is_some() && spec.version != other.version
            }) || gone.contains(&spec.name)
        }) || removing
            .iter()
            .any(|name| specs.contains_key(name.as_str()));
        if disagrees && !steps.is_empty() {
            continue;
        }
        for spec in packages {
            let known = specs.entry(&spec.name).or_insert_with(|| {
                order.push(&spec.name);
                spec
            });
            if known.version.is_none() {
                *known = spec;
            }
        }
        for name in removing {
            if !gone.contains(name) {
                gone.push(name.clone());
            }
        }
        steps.push(at);
    }
    Merged {
        steps,
        packages: order.iter().map(|name| specs[name].clone()).collect(),
        removing: gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_step_with_another_version_of_a_package_waits() {
        let first = Some("580.*");
        for (second, merged) in [
            (Some("580.*"), &[0, 1][..]),
            (None, &[0, 1]),
            (Some("595.*"), &[0]),
        ] {
            let changes = [first, second].map(|version| Change::InstallPackages {
                packages: vec![PackageSpec {
                    name: "driver".into(),
                    version: version.map(str::to_owned),
                }],
                removing: Vec::new(),
                later: false,
            });
            let merged_now = merge(changes.iter().enumerate());
            assert_eq!(merged_now.steps, merged, "{second:?}");
            let [driver] = &merged_now.packages[..] else {
                panic!("{merged_now:?}");
            };
            assert_eq!(driver.version.as_deref(), first);
        }
    }
}
