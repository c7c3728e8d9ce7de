//! The differences between dnf 4 and dnf 5, in one place. All systems in the profiles use dnf 4 (RHEL 8 to 10 and related
//! distributions, Amazon Linux 2023: NVIDIA driver installation guide, release 620). dnf 5 (Fedora 41 and newer, Azure Linux 4)
//! is **not tested**: no test machine and no profile uses it. The following would have to change:
//!
//! | | dnf 4 | dnf 5 |
//! |---|---|---|
//! | locked versions | [`LOCK_LIST`], patterns | `/etc/dnf/versionlock.toml`, conditions per package |
//! | version lock plugin | [`LOCK_PLUGIN`], a separate package | part of `dnf5-plugins` |
//! | add a repository | `config-manager --add-repo` | `config-manager addrepo --from-repofile=` |
//! | mark as a dependency | `mark remove` | `mark dependency` |
//! | store a transaction as data | after it was performed | `--store=DIR` before it is performed |
//! | locks | PID files of the running process ([`LOCKS`]) | a lock on the file itself |
//!
//! Sources: `dnf5-changes-from-dnf4(7)`, `dnf5-versionlock(8)`.

/// The list of version locks.
pub(super) const LOCK_LIST: &str = "/etc/dnf/plugins/versionlock.list";

/// The configuration of the version lock plugin.
pub(super) const LOCK_PLUGIN: &str = "/etc/dnf/plugins/versionlock.conf";

/// Disables the version lock plugin, for a transaction that moves packages and for a hint. The effect of such a transaction on
/// each package is approved instead.
pub(super) const NO_LOCKS: &str = "--disableplugin=versionlock";

/// Contains the ID of the process that changes packages. dnf removes the file when it exits, so a file with the ID of an exited
/// process shows that dnf was killed during a transaction.
pub(super) const TRANSACTION: &str = "/var/lib/dnf/rpmdb_lock.pid";

/// PID files of the running process, then the locks of the rpm database, whose path depends on its version.
pub(super) const LOCKS: [&str; 5] = [
    TRANSACTION,
    "/var/cache/dnf/metadata_lock.pid",
    "/var/cache/dnf/download_lock.pid",
    "/usr/lib/sysimage/rpm/.rpm.lock",
    "/var/lib/rpm/.rpm.lock",
];

/// The `dnf mark` argument for a package that is installed only as a dependency.
pub(super) const AS_DEPENDENCY: &str = "remove";
