//! The repositories that dnf is configured with, `dnf.conf(5)`, section "repo options".

use camino::Utf8Path;

use crate::{
    host::{FilesError, ReadFiles},
    tools::packages::{ArchiveError, Further, SourceEntry, SourceFlaw},
};

/// The folder of the files; dnf reads `*.repo`.
const FOLDER: &str = "/etc/yum.repos.d";

/// All repositories of a machine.
///
/// # Errors
/// When an existing file cannot be read.
pub fn read(files: &dyn ReadFiles) -> Result<Vec<SourceEntry>, FilesError> {
    let mut entries = Vec::new();
    for name in files.list(Utf8Path::new(FOLDER))? {
        let path = Utf8Path::new(FOLDER).join(&name);
        if path.extension() == Some("repo") {
            let text = files.read_text(&path)?.unwrap_or_default();
            entries.extend(parse(&path, &text));
        }
    }
    Ok(entries)
}

/// Files that dnf does not read: it stops at a line before the first section, and at one that is no option.
///
/// # Errors
/// When an existing file cannot be read.
pub fn flaws(files: &dyn ReadFiles) -> Result<Vec<SourceFlaw>, FilesError> {
    let mut found = Vec::new();
    for name in files.list(Utf8Path::new(FOLDER))? {
        let path = Utf8Path::new(FOLDER).join(&name);
        if path.extension() != Some("repo") {
            continue;
        }
        let text = files.read_text(&path)?.unwrap_or_default();
        let mut in_section = false;
        let bad = text.lines().position(|line| {
            let line = line.trim_end();
            let is_section = line.starts_with('[') && line.ends_with(']');
            in_section |= is_section;
            let is_plain = line.is_empty() || line.starts_with(['#', ';']);
            let is_option = in_section && (line.starts_with([' ', '\t']) || line.contains('='));
            !(is_section || is_plain || is_option)
        });
        if let Some(at) = bad {
            let line = at + 1;
            let is_page = text.trim_start().starts_with('<');
            found.push(SourceFlaw {
                why: match is_page {
                    true => format!("`{path}` is a web page and no list of repositories (line {line})"),
                    false => format!("line {line} of `{path}` is no section and no option"),
                },
                remedy: match is_page {
                    true => format!("remove `{path}`: what was downloaded there was not found, or is elsewhere now"),
                    false => format!("correct or remove line {line} of `{path}`"),
                },
            });
        }
    }
    Ok(found)
}

/// The repositories in a file: sections with options.
#[must_use]
pub fn parse(file: &Utf8Path, text: &str) -> Vec<SourceEntry> {
    let mut entries = Vec::new();
    let mut section: Option<(&str, Vec<(&str, &str)>)> = None;
    for line in text.lines().map(str::trim_end).chain(["[]"]) {
        if let Some(id) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            let ended = section.replace((id, Vec::new()));
            entries.extend(ended.map(|(id, options)| entry(file, id, &options)));
        } else if line.starts_with(['#', ';', ' ', '\t']) {
            // A comment, or further values of the option before.
        } else if let (Some((_, options)), Some((key, value))) =
            (&mut section, line.split_once('='))
        {
            options.push((key.trim(), value.trim()));
        }
    }
    entries
}

fn entry(file: &Utf8Path, id: &str, options: &[(&str, &str)]) -> SourceEntry {
    let option = |wanted: &str| {
        let named = options.iter().rev().find(|(key, _)| *key == wanted);
        named
            .map(|(_, value)| *value)
            .filter(|value| !value.is_empty())
    };
    let is_off = |value: &str| ["0", "no", "false", "off"].contains(&&*value.to_ascii_lowercase());
    let address = (["baseurl", "mirrorlist", "metalink"].iter())
        .find_map(|key| Some(format!("{key}={}", option(key)?)));
    let written = address.unwrap_or_default();
    let url = written.split_once('=').map_or("", |(_, url)| url);
    SourceEntry {
        id: Some(id.to_owned()),
        enabled: !option("enabled").is_some_and(is_off),
        file: file.to_owned(),
        uri: SourceEntry::canonical(url),
        written,
        suite: String::new(),
        signed_by: (option("gpgkey"))
            .map(|key| key.strip_prefix("file://").unwrap_or(key).to_owned()),
        binary: true,
        components: vec![id.to_owned()],
        architectures: Vec::new(),
        skips_verification: option("gpgcheck").is_some_and(is_off)
            && option("repo_gpgcheck").is_none_or(is_off),
    }
}

/// The distribution's own repositories that are configured and disabled, as one to add; `None` if the
/// wanted one is enabled. Several names stand for one repository: releases call it differently.
///
/// # Errors
/// When none of the names is configured, or the repository names no key file.
pub fn further(entries: &[SourceEntry], names: &[String]) -> Result<Option<Further>, ArchiveError> {
    let is_named = |entry: &&SourceEntry| {
        !entry.is_ours() && entry.id.as_ref().is_some_and(|id| names.contains(id))
    };
    let found: Vec<&SourceEntry> = entries.iter().filter(is_named).collect();
    if found.iter().any(|entry| entry.enabled) {
        return Ok(None);
    }
    let Some(entry) = found.first() else {
        return Err(ArchiveError::NoEntry {
            suite: names.join("` or `"),
            places: "`/etc/yum.repos.d`",
        });
    };
    match &entry.signed_by {
        Some(key) if key.starts_with('/') && !key.contains([' ', ',', '\n']) => Ok(Some(Further {
            url: entry.written.clone(),
            suites: Vec::new(),
            components: names.to_vec(),
            keyring: Some(key.clone()),
        })),
        _ => Err(ArchiveError::NoKeyFile {
            file: entry.file.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    /// As AlmaLinux 9 has it.
    const CRB: &str = "\
[crb]
name=AlmaLinux $releasever - CRB
mirrorlist=https://mirrors.almalinux.org/mirrorlist/$releasever/crb
# baseurl=https://repo.almalinux.org/almalinux/$releasever/CRB/$basearch/os/
enabled=0
gpgcheck=1
countme=1
gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-AlmaLinux-9

[theirs]
name = Theirs
baseurl = http://127.0.0.1/a/
    http://127.0.0.1/b/
gpgcheck = 0
";

    fn entries(text: &str) -> Vec<SourceEntry> {
        parse(Utf8Path::new("/etc/yum.repos.d/a.repo"), text)
    }

    #[test]
    fn sections_are_repositories() {
        let [crb, theirs] = &entries(CRB)[..] else {
            panic!("two");
        };
        assert_eq!(crb.id.as_deref(), Some("crb"));
        assert!(!crb.enabled && !crb.skips_verification);
        assert!(crb.written.starts_with("mirrorlist=https://mirrors"));
        assert!(theirs.enabled && theirs.skips_verification);
        assert_eq!(theirs.uri, "http://127.0.0.1/a");
        assert!(theirs.is_at("theirs") && theirs.is_at("http://127.0.0.1/a/x.rpm"));
        assert!(!theirs.is_at("crb"));
    }

    #[test]
    fn a_disabled_repository_of_the_distribution_is_added_as_one_of_ours() {
        let names = ["crb", "powertools"].map(str::to_owned);
        let found = further(&entries(CRB), &names).unwrap().expect("one to add");
        assert!(found.url.starts_with("mirrorlist="));
        let key = "/etc/pki/rpm-gpg/RPM-GPG-KEY-AlmaLinux-9";
        assert_eq!(found.keyring.as_deref(), Some(key));
        let enabled = CRB.replace("enabled=0", "enabled=1");
        assert_eq!(further(&entries(&enabled), &names), Ok(None));
        let unsigned = CRB.replace("gpgkey", "comment");
        let error = further(&entries(&unsigned), &names).unwrap_err();
        assert!(matches!(error, ArchiveError::NoKeyFile { .. }));
        let error = further(&[], &names).unwrap_err();
        assert!(
            error.to_string().contains("`crb` or `powertools`"),
            "{error}"
        );
    }

    reads_any_text!("(\\[[a-z]*\\]|[a-z]+=|.|\n)*", |text| entries(&text));

    #[test]
    fn what_keeps_dnf_from_reading_is_named() {
        let (host, fakes) = crate::host::fake::host();
        let of = || -> Vec<String> {
            let found = super::flaws(&*host.files).unwrap();
            found.into_iter().map(|flaw| flaw.why).collect()
        };
        let put =
            |name: &str, text: &str| fakes.files.put(&format!("/etc/yum.repos.d/{name}"), text);
        put(
            "good.repo",
            "# x\n[one]\nname=One\nbaseurl=https://a.example\n https://b.example\n\n[two]\nenabled = 0\n",
        );
        put("note.txt", "anything\n");
        assert!(of().is_empty(), "{:?}", of());
        put("bad.repo", "<!DOCTYPE html>\n");
        assert!(of()[0].contains("web page"), "{:?}", of());
        put("bad.repo", "[one]\nname=One\n404\n");
        assert!(
            of()[0].contains("line 3 of `/etc/yum.repos.d/bad.repo`"),
            "{:?}",
            of()
        );
    }
}
