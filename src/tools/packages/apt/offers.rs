//! `apt-cache policy`: what the package lists offer, without any lock.

use crate::{host::Query, tools::packages::Offer};

/// Queries the candidates of packages.
#[must_use]
pub fn candidates(packages: &[&str]) -> Query {
    Query::new(
        "apt-cache",
        ["policy", "--"].iter().chain(packages).copied(),
    )
}

/// Queries the names of all packages that begin so, one per line, `apt-cache(8)`.
#[must_use]
pub fn names(prefix: &str) -> Query {
    Query::new("apt-cache", ["pkgnames", "--", prefix])
}

/// Parses the answer to [`candidates`]. A name that is not in the lists has no paragraph.
#[must_use]
pub fn parse(text: &str) -> Vec<Offer> {
    let some = |version: &str| (version != "(none)").then(|| version.to_owned());
    let mut found: Vec<Offer> = Vec::new();
    for line in text.lines() {
        if !line.starts_with(' ') {
            if let Some(name) = line.strip_suffix(':') {
                found.push(Offer {
                    name: name.to_owned(),
                    ..Offer::default()
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
            offer.versions.push((version, priority));
        } else if let Some(source) = source_line(words)
            && source != DATABASE
            && offer.versions.last().map(|(version, _)| version) == offer.only_installed.as_ref()
        {
            offer.only_installed = None;
        }
    }
    found
}

/// The mark of the installed version.
const INSTALLED: &str = " *** ";

/// The "source" of what is installed.
const DATABASE: &str = "/var/lib/dpkg/status";

/// `PRIORITY SOURCE …`: where a version comes from.
fn source_line(words: &str) -> Option<&str> {
    let (priority, source) = words.split_once(' ')?;
    priority.parse::<i32>().ok()?;
    source.split_whitespace().next()
}

/// ` *** VERSION PRIORITY` or five blanks, the version and its priority; the lines of the sources
/// that offer it are further to the right and begin with a number.
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
    fn only_names_with_a_candidate_count() {
        let names: Vec<String> = parse(TEXT)
            .into_iter()
            .filter(|offer| offer.candidate.is_some())
            .map(|offer| offer.name)
            .collect();
        assert_eq!(names, ["bash", "nvidia-kernel-dkms"]);
    }

    #[test]
    fn versions_carry_their_priorities() {
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

    #[test]
    fn what_is_only_installed_is_not_offered() {
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
