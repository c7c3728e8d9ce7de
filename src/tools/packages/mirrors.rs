//! Partial copies of repositories in a directory, with the lists that their vendors signed: how a bundle is created, and how the
//! commands of a run read it instead of the network.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use super::{Backend, Exclusion, Settings};
use crate::host::{Cmd, FilesError, Query, ReadFiles};

/// A repository in a bundle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Mirror {
    /// The repository ID, if the package manager has such IDs. It then identifies the repository, otherwise URL and suite do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// The URL that the configuration of the machine contains, in canonical form.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub suite: String,
    /// The components with lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<String>,
    /// The architectures with lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub architectures: Vec<String>,
    /// Its directory, relative to the bundle. Suites of one repository share it.
    pub path: Utf8PathBuf,
}

/// A configured repository whose lists were downloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRepository {
    /// Its future copy, without the path.
    pub mirror: Mirror,
    /// The URL of the repository, to find the repository of a package.
    pub url: String,
    /// The files that the package manager reads from the repository, except packages.
    pub lists: Vec<ListFile>,
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListFile {
    /// The path in the repository.
    pub path: Utf8PathBuf,
    pub origin: ListOrigin,
}

/// The origin of a [`ListFile`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListOrigin {
    /// The package manager has downloaded this file without changes.
    Downloaded(Utf8PathBuf),
    /// The package manager has changed the file, so it must be downloaded again.
    At(Download),
}

/// A file to download.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Download {
    /// The URL, or the name of the package for the package manager.
    pub from: String,
    /// The file name of the downloaded file.
    pub file: String,
    /// SHA-256 in lower-case hex. `None` if the package manager verifies the file.
    pub sha256: Option<String>,
    /// The size in bytes.
    pub size: u64,
}

/// A package in the lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPackage {
    /// The name without its architecture, as from [`super::Backend::bare_name`].
    pub name: String,
    pub version: String,
    /// The index of its repository.
    pub repository: usize,
    /// The path in the repository.
    pub path: Utf8PathBuf,
    pub download: Download,
}

/// The SHA-256 of a package file, as the package lists contain it.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedDigest {
    /// The name without its architecture.
    pub name: String,
    pub version: String,
    pub architecture: String,
    /// In lower-case hex.
    pub sha256: String,
}

/// Returns the digests of packages, which are specified by ID and version, by ID. Unknown packages are missing.
pub fn by_package(
    backend: &dyn Backend,
    packages: &[(String, String)],
    listed: &[ListedDigest],
) -> BTreeMap<String, BTreeSet<String>> {
    let has = |id: &str| packages.iter().any(|(one, _)| one == id);
    let is_of = |id: &str, version: &str, one: &ListedDigest| {
        let with_architecture = format!("{}:{}", one.name, one.architecture);
        let is_id = id == with_architecture || id == one.name && !has(&with_architecture);
        is_id && backend.compare(&one.version, version).is_eq()
    };
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (id, version) in packages {
        for one in listed.iter().filter(|one| is_of(id, version, one)) {
            let digests = found.entry(id.clone()).or_default();
            digests.insert(one.sha256.clone());
        }
    }
    found
}

/// How a package manager creates and reads partial copies of repositories.
pub trait Mirrors: Debug + Send + Sync {
    /// Returns files with separate settings, and directories for separate lists and caches below `state`, so that the lists
    /// and caches of the machine are not changed.
    fn separate(&self, state: &Utf8Path) -> (Vec<(Utf8PathBuf, String)>, Vec<Utf8PathBuf>);

    /// Changes a command so that it uses the lists and caches below `state`.
    fn separately(&self, cmd: &Cmd, state: &Utf8Path) -> Cmd;

    /// Returns the query of the repositories whose lists were downloaded, or `None` if [`Mirrors::listed`] needs no output.
    fn list(&self) -> Option<Query> {
        None
    }

    /// Returns the repositories whose lists were downloaded below `state`. `output` is the output of [`Mirrors::list`].
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn listed(
        &self,
        files: &dyn ReadFiles,
        state: &Utf8Path,
        output: &str,
    ) -> Result<Vec<ListedRepository>, FilesError>;

    /// Returns the files to copy before [`Mirrors::locate`], as existing and new paths. The new ones are below `state`.
    fn copies(
        &self,
        _state: &Utf8Path,
        _repositories: &[ListedRepository],
    ) -> Vec<(Utf8PathBuf, Utf8PathBuf)> {
        Vec::new()
    }

    /// Queries the locations of packages, which are specified by ID and version. The exit statuses alone do not decide, because
    /// the output lists the packages that exist.
    fn locate(
        &self,
        packages: &[(String, String)],
        state: &Utf8Path,
        repositories: &[ListedRepository],
    ) -> Vec<Query>;

    /// Parses the joined output of [`Mirrors::locate`].
    fn located(
        &self,
        output: &str,
        state: &Utf8Path,
        repositories: &[ListedRepository],
    ) -> Vec<ListedPackage>;

    /// Queries the digests of packages in the lists of the machine. `None` if [`Mirrors::digests`] needs no output. The exit
    /// status does not decide, because the output lists the packages that exist.
    fn digests_query(&self, _packages: &[(String, String)]) -> Option<Query> {
        None
    }

    /// Returns the digests of packages, which are specified by ID and version, in the lists of the machine. Packages that no list
    /// contains, or without a SHA-256, are missing. `output` is the output of [`Mirrors::digests_query`].
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn digests(
        &self,
        files: &dyn ReadFiles,
        packages: &[(String, String)],
        output: &str,
    ) -> Result<Vec<ListedDigest>, FilesError>;

    /// Returns the commands that download files to a directory, and verify those without a digest.
    fn fetch(&self, settings: &Settings, downloads: &[&Download], to: &Utf8Path) -> Vec<Cmd>;

    /// Returns files below `to` with the sources of the machine that are in the bundle at `bundle`. For apt, only the keys come
    /// from the machine. For dnf, all options except the locations and the secret ones.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn sources(
        &self,
        files: &dyn ReadFiles,
        bundle: &Utf8Path,
        mirrors: &[Mirror],
        to: &Utf8Path,
    ) -> Result<Vec<(Utf8PathBuf, String)>, FilesError>;

    /// Returns the settings of the administrator that exclude some of these packages of the repositories, but would not apply to
    /// their copies.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn forbidden(
        &self,
        _files: &dyn ReadFiles,
        _mirrors: &[Mirror],
        _packages: &[&str],
    ) -> Result<Vec<Exclusion>, FilesError> {
        Ok(Vec::new())
    }

    /// Changes a command so that it reads the files of [`Mirrors::sources`] below `to`. `None` if the command reads no sources.
    fn redirected(&self, cmd: &Cmd, to: &Utf8Path) -> Option<Cmd>;
}

/// Returns a path in a repository without `.` components, or `None` if it would leave the repository.
pub(super) fn inner(path: &str) -> Option<Utf8PathBuf> {
    let mut inner = Utf8PathBuf::new();
    for part in Utf8Path::new(path).components() {
        match part {
            Utf8Component::Normal(name) => inner.push(name),
            Utf8Component::CurDir => {}
            _ => return None,
        }
    }
    (!inner.as_str().is_empty()).then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::{ListedDigest, by_package, inner};
    use crate::tools::packages::Manager;

    #[test]
    fn digests_are_found_by_id_and_version() {
        let one = |architecture: &str, version: &str, digest: &str| ListedDigest {
            name: "libc6".to_owned(),
            version: version.to_owned(),
            architecture: architecture.to_owned(),
            sha256: digest.to_owned(),
        };
        let listed = [
            one("amd64", "2.36", "a"),
            one("i386", "2.36", "b"),
            one("amd64", "2.37", "c"),
        ];
        let packages = ["libc6", "libc6:i386", "runc"].map(|id| (id.to_owned(), "2.36".to_owned()));
        let found = by_package(Manager::Apt.backend(), &packages, &listed);
        let digests = |id: &str| {
            found
                .get(id)
                .map(|digests| digests.iter().collect::<Vec<_>>())
        };
        assert_eq!(digests("libc6").unwrap(), ["a"]);
        assert_eq!(digests("libc6:i386").unwrap(), ["b"]);
        assert_eq!(digests("runc"), None);
    }

    #[test]
    fn path_does_not_leave_the_repository() {
        for (path, expected) in rows! {
            "pool/main/r/runc/runc_1.deb", Some("pool/main/r/runc/runc_1.deb");
            "./libcuda1_580.deb", Some("libcuda1_580.deb");
            "../../etc/passwd", None;
            "pool/../../etc", None;
            "/etc/passwd", None;
            "", None;
        } {
            assert_eq!(
                inner(path).as_deref().map(camino::Utf8Path::as_str),
                expected,
                "{path}"
            );
        }
    }
}
