//! Package manager requests as plain data: packages, repositories, preferences. Every backend in `tools::packages`
//! supports these types.

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

/// A package repository with its key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Repository {
    /// Our name for the repository. Its file name is `gpu-bootstrap-NAME`.
    pub name: String,
    /// The base URL.
    pub url: String,
    /// Suites (`/` for a flat repository), if the package manager uses them.
    pub suites: Vec<String>,
    /// Components (empty for a flat repository), if the package manager uses them.
    pub components: Vec<String>,
    /// Architecture names of the package manager.
    pub architectures: Vec<String>,
    /// The URL of the key. If this and `keyring` are `None`, the package manager's own keyrings apply, as for the
    /// existing source of the same archive.
    pub key_url: Option<String>,
    /// Fingerprints of accepted keys, 40 hexadecimal digits, or `sha256:` and the digest of an accepted armored key
    /// file without its `Version:` headers. Empty only without `key-url`.
    pub fingerprints: Vec<String>,
    /// Existing key files with additional signing keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key_files: Vec<Utf8PathBuf>,
    /// An existing keyring, for components of the distribution archive.
    pub keyring: Option<Utf8PathBuf>,
    /// The priority of [`Repository::packages`] from this repository. `None` for the package manager default.
    pub priority: Option<i32>,
    /// The packages with this priority, as shell patterns for names. Never all packages, because apt applies the
    /// priority to every repository on the same server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<String>,
    /// The signed parts, for package managers that can verify both packages and metadata.
    #[serde(default, skip_serializing_if = "Signed::is_packages")]
    pub signed: Signed,
}

/// Prefix of key file digests in [`Repository::fingerprints`].
pub const KEY_FILE: &str = "sha256:";

impl Repository {
    /// Returns whether a key file is accepted by its digest. The key file must then stay armored, because the digest is of the
    /// armored text.
    pub fn names_key_file(&self) -> bool {
        (self.fingerprints.iter()).any(|one| one.starts_with(KEY_FILE))
    }
}

/// The files that are signed by the vendor of a repository.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Signed {
    /// Each package.
    #[default]
    Packages,
    /// The metadata, which contains the digest of each package.
    Metadata,
    /// Both.
    Both,
}

impl Signed {
    /// Returns whether it is the default.
    fn is_packages(&self) -> bool {
        *self == Self::Packages
    }
}

/// A version preference. Without it, a package manager may select the newest version for dependencies of a package
/// that was requested at an older version, and then fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Pin {
    /// The file name without our prefix.
    pub name: String,
    /// Shell patterns for package names.
    pub packages: Vec<String>,
    /// A shell pattern for versions, such as `580.*`. Packages without a matching version are not affected.
    pub version: String,
    /// The priority. Above 1000, the package manager may downgrade.
    pub priority: i32,
}

impl Pin {
    /// Above 1000, so that an older version of the configured branch has priority over a newer version of a different
    /// branch. The value is unusual, so a version with this priority matches one of our preferences.
    pub const PRIORITY: i32 = 1001;
}

/// A package, by name and version pattern.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PackageSpec {
    pub name: String,
    /// A version, or a shell pattern for versions such as `535.*`. `None` for the candidate of the package manager. A
    /// pattern lets `plan` and `install` request the same, although only `install` refreshes the package lists.
    pub version: Option<String>,
}
