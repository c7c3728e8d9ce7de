//! Packages with prebuilt modules (`driver.prebuilt.only`). gpu-bootstrap builds one for each kernel from an archive that another
//! machine exported, and the package manager installs it together with the driver. Therefore no package that compiles modules is
//! needed, and the package manager owns, holds and removes the modules.
//!
//! The files stay in the state directory while their kernels are installed, so that a removed package can be installed again without
//! a source.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use crate::{
    config::desired::{Desired, PackageSpec, Prebuilt},
    error::one_line,
    host::{Cmd, Exec, ExecError, Files, FilesError, Host, Output, ReadFiles, Stat, exec::OnLine},
    model::{gpu::Flavor, version::KernelVersion},
    tools::packages::{Backend, Builder, PackageFile},
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
                known: Mutex::default(),
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
    /// The version of each package file, with its metadata at that time. `None` if it is not a complete package.
    known: Mutex<BTreeMap<Utf8PathBuf, (Stat, Option<String>)>>,
}

impl WithPackages {
    /// Returns the package files without damaged ones, with which every command of the package manager would fail.
    fn complete(&self) -> Result<Vec<PackageFile>, FilesError> {
        let directory = Utf8Path::new(DIRECTORY);
        let mut complete = Vec::new();
        for name in self.files.list(directory)? {
            let Some(package) = name.strip_suffix(self.builder.suffix()) else {
                continue;
            };
            let path = directory.join(&name);
            let Some(stat) = self.files.stat(&path)? else {
                continue;
            };
            if let Some(version) = self.version(&path, stat)? {
                complete.push(PackageFile {
                    name: package.to_owned(),
                    version,
                    path,
                });
            }
        }
        Ok(complete)
    }

    fn version(&self, path: &Utf8Path, stat: Stat) -> Result<Option<String>, FilesError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((then, version)) = known.get(path)
            && *then == stat
        {
            return Ok(version.clone());
        }
        let version = version_of(&*self.files, self.builder, path)?;
        known.insert(path.to_owned(), (stat, version.clone()));
        Ok(version)
    }
}

#[async_trait]
impl Exec for WithPackages {
    async fn run(&self, cmd: &Cmd, on_line: &mut OnLine<'_>) -> Result<Output, ExecError> {
        if !self.builder.reads_sources(cmd) {
            return self.inner.run(cmd, on_line).await;
        }
        let files = self.complete().map_err(|error| ExecError::Spawn {
            command: cmd.line(),
            why: one_line(&error),
        })?;
        let cmd = self.builder.with_files(cmd, &files);
        self.inner.run(&cmd, on_line).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::fake,
        tools::packages::{Manager, ModulePackage, Relations},
    };

    #[tokio::test]
    async fn damaged_file_is_no_source_until_it_is_replaced() {
        let (host, fakes) = fake::host();
        fakes.exec.on("apt-cache", |_, _| fake::ok(""));
        fakes.exec.on("dpkg", |_, _| fake::ok(""));
        let backend: &'static dyn Backend = Manager::Apt.backend();
        let exec = WithPackages {
            inner: Arc::clone(&host.exec),
            files: Arc::clone(&host.files),
            builder: backend.builder().expect("a builder"),
            known: Mutex::default(),
        };
        let package = ModulePackage {
            relations: Relations {
                name: "modules".to_owned(),
                version: "1".to_owned(),
                ..Relations::default()
            },
            architecture: "x86_64".to_owned(),
            kernel: "6.1".to_owned(),
            description: "modules".to_owned(),
            files: vec![("/lib/modules/6.1/a.ko".into(), b"a module".to_vec())],
        };
        let whole = exec.builder.build(&package).expect("built");
        let options = async || {
            for cmd in [Cmd::new("dpkg", ["-l"]), Cmd::new("apt-cache", ["policy"])] {
                exec.run(&cmd, &mut |_, _| {}).await.expect("runs");
            }
            fakes.exec.lines().pop().unwrap_or_default()
        };
        let path = format!("{DIRECTORY}/modules.deb");
        fakes.files.put(&path, &whole[..whole.len() - 600]);
        assert_eq!(options().await, "apt-cache policy");
        fakes.files.put(&path, &whole[..]);
        assert_eq!(
            options().await,
            format!("apt-cache -oAPT::Sources::With::={path} policy")
        );
    }
}
