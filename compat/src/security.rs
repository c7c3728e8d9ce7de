//! Missing security fixes, from NVIDIA's bulletins, and branches without security fixes.

use std::fmt::Display;

use crate::matrix::{DriverFloor, Matrix, PackageFloor, Support};
use crate::version::DriverVersion;

/// The security fixes that a version lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lacking {
    /// The first version with all fixes. [`end_of_life`] returns a text instead of a version.
    pub first_fixed: String,
    /// A message with the compared versions and the newest bulletin.
    pub why: String,
    /// The message without the bulletin.
    pub brief: String,
    /// URL of the newest bulletin.
    pub link: String,
    /// Keys of the sources.
    pub(super) citations: Vec<String>,
}

/// Returns the security fixes that a driver lacks. `None` if no bulletin contains a newer version of its branch.
pub fn of_driver(matrix: &Matrix, version: &DriverVersion) -> Option<Lacking> {
    let branch = version.branch();
    let newer = |row: &DriverFloor| {
        let mut fixed = row.first_fixed.iter();
        fixed
            .find(|fixed| fixed.branch() == branch && version < *fixed)
            .cloned()
    };
    let rows: Vec<(&DriverFloor, DriverVersion)> = (matrix.driver_floors.iter())
        .filter_map(|row| Some((row, newer(row)?)))
        .collect();
    let first_fixed = rows.iter().map(|(_, fixed)| fixed).max()?.to_string();
    let bulletins = rows.iter().map(|(row, _)| Bulletin {
        number: &row.bulletin,
        date: row.date,
        cves: &row.cves,
        citations: &row.citations,
    });
    let found = lacking(version, first_fixed, bulletins.collect())?;
    Some(Lacking {
        why: format!("driver {}", found.why),
        ..found
    })
}

/// Returns the message if the branch of a driver is end-of-life: NVIDIA publishes no security fixes for it.
pub fn end_of_life(matrix: &Matrix, version: &DriverVersion) -> Option<Lacking> {
    let row = matrix.branch(version.branch())?;
    if row.support != Support::Ended {
        return None;
    }
    let newest = (matrix.driver_floors.iter()).max_by_key(|row| row.date)?;
    let since = (row.end_of_life.as_ref()).map_or_else(String::new, |end| format!(" since {end}"));
    let (branch, number, date) = (row.branch, &newest.bulletin, newest.date);
    let without = (newest.first_fixed.iter()).all(|fixed| fixed.branch() != branch);
    let bulletin = match without {
        true => format!(" (the newest bulletin, {number} of {date}, does not list it)"),
        false => String::new(),
    };
    let brief = format!("branch {branch} is end-of-life{since}");
    Some(Lacking {
        why: format!("{brief} and gets no security fixes{bulletin}"),
        brief,
        link: link(newest),
        citations: row.citations.clone(),
        first_fixed: "a version of a supported branch".to_owned(),
    })
}

/// Returns the URL of a driver bulletin.
fn link(row: &DriverFloor) -> String {
    bulletin_url(&row.bulletin, row.date)
}

fn bulletin_url(number: &str, date: jiff::civil::Date) -> String {
    format!(
        "https://github.com/NVIDIA/product-security/blob/main/{}/{number}/{number}.md",
        date.year()
    )
}

/// Returns the security fixes that an installed package lacks.
pub fn of_package(matrix: &Matrix, name: &str, version: &str) -> Option<Lacking> {
    let upstream = upstream(version);
    let rows: Vec<&PackageFloor> = (matrix.package_floors.iter())
        .filter(|row| row.packages.iter().any(|one| one == name))
        .filter(|row| order(upstream) < order(&row.first_fixed))
        .collect();
    let newest = rows.iter().max_by_key(|row| order(&row.first_fixed))?;
    let bulletins = rows.iter().map(|row| Bulletin {
        number: &row.bulletin,
        date: row.date,
        cves: &row.cves,
        citations: &row.citations,
    });
    lacking(
        format!("{name} {version}"),
        newest.first_fixed.clone(),
        bulletins.collect(),
    )
}

/// Returns the upstream version of a package version: `1:4.5.2-1` gives `4.5.2`, `1.19.1+ds-1` gives `1.19.1`.
fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    version.split(['-', '+']).next().unwrap_or(version)
}

/// The sort key of a version. A release candidate (`1.19.1~rc.1`) is older than its release.
fn order(version: &str) -> (Vec<u32>, bool) {
    let (numbers, candidate) = version.split_once('~').unwrap_or((version, ""));
    let numbers = numbers.split('.').map_while(|part| part.parse().ok());
    (numbers.collect(), candidate.is_empty())
}

struct Bulletin<'m> {
    number: &'m str,
    date: jiff::civil::Date,
    cves: &'m [String],
    citations: &'m [String],
}

/// Reports the newest bulletin, whose version contains the fixes of all older ones.
fn lacking(
    what: impl Display,
    first_fixed: String,
    bulletins: Vec<Bulletin<'_>>,
) -> Option<Lacking> {
    let newest = bulletins.iter().max_by_key(|one| one.date)?;
    let worst = newest.cves.first();
    let cve = worst.map_or_else(String::new, |cve| format!(", {cve}"));
    let (number, date) = (newest.number, newest.date);
    let brief = format!("{what} lacks security fixes of {first_fixed}");
    Some(Lacking {
        why: format!("{brief} (NVIDIA's bulletin {number} of {date}{cve})"),
        brief,
        link: bulletin_url(number, date),
        citations: (bulletins
            .iter()
            .flat_map(|one| one.citations.iter().cloned()))
        .collect(),
        first_fixed,
    })
}

#[cfg(test)]
mod tests {
    use super::{end_of_life, of_driver, of_package};
    use crate::matrix::{Matrix, Support};

    #[test]
    fn newest_version_of_ended_branch_lacks_fixes() {
        let matrix = Matrix::builtin().expect("it is valid");
        for row in &matrix.branches {
            let found = end_of_life(&matrix, &row.newest_version);
            assert_eq!(
                found.is_some(),
                row.support == Support::Ended,
                "{}",
                row.branch
            );
        }
        let old =
            end_of_life(&matrix, &"535.309.01".parse().expect("a version")).expect("it ended");
        assert_eq!(
            old.why,
            "branch 535 is end-of-life since 2026-06 and gets no security fixes (the newest bulletin, 5861 of \
             2026-09-30, does not list it)"
        );
        // The branch ended after the bulletin.
        let last =
            end_of_life(&matrix, &"610.57.04".parse().expect("a version")).expect("it ended");
        assert!(last.why.ends_with("gets no security fixes"), "{}", last.why);
        assert_eq!(
            end_of_life(&matrix, &"640.1.1".parse().expect("a version")),
            None
        );
    }

    #[test]
    fn old_versions_are_reported_with_their_bulletin() {
        let matrix = Matrix::builtin().expect("it is sound");
        let of = |version: &str| of_driver(&matrix, &version.parse().expect("a version"));
        let old = of("535.261.03").expect("it is below three floors");
        assert_eq!(old.first_fixed, "535.309.01");
        assert_eq!(
            old.why,
            "driver 535.261.03 lacks security fixes of 535.309.01 (NVIDIA's bulletin 5821 of 2026-05-19, \
             CVE-2026-24187)"
        );
        assert!(old.link.ends_with("/2026/5821/5821.md"), "{}", old.link);
        // It has the fixes of the older bulletin, but not of the newer one.
        let between = of("580.159.04").expect("it is below one floor");
        assert_eq!(between.first_fixed, "580.178.04");
        assert!(!between.why.contains("5821"), "{}", between.why);
        for fixed in ["580.178.04", "535.309.01", "620.70.06", "550.163.01"] {
            assert_eq!(of(fixed), None, "{fixed}");
        }
    }

    #[test]
    fn the_newest_versions_have_all_fixes() {
        let matrix = Matrix::builtin().expect("it is sound");
        for row in &matrix.branches {
            let lacking = of_driver(&matrix, &row.newest_version);
            assert_eq!(lacking, None, "{}", row.newest_version);
        }
    }

    #[test]
    fn packages_are_compared_by_upstream_version() {
        let matrix = Matrix::builtin().expect("it is sound");
        for (name, version, first_fixed) in [
            ("nvidia-container-toolkit", "1.19.0-1", Some("1.19.1")),
            ("nvidia-container-toolkit", "1.9.0-1", Some("1.19.1")),
            ("nvidia-container-toolkit-base", "1.17.7", Some("1.19.1")),
            ("nvidia-container-toolkit", "1.19.1~rc.2-1", Some("1.19.1")),
            ("nvidia-container-toolkit", "1.19.1-1", None),
            ("nvidia-container-toolkit", "1.19.1+ds-1", None),
            ("nvidia-container-toolkit", "1.20.0-1.el9", None),
            ("datacenter-gpu-manager-4-core", "1:4.5.2-1", Some("4.5.3")),
            ("datacenter-gpu-manager-4-core", "1:4.5.3-1", None),
            ("docker-ce", "1.0", None),
        ] {
            let lacking = of_package(&matrix, name, version);
            let found = lacking.as_ref().map(|one| one.first_fixed.as_str());
            assert_eq!(found, first_fixed, "{name} {version}");
        }
        // The newer of two bulletins is reported.
        let oldest = of_package(&matrix, "nvidia-container-toolkit", "1.17.7-1").expect("two");
        let newer = "(NVIDIA's bulletin 5850 of 2026-06-30, CVE-2026-24260)";
        assert!(oldest.why.ends_with(newer), "{}", oldest.why);
    }
}
