//! Parses apt sources, `sources.list(5)`, in both formats: to find conflicting entries, existing entries, and the mirror that a
//! machine uses.

use camino::{Utf8Path, Utf8PathBuf};

use super::{Apt, archive, exclusions, records::records, repository};
use crate::{
    host::{FileKind, FilesError, ReadFiles, Stat},
    model::{
        packages::{Pin, Repository},
        text::shell_word,
    },
    tools::packages::{
        ArchiveError, Exclusion, ForcedOrigin, Further, Impact, SourceEntry, SourceIssue, Sources,
        contradictions,
    },
};

/// The main file, which has one source per line.
pub const LIST: &str = "/etc/apt/sources.list";

/// The directory of additional files, `*.list` and `*.sources`.
pub const DIRECTORY: &str = "/etc/apt/sources.list.d";

/// Whether apt reads a file with this name in [`DIRECTORY`]. It ignores all other names, `sources.list(5)`.
pub fn is_read(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    (name.ends_with(".list") || name.ends_with(".sources")) && name.chars().all(plain)
}

/// Options that disable signature verification, completely or in part.
const SKIPS_VERIFICATION: [&str; 4] = [
    "trusted",
    "allow-insecure",
    "allow-weak",
    "allow-downgrade-to-insecure",
];

/// Returns the files that apt reads, with their texts.
fn texts(files: &dyn ReadFiles) -> Result<Vec<(Utf8PathBuf, String)>, FilesError> {
    let directory = Utf8Path::new(DIRECTORY);
    let mut paths = vec![Utf8PathBuf::from(LIST)];
    let names = files.list(directory)?;
    paths.extend((names.iter().filter(|name| is_read(name))).map(|name| directory.join(name)));
    let mut found = Vec::new();
    for path in paths {
        // A directory may have such a name, but apt ignores it.
        let is_directory = |stat: &Stat| stat.kind == FileKind::Directory;
        if files.stat(&path)?.as_ref().is_some_and(is_directory) {
            continue;
        }
        let text = files.read_lossy(&path)?.unwrap_or_default();
        found.push((path, text));
    }
    Ok(found)
}

/// Returns the errors that prevent apt from using its sources: invalid lines, incomplete or conflicting entries, and keyrings
/// without a key.
///
/// # Errors
/// If an existing file cannot be read.
fn issues(files: &dyn ReadFiles) -> Result<Vec<SourceIssue>, FilesError> {
    let mut found = Vec::new();
    for (path, text) in texts(files)? {
        let Some(line) = unread(&path, &text) else {
            if let Some((line, why)) = incomplete(&path, &text) {
                found.push(SourceIssue {
                    impact: Impact::All,
                    why: format!("entry in line {line} of `{path}` {why}"),
                    remedy: format!("complete or remove that entry in `{path}`"),
                });
            }
            continue;
        };
        let first = text.trim_start().to_ascii_lowercase();
        let is_page = first.starts_with("<!doctype")
            || first.starts_with("<html")
            || first.starts_with("<?xml");
        found.push(SourceIssue {
            impact: Impact::All,
            why: match is_page {
                true => format!("`{path}` is a web page (line {line})"),
                false => format!("line {line} of `{path}` is not a valid source"),
            },
            remedy: match is_page {
                true => format!(
                    "remove `{path}`: the downloaded file does not exist on the server, or has moved"
                ),
                false => format!("correct or remove line {line} of `{path}`"),
            },
        });
    }
    let entries = Apt.entries(files)?;
    let contradicting = contradictions(&entries);
    if !contradicting.is_empty() {
        let unsigned = entries.iter().find(|entry| {
            entry.signed_by.is_none()
                && entries.iter().any(|other| {
                    other.uri == entry.uri
                        && other.suite == entry.suite
                        && other.signed_by.is_some()
                })
        });
        let differ = |one: &SourceEntry| {
            entries.iter().any(|other| {
                other.uri == one.uri && other.suite == one.suite && other.signed_by != one.signed_by
            })
        };
        let mut places: Vec<&Utf8PathBuf> = (entries.iter().filter(|one| differ(one)))
            .map(|one| &one.file)
            .collect();
        places.dedup();
        // A file that only repeats the repositories of other files can be removed, preferably one with an entry without a key.
        let is_surplus = |path: &&&Utf8PathBuf| {
            places.len() > 1 && entries.iter().all(|one| one.file != ***path || differ(one))
        };
        let lacks_key = |path: &&&Utf8PathBuf| {
            (entries.iter()).any(|one| one.file == ***path && one.signed_by.is_none())
        };
        let surplus = (places.iter().filter(is_surplus)).max_by_key(lacks_key);
        let names: Vec<String> = places.iter().map(|path| format!("`{path}`")).collect();
        found.push(SourceIssue {
            impact: Impact::All,
            why: format!(
                "conflicting `Signed-By` of one repository in {}; {}",
                names.join(" and "),
                contradicting.join("; ")
            ),
            remedy: match (unsigned, surplus) {
                (_, Some(path)) => {
                    format!(
                        "run `rm {} && apt-get update`: another file has the same repository",
                        shell_word(path)
                    )
                }
                (Some(entry), None) => {
                    format!("remove the entry without a key from `{}`", entry.file)
                }
                (None, None) => "remove all but one of the entries".to_owned(),
            },
        });
    }
    found.extend(keyless(files, &entries)?);
    Ok(found)
}

/// Returns an error for each keyring of an entry that specifies only unusable keyrings.
fn keyless(files: &dyn ReadFiles, entries: &[SourceEntry]) -> Result<Vec<SourceIssue>, FilesError> {
    let mut found: Vec<SourceIssue> = Vec::new();
    for entry in entries.iter().filter(|entry| !entry.skips_verification) {
        let keys = entry.signed_by.as_deref().unwrap_or_default();
        // `Signed-By` may also contain the key itself.
        if keys.contains("-----BEGIN") {
            continue;
        }
        let mut issues = Vec::new();
        // Only paths are keyrings. The rest are fingerprints.
        let named = keys
            .split([',', ' ', '\n'])
            .filter(|key| key.starts_with('/'));
        for key in named {
            issues.push(issue_of(files, key)?.map(|(impact, why)| {
                let SourceEntry { file, written, .. } = entry;
                SourceIssue {
                    impact,
                    why: format!("keyring `{key}` {why}; it is for {written} in `{file}`"),
                    remedy: match why {
                        UNREADABLE => format!("run `chmod 644 {}`", shell_word(key)),
                        _ => format!(
                            "download the repository's key to `{key}` again (`curl -f`, then `gpg --dearmor`), or remove its \
                             entry from `{file}`"
                        ),
                    },
                }
            }));
        }
        // One valid keyring of several is sufficient.
        if issues.iter().all(Option::is_some) {
            for issue in issues.into_iter().flatten() {
                if found.iter().all(|known| known.remedy != issue.remedy) {
                    found.push(issue);
                }
            }
        }
    }
    Ok(found)
}

/// apt verifies as the user `_apt`. If this user cannot read a keyring, apt only reports that the key is missing.
const UNREADABLE: &str = "is readable only by root, but apt verifies signatures as the user `_apt`";

/// Returns the reason why a keyring is unusable, and its impact. `None` if no error was found, or if we cannot read the file.
fn issue_of(
    files: &dyn ReadFiles,
    key: &str,
) -> Result<Option<(Impact, &'static str)>, FilesError> {
    let path = Utf8Path::new(key);
    let Some(stat) = files.stat(path)? else {
        // An empty directory is not evidence: a recorded copy of a machine may not contain its keyrings.
        let directory = path.parent().unwrap_or(path);
        let is_known = !files.list(directory)?.is_empty();
        return Ok(is_known.then_some((Impact::Lacking, "does not exist")));
    };
    if (stat.kind, stat.uid, stat.gid, stat.mode & 0o044) == (FileKind::File, 0, 0, 0) {
        return Ok(Some((Impact::Lacking, UNREADABLE)));
    }
    let Ok(Some(bytes)) = files.read(path) else {
        return Ok(None);
    };
    let text = bytes.trim_ascii();
    Ok(if text.is_empty() {
        Some((Impact::Source, "is empty"))
    } else if text.starts_with(b"<") {
        Some((Impact::Source, "is a web page, not a key"))
    } else {
        None
    })
}

/// Returns the line number of the first incomplete entry, and the error. Source: apt, `apt-pkg/sourcelist.cc`, `ParseLine` and
/// `ParseStanza`.
fn incomplete(file: &Utf8Path, text: &str) -> Option<(usize, &'static str)> {
    const NO_COMPONENT: &str = "has no component, and its suite does not end with `/`";
    const COMPONENT: &str = "has a component, although its suite is a path";
    let of_suite = |suite: &str, any: bool| match (suite.ends_with('/'), any) {
        (false, false) => Some(NO_COMPONENT),
        (true, true) => Some(COMPONENT),
        _ => None,
    };
    if file.extension() == Some("list") {
        return (text.lines().enumerate()).find_map(|(at, line)| {
            let entry = one_line(file, line)?;
            Some((
                at + 1,
                of_suite(&entry.suite, !entry.components.is_empty())?,
            ))
        });
    }
    for record in records(text) {
        let (line, field) = (record.line, |key: &str| record.field(key));
        if !field("enabled").is_empty() && !is_yes(Some(field("enabled"))) {
            continue;
        }
        for (key, why) in [
            ("types", "has no `Types`"),
            ("uris", "has no `URIs`"),
            ("suites", "has no `Suites`"),
        ] {
            if field(key).trim().is_empty() {
                return Some((line, why));
            }
        }
        let any = !field("components").trim().is_empty();
        let issue = (field("suites").split_whitespace()).find_map(|suite| of_suite(suite, any));
        if let Some(why) = issue {
            return Some((line, why));
        }
    }
    None
}

/// Returns the number of the first line that apt cannot parse.
fn unread(file: &Utf8Path, text: &str) -> Option<usize> {
    let is_comment = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    match file.extension() {
        Some("list") => (text.lines())
            .position(|line| !is_comment(line) && one_line(file, line).is_none())
            .map(|at| at + 1),
        Some("sources") => (text.lines())
            .position(|line| {
                let key = line.split_once(':').map(|(key, _)| key);
                let is_field = key.is_some_and(|key| {
                    !key.is_empty()
                        && key
                            .bytes()
                            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                });
                !is_comment(line) && !line.starts_with([' ', '\t']) && !is_field
            })
            .map(|at| at + 1),
        _ => None,
    }
}

/// Parses a file according to its extension: `.sources` is deb822, `.list` has one entry per line. Other files are ignored,
/// like in apt.
pub fn parse(file: &Utf8Path, text: &str) -> Vec<SourceEntry> {
    match file.extension() {
        Some("sources") => deb822(file, text),
        Some("list") => (text.lines())
            .filter_map(|line| one_line(file, line))
            .collect(),
        _ => Vec::new(),
    }
}

fn one_line(file: &Utf8Path, line: &str) -> Option<SourceEntry> {
    let line = line.split('#').next()?.trim();
    let (kind, rest) = line.split_at_checked(line.find([' ', '\t', '['])?)?;
    let binary = match kind {
        "deb" => true,
        "deb-src" => false,
        _ => return None,
    };
    let rest = rest.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let option = |key: &str| {
        let pairs = options.split_whitespace();
        pairs
            .filter_map(|pair| pair.split_once('='))
            .find_map(|(name, value)| name.eq_ignore_ascii_case(key).then(|| value.to_owned()))
    };
    let mut words = rest.split_whitespace().map(str::to_owned);
    let written = words.next()?;
    Some(SourceEntry {
        id: None,
        enabled: true,
        file: file.to_owned(),
        uri: SourceEntry::canonical(&written),
        written,
        suite: words.next()?,
        components: words.collect(),
        signed_by: option("signed-by"),
        binary,
        architectures: list(&option("arch").unwrap_or_default(), ','),
        skips_verification: SKIPS_VERIFICATION
            .iter()
            .any(|key| is_yes(option(key).as_deref())),
    })
}

/// Whether an option is set to a value other than apt's words for "no".
fn is_yes(value: Option<&str>) -> bool {
    const NO: [&str; 6] = ["no", "false", "without", "off", "disable", "0"];
    value.is_some_and(|value| !NO.iter().any(|no| value.eq_ignore_ascii_case(no)))
}

fn list(text: &str, separator: char) -> Vec<String> {
    text.split(|c: char| c == separator || c.is_whitespace())
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

fn deb822(file: &Utf8Path, text: &str) -> Vec<SourceEntry> {
    let mut entries = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        // Only an empty line ends a stanza. A line of spaces continues a field.
        if line.is_empty() {
            entries.extend(stanza(file, &std::mem::take(&mut fields)));
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line.trim());
            }
        } else if let Some((key, value)) = line.split_once(':') {
            fields.push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    entries
}

fn stanza(file: &Utf8Path, fields: &[(String, String)]) -> Vec<SourceEntry> {
    let field = |key: &str| {
        fields
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    };
    if field("enabled").is_some() && !is_yes(field("enabled")) {
        return Vec::new();
    }
    let words = |key| field(key).unwrap_or_default().split_whitespace();
    words("uris")
        .flat_map(|uri| {
            words("suites").map(|suite| SourceEntry {
                id: None,
                enabled: true,
                file: file.to_owned(),
                uri: SourceEntry::canonical(uri),
                written: uri.to_owned(),
                suite: suite.to_owned(),
                signed_by: (field("signed-by").filter(|value| !value.is_empty()))
                    .map(str::to_owned),
                binary: words("types").any(|kind| kind == "deb"),
                components: words("components").map(str::to_owned).collect(),
                architectures: list(field("architectures").unwrap_or_default(), ' '),
                skips_verification: SKIPS_VERIFICATION.iter().any(|key| is_yes(field(key))),
            })
        })
        .collect()
}

impl Sources for Apt {
    fn entries(&self, files: &dyn ReadFiles) -> Result<Vec<SourceEntry>, FilesError> {
        let mut entries = Vec::new();
        for (path, text) in texts(files)? {
            entries.extend(parse(&path, &text));
        }
        Ok(entries)
    }

    fn source_issues(&self, files: &dyn ReadFiles) -> Result<Vec<SourceIssue>, FilesError> {
        let mut found = issues(files)?;
        found.extend(exclusions::issues(files)?);
        Ok(found)
    }

    fn further(
        &self,
        entries: &[SourceEntry],
        suites: &[String],
        components: &[String],
    ) -> Result<Option<Further>, ArchiveError> {
        archive::further(entries, suites, components)
    }

    fn forced(&self, files: &dyn ReadFiles) -> Result<Vec<ForcedOrigin>, FilesError> {
        exclusions::forced(files, &self.entries(files)?)
    }

    fn exclusions(&self, files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
        exclusions::read(files)
    }

    fn proxies(&self, files: &dyn ReadFiles) -> Result<Vec<String>, FilesError> {
        exclusions::proxies(files)
    }

    fn forbids(&self, files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError> {
        exclusions::forbids(files)
    }

    fn overridden(&self, files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
        exclusions::behind_ours(files)
    }

    fn contrary(
        &self,
        files: &dyn ReadFiles,
        pin: &Pin,
        packages: &[&str],
    ) -> Result<Vec<Exclusion>, FilesError> {
        exclusions::contrary(files, pin, packages)
    }

    fn needs_suites(&self) -> bool {
        true
    }

    fn keyring_path(&self, repository: &Repository) -> Option<Utf8PathBuf> {
        repository::keyring_path(repository)
    }

    fn source(&self, repository: &Repository) -> (Utf8PathBuf, String) {
        repository::source(repository)
    }

    fn priority(&self, repository: &Repository) -> Option<(Utf8PathBuf, String)> {
        repository::priority(repository)
    }

    fn pin(&self, pin: &Pin) -> Option<(Utf8PathBuf, String)> {
        Some(repository::pin(pin))
    }
}

#[cfg(test)]
mod tests {
    use super::{Apt, one_line};
    use crate::{
        host::fake::FakeFiles,
        tools::packages::{Messages, SourceEntry, Sources},
    };

    fn parse(name: &str, text: &str) -> Vec<SourceEntry> {
        super::parse(name.into(), text)
    }

    fn entry(uri: &str, suite: &str, signed_by: Option<&str>, components: &[&str]) -> SourceEntry {
        SourceEntry {
            id: None,
            enabled: true,
            file: "x.list".into(),
            uri: SourceEntry::canonical(uri),
            written: uri.into(),
            suite: suite.into(),
            signed_by: signed_by.map(str::to_owned),
            binary: true,
            components: components.iter().map(ToString::to_string).collect(),
            architectures: Vec::new(),
            skips_verification: false,
        }
    }

    #[test]
    fn one_line_sources_are_parsed() {
        let text = "# deb http://old x main\n\
                    deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] https://a/deb/ / # flat\n\
                    deb http://debian.example.org/debian bookworm main contrib\n";
        assert_eq!(
            parse("x.list", text),
            [
                SourceEntry {
                    architectures: vec!["amd64".into()],
                    ..entry(
                        "https://a/deb/",
                        "/",
                        Some("/usr/share/keyrings/k.gpg"),
                        &[]
                    )
                },
                entry(
                    "http://debian.example.org/debian",
                    "bookworm",
                    None,
                    &["main", "contrib"]
                ),
            ]
        );
        assert!(parse("x.list.save", text).is_empty());
    }

    #[test]
    fn line_of_spaces_does_not_end_a_deb822_stanza() {
        let text = "Types: deb\nURIs: http://b\nSuites: x\n \nEnabled: no\n";
        assert_eq!(parse("x.sources", text), []);
    }

    #[test]
    fn deb822_sources_are_parsed() {
        let text = "Types: deb\n# a comment\nURIs: http://debian.example.org/debian/\n\
                    Suites: bookworm bookworm-updates\nComponents: main\n\
                    Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\
                    Enabled: No\nTypes: deb\nURIs: http://b\nSuites: x\n\n\
                    Types: deb\nURIs: http://c\nSuites: /\nSigned-By:\n -----BEGIN PGP\n .\n";
        let found = parse("x.sources", text);
        let key = Some("/usr/share/keyrings/debian-archive-keyring.gpg");
        let entry = |uri: &str, suite: &str, key, components: &[&str]| SourceEntry {
            id: None,
            enabled: true,
            file: "x.sources".into(),
            ..entry(uri, suite, key, components)
        };
        assert_eq!(
            found[..2],
            [
                entry(
                    "http://debian.example.org/debian/",
                    "bookworm",
                    key,
                    &["main"]
                ),
                entry(
                    "http://debian.example.org/debian/",
                    "bookworm-updates",
                    key,
                    &["main"]
                ),
            ]
        );
        assert_eq!(found.len(), 3);
        assert!(found[2].signed_by.as_deref().unwrap().contains("BEGIN PGP"));
    }

    #[test]
    fn incomplete_entries_are_reported() {
        for (name, text, line, words) in rows! {
            "x.list", "\ndeb http://a x\n", 2, "no component";
            "x.list", "deb http://a stable/ main\n", 1, "is a path";
            "x.sources", "# ours\nTypes: deb\nURIs: http://a\n\n", 2, "no `Suites`";
            "x.sources",
                "Types: deb\nURIs: http://a\nSuites: x\nComponents: main\n\nURIs: http://a\nSuites: /\n",
                6, "no `Types`";
            "x.sources", "Types: deb\nURIs: http://a\nSuites: x\n", 1, "no component";
        } {
            let (found, why) = super::incomplete(name.into(), text).expect(text);
            assert!(
                found == line && why.contains(words),
                "{text}: {found} {why}"
            );
        }
        for (name, text) in rows! {
            "x.list", "deb http://a x main # y\n#deb http://a\ndeb [a=b] http://a /\n";
            "x.sources",
                "Types: deb\nURIs: http://a\nSuites:\n x\nComponents: main\nSigned-By:\n -----BEGIN\n .\n";
            "x.sources", "Enabled: no\nTypes: deb\n";
        } {
            assert_eq!(super::incomplete(name.into(), text), None, "{text}");
        }
    }

    #[test]
    fn unusable_keyring_is_reported() {
        let files = FakeFiles::new();
        let line = |key: &str| format!("deb [signed-by=/usr/share/keyrings/{key}] https://a/ /\n");
        files.put("/etc/apt/sources.list.d/a.list", line("a.gpg"));
        let found = || super::issues(&files).unwrap();
        // An empty directory is not evidence.
        assert_eq!(found(), []);
        files.put("/usr/share/keyrings/other.gpg", "\u{1}");
        let whys = |found: Vec<super::SourceIssue>| {
            let [one] = &found[..] else {
                panic!("{found:?}");
            };
            assert_ne!(one.impact, super::Impact::All);
            one.why.clone()
        };
        assert!(
            whys(found()).contains("/etc/apt/sources.list.d/a.list")
                && whys(found()).contains("does not exist")
        );
        files.put("/usr/share/keyrings/a.gpg", "");
        assert!(whys(found()).contains("a.gpg` is empty"));
        files.put("/usr/share/keyrings/a.gpg", "<!DOCTYPE html>\n");
        assert!(whys(found()).contains("not a key"));
        files.put_mode("/usr/share/keyrings/a.gpg", "\u{1}", 0o600);
        assert!(whys(found()).contains("is readable only by root"));
        assert_eq!(
            found()[0].remedy,
            "run `chmod 644 /usr/share/keyrings/a.gpg`"
        );
        files.put("/usr/share/keyrings/a.gpg", "\u{1}");
        assert_eq!(found(), []);
        // One keyring of several is sufficient, and a key can be embedded in the file.
        files.put(
            "/etc/apt/sources.list.d/b.sources",
            "Types: deb\nURIs: https://b/\nSuites: x\nComponents: main\n\
             Signed-By: /usr/share/keyrings/gone.gpg,/usr/share/keyrings/a.gpg\n\n\
             Types: deb\nURIs: https://c/\nSuites: x\nComponents: main\nSigned-By:\n \
             -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n /mQINBGabcdef\n -----END PGP PUBLIC KEY BLOCK-----\n",
        );
        assert_eq!(found(), []);
    }

    /// The messages are from apt 2.6.
    #[test]
    fn message_urls_match_their_entries() {
        for (line, said) in rows! {
            "deb cdrom:[Debian GNU/Linux 12.5.0 _Bookworm_ - Official amd64 NETINST 20240210-11:27]/ bookworm main",
                "Err:3 cdrom://[Debian GNU/Linux 12.5.0 _Bookworm_ - Official amd64 NETINST 20240210-11:27] bookworm \
                 Release\n  Please use apt-cdrom to make this CD-ROM recognized by APT.";
            "deb file:///var/cuda-repo-debian12-12-4-local /",
                "Err:3 file:/var/cuda-repo-debian12-12-4-local  Release\n  File not found";
        } {
            let failures = Apt.failures_by_source(said).expect("one");
            let entry = one_line("/etc/apt/sources.list".into(), line).expect("an entry");
            assert!(entry.is_at(&failures[0].address), "{failures:?} {entry:?}");
        }
    }

    #[test]
    fn files_that_apt_ignores_are_not_read() {
        let files = FakeFiles::new();
        let line = "deb http://a x main\n";
        files.put("/etc/apt/sources.list", line);
        for name in ["b.list", "b.list.save", "b c.list", "b"] {
            files.put(&format!("/etc/apt/sources.list.d/{name}"), line);
        }
        files.put_directory("/etc/apt/sources.list.d/folder.list", 0o755);
        let found: Vec<String> = (Apt.entries(&files).unwrap().into_iter())
            .map(|entry| entry.file.into_string())
            .collect();
        assert_eq!(
            found,
            ["/etc/apt/sources.list", "/etc/apt/sources.list.d/b.list"]
        );
    }

    #[test]
    fn malformed_text_has_no_entry() {
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
            assert!(parse("x.list", text).is_empty(), "{text:?}");
            assert!(parse("x.sources", text).is_empty(), "{text:?}");
        }
    }

    #[test]
    fn entries_match_repositories_and_components() {
        let only = |name: &str, text: &str| parse(name, text).pop().expect("an entry");
        let guide = only("x.list", "deb [signed-by=/k.gpg] https://a/deb/$(ARCH) /");
        assert!(guide.names("https://a/deb/amd64/", "/", Some("amd64")));
        assert!(!guide.names("https://a/deb/amd64", "/", Some("arm64")));
        assert!(!guide.names("https://a/deb/amd64", "stable", Some("amd64")));
        let strings = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (name, text, brings, skips_verification) in rows! {
            "x.list", "deb http://a x main", true, false;
            "x.list", "deb\thttp://a x main", true, false;
            "x.list", "deb-src http://a x main", false, false;
            "x.list", "deb http://a x contrib", false, false;
            "x.list", "deb [arch=arm64,i386] http://a x main", false, false;
            "x.list", "deb [arch=i386,amd64 trusted=yes] http://a x main", true, true;
            "x.list", "deb [trusted=no] http://a x main", true, false;
            "x.sources", "Types: deb-src\nURIs: http://a\nSuites: x\nComponents: main\n", false,
                false;
            "x.sources",
                "Types: deb-src deb\nURIs: http://a\nSuites: x\nComponents: main\n\
                 Architectures: amd64\nAllow-Insecure: yes\n", true, true;
        } {
            let entry = only(name, text);
            let found = entry.provides(&strings(&["main"]), &strings(&["amd64"]));
            assert_eq!(
                (found, entry.skips_verification),
                (brings, skips_verification),
                "{text}"
            );
        }
    }

    #[test]
    fn invalid_source_files_are_reported() {
        let (host, fakes) = crate::host::fake::host();
        let of = || -> Vec<String> {
            let found = super::issues(&*host.files).unwrap();
            found
                .into_iter()
                .map(|issue| format!("{}: {}", issue.why, issue.remedy))
                .collect()
        };
        let put = |name: &str, text: &str| {
            fakes
                .files
                .put(&format!("/etc/apt/sources.list.d/{name}"), text)
        };
        put(
            "good.list",
            "# a comment\n\ndeb [arch=amd64 signed-by=/k.gpg] https://a.example/x/ /\n",
        );
        put(
            "good.sources",
            "Types: deb\nURIs: https://b.example\nSuites: x\nComponents: main\nSigned-By:\n -----BEGIN\n .\n",
        );
        fakes.files.put("/k.gpg", "\u{1}");
        put("page.list.save", "<html>");
        assert!(of().is_empty(), "{:?}", of());
        put("page.list", "<!DOCTYPE html>\n<html>\n");
        assert!(
            of()[0].contains("page.list` is a web page") && of()[0].contains("line 1"),
            "{:?}",
            of()
        );
        put("page.list", "deb https://c.example x main\nE404\n");
        assert!(
            of()[0].contains("line 2 of `/etc/apt/sources.list.d/page.list`"),
            "{:?}",
            of()
        );
        put("page.list", "");
        put("other.list", "deb https://a.example/x /\n");
        let found = of();
        assert!(
            found[0].contains("good.list") && found[0].contains("other.list"),
            "{found:?}"
        );
        assert!(
            found[0].contains("run `rm /etc/apt/sources.list.d/other.list && apt-get update`"),
            "{found:?}"
        );
    }
}
