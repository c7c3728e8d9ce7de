//! Why a package manager failed, as a class that decides whether to try again and what to advise.

/// A class of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Another package manager has a lock.
    Locked,
    /// A former run was interrupted.
    Interrupted,
    /// The disk is full.
    NoSpace,
    /// A repository is not signed by the key that belongs to it, or the key has expired.
    Key,
    /// Two source files name different keys for one repository.
    SignedBy,
    /// There is no repository at the address, or it lets nobody in.
    Missing,
    /// A repository's lists are dated in the future.
    Clock,
    /// A repository's lists are too old: nobody renews them any more.
    Expired,
    /// A certificate was not trusted.
    Certificate,
    /// A source file cannot be read.
    Sources,
    /// A mirror is in the middle of its sync, or the package lists are older than it.
    Stale,
    /// No connection, or a broken one.
    Network,
    /// The package lists do not know a package or version.
    NotFound,
    /// A held package stands in the way.
    Held,
    /// The machine has moved since the simulation: something would be removed now.
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
    /// Another attempt may succeed without anybody doing anything.
    #[must_use]
    pub fn passes(self) -> bool {
        matches!(
            self,
            Self::Locked | Self::Stale | Self::Network | Self::Moved
        )
    }

    /// The stable word for scripts.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Locked => "apt-lock-timeout",
            Self::Interrupted => "package-database-interrupted",
            Self::NoSpace => "no-disk-space",
            Self::Key => "repository-key",
            Self::SignedBy => "repository-conflict",
            Self::Missing => "repository-missing",
            Self::Clock => "clock",
            Self::Expired => "repository-expired",
            Self::Certificate => "certificate",
            Self::Sources => "repository-sources",
            Self::Stale => "repository-stale",
            Self::Network => "network",
            Self::NotFound => "package-not-found",
            Self::Held => "package-held",
            Self::Moved => "transaction-refused",
            Self::Unmet => "unmet-dependencies",
            Self::Build => "module-build",
            Self::Script => "package-script",
            Self::Other => "package-manager",
        }
    }

    /// What to do, whatever the package manager.
    #[must_use]
    pub fn hint(self) -> Option<&'static str> {
        Some(match self {
            Self::Locked => {
                "another package manager is running; wait for it, or pass a longer \
                 `--lock-timeout`"
            }
            Self::Interrupted => {
                "run `gpu-bootstrap install` again: it finishes what was interrupted first"
            }
            Self::NoSpace => "free space on the filesystems of `/usr`, `/var` and `/boot`",
            Self::Key => {
                "the repository's key has expired or changed; ask its vendor for the new \
                 fingerprint and set it in the configuration. A signature is never ignored"
            }
            Self::SignedBy => {
                "remove the older of the entries that name the same repository with different keys"
            }
            Self::Missing => {
                "check the address and the suite of the repository named above; releases move to \
                 an archive when nobody maintains them any more"
            }
            Self::Clock => "set the machine's clock (`timedatectl`); it is behind",
            Self::Expired => {
                "the repository is no longer renewed, or the machine's clock is ahead \
                 (`timedatectl`)"
            }
            Self::Certificate => {
                "install the certificate authority of the mirror or of the proxy that looks into \
                 TLS (`update-ca-certificates`), and check the machine's clock"
            }
            Self::Sources => "correct or remove the source file named above",
            Self::Stale => {
                "the mirror, or a cache on the way, does not have what its signed lists name: it \
                 may be in the middle of an update. Try again in some minutes, or use another \
                 mirror; nothing unsigned is ever installed"
            }
            Self::Network => {
                "check name resolution, proxy (`packages.proxy`) and firewall for the addresses \
                 above"
            }
            Self::NotFound => {
                "check that the repository is enabled and carries the package for this release \
                 and architecture"
            }
            Self::Held => "release the hold, if it is yours to release",
            Self::Unmet => {
                "look at what is said about the dependencies above; packages of two \
                 repositories mixed are the usual cause"
            }
            Self::Build => {
                "the compiler's words are above; the driver may be too old for the kernel, or \
                 the kernel's headers or compiler are missing"
            }
            Self::Moved => {
                "something else works on this machine's packages at the same time; try again when \
                 it has ended"
            }
            Self::Script => {
                "a package's own script fails, for the reason above; mend that, or remove the \
                 package, and run `gpu-bootstrap install` again"
            }
            Self::Other => return None,
        })
    }
}
