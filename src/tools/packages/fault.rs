//! The class of a package manager's failure, which decides about retries and the hint.

/// A class of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Another package manager has a lock.
    Locked,
    /// An earlier run was interrupted.
    Interrupted,
    /// The disk is full.
    NoSpace,
    /// A repository is not signed by the key that belongs to it, or the key has expired.
    Key,
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
        match self {
            Self::Locked => "package-lock-timeout",
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

    /// What the user can do, for every package manager.
    #[must_use]
    pub fn hint(self) -> Option<&'static str> {
        Some(match self {
            Self::Locked => {
                "another package manager is running; wait for it, or pass a longer \
                 `--lock-timeout`"
            }
            Self::Interrupted => {
                "run `gpu-bootstrap install` again: it finishes the interrupted work first"
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
                "check the URL and the suite of the repository named above; releases move to an \
                 archive when they are no longer maintained"
            }
            Self::Clock => "set the machine's clock (`timedatectl`); it is behind",
            Self::Expired => {
                "the repository is no longer maintained, or the machine's clock is ahead (check \
                 it with `timedatectl`)"
            }
            Self::Certificate => {
                "install the certificate authority of the mirror, or of a proxy that inspects TLS, \
                 and check the machine's clock"
            }
            Self::Sources => "correct or remove the source file named above",
            Self::Stale => {
                "the mirror, or a proxy cache, does not have the files that its signed lists \
                 name: it may be in the middle of an update. Try again in some minutes, or use \
                 another mirror; unsigned packages are never installed"
            }
            Self::Network => {
                "check name resolution, proxy (`packages.proxy`) and firewall for the addresses \
                 above"
            }
            Self::NotFound => {
                "check that the repository is enabled and offers the package for this release and \
                 architecture"
            }
            Self::Held => "if nobody else needs the hold, release it",
            Self::Unmet => {
                "read the messages about dependencies above; the usual cause is a mix of packages \
                 from two repositories"
            }
            Self::Build => {
                "the compiler's errors are above; the driver may be too old for the kernel, or \
                 the kernel's headers or compiler are missing"
            }
            Self::Moved => {
                "another program changes this machine's packages at the same time; try again when \
                 it has finished"
            }
            Self::Script => {
                "a script of a package failed for the reason above; solve it, or remove the \
                 package, and run `gpu-bootstrap install` again"
            }
            Self::Other => return None,
        })
    }
}
