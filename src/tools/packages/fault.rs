//! The class of a package manager's failure, which decides about retries and the hint.

use std::{collections::BTreeMap, sync::LazyLock};

use camino::Utf8PathBuf;
use serde::Deserialize;

use crate::model::text::built_in;

static TABLE: LazyLock<Vec<FaultRow>> = LazyLock::new(|| {
    let table: FaultTable =
        built_in("package_faults").expect("the built-in table parses: a test reads it");
    table.fault
});

#[derive(Deserialize)]
struct FaultTable {
    fault: Vec<FaultRow>,
}

/// A row of the table `package_faults.toml`, which explains its fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultRow {
    fault: Fault,
    reason: String,
    hint: Option<String>,
    #[serde(default)]
    own: BTreeMap<String, String>,
    log: Option<LogPath>,
}

/// The path of a log that the output of a failure names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LogPath {
    below: String,
    name: String,
}

/// A class of failures. Its reason and its hints are in `package_faults.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Another package manager has a lock.
    Locked,
    /// An earlier run was interrupted.
    Interrupted,
    /// The disk is full.
    NoSpace,
    /// A filesystem has no inodes for further files.
    Inodes,
    /// A disk quota is used up.
    Quota,
    /// A filesystem is mounted read-only.
    ReadOnly,
    /// A file exceeds the size limit of the process or of the filesystem.
    FileSize,
    /// A repository is not signed by the key that belongs to it.
    Key,
    /// The key of a repository has expired.
    KeyExpired,
    /// A repository has a signature in a format that the package manager rejects.
    OldSignature,
    /// Two source files name different keys for one repository.
    SignedBy,
    /// There is no repository at the URL, or it denies access.
    Missing,
    /// A repository's lists are dated in the future.
    Clock,
    /// A repository's lists are too old: they are no longer renewed.
    Expired,
    /// A certificate was not trusted.
    Certificate,
    /// A source file cannot be read.
    Sources,
    /// A mirror is in the middle of its sync, or the package lists are older than it.
    Stale,
    /// No connection, or a broken one.
    Network,
    /// A package or version is not in the package lists.
    NotFound,
    /// A held package prevents the transaction.
    Held,
    /// The machine has changed since the simulation: the transaction would remove a package now.
    Moved,
    /// Dependencies cannot be met.
    Unmet,
    /// A kernel module did not compile.
    Build,
    /// A package's script failed.
    Script,
    /// Anything else.
    Other,
}

impl Fault {
    /// Whether another attempt may succeed without a change by the user.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Locked | Self::Stale | Self::Network | Self::Moved
        )
    }

    /// Whether it may pass, but not soon enough for the next attempts of one transaction.
    #[must_use]
    pub fn passes(self) -> bool {
        // NTP sets the clock some time after the network is there.
        matches!(self, Self::Clock)
    }

    /// The stable reason for scripts.
    #[must_use]
    pub fn reason(self) -> &'static str {
        &self.row().reason
    }

    /// What the user can do, for every package manager.
    #[must_use]
    pub fn hint(self) -> Option<&'static str> {
        self.row().hint.as_deref()
    }

    /// What the user can do, with the own commands of this package manager if it has some.
    #[must_use]
    pub fn hint_for(self, manager: &str) -> Option<&'static str> {
        let own = self.row().own.get(manager);
        own.map(String::as_str).or_else(|| self.hint())
    }

    /// The log that the output names: "Consult /var/lib/dkms/…/make.log for more information."
    #[must_use]
    pub fn log_named_in(self, output: &str) -> Option<Utf8PathBuf> {
        let log = self.row().log.as_ref()?;
        output
            .split_whitespace()
            .map(|word| word.trim_end_matches(['.', ',', ')']))
            .rfind(|word| word.starts_with(&log.below) && word.ends_with(&log.name))
            .map(Utf8PathBuf::from)
    }

    fn row(self) -> &'static FaultRow {
        let row = TABLE.iter().find(|row| row.fault == self);
        row.expect("a test looks for the row of each class")
    }

    /// The class, where it is read from this output: a module that did not compile names its log. A compiler that cannot
    /// write is no fault of the module.
    pub(super) fn or_build(self, output: &str) -> Self {
        match self {
            Self::NoSpace | Self::Inodes | Self::Quota | Self::ReadOnly | Self::FileSize => self,
            _ if Self::Build.log_named_in(output).is_some() => Self::Build,
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_its_row() {
        assert_eq!(TABLE.len(), Fault::Other as usize + 1);
        for (at, row) in TABLE.iter().enumerate() {
            assert_eq!(row.fault as usize, at, "{:?}", row.fault);
            // What nobody knows has no hint.
            assert_eq!(row.hint.is_none(), row.fault == Fault::Other);
        }
    }

    #[test]
    fn a_failed_build_names_its_log() {
        let text = "Building module:\nBad return status for module build on kernel: 6.1.0-44-amd64 (x86_64)\n\
                    Consult /var/lib/dkms/nvidia-current/535.261.03/build/make.log for more information.\n";
        assert_eq!(
            Fault::Build.log_named_in(text).as_deref(),
            Some("/var/lib/dkms/nvidia-current/535.261.03/build/make.log".into())
        );
        assert_eq!(Fault::Build.log_named_in("all is well"), None);
    }

    #[test]
    fn the_command_for_certificates_is_that_of_the_system() {
        for (manager, command) in [
            ("apt", "`update-ca-certificates`"),
            ("dnf", "`update-ca-trust`"),
        ] {
            let hint = Fault::Certificate.hint_for(manager).expect("a hint");
            assert!(hint.contains(command), "{hint}");
        }
        assert_eq!(Fault::Key.hint_for("apt"), Fault::Key.hint());
    }
}
