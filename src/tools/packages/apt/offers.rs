//! `apt-cache policy`: the available versions in the package lists, without a lock.

use crate::{host::Query, model::packages::Pin, tools::packages::AvailablePackage};

/// Queries the candidates of packages.
#[must_use]
pub fn candidates(packages: &[&str]) -> Query {
    Query::new(
        "apt-cache",
        ["policy", "--"].iter().chain(packages).copied(),
    )
}

/// Queries the names of all packages with this prefix, one per line, `apt-cache(8)`.
#[must_use]
pub fn names(prefix: &str) -> Query {
    Query::new("apt-cache", ["pkgnames", "--", prefix])
}

/// Parses the output of [`candidates`]. A name that is not in the lists has no paragraph.
#[must_use]
pub fn parse(text: &str) -> Vec<AvailablePackage> {
    let some = |version: &str| (version != "(none)").then(|| version.to_owned());
    let mut found: Vec<AvailablePackage> = Vec::new();
    let mut is_allowed = false;
    for line in text.lines() {
        if !line.starts_with(' ') {
            if let Some(name) = line.strip_suffix(':') {
                found.push(AvailablePackage {
                    name: name.to_owned(),
                    ..AvailablePackage::default()
                });
            }
            continue;
        }
        let Some(offer) = found.last_mut() else {
            continue;
        };
        let words = line.trim_start();
        if let Some(version) = words.strip_prefix("Candidate: ") {
            offer.candidate = some(version);
        } else if let Some((version, priority)) = version_line(line) {
            if line.starts_with(INSTALLED) {
                offer.only_installed = Some(version.clone());
            }
            is_allowed = priority != Pin::PRIORITY;
            offer.versions.push((version, priority));
        } else if let Some((rank, source)) = source_line(words)
            && let Some((version, _)) = offer.versions.last()
        {
            if source != DATABASE && offer.only_installed.as_ref() == Some(version) {
                offer.only_installed = None;
            }
            let is_last = offer.forbidden.last() == Some(version);
            if rank >= 0 && is_last {
                offer.forbidden.pop();
            } else if rank < 0 && !is_allowed && !is_last {
                offer.forbidden.push(version.clone());
            }
            is_allowed |= rank >= 0;
        }
    }
    found
}

/// The marker of the installed version.
const INSTALLED: &str = " *** ";

/// The "source" of installed packages.
const DATABASE: &str = "/var/lib/dpkg/status";

/// Parses `PRIORITY SOURCE …`: a source of a version, and the priority of the source. Preferences for the package do not
/// change this priority.
fn source_line(words: &str) -> Option<(i32, &str)> {
    let (priority, source) = words.split_once(' ')?;
    Some((priority.parse().ok()?, source.split_whitespace().next()?))
}

/// The remedy if our preference allows a version from a repository that the administrator has blocked.
pub const LIFTED: &str = "nothing was changed; the preference for the driver branch lists packages and takes precedence over a \
     record for `*`: remove the blocked repository, or list these packages in the record that blocks it: `Package: NAMES`, `Pin: \
     origin \"HOST\"`, `Pin-Priority: -1`";

/// Whether a preferences file contains a negative priority, which blocks versions, apt_preferences(5).
#[must_use]
pub fn forbids(preferences: &str) -> bool {
    preferences.lines().any(|line| {
        (line.split_once(':')).is_some_and(|(key, value)| {
            key.eq_ignore_ascii_case("Pin-Priority") && value.trim_start().starts_with('-')
        })
    })
}

/// Parses ` *** VERSION PRIORITY`, or the same with five spaces instead of the marker. The source lines of the version follow.
/// They are indented further.
fn version_line(line: &str) -> Option<(String, i32)> {
    let rest = line
        .strip_prefix(INSTALLED)
        .or_else(|| line.strip_prefix("     "))?;
    if rest.starts_with(' ') {
        return None;
    }
    let (version, priority) = rest.split_once(' ')?;
    Some((version.to_owned(), priority.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
bash:
  Installed: 5.2.15-2+b8
  Candidate: 5.2.15-2+b13
  Version table:
     5.2.15-2+b13 500
        500 http://debian.example.org/debian bookworm/main amd64 Packages
 *** 5.2.15-2+b8 100
        100 /var/lib/dpkg/status
nvidia-kernel-dkms:
  Installed: (none)
  Candidate: 535.261.03-1~deb12u1
  Version table:
     580.178.04-1 -10
        -10 https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64  Packages
     535.261.03-1~deb12u1 1001
       1001 http://debian.example.org/debian bookworm/non-free amd64 Packages
linux-headers-6.1.0-1-amd64:
  Installed: (none)
  Candidate: (none)
  Version table:
";

    #[test]
    fn name_without_versions_has_no_candidate() {
        let names: Vec<String> = parse(TEXT)
            .into_iter()
            .filter(|offer| offer.candidate.is_some())
            .map(|offer| offer.name)
            .collect();
        assert_eq!(names, ["bash", "nvidia-kernel-dkms"]);
    }

    #[test]
    fn versions_have_their_priorities() {
        let offers = parse(TEXT);
        assert_eq!(
            offers[0].versions,
            [
                ("5.2.15-2+b13".to_owned(), 500),
                ("5.2.15-2+b8".to_owned(), 100)
            ]
        );
        assert_eq!(
            offers[1].versions,
            [
                ("580.178.04-1".to_owned(), -10),
                ("535.261.03-1~deb12u1".to_owned(), 1001)
            ]
        );
        assert!(offers[2].versions.is_empty() && offers[2].candidate.is_none());
    }

    /// Output of apt 2.6 with our preference for 580, and the record `Package: *`, `Pin: release o=ThirdParty`,
    /// `Pin-Priority: -1`.
    const THIRD: &str = "\
nvidia-driver:
  Installed: (none)
  Candidate: 580.999.0
  Version table:
     615.1-1 500
        500 file:/tmp/ap/nv ./ Packages
     580.999.0 1001
         -1 file:/tmp/ap/third ./ Packages
     580.95.05-1 1001
        500 file:/tmp/ap/nv ./ Packages
";

    #[test]
    fn version_allowed_only_by_our_preference_is_forbidden() {
        let forbidden = |text: &str| parse(text).remove(0).forbidden;
        assert_eq!(forbidden(THIRD), ["580.999.0"]);
        // The administrator's own preference for the package allows the version.
        assert_eq!(
            forbidden(&THIRD.replace("580.999.0 1001", "580.999.0 600")),
            [""; 0]
        );
        // Another repository also offers the same version.
        let both =
            "         -1 file:/tmp/ap/third ./ Packages\n        500 file:/tmp/ap/nv ./ Packages\n";
        let (one, other) = both.split_at(both.find("        500").unwrap());
        assert_eq!(forbidden(&THIRD.replacen(one, both, 1)), [""; 0]);
        assert_eq!(
            forbidden(&THIRD.replacen(one, &format!("{other}{one}"), 1)),
            [""; 0]
        );
        // Output of apt 2.6 with a record for `nvidia-*` that apt reads before our preference.
        let listed = THIRD
            .replace("580.999.0 1001", "580.999.0 -1")
            .replace("         -1 file", "        500 file")
            .replace("Candidate: 580.999.0", "Candidate: 580.95.05-1");
        let offer = parse(&listed).remove(0);
        assert_eq!(offer.candidate.as_deref(), Some("580.95.05-1"));
        assert!(offer.versions.contains(&("580.999.0".to_owned(), -1)));
        assert!(forbids("Package: *\nPin: release o=A\nPin-Priority: -1\n"));
        assert!(!forbids(
            "Package: a-1\nPin: version -1\npin-priority: 500\n"
        ));
    }

    #[test]
    fn installed_version_without_source_is_not_offered() {
        let offers = parse(TEXT);
        assert!(offers[0].has("5.2.15-2+b13") && !offers[0].has("5.2.15-2+b8"));
        let offered = TEXT.replace(
            "        100 /var/lib/dpkg/status",
            "        500 http://debian.example.org/debian bookworm/main amd64 Packages\n        \
             100 /var/lib/dpkg/status",
        );
        assert!(parse(&offered)[0].has("5.2.15-2+b8"));
        assert!(!offers[1].has("535.1"));
    }
}
