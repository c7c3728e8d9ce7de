//! The configured dnf repositories, `dnf.conf(5)`, section "repo options".

use camino::{Utf8Path, Utf8PathBuf};

use super::{Dnf, exclusions, repository};
use crate::{
    host::{FilesError, ReadFiles},
    model::packages::Repository,
    tools::packages::{
        ArchiveError, Exclusion, Further, Impact, SourceEntry, SourceIssue, Sources,
    },
};

/// The directory of repository files. dnf reads `*.repo`.
const DIRECTORY: &str = "/etc/yum.repos.d";

/// The default options of all repositories, which a repository can override. Additional dnf 5 drop-ins are not read, because no
/// distribution in the profiles uses dnf 5.
pub(super) const MAIN: &str = "/etc/dnf/dnf.conf";

/// The verification settings for repositories that do not set them. The dnf default is no verification, dnf.conf(5).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    packages: bool,
    lists: bool,
}

impl Verified {
    fn of(options: &[(&str, &str)], default: Self) -> Self {
        let is_on = |wanted: &str| {
            let value = option(options, wanted)?.to_ascii_lowercase();
            Some(["1", "yes", "true", "on"].contains(&value.as_str()))
        };
        Self {
            packages: is_on("gpgcheck").unwrap_or(default.packages),
            lists: is_on("repo_gpgcheck").unwrap_or(default.lists),
        }
    }

    fn by_default(files: &dyn ReadFiles) -> Result<Self, FilesError> {
        let text = files.read_lossy(Utf8Path::new(MAIN))?.unwrap_or_default();
        let main = sections(&text).into_iter().rfind(|(id, _)| *id == "main");
        let nothing = Self::default();
        Ok(main.map_or(nothing, |(_, options)| Self::of(&options, nothing)))
    }
}

/// Returns the last value of an option, or `None` if that value is empty or the option is not set.
fn option<'t>(options: &[(&str, &'t str)], wanted: &str) -> Option<&'t str> {
    let named = options.iter().rev().find(|(key, _)| *key == wanted);
    named
        .map(|(_, value)| *value)
        .filter(|value| !value.is_empty())
}

/// Returns the number of the first line that is not UTF-8. Comments may have any encoding.
fn undecodable(bytes: &[u8]) -> Option<usize> {
    let is_bad = |line: &[u8]| !line.starts_with(b"#") && std::str::from_utf8(line).is_err();
    Some(bytes.split(|byte| *byte == b'\n').position(is_bad)? + 1)
}

/// Returns the repository files with their texts.
pub(super) fn texts(files: &dyn ReadFiles) -> Result<Vec<(Utf8PathBuf, String)>, FilesError> {
    let mut found = Vec::new();
    for name in files.list(Utf8Path::new(DIRECTORY))? {
        let path = Utf8Path::new(DIRECTORY).join(&name);
        if path.extension() == Some("repo") {
            let text = files.read_lossy(&path)?.unwrap_or_default();
            found.push((path, text));
        }
    }
    Ok(found)
}

/// Returns the repositories in a file.
pub fn parse(file: &Utf8Path, text: &str, default: Verified) -> Vec<SourceEntry> {
    (sections(text).iter())
        .map(|(id, options)| entry(file, id, options, default))
        .collect()
}

/// A section: its name and its options. Additional values of an option follow it with an empty key.
type SourceSection<'t> = (&'t str, Vec<(&'t str, &'t str)>);

/// Returns the name in the first line of a section. libdnf accepts a comment behind it.
fn section_name(line: &str) -> Option<&str> {
    let (name, rest) = line.strip_prefix('[')?.split_once(']')?;
    let rest = rest.trim_start();
    (rest.is_empty() || rest.starts_with(['#', ';'])).then_some(name)
}

/// Splits a text into sections.
pub(super) fn sections(text: &str) -> Vec<SourceSection<'_>> {
    let mut found = Vec::new();
    let mut section: Option<SourceSection<'_>> = None;
    for line in text.lines().map(str::trim_end).chain(["[]"]) {
        if let Some(id) = section_name(line) {
            found.extend(section.replace((id, Vec::new())));
        } else if line.starts_with(['#', ';']) {
            // A comment.
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, options)) = &mut section
                && !options.is_empty()
            {
                options.push(("", line.trim()));
            }
        } else if let (Some((_, options)), Some((key, value))) =
            (&mut section, line.split_once('='))
        {
            options.push((key.trim(), value.trim()));
        }
    }
    found
}

fn entry(file: &Utf8Path, id: &str, options: &[(&str, &str)], default: Verified) -> SourceEntry {
    let option = |wanted: &str| option(options, wanted);
    let verified = Verified::of(options, default);
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
        skips_verification: !verified.packages && !verified.lists,
    }
}

impl Sources for Dnf {
    fn entries(&self, files: &dyn ReadFiles) -> Result<Vec<SourceEntry>, FilesError> {
        let default = Verified::by_default(files)?;
        Ok((texts(files)?.iter())
            .flat_map(|(path, text)| parse(path, text, default))
            .collect())
    }

    /// Returns errors in repository files: lines that are not UTF-8, options before the first section, and lines that are
    /// neither a section nor an option.
    fn source_issues(&self, files: &dyn ReadFiles) -> Result<Vec<SourceIssue>, FilesError> {
        let mut found = Vec::new();
        for name in files.list(Utf8Path::new(DIRECTORY))? {
            let path = Utf8Path::new(DIRECTORY).join(&name);
            if path.extension() != Some("repo") {
                continue;
            }
            let bytes = files.read(&path)?.unwrap_or_default();
            if let Some(line) = undecodable(&bytes) {
                found.push(SourceIssue {
                    // dnf exits with a `TypeError`, and the message does not contain the file name (libdnf/conf.py, dnf 4.14).
                    impact: Impact::All,
                    why: format!("line {line} of `{path}` is not UTF-8"),
                    remedy: format!("write line {line} of `{path}` in UTF-8, or remove it"),
                });
                continue;
            }
            let text = String::from_utf8_lossy(&bytes);
            let mut in_section = false;
            let bad = text.lines().position(|line| {
                let line = line.trim_end();
                let is_section = section_name(line).is_some();
                in_section |= is_section;
                let is_plain = line.is_empty() || line.starts_with(['#', ';']);
                let is_option = in_section && (line.starts_with([' ', '\t']) || line.contains('='));
                !(is_section || is_plain || is_option)
            });
            if let Some(at) = bad {
                let line = at + 1;
                let is_page = text.trim_start().starts_with('<');
                found.push(SourceIssue {
                    // dnf 4, dnf/conf/read.py: "failed loading …, skipping".
                    impact: Impact::File,
                    why: match is_page {
                        true => format!("`{path}` is a web page (line {line})"),
                        false => format!("line {line} of `{path}` is not a section or an option"),
                    },
                    remedy: match is_page {
                        true => format!("remove `{path}`: the downloaded file does not exist on the server, or has moved"),
                        false => format!("correct or remove line {line} of `{path}`"),
                    },
                });
            }
        }
        Ok(found)
    }

    /// Returns a disabled repository of the distribution as a repository to add, or `None` if it is already enabled. `names`
    /// are the possible IDs of this repository, because its ID depends on the release.
    fn further(
        &self,
        entries: &[SourceEntry],
        _suites: &[String],
        names: &[String],
    ) -> Result<Option<Further>, ArchiveError> {
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
            Some(key) if key.starts_with('/') && !key.contains([' ', ',', '\n']) => {
                Ok(Some(Further {
                    url: entry.written.clone(),
                    suites: Vec::new(),
                    components: names.to_vec(),
                    keyring: Some(key.clone()),
                }))
            }
            _ => Err(ArchiveError::NoKeyFile {
                file: entry.file.clone(),
            }),
        }
    }

    fn exclusions(&self, files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
        exclusions::read(files)
    }

    fn proxies(&self, files: &dyn ReadFiles) -> Result<Vec<String>, FilesError> {
        exclusions::proxies(files)
    }

    fn keyring_path(&self, repository: &Repository) -> Option<Utf8PathBuf> {
        repository::keyring_path(repository)
    }

    /// rpm can import only armored keys.
    fn wants_armour(&self) -> bool {
        true
    }

    fn source(&self, repository: &Repository) -> (Utf8PathBuf, String) {
        repository::source(repository)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    /// From AlmaLinux 9.
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
        parse(
            Utf8Path::new("/etc/yum.repos.d/a.repo"),
            text,
            Verified::default(),
        )
    }

    #[test]
    fn repository_inherits_verification_from_main() {
        let (host, fakes) = crate::host::fake::host();
        let skips = |main: Option<&str>, own: &str| {
            match main {
                Some(text) => fakes.files.put(MAIN, text),
                None => fakes.files.take(MAIN),
            }
            let text = format!("[one]\nname=One\nbaseurl=https://a.example\n{own}\n");
            fakes.files.put("/etc/yum.repos.d/one.repo", text);
            let entries = Dnf.entries(&*host.files).expect("readable");
            entries[0].skips_verification
        };
        let (on, off) = (
            Some("[main]\ngpgcheck=1\n"),
            Some("[main]\ngpgcheck=False\n"),
        );
        assert!(skips(None, ""), "the dnf default is off");
        assert!(skips(off, ""));
        assert!(!skips(on, ""));
        assert!(!skips(Some("[main]\nrepo_gpgcheck=True\n"), ""));
        // The option of the repository takes precedence.
        assert!(skips(on, "gpgcheck=0"));
        assert!(!skips(off, "gpgcheck=Yes"));
        assert!(!skips(None, "repo_gpgcheck=1"));
        // Options of another section do not apply to all repositories.
        assert!(skips(Some("[other]\ngpgcheck=1\n"), ""));
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
        let commented = entries(&CRB.replace("[crb]", "[crb] # extra"));
        assert_eq!(commented[0], *crb);
    }

    #[test]
    fn disabled_distribution_repository_is_added() {
        let names = ["crb", "powertools"].map(str::to_owned);
        let further = |entries: &[SourceEntry], names: &[String]| Dnf.further(entries, &[], names);
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
    fn invalid_repository_files_are_reported() {
        let (host, fakes) = crate::host::fake::host();
        let of = || -> Vec<String> {
            let found = Dnf.source_issues(&*host.files).unwrap();
            found.into_iter().map(|issue| issue.why).collect()
        };
        let put =
            |name: &str, text: &str| fakes.files.put(&format!("/etc/yum.repos.d/{name}"), text);
        put(
            "good.repo",
            "# x\n[one]\nname=One\nbaseurl=https://a.example\n https://b.example\n\n[two]\nenabled = 0\n",
        );
        put("note.txt", "anything\n");
        // Comments may be in an encoding other than UTF-8, but options must not.
        let latin = b"# f\xfcr alle\n[three]\nname=Three\nbaseurl=https://c.example\n";
        fakes
            .files
            .put("/etc/yum.repos.d/latin.repo", latin.to_vec());
        assert!(of().is_empty(), "{:?}", of());
        let all = Dnf.entries(&*host.files).unwrap();
        assert!(
            all.iter().any(|entry| entry.id.as_deref() == Some("three")),
            "{all:?}"
        );
        fakes.files.put(
            "/etc/yum.repos.d/latin.repo",
            b"[three]\nname=Gr\xfc\xdfe\n".to_vec(),
        );
        assert_eq!(
            of(),
            ["line 2 of `/etc/yum.repos.d/latin.repo` is not UTF-8"]
        );
        put("latin.repo", "");
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
