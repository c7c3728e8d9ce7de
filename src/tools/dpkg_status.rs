//! The database of `dpkg`, read as the file that it is: no process, no lock.
//!
//! `/var/lib/dpkg/status` is a list of paragraphs, one per package and architecture, as
//! `deb-control(5)` and `dpkg-query(1)` describe them. Facts and steps share this one parser, so a
//! look at a machine costs no package-manager process; the file is replaced atomically by `dpkg`,
//! so a reader never sees half of it. Journalled updates in `/var/lib/dpkg/updates` exist only
//! while `dpkg` runs or after it was killed, which [`interrupted`] tells from the folder's names.
//! What it did last is in them alone.

use std::collections::BTreeMap;

use camino::Utf8Path;

use crate::host::{FilesError, ReadFiles};

/// Where the database is.
pub const PATH: &str = "/var/lib/dpkg/status";

/// The folder of updates that are not yet merged into the database.
pub const UPDATES: &str = "/var/lib/dpkg/updates";

/// The administrator's wish, the first word of `Status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Nothing asked.
    Unknown,
    /// To be installed.
    Install,
    /// To be kept as it is: `apt-mark hold`.
    Hold,
    /// To be removed, keeping configuration.
    Deinstall,
    /// To be removed with configuration.
    Purge,
}

/// How far the package is, the third word of `Status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not there.
    NotInstalled,
    /// Removed, its configuration kept.
    ConfigFiles,
    /// Installation began and did not end.
    HalfInstalled,
    /// Unpacked, not configured.
    Unpacked,
    /// Configuration began and did not end.
    HalfConfigured,
    /// Waits for triggers of another package.
    TriggersAwaited,
    /// Its own triggers are pending.
    TriggersPending,
    /// Installed and configured.
    Installed,
}

/// One package as `dpkg` knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name, without the architecture.
    pub name: String,
    /// `amd64`, `all`, …; empty for packages that are gone.
    pub architecture: String,
    /// Its version; empty for packages that are gone.
    pub version: String,
    /// The wish.
    pub want: Want,
    /// The second word of `Status` is `reinstreq`: it must be installed again.
    pub broken: bool,
    /// How far it is.
    pub state: State,
    /// Who maintains it, as `Name <mail>`.
    pub maintainer: String,
    /// Bytes that its files take, as its maintainer estimated them.
    pub installed_bytes: u64,
    /// The `Origin` field, where the package has one.
    pub origin: Option<String>,
}

impl Package {
    /// Its files are there, configured or not.
    #[must_use]
    pub fn is_unpacked(&self) -> bool {
        !matches!(
            self.state,
            State::NotInstalled | State::ConfigFiles | State::HalfInstalled
        )
    }

    /// Installed and configured, with at most triggers to run.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        matches!(
            self.state,
            State::Installed | State::TriggersPending | State::TriggersAwaited
        ) && !self.broken
    }

    /// Held: nothing shall change its version.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.want == Want::Hold
    }

    /// What `dpkg --audit` would name: neither installed nor properly gone.
    #[must_use]
    pub fn needs_repair(&self) -> bool {
        self.broken
            || matches!(
                self.state,
                State::HalfInstalled | State::Unpacked | State::HalfConfigured
            )
    }
}

/// Reads the database. A paragraph without a name or with a status that is no status is left out:
/// `dpkg` itself refuses to work with such a file, and says so better.
#[must_use]
pub fn parse(text: &str) -> Vec<Package> {
    // Descriptions hold lines with a single dot, never empty ones, so an empty line ends a package.
    text.split("\n\n").filter_map(paragraph).collect()
}

/// The database with the updates that are not yet merged into it; `None` where there is none.
///
/// # Errors
/// When a file that is there cannot be read.
pub fn read(files: &dyn ReadFiles) -> Result<Option<Vec<Package>>, FilesError> {
    let text = |path: &Utf8Path| -> Result<Option<String>, FilesError> {
        let bytes = files.read(path)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    };
    let Some(status) = text(Utf8Path::new(PATH))? else {
        return Ok(None);
    };
    let mut packages = parse(&status);
    // After the database: what is merged in between is then missing, and never older than it.
    let folder = Utf8Path::new(UPDATES);
    let mut names: Vec<String> = files.list(folder)?;
    names.retain(|name| is_update(name));
    names.sort();
    for name in names {
        for update in parse(&text(&folder.join(name))?.unwrap_or_default()) {
            merge(&mut packages, update);
        }
    }
    Ok(Some(packages))
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

/// The installed packages of the machine's own architecture by name. Where a name is installed for
/// several architectures, `native` wins; without it, the first in the file.
#[must_use]
pub fn installed<'p>(
    packages: &'p [Package],
    native: Option<&str>,
) -> BTreeMap<&'p str, &'p Package> {
    let mut found: BTreeMap<&str, &Package> = BTreeMap::new();
    for package in packages.iter().filter(|package| package.is_installed()) {
        let own = native == Some(package.architecture.as_str());
        if own || !found.contains_key(package.name.as_str()) {
            found.insert(&package.name, package);
        }
    }
    found
}

/// Whether the names in [`UPDATES`] tell of a `dpkg` that was interrupted (or runs now): its
/// updates are files whose names are numbers.
#[must_use]
pub fn interrupted(names: &[String]) -> bool {
    names.iter().any(|name| is_update(name))
}

fn is_update(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

fn paragraph(text: &str) -> Option<Package> {
    let mut name = None;
    let mut status = None;
    let mut package = Package {
        name: String::new(),
        architecture: String::new(),
        version: String::new(),
        want: Want::Unknown,
        broken: false,
        state: State::NotInstalled,
        maintainer: String::new(),
        installed_bytes: 0,
        origin: None,
    };
    for line in text.lines() {
        // Lines that begin with white space go on with the field before them.
        if line.starts_with([' ', '\t']) {
            continue;
        }
        let Some((field, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        // Field names are not case-sensitive, says deb-control(5).
        match field.to_ascii_lowercase().as_str() {
            "package" => name = Some(value),
            "status" => status = Some(value),
            "architecture" => value.clone_into(&mut package.architecture),
            "version" => value.clone_into(&mut package.version),
            "maintainer" => value.clone_into(&mut package.maintainer),
            // In KiB, says deb-control(5); packages that were made by hand may lack it.
            "installed-size" => {
                package.installed_bytes = value.parse::<u64>().unwrap_or_default() * 1024;
            }
            "origin" => package.origin = Some(value.to_owned()),
            _ => {}
        }
    }
    name.filter(|name| !name.is_empty())?
        .clone_into(&mut package.name);
    let mut words = status?.split_whitespace();
    package.want = match words.next()? {
        "unknown" => Want::Unknown,
        "install" => Want::Install,
        "hold" => Want::Hold,
        "deinstall" => Want::Deinstall,
        "purge" => Want::Purge,
        _ => return None,
    };
    package.broken = match words.next()? {
        "ok" => false,
        "reinstreq" => true,
        _ => return None,
    };
    package.state = match words.next()? {
        "not-installed" => State::NotInstalled,
        "config-files" => State::ConfigFiles,
        "half-installed" => State::HalfInstalled,
        "unpacked" => State::Unpacked,
        "half-configured" => State::HalfConfigured,
        "triggers-awaited" => State::TriggersAwaited,
        "triggers-pending" => State::TriggersPending,
        "installed" => State::Installed,
        _ => return None,
    };
    Some(package)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeFiles;

    #[test]
    fn updates_that_are_not_merged_are_newer_than_the_database() {
        let files = FakeFiles::new();
        assert_eq!(read(&files).unwrap(), None);
        let package = |name: &str, state: &str| {
            format!(
                "Package: {name}\nStatus: install ok {state}\nArchitecture: amd64\nVersion: 1\n"
            )
        };
        files.put(
            PATH,
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
        let found: Vec<(String, State)> = read(&files)
            .unwrap()
            .unwrap()
            .into_iter()
            .map(|package| (package.name, package.state))
            .collect();
        let of = |name: &str, state| (name.to_owned(), state);
        assert_eq!(
            found,
            [
                of("a", State::Installed),
                of("b", State::Installed),
                of("c", State::Unpacked)
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

    fn named<'p>(packages: &'p [Package], name: &str) -> &'p Package {
        packages.iter().find(|p| p.name == name).unwrap()
    }

    #[test]
    fn paragraphs() {
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
        let containerd = named(&packages, "containerd");
        assert!(containerd.is_installed() && !containerd.is_held() && !containerd.needs_repair());
        assert_eq!(containerd.version, "1.6.20~ds1-1+deb12u1");
        assert!(containerd.maintainer.starts_with("Debian Go"));
        assert!(named(&packages, "libnvidia-ml1").is_held());
        let dkms = named(&packages, "nvidia-kernel-dkms");
        assert!(!dkms.is_installed() && dkms.is_unpacked() && dkms.needs_repair());
        let gone = named(&packages, "nvidia-alternative");
        assert!(!gone.is_installed() && !gone.is_unpacked() && !gone.needs_repair());
        assert!(named(&packages, "half").needs_repair());
        let sized = "Package: a\nStatus: install ok installed\nInstalled-Size: 1234\n";
        assert_eq!(parse(sized)[0].installed_bytes, 1234 * 1024);
        assert_eq!(containerd.installed_bytes, 0);
    }

    #[test]
    fn native_architecture_wins() {
        let packages = parse(STATUS);
        let installed = installed(&packages, Some("i386"));
        assert_eq!(installed["libnvidia-ml1"].architecture, "i386");
        assert_eq!(installed.len(), 2);
        assert_eq!(
            super::installed(&packages, None)["libnvidia-ml1"].architecture,
            "amd64"
        );
    }

    #[test]
    fn updates_left_by_a_killed_dpkg() {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert!(!interrupted(&names(&[])));
        assert!(!interrupted(&names(&["tmp.i"])));
        assert!(interrupted(&names(&["0001", "tmp.i"])));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in ".*", cut in 0..STATUS.len()) {
            let _ = parse(&text);
            let _ = parse(&STATUS[..cut]);
        }
    }
}
