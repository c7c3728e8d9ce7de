//! Packages that gpu-bootstrap builds on the machine, and that the package manager then installs like any other package.

use std::{fmt::Debug, io};

use camino::Utf8PathBuf;

use crate::host::{Cmd, Query};

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

/// Builds packages.
pub trait Builder: Debug + Send + Sync {
    /// Queries the relations of every known version of packages.
    fn relations(&self, names: &[&str]) -> Query;

    /// Parses the output of [`Self::relations`].
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
    fn with_files(&self, cmd: &Cmd, files: &[Utf8PathBuf]) -> Cmd;
}
