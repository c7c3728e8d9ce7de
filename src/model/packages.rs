//! What is wanted of a package manager, as plain data: packages, repositories, preferences. Every
//! backend in `tools::packages` understands these types.

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

/// A package repository with its key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Repository {
    /// Our name for it; its file is called `gpu-bootstrap-NAME`.
    pub name: String,
    /// Base address.
    pub url: String,
    /// Suites (`/` for a flat repository), where the package manager has such.
    pub suites: Vec<String>,
    /// Components (none for a flat repository), where the package manager has such.
    pub components: Vec<String>,
    /// Architectures as the package manager names them.
    pub architectures: Vec<String>,
    /// Where the key is fetched. `None`, and no `keyring` either: the package manager's own keyrings
    /// vouch for it, as they do for the machine's source of the same archive.
    pub key_url: Option<String>,
    /// Fingerprints of acceptable keys, 40 hex digits; or `sha256:` and the digest of an acceptable
    /// armoured key file, without its headers `Version:`. Empty only without `key-url`.
    pub fingerprints: Vec<String>,
    /// Key files that are already on the machine, and whose keys sign here, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key_files: Vec<Utf8PathBuf>,
    /// A keyring already on the machine, for components of the distribution's own archive.
    pub keyring: Option<Utf8PathBuf>,
    /// The priority of [`Repository::packages`] from this repository; `None` leaves the package
    /// manager's default.
    pub priority: Option<i32>,
    /// The packages that have the priority, as shell patterns over names. Never all: one server may
    /// offer other repositories, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<String>,
    /// What is signed, where the package manager can verify either.
    #[serde(default, skip_serializing_if = "Signed::is_packages")]
    pub signed: Signed,
}

/// What precedes the digest of a key file among [`Repository::fingerprints`].
pub const KEY_FILE: &str = "sha256:";

impl Repository {
    /// Whether a key file is accepted by its digest. Then it is armoured, and stays so.
    #[must_use]
    pub fn names_key_file(&self) -> bool {
        (self.fingerprints.iter()).any(|one| one.starts_with(KEY_FILE))
    }
}

/// What the vendor of a repository signs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Signed {
    /// Each package.
    #[default]
    Packages,
    /// The metadata, which has the digest of each package.
    Metadata,
    /// Both.
    Both,
}

impl Signed {
    /// Whether it is the default.
    fn is_packages(&self) -> bool {
        *self == Self::Packages
    }
}

/// A preference for a version. Without it a package manager may take the newest version for the
/// dependencies of a package that was asked for at an older version, and then give up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Pin {
    /// The name of its file, without our prefix.
    pub name: String,
    /// Shell patterns over package names.
    pub packages: Vec<String>,
    /// A shell pattern over versions, such as `580.*`; packages that have none such are untouched.
    pub version: String,
    /// The priority; above 1000 the package manager may go back to an older version.
    pub priority: i32,
}

impl Pin {
    /// Above 1000, so that an older version of the wished branch wins over a newer version of another branch. By it a version
    /// is told that only our preference lifts.
    pub const PRIORITY: i32 = 1001;
}

/// A package, by name and version pattern.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PackageWish {
    /// Its name.
    pub name: String,
    /// A version, or a shell pattern over versions such as `535.*`; `None` takes the candidate. With a
    /// pattern `plan` and `install` agree before and after the lists are refreshed.
    pub version: Option<String>,
}
