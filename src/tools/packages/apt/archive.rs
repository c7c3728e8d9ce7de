//! The distribution's own archive, as configured on this machine. Additional components are taken from the same mirror.

use crate::tools::packages::{ArchiveError, Further, SourceEntry};

/// The locations of sources, for messages.
const PLACES: &str = "`/etc/apt/sources.list` or `/etc/apt/sources.list.d`";

/// Returns a source that adds the components that the first suite lacks, or `None` if it already has all of them. The source
/// contains those of the suites that the machine already uses, and the first suite must be one of them.
///
/// # Errors
/// If the machine has no source for the first suite, or if `Signed-By` of that source is not a single key file.
pub fn further(
    entries: &[SourceEntry],
    suites: &[String],
    components: &[String],
) -> Result<Option<Further>, ArchiveError> {
    let Some(main) = suites.first() else {
        return Ok(None);
    };
    // Prefer the entry with `main`, because other repositories sometimes use the same suite names as the archive.
    let of_main = || {
        (entries.iter()).filter(|entry| entry.suite == *main && !entry.uri.starts_with("cdrom:"))
    };
    let entry = of_main()
        .find(|entry| entry.components.iter().any(|component| component == "main"))
        .or_else(|| of_main().next())
        .ok_or_else(|| ArchiveError::NoEntry {
            suite: main.clone(),
            places: PLACES,
        })?;
    let there = |suite: &String| {
        let suite = suite.clone();
        (entries.iter()).filter(move |other| other.uri == entry.uri && other.suite == suite)
    };
    let present = |component: &String| there(main).any(|one| one.components.contains(component));
    let missing: Vec<String> = components
        .iter()
        .filter(|component| !present(component))
        .cloned()
        .collect();
    if missing.is_empty() {
        return Ok(None);
    }
    let keyring = match &entry.signed_by {
        Some(key) if !key.starts_with('/') || key.contains([' ', '\n', ',']) => {
            return Err(ArchiveError::NoKeyFile {
                file: entry.file.clone(),
            });
        }
        other => other.clone(),
    };
    Ok(Some(Further {
        url: entry.written.clone(),
        suites: (suites.iter().filter(|suite| there(suite).next().is_some()))
            .cloned()
            .collect(),
        components: missing,
        keyring,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::packages::apt::sources;

    const DEB822: &str = "\
# Written by the installer.
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
";

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn parse_stanzas(text: &str) -> Vec<SourceEntry> {
        sources::parse("x.sources".into(), text)
    }

    fn parse_lines(text: &str) -> Vec<SourceEntry> {
        sources::parse("x.list".into(), text)
    }

    fn wanted(entries: &[SourceEntry]) -> Result<Option<Further>, ArchiveError> {
        further(
            entries,
            &strings(&["bookworm", "bookworm-updates"]),
            &strings(&["contrib", "non-free", "non-free-firmware"]),
        )
    }

    #[test]
    fn components_are_added_to_one_line_sources() {
        let text = "\
# deb http://commented.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/a.gpg] http://mirror.example/debian/ bookworm main non-free-firmware # x
deb-src http://mirror.example/debian bookworm main
debx nonsense
deb http://mirror.example/debian bookworm-updates main
";
        let entries = parse_lines(text);
        assert_eq!(
            wanted(&entries).unwrap().unwrap(),
            Further {
                url: "http://mirror.example/debian/".into(),
                suites: strings(&["bookworm", "bookworm-updates"]),
                components: strings(&["contrib", "non-free"]),
                keyring: Some("/usr/share/keyrings/a.gpg".into()),
            }
        );
    }

    #[test]
    fn existing_components_are_not_added() {
        let mut entries = parse_stanzas(DEB822);
        entries.extend(parse_lines(
            "deb http://mirror.example/debian/ bookworm contrib non-free non-free-firmware",
        ));
        assert_eq!(wanted(&entries), Ok(None));
    }

    #[test]
    fn missing_suite_and_embedded_key_are_rejected() {
        let entries = parse_lines("deb http://mirror.example/debian sid main");
        assert!(matches!(
            wanted(&entries),
            Err(ArchiveError::NoEntry { .. })
        ));
        let embedded = "\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBF
 -----END PGP PUBLIC KEY BLOCK-----
";
        let entries = parse_stanzas(embedded);
        assert!(matches!(
            wanted(&entries),
            Err(ArchiveError::NoKeyFile { .. })
        ));
    }

    #[test]
    fn mirror_lists_and_cdroms_are_supported() {
        let text = "\
deb cdrom:[Debian_12]/ bookworm main
deb mirror+file:///etc/apt/mirrors/debian.list bookworm main
";
        let found = wanted(&parse_lines(text)).unwrap().unwrap();
        assert_eq!(found.url, "mirror+file:///etc/apt/mirrors/debian.list");
        assert_eq!(found.suites, strings(&["bookworm"]));
        assert_eq!(found.keyring, None);
    }
}
