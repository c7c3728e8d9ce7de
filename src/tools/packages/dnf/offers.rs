//! `dnf repoquery`: what the repositories offer, from the metadata that is there.

use super::commands;
use crate::{host::Query, tools::packages::Offer};

/// One line per version: dnf replaces `\t` and `\n` itself.
const FORMAT: &str = "%{name}\\t%{epoch}:%{version}-%{release}\\t%{arch}\\n";

/// Packages of these architectures do not stand for the machine's own ones.
const NOT_NATIVE: [&str; 6] = ["src", "nosrc", "i386", "i486", "i586", "i686"];

/// Queries the versions of packages.
#[must_use]
pub fn versions(names: &[&str]) -> Query {
    commands::offers(FORMAT, names)
}

/// Parses the answer to [`versions`]. The newest version is the candidate; a package of a repository
/// with a worse priority is not in the answer of a transaction, which is what counts.
#[must_use]
pub fn parse(text: &str) -> Vec<Offer> {
    let mut offers: Vec<Offer> = Vec::new();
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
                offers.push(Offer {
                    name: name.to_owned(),
                    ..Offer::default()
                });
                let Some(last) = offers.last_mut() else {
                    continue;
                };
                last
            }
        };
        let is_newest = |newest: &String| rpm_version::rpm_evr_compare(&version, newest).is_gt();
        if offer.candidate.as_ref().is_none_or(is_newest) {
            offer.candidate = Some(version.clone());
        }
        if !offer.versions.iter().any(|(known, _)| *known == version) {
            offer.versions.push((version, 0));
        }
    }
    offers
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_newest_version_is_the_candidate() {
        let text = "docker-ce\t3:28.5.2-1.el9\tx86_64\n\n\
                    docker-ce\t3:29.1.0-1.el9\tx86_64\n\
                    gcc\t0:11.5.0-5.el9_5\tx86_64\n\
                    gcc\t0:11.5.0-2.el9\tx86_64\n\
                    gcc\t0:12-1\ti686\n\
                    gcc\t0:13-1\tsrc\n\
                    Last metadata expiration check: 0:00:01 ago\n";
        let offers = parse(text);
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

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "(.|\t|\n)*") {
            let _ = parse(&text);
        }
    }
}
