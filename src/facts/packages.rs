//! The installed packages, whichever database the machine has.

use crate::{
    facts::{
        Scope,
        detection::table,
        look::{Look, chain},
    },
    host::Reader,
    tools::packages::{self, Manager},
};

/// The installed packages, or why they are not known.
pub(super) type Packages = Result<Vec<Package>, String>;

/// An installed package, of either kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Package {
    pub name: String,
    pub version: String,
    /// NVIDIA made it; `None` where the package does not say who did.
    pub by_vendor: Option<bool>,
}

/// Reads the database of whichever package manager the machine has.
pub(super) async fn gather(look: &mut Look<'_>, host: Reader<'_>, scope: Scope) -> Packages {
    let fact = "driver.package-version";
    let mut found = None;
    for manager in Manager::ALL {
        if look.answer(fact, manager.backend().is_used_on(look.files())) == Some(true) {
            found = Some(manager.backend());
            break;
        }
    }
    let Some(backend) = found else {
        return Err("neither a dpkg nor an rpm database is there".to_owned());
    };
    if let (Some(program), false) = (backend.database_program(), scope.executes) {
        return Err(format!(
            "the {program} database can only be read by `{program}`, which was not run"
        ));
    }
    match backend.database(host).await {
        Ok(packages) => Ok(by_maker(packages.unwrap_or_default())),
        Err(error) => Err(chain(&error)),
    }
}

/// Who made each package that is on the disk.
fn by_maker(packages: Vec<packages::Package>) -> Vec<Package> {
    let vendor = &table().vendor;
    packages
        .into_iter()
        // A driver that is unpacked and not configured is on the disk all the same.
        .filter(packages::Package::is_unpacked)
        .map(|package| {
            let by_mail = (package.packager.as_deref())
                .map(|packager| packager.contains(&vendor.mail_domain));
            let by_name =
                (package.vendor.as_deref()).map(|name| name.starts_with(&vendor.vendor_prefix));
            Package {
                name: package.name,
                version: package.version,
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
    use super::*;
    use crate::host::fake;

    fn block<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(future)
    }

    #[test]
    fn rpm_is_asked_only_where_programs_may_run() {
        let (host, fakes) = fake::host();
        let get = |executes| {
            let mut look = Look::new(host.reader().files());
            block(gather(&mut look, host.reader(), Scope { executes }))
        };
        assert!(get(true).unwrap_err().contains("neither"));
        fakes.files.put_folder("/var/lib/rpm", 0o755);
        assert!(get(false).unwrap_err().contains("not run"));
        assert!(fakes.exec.log().is_empty());
        assert!(get(true).unwrap_err().contains("rpm"));
        fakes.exec.on("rpm", |_, _| {
            fake::ok(
                "nvidia-driver-cuda\tx86_64\t3\t580.178.04\t1.el9\t(none)\tcudatools <cudatools@nvidia.com>\n\
                 nvidia-open-kmod\tx86_64\t3\t580.178.04\t1.el9\tAlmaLinux\tAlmaLinux Packaging Team\n\
                 odd\tx86_64\t(none)\t1\t1\t(none)\t(none)\n",
            )
        });
        let packages = get(true).unwrap();
        let by: Vec<Option<bool>> = packages.iter().map(|p| p.by_vendor).collect();
        assert_eq!(by, [Some(true), Some(false), None]);
    }

    #[test]
    fn dpkg_is_read_as_a_file() {
        let (host, fakes) = fake::host();
        fakes.files.put(
            "/var/lib/dpkg/status",
            "Package: a\nStatus: install ok unpacked\nMaintainer: cudatools <cudatools@nvidia.com>\nVersion: 1\n\n\
             Package: b\nStatus: deinstall ok config-files\nVersion: 1\n\n\
             Package: c\nStatus: hold ok installed\nMaintainer: Debian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth.debian.org>\nVersion: 2\n",
        );
        let mut look = Look::new(host.reader().files());
        let scope = Scope { executes: false };
        let packages = block(gather(&mut look, host.reader(), scope)).unwrap();
        let found: Vec<(&str, Option<bool>)> = packages
            .iter()
            .map(|package| (package.name.as_str(), package.by_vendor))
            .collect();
        assert_eq!(found, [("a", Some(true)), ("c", Some(false))]);
    }
}
