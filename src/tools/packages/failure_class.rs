//! The class of a package manager failure, which decides about retries and the hint.

use std::{collections::BTreeMap, sync::LazyLock};

use camino::Utf8PathBuf;
use serde::Deserialize;

use crate::model::text::built_in;

static TABLE: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let table: Table =
        built_in("package_failures").expect("the built-in table is valid, as a test checks");
    table.class
});

#[derive(Deserialize)]
struct Table {
    class: Vec<Row>,
}

/// An entry of the table `package_failures.toml`. That file explains the fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    class: FailureClass,
    reason: String,
    hint: Option<String>,
    #[serde(default)]
    own: BTreeMap<String, String>,
    log: Option<LogPath>,
}

/// Pattern for the path of a log in the output of a failure.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LogPath {
    below: String,
    name: String,
}

/// A failure class. Its reason and hints are in `package_failures.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureClass {
    /// Another process holds a lock of the package manager.
    Locked,
    /// An earlier run of the package manager was interrupted.
    Interrupted,
    /// The disk is full.
    NoSpace,
    /// A filesystem has no free inodes.
    Inodes,
    /// A disk quota is exceeded.
    Quota,
    /// A filesystem is mounted read-only.
    ReadOnly,
    /// A file exceeds the size limit of the process or of the filesystem.
    FileSize,
    /// A repository is not signed with its key.
    Key,
    /// The key of a repository has expired.
    KeyExpired,
    /// A repository is signed in a format that the package manager rejects.
    OldSignature,
    /// Two source files specify different keys for one repository.
    SignedBy,
    /// There is no repository at the URL, or access is denied.
    Missing,
    /// The lists of a repository have a date in the future.
    Clock,
    /// The lists of a repository have expired because they are no longer updated.
    Expired,
    /// A certificate is not trusted.
    Certificate,
    /// A source file is invalid.
    Sources,
    /// A mirror is being synchronized, or the package lists are older than the mirror.
    Stale,
    /// No connection, or an interrupted one.
    Network,
    /// A package or version is not in the package lists.
    NotFound,
    /// A held package prevents the transaction.
    Held,
    /// The machine has changed since the simulation, so the transaction would now remove a package.
    Moved,
    /// Unmet dependencies.
    Unmet,
    /// A kernel module build failed.
    Build,
    /// A package script failed.
    Script,
    /// Any other failure.
    Other,
}

impl FailureClass {
    /// Whether a retry may succeed without user action.
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Locked | Self::Stale | Self::Network | Self::Moved
        )
    }

    /// Whether the failure is transient, but may last longer than the retries of one transaction.
    pub fn is_retryable(self) -> bool {
        // NTP sets the clock some time after the network is available.
        matches!(self, Self::Clock)
    }

    /// The stable reason for scripts.
    pub fn reason(self) -> &'static str {
        &self.row().reason
    }

    /// The remedy for every package manager.
    pub fn hint(self) -> Option<&'static str> {
        self.row().hint.as_deref()
    }

    /// The remedy, with the commands of this package manager if it has a separate text.
    pub fn hint_for(self, manager: &str) -> Option<&'static str> {
        let own = self.row().own.get(manager);
        own.map(String::as_str).or_else(|| self.hint())
    }

    /// Returns the path of the log in the output: "Consult /var/lib/dkms/…/make.log for more information."
    pub fn log_named_in(self, output: &str) -> Option<Utf8PathBuf> {
        let log = self.row().log.as_ref()?;
        output
            .split_whitespace()
            .map(|word| word.trim_end_matches(['.', ',', ')']))
            .rfind(|word| word.starts_with(&log.below) && word.ends_with(&log.name))
            .map(Utf8PathBuf::from)
    }

    fn row(self) -> &'static Row {
        let row = TABLE.iter().find(|row| row.class == self);
        row.expect("a test checks that each class has an entry")
    }

    /// Returns [`FailureClass::Build`] if the output contains the path of a DKMS build log, which is printed if a module build fails.
    /// Keeps classes such as a full disk, because they can also be the cause of a failed build.
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
    fn each_class_has_its_entry() {
        assert_eq!(TABLE.len(), FailureClass::Other as usize + 1);
        for (at, row) in TABLE.iter().enumerate() {
            assert_eq!(row.class as usize, at, "{:?}", row.class);
            // Unknown failures have no hint.
            assert_eq!(row.hint.is_none(), row.class == FailureClass::Other);
        }
    }

    #[test]
    fn log_path_of_failed_build_is_found() {
        let text = "Building module:\nBad return status for module build on kernel: 6.1.0-44-amd64 (x86_64)\n\
                    Consult /var/lib/dkms/nvidia-current/535.261.03/build/make.log for more information.\n";
        assert_eq!(
            FailureClass::Build.log_named_in(text).as_deref(),
            Some("/var/lib/dkms/nvidia-current/535.261.03/build/make.log".into())
        );
        assert_eq!(FailureClass::Build.log_named_in("all is well"), None);
    }

    #[test]
    fn certificate_hint_depends_on_the_manager() {
        for (manager, command) in [
            ("apt", "`update-ca-certificates`"),
            ("dnf", "`update-ca-trust`"),
        ] {
            let hint = FailureClass::Certificate.hint_for(manager).expect("a hint");
            assert!(hint.contains(command), "{hint}");
        }
        assert_eq!(FailureClass::Key.hint_for("apt"), FailureClass::Key.hint());
    }
}
