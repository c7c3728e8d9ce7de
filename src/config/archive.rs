//! The distribution's own archive, as this machine already uses it: whoever configured a mirror for
//! it gets further components from the same mirror.
//!
//! Reads the two formats of `sources.list(5)`: lines and deb822 stanzas.

use camino::Utf8Path;

use crate::host::{FilesError, ReadFiles};

const FILE: &str = "/etc/apt/sources.list";
const FOLDER: &str = "/etc/apt/sources.list.d";

/// What our own source files start with; they are not the machine's configuration.
pub const OURS: &str = "gpu-bootstrap-";

/// A source of binary packages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// The file that names it.
    pub file: String,
    /// Its addresses.
    pub uris: Vec<String>,
    /// Its suites.
    pub suites: Vec<String>,
    /// Its components.
    pub components: Vec<String>,
    /// What its signature must be made with, as written; `None` leaves it to apt's own keyrings.
    pub signed_by: Option<String>,
}

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
    #[error("no source in `{FILE}` or `{FOLDER}` has suite `{suite}`")]
    NoEntry {
        /// The suite looked for.
        suite: String,
    },
    /// The key is written out, or named by its fingerprint.
    #[error("the source in `{file}` does not name one key file in `Signed-By`")]
    NoKeyFile {
        /// The file.
        file: String,
    },
}

/// Reads the sources of a machine, without the ones that we wrote.
///
/// # Errors
/// A file that is there and cannot be read.
pub fn read(files: &dyn ReadFiles) -> Result<Vec<Entry>, FilesError> {
    let mut entries = Vec::new();
    if let Some(text) = files.read_text(Utf8Path::new(FILE))? {
        entries.extend(parse_lines(FILE, &text));
    }
    for name in files.list(Utf8Path::new(FOLDER))? {
        if name.starts_with(OURS) {
            continue;
        }
        let path = Utf8Path::new(FOLDER).join(&name);
        let parse = match path.extension() {
            Some("list") => parse_lines,
            Some("sources") => parse_stanzas,
            _ => continue,
        };
        if let Some(text) = files.read_text(&path)? {
            entries.extend(parse(path.as_str(), &text));
        }
    }
    Ok(entries)
}

/// Parses `deb [signed-by=…] URI SUITE COMPONENT…` lines.
#[must_use]
pub fn parse_lines(file: &str, text: &str) -> Vec<Entry> {
    text.lines()
        .filter_map(|line| parse_line(file, line))
        .collect()
}

fn parse_line(file: &str, line: &str) -> Option<Entry> {
    let line = line.split('#').next().unwrap_or_default().trim();
    let rest = line.strip_prefix("deb")?;
    if !rest.starts_with([' ', '\t', '[']) {
        return None;
    }
    let rest = rest.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(inside) => inside.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace().map(str::to_owned);
    let uri = words.next()?;
    let suite = words.next()?;
    let signed_by = options
        .split_whitespace()
        .filter_map(|option| option.split_once('='))
        .find(|(name, _)| name.eq_ignore_ascii_case("signed-by"))
        .map(|(_, value)| value.to_owned());
    Some(Entry {
        file: file.to_owned(),
        uris: vec![uri],
        suites: vec![suite],
        components: words.collect(),
        signed_by,
    })
}

/// Parses deb822 stanzas.
#[must_use]
pub fn parse_stanzas(file: &str, text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            entries.extend(stanza(file, &std::mem::take(&mut fields)));
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line.trim());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    entries
}

fn stanza(file: &str, fields: &[(String, String)]) -> Option<Entry> {
    let text = |wanted: &str| {
        let found = fields.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.trim())
    };
    let words = |wanted: &str| -> Vec<String> {
        let found = text(wanted).unwrap_or_default();
        found.split_whitespace().map(str::to_owned).collect()
    };
    // `Enabled` takes apt's words for no.
    let disabled = text("enabled").is_some_and(|value| {
        ["no", "false", "without", "off", "disable"].contains(&value.to_ascii_lowercase().as_str())
            || value == "0"
    });
    if disabled || !words("types").iter().any(|kind| kind == "deb") {
        return None;
    }
    Some(Entry {
        file: file.to_owned(),
        uris: words("uris"),
        suites: words("suites"),
        components: words("components"),
        signed_by: text("signed-by")
            .filter(|value| !value.is_empty())
            .map(str::to_owned),
    })
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
    let has = |entry: &&Entry, suite: &String| entry.suites.contains(suite);
    // The one with `main`, else any: third parties sometimes reuse the archive's suite names.
    let of_main: Vec<&Entry> = entries.iter().filter(|entry| has(entry, main)).collect();
    let (entry, uri) = of_main
        .iter()
        .filter(|entry| entry.components.iter().any(|component| component == "main"))
        .chain(of_main.iter())
        .find_map(|entry| {
            let uri = entry.uris.iter().find(|uri| !uri.starts_with("cdrom:"))?;
            Some((*entry, uri))
        })
        .ok_or_else(|| ArchiveError::NoEntry {
            suite: main.clone(),
        })?;
    let same = |other: &&Entry| other.uris.iter().any(|u| trimmed(u) == trimmed(uri));
    let present = |component: &String| {
        entries
            .iter()
            .filter(same)
            .filter(|other| has(other, main))
            .any(|other| other.components.contains(component))
    };
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
        url: uri.clone(),
        suites: suites
            .iter()
            .filter(|suite| entries.iter().filter(same).any(|other| has(&other, suite)))
            .cloned()
            .collect(),
        components: missing,
        keyring,
    }))
}

fn trimmed(uri: &str) -> &str {
    uri.trim_end_matches('/')
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

    fn wanted(entries: &[Entry]) -> Result<Option<Further>, ArchiveError> {
        further(
            entries,
            &strings(&["bookworm", "bookworm-updates"]),
            &strings(&["contrib", "non-free", "non-free-firmware"]),
        )
    }

    #[test]
    fn stanzas() {
        let entries = parse_stanzas("debian.sources", DEB822);
        assert_eq!(entries.len(), 2);
        assert_eq!(
            entries[0].suites,
            strings(&["bookworm", "bookworm-updates"])
        );
        assert_eq!(entries[1].signed_by, None);
        let off = format!("Enabled: no\n{DEB822}");
        assert_eq!(parse_stanzas("x", &off).len(), 1);
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
        let entries = parse_lines("sources.list", text);
        assert_eq!(entries.len(), 2);
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
        let mut entries = parse_stanzas("debian.sources", DEB822);
        entries.extend(parse_lines(
            "more.list",
            "deb http://mirror.example/debian/ bookworm contrib non-free non-free-firmware",
        ));
        assert_eq!(wanted(&entries), Ok(None));
    }

    #[test]
    fn machines_without_the_suite_are_refused() {
        let entries = parse_lines("sources.list", "deb http://mirror.example/debian sid main");
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
        let entries = parse_stanzas("x.sources", embedded);
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
        let found = wanted(&parse_lines("sources.list", text)).unwrap().unwrap();
        assert_eq!(found.url, "mirror+file:///etc/apt/mirrors/debian.list");
        assert_eq!(found.suites, strings(&["bookworm"]));
        assert_eq!(found.keyring, None);
    }

    #[test]
    fn garbage_is_no_entry() {
        for text in [
            "",
            "deb",
            "deb [",
            "deb [x] ",
            ":::",
            "Types",
            "\u{0}\n\n deb\t",
            " x: y",
        ] {
            assert!(parse_lines("x", text).is_empty(), "{text:?}");
            assert!(parse_stanzas("x", text).is_empty(), "{text:?}");
        }
    }
}
