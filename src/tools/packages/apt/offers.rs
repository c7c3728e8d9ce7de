//! The package lists. `apt-cache` reads them without a lock: the available versions, and the lowest dependency versions that a
//! package accepts.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use super::{ARCHIVES, Apt, DATABASE, commands, lists, mirrors};
use crate::{
    host::{Cmd, FilesError, Query, ReadFiles},
    model::packages::Pin,
    tools::packages::{AvailablePackage, LowerBounds, Offers, Settings, Sources},
};

/// The time limit for downloading the lists. AKS allows 180 s per attempt, but slow mirrors need more.
const UPDATE_DEADLINE: Duration = Duration::from_secs(10 * 60);

/// The marker of the installed version.
const INSTALLED: &str = " *** ";

/// Parses `PRIORITY SOURCE …`: a source of a version, and the priority of the source. Preferences for the package do not
/// change this priority.
fn source_line(words: &str) -> Option<(i32, &str)> {
    let (priority, source) = words.split_once(' ')?;
    Some((priority.parse().ok()?, source.split_whitespace().next()?))
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

/// Parses a dependency such as `libc6 (>= 2.36)`. Returns `None` if it has no lower bound.
fn bound(dependency: &str) -> Option<(String, String)> {
    if dependency.contains('|') {
        return None;
    }
    let (name, rest) = dependency.trim().split_once(" (")?;
    let (relation, version) = rest.strip_suffix(')')?.split_once(' ')?;
    let name = name.split_once(':').map_or(name, |(bare, _)| bare);
    matches!(relation, ">=" | "=").then(|| (name.to_owned(), version.trim().to_owned()))
}

impl Offers for Apt {
    fn has_lists(
        &self,
        files: &dyn ReadFiles,
        bundled: Option<&Utf8Path>,
    ) -> Result<bool, FilesError> {
        let names = files.list(Utf8Path::new(lists::DIRECTORY))?;
        let sources = match bundled {
            Some(directory) => mirrors::redirected(files, directory)?,
            None => self.entries(files)?,
        };
        Ok(lists::are_complete(&names, &sources))
    }

    fn truncated_lists(&self, files: &dyn ReadFiles) -> Result<Vec<Utf8PathBuf>, FilesError> {
        lists::torn(files)
    }

    /// apt.conf(5): with `Error-Mode` `any`, a failed source makes the command fail instead of printing a warning. Versions
    /// before 2.3 ignore the option.
    fn refresh(&self, settings: &Settings, past_caches: bool) -> Cmd {
        let mut cmd = commands::get(settings, &["-oAPT::Update::Error-Mode=any", "update"], &[])
            .deadline(UPDATE_DEADLINE)
            .silence(Duration::from_secs(180));
        // A cache may contain an inconsistent state of a mirror that was being synchronized.
        if past_caches {
            for scheme in ["https", "http"] {
                (cmd.args).insert(0, format!("-oAcquire::{scheme}::No-Cache=true"));
            }
        }
        cmd
    }

    /// Queries the candidates.
    fn offers(&self, names: &[&str]) -> Query {
        Query::new("apt-cache", ["policy", "--"].iter().chain(names).copied())
    }

    /// A name that is not in the lists has no paragraph.
    fn parse_offers(&self, text: &str) -> Vec<AvailablePackage> {
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

    /// See `apt-cache(8)`.
    fn names(&self, prefix: &str) -> Option<Query> {
        Some(Query::new("apt-cache", ["pkgnames", "--", prefix]))
    }

    /// Queries all fields of the candidates.
    fn lower_bounds(&self, names: &[&str]) -> Option<Query> {
        let args = ["show", "--no-all-versions", "--"].iter();
        Some(Query::new("apt-cache", args.chain(names).copied()))
    }

    /// Parses `NAME (>= VERSION)` and `NAME (= VERSION)` in `Depends`. Alternatives are omitted, because any of them may be
    /// installed.
    fn parse_lower_bounds(&self, text: &str) -> Vec<LowerBounds> {
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

    fn downloads(&self) -> &'static Utf8Path {
        Utf8Path::new(ARCHIVES)
    }

    /// Parses `NAME_VERSION_ARCHITECTURE.deb`. apt writes `%3a` for the colon after an epoch.
    fn downloaded(&self, file: &str) -> Option<(String, String)> {
        let mut parts = file.strip_suffix(".deb")?.split('_');
        Some((parts.next()?.to_owned(), parts.next()?.replace("%3a", ":")))
    }
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
        let names: Vec<String> = Apt
            .parse_offers(TEXT)
            .into_iter()
            .filter(|offer| offer.candidate.is_some())
            .map(|offer| offer.name)
            .collect();
        assert_eq!(names, ["bash", "nvidia-kernel-dkms"]);
    }

    #[test]
    fn versions_have_their_priorities() {
        let offers = Apt.parse_offers(TEXT);
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
        let forbidden = |text: &str| Apt.parse_offers(text).remove(0).forbidden;
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
        let offer = Apt.parse_offers(&listed).remove(0);
        assert_eq!(offer.candidate.as_deref(), Some("580.95.05-1"));
        assert!(offer.versions.contains(&("580.999.0".to_owned(), -1)));
    }

    #[test]
    fn installed_version_without_source_is_not_offered() {
        let offers = Apt.parse_offers(TEXT);
        assert!(offers[0].has("5.2.15-2+b13") && !offers[0].has("5.2.15-2+b8"));
        let offered = TEXT.replace(
            "        100 /var/lib/dpkg/status",
            "        500 http://debian.example.org/debian bookworm/main amd64 Packages\n        \
             100 /var/lib/dpkg/status",
        );
        assert!(Apt.parse_offers(&offered)[0].has("5.2.15-2+b8"));
        assert!(!offers[1].has("535.1"));
    }

    #[test]
    fn bounds_of_module_package_are_parsed() {
        let found = Apt.parse_lower_bounds(
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
            let _ = Apt.parse_lower_bounds(&text);
        }
    }

    #[test]
    fn archive_file_names_are_parsed() {
        let read = |file: &str| Apt.downloaded(file);
        assert_eq!(
            read("docker-ce_5%3a27.3.1-1_amd64.deb"),
            Some(("docker-ce".to_owned(), "5:27.3.1-1".to_owned()))
        );
        assert_eq!(read("lock"), None);
    }
}
