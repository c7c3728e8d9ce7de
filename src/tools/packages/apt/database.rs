//! Reads the `dpkg` database directly from its file, without a process or a lock.
//!
//! `/var/lib/dpkg/status` is a list of paragraphs, one per package and architecture, described in `deb-control(5)` and
//! `dpkg-query(1)`. Facts and steps share this parser, so inspecting a machine needs no package manager process. `dpkg`
//! replaces the file atomically, so a reader never sees a partial file. Journaled updates in `/var/lib/dpkg/updates` exist only
//! while `dpkg` runs or after it was killed. [`Database::interrupted`] detects this from the file names. Only these
//! updates contain the last actions of `dpkg`.

use std::{cmp::Ordering, collections::BTreeSet};

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::{Apt, DATABASE, marks, triggers, version};
use crate::{
    host::{FilesError, ReadFiles, Reader},
    tools::packages::{Database, DatabaseError, Package, PackageCondition},
};

/// The directory of updates that are not yet merged into the database.
const UPDATES: &str = "/var/lib/dpkg/updates";

/// The directory of the packages' file lists, checksums and scripts.
const INFO: &str = "/var/lib/dpkg/info";

/// Parses the database. A paragraph without a name or with an invalid status is omitted: `dpkg` itself rejects such a file with
/// a better message.
fn paragraphs(text: &str) -> impl Iterator<Item = Package> {
    // An empty line ends a package, because descriptions contain lines with a single dot instead of empty lines.
    text.split("\n\n").filter_map(paragraph)
}

/// Returns the native architecture, which is the architecture of dpkg itself. Empty if unknown.
fn native(packages: &[Package]) -> &str {
    (packages.iter().find(|package| package.name == "dpkg"))
        .map_or("", |package| package.architecture.as_str())
}

/// Sets the ID of packages of a foreign architecture to `name:architecture`, like apt.
fn name_foreign_ones(packages: &mut Vec<Package>) {
    let native = native(packages).to_owned();
    if native.is_empty() {
        return;
    }
    for package in packages {
        if ![native.as_str(), "all", ""].contains(&package.architecture.as_str()) {
            package.id = format!("{}:{}", package.name, package.architecture);
        }
    }
}

fn merge(packages: &mut Vec<Package>, update: Package) {
    let same = packages.iter_mut().find(|package| {
        package.name == update.name
            && (package.architecture == update.architecture || package.architecture.is_empty())
    });
    match same {
        Some(package) => *package = update,
        None => packages.push(update),
    }
}

fn is_update(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

fn paragraph(text: &str) -> Option<Package> {
    let mut name = None;
    let mut status = None;
    let mut package = Package {
        name: String::new(),
        id: String::new(),
        architecture: String::new(),
        version: String::new(),
        condition: PackageCondition::Absent,
        held: false,
        packager: None,
        vendor: None,
        installed_bytes: 0,
    };
    for line in text.lines() {
        // A line that starts with white space continues the previous field.
        if line.starts_with([' ', '\t']) {
            continue;
        }
        let Some((field, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        // deb-control(5): field names are not case-sensitive.
        match field.to_ascii_lowercase().as_str() {
            "package" => name = Some(value),
            "status" => status = Some(value),
            "architecture" => value.clone_into(&mut package.architecture),
            "version" => value.clone_into(&mut package.version),
            "maintainer" => {
                package.packager = (!value.is_empty()).then(|| value.to_owned());
            }
            // deb-control(5): in KiB. Manually built packages may not have this field.
            "installed-size" => {
                package.installed_bytes = value
                    .parse::<u64>()
                    .unwrap_or_default()
                    .saturating_mul(1024);
            }
            _ => {}
        }
    }
    name.filter(|name| !name.is_empty())?
        .clone_into(&mut package.name);
    package.id.clone_from(&package.name);
    (package.held, package.condition) = status_words(status?)?;
    Some(package)
}

/// Parses the three words of `Status`, dpkg-query(1): the requested state, whether the package must be reinstalled, and its
/// actual state. Returns whether the package is held, and its state.
fn status_words(status: &str) -> Option<(bool, PackageCondition)> {
    let mut words = status.split_whitespace();
    let held = match words.next()? {
        "hold" => true,
        "unknown" | "install" | "deinstall" | "purge" => false,
        _ => return None,
    };
    let reinstall = match words.next()? {
        "ok" => false,
        "reinstreq" => true,
        _ => return None,
    };
    let condition = match words.next()? {
        "not-installed" => PackageCondition::Absent,
        "config-files" => PackageCondition::Configuration,
        "half-installed" => PackageCondition::HalfInstalled,
        "unpacked" | "half-configured" => PackageCondition::Unpacked,
        "triggers-awaited" | "triggers-pending" | "installed" => PackageCondition::Installed,
        _ => return None,
    };
    Some((
        held,
        match condition {
            PackageCondition::Installed if reinstall => PackageCondition::Unpacked,
            PackageCondition::Absent | PackageCondition::Configuration if reinstall => {
                PackageCondition::HalfInstalled
            }
            other => other,
        },
    ))
}

/// Whether a file in [`INFO`] is a file list, based on its name.
fn is_list(name: &str) -> bool {
    name.ends_with(".list")
}

#[async_trait]
impl Database for Apt {
    fn is_used_on(&self, files: &dyn ReadFiles) -> Result<bool, FilesError> {
        let text = files.read(Utf8Path::new(DATABASE))?;
        Ok(text.is_some_and(|text| !text.trim_ascii().is_empty()))
    }

    /// The result includes updates that are not yet merged into the database.
    async fn database(&self, host: Reader<'_>) -> Result<Option<Vec<Package>>, DatabaseError> {
        let files = host.files();
        let text = |path: &Utf8Path| -> Result<Option<String>, FilesError> {
            let bytes = files.read(path)?;
            Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
        };
        let Some(status) = text(Utf8Path::new(DATABASE))? else {
            return Ok(None);
        };
        let mut packages: Vec<Package> = paragraphs(&status).collect();
        // Read the updates after the database: updates that are merged in between are then missing, but none is older than the
        // database.
        let directory = Utf8Path::new(UPDATES);
        let mut names: Vec<String> = files.list(directory)?;
        names.retain(|name| is_update(name));
        names.sort();
        for name in names {
            for update in paragraphs(&text(&directory.join(name))?.unwrap_or_default()) {
                merge(&mut packages, update);
            }
        }
        name_foreign_ones(&mut packages);
        Ok(Some(packages))
    }

    fn database_path(&self) -> &'static str {
        DATABASE
    }

    /// Whether `dpkg` was interrupted or is running: it then has updates in [`UPDATES`], or triggers of a finished transaction
    /// are pending.
    fn interrupted(&self, files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError> {
        let names = files.list(Utf8Path::new(UPDATES))?;
        let is_interrupted = names.iter().any(|name| is_update(name))
            || !triggers::pending(files)?.needed.is_empty();
        Ok(is_interrupted.then_some("dpkg"))
    }

    fn bare_name<'n>(&self, id: &'n str) -> &'n str {
        id.split(':').next().unwrap_or(id)
    }

    /// Compares versions like dpkg. Invalid versions are compared as text instead of causing an error, because apt itself
    /// rejects them.
    fn compare(&self, a: &str, b: &str) -> Ordering {
        version::compare(a, b)
    }

    async fn automatic(
        &self,
        host: Reader<'_>,
        packages: &[Package],
    ) -> Result<BTreeSet<String>, DatabaseError> {
        let bytes = host
            .files()
            .read(Utf8Path::new(marks::PATH))?
            .unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        Ok(marks::parse(&text, native(packages)))
    }

    async fn owned_below(
        &self,
        host: Reader<'_>,
        directory: &Utf8Path,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError> {
        let files = host.files();
        let info = Utf8Path::new(INFO);
        let mut owned = BTreeSet::new();
        for name in files.list(info)?.iter().filter(|name| is_list(name)) {
            let text = files.read(&info.join(name))?.unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            owned.extend(
                text.lines()
                    .map(Utf8Path::new)
                    .filter(|path| path.starts_with(directory))
                    .map(Utf8Path::to_owned),
            );
        }
        Ok(owned)
    }

    async fn owned_by(
        &self,
        host: Reader<'_>,
        packages: &BTreeSet<String>,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError> {
        let files = host.files();
        let info = Utf8Path::new(INFO);
        let mut owned = BTreeSet::new();
        for file in files.list(info)? {
            let Some(package) = file.strip_suffix(".list") else {
                continue;
            };
            // dpkg uses the name `NAME:ARCH` for the files of a package that exists for several architectures.
            let bare = package.split(':').next().unwrap_or(package);
            if packages.contains(package) || packages.contains(bare) {
                let text = files.read(&info.join(&file))?.unwrap_or_default();
                let text = String::from_utf8_lossy(&text);
                let paths = text.lines().filter(|path| *path != "/.");
                owned.extend(paths.map(Utf8PathBuf::from));
            }
        }
        Ok(owned)
    }

    fn last_run(&self) -> Option<&'static Utf8Path> {
        Some(Utf8Path::new(DATABASE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::{self, FakeFiles};

    fn parse(text: &str) -> Vec<Package> {
        let mut packages = paragraphs(text).collect();
        name_foreign_ones(&mut packages);
        packages
    }

    #[tokio::test]
    async fn unmerged_updates_are_newer_than_the_database() {
        let (host, fakes) = fake::host();
        let files = &fakes.files;
        assert_eq!(Apt.database(host.reader()).await.unwrap(), None);
        let package = |name: &str, state: &str| {
            format!(
                "Package: {name}\nStatus: install ok {state}\nArchitecture: amd64\nVersion: 1\n"
            )
        };
        files.put(
            DATABASE,
            format!(
                "{}\n{}",
                package("a", "installed"),
                package("b", "unpacked")
            ),
        );
        files.put(
            "/var/lib/dpkg/updates/0000",
            package("b", "half-configured"),
        );
        files.put("/var/lib/dpkg/updates/0001", package("c", "unpacked"));
        files.put("/var/lib/dpkg/updates/0002", package("b", "installed"));
        files.put("/var/lib/dpkg/updates/tmp.i", package("a", "unpacked"));
        let database = Apt.database(host.reader()).await.unwrap();
        let found: Vec<(String, PackageCondition)> = (database.unwrap().into_iter())
            .map(|package| (package.name, package.condition))
            .collect();
        let of = |name: &str, state| (name.to_owned(), state);
        assert_eq!(
            found,
            [
                of("a", PackageCondition::Installed),
                of("b", PackageCondition::Installed),
                of("c", PackageCondition::Unpacked)
            ]
        );
    }

    const STATUS: &str = "\
Package: containerd
Status: install ok installed
Architecture: amd64
Maintainer: Debian Go Packaging Team <team+pkg-go@tracker.debian.org>
Version: 1.6.20~ds1-1+deb12u1
Description: open and reliable container runtime
 Containerd is an industry-standard core container runtime.
 .
 Package: not-a-package

Package: libnvidia-ml1
Status: hold ok installed
Architecture: amd64
Version: 535.261.03-1~deb12u1

Package: libnvidia-ml1
Status: install ok installed
Architecture: i386
Version: 535.261.03-1~deb12u1

Package: nvidia-kernel-dkms
Status: install ok half-configured
Architecture: amd64
Version: 535.261.03-1~deb12u1

Package: nvidia-alternative
Status: deinstall ok config-files
Architecture: amd64
Version: 535.183.01-1

Package: half
Status: install reinstreq half-installed
Architecture: amd64

Package: no-status

Status: install ok installed
";

    fn of_name<'p>(packages: &'p [Package], name: &str) -> &'p Package {
        packages.iter().find(|p| p.name == name).unwrap()
    }

    #[test]
    fn each_paragraph_is_a_package() {
        let packages = parse(STATUS);
        let names: Vec<&str> = packages.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "containerd",
                "libnvidia-ml1",
                "libnvidia-ml1",
                "nvidia-kernel-dkms",
                "nvidia-alternative",
                "half"
            ]
        );
        let containerd = of_name(&packages, "containerd");
        assert!(containerd.is_installed() && !containerd.held && !containerd.needs_repair());
        assert_eq!(containerd.version, "1.6.20~ds1-1+deb12u1");
        assert!((containerd.packager.as_deref()).is_some_and(|name| name.starts_with("Debian Go")));
        assert!(of_name(&packages, "libnvidia-ml1").held);
        let dkms = of_name(&packages, "nvidia-kernel-dkms");
        assert!(!dkms.is_installed() && dkms.is_unpacked() && dkms.needs_repair());
        let gone = of_name(&packages, "nvidia-alternative");
        assert!(!gone.is_installed() && !gone.is_unpacked() && !gone.needs_repair());
        assert!(of_name(&packages, "half").needs_repair());
        let sized = "Package: a\nStatus: install ok installed\nInstalled-Size: 1234\n";
        assert_eq!(parse(sized)[0].installed_bytes, 1234 * 1024);
        assert_eq!(containerd.installed_bytes, 0);
    }

    #[test]
    fn foreign_architecture_is_part_of_the_id() {
        let own =
            "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n\n";
        let ids = |text: &str| -> Vec<String> {
            let packages = parse(text).into_iter();
            packages.map(|package| package.id).collect()
        };
        let both = ids(&format!("{own}{STATUS}"));
        assert_eq!(both[2..4], ["libnvidia-ml1", "libnvidia-ml1:i386"]);
        // Without dpkg, the native architecture is unknown.
        assert_eq!(ids(STATUS)[1..3], ["libnvidia-ml1", "libnvidia-ml1"]);
    }

    #[tokio::test]
    async fn file_lists_are_read_below_a_directory() {
        let (host, fakes) = fake::host();
        fakes.files.put(
            "/var/lib/dpkg/info/docker.io.list",
            "/.\n/etc\n/etc/docker\n/etc/default/docker\n/usr/bin/docker\n/etcetera\n",
        );
        (fakes.files).put("/var/lib/dpkg/info/docker.io.md5sums", "/etc/other\n");
        let owned = Apt.owned_below(host.reader(), "/etc".into()).await;
        let found: Vec<Utf8PathBuf> = owned.unwrap().into_iter().collect();
        assert_eq!(found, ["/etc", "/etc/default/docker", "/etc/docker"]);
    }

    #[tokio::test]
    async fn file_lists_of_given_packages_are_read() {
        let (host, fakes) = fake::host();
        let put = |name: &str, text: &str| fakes.files.put(&format!("{INFO}/{name}"), text);
        put("docker.io.list", "/.\n/etc/docker\n");
        put("docker.io.md5sums", "nothing of interest");
        put("libcuda1:amd64.list", "/usr/lib/libcuda.so\n");
        put("docker.list", "/etc/theirs\n");
        let packages = ["docker.io", "libcuda1"].map(str::to_owned).into();
        let owned = Apt.owned_by(host.reader(), &packages).await;
        let found: Vec<Utf8PathBuf> = owned.unwrap().into_iter().collect();
        assert_eq!(found, ["/etc/docker", "/usr/lib/libcuda.so"]);
    }

    #[test]
    fn updates_of_killed_dpkg_are_detected() {
        let files = FakeFiles::new();
        assert_eq!(Apt.interrupted(&files).unwrap(), None);
        files.put(&format!("{UPDATES}/tmp.i"), "");
        assert_eq!(Apt.interrupted(&files).unwrap(), None);
        files.put(&format!("{UPDATES}/0001"), "");
        assert_eq!(Apt.interrupted(&files).unwrap(), Some("dpkg"));
    }

    #[test]
    fn only_triggers_that_cannot_wait_are_an_interruption() {
        for (name, found) in [("initramfs-tools", None), ("libc-bin", Some("dpkg"))] {
            let files = FakeFiles::new();
            let text = format!("Package: {name}\nStatus: install ok triggers-pending\n");
            files.put(DATABASE, text);
            assert_eq!(Apt.interrupted(&files).unwrap(), found, "{name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_without_panic(text in ".*", cut in 0..STATUS.len()) {
            let _ = parse(&text);
            let _ = parse(&STATUS[..cut]);
        }
    }
}
