//! Repositories: the key is fetched, its fingerprint compared, and only then is anything written.

use camino::Utf8PathBuf;

use super::{Applier, ChangeError, FileAfter, Undo, file, source};
use crate::{
    config::desired::{Manager, Repository},
    tools::{
        apt_sources::{self, Entry},
        openpgp::{self, Key},
    },
};

/// A key is some kilobytes.
const KEY_LIMIT: u64 = 1 << 20;

/// The accepted keys among those that were fetched, without armour.
fn keyring(
    repository: &Repository,
    url: &str,
    keys: &[Key],
    now: i64,
) -> Result<Vec<u8>, ChangeError> {
    let accepted: Vec<&Key> = keys
        .iter()
        .filter(|key| source::accepts(repository, &key.fingerprint))
        .collect();
    let Some(first) = accepted.first() else {
        return Err(ChangeError::KeyMismatch {
            repository: repository.name.clone(),
            url: url.to_owned(),
            found: keys.iter().map(|key| key.fingerprint.clone()).collect(),
            accepted: repository.fingerprints.clone(),
        });
    };
    let valid: Vec<&&Key> = accepted
        .iter()
        .filter(|key| key.expires.is_none_or(|at| at > now))
        .collect();
    if valid.is_empty() {
        return Err(ChangeError::KeyExpired {
            repository: repository.name.clone(),
            fingerprint: first.fingerprint.clone(),
            on: first
                .expires
                .and_then(|at| jiff::Timestamp::from_second(at).ok())
                .map_or_else(
                    || "an unknown day".to_owned(),
                    |at| at.strftime("%Y-%m-%d").to_string(),
                ),
        });
    }
    Ok(valid.iter().flat_map(|key| key.binary.clone()).collect())
}

/// The first entry that names one of the repository's suites with another key.
fn conflict<'e>(repository: &Repository, entries: &'e [Entry]) -> Option<&'e Entry> {
    let architecture = repository.architectures.first().map(String::as_str);
    let ours = source::keyring_path(repository);
    entries.iter().find(|entry| {
        let names = |suite: &String| entry.names(&repository.url, suite, architecture);
        repository.suites.iter().any(names)
            && entry.signed_by.as_deref() != ours.as_ref().map(|path| path.as_str())
    })
}

impl Applier {
    pub(super) fn preview_repository(
        &self,
        repository: &Repository,
    ) -> Result<String, ChangeError> {
        if self.policy.manager == Manager::Dnf {
            return Ok("adding a repository for dnf is not available in this version".to_owned());
        }
        self.check_conflict(repository)?;
        let mut text = String::new();
        for (path, content) in texts(repository) {
            let before = self.host.files.read_text(&path)?;
            text.push_str(&file::diff(&path, before.as_deref(), Some(&content)));
        }
        if let (None, Some(keyring)) = (&repository.keyring, source::keyring_path(repository)) {
            text.push_str(&format!(
                "+ {keyring} with {}\n",
                repository.fingerprints.join(", ")
            ));
        }
        Ok(text)
    }

    pub(super) fn capture_repository(&self, repository: &Repository) -> Result<Undo, ChangeError> {
        let mut paths: Vec<Utf8PathBuf> = texts(repository)
            .into_iter()
            .map(|(path, _)| path)
            .collect();
        if let (None, Some(keyring)) = (&repository.keyring, source::keyring_path(repository)) {
            paths.push(keyring);
        }
        self.capture_files(&paths, |_| FileAfter::Unknown)
    }

    /// Looks ahead for what would refuse the repository: a key that is not the one named, an entry
    /// of somebody else. A network that is away is no refusal; applying tries again, and tells.
    pub(super) async fn rehearse_repository(
        &self,
        repository: &Repository,
    ) -> Result<(), ChangeError> {
        self.apt()?;
        self.check_conflict(repository)?;
        match (&repository.keyring, &repository.key_url) {
            (None, Some(url)) => match self.fetch_keyring(repository, url).await {
                // Nor is it one that somebody asked to stop; the engine has heard it as well.
                Ok(_) | Err(ChangeError::Fetch { .. } | ChangeError::Stopped { .. }) => Ok(()),
                Err(error) => Err(error),
            },
            _ => Ok(()),
        }
    }

    pub(super) async fn add_repository(&self, repository: &Repository) -> Result<(), ChangeError> {
        self.apt()?;
        self.check_conflict(repository)?;
        match (&repository.keyring, &repository.key_url) {
            (Some(keyring), _) => {
                if !self.host.files.exists(keyring)? {
                    return Err(incomplete(
                        repository,
                        format!("its keyring `{keyring}` is not there"),
                    ));
                }
            }
            // Further components of an archive that apt trusts by its own keyrings.
            (None, None) => {}
            (None, Some(url)) => {
                let keyring = self.fetch_keyring(repository, url).await?;
                if let Some(path) = source::keyring_path(repository) {
                    // Readable for all: apt verifies as the user `_apt`.
                    self.write_file(&path, &keyring, 0o644)?;
                }
            }
        }
        for (path, content) in texts(repository) {
            self.write_file(&path, content.as_bytes(), 0o644)?;
        }
        self.lists.set_fresh(false);
        Ok(())
    }

    async fn fetch_keyring(
        &self,
        repository: &Repository,
        url: &str,
    ) -> Result<Vec<u8>, ChangeError> {
        if repository.fingerprints.is_empty() {
            return Err(incomplete(
                repository,
                "no fingerprint says which key to trust".to_owned(),
            ));
        }
        // It tries again for minutes; nothing is lost where it is given up half-way.
        let bytes = self
            .unless_stopped("fetch the key", self.host.http.get(url, KEY_LIMIT))
            .await?
            .map_err(|source| ChangeError::Fetch {
                repository: repository.name.clone(),
                source,
            })?;
        let keys = openpgp::parse(&bytes).map_err(|source| ChangeError::NoKey {
            repository: repository.name.clone(),
            url: url.to_owned(),
            source,
        })?;
        keyring(repository, url, &keys, self.host.clock.now().as_second())
    }

    /// apt refuses to work at all when two entries contradict each other.
    fn check_conflict(&self, repository: &Repository) -> Result<(), ChangeError> {
        let mut entries = apt_sources::read(&*self.host.files)?;
        entries.retain(|entry| entry.file != source::apt_source_path(repository));
        let Some(entry) = conflict(repository, &entries) else {
            return Ok(());
        };
        Err(ChangeError::SourceConflict {
            repository: repository.name.clone(),
            file: entry.file.clone(),
            uri: format!("{} {}", entry.uri, entry.suite),
            theirs: entry.signed_by.clone().unwrap_or_else(|| "none".to_owned()),
        })
    }

    /// The files whose entries contradict each other, in words; apt names the keys alone.
    pub(super) fn contradictions(&self) -> Result<Option<String>, ChangeError> {
        let found = contradictions(&apt_sources::read(&*self.host.files)?);
        Ok((!found.is_empty()).then(|| found.join("\n")))
    }
}

/// Each entry that names the same address and suite as another, with another key.
fn contradictions(entries: &[Entry]) -> Vec<String> {
    (entries.iter())
        .filter(|one| {
            entries.iter().any(|other| {
                one.uri == other.uri && one.suite == other.suite && one.signed_by != other.signed_by
            })
        })
        .map(|entry| {
            let Entry {
                file, uri, suite, ..
            } = entry;
            let key = entry.signed_by.as_deref().unwrap_or("no key");
            format!("`{file}` names {uri} {suite} with {key}")
        })
        .collect()
}

/// The files of text that make the repository: source, and its priority where it has one.
fn texts(repository: &Repository) -> Vec<(Utf8PathBuf, String)> {
    let mut files = vec![(
        source::apt_source_path(repository),
        source::apt_source(repository),
    )];
    files.extend(source::priority(repository));
    files
}

fn incomplete(repository: &Repository, why: String) -> ChangeError {
    ChangeError::Repository {
        repository: repository.name.clone(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> Repository {
        Repository {
            name: "toolkit".into(),
            url: "https://example.org/deb/".into(),
            suites: vec!["/".into()],
            components: vec![],
            architectures: vec!["amd64".into()],
            key_url: Some("https://example.org/key".into()),
            fingerprints: vec!["aa".repeat(20)],
            keyring: None,
            priority: None,
        }
    }

    fn key(digits: &str, expires: Option<i64>) -> Key {
        Key {
            fingerprint: digits.repeat(20),
            expires,
            binary: digits.as_bytes().to_vec(),
        }
    }

    #[test]
    fn only_the_named_and_valid_key_is_kept() {
        let kept = |keys: &[Key]| keyring(&repository(), "https://example.org/key", keys, 100);
        assert_eq!(
            kept(&[key("BB", None), key("AA", Some(101))]).unwrap(),
            b"AA"
        );
        let error = kept(&[key("BB", None)]).unwrap_err();
        assert!(matches!(error, ChangeError::KeyMismatch { .. }));
        let text = error.to_string();
        assert!(text.contains(&"BB".repeat(20)) && text.contains(&"aa".repeat(20)));
        let error = kept(&[key("AA", Some(100))]).unwrap_err();
        assert!(
            error.to_string().contains("expired on 1970-01-01"),
            "{error}"
        );
    }

    fn entry(uri: &str, suite: &str, key: Option<&str>) -> Entry {
        Entry {
            file: "/a.list".into(),
            uri: uri.into(),
            written: uri.into(),
            suite: suite.into(),
            signed_by: key.map(str::to_owned),
            binary: true,
            components: Vec::new(),
            architectures: Vec::new(),
            trusting: false,
        }
    }

    #[test]
    fn entries_that_contradict_each_other_are_named() {
        let uri = "https://example.org/deb";
        let mut sources = [
            entry(uri, "/", Some("/a.gpg")),
            entry(uri, "/", Some("/b.gpg")),
            entry(uri, "stable", Some("/a.gpg")),
        ];
        sources[1].file = "/b.list".into();
        assert_eq!(
            contradictions(&sources),
            [
                "`/a.list` names https://example.org/deb / with /a.gpg",
                "`/b.list` names https://example.org/deb / with /b.gpg",
            ]
        );
    }

    #[test]
    fn two_entries_for_one_address_must_agree() {
        let ours = "/usr/share/keyrings/gpu-bootstrap-toolkit.gpg";
        for (other, conflicts) in [
            (entry("https://example.org/deb", "/", Some(ours)), false),
            (entry("https://example.org/deb", "stable", None), false),
            (entry("https://example.org/other", "/", None), false),
            (entry("https://example.org/deb", "/", None), true),
            (entry("https://example.org/$(ARCH)", "/", None), false),
            (entry("https://example.org/deb", "/", Some("/k.gpg")), true),
        ] {
            let entries = [other];
            assert_eq!(conflict(&repository(), &entries).is_some(), conflicts);
        }
    }
}
