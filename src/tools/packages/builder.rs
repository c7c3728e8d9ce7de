//! Packages that gpu-bootstrap builds on the machine, and that the package manager then installs like any other package.

use std::{collections::BTreeSet, fmt::Debug, io};

use camino::{Utf8Path, Utf8PathBuf};

use crate::host::{Cmd, FilesError, Query, ReadFiles};

/// What a package needs and what it replaces, as its package manager writes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Relations {
    pub name: String,
    pub version: String,
    /// The dependencies. Each of them may have alternatives.
    pub depends: Vec<String>,
    /// The names that the package provides.
    pub provides: Vec<String>,
    /// The packages that cannot be installed at the same time.
    pub conflicts: Vec<String>,
    /// The packages that do not work with this one.
    pub breaks: Vec<String>,
    /// The packages whose files this one may replace.
    pub replaces: Vec<String>,
}

/// A package with kernel modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModulePackage {
    /// Its name, version and relations.
    pub relations: Relations,
    /// The architecture, as `uname -m` prints it.
    pub architecture: String,
    /// The kernel that the modules are for. The package scripts update its list of modules.
    pub kernel: String,
    /// One sentence without a full stop.
    pub description: String,
    /// The files with their contents.
    pub files: Vec<(Utf8PathBuf, Vec<u8>)>,
}

/// The file of a built package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageFile {
    /// The package name.
    pub name: String,
    pub version: String,
    pub path: Utf8PathBuf,
}

/// Builds packages.
pub trait Builder: Debug + Send + Sync {
    /// Queries the relations of every known version of packages: of the repositories, and of installed packages.
    fn relations(&self, names: &[&str]) -> Vec<Query>;

    /// Parses the output of [`Self::relations`], of all queries or of one.
    fn parse_relations(&self, text: &str) -> Vec<Relations>;

    /// Returns the name of a package for a kernel, or `None` if the package manager does not accept a character of it.
    fn name(&self, prefix: &str, kernel: &str) -> Option<String>;

    /// Returns the relations of a package with prebuilt modules that replaces a package whose modules are compiled on the machine:
    /// without the programs that compile, and with the name of the replaced package.
    fn instead_of(&self, name: &str, replaced: &Relations) -> Relations;

    /// Returns the content of the package file. The same package always has the same content.
    ///
    /// # Errors
    /// If a path is invalid in the format.
    fn build(&self, package: &ModulePackage) -> io::Result<Vec<u8>>;

    /// The suffix of package files.
    fn suffix(&self) -> &'static str;

    /// Returns the version of a package file from [`Self::build`], or `None` if the file is damaged.
    fn version(&self, content: &[u8]) -> Option<String>;

    /// Whether a command reads the sources of packages.
    fn reads_sources(&self, cmd: &Cmd) -> bool;

    /// Adds package files to the sources that a command reads.
    fn with_files(&self, cmd: &Cmd, files: &[PackageFile]) -> Cmd;

    /// Returns the reason if the settings of this machine prevent the installation of built packages.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn forbidden(&self, _files: &dyn ReadFiles) -> Result<Option<String>, FilesError> {
        Ok(None)
    }
}

/// Removes duplicates, and keeps the order.
fn unique(all: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut known = BTreeSet::new();
    all.into_iter()
        .filter(|one| known.insert(one.clone()))
        .collect()
}

/// Implements [`Builder::instead_of`] for a package manager. `provided` is the relation that provides the replaced package.
/// `name_of` returns the name in a relation, and `compiles` returns whether only compiling needs a dependency.
pub(super) fn instead_of(
    name: &str,
    replaced: &Relations,
    provided: String,
    name_of: fn(&str) -> &str,
    compiles: fn(&str) -> bool,
) -> Relations {
    let depends = replaced.depends.iter().filter(|one| !compiles(one));
    let mut provides = unique(replaced.provides.iter().cloned());
    if replaced.name != name {
        provides.retain(|one| name_of(one) != replaced.name);
        provides.insert(0, provided);
    }
    // The packages for other kernels provide the same names and are installed at the same time.
    let others = |all: &[String]| {
        let is_other = |one: &&String| {
            !provides
                .iter()
                .any(|provided| name_of(provided) == name_of(one))
        };
        unique(all.iter().filter(is_other).cloned())
    };
    Relations {
        name: name.to_owned(),
        version: replaced.version.clone(),
        depends: unique(depends.cloned()),
        conflicts: others(&replaced.conflicts),
        breaks: others(&replaced.breaks),
        replaces: others(&replaced.replaces),
        provides,
    }
}

/// Returns the directories of a package, parents first. Directories that are a part of every system are excluded if `is_own`
/// rejects them.
pub(super) fn directories(
    package: &ModulePackage,
    is_own: impl Fn(&Utf8Path) -> bool,
) -> BTreeSet<&Utf8Path> {
    (package.files.iter())
        .flat_map(|(path, _)| path.ancestors().skip(1))
        .filter(|path| *path != "/" && is_own(path))
        .collect()
}
