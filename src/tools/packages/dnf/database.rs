//! Reads the `rpm` database with a query, because its file format is private.

use std::{cmp::Ordering, collections::BTreeSet};

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use rpm_version::rpm_evr_compare;

use super::{Dnf, interruption, versionlock};
use crate::{
    host::{Cmd, FilesError, Query, ReadFiles, Reader},
    model::pattern,
    tools::packages::{Database, DatabaseError, Package, PackageCondition},
};

/// The possible paths of the rpm database, which depend on its version.
const DATABASES: [&str; 2] = ["/usr/lib/sysimage/rpm", "/var/lib/rpm"];

/// The package name that rpm uses for keys.
const KEYS: &str = "gpg-pubkey";

/// Architectures of foreign packages, which are 32-bit.
const FOREIGN: [&str; 4] = ["i386", "i486", "i586", "i686"];

/// One line per package. None of the tags can contain tabs. `rpm` prints `(none)` if a package does not have a tag.
const FORMAT: &str =
    "%{NAME}\\t%{ARCH}\\t%{EPOCH}\\t%{VERSION}\\t%{RELEASE}\\t%{VENDOR}\\t%{PACKAGER}\\n";

/// Queries all installed packages.
pub fn all() -> Query {
    Query::new("rpm", ["-qa", "--qf", FORMAT])
}

/// Queries names and architectures of the packages that the user has installed explicitly. All other packages are dependencies.
pub fn asked_for() -> Query {
    Query::new(
        "dnf",
        [
            "-q",
            "--cacheonly",
            "--disablerepo=*",
            "repoquery",
            "--userinstalled",
            "--qf",
            "%{name}\t%{arch}\n",
        ],
    )
}

/// Parses the output of [`asked_for`]: names and architectures.
pub fn parse_asked_for(text: &str) -> BTreeSet<(String, String)> {
    (text.lines())
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, architecture)| (name.to_owned(), architecture.to_owned()))
        .collect()
}

/// Queries all paths that are owned by installed packages.
pub fn owned() -> Query {
    Query::new("rpm", ["-qa", "--qf", "[%{FILENAMES}\\n]"])
}

/// Queries the paths that are owned by these packages, one per line.
pub fn owned_by(names: &[&str]) -> Query {
    let args = ["-q", "--qf", "[%{FILENAMES}\\n]", "--"];
    Query::new("rpm", args.iter().chain(names).copied())
}

/// Queries the keys that rpm trusts.
pub fn keys() -> Query {
    Query::new(
        "rpm",
        ["-qa", KEYS, "--qf", "%{NAME}-%{VERSION}-%{RELEASE}\\n"],
    )
}

/// Parses the output of [`keys`].
pub fn parse_keys(text: &str) -> BTreeSet<String> {
    let is_key = |line: &&str| line.starts_with(KEYS);
    text.lines().filter(is_key).map(str::to_owned).collect()
}

/// The suffixes of kernel packages of which only one version is installed. The other packages of `kernel.spec` in RHEL 9
/// provide `installonlypkg(kernel)` or `installonlypkg(kernel-module)`: another version is installed in parallel with the
/// existing one, and treating the older one as incomplete would remove a kernel. Packages from other sources with the same name
/// prefix were not examined, so their older versions are never treated as incomplete.
const SINGLE: [&str; 11] = [
    "abi-stablelists",
    "abi-whitelists",
    "devel-matched",
    "doc",
    "headers",
    "perf",
    "rpm-macros",
    "srpm-macros",
    "tools",
    "tools-libs",
    "tools-libs-devel",
];

fn without_epoch(version: &str) -> &str {
    version.split_once(':').map_or(version, |(_, rest)| rest)
}

/// Returns the native architecture, which is the architecture of rpm itself.
fn native(packages: &[Package]) -> Option<&str> {
    (packages.iter().find(|package| package.name == "rpm")).map(|rpm| rpm.architecture.as_str())
}

/// Returns the [`Package::id`] of a package that may not be installed yet.
pub fn id_of(installed: &[Package], name: &str, architecture: &str, version: &str) -> String {
    if Dnf.has_several_versions(name) {
        return format!("{name}-{}", without_epoch(version));
    }
    match native(installed) {
        Some(native) if ![native, "noarch"].contains(&architecture) => {
            format!("{name}.{architecture}")
        }
        _ => name.to_owned(),
    }
}

/// Parses the output of [`all`]. Keys are omitted, because they are not packages.
pub fn parse(text: &str) -> Vec<Package> {
    let mut packages: Vec<Package> = text.lines().filter_map(line).collect();
    let ids: Vec<String> = (packages.iter())
        .map(|one| id_of(&packages, &one.name, &one.architecture, &one.version))
        .collect();
    for (package, id) in packages.iter_mut().zip(ids) {
        package.id = id;
    }
    // An interrupted upgrade leaves both the old and the new version installed.
    let newer = |package: &Package| {
        packages.iter().any(|other| {
            other.id == package.id && rpm_evr_compare(&other.version, &package.version).is_gt()
        })
    };
    let old: Vec<bool> = packages.iter().map(newer).collect();
    for (package, _) in packages.iter_mut().zip(old).filter(|(_, is_old)| *is_old) {
        package.id = format!("{}-{}", package.name, without_epoch(&package.version));
        package.condition = PackageCondition::HalfInstalled;
    }
    packages
}

fn line(text: &str) -> Option<Package> {
    let fields: Vec<&str> = text.split('\t').collect();
    let [
        name,
        architecture,
        epoch,
        version,
        release,
        vendor,
        packager,
    ] = fields[..]
    else {
        return None;
    };
    if name.is_empty() || name == KEYS {
        return None;
    }
    let some = |tag: &str| (tag != "(none)" && !tag.is_empty()).then(|| tag.to_owned());
    let version = match some(release) {
        Some(release) => format!("{version}-{release}"),
        None => version.to_owned(),
    };
    let version = match some(epoch) {
        Some(epoch) if epoch != "0" => format!("{epoch}:{version}"),
        _ => version,
    };
    Some(Package {
        name: name.to_owned(),
        id: name.to_owned(),
        architecture: architecture.to_owned(),
        version,
        condition: PackageCondition::Installed,
        held: false,
        packager: some(packager),
        vendor: some(vendor),
        installed_bytes: 0,
    })
}

#[async_trait]
impl Database for Dnf {
    fn is_used_on(&self, files: &dyn ReadFiles) -> Result<bool, FilesError> {
        for directory in DATABASES {
            if files.exists(Utf8Path::new(directory))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn database(&self, host: Reader<'_>) -> Result<Option<Vec<Package>>, DatabaseError> {
        if !self.is_used_on(host.files())? {
            return Ok(None);
        }
        let query = all();
        let output = host.query(&query).await?.success(query.cmd())?;
        let mut packages = parse(&output.stdout);
        versionlock::mark_held(host.files(), &mut packages)?;
        Ok(Some(packages))
    }

    fn database_program(&self) -> Option<&'static str> {
        Some("rpm")
    }

    fn database_path(&self) -> &'static str {
        DATABASES[1]
    }

    fn interrupted(&self, files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError> {
        interruption::interrupted(files)
    }

    fn with_failed_scripts(
        &self,
        files: &dyn ReadFiles,
        database: &[Package],
    ) -> Result<Vec<Package>, FilesError> {
        let record = files.read_text(&interruption::failed_scripts_record())?;
        Ok(interruption::with_failed_scripts(
            &record.unwrap_or_default(),
            database,
        ))
    }

    fn has_several_versions(&self, name: &str) -> bool {
        let Some(rest) = name.strip_prefix("kernel") else {
            return false;
        };
        // Amazon Linux: `kernel6.12`.
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let Some(part) = rest.strip_prefix('-') else {
            return rest.is_empty();
        };
        let is_last = |end: &str| {
            part == end || (part.strip_suffix(end)).is_some_and(|before| before.ends_with('-'))
        };
        !SINGLE.iter().any(|end| is_last(end))
    }

    fn failed_scripts_record(&self) -> Option<Utf8PathBuf> {
        Some(interruption::failed_scripts_record())
    }

    fn of_installed(&self, record: &str, installed: &[Package]) -> String {
        interruption::of_installed(record, installed)
    }

    fn bare_name<'n>(&self, id: &'n str) -> &'n str {
        if let Some((name, architecture)) = id.rsplit_once('.')
            && FOREIGN.contains(&architecture)
        {
            return name;
        }
        let parts: Vec<&str> = id.rsplitn(3, '-').collect();
        match parts[..] {
            // In the name `kernel-64k-headers`, `64k` is not a version.
            [_, version, name]
                if self.has_several_versions(name)
                    && version.starts_with(|c: char| c.is_ascii_digit())
                    && version.contains('.') =>
            {
                name
            }
            _ => id,
        }
    }

    /// Compares versions like rpm: the epoch comes first, and a missing epoch equals 0.
    fn compare(&self, a: &str, b: &str) -> Ordering {
        rpm_evr_compare(a, b)
    }

    /// A pattern without an epoch matches any epoch, because vendors write `580.95.05` for `3:580.95.05-1`.
    fn matches(&self, wanted: &str, version: &str) -> bool {
        let bare = match version.split_once(':') {
            Some((_, bare)) if !wanted.contains(':') => bare,
            _ => version,
        };
        pattern::matches(wanted, bare)
    }

    async fn automatic(
        &self,
        host: Reader<'_>,
        packages: &[Package],
    ) -> Result<BTreeSet<String>, DatabaseError> {
        let query = asked_for();
        let output = host.query(&query).await?.success(query.cmd())?;
        let asked_for = parse_asked_for(&output.stdout);
        let key = |package: &Package| (package.name.clone(), package.architecture.clone());
        Ok((packages.iter())
            .filter(|package| !asked_for.contains(&key(package)))
            .map(|package| package.id.clone())
            .collect())
    }

    async fn owned_below(
        &self,
        host: Reader<'_>,
        directory: &Utf8Path,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError> {
        let query = owned();
        let output = host.query(&query).await?.success(query.cmd())?;
        Ok((output.stdout.lines().map(Utf8Path::new))
            .filter(|path| path.starts_with(directory))
            .map(Utf8Path::to_owned)
            .collect())
    }

    async fn owned_by(
        &self,
        host: Reader<'_>,
        packages: &BTreeSet<String>,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError> {
        if packages.is_empty() {
            return Ok(BTreeSet::new());
        }
        let names: Vec<&str> = packages.iter().map(String::as_str).collect();
        // The exit status only shows whether all packages are installed.
        let output = host.query(&owned_by(&names)).await?;
        let paths = output.stdout.lines().filter(|line| line.starts_with('/'));
        Ok(paths.map(Utf8PathBuf::from).collect())
    }

    /// The output has one line per file: flags, size, modification time, path.
    fn configuration_of(&self, names: &[&str]) -> Option<Query> {
        let format = "[%{FILEFLAGS:fflags}|%{FILESIZES}|%{FILEMTIMES}|%{FILENAMES}\\n]";
        let args = ["-q", "--qf", format, "--"];
        Some(Query::new("rpm", args.iter().chain(names).copied()))
    }

    /// rpm does not replace a changed configuration file, even if a power loss has emptied it.
    fn parse_configuration(&self, text: &str) -> Vec<Utf8PathBuf> {
        text.lines()
            .filter_map(|line| {
                let (flags, rest) = line.split_once('|')?;
                let (size, rest) = rest.split_once('|')?;
                let (_, path) = rest.split_once('|')?;
                (flags.contains('c') && size != "0").then(|| path.into())
            })
            .collect()
    }

    /// Source: rpm, `lib/fsm.c`, `SUFFIX_RPMSAVE`.
    fn removed_configuration(&self) -> Option<&'static str> {
        Some(".rpmsave")
    }

    async fn keys(&self, host: Reader<'_>) -> Result<Option<BTreeSet<String>>, DatabaseError> {
        let query = keys();
        let output = host.query(&query).await?.success(query.cmd())?;
        Ok(Some(parse_keys(&output.stdout)))
    }

    fn forget_keys(&self, keys: &[String]) -> Option<Cmd> {
        let args = ["-e", "--allmatches", "--"].map(str::to_owned);
        let args = args.into_iter().chain(keys.iter().cloned());
        Some(Cmd::new("rpm", args))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    #[test]
    fn package_lines_are_parsed() {
        let packages = parse(
            "nvidia-driver\tx86_64\t3\t580.178.04\t1.el9\t(none)\tcudatools <cudatools@nvidia.com>\n\
             gpg-pubkey\t(none)\t(none)\td42d0685\t62589a51\t(none)\tcudatools\n\
             containerd.io\tx86_64\t(none)\t1.7.28\t2.el9\tDocker\tDocker <support@docker.com>\n\
             warning: something\n",
        );
        assert_eq!(packages.len(), 2);
        assert_eq!(packages[0].version, "3:580.178.04-1.el9");
        assert_eq!(packages[0].vendor, None);
        assert_eq!(packages[1].version, "1.7.28-2.el9");
        assert_eq!(packages[1].vendor.as_deref(), Some("Docker"));
    }

    #[test]
    fn foreign_and_native_packages_are_distinguished() {
        let asked_for = parse_asked_for("glibc\ti686\n\nbash\tx86_64\n");
        let has = |name: &str, architecture: &str| {
            asked_for.contains(&(name.to_owned(), architecture.to_owned()))
        };
        assert!(has("glibc", "i686") && has("bash", "x86_64") && !has("glibc", "x86_64"));
        let packages = parse(
            "rpm\tx86_64\t(none)\t4.16\t1\t(none)\t(none)\n\
             glibc\ti686\t(none)\t2.34\t1\t(none)\t(none)\n",
        );
        assert_eq!(packages[1].id, "glibc.i686");
        assert!(packages[1].is_foreign() && !packages[0].is_foreign());
    }

    #[test]
    fn kernels_can_have_several_versions() {
        for (name, expected) in [
            ("kernel", true),
            ("kernel-core", true),
            ("kernel-64k-modules-core", true),
            ("kernel-devel", true),
            ("kernel6.12-devel", true),
            ("kernel6.12", true),
            ("kernel-uek", true),
            ("kernel-uek-modules-extra-netfilter", true),
            ("kernel-ml", true),
            ("kernel-rt-kvm", true),
            ("kernel-64k-debug", true),
            ("kernel-devel-matched", false),
            ("kernel-64k-devel-matched", false),
            ("kernel-headers", false),
            ("kernel-cross-headers", false),
            ("kernel-tools", false),
            ("kernel-tools-libs", false),
            ("kmod-nvidia-open-dkms", false),
            ("kernelshark", false),
        ] {
            assert_eq!(Dnf.has_several_versions(name), expected, "{name}");
        }
        let packages = parse(
            "rpm\tx86_64\t(none)\t4.16\t1\t(none)\t(none)\n\
             kernel-devel\tx86_64\t(none)\t5.14.0\t570.12.1.el9_6\t(none)\t(none)\n\
             kernel-devel\tx86_64\t(none)\t5.14.0\t570.17.1.el9_6\t(none)\t(none)\n",
        );
        assert_eq!(packages[1].id, "kernel-devel-5.14.0-570.12.1.el9_6");
        assert_eq!(packages[2].id, "kernel-devel-5.14.0-570.17.1.el9_6");
        assert!((packages.iter()).all(|one| one.is_installed() && !one.is_foreign()));
        assert_eq!(Dnf.bare_name(&packages[2].id), "kernel-devel");
        for name in [
            "python3.11",
            "kernel-devel-matched",
            "kernel-64k-headers",
            "kernel-core",
        ] {
            assert_eq!(Dnf.bare_name(name), name);
        }
        assert_eq!(Dnf.bare_name("glibc.i686"), "glibc");
    }

    #[test]
    fn old_version_next_to_new_one_is_half_installed() {
        let packages = parse(
            "slow\tx86_64\t(none)\t1\t1\t(none)\t(none)\n\
             slow\tx86_64\t(none)\t10\t1\t(none)\t(none)\n\
             slow\ti686\t(none)\t2\t1\t(none)\t(none)\n\
             rpm\tx86_64\t(none)\t4.16\t1\t(none)\t(none)\n",
        );
        assert_eq!(packages[0].id, "slow-1-1");
        assert!(packages[0].needs_repair() && packages[0].is_there());
        assert_eq!(packages[1].id, "slow");
        assert!(packages[1].is_installed() && packages[2].is_installed());
    }

    #[test]
    fn keys_are_not_packages() {
        let found = parse_keys("gpg-pubkey-48cf39dd-6742\nerror: something\n");
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            ["gpg-pubkey-48cf39dd-6742"]
        );
        let forget = Dnf.forget_keys(&["gpg-pubkey-48cf39dd-6742".to_owned()]);
        assert_eq!(
            forget.unwrap().line(),
            "rpm -e --allmatches -- gpg-pubkey-48cf39dd-6742"
        );
    }

    #[test]
    fn versions_sort_like_in_rpm() {
        for (older, newer) in [
            ("580.95.05-1.el9", "3:570.1-1.el9"),
            ("3:580.9.1-1", "3:580.10.1-1"),
            ("1.0~rc1-1", "1.0-1"),
            ("1.0-1", "1.0^git1-1"),
        ] {
            assert_eq!(
                Dnf.compare(older, newer),
                Ordering::Less,
                "{older} < {newer}"
            );
        }
        assert_eq!(Dnf.compare("0:1.0-1", "1.0-1"), Ordering::Equal);
    }

    #[test]
    fn pattern_without_epoch_matches_any_epoch() {
        for (wanted, version, expected) in [
            ("580.*", "3:580.95.05-1.el9", true),
            ("580.*", "580.95.05-1.el9", true),
            ("3:580.*", "3:580.95.05-1.el9", true),
            ("2:580.*", "3:580.95.05-1.el9", false),
            ("3:580.*", "580.95.05-1.el9", false),
            ("570.*", "3:580.95.05-1.el9", false),
        ] {
            assert_eq!(Dnf.matches(wanted, version), expected, "{wanted} {version}");
        }
    }

    reads_any_text!("(.|\t|\n)*", |text| parse(&text));
}
