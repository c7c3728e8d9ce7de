//! The NVIDIA driver as loaded, on the library path, in packages and on disk, and its origin.

use camino::Utf8Path;
use serde::{Deserialize, Serialize};

use super::{
    Noted, Read, State, StateError, modules,
    packages::{KnownPackage, KnownPackages},
};
use crate::{
    facts::{detection::table, reader::FactReader},
    host::{FilesError, ReadFiles},
    model::{gpu::Flavor, pattern, version::DriverVersion},
};

/// The versions of the NVIDIA driver in each location, and its origin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FoundDriver {
    /// The version of the loaded kernel module.
    pub loaded_version: Option<DriverVersion>,
    /// The version of `libnvidia-ml.so.1` on the library path.
    pub library_version: Option<DriverVersion>,
    /// The version of the installed packages.
    pub package_version: Option<DriverVersion>,
    /// The version of the module on disk for the running kernel. With `--root`, where no kernel runs, the version for the
    /// kernel of the next boot.
    pub module_version: Option<DriverVersion>,
    pub origin: Option<Origin>,
}

/// The origin of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The distribution's archive.
    Distribution,
    /// NVIDIA's repository.
    Vendor,
    /// NVIDIA's installer, without packages.
    Runfile,
    /// Neither from packages nor from the installer, such as a driver in an image or in a container. Also a driver that a
    /// service of the image installs.
    Preinstalled,
}

/// The version of the loaded module, from sysfs.
const LOADED_VERSION: &str = "/sys/module/nvidia/version";
/// The version of the loaded module, in a line of text that the module writes.
const PROC_VERSION: &str = "/proc/driver/nvidia/version";

/// Mount point of the driver container's root file system, created by the NVIDIA GPU Operator: `NVIDIA_DRIVER_ROOT` in its
/// validator.
const DRIVER_CONTAINER: &str = "/run/nvidia/driver";

const LIBRARY: &str = "libnvidia-ml.so.1";

/// Default search directories of the dynamic linker on all distributions, 64-bit directories first.
const DIRECTORIES: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
];

/// Library directories in a driver root, which the linker does not search.
const IN_ROOT: [&str; 6] = [
    "lib64",
    "lib",
    "usr/lib64",
    "usr/lib",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
];

impl State {
    /// The version of the loaded driver, or `None` if no driver is loaded.
    ///
    /// # Errors
    /// If the kernel's file cannot be read or contains no version.
    pub fn loaded_driver(&self) -> Result<Option<&DriverVersion>, StateError> {
        let read = || loaded_driver(&*self.host.files);
        let read = self.memo.loaded_driver.get_or_init(read).as_ref();
        read.map(Option::as_ref).map_err(Clone::clone)
    }

    /// The flavor of the loaded module, which only the module itself reports. `None` if no module is loaded, or if its flavor
    /// is unknown.
    ///
    /// # Errors
    /// If the module's file cannot be read.
    pub fn loaded_flavor(&self) -> Result<Option<Flavor>, StateError> {
        let read = || -> Read<Option<Flavor>> {
            let text = self.host.files.read_text(Utf8Path::new(PROC_VERSION))?;
            Ok(text.as_deref().and_then(parse_proc_flavor))
        };
        self.memo.loaded_flavor.get_or_init(read).clone()
    }

    /// The version of the module on disk that the next boot loads, if it can be read.
    pub async fn next_module_version(&self) -> Option<DriverVersion> {
        let kernel = &self.facts.kernel;
        match (&kernel.next_boot, &kernel.running) {
            (Some(next), Some(running)) if next != running => {
                // If a file cannot be read, the version is unknown, and the reason is not reported.
                let mut reader = FactReader::new(&*self.host.files);
                let reading =
                    modules::on_disk(&mut reader, self.host.reader(), self.scope, Some(next));
                reading.await
            }
            _ => self.driver().await.module_version.clone(),
        }
    }

    /// The driver in all locations.
    pub async fn driver(&self) -> &FoundDriver {
        &self.noted_driver().await.value
    }

    pub(super) async fn noted_driver(&self) -> &Noted<FoundDriver> {
        let read = || async {
            let mut reader = FactReader::new(&*self.host.files);
            let value = self.find_driver(&mut reader).await;
            Noted {
                value,
                unknown: reader.into_unknown(),
            }
        };
        self.memo.driver.get_or_init(read).await
    }

    async fn find_driver(&self, reader: &mut FactReader<'_>) -> FoundDriver {
        let packages = &self.installed().await.value;
        let loaded_version = match self.loaded_driver() {
            Ok(version) => version.cloned(),
            Err(error) => {
                reader.unknown("driver.loaded-version", error.reason());
                None
            }
        };
        let library = library(reader);
        let from_package = packages.as_deref().ok().and_then(driver_package);
        if let Err(why) = packages {
            reader.unknown("driver.package-version", why.clone());
        }
        // No kernel runs with `--root`, so use the kernel of the next boot.
        let kernel = &self.facts.kernel;
        let of_kernel = kernel.running.as_ref().or(kernel.next_boot.as_ref());
        let module_version =
            modules::on_disk(reader, self.host.reader(), self.scope, of_kernel).await;
        // A loaded module without files remains from a removed driver, or its files are in a container.
        let found = library.is_some()
            || module_version.is_some()
            || (loaded_version.is_some() && reader.exists("driver.origin", DRIVER_CONTAINER));
        let by_installer = match (&from_package, &library) {
            // The DKMS entry may be all that remains of a driver from the installer.
            (None, _) => found || modules::is_in_tree(reader, "driver.origin"),
            // The installer overwrites libraries from packages. If the versions match, it has not.
            (Some((_, package)), Some(Some(library))) => library != package,
            (Some(_), Some(None)) => true,
            (Some(_), None) => false,
        };
        let origin = origin(reader, packages, from_package.as_ref(), found, by_installer);
        FoundDriver {
            loaded_version,
            library_version: library.flatten(),
            package_version: from_package.map(|(_, version)| version),
            module_version,
            origin,
        }
    }
}

/// The version of the loaded module, or `None` if no module is loaded.
///
/// # Errors
/// If the kernel's version files cannot be read or parsed.
pub fn loaded_driver(files: &dyn ReadFiles) -> Read<Option<DriverVersion>> {
    let text = files.read_text(Utf8Path::new(LOADED_VERSION))?;
    if let Some(text) = text
        .as_deref()
        .map(str::trim)
        .filter(|text| !text.is_empty())
    {
        let version = text
            .parse::<DriverVersion>()
            .map_err(|error| StateError::Unexpected {
                what: format!("`{LOADED_VERSION}`"),
                why: format!("{error}"),
            });
        return version.map(Some);
    }
    let Some(text) = files.read_text(Utf8Path::new(PROC_VERSION))? else {
        return Ok(None);
    };
    match parse_proc_version(&text) {
        Some(version) => Ok(Some(version)),
        None => Err(StateError::Unexpected {
            what: "the version of the loaded driver".into(),
            why: format!("`{PROC_VERSION}` contains no version"),
        }),
    }
}

/// Parses a line such as `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (…)`.
fn parse_proc_version(text: &str) -> Option<DriverVersion> {
    text.lines()
        .find_map(|line| line.strip_prefix("NVRM version:"))?
        .split_whitespace()
        .find_map(|word| word.parse().ok())
}

/// Returns the flavor in the line `NVRM version: …`: it contains `Open Kernel Module` for open modules, and otherwise
/// `NVIDIA UNIX x86_64 Kernel Module`.
fn parse_proc_flavor(text: &str) -> Option<Flavor> {
    let line = (text.lines()).find_map(|line| line.strip_prefix("NVRM version:"))?;
    if line.contains("Open Kernel Module") {
        Some(Flavor::Open)
    } else if line.contains("Kernel Module") {
        Some(Flavor::Proprietary)
    } else {
        None
    }
}

/// The library version that the dynamic linker would load: `None` if it is missing, `Some(None)` if the version is unknown.
/// Read from the file name; the file is not opened.
fn library(reader: &mut FactReader<'_>) -> Option<Option<DriverVersion>> {
    let fact = "driver.library-version";
    let path = (directories(reader).into_iter())
        .map(|directory| format!("{directory}/{LIBRARY}"))
        .find_map(|path| reader.resolve(fact, &path))?;
    let version = path
        .file_name()
        .and_then(|name| name.strip_prefix("libnvidia-ml.so."))
        .and_then(|version| version.parse().ok());
    if version.is_none() {
        reader.unknown(
            fact,
            format!("the file name of `{path}` contains no version"),
        );
    }
    Some(version)
}

/// The directories that may contain the driver libraries: first the linker's search path, then drivers outside this path.
fn directories(reader: &mut FactReader<'_>) -> Vec<String> {
    let mut directories = linker_directories(reader);
    directories.extend(DIRECTORIES.map(str::to_owned));
    for root in &table().driver_root {
        directories.extend(IN_ROOT.map(|directory| format!("{}/{directory}", root.path)));
    }
    directories
}

/// The directories that may contain the driver libraries, in the search order of [`State::driver`].
pub fn library_directories(files: &dyn ReadFiles) -> Vec<String> {
    // Unreadable files are reported with the driver's facts.
    directories(&mut FactReader::new(files))
}

/// Returns `true` if a driver root other than `/` contains the driver library.
///
/// # Errors
/// If a directory cannot be read.
pub fn has_library(files: &dyn ReadFiles, root: &Utf8Path) -> Result<bool, FilesError> {
    for directory in IN_ROOT {
        if files.stat(&root.join(directory).join(LIBRARY))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The directories in `ld.so.conf(5)` and in the files that it includes.
fn linker_directories(reader: &mut FactReader<'_>) -> Vec<String> {
    let fact = "driver.library-version";
    let mut directories = Vec::new();
    let text = reader.text(fact, "/etc/ld.so.conf").unwrap_or_default();
    for line in linker_lines(&text) {
        let Some(included) = line.strip_prefix("include").map(str::trim) else {
            directories.push(line.to_owned());
            continue;
        };
        // Red Hat distributions use paths relative to the file that contains them.
        let included = match included.strip_prefix('/') {
            Some(_) => included.to_owned(),
            None => format!("/etc/{included}"),
        };
        let Some((directory, names)) = included.rsplit_once('/') else {
            continue;
        };
        // Without a directory before the last `/`, the files are in the root directory.
        let directory = if directory.is_empty() { "/" } else { directory };
        for name in reader.list(fact, directory) {
            if pattern::matches(names, &name) {
                let text = reader.text(fact, &format!("{directory}/{name}"));
                directories.extend(linker_lines(&text.unwrap_or_default()).map(str::to_owned));
            }
        }
    }
    // A 32-bit library is not evidence of the driver that 64-bit programs use.
    directories.retain(|directory| directory.starts_with('/') && !directory.contains("i386"));
    directories
}

fn linker_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or(line).trim())
        .filter(|line| !line.is_empty())
}

/// The package with the most reliable driver version, and this version.
fn driver_package(packages: &[KnownPackage]) -> Option<(&KnownPackage, DriverVersion)> {
    let rules = &table().driver_packages;
    let is_driver = |package: &&KnownPackage| {
        !rules
            .except
            .iter()
            .any(|except| pattern::matches(except, &package.name))
    };
    rules.names.iter().find_map(|name| {
        packages
            .iter()
            .filter(is_driver)
            .filter(|package| pattern::matches(name, &package.name))
            .filter_map(|package| {
                // Skip packages whose version is not a driver version, for example metapackages.
                let version = DriverVersion::from_package(&package.version).ok()?;
                Some((package, version))
            })
            // If the versions differ, an upgrade is incomplete, and the newest version is its target.
            .max_by(|a, b| a.1.cmp(&b.1))
    })
}

fn origin(
    reader: &mut FactReader<'_>,
    packages: &KnownPackages,
    from_package: Option<&(&KnownPackage, DriverVersion)>,
    found: bool,
    by_installer: bool,
) -> Option<Origin> {
    let fact = "driver.origin";
    // Check for images first: some image builds run the NVIDIA installer and leave its uninstaller.
    if found && (table().image.marks.iter()).any(|mark| reader.exists(fact, mark)) {
        return Some(Origin::Preinstalled);
    }
    // The installer overwrites files of all other origins. Its files may remain after the driver was removed by other means,
    // e.g. by the AKS node setup.
    if by_installer && (table().runfile.marks.iter()).any(|mark| reader.exists(fact, mark)) {
        return Some(Origin::Runfile);
    }
    match (from_package, packages) {
        (Some((package, _)), _) => match package.by_vendor {
            Some(true) => Some(Origin::Vendor),
            Some(false) => Some(Origin::Distribution),
            None => {
                reader.unknown(
                    fact,
                    format!("the package `{}` does not specify its vendor", package.name),
                );
                None
            }
        },
        (None, _) if !found => None,
        (None, Ok(_)) => Some(Origin::Preinstalled),
        (None, Err(why)) => {
            reader.unknown(fact, why.clone());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;
    use crate::{
        host::fake,
        steps::fixtures::{facts, state},
    };

    fn package(name: &str, version: &str, by_vendor: Option<bool>) -> KnownPackage {
        KnownPackage {
            name: name.to_owned(),
            version: version.to_owned(),
            by_vendor,
        }
    }

    #[test]
    fn loaded_version_is_parsed() {
        for line in [
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)  Tue Sep 23",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Wed Oct 30 01:56:01 UTC 2024",
        ] {
            let text = format!("{line}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n");
            assert_eq!(parse_proc_version(&text).unwrap().as_str(), "580.95.05");
        }
        assert_eq!(parse_proc_version("GCC version: 12.2.0"), None);
        assert_eq!(parse_proc_version("NVRM version:"), None);
    }

    #[test]
    fn flavor_of_loaded_module_is_parsed() {
        for (line, flavor) in rows! {
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build",
                Some(Flavor::Open);
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Wed Oct 30",
                Some(Flavor::Proprietary);
            "NVRM version: NVIDIA  580.95.05", None;
            "GCC version: Open Kernel Module", None;
        } {
            assert_eq!(parse_proc_flavor(line), flavor, "{line}");
        }
    }

    #[tokio::test]
    async fn module_without_files_has_no_origin() {
        let (host, fakes) = fake::host();
        fakes.files.put(
            "/var/lib/dpkg/status",
            "Package: bash\nStatus: install ok installed\nVersion: 1\n",
        );
        fakes.files.put(LOADED_VERSION, "580.95.05\n");
        let found = state(&host, facts()).driver().await.clone();
        // The state after `uninstall` while a process uses the GPU.
        assert_eq!(found.origin, None);
        assert!(found.loaded_version.is_some());
        fakes.files.put_directory(DRIVER_CONTAINER, 0o755);
        let found = state(&host, facts()).driver().await.clone();
        assert_eq!(found.origin, Some(Origin::Preinstalled));
    }

    #[tokio::test]
    async fn next_boot_uses_the_module_of_its_kernel() {
        let (host, fakes) = fake::host();
        fakes.exec.on("modinfo", |cmd, _| {
            let next = cmd.line().contains("6.1.0-45-amd64");
            fake::ok(if next { "535.247.01\n" } else { "535.261.03\n" })
        });
        for kernel in ["6.1.0-44-amd64", "6.1.0-45-amd64"] {
            let list = format!("/lib/modules/{kernel}/modules.dep");
            fakes.files.put(&list, "updates/dkms/nvidia.ko.xz:\n");
        }
        let version = async |next: &str| {
            let mut facts = facts();
            facts.kernel.next_boot = next.parse().ok();
            let found = state(&host, facts).next_module_version().await;
            found.map(|version| version.to_string())
        };
        assert_eq!(
            version("6.1.0-45-amd64").await.as_deref(),
            Some("535.247.01")
        );
        assert_eq!(
            version("6.1.0-44-amd64").await.as_deref(),
            Some("535.261.03")
        );
        assert_eq!(version("6.1.0-46-amd64").await, None);
    }

    #[test]
    fn loaded_version_is_read_from_sysfs_then_proc() {
        let (host, fakes) = fake::host();
        let get = || {
            let state = state(&host, facts());
            state
                .loaded_driver()
                .map(|version| version.map(ToString::to_string))
        };
        assert_eq!(get().unwrap(), None);
        fakes
            .files
            .put(PROC_VERSION, "NVRM version: NVIDIA  580.95.05  x\n");
        assert_eq!(get().unwrap().as_deref(), Some("580.95.05"));
        fakes.files.put(LOADED_VERSION, "580.178.04\n");
        assert_eq!(get().unwrap().as_deref(), Some("580.178.04"));
        fakes.files.put(LOADED_VERSION, "5".repeat(5_000_000));
        let error = get().unwrap_err().to_string();
        assert!(
            error.len() < 1000 && error.contains('…'),
            "{} bytes",
            error.len()
        );
        fakes.files.put(LOADED_VERSION, "garbage\n");
        let error = get().unwrap_err().to_string();
        assert!(
            error.starts_with("parse `/sys/module/nvidia/version`"),
            "{error}"
        );
    }

    #[test]
    fn most_reliable_package_determines_the_version() {
        let version = |packages: &[KnownPackage]| {
            driver_package(packages)
                .map(|(package, version)| (package.name.clone(), version.to_string()))
        };
        assert_eq!(version(&[package("bash", "5.2-1", None)]), None);
        assert_eq!(
            version(&[
                package("nvidia-driver-pinning-595", "595-1ubuntu1", Some(true)),
                package(
                    "nvidia-headless-580-server-open",
                    "580.178.04-0ubuntu0.24.04.1",
                    None
                ),
                package(
                    "libnvidia-compute-580-server",
                    "580.178.04-0ubuntu0.24.04.1",
                    None
                ),
                package("libnvidia-compute-580", "580.173.02-0ubuntu0.24.04.1", None),
                package(
                    "linux-modules-nvidia-580-server-open-generic",
                    "6.8.0-139.139",
                    None
                ),
            ]),
            Some((
                "libnvidia-compute-580-server".to_owned(),
                "580.178.04".to_owned()
            ))
        );
        // Debian packages of older branches.
        assert_eq!(
            version(&[
                package("nvidia-tesla-470-smi", "470.256.02-1~deb12u1", None),
                package("libnvidia-tesla-470-ml1", "470.256.02-1~deb12u1", None),
            ]),
            Some((
                "libnvidia-tesla-470-ml1".to_owned(),
                "470.256.02".to_owned()
            ))
        );
        assert_eq!(
            version(&[package("nvidia-driver-cuda", "3:580.178.04-1.el9", None)]),
            Some(("nvidia-driver-cuda".to_owned(), "580.178.04".to_owned()))
        );
    }

    #[test]
    fn library_version_is_read_from_the_link_target() {
        let (host, fakes) = fake::host();
        let files = &fakes.files;
        let found = || {
            let mut reader = FactReader::new(host.reader().files());
            let version = library(&mut reader).map(|v| v.map(|v| v.to_string()));
            (version, reader.into_unknown().len())
        };
        assert_eq!(found(), (None, 0));
        files.put("/usr/lib/libnvidia-ml.so.1", "x");
        assert_eq!(found(), (Some(None), 1));
        // Debian alternatives.
        files.put(
            "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.261.03",
            "x",
        );
        files.put_link(
            "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1",
            "libnvidia-ml.so.535.261.03",
        );
        files.put_link(
            "/etc/alternatives/nvidia--libnvidia-ml.so.1-x86_64-linux-gnu",
            "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1",
        );
        files.put_link(
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
            "/etc/alternatives/nvidia--libnvidia-ml.so.1-x86_64-linux-gnu",
        );
        assert_eq!(found(), (Some(Some("535.261.03".to_owned())), 0));
        // The administrator's directories precede the distribution's.
        files.put("/opt/gpu/libnvidia-ml.so.595.91.07", "x");
        files.put_link("/opt/gpu/libnvidia-ml.so.1", "libnvidia-ml.so.595.91.07");
        files.put("/etc/ld.so.conf", "include ld.so.conf.d/*.conf\n");
        files.put("/etc/ld.so.conf.d/gpu.conf", "# ours\n/opt/gpu\n");
        assert_eq!(found(), (Some(Some("595.91.07".to_owned())), 0));
    }

    #[test]
    fn origin_follows_packages_and_marker_files() {
        let (host, fakes) = fake::host();
        let of = |packages: &KnownPackages, found: bool| {
            let mut reader = FactReader::new(host.reader().files());
            let from = packages.as_deref().ok().and_then(driver_package);
            let origin = origin(&mut reader, packages, from.as_ref(), found, found);
            (origin, reader.into_unknown().len())
        };
        let one = |by| Ok(vec![package("libnvidia-ml1", "535.261.03-1", by)]);
        assert_eq!(of(&one(Some(true)), true), (Some(Origin::Vendor), 0));
        assert_eq!(of(&one(Some(false)), true), (Some(Origin::Distribution), 0));
        assert_eq!(of(&one(None), true), (None, 1));
        assert_eq!(of(&Ok(vec![]), true), (Some(Origin::Preinstalled), 0));
        assert_eq!(of(&Ok(vec![]), false), (None, 0));
        assert_eq!(of(&Err("why".to_owned()), true), (None, 1));
        // Amazon's accelerated EKS image has NVIDIA packages, but its own service loads the module.
        fakes.files.put("/etc/eks/nvidia-kmod-load.sh", "x");
        assert_eq!(of(&one(Some(true)), true), (Some(Origin::Preinstalled), 0));
        assert_eq!(of(&Ok(vec![]), false), (None, 0));
        // The image build runs the NVIDIA installer for the GRID modules.
        fakes.files.put("/usr/bin/nvidia-uninstall", "x");
        assert_eq!(of(&one(Some(true)), true), (Some(Origin::Preinstalled), 0));
        fakes.files.take("/etc/eks/nvidia-kmod-load.sh");
        assert_eq!(of(&one(Some(false)), true), (Some(Origin::Runfile), 0));
    }

    #[tokio::test]
    async fn installer_files_without_a_driver_are_ignored() {
        let (host, fakes) = fake::host();
        let files = &fakes.files;
        files.put("/usr/bin/nvidia-installer", "x");
        files.put_link("/usr/bin/nvidia-uninstall", "nvidia-installer");
        files.put("/var/lib/nvidia/log", "x");
        files.put("/var/lib/dpkg/status", "");
        let origin = async || state(&host, facts()).driver().await.origin;
        assert_eq!(origin().await, None);
        files.put("/var/lib/dkms/nvidia/580.159.04/source/dkms.conf", "x");
        assert_eq!(origin().await, Some(Origin::Runfile));
        files.take("/var/lib/dkms/nvidia/580.159.04/source/dkms.conf");

        let directory = "/usr/lib/x86_64-linux-gnu";
        let library = |version: &str| {
            let name = format!("libnvidia-ml.so.{version}");
            files.put(&format!("{directory}/{name}"), "x");
            files.put_link(&format!("{directory}/libnvidia-ml.so.1"), &name);
        };
        library("580.159.04");
        assert_eq!(origin().await, Some(Origin::Runfile));
        // Packages in addition to the installer's files.
        let status = "Package: libnvidia-ml1\nStatus: install ok installed\nArchitecture: amd64\n\
                      Version: 580.178.04-1\nMaintainer: NVIDIA <cudatools@nvidia.com>\n\n";
        files.put("/var/lib/dpkg/status", status);
        assert_eq!(origin().await, Some(Origin::Runfile));
        library("580.178.04");
        assert_eq!(origin().await, Some(Origin::Vendor));
    }

    reads_any_text!(
        "(NVRM version:|include|#|/|\n| |.)*",
        |text| parse_proc_version(&text); linker_lines(&text).count(); driver_package(&[package("nvidia-open", &text, None)])
    );
}
