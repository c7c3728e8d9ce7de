//! Adds repositories. If a key must be downloaded, no file is written before its fingerprint is verified.

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    change::{Applier, ChangeError, Class, FileAfter, STOPPED, Undo, file},
    config::desired::Repository,
    error::one_line,
    host::{FilesError, ReadFiles, trusted::unusable},
    model::packages::KEY_FILE,
    tools::{
        openpgp::{self, Key, KeyFile},
        packages::{Backend, FailureClass, SourceEntry, contradictions},
    },
};

/// The size limit of a key in bytes. A key has a few kilobytes.
pub const KEY_LIMIT: u64 = 1 << 20;

/// The content of the keyring with the accepted keys of a downloaded file.
fn keyring(
    repository: &Repository,
    url: &str,
    file: &KeyFile,
    wants_armour: bool,
    now: i64,
) -> Result<Vec<u8>, ChangeError> {
    let is_whole_file = accepts_file(repository, file);
    let accepted: Vec<&Key> = (file.keys.iter())
        .filter(|key| is_whole_file || accepts(repository, &key.fingerprint))
        .collect();
    let Some(first) = accepted.first() else {
        let digest = file
            .digest
            .as_deref()
            .filter(|_| repository.names_key_file());
        let found = file.keys.iter().map(|key| key.fingerprint.clone());
        let found: Vec<String> = found.chain(digest.map(of_file)).collect();
        return Err(mismatch(repository, url, &found));
    };
    let valid: Vec<&Key> = (accepted.iter().copied())
        .filter(|key| !key.revoked && key.expires.is_none_or(|at| at > now))
        .collect();
    if valid.is_empty() && first.revoked {
        let why = format!("{} was revoked by its owner", first.fingerprint);
        return Err(distrusted("key-revoked", repository, &why).advice(
            "nothing was changed. Ask the repository's vendor for the current signing key, and \
             configure its fingerprint",
        ));
    }
    if valid.is_empty() {
        let on = first
            .expires
            .and_then(|at| jiff::Timestamp::from_second(at).ok())
            .map_or_else(
                || "an unknown day".to_owned(),
                |at| at.strftime("%Y-%m-%d").to_string(),
            );
        let why = format!("{} expired on {on}", first.fingerprint);
        // The expiry date in the key file of an end-of-life series is not always extended (kubernetes/release issue 3818).
        let newer = match url.starts_with("https://pkgs.k8s.io/") {
            true => "; the key file of a newer Kubernetes series contains it",
            false => "",
        };
        return Err(distrusted("key-expired", repository, &why).advice(format!(
            "check the clock with `timedatectl`; if it is correct, set `repositories.{}.key-url` \
             to a file with the extended key, which has the same fingerprint{newer}",
            repository.name
        )));
    }
    Ok(match (is_whole_file, wants_armour) {
        // Keep the file unchanged, because later checks compare its digest.
        (true, _) => file.bytes.clone(),
        (false, true) => valid.iter().flat_map(|key| key.armoured.bytes()).collect(),
        (false, false) => valid.iter().flat_map(|key| key.binary.clone()).collect(),
    })
}

/// A key file digest as an entry of [`Repository::fingerprints`].
fn of_file(digest: &str) -> String {
    format!("{KEY_FILE}{digest}")
}

/// Returns `true` if the repository accepts the digest of this key file.
fn accepts_file(repository: &Repository, file: &KeyFile) -> bool {
    (file.digest.as_deref()).is_some_and(|digest| accepts(repository, &of_file(digest)))
}

/// Returns the first source entry with the URL and a suite of the repository but another key.
fn conflict<'e>(
    repository: &Repository,
    keyring: Option<&Utf8Path>,
    entries: &'e [SourceEntry],
) -> Option<&'e SourceEntry> {
    let architecture = repository.architectures.first().map(String::as_str);
    entries.iter().find(|entry| {
        let names = |suite: &String| entry.names(&repository.url, suite, architecture);
        repository.suites.iter().any(names)
            && entry.signed_by.as_deref() != keyring.map(Utf8Path::as_str)
    })
}

impl Applier {
    pub(in crate::change) fn preview_repository(
        &self,
        repository: &Repository,
    ) -> Result<String, ChangeError> {
        self.check_conflict(repository)?;
        let mut text = String::new();
        for (path, content) in self.source_files(repository) {
            let before = self.host.files.read_text(&path)?;
            text.push_str(&file::diff(&path, before.as_deref(), &content));
        }
        if let (None, Some(keyring)) = (&repository.keyring, self.backend.keyring_path(repository))
        {
            text.push_str(&format!(
                "+ {keyring} with {}\n",
                repository.fingerprints.join(", ")
            ));
        }
        Ok(text)
    }

    pub(in crate::change) fn capture_repository(
        &self,
        repository: &Repository,
    ) -> Result<Undo, ChangeError> {
        let mut paths: Vec<Utf8PathBuf> = self
            .source_files(repository)
            .into_iter()
            .map(|(path, _)| path)
            .collect();
        if let (None, Some(keyring)) = (&repository.keyring, self.backend.keyring_path(repository))
        {
            paths.push(keyring);
        }
        self.capture_files(paths.into_iter().map(|path| (path, FileAfter::Unknown)))
    }

    /// Detects errors that would prevent adding the repository: a wrong key or a conflicting entry. A network error is ignored,
    /// because it may be resolved before the repository is added.
    pub(in crate::change) async fn dry_run_repository(
        &self,
        repository: &Repository,
    ) -> Result<(), ChangeError> {
        self.check_conflict(repository)?;
        self.check_key_files(repository)?;
        match (&repository.keyring, &repository.key_url) {
            (None, Some(url)) => match self.fetch_keyring(repository, url).await {
                // A stop request is also ignored here, because the engine handles it.
                Err(error) if error.class != Class::KeyNotFetched && error.reason != STOPPED => {
                    Err(error)
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    pub(in crate::change) async fn add_repository(
        &self,
        repository: &Repository,
    ) -> Result<(), ChangeError> {
        self.check_conflict(repository)?;
        self.check_key_files(repository)?;
        match (&repository.keyring, &repository.key_url) {
            // `check_key_files` has checked an existing keyring. Without a key URL, the package manager's own keyrings apply.
            (Some(_), _) | (None, None) => {}
            (None, Some(url)) => {
                let keyring = self.fetch_keyring(repository, url).await?;
                if let Some(path) = self.backend.keyring_path(repository) {
                    // World-readable, because a package manager may verify as an unprivileged user.
                    self.host.files.write(&path, &keyring, 0o644)?;
                }
            }
        }
        for (path, content) in self.source_files(repository) {
            self.host.files.write(&path, content.as_bytes(), 0o644)?;
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
            let why = "no fingerprint is configured to verify the key";
            return Err(incomplete(repository, why));
        }
        let name = &repository.name;
        // The download is retried for minutes. It can be interrupted without loss.
        let bytes = self
            .unless_stopped("download the key", self.host.http.get(url, KEY_LIMIT))
            .await?
            .map_err(|source| ChangeError {
                hint: FailureClass::Network.hint().map(str::to_owned),
                retryable: source.is_retryable(),
                ..ChangeError::new(
                    "key-fetch",
                    format!("download the key of repository `{name}`"),
                )
                .caused_by(source)
                .of(Class::KeyNotFetched)
            })?;
        let file = openpgp::parse(&bytes).map_err(|source| {
            let what = format!("read the key of repository `{name}` from `{url}`");
            ChangeError::new("key-malformed", what).caused_by(source)
        })?;
        let now = self.host.clock.now().as_second();
        let wants_armour = self.backend.wants_armour() || repository.names_key_file();
        keyring(repository, url, &file, wants_armour, now)
    }

    /// Checks the existing key files of the repository. They must be writable only by root, and each of `key_files` must
    /// contain an accepted key. Other keys in these files are not rejected, because root has written them.
    fn check_key_files(&self, repository: &Repository) -> Result<(), ChangeError> {
        let files = &*self.host.files;
        for path in repository.key_files.iter().chain(&repository.keyring) {
            if let Some(why) = unusable(files, path)? {
                let why = format!("the key file `{path}` cannot be used: {why}");
                return Err(incomplete(repository, &why));
            }
        }
        for path in &repository.key_files {
            let bytes = files.read(path)?.unwrap_or_default();
            if !has_accepted_key(repository, &bytes) {
                return Err(match openpgp::parse(&bytes) {
                    Ok(file) => {
                        let found: Vec<String> =
                            file.keys.into_iter().map(|key| key.fingerprint).collect();
                        mismatch(repository, path.as_str(), &found)
                    }
                    Err(source) => {
                        let why = one_line(&source);
                        let why = format!("the key file `{path}` cannot be used: {why}");
                        incomplete(repository, &why)
                    }
                });
            }
        }
        Ok(())
    }

    /// Rejects contradictory entries, because a package manager may then stop working completely.
    fn check_conflict(&self, repository: &Repository) -> Result<(), ChangeError> {
        let (own, _) = self.backend.source(repository);
        let mut entries = self.backend.entries(&*self.host.files)?;
        entries.retain(|entry| entry.file != own);
        let keyring = self.backend.keyring_path(repository);
        let Some(entry) = conflict(repository, keyring.as_deref(), &entries) else {
            return Ok(());
        };
        let mut theirs = entry.signed_by.clone().unwrap_or_else(|| "none".to_owned());
        if theirs.starts_with('/')
            && let Some(why) = unusable(&*self.host.files, Utf8Path::new(&theirs))?
        {
            theirs = format!("{theirs}: {why}");
        }
        let SourceEntry {
            file, uri, suite, ..
        } = entry;
        Err(ChangeError::blocked(
            "repository-conflict",
            format!(
                "add repository `{}`: `{file}` contains the same URL {uri} {suite} with a \
                 different Signed-By ({theirs})",
                repository.name
            ),
        )
        .advice(format!("remove `{file}`, or its entry")))
    }

    /// The configuration files of the repository: the source, and the priority if it has one.
    fn source_files(&self, repository: &Repository) -> Vec<(Utf8PathBuf, String)> {
        let mut files = vec![self.backend.source(repository)];
        files.extend(self.backend.priority(repository));
        files
    }

    /// A description of contradictory entries, if any.
    pub(super) fn contradictions(&self) -> Result<Option<String>, ChangeError> {
        let found = contradictions(&self.backend.entries(&*self.host.files)?);
        Ok((!found.is_empty()).then(|| found.join("\n")))
    }
}

/// Returns a source file that gpu-bootstrap did not write and that already configures the repository as required: each suite
/// with its components, and only accepted keys. It is used unchanged. If `by_root` is `true`, the keyring must be writable
/// only by root, because root uses it.
///
/// # Errors
/// If an existing file cannot be read.
pub fn configured_elsewhere(
    backend: &dyn Backend,
    files: &dyn ReadFiles,
    repository: &Repository,
    by_root: bool,
) -> Result<Option<Utf8PathBuf>, FilesError> {
    // Without a key URL or with an existing keyring, the repository has no fingerprints to check an existing entry with.
    if repository.key_url.is_none() || repository.keyring.is_some() {
        return Ok(None);
    }
    let (own, _) = backend.source(repository);
    let mut entries = backend.entries(files)?;
    entries.retain(|entry| entry.file != own);
    let architecture = repository.architectures.first().map(String::as_str);
    let mut found = None;
    for suite in &repository.suites {
        let mut file = None;
        for entry in &entries {
            if entry.names(&repository.url, suite, architecture)
                && entry.provides(&repository.components, &repository.architectures)
                && !entry.skips_verification
                && has_only_accepted_keys(files, repository, entry, by_root)?
            {
                file = Some(entry.file.clone());
                break;
            }
        }
        let Some(file) = file else {
            return Ok(None);
        };
        found.get_or_insert(file);
    }
    Ok(found)
}

/// Returns `true` if the keyring of an entry contains only accepted keys.
fn has_only_accepted_keys(
    files: &dyn ReadFiles,
    repository: &Repository,
    entry: &SourceEntry,
    by_root: bool,
) -> Result<bool, FilesError> {
    // An inline key does not start with `/`. A list of several keyrings does, but is not the path of an existing file.
    let is_path = |path: &&str| path.starts_with('/');
    let Some(path) = entry.signed_by.as_deref().filter(is_path) else {
        return Ok(false);
    };
    if by_root && unusable(files, Utf8Path::new(path))?.is_some() {
        return Ok(false);
    }
    let Some(bytes) = files.read(Utf8Path::new(path))? else {
        return Ok(false);
    };
    Ok(evaluate(repository, &bytes) == Keyring::Accepted)
}

/// The state of a keyring for a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Keyring {
    /// The keyring is missing or cannot be parsed.
    #[default]
    Unusable,
    /// Each key is accepted by its fingerprint and not revoked, or the whole file is accepted by its digest.
    Accepted,
    /// The keyring contains the key with this fingerprint, which is not accepted or was revoked.
    Stranger(String),
}

/// Checks the keys in a keyring.
pub fn evaluate(repository: &Repository, bytes: &[u8]) -> Keyring {
    let Ok(file) = openpgp::parse(bytes) else {
        return Keyring::Unusable;
    };
    if accepts_file(repository, &file) {
        return Keyring::Accepted;
    }
    let strange = |key: &Key| key.revoked || !accepts(repository, &key.fingerprint);
    (file.keys.into_iter().find(strange))
        .map_or(Keyring::Accepted, |key| Keyring::Stranger(key.fingerprint))
}

/// Returns `true` if a key file contains a key that the repository accepts.
pub fn has_accepted_key(repository: &Repository, bytes: &[u8]) -> bool {
    openpgp::parse(bytes).is_ok_and(|file| {
        (file.keys.iter()).any(|key| !key.revoked && accepts(repository, &key.fingerprint))
    })
}

/// Returns `true` if the repository accepts a key.
pub fn accepts(repository: &Repository, fingerprint: &str) -> bool {
    (repository.fingerprints.iter()).any(|one| one.eq_ignore_ascii_case(fingerprint))
}

/// The error for a repository without a fingerprint, or with an unusable key file.
fn incomplete(repository: &Repository, why: &str) -> ChangeError {
    ChangeError::blocked(
        "repository",
        format!("add repository `{}`: {why}", repository.name),
    )
}

/// The error for a key that must not sign the repository.
fn distrusted(reason: &'static str, repository: &Repository, why: &str) -> ChangeError {
    let name = &repository.name;
    ChangeError::blocked(
        reason,
        format!("trust the key of repository `{name}`: {why}"),
    )
}

/// The error for a file without an accepted key.
fn mismatch(repository: &Repository, place: &str, found: &[String]) -> ChangeError {
    let why = format!(
        "`{place}` contains {}, but only {} is accepted",
        found.join(", "),
        repository.fingerprints.join(" or ")
    );
    distrusted("key-mismatch", repository, &why).advice(
        "nothing was changed. Ask the repository's vendor for the correct fingerprint, but not \
         over this network, because an unannounced key change can be an attack",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::fake::FakeFiles, tools::packages::Manager};

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
            key_files: vec![],
            signed: crate::model::packages::Signed::Packages,
            priority: None,
            packages: vec![],
        }
    }

    fn key(digits: &str, expires: Option<i64>) -> Key {
        Key {
            fingerprint: digits.repeat(20),
            expires,
            revoked: false,
            binary: digits.as_bytes().to_vec(),
            armoured: String::new(),
        }
    }

    fn file(keys: &[Key], digest: &str) -> KeyFile {
        KeyFile {
            bytes: b"whole".to_vec(),
            digest: Some(digest.to_owned()),
            keys: keys.to_vec(),
        }
    }

    const KEY: &str = "https://example.org/key";

    #[test]
    fn only_the_configured_valid_key_is_kept() {
        let kept = |keys: &[Key]| keyring(&repository(), KEY, &file(keys, "d"), false, 100);
        assert_eq!(
            kept(&[key("BB", None), key("AA", Some(101))]).unwrap(),
            b"AA"
        );
        let error = kept(&[key("BB", None)]).unwrap_err();
        assert_eq!(error.reason, "key-mismatch");
        let text = error.to_string();
        assert!(text.contains(&"BB".repeat(20)) && text.contains(&"aa".repeat(20)));
        let error = kept(&[key("AA", Some(100))]).unwrap_err();
        assert!(
            error.to_string().contains("expired on 1970-01-01"),
            "{error}"
        );
        let hint = error.hint.unwrap_or_default();
        assert!(
            hint.contains(".key-url` to a file with the extended key"),
            "{hint}"
        );
        let mut revoked = key("AA", None);
        revoked.revoked = true;
        let error = kept(&[revoked]).unwrap_err();
        assert_eq!(error.reason, "key-revoked");
    }

    #[test]
    fn key_is_accepted_by_file_digest_without_fingerprint() {
        let digest = "ab".repeat(32);
        let by_file = Repository {
            fingerprints: vec![of_file(&digest)],
            ..repository()
        };
        let keys = [key("BB", None)];
        let kept = |digest: &str| keyring(&by_file, KEY, &file(&keys, digest), false, 100);
        assert_eq!(kept(&digest).unwrap(), b"whole");
        let error = kept(&"cd".repeat(32)).unwrap_err();
        assert!(
            error.to_string().contains(&of_file(&"cd".repeat(32))),
            "{error}"
        );
        // The digest is not valid for a repository that is configured by fingerprint.
        assert!(keyring(&repository(), KEY, &file(&keys, &digest), false, 100).is_err());
    }

    fn entry(uri: &str, suite: &str, key: Option<&str>) -> SourceEntry {
        SourceEntry {
            id: None,
            enabled: true,
            file: "/a.list".into(),
            uri: uri.into(),
            written: uri.into(),
            suite: suite.into(),
            signed_by: key.map(str::to_owned),
            binary: true,
            components: Vec::new(),
            architectures: Vec::new(),
            skips_verification: false,
        }
    }

    #[test]
    fn contradictory_entries_are_listed() {
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
                "`/a.list` specifies https://example.org/deb / with /a.gpg",
                "`/b.list` specifies https://example.org/deb / with /b.gpg",
            ]
        );
    }

    #[test]
    fn entries_for_the_same_url_must_agree() {
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
            let found = conflict(&repository(), Some(ours.into()), &entries);
            assert_eq!(found.is_some(), conflicts);
        }
    }

    fn adopted() -> Repository {
        Repository {
            url: "https://example.org:8077/deb/amd64".into(),
            priority: Some(600),
            packages: vec!["toolkit".into()],
            fingerprints: vec![],
            ..repository()
        }
    }

    #[test]
    fn existing_entry_is_used_only_if_complete() {
        const KEYS: &[u8] = include_bytes!("../../../tests/keys/two.asc");
        const BOTH: [&str; 2] = [
            "8ebe33251f7e6a8e6c2120dd2de2d3dd7e65b027",
            "1732C20F83E68D3F9A3866A67294E6455BBBA7EA",
        ];
        let guide = "deb [signed-by=/k.asc] https://example.org:8077/deb/$(ARCH) /";
        let look = |text: &str, accepted: &[&str], change: fn(&mut Repository), owner: u32| {
            let files = FakeFiles::new();
            files.put("/k.asc", KEYS);
            files.put("/none.asc", "no keys");
            files.put("/etc/apt/sources.list.d/theirs.list", text);
            files.put_directory("/etc/apt/sources.list.d/retired", 0o755);
            let mut repository = adopted();
            repository.fingerprints = accepted.iter().map(ToString::to_string).collect();
            change(&mut repository);
            files.own("/k.asc", owner, 0);
            let backend = Manager::Apt.backend();
            let by = |by_root| configured_elsewhere(backend, &files, &repository, by_root);
            (by(true).expect("files"), by(false).expect("files"))
        };
        let found = |text: &str, accepted: &[&str], change| look(text, accepted, change, 0).0;
        // Another user could add a key to the keyring. When the files of another machine are examined, the owner is ignored.
        let (by_root, in_tree) = look(guide, &BOTH, |_| {}, 1000);
        assert_eq!((by_root, in_tree.is_some()), (None, true));
        assert_eq!(
            found(guide, &BOTH, |_| {}).expect("theirs"),
            "/etc/apt/sources.list.d/theirs.list"
        );
        for (text, accepted, change) in [
            // The keyring contains a key that is not accepted, contains no key, or is missing.
            (guide, &BOTH[..1], (|_| {}) as fn(&mut Repository)),
            (guide, &[], |_| {}),
            (&guide.replace("k.asc", "none.asc"), &BOTH, |_| {}),
            (&guide.replace("k.asc", "gone.asc"), &BOTH, |_| {}),
            (&guide.replace("[signed-by=/k.asc]", ""), &BOTH, |_| {}),
            // The signature is not verified, or there are several keyrings.
            (
                &guide.replace("signed", "trusted=yes signed"),
                &BOTH,
                |_| {},
            ),
            (&guide.replace("/k.asc", "/k.asc,/none.asc"), &BOTH, |_| {}),
            // The entry has only source packages, lacks a suite or a component, or has another URL.
            (&guide.replace("deb [", "deb-src ["), &BOTH, |_| {}),
            (guide, &BOTH, |wanted| wanted.suites.push("stable".into())),
            (guide, &BOTH, |wanted| wanted.components.push("main".into())),
            (guide, &BOTH, |wanted| wanted.url.push('x')),
            // The distribution's archive, which needs no key URL.
            (guide, &BOTH, |wanted| wanted.key_url = None),
        ] {
            assert_eq!(found(text, accepted, change), None, "{text}");
        }
    }
}
