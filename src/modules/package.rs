//! Packages with prebuilt modules (`driver.prebuilt.only`). gpu-bootstrap builds one for each kernel from an archive that another
//! machine exported, and the package manager installs it together with the driver. Therefore no package that compiles modules is
//! needed, and the package manager owns, holds and removes the modules.
//!
//! The files stay in the state directory until `uninstall`, so that a damaged package can be installed again without a source.

use std::sync::Arc;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use crate::{
    config::desired::{Desired, PackageSpec, Prebuilt},
    error::one_line,
    host::{Cmd, Exec, ExecError, Files, FilesError, Host, Output, ReadFiles, exec::OnLine},
    model::{gpu::Flavor, version::KernelVersion},
    tools::packages::{Backend, Builder},
};

/// The directory of the package files.
const DIRECTORY: &str = "/var/lib/gpu-bootstrap/packages";

/// The modules that a package to build contains, and their sources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PackageBuild {
    /// Its name.
    pub name: String,
    /// The package file.
    pub path: Utf8PathBuf,
    pub kernel: KernelVersion,
    /// `ID` in os-release.
    pub distribution: String,
    /// The output of `uname -m`.
    pub architecture: String,
    pub flavor: Flavor,
    /// File name of the driver module, without `.ko`.
    pub module: String,
    /// The DKMS package that it replaces, in the required version.
    pub instead_of: PackageSpec,
    /// Installed packages with prebuilt modules of other kernels. They have the same relations, also after the repository has
    /// removed the DKMS package of their version.
    pub like: Vec<String>,
    pub prebuilt: Prebuilt,
}

/// Returns the file of a package.
pub(crate) fn path_of(builder: &dyn Builder, name: &str) -> Utf8PathBuf {
    Utf8Path::new(DIRECTORY).join(format!("{name}{}", builder.suffix()))
}

/// Returns the version of a package file, or `None` if it does not exist or is damaged.
///
/// # Errors
/// If an existing file cannot be read.
pub(crate) fn version_of(
    files: &dyn ReadFiles,
    builder: &dyn Builder,
    path: &Utf8Path,
) -> Result<Option<String>, FilesError> {
    let content = files.read(path)?;
    Ok(content.and_then(|content| builder.version(&content)))
}

/// Returns the machine, with the package files as additional sources of its package manager. The same machine if it gets no such
/// packages.
pub(crate) fn with_packages(host: &Host, desired: &Desired) -> Host {
    let mut methods = desired.kernel.iter().flat_map(|kernel| &kernel.methods);
    let is_prebuilt = methods.any(|method| method.prebuilt.is_some());
    let backend: &'static dyn Backend = desired.packages.manager.backend();
    match backend.builder().filter(|_| is_prebuilt) {
        None => host.clone(),
        Some(builder) => Host {
            exec: Arc::new(WithPackages {
                inner: Arc::clone(&host.exec),
                files: Arc::clone(&host.files),
                builder,
            }),
            ..host.clone()
        },
    }
}

/// Runs commands of the package manager with the package files as additional sources.
struct WithPackages {
    inner: Arc<dyn Exec>,
    files: Arc<dyn Files>,
    builder: &'static dyn Builder,
}

#[async_trait]
impl Exec for WithPackages {
    async fn run(&self, cmd: &Cmd, on_line: &mut OnLine<'_>) -> Result<Output, ExecError> {
        let directory = Utf8Path::new(DIRECTORY);
        let names = (self.files.list(directory)).map_err(|error| ExecError::Spawn {
            command: cmd.line(),
            why: one_line(&error),
        })?;
        let files: Vec<Utf8PathBuf> = (names.iter())
            .filter(|name| name.ends_with(self.builder.suffix()))
            .map(|name| directory.join(name))
            .collect();
        let with_files = self.builder.with_files(cmd, &files);
        self.inner
            .run(with_files.as_ref().unwrap_or(cmd), on_line)
            .await
    }
}
