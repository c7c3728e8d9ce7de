//! The distribution's own archive, as this machine already uses it: whoever configured a mirror for
//! it gets further components from the same mirror.

use camino::Utf8PathBuf;

use crate::{
    host::{FilesError, ReadFiles},
    tools::apt_sources::{self, Entry, FOLDER, LIST},
};

/// What our own source files start with; they are not the machine's configuration.
pub const OURS: &str = "gpu-bootstrap-";

/// Further components of the archive that a machine uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Further {
    /// The address, as the machine has it.
    pub url: String,
    /// Those of the wished suites that the machine has there.
    pub suites: Vec<String>,
    /// Those of the wished components that it lacks.
    pub components: Vec<String>,
    /// The key file of the entry; apt refuses two sources of one suite that differ in it.
    pub keyring: Option<String>,
}

/// Why further components cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// No entry for the suite.
    #[error("no source in `{LIST}` or `{FOLDER}` has suite `{suite}`")]
    NoEntry {
        /// The suite looked for.
        suite: String,
    },
    /// The key is written out, or named by its fingerprint.
    #[error("the source in `{file}` does not name one key file in `Signed-By`")]
    NoKeyFile {
        /// The file.
        file: Utf8PathBuf,
    },
}

/// Where a machine has binary packages from, but for the sources that we wrote.
///
/// # Errors
/// A file that is there and cannot be read.
pub fn read(files: &dyn ReadFiles) -> Result<Vec<Entry>, FilesError> {
    let mut entries = apt_sources::read(files)?;
    let ours = |entry: &Entry| (entry.file.file_name()).is_some_and(|name| name.starts_with(OURS));
    entries.retain(|entry| entry.binary && !ours(entry));
    Ok(entries)
}

/// What must be added so that the machine has the components in the suites, or `None` where it has
/// them all. The first suite is the one that the machine must already have.
///
/// # Errors
/// When the machine has no source for the first suite, or its key cannot be named again.
pub fn further(
    entries: &[Entry],
    suites: &[String],
    components: &[String],
) -> Result<Option<Further>, ArchiveError> {
    let Some(main) = suites.first() else {
        return Ok(None);
    };
    // The one with `main`, else any: third parties sometimes reuse the archive's suite names.
    let of_main = || {
        (entries.iter()).filter(|entry| entry.suite == *main && !entry.uri.starts_with("cdrom:"))
    };
    let entry = of_main()
        .find(|entry| entry.components.iter().any(|component| component == "main"))
        .or_else(|| of_main().next())
        .ok_or_else(|| ArchiveError::NoEntry {
            suite: main.clone(),
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

    fn parse_stanzas(text: &str) -> Vec<Entry> {
        apt_sources::parse("x.sources".into(), text)
    }

    fn parse_lines(text: &str) -> Vec<Entry> {
        apt_sources::parse("x.list".into(), text)
    }

    fn wanted(entries: &[Entry]) -> Result<Option<Further>, ArchiveError> {
        further(
            entries,
            &strings(&["bookworm", "bookworm-updates"]),
            &strings(&["contrib", "non-free", "non-free-firmware"]),
        )
    }

    #[test]
    fn lines() {
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
    fn what_is_there_already_is_not_added() {
        let mut entries = parse_stanzas(DEB822);
        entries.extend(parse_lines(
            "deb http://mirror.example/debian/ bookworm contrib non-free non-free-firmware",
        ));
        assert_eq!(wanted(&entries), Ok(None));
    }

    #[test]
    fn machines_without_the_suite_are_refused() {
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
    fn mirror_lists_and_cdroms() {
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
