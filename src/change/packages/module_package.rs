//! Builds packages with prebuilt modules. The transaction of the driver installs them.

use std::{collections::BTreeMap, sync::PoisonError};

use camino::{Utf8Path, Utf8PathBuf};

use super::approval::choose;
use crate::{
    change::{Applier, ChangeError, Class, FileAfter, FileBefore, Undo},
    config::kernel::{PREBUILT, prebuilt_of, prebuilt_prefix},
    error::one_line,
    facts::kernel::bootable,
    host::FilesError,
    model::{gpu::Flavor, version::DriverVersion},
    modules::{
        ONLY_SOURCE_TIME_LIMIT,
        fetch::{Fetched, Requirements},
        package::{PackageBuild, version_of},
    },
    tools::{
        kmod,
        packages::{Builder, ModulePackage, Relations},
        prebuilt::BuildTarget,
    },
};

/// Prebuilt modules with their driver version, by package file.
pub(in crate::change) type PrebuiltModules = BTreeMap<Utf8PathBuf, (DriverVersion, Fetched)>;

/// The reason if no source has matching modules.
const NO_MODULES: &str = "no-prebuilt-modules";

/// The reason if no source has them, and a source cannot be accessed now.
const SOURCE_UNAVAILABLE: &str = "source-unavailable";

fn driver_of(build: &PackageBuild, relations: &Relations) -> Result<DriverVersion, ChangeError> {
    DriverVersion::from_package(&relations.version).map_err(|error| {
        ChangeError::unreadable(format!("build `{}`", build.name), one_line(&error))
    })
}

/// Returns the driver version in the settings.
fn configured(build: &PackageBuild) -> Option<DriverVersion> {
    let version = build.instead_of.version.as_deref()?;
    version.strip_suffix("-*")?.parse().ok()
}

impl Applier {
    fn builder(&self) -> Result<&'static dyn Builder, ChangeError> {
        let unsupported = || ChangeError::unsupported("build a package with prebuilt modules");
        self.backend.builder().ok_or_else(unsupported)
    }

    /// Returns the relations of the package, with the version that the transaction of the driver installs. `None` if no
    /// repository has the replaced package.
    async fn relations(&self, build: &PackageBuild) -> Result<Option<Relations>, ChangeError> {
        let builder = self.builder()?;
        let replaced = &build.instead_of;
        // The stream of the driver may not be enabled yet.
        let query = self.backend.offers_of_all_streams(&[&replaced.name]);
        let answer = self.ask("look up packages", &query).await?;
        let offers = self.backend.parse_offers(&answer);
        let offer = offers.iter().find(|offer| offer.name == replaced.name);
        let version = match choose(self.backend, replaced, offer) {
            Ok(version) => Some(version),
            Err(error) if super::is_not_offered(&error) => None,
            Err(error) => return Err(error),
        };
        let names: Vec<&str> = std::iter::once(replaced.name.as_str())
            .chain(build.like.iter().map(String::as_str))
            .collect();
        let mut known = Vec::new();
        for query in builder.relations(&names) {
            // The query also prints the known packages if a package is missing.
            let output = (self.output_of(&query).await).map_err(|source| {
                ChangeError::tool(
                    format!("query the dependencies of {}", replaced.name),
                    source,
                )
            })?;
            known.extend(builder.parse_relations(&output.stdout));
        }
        let required = replaced.version.as_deref().unwrap_or("*");
        let of_repository = |one: &&Relations| {
            one.name == replaced.name && version.as_deref() == Some(one.version.as_str())
        };
        let of_other_kernel = |one: &&Relations| {
            build.like.contains(&one.name) && self.backend.matches(required, &one.version)
        };
        let found = (known.iter())
            .find(of_repository)
            .or_else(|| known.iter().find(of_other_kernel));
        Ok(found.map(|one| {
            let replaced = Relations {
                name: replaced.name.clone(),
                ..one.clone()
            };
            let mut relations = builder.instead_of(&build.name, &replaced);
            // One transaction replaces the package of the other flavor, which has the same files.
            let other = match build.flavor {
                Flavor::Open => Flavor::Proprietary,
                Flavor::Proprietary => Flavor::Open,
            };
            let other = builder.name(prebuilt_prefix(other), build.kernel.as_str());
            for list in [&mut relations.conflicts, &mut relations.replaces] {
                list.retain(|one| !one.starts_with(PREBUILT));
                list.extend(other.clone());
            }
            relations
        }))
    }

    /// Fetches the modules of the package.
    async fn modules_of(
        &self,
        build: &PackageBuild,
        driver: DriverVersion,
    ) -> Result<Fetched, ChangeError> {
        let what = format!("build `{}`", build.name);
        let purpose = BuildTarget {
            distribution: build.distribution.clone(),
            kernel: build.kernel.clone(),
            architecture: build.architecture.clone(),
            driver: driver.clone(),
            flavor: build.flavor,
        };
        let trust = build.prebuilt.trust();
        let requirements = Requirements::of(&self.host, purpose, None, trust).await?;
        let fetched = requirements
            .fetch(&self.host, &build.prebuilt.sources, ONLY_SOURCE_TIME_LIMIT)
            .await;
        let is_incomplete = |fetched: &Fetched| !fetched.modules.contains_key(&build.module);
        let why = match fetched {
            Ok(fetched) if is_incomplete(&fetched) => format!(
                "the archive of {} does not contain `{}`",
                fetched.source, build.module
            ),
            Ok(fetched) => return Ok(fetched),
            Err(error) if error.is_transient => {
                let error = ChangeError::blocked(SOURCE_UNAVAILABLE, format!("{what}: {error}"));
                return Err(ChangeError {
                    retryable: true,
                    ..error.of(Class::SourceUnavailable)
                }
                .advice(
                    "check the access to the source from this machine, and run this command again; or remove \
                     `driver.prebuilt.only`, so that this machine compiles the modules",
                ));
            }
            Err(error) => error.why,
        };
        let kernel = &build.kernel;
        Err(ChangeError::blocked(NO_MODULES, format!("{what}: {why}")).advice(format!(
            "on a node with kernel {kernel} that has compiled driver {driver}, run `gpu-bootstrap modules export --kernel \
             {kernel} --to SOURCE`, sign the archive, and run this command again; or remove `driver.prebuilt.only`, so that this \
             machine compiles the modules"
        )))
    }

    /// Checks whether a source has matching modules, before the first change. If the package lists do not contain the driver
    /// yet, and the settings do not contain its version, this is unknown until the lists are refreshed.
    pub(in crate::change) async fn dry_run_package(
        &self,
        build: &PackageBuild,
    ) -> Result<(), ChangeError> {
        let has_lists = self.backend.truncated_lists(&*self.host.files)?.is_empty();
        let relations = match has_lists {
            true => self.relations(build).await?,
            false => None,
        };
        let driver = match relations {
            Some(relations) if self.is_built(build, &relations)? => return Ok(()),
            Some(relations) => Some(driver_of(build, &relations)?),
            None => configured(build),
        };
        let Some(driver) = driver.filter(|driver| !self.is_fetched(build, driver)) else {
            return Ok(());
        };
        let fetched = self.modules_of(build, driver.clone()).await?;
        let mut known = self.prebuilt.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(build.path.clone(), (driver, fetched));
        Ok(())
    }

    /// Whether the package file already has this version.
    fn is_built(&self, build: &PackageBuild, relations: &Relations) -> Result<bool, ChangeError> {
        let version = version_of(&*self.host.files, self.builder()?, &build.path)?;
        Ok(version.as_ref() == Some(&relations.version))
    }

    /// Whether an earlier dry run has fetched the modules for this driver.
    fn is_fetched(&self, build: &PackageBuild, driver: &DriverVersion) -> bool {
        let known = self.prebuilt.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&build.path).is_some_and(|(of, _)| of == driver)
    }

    /// Returns the modules that the dry run has fetched for this driver.
    fn fetched(&self, build: &PackageBuild, driver: &DriverVersion) -> Option<Fetched> {
        let mut known = self.prebuilt.lock().unwrap_or_else(PoisonError::into_inner);
        let (of, fetched) = known.remove(&build.path)?;
        (of == *driver).then_some(fetched)
    }

    /// Returns the undo, which removes the file. An older file is large and no longer needed, so it has no backup.
    pub(in crate::change) fn capture_package(
        &self,
        build: &PackageBuild,
    ) -> Result<Undo, ChangeError> {
        if !self.host.files.exists(&build.path)? {
            return self.capture_files([(build.path.clone(), FileAfter::Unknown)]);
        }
        Ok(Undo::RestoreFiles {
            files: vec![FileBefore {
                path: build.path.clone(),
                before: None,
                after: FileAfter::Unknown,
            }],
            created_directories: Vec::new(),
            daemon: None,
        })
    }

    /// Removes the package files of kernels that are neither installed nor running.
    fn remove_files_of_old_kernels(
        &self,
        builder: &dyn Builder,
        directory: &Utf8Path,
    ) -> Result<(), FilesError> {
        let files = &*self.host.files;
        let running = files.read_text(Utf8Path::new("/proc/sys/kernel/osrelease"))?;
        let (installed, _) = bootable(files);
        let is_old = |name: &str| {
            let package = name.strip_suffix(builder.suffix()).and_then(prebuilt_of);
            package.is_some_and(|(_, kernel)| {
                running.as_ref().is_some_and(|one| one.trim() != kernel)
                    && !installed.iter().any(|one| one.as_str() == kernel)
            })
        };
        for name in files.list(directory)?.iter().filter(|name| is_old(name)) {
            files.remove(&directory.join(name))?;
        }
        Ok(())
    }

    /// Builds the package file.
    pub(in crate::change) async fn build_package(
        &self,
        build: &PackageBuild,
    ) -> Result<(), ChangeError> {
        let builder = self.builder()?;
        let what = format!("build `{}`", build.name);
        let Some(relations) = self.relations(build).await? else {
            let replaced = &build.instead_of;
            let offers = match &replaced.version {
                Some(version) => format!("{} {version}", replaced.name),
                None => replaced.name.clone(),
            };
            let what = format!("{what}: no repository offers {offers}");
            return Err(ChangeError::new("no-version", what));
        };
        if let Some(directory) = build.path.parent() {
            self.remove_files_of_old_kernels(builder, directory)?;
        }
        if self.is_built(build, &relations)? {
            return Ok(());
        }
        let driver = driver_of(build, &relations)?;
        let Fetched { modules, .. } = match self.fetched(build, &driver) {
            Some(fetched) => fetched,
            None => self.modules_of(build, driver).await?,
        };
        let directory = kmod::directory_of(build.kernel.as_str()).join(kmod::MODULE_FOLDERS[0]);
        let files = modules
            .into_iter()
            .map(|(name, content)| (directory.join(format!("{name}.ko")), content));
        let package = ModulePackage {
            relations,
            architecture: build.architecture.clone(),
            kernel: build.kernel.to_string(),
            description: format!(
                "NVIDIA driver modules for {}, compiled on another machine",
                build.kernel
            ),
            files: files.collect(),
        };
        let content = builder
            .build(&package)
            .map_err(|error| ChangeError::unreadable(&what, one_line(&error)))?;
        Ok(self.host.files.write(&build.path, &content, 0o644)?)
    }
}
