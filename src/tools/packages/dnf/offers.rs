//! `dnf repoquery`: the available versions in the repositories, from existing metadata.

use camino::{Utf8Path, Utf8PathBuf};

use super::{CACHE, Dnf, commands, failures};
use crate::{
    host::{Cmd, FilesError, Query, ReadFiles},
    tools::packages::{AvailablePackage, Contents, Offers, Settings},
};

/// One line per version. dnf replaces `\t` and `\n` itself.
const FORMAT: &str = "%{name}\\t%{epoch}:%{version}-%{release}\\t%{arch}\\n";

/// Same as [`FORMAT`], with an additional field: the paths of the package, one per line.
const FORMAT_OF_CONTENTS: &str = "%{name}\\t%{epoch}:%{version}-%{release}\\t%{arch}\\t%{files}\\n";

/// Packages with these architectures are not native packages.
pub(super) const NOT_NATIVE: [&str; 6] = ["src", "nosrc", "i386", "i486", "i586", "i686"];

impl Offers for Dnf {
    fn has_lists(
        &self,
        files: &dyn ReadFiles,
        _bundled: Option<&Utf8Path>,
    ) -> Result<bool, FilesError> {
        let names = files.list(Utf8Path::new(CACHE))?;
        Ok(names.iter().any(|name| name.ends_with(".solv")))
    }

    fn torn_caches(
        &self,
        files: &dyn ReadFiles,
        output: &str,
    ) -> Result<Vec<Utf8PathBuf>, FilesError> {
        let repositories = failures::unreadable(output);
        if repositories.is_empty() {
            return Ok(Vec::new());
        }
        let is_of = |name: &str, repository: &str| {
            (name.strip_prefix(repository)).is_some_and(|rest| rest.starts_with(['.', '-']))
        };
        let mut names = files.list(Utf8Path::new(CACHE))?;
        names.retain(|name| {
            (name.ends_with(".solv") || name.ends_with(".solvx"))
                && repositories.iter().any(|one| is_of(name, one))
        });
        let path = |name: &String| Utf8Path::new(CACHE).join(name);
        Ok(names.iter().map(path).collect())
    }

    /// dnf has no option to bypass proxy caches.
    fn refresh(&self, settings: &Settings, _past_caches: bool) -> Cmd {
        commands::with_metadata(settings, &[commands::FILE_LISTS, "--refresh", "makecache"])
    }

    fn offers(&self, names: &[&str]) -> Query {
        commands::repoquery(&[], FORMAT, names)
    }

    fn offers_of_all_streams(&self, names: &[&str]) -> Query {
        commands::repoquery(&[commands::ALL_STREAMS], FORMAT, names)
    }

    /// The newest version is the candidate. Versions in a repository with a lower priority are included, although a transaction
    /// would not use them. The simulation shows the actual version.
    fn parse_offers(&self, text: &str) -> Vec<AvailablePackage> {
        let mut offers: Vec<AvailablePackage> = Vec::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, version, architecture] = fields[..] else {
                continue;
            };
            if name.is_empty() || NOT_NATIVE.contains(&architecture) {
                continue;
            }
            let version = version.strip_prefix("0:").unwrap_or(version).to_owned();
            let offer = match offers.iter_mut().find(|offer| offer.name == name) {
                Some(offer) => offer,
                None => {
                    offers.push(AvailablePackage {
                        name: name.to_owned(),
                        ..AvailablePackage::default()
                    });
                    let Some(last) = offers.last_mut() else {
                        continue;
                    };
                    last
                }
            };
            let is_newest =
                |newest: &String| rpm_version::rpm_evr_compare(&version, newest).is_gt();
            if offer.candidate.as_ref().is_none_or(is_newest) {
                offer.candidate = Some(version.clone());
            }
            if !offer.versions.iter().any(|(known, _)| *known == version) {
                offer.versions.push((version, 0));
            }
        }
        offers
    }

    fn contents(&self, names: &[&str]) -> Option<Query> {
        Some(commands::repoquery(&[], FORMAT_OF_CONTENTS, names))
    }

    fn parse_contents(&self, text: &str) -> Vec<Contents> {
        let mut found: Vec<Contents> = Vec::new();
        // Whether the current lines belong to an ignored package.
        let mut skipped = true;
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let path = match fields[..] {
                [name, version, architecture, path] => {
                    skipped = name.is_empty() || NOT_NATIVE.contains(&architecture);
                    if skipped {
                        continue;
                    }
                    found.push(Contents {
                        name: name.to_owned(),
                        version: version.strip_prefix("0:").unwrap_or(version).to_owned(),
                        paths: Vec::new(),
                    });
                    path
                }
                [path] => path,
                _ => continue,
            };
            if let (Some(last), true, false) = (found.last_mut(), path.starts_with('/'), skipped) {
                last.paths.push(Utf8PathBuf::from(path));
            }
        }
        found
    }

    fn downloads(&self) -> &'static Utf8Path {
        Utf8Path::new(CACHE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    #[test]
    fn newest_version_is_the_candidate() {
        let text = "docker-ce\t3:28.5.2-1.el9\tx86_64\n\n\
                    docker-ce\t3:29.1.0-1.el9\tx86_64\n\
                    gcc\t0:11.5.0-5.el9_5\tx86_64\n\
                    gcc\t0:11.5.0-2.el9\tx86_64\n\
                    gcc\t0:12-1\ti686\n\
                    gcc\t0:13-1\tsrc\n\
                    Last metadata expiration check: 0:00:01 ago\n";
        let offers = Dnf.parse_offers(text);
        let found: Vec<(&str, Option<&str>, usize)> = (offers.iter())
            .map(|one| {
                (
                    one.name.as_str(),
                    one.candidate.as_deref(),
                    one.versions.len(),
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("docker-ce", Some("3:29.1.0-1.el9"), 2),
                ("gcc", Some("11.5.0-5.el9_5"), 2)
            ]
        );
    }

    /// Output of dnf 4.14 for a repository with two builds of a package.
    #[test]
    fn each_build_has_its_own_files() {
        let text = "kmod-x\t3:610.43.02-2.el9\tx86_64\t/lib/modules/5.14.0-687.12.1.el9_8.x86_64/extra\n\
                    /lib/modules/5.14.0-687.12.1.el9_8.x86_64/extra/x.ko\n\n\
                    kmod-x\t0:1-1.el9\tsrc\t/x.spec\n\
                    /y.spec\n\n\
                    kmod-x\t0:615.71.09-1.el9\tx86_64\t\n";
        let found = Dnf.parse_contents(text);
        let told: Vec<(&str, usize)> = (found.iter())
            .map(|one| (one.version.as_str(), one.paths.len()))
            .collect();
        assert_eq!(told, [("3:610.43.02-2.el9", 2), ("615.71.09-1.el9", 0)]);
        assert!(found[0].paths[1].as_str().ends_with("/x.ko"));
    }

    reads_any_text!(
        "(.|\t|\n)*",
        |text| Dnf.parse_contents(&text); Dnf.parse_offers(&text)
    );
}
