//! What a server does wrong on purpose.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// How the server of a machine behaves, as a step of a case says it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Serving {
    /// Nothing is wrong if absent.
    pub fault: Option<Fault>,
    /// The repository that has it; all if absent.
    pub of: Option<String>,
    /// The package that has it; all if absent.
    pub package: Option<String>,
    /// For `slow`.
    pub bytes_per_second: Option<u32>,
    /// For `cut`: how often; always if absent.
    pub times: Option<u32>,
    /// The repositories are reached through a proxy alone.
    #[serde(default)]
    pub proxy: bool,
    /// What the proxy asks for: `user:password`.
    pub login: Option<String>,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The lists are signed by another key than the one that is published.
    WrongKey,
    /// The signed list of files is newer than the files.
    HalfSynced,
    /// A package has other bytes, but as many.
    Tampered,
    /// A package is not there.
    Missing,
    /// Packages come slowly.
    Slow,
    /// The connection ends in the middle of a package.
    Cut,
    /// Nobody listens.
    Down,
}

impl Serving {
    /// Fails where keys do not fit together.
    pub fn check(&self) -> Result<()> {
        if (self.fault == Some(Fault::Slow)) != self.bytes_per_second.is_some() {
            bail!("`slow` and `bytes-per-second` belong together");
        }
        if self.times.is_some() && self.fault != Some(Fault::Cut) {
            bail!("`times` is for `cut`");
        }
        if self.login.is_some() && !self.proxy {
            bail!("`login` is for `proxy`");
        }
        if self.fault.is_none() && (self.of.is_some() || self.package.is_some()) {
            bail!("`of` and `package` say where a fault is, and there is none");
        }
        Ok(())
    }

    /// In words, for a person.
    pub fn tell(&self) -> String {
        let mut text = match self.fault {
            None => "the repositories are as they should be".to_string(),
            Some(fault) => format!("the server's fault: {fault:?}"),
        };
        if let Some(of) = &self.of {
            text.push_str(&format!(" of {of}"));
        }
        if let Some(package) = &self.package {
            text.push_str(&format!(", package {package}"));
        }
        if self.proxy {
            text.push_str("; only a proxy reaches them");
        }
        text
    }
}

/// Counts how often a fault has happened.
#[derive(Debug, Default)]
pub struct Count(AtomicU32);

impl Count {
    /// Whether it shall happen once more.
    pub fn again(&self, times: Option<u32>) -> bool {
        let before = self.0.fetch_add(1, Ordering::SeqCst);
        times.is_none_or(|times| before < times)
    }
}
