//! Repositories: the key is downloaded, its fingerprint is compared, and only then a file is
//! written.

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    change::{Applier, Class, FileAfter, Problem, STOPPED, Undo, file},
    config::desired::Repository,
    error::one_line,
    host::{FilesError, ReadFiles, trusted::unusable},
    model::packages::KEY_FILE,
    tools::{
        openpgp::{self, Key, KeyFile},
        packages::{Backend, Fault, SourceEntry, contradictions},
    },
};

/// The size limit of a key in bytes; a key has some kilobytes.
const KEY_LIMIT: u64 = 1 << 20;

/// The text of the keyring with the accepted keys of a downloaded file.
fn keyring(
    repository: &Repository,
    url: &str,
    file: &KeyFile,
    wants_armour: bool,
    now: i64,
) -> Result<Vec<u8>, Problem> {
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
        let why = format!("its owner has revoked {}", first.fingerprint);
        return Err(distrusted("key-revoked", repository, &why).advice(
            "nothing was changed. Ask the repository's vendor which key signs now, and name its fingerprint",
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
        // kubernetes/release issue 3818: the key of end-of-life series may not be extended.
        let newer = match url.starts_with("https://pkgs.k8s.io/") {
            true => "; the file of a newer Kubernetes series has it",
            false => "",
        };
        return Err(distrusted("key-expired", repository, &why).advice(format!(
            "check the clock with `timedatectl`; if it is right, set `repositories.{}.key-url` to a file with the \
             extended key, which has the same fingerprint{newer}",
            repository.name
        )));
    }
    Ok(match (is_whole_file, wants_armour) {
        // A later look compares the digest again.
        (true, _) => file.bytes.clone(),
        (false, true) => valid.iter().flat_map(|key| key.armoured.bytes()).collect(),
        (false, false) => valid.iter().flat_map(|key| key.binary.clone()).collect(),
    })
}

/// The digest of a key file as an entry of [`Repository::fingerprints`].
fn of_file(digest: &str) -> String {
    format!("{KEY_FILE}{digest}")
}

/// Whether the repository accepts a key file by its digest.
fn accepts_file(repository: &Repository, file: &KeyFile) -> bool {
    (file.digest.as_deref()).is_some_and(|digest| accepts(repository, &of_file(digest)))
}

/// Returns the first source entry that names one of the suites of the repository with another key.
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
    ) -> Result<String, Problem> {
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
    ) -> Result<Undo, Problem> {
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

    /// Reports in advance what would make adding the repository fail: a wrong key, or a conflicting
    /// entry. A network error does not count: it may pass until the repository is added.
    pub(in crate::change) async fn rehearse_repository(
        &self,
        repository: &Repository,
    ) -> Result<(), Problem> {
        self.check_conflict(repository)?;
        self.check_key_files(repository)?;
        match (&repository.keyring, &repository.key_url) {
            (None, Some(url)) => match self.fetch_keyring(repository, url).await {
                // A request to stop does not count either; the engine has received it, too.
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
    ) -> Result<(), Problem> {
        self.check_conflict(repository)?;
        self.check_key_files(repository)?;
        match (&repository.keyring, &repository.key_url) {
            // Its keyring was looked at, or, for further components of an archive, is part of the distribution.
            (Some(_), _) | (None, None) => {}
            (None, Some(url)) => {
                let keyring = self.fetch_keyring(repository, url).await?;
                if let Some(path) = self.backend.keyring_path(repository) {
                    // Readable for all: a package manager may verify as an unprivileged user.
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

    async fn fetch_keyring(&self, repository: &Repository, url: &str) -> Result<Vec<u8>, Problem> {
        if repository.fingerprints.is_empty() {
            let why = "no fingerprint says which key to trust";
            return Err(incomplete(repository, why));
        }
        let name = &repository.name;
        // The download is retried for minutes; it can be interrupted without loss.
        let bytes = self
            .unless_stopped("fetch the key", self.host.http.get(url, KEY_LIMIT))
            .await?
            .map_err(|source| Problem {
                hint: Fault::Network.hint().map(str::to_owned),
                passes: source.passes(),
                ..Problem::new("key-fetch", format!("fetch the key of repository `{name}`"))
                    .caused_by(source)
                    .of(Class::KeyNotFetched)
            })?;
        let file = openpgp::parse(&bytes).map_err(|source| {
            let what = format!("read the key of repository `{name}` from `{url}`");
            Problem::new("key-malformed", what).caused_by(source)
        })?;
        let now = self.host.clock.now().as_second();
        let wants_armour = self.backend.wants_armour() || repository.names_key_file();
        keyring(repository, url, &file, wants_armour, now)
    }

    /// Checks a key file of the distribution, or one that the settings name. It is used as it is, if root alone may
    /// write it: whoever made it decides which further keys are in it.
    fn check_key_files(&self, repository: &Repository) -> Result<(), Problem> {
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

    /// Refuses entries that contradict each other: a package manager may then refuse all work.
    fn check_conflict(&self, repository: &Repository) -> Result<(), Problem> {
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
        Err(Problem::blocked(
            "repository-conflict",
            format!(
                "add repository `{}`: `{file}` names the same address {uri} {suite} with another \
                 Signed-By ({theirs})",
                repository.name
            ),
        )
        .advice(format!("remove `{file}`, or the entry in it")))
    }

    /// The configuration files of the repository: source, and priority if it has one.
    fn source_files(&self, repository: &Repository) -> Vec<(Utf8PathBuf, String)> {
        let mut files = vec![self.backend.source(repository)];
        files.extend(self.backend.priority(repository));
        files
    }

    /// A description of the entries that contradict each other, if any.
    pub(super) fn contradictions(&self) -> Result<Option<String>, Problem> {
        let found = contradictions(&self.backend.entries(&*self.host.files)?);
        Ok((!found.is_empty()).then(|| found.join("\n")))
    }
}

/// Returns a source file that this program did not write and that already configures the repository as wanted: each
/// suite with its components, trusted by accepted keys and no others. It is used unchanged. `by_root` says whether
/// root will obey it: then others may not write the keyring.
///
/// # Errors
/// When an existing file cannot be read.
pub fn configured_elsewhere(
    backend: &dyn Backend,
    files: &dyn ReadFiles,
    repository: &Repository,
    by_root: bool,
) -> Result<Option<Utf8PathBuf>, FilesError> {
    // Without a key URL it belongs to the distribution's archive, which is always configured.
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

/// Whether the keyring of an entry contains accepted keys and no others.
fn has_only_accepted_keys(
    files: &dyn ReadFiles,
    repository: &Repository,
    entry: &SourceEntry,
    by_root: bool,
) -> Result<bool, FilesError> {
    // Several keyrings, or a key in the entry itself, are not the path of a file.
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
    Ok(judge(repository, &bytes) == Keyring::Accepted)
}

/// What a keyring is to a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Keyring {
    /// There is none, or it cannot be parsed.
    #[default]
    Unusable,
    /// It contains accepted keys and no others.
    Accepted,
    /// It contains this key, which is not accepted, or was revoked.
    Stranger(String),
}

/// Judges the keys in a keyring.
#[must_use]
pub fn judge(repository: &Repository, bytes: &[u8]) -> Keyring {
    // A file that cannot be parsed as keys is not a usable keyring.
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

/// Whether a key file contains a key that the repository accepts.
#[must_use]
pub fn has_accepted_key(repository: &Repository, bytes: &[u8]) -> bool {
    openpgp::parse(bytes).is_ok_and(|file| {
        (file.keys.iter()).any(|key| !key.revoked && accepts(repository, &key.fingerprint))
    })
}

/// Whether the repository accepts a key.
#[must_use]
pub fn accepts(repository: &Repository, fingerprint: &str) -> bool {
    (repository.fingerprints.iter()).any(|one| one.eq_ignore_ascii_case(fingerprint))
}

/// The error where the description of a repository is incomplete.
fn incomplete(repository: &Repository, why: &str) -> Problem {
    Problem::blocked(
        "repository",
        format!("add repository `{}`: {why}", repository.name),
    )
}

/// The error of a key that must not sign the repository.
fn distrusted(reason: &'static str, repository: &Repository, why: &str) -> Problem {
    let name = &repository.name;
    Problem::blocked(
        reason,
        format!("trust the key of repository `{name}`: {why}"),
    )
}

/// The error of a file without an accepted key.
fn mismatch(repository: &Repository, place: &str, found: &[String]) -> Problem {
    let why = format!(
        "`{place}` holds {}, and only {} is accepted",
        found.join(", "),
        repository.fingerprints.join(" or ")
    );
    distrusted("key-mismatch", repository, &why).advice(
        "nothing was changed. Ask the repository's vendor, over another way than this \
         network, which fingerprint is right; a key that changed without notice can be \
         an attack",
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
    fn only_the_named_and_valid_key_is_kept() {
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
    fn a_key_is_accepted_by_the_digest_of_its_file_where_no_fingerprint_is_known() {
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
        // It is no digest of a file that a repository names by fingerprint.
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
    fn an_existing_entry_is_used_only_if_it_provides_all_that_is_wanted() {
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
            files.put_folder("/etc/apt/sources.list.d/retired", 0o755);
            let mut repository = adopted();
            repository.fingerprints = accepted.iter().map(ToString::to_string).collect();
            change(&mut repository);
            files.own("/k.asc", owner, 0);
            let backend = Manager::Apt.backend();
            let by = |by_root| configured_elsewhere(backend, &files, &repository, by_root);
            (by(true).expect("files"), by(false).expect("files"))
        };
        let found = |text: &str, accepted: &[&str], change| look(text, accepted, change, 0).0;
        // Somebody else may put another key into the keyring; in a tree of another machine the owner says nothing.
        let (by_root, in_tree) = look(guide, &BOTH, |_| {}, 1000);
        assert_eq!((by_root, in_tree.is_some()), (None, true));
        assert_eq!(
            found(guide, &BOTH, |_| {}).expect("theirs"),
            "/etc/apt/sources.list.d/theirs.list"
        );
        for (text, accepted, change) in [
            // Its keyring contains a key that is not accepted, contains no key, or is missing.
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
            // A part of the wanted components is missing.
            (&guide.replace("deb [", "deb-src ["), &BOTH, |_| {}),
            (guide, &BOTH, |wanted| wanted.suites.push("stable".into())),
            (guide, &BOTH, |wanted| wanted.components.push("main".into())),
            (guide, &BOTH, |wanted| wanted.url.push('x')),
            // The distribution's archive, with its keyring.
            (guide, &BOTH, |wanted| wanted.key_url = None),
        ] {
            assert_eq!(found(text, accepted, change), None, "{text}");
        }
    }
}
