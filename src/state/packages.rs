//! Reads the installed packages from the dpkg or rpm database.

use std::sync::{Arc, PoisonError};

use super::{Noted, QueryCell, State, StateError};
use crate::{
    facts::{detection::table, reader::FactReader},
    host::{ExecError, Output, Query},
    model::{pattern, version::DriverVersion},
    tools::packages::{self, Manager},
};

/// The installed packages, or the reason they are unknown.
pub(super) type KnownPackages = Result<Vec<KnownPackage>, String>;

/// An installed package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownPackage {
    pub name: String,
    pub version: String,
    /// Whether NVIDIA built the package. `None` if its metadata contains neither a maintainer nor a vendor.
    pub by_vendor: Option<bool>,
}

/// An installed package that belongs to the driver, so its version should be the driver version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverPart {
    pub name: String,
    pub version: DriverVersion,
    /// Whether NVIDIA built the package. `None` if its metadata contains neither a maintainer nor a vendor.
    pub by_vendor: Option<bool>,
}

impl State {
    /// The installed driver packages, which must all have the same version.
    ///
    /// # Errors
    /// The reason, if the installed packages are unknown.
    pub async fn driver_parts(&self) -> Result<Vec<DriverPart>, String> {
        let packages = self.installed().await.value.as_deref();
        let packages = packages.map_err(Clone::clone)?;
        Ok(packages.iter().filter_map(part).collect())
    }

    /// Names and versions of the installed packages whose names match at least one of these shell patterns.
    ///
    /// # Errors
    /// The reason, if the installed packages are unknown.
    pub async fn packages_like(&self, names: &[&str]) -> Result<Vec<(String, String)>, String> {
        let packages = self.installed().await.value.as_deref();
        let packages = packages.map_err(Clone::clone)?;
        let is_one = |package: &&KnownPackage| {
            (names.iter()).any(|pattern| pattern::matches(pattern, &package.name))
        };
        Ok((packages.iter().filter(is_one))
            .map(|package| (package.name.clone(), package.version.clone()))
            .collect())
    }

    /// All packages in the database of a package manager, or `None` if there is no database.
    ///
    /// # Errors
    /// If the database exists but cannot be read.
    pub async fn database(
        &self,
        manager: Manager,
    ) -> Result<Option<&[packages::Package]>, StateError> {
        let read = || async { Ok(manager.backend().database(self.host.reader()).await?) };
        // One cell per package manager.
        let cell = &self.memo.databases[manager as usize];
        let read = cell.get_or_init(read).await.as_ref();
        read.map(Option::as_deref).map_err(Clone::clone)
    }

    /// Runs a query of the package manager, such as a lookup in the package lists. Each query is executed only once for each
    /// state, because several steps need the same result.
    ///
    /// # Errors
    /// If the command cannot be executed.
    pub async fn query(&self, query: &Query) -> Result<Output, ExecError> {
        let cell = {
            let mut queries = (self.memo.queries.lock()).unwrap_or_else(PoisonError::into_inner);
            match queries.iter().find(|(known, _)| known == query) {
                Some((_, cell)) => Arc::clone(cell),
                None => {
                    let cell = QueryCell::default();
                    queries.push((query.clone(), Arc::clone(&cell)));
                    cell
                }
            }
        };
        let run = || async { self.host.reader().query(query).await };
        cell.get_or_init(run).await.clone()
    }

    /// The installed packages. The database is read only once for each state.
    pub(super) async fn installed(&self) -> &Noted<KnownPackages> {
        let read = || async {
            let mut reader = FactReader::new(&*self.host.files);
            let value = self.find_packages(&mut reader).await;
            Noted {
                value,
                unknown: reader.into_unknown(),
            }
        };
        self.memo.packages.get_or_init(read).await
    }

    /// Determines the package manager of the machine and reads its database.
    async fn find_packages(&self, reader: &mut FactReader<'_>) -> KnownPackages {
        let fact = "driver.package-version";
        let found = Manager::ALL.into_iter().find(|manager| {
            let used = manager.backend().is_used_on(reader.files());
            reader.answer(fact, used) == Some(true)
        });
        let Some(manager) = found else {
            // The image contains the driver, and no packages.
            let os = self.facts.os.as_ref();
            if os.is_some_and(|os| table().owner.iter().any(|row| row.os.contains(&os.id))) {
                return Ok(Vec::new());
            }
            let names = Manager::ALL.map(|manager| manager.backend().name());
            return Err(format!("no {} package database exists", names.join(" or ")));
        };
        let program = manager.backend().database_program();
        if let (Some(program), false) = (program, self.scope.executes) {
            return Err(format!(
                "the {program} database can only be read with `{program}`, and no program is run with `--root`"
            ));
        }
        match self.database(manager).await {
            Ok(packages) => Ok(by_maker(packages.unwrap_or_default())),
            Err(error) => Err(error.reason()),
        }
    }
}

/// Returns the package as a part of the driver, or `None` if it does not belong to the driver or has an independent version.
fn part(package: &KnownPackage) -> Option<DriverPart> {
    let rules = &table().driver_packages;
    let is_one = |patterns: &[String]| {
        (patterns.iter()).any(|pattern| pattern::matches(pattern, &package.name))
    };
    let version = DriverVersion::from_package(&package.version).ok()?;
    (is_one(&rules.parts) && !is_one(&rules.except)).then(|| DriverPart {
        name: package.name.clone(),
        version,
        by_vendor: package.by_vendor,
    })
}

/// Returns the unpacked packages, and whether NVIDIA built them.
fn by_maker(packages: &[packages::Package]) -> Vec<KnownPackage> {
    let vendor = &table().vendor;
    packages
        .iter()
        // The files of an unpacked package are on disk, even if the package is not configured yet.
        .filter(|package| package.is_unpacked())
        .map(|package| {
            let by_mail = (package.packager.as_deref())
                .map(|packager| packager.contains(&vendor.mail_domain));
            let by_name =
                (package.vendor.as_deref()).map(|name| name.starts_with(&vendor.vendor_prefix));
            KnownPackage {
                name: package.name.clone(),
                version: package.version.clone(),
                by_vendor: match (by_mail, by_name) {
                    (None, None) => None,
                    (mail, name) => Some(mail == Some(true) || name == Some(true)),
                },
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::{
        host::fake,
        steps::fixtures::{facts, state, state_below_root},
    };

    #[tokio::test]
    async fn rpm_is_not_run_with_root_option() {
        let (host, fakes) = fake::host();
        let get = async || state(&host, facts()).installed().await.value.clone();
        assert!(get().await.unwrap_err().contains("apt or dnf"));
        fakes.files.put_directory("/var/lib/rpm", 0o755);
        let below = state_below_root(&host, facts());
        let unread = below.installed().await.value.clone();
        assert!(unread.unwrap_err().contains("no program is run"));
        assert!(fakes.exec.log().is_empty());
        assert!(get().await.unwrap_err().contains("rpm"));
        fakes.exec.on("rpm", |_, _| {
            fake::ok(
                "nvidia-driver-cuda\tx86_64\t3\t580.178.04\t1.el9\t(none)\tcudatools <cudatools@nvidia.com>\n\
                 nvidia-open-kmod\tx86_64\t3\t580.178.04\t1.el9\tAlmaLinux\tAlmaLinux Packaging Team\n\
                 odd\tx86_64\t(none)\t1\t1\t(none)\t(none)\n",
            )
        });
        let packages = get().await.unwrap();
        let by: Vec<Option<bool>> = packages.iter().map(|p| p.by_vendor).collect();
        assert_eq!(by, [Some(true), Some(false), None]);
    }

    #[tokio::test]
    async fn packages_with_independent_versions_are_not_driver_parts() {
        let (host, fakes) = fake::host();
        let names = rows! {
            "nvidia-kernel-dkms", "535.261.03-1";
            "libcuda1", "535.247.01-1";
            // These packages have independent versions.
            "nvidia-modprobe", "570.133.07-1";
            "nvidia-container-toolkit", "1.20.0-1";
            "nvidia-driver-pinning-595", "595.58.03-1";
            "linux-modules-nvidia-580-server-open-generic", "6.8.0-139.139";
        };
        let entry = |(name, version): &(&str, &str)| {
            format!("Package: {name}\nStatus: install ok installed\nVersion: {version}\n\n")
        };
        let text: String = names.iter().map(entry).collect();
        fakes.files.put("/var/lib/dpkg/status", text);
        let parts = state(&host, facts()).driver_parts().await.unwrap();
        let found: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(found, ["nvidia-kernel-dkms", "libcuda1"]);
    }

    #[tokio::test]
    async fn dpkg_database_is_read_without_running_dpkg() {
        let (host, fakes) = fake::host();
        fakes.files.put(
            "/var/lib/dpkg/status",
            "Package: a\nStatus: install ok unpacked\nMaintainer: cudatools <cudatools@nvidia.com>\nVersion: 1\n\n\
             Package: b\nStatus: deinstall ok config-files\nVersion: 1\n\n\
             Package: c\nStatus: hold ok installed\nMaintainer: Debian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth.debian.org>\nVersion: 2\n",
        );
        let below = state_below_root(&host, facts());
        let packages = below.installed().await.value.clone().unwrap();
        let found: Vec<(&str, Option<bool>)> = packages
            .iter()
            .map(|package| (package.name.as_str(), package.by_vendor))
            .collect();
        assert_eq!(found, [("a", Some(true)), ("c", Some(false))]);
    }
}
