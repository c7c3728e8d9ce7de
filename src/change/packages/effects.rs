//! The effects of a package transaction, as the difference of two inventories: packages, marks and keys. Accounts, and files in
//! `/etc` that no package owns, belong to package scripts or other programs, so they are listed but never removed.

use std::collections::{BTreeMap, BTreeSet};

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use crate::{config::desired::PackageSpec, runtimes};

/// Paths that other programs modify at any time, and our own files, which have separate undos.
pub(super) const OTHERS: [&str; 19] = [
    "/etc/.pwd.lock",
    "/etc/adjtime",
    "/etc/cloud",
    "/etc/gpu-bootstrap",
    "/etc/group-",
    "/etc/gshadow-",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/kubernetes",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/machine-id",
    "/etc/netplan",
    "/etc/network",
    "/etc/passwd-",
    "/etc/rancher",
    "/etc/resolv.conf",
    "/etc/shadow-",
    "/etc/ssh",
];

/// Directories of the programs that are installed, in addition to those of the container runtimes. The removal script of a
/// package may remove files in all of these directories that belong to no package, such as `/etc/docker/daemon.json`.
const OF_PROGRAMS: [&str; 4] = [
    "/etc/cni",
    "/etc/default",
    "/etc/nvidia",
    "/etc/nvidia-container-runtime",
];

/// A part of the name of each file that gpu-bootstrap writes.
pub(super) const OURS: &str = "gpu-bootstrap";

/// The packages, accounts and configuration files of a machine at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Inventory {
    /// The schema version of this document.
    pub schema: u32,
    /// Unpacked packages with their versions. Packages of a foreign architecture are called `name:architecture`.
    pub packages: BTreeMap<String, String>,
    /// Removed packages whose configuration remains.
    pub configured: BTreeSet<String>,
    /// Packages that are marked as automatically installed.
    pub auto: BTreeSet<String>,
    /// Keys in the package manager's own database.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub keys: BTreeSet<String>,
    /// Accounts and files that belong to no package.
    pub unowned: Unowned,
}

/// The effects of a transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Effects {
    /// Packages that are new. The undo purges them.
    pub appeared: BTreeSet<String>,
    /// Packages that are new, but whose configuration from an earlier installation existed. The undo removes them.
    pub refilled: BTreeSet<String>,
    /// Packages that were removed, with their versions.
    pub disappeared: Vec<PackageSpec>,
    /// Packages whose version changed, with the previous version.
    pub moved: Vec<PackageSpec>,
    /// Packages that lost the mark "automatically installed".
    pub now_manual: BTreeSet<String>,
    /// New packages (in [`Effects::appeared`] or [`Effects::refilled`]) that were only installed as dependencies. If one has
    /// lost its mark since, the administrator has requested it.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub automatic: BTreeSet<String>,
    /// Keys that the package manager imported for the packages. They are removed with the last of these packages.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub keys: BTreeSet<String>,
    /// Accounts and files that appeared at the same time, created by package scripts, services or another program.
    #[serde(skip_serializing_if = "Unowned::is_empty")]
    pub beside: Unowned,
    /// Files and symlinks in `/etc` that existed before the packages, and that the removal of the packages may remove.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub there: BTreeSet<Utf8PathBuf>,
    /// Later transactions that are undone together with this one. Their records are removed as well.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub merged: BTreeSet<String>,
}

/// Accounts, and files in `/etc`, that belong to no package.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Unowned {
    pub users: BTreeSet<String>,
    pub groups: BTreeSet<String>,
    /// Files and symlinks in `/etc`.
    pub etc: BTreeSet<Utf8PathBuf>,
}

impl Unowned {
    /// Returns `true` if there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Inventory {
    /// The schema version that this version writes.
    pub const SCHEMA: u32 = 1;

    /// Returns the difference to a later inventory.
    pub fn effects(&self, later: &Self) -> Effects {
        let came = |before: &BTreeSet<String>, after: &BTreeSet<String>| -> BTreeSet<String> {
            after.difference(before).cloned().collect()
        };
        let new: BTreeSet<String> = later
            .packages
            .keys()
            // A package that was removed again but left configuration must also be purged.
            .chain(later.configured.difference(&self.configured))
            .filter(|name| !self.packages.contains_key(*name))
            .cloned()
            .collect();
        let automatic = new.intersection(&later.auto).cloned().collect();
        let (refilled, appeared) = new
            .into_iter()
            .partition(|name| self.configured.contains(name));
        let spec = |(name, version): (&String, &String)| PackageSpec {
            name: name.clone(),
            version: Some(version.clone()),
        };
        Effects {
            appeared,
            refilled,
            disappeared: self
                .packages
                .iter()
                .filter(|(name, _)| !later.packages.contains_key(*name))
                .map(spec)
                .collect(),
            moved: self
                .packages
                .iter()
                .filter(|(name, version)| {
                    later.packages.get(*name).is_some_and(|now| now != *version)
                })
                .map(spec)
                .collect(),
            now_manual: self
                .auto
                .difference(&later.auto)
                .filter(|name| later.packages.contains_key(*name))
                .cloned()
                .collect(),
            automatic,
            keys: came(&self.keys, &later.keys),
            beside: Unowned {
                users: came(&self.unowned.users, &later.unowned.users),
                groups: came(&self.unowned.groups, &later.unowned.groups),
                etc: &later.unowned.etc - &self.unowned.etc,
            },
            there: (self.unowned.etc.iter())
                .filter(|path| {
                    let mut directories = OF_PROGRAMS.into_iter().chain(runtimes::directories());
                    let of_program = directories.any(|directory| path.starts_with(directory));
                    !later.unowned.etc.contains(*path) || of_program
                })
                .cloned()
                .collect(),
            merged: BTreeSet::new(),
        }
    }
}

impl Effects {
    /// Returns `true` if there is nothing to undo.
    pub fn is_empty(&self) -> bool {
        let nothing = Self {
            there: self.there.clone(),
            beside: self.beside.clone(),
            merged: self.merged.clone(),
            ..Self::default()
        };
        *self == nothing
    }

    /// The packages that were not installed before.
    pub fn new_packages(&self) -> BTreeSet<String> {
        self.appeared.union(&self.refilled).cloned().collect()
    }

    /// Returns only the effects on these packages. Accounts and files that no package owns are kept.
    #[must_use]
    pub fn only(mut self, names: &BTreeSet<String>) -> Self {
        for set in [
            &mut self.appeared,
            &mut self.refilled,
            &mut self.now_manual,
            &mut self.automatic,
        ] {
            set.retain(|name| names.contains(name));
        }
        for specs in [&mut self.disappeared, &mut self.moved] {
            specs.retain(|spec| names.contains(&spec.name));
        }
        self
    }

    /// Combines these effects with the effects of a later transaction.
    pub fn and_then(&self, later: &Self) -> Self {
        let union = |a: &BTreeSet<String>, b: &BTreeSet<String>| -> BTreeSet<String> {
            a.union(b).cloned().collect()
        };
        // A package that one transaction installed and the other removed has not disappeared.
        let without = |specs: &[PackageSpec], names: &BTreeSet<String>| -> Vec<PackageSpec> {
            specs
                .iter()
                .filter(|spec| !names.contains(&spec.name))
                .cloned()
                .collect()
        };
        let appeared = union(&self.appeared, &later.appeared);
        let refilled = union(&self.refilled, &later.refilled);
        let mine = union(&self.appeared, &self.refilled);
        let mut disappeared = without(&self.disappeared, &appeared);
        disappeared.extend(without(&later.disappeared, &mine));
        let mut moved = self.moved.clone();
        for spec in without(&later.moved, &mine) {
            // Report the version before both transactions.
            if !moved.iter().any(|earlier| earlier.name == spec.name) {
                moved.push(spec);
            }
        }
        let went: BTreeSet<&str> = self.disappeared.iter().map(|w| w.name.as_str()).collect();
        let came = |names: BTreeSet<String>| -> BTreeSet<String> {
            (names.into_iter())
                .filter(|name| !went.contains(name.as_str()))
                .collect()
        };
        // A package that the later transaction installed again has the mark from that transaction.
        let again = later.new_packages();
        let mine_still = self.automatic.difference(&again).cloned().collect();
        Self {
            automatic: came(union(&mine_still, &later.automatic))
                .difference(&later.now_manual)
                .cloned()
                .collect(),
            appeared: came(appeared),
            refilled: came(refilled),
            disappeared,
            moved,
            now_manual: union(&self.now_manual, &later.now_manual)
                .into_iter()
                .filter(|name| !mine.contains(name))
                .collect(),
            keys: union(&self.keys, &later.keys),
            beside: Unowned {
                users: union(&self.beside.users, &later.beside.users),
                groups: union(&self.beside.groups, &later.beside.groups),
                etc: &self.beside.etc | &later.beside.etc,
            },
            there: &(&self.there | &later.there) - &self.beside.etc,
            merged: union(&self.merged, &later.merged),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory(packages: &[(&str, &str)], etc: &[&str]) -> Inventory {
        Inventory {
            schema: Inventory::SCHEMA,
            packages: packages
                .iter()
                .map(|(name, version)| ((*name).to_owned(), (*version).to_owned()))
                .collect(),
            unowned: Unowned {
                etc: etc.iter().map(|path| (*path).into()).collect(),
                ..Unowned::default()
            },
            ..Inventory::default()
        }
    }

    fn names(set: &BTreeSet<String>) -> Vec<&str> {
        set.iter().map(String::as_str).collect()
    }

    #[test]
    fn difference_of_two_inventories() {
        let mut before = inventory(
            &[("bash", "1"), ("exim4", "4"), ("zlib1g", "1")],
            &["/etc/docker/daemon.json", "/etc/site.conf"],
        );
        before.configured = ["docker.io".to_owned()].into();
        before.auto = ["zlib1g".to_owned()].into();
        let mut after = inventory(
            &[
                ("bash", "1"),
                ("docker.io", "20"),
                ("runc", "1"),
                ("zlib1g", "2"),
            ],
            &["/etc/docker/daemon.json", "/etc/docker/key.json"],
        );
        after.unowned.groups = ["docker".to_owned()].into();
        let effects = before.effects(&after);
        assert_eq!(names(&effects.appeared), ["runc"]);
        assert_eq!(names(&effects.refilled), ["docker.io"]);
        assert_eq!(effects.disappeared[0].name, "exim4");
        assert_eq!(effects.moved[0].version.as_deref(), Some("1"));
        assert_eq!(names(&effects.now_manual), ["zlib1g"]);
        assert_eq!(names(&effects.beside.groups), ["docker"]);
        assert_eq!(effects.beside.etc, ["/etc/docker/key.json".into()].into());
        // A script may remove the first file. The second one is now owned by a package.
        let there = ["/etc/docker/daemon.json", "/etc/site.conf"].map(Utf8PathBuf::from);
        assert_eq!(effects.there, there.into());
        assert!(before.effects(&before).is_empty());
    }

    #[test]
    fn two_transactions_are_undone_as_one() {
        let start = inventory(&[("old", "1"), ("lib", "1")], &[]);
        let middle = inventory(&[("lib", "2"), ("a", "1")], &["/etc/a"]);
        let end = inventory(
            &[("old", "1"), ("lib", "3"), ("b", "1")],
            &["/etc/a", "/etc/b"],
        );
        let both = start.effects(&middle).and_then(&middle.effects(&end));
        let at_once = start.effects(&end);
        assert!(both.disappeared.is_empty());
        assert_eq!(both.moved, at_once.moved);
        assert_eq!(both.beside, at_once.beside);
        // `a` is also purged, because its configuration may remain.
        assert_eq!(names(&both.appeared), ["a", "b"]);
    }

    #[test]
    fn files_of_first_transaction_are_not_preexisting() {
        let start = inventory(&[], &["/etc/theirs"]);
        let middle = inventory(&[("a", "1")], &["/etc/theirs", "/etc/a"]);
        let end = inventory(&[("a", "1"), ("b", "1")], &[]);
        let both = start.effects(&middle).and_then(&middle.effects(&end));
        assert_eq!(both.there, ["/etc/theirs".into()].into());
    }

    #[test]
    fn package_installed_and_removed_is_still_purged() {
        let (start, middle) = (inventory(&[("a", "1")], &[]), inventory(&[("b", "1")], &[]));
        let there = start.effects(&middle);
        assert_eq!(there.disappeared[0].name, "a");
        let both = there.and_then(&middle.effects(&start));
        assert!(both.disappeared.is_empty());
        // `b` may have left configuration.
        assert_eq!(names(&both.appeared), ["b"]);
    }

    #[test]
    fn version_change_of_our_package_is_not_recorded() {
        let start = inventory(&[("lib", "1")], &[]);
        let middle = inventory(&[("lib", "1"), ("a", "1")], &[]);
        let end = inventory(&[("lib", "2"), ("a", "2")], &[]);
        let both = start.effects(&middle).and_then(&middle.effects(&end));
        assert_eq!(both.moved.len(), 1);
        assert_eq!(both.moved[0].name, "lib");
    }

    #[test]
    fn package_is_automatic_until_requested_later() {
        let start = inventory(&[], &[]);
        let mut middle = inventory(&[("a", "1"), ("b", "1"), ("c", "1")], &[]);
        middle.auto = ["a".to_owned(), "b".to_owned()].into();
        let mut end = middle.clone();
        end.auto = ["a".to_owned()].into();
        let both = start.effects(&middle).and_then(&middle.effects(&end));
        assert_eq!(names(&both.automatic), ["a"]);
        assert_eq!(names(&both.appeared), ["a", "b", "c"]);
        assert!(both.now_manual.is_empty());
    }

    #[test]
    fn only_packages_of_the_transaction_count() {
        let start = inventory(&[("old", "1"), ("lib", "1"), ("gone", "1")], &[]);
        let mut end = inventory(&[("lib", "2"), ("mine", "1"), ("theirs", "1")], &[]);
        end.auto = ["mine".to_owned(), "theirs".to_owned()].into();
        let mine: BTreeSet<String> = ["mine", "gone"].map(str::to_owned).into();
        let effects = start.effects(&end).only(&mine);
        assert_eq!(names(&effects.appeared), ["mine"]);
        assert_eq!(names(&effects.automatic), ["mine"]);
        assert_eq!(effects.disappeared.len(), 1);
        assert!(effects.moved.is_empty());
    }

    #[test]
    fn remaining_configuration_is_purged() {
        let start = inventory(&[], &[]);
        let mut end = inventory(&[], &[]);
        end.configured = ["nvidia-alternative".to_owned()].into();
        assert_eq!(names(&start.effects(&end).appeared), ["nvidia-alternative"]);
    }
}
