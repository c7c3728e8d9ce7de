//! `apt-cache show`: the lowest dependency versions that a package accepts.

use crate::{host::Query, tools::packages::LowerBounds};

/// Queries all fields of the candidates of packages.
#[must_use]
pub fn show(packages: &[&str]) -> Query {
    Query::new(
        "apt-cache",
        (["show", "--no-all-versions", "--"].iter())
            .chain(packages)
            .copied(),
    )
}

/// Parses the output of [`show`]: `NAME (>= VERSION)` and `NAME (= VERSION)` in `Depends`. Alternatives are omitted, because
/// any of them may be installed.
#[must_use]
pub fn parse(text: &str) -> Vec<LowerBounds> {
    let mut found: Vec<LowerBounds> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("Package: ") {
            found.push(LowerBounds {
                name: name.trim().to_owned(),
                bounds: Vec::new(),
            });
        } else if let (Some(depends), Some(package)) =
            (line.strip_prefix("Depends: "), found.last_mut())
        {
            package.bounds.extend(depends.split(',').filter_map(bound));
        }
    }
    found
}

fn bound(dependency: &str) -> Option<(String, String)> {
    if dependency.contains('|') {
        return None;
    }
    let (name, rest) = dependency.trim().split_once(" (")?;
    let (relation, version) = rest.strip_suffix(')')?.split_once(' ')?;
    let name = name.split_once(':').map_or(name, |(bare, _)| bare);
    matches!(relation, ">=" | "=").then(|| (name.to_owned(), version.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_module_package_are_parsed() {
        let found = parse(
            "Package: linux-modules-nvidia-580-server-open-7.0.0-29-generic\nVersion: 7.0.0-29.29+1\n\
             Depends: linux-image-7.0.0-29-generic | linux-image-unsigned-7.0.0-29-generic, \
             linux-signatures-nvidia-7.0.0-29-generic (= 7.0.0-29.29+1), \
             nvidia-kernel-common-580-server (<= 580.173.02-1), nvidia-kernel-common-580-server:any \
             (>= 580.173.02)\nSection: restricted/kernel\n\nPackage: bash\nPre-Depends: libc6 (>= 2)\n",
        );
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "linux-modules-nvidia-580-server-open-7.0.0-29-generic",
                "bash"
            ]
        );
        let pair = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        assert_eq!(
            found[0].bounds,
            [
                pair("linux-signatures-nvidia-7.0.0-29-generic", "7.0.0-29.29+1"),
                pair("nvidia-kernel-common-580-server", "580.173.02"),
            ]
        );
        assert_eq!(found[1].bounds, []);
    }

    proptest::proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "(Package: |Depends: |a|\\(|\\)|>=|,|\\||\n| ){0,60}") {
            let _ = parse(&text);
        }
    }
}
