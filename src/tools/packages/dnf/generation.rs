//! What differs between dnf 4 and dnf 5, in one place. All systems that a profile names have dnf 4
//! (RHEL 8 to 10 and its relatives, Amazon Linux 2023: NVIDIA's driver installation guide, release
//! 620). dnf 5 (Fedora from 41 on, Azure Linux 4) is **not proven**: no machine with it has been run,
//! and no profile uses it. What would have to change:
//!
//! | | dnf 4 | dnf 5 |
//! |---|---|---|
//! | locked versions | [`LOCK_LIST`], patterns | `/etc/dnf/versionlock.toml`, conditions per package |
//! | plugin of the locks | [`LOCK_PLUGIN`], a package of its own | part of `dnf5-plugins` |
//! | add a repository | `config-manager --add-repo` | `config-manager addrepo --from-repofile=` |
//! | mark as a dependency | `mark remove` | `mark dependency` |
//! | store a transaction as data | after it was performed | `--store=FOLDER` before it is |
//! | process that works | [`LOCKS`] are files with its number | a lock on the file itself |
//!
//! Sources: `dnf5-changes-from-dnf4(7)`, `dnf5-versionlock(8)`.

/// The list of locked versions.
pub(super) const LOCK_LIST: &str = "/etc/dnf/plugins/versionlock.list";

/// The configuration of the plugin that reads it.
pub(super) const LOCK_PLUGIN: &str = "/etc/dnf/plugins/versionlock.conf";

/// Holds the number of the process that changes packages. dnf removes it at its end, so one whose
/// process is gone shows that dnf was killed in the middle of a transaction.
pub(super) const TRANSACTION: &str = "/var/lib/dnf/rpmdb_lock.pid";

/// Files with the number of the process that works, then the locks of rpm's database, whose path
/// depends on its version.
pub(super) const LOCKS: [&str; 5] = [
    TRANSACTION,
    "/var/cache/dnf/metadata_lock.pid",
    "/var/cache/dnf/download_lock.pid",
    "/usr/lib/sysimage/rpm/.rpm.lock",
    "/var/lib/rpm/.rpm.lock",
];

/// How `dnf mark` calls a package that is installed only because others need it.
pub(super) const AS_DEPENDENCY: &str = "remove";
