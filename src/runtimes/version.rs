//! Versions of container runtimes.

use std::fmt;

/// Major and minor version of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}.{}", self.0, self.1)
    }
}

impl Version {
    /// Parses the output of `--version`, for example `containerd github.com/containerd/containerd v1.7.24 88bf19b`, or a bare
    /// version.
    pub fn parse(text: &str) -> Option<Self> {
        text.split_whitespace().find_map(|word| {
            let mut numbers = word.trim_start_matches('v').split('.');
            let major = numbers.next()?.parse().ok()?;
            Some(Self(major, numbers.next()?.parse().ok()?))
        })
    }
}
