//! Reads the `rpm` database with a query, because its file format is private.

use std::collections::BTreeSet;

use camino::Utf8PathBuf;
use rpm_version::rpm_evr_compare;

use crate::{
    host::{Cmd, Query},
    tools::packages::{Package, PackageCondition},
};

/// The package name that rpm uses for keys.
const KEYS: &str = "gpg-pubkey";

/// Architectures of foreign packages, which are 32-bit.
const FOREIGN: [&str; 4] = ["i386", "i486", "i586", "i686"];

/// One line per package. None of the tags can contain tabs. `rpm` prints `(none)` if a package does not have a tag.
const FORMAT: &str =
    "%{NAME}\\t%{ARCH}\\t%{EPOCH}\\t%{VERSION}\\t%{RELEASE}\\t%{VENDOR}\\t%{PACKAGER}\\n";

/// Queries all installed packages.
#[must_use]
pub fn all() -> Query {
    Query::new("rpm", ["-qa", "--qf", FORMAT])
}

/// Queries names and architectures of the packages that the user has installed explicitly. All other packages are dependencies.
#[must_use]
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
#[must_use]
pub fn parse_asked_for(text: &str) -> BTreeSet<(String, String)> {
    (text.lines())
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, architecture)| (name.to_owned(), architecture.to_owned()))
        .collect()
}

/// Queries all paths that are owned by installed packages.
#[must_use]
pub fn owned() -> Query {
    Query::new("rpm", ["-qa", "--qf", "[%{FILENAMES}\\n]"])
}

/// Queries the paths that are owned by these packages, one per line.
#[must_use]
pub fn owned_by(names: &[&str]) -> Query {
    let args = ["-q", "--qf", "[%{FILENAMES}\\n]", "--"];
    Query::new("rpm", args.iter().chain(names).copied())
}

/// Queries the files of packages, one per line: flags, size, modification time, path.
#[must_use]
pub fn configuration_of(names: &[&str]) -> Query {
    let format = "[%{FILEFLAGS:fflags}|%{FILESIZES}|%{FILEMTIMES}|%{FILENAMES}\\n]";
    let args = ["-q", "--qf", format, "--"];
    Query::new("rpm", args.iter().chain(names).copied())
}

/// Returns the configuration files that are not empty in their package, from the output of [`configuration_of`]. rpm does not
/// replace a changed configuration file, even if a power loss has emptied it.
#[must_use]
pub fn parse_configuration(text: &str) -> Vec<Utf8PathBuf> {
    text.lines()
        .filter_map(|line| {
            let (flags, rest) = line.split_once('|')?;
            let (size, rest) = rest.split_once('|')?;
            let (_, path) = rest.split_once('|')?;
            (flags.contains('c') && size != "0").then(|| path.into())
        })
        .collect()
}

/// Queries the keys that rpm trusts.
#[must_use]
pub fn keys() -> Query {
    Query::new(
        "rpm",
        ["-qa", KEYS, "--qf", "%{NAME}-%{VERSION}-%{RELEASE}\\n"],
    )
}

/// Removes keys from rpm's database.
#[must_use]
pub fn forget(keys: &[String]) -> Cmd {
    let args = ["-e", "--allmatches", "--"].map(str::to_owned);
    Cmd::new("rpm", args.into_iter().chain(keys.iter().cloned()))
}

/// Parses the output of [`keys`].
#[must_use]
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

/// Whether several versions of a package can be installed at the same time.
#[must_use]
pub fn has_several_versions(name: &str) -> bool {
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

fn without_epoch(version: &str) -> &str {
    version.split_once(':').map_or(version, |(_, rest)| rest)
}

/// Returns the native architecture, which is the architecture of rpm itself.
fn native(packages: &[Package]) -> Option<&str> {
    (packages.iter().find(|package| package.name == "rpm")).map(|rpm| rpm.architecture.as_str())
}

/// Returns the [`Package::id`] of a package that may not be installed yet.
#[must_use]
pub fn id_of(installed: &[Package], name: &str, architecture: &str, version: &str) -> String {
    if has_several_versions(name) {
        return format!("{name}-{}", without_epoch(version));
    }
    match native(installed) {
        Some(native) if ![native, "noarch"].contains(&architecture) => {
            format!("{name}.{architecture}")
        }
        _ => name.to_owned(),
    }
}

/// Returns the name in a [`Package::id`].
#[must_use]
pub fn name_in(id: &str) -> &str {
    if let Some((name, architecture)) = id.rsplit_once('.')
        && FOREIGN.contains(&architecture)
    {
        return name;
    }
    let parts: Vec<&str> = id.rsplitn(3, '-').collect();
    match parts[..] {
        // In the name `kernel-64k-headers`, `64k` is not a version.
        [_, version, name]
            if has_several_versions(name)
                && version.starts_with(|c: char| c.is_ascii_digit())
                && version.contains('.') =>
        {
            name
        }
        _ => id,
    }
}

/// Parses the output of [`all`]. Keys are omitted, because they are not packages.
#[must_use]
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
            assert_eq!(has_several_versions(name), expected, "{name}");
        }
        let packages = parse(
            "rpm\tx86_64\t(none)\t4.16\t1\t(none)\t(none)\n\
             kernel-devel\tx86_64\t(none)\t5.14.0\t570.12.1.el9_6\t(none)\t(none)\n\
             kernel-devel\tx86_64\t(none)\t5.14.0\t570.17.1.el9_6\t(none)\t(none)\n",
        );
        assert_eq!(packages[1].id, "kernel-devel-5.14.0-570.12.1.el9_6");
        assert_eq!(packages[2].id, "kernel-devel-5.14.0-570.17.1.el9_6");
        assert!((packages.iter()).all(|one| one.is_installed() && !one.is_foreign()));
        assert_eq!(name_in(&packages[2].id), "kernel-devel");
        for name in [
            "python3.11",
            "kernel-devel-matched",
            "kernel-64k-headers",
            "kernel-core",
        ] {
            assert_eq!(name_in(name), name);
        }
        assert_eq!(name_in("glibc.i686"), "glibc");
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
        let line = forget(&["gpg-pubkey-48cf39dd-6742".to_owned()]).line();
        assert_eq!(line, "rpm -e --allmatches -- gpg-pubkey-48cf39dd-6742");
    }

    reads_any_text!("(.|\t|\n)*", |text| parse(&text));
}
