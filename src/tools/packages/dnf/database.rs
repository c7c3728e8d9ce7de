//! The database of `rpm`, read by a query, because its file format is private.

use std::collections::BTreeSet;

use crate::{
    host::Query,
    tools::packages::{Condition, Package},
};

/// One line per package; tabs cannot be in any of the tags. `rpm` prints `(none)` for a tag that a
/// package does not have.
const FORMAT: &str =
    "%{NAME}\\t%{ARCH}\\t%{EPOCH}\\t%{VERSION}\\t%{RELEASE}\\t%{VENDOR}\\t%{PACKAGER}\\n";

/// Queries all installed packages.
#[must_use]
pub fn all() -> Query {
    Query::new("rpm", ["-qa", "--qf", FORMAT])
}

/// Queries the packages that the user has requested, as [`Package::id`]; all others are installed
/// because these need them.
#[must_use]
pub fn asked_for() -> Query {
    Query::new(
        "dnf",
        [
            "-q",
            "-C",
            "repoquery",
            "--userinstalled",
            "--qf",
            "%{name}\t%{arch}\n",
        ],
    )
}

/// Parses the answer to [`asked_for`]: names and architectures.
#[must_use]
pub fn parse_asked_for(text: &str) -> BTreeSet<(String, String)> {
    (text.lines())
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, architecture)| (name.to_owned(), architecture.to_owned()))
        .collect()
}

/// Queries all paths that installed packages own.
#[must_use]
pub fn owned() -> Query {
    Query::new("rpm", ["-qa", "--qf", "[%{FILENAMES}\\n]"])
}

/// Parses the answer to [`all`]; keys are omitted, because they are not packages.
#[must_use]
pub fn parse(text: &str) -> Vec<Package> {
    let mut packages: Vec<Package> = text.lines().filter_map(line).collect();
    // The machine's own architecture is that of rpm itself.
    let native =
        (packages.iter().find(|package| package.name == "rpm")).map(|rpm| rpm.architecture.clone());
    if let Some(native) = native {
        for package in &mut packages {
            if ![native.as_str(), "noarch"].contains(&package.architecture.as_str()) {
                package.id = format!("{}.{}", package.name, package.architecture);
            }
        }
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
    if name.is_empty() || name == "gpg-pubkey" {
        return None;
    }
    let some = |tag: &str| (tag != "(none)" && !tag.is_empty()).then(|| tag.to_owned());
    let version = match some(epoch) {
        Some(epoch) if epoch != "0" => format!("{epoch}:{version}-{release}"),
        _ => format!("{version}-{release}"),
    };
    Some(Package {
        name: name.to_owned(),
        id: name.to_owned(),
        architecture: architecture.to_owned(),
        version,
        condition: Condition::Installed,
        held: false,
        packager: some(packager),
        vendor: some(vendor),
        installed_bytes: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
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
    fn a_foreign_package_that_somebody_asked_for_is_told_from_the_native_one() {
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
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "(.|\t|\n)*") {
            let _ = parse(&text);
        }
    }
}
