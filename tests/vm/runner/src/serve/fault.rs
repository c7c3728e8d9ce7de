//! Injected faults of a server.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// The behavior of a machine's server, as written in a step of a case.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Serving {
    /// No fault if absent.
    pub fault: Option<Fault>,
    /// The repository with the fault; all if absent.
    pub of: Option<String>,
    /// The package with the fault; all if absent.
    pub package: Option<String>,
    /// For `slow`.
    pub bytes_per_second: Option<u32>,
    /// For `cut`: how often; always if absent.
    pub times: Option<u32>,
    /// The repositories are reachable only through a proxy.
    #[serde(default)]
    pub proxy: bool,
    /// The credentials that the proxy requires: `user:password`.
    pub login: Option<String>,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The lists are signed with another key than the published one.
    WrongKey,
    /// The signed index is newer than the files.
    HalfSynced,
    /// The lists are signed, the packages are not. Only for dnf, because apt packages are never signed.
    Unsigned,
    /// A package has other bytes of the same length.
    Tampered,
    /// A package is missing.
    Missing,
    /// Packages are sent slowly.
    Slow,
    /// The connection closes in the middle of a package.
    Cut,
    /// The server refuses connections.
    Down,
    /// The server returns 503 for each request.
    Unavailable,
}

impl Serving {
    /// Fails if keys do not match each other.
    pub fn check(&self) -> Result<()> {
        if (self.fault == Some(Fault::Slow)) != self.bytes_per_second.is_some() {
            bail!("`slow` and `bytes-per-second` must be used together");
        }
        if self.times.is_some() && self.fault != Some(Fault::Cut) {
            bail!("`times` is only for `cut`");
        }
        if self.login.is_some() && !self.proxy {
            bail!("`login` is only for `proxy`");
        }
        if self.fault.is_none() && (self.of.is_some() || self.package.is_some()) {
            bail!("`of` and `package` need a `fault`");
        }
        Ok(())
    }

    /// A human-readable description.
    pub fn tell(&self) -> String {
        let mut text = match self.fault {
            None => "the repositories have no fault".to_string(),
            Some(fault) => format!("the server's fault: {fault:?}"),
        };
        if let Some(of) = &self.of {
            text.push_str(&format!(" of {of}"));
        }
        if let Some(package) = &self.package {
            text.push_str(&format!(", package {package}"));
        }
        if self.proxy {
            text.push_str("; only reachable through a proxy");
        }
        text
    }
}
