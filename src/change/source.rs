//! What a repository looks like on disk: the files that the verb writes and the step compares.

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    config::desired::{Pin, Repository},
    host::{FilesError, ReadFiles},
    tools::{
        apt_sources::{self, Entry},
        openpgp,
    },
};

/// First line of every file that we write and people may read.
pub const HEADER: &str = "# Written by gpu-bootstrap; `gpu-bootstrap uninstall` removes it.\n";

/// Where the key of a repository is kept: ours, or one that the distribution ships; `None` where
/// apt's own keyrings hold.
#[must_use]
pub fn keyring_path(repository: &Repository) -> Option<Utf8PathBuf> {
    let ours = || {
        Utf8PathBuf::from(format!(
            "/usr/share/keyrings/gpu-bootstrap-{}.gpg",
            repository.name
        ))
    };
    (repository.keyring.clone()).or_else(|| repository.key_url.is_some().then(ours))
}

/// Where apt finds the repository.
#[must_use]
pub fn apt_source_path(repository: &Repository) -> Utf8PathBuf {
    Utf8PathBuf::from(format!(
        "/etc/apt/sources.list.d/gpu-bootstrap-{}.sources",
        repository.name
    ))
}

/// The repository in apt's deb822 format, `sources.list(5)`.
#[must_use]
pub fn apt_source(repository: &Repository) -> String {
    let mut text = HEADER.to_owned();
    let mut field = |key: &str, values: &[String]| {
        if !values.is_empty() {
            text.push_str(&format!("{key}: {}\n", values.join(" ")));
        }
    };
    field("Types", &["deb".to_owned()]);
    field("URIs", std::slice::from_ref(&repository.url));
    field("Suites", &repository.suites);
    field("Components", &repository.components);
    field("Architectures", &repository.architectures);
    let keyring = keyring_path(repository).map(Utf8PathBuf::into_string);
    field("Signed-By", keyring.as_slice());
    text
}

/// The file of somebody else in which the repository stands already as it is wanted: each suite
/// with its components, trusted by accepted keys and no other. It is used and left alone.
///
/// # Errors
/// When a file that is there cannot be read.
pub fn of_others(
    files: &dyn ReadFiles,
    repository: &Repository,
) -> Result<Option<Utf8PathBuf>, FilesError> {
    // Without a key of its own it is more of an archive that the machine has anyway.
    if repository.key_url.is_none() || repository.keyring.is_some() {
        return Ok(None);
    }
    let mut entries = apt_sources::read(files)?;
    entries.retain(|entry| entry.file != apt_source_path(repository));
    let architecture = repository.architectures.first().map(String::as_str);
    let mut found = None;
    for suite in &repository.suites {
        let mut file = None;
        for entry in &entries {
            if entry.names(&repository.url, suite, architecture)
                && entry.brings(&repository.components, &repository.architectures)
                && !entry.trusting
                && is_trusted_as_wanted(files, repository, entry)?
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

/// Whether the keyring of an entry holds keys that are accepted, and no other.
fn is_trusted_as_wanted(
    files: &dyn ReadFiles,
    repository: &Repository,
    entry: &Entry,
) -> Result<bool, FilesError> {
    let one_file = |path: &&str| path.starts_with('/') && !path.contains([' ', ',', '\n']);
    let Some(path) = entry.signed_by.as_deref().filter(one_file) else {
        return Ok(false);
    };
    let Some(bytes) = files.read(Utf8Path::new(path))? else {
        return Ok(false);
    };
    // What cannot be read as keys is no keyring that apt could use.
    Ok(openpgp::parse(&bytes)
        .is_ok_and(|keys| keys.iter().all(|key| accepts(repository, &key.fingerprint))))
}

/// Whether a key is one of those that the repository is trusted by.
#[must_use]
pub fn accepts(repository: &Repository, fingerprint: &str) -> bool {
    (repository.fingerprints.iter()).any(|one| one.eq_ignore_ascii_case(fingerprint))
}

/// Where a pin is kept.
#[must_use]
pub fn pin_path(pin: &Pin) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("/etc/apt/preferences.d/gpu-bootstrap-{}", pin.name))
}

/// A pin in the format of `apt_preferences(5)`.
#[must_use]
pub fn pin(pin: &Pin) -> String {
    format!(
        "{HEADER}Package: {}\nPin: version {}\nPin-Priority: {}\n",
        pin.packages.join(" "),
        pin.version,
        pin.priority
    )
}

/// The priority of everything from a repository, with the file that says so; `None` leaves apt's
/// default. `apt_preferences(5)`: `origin` is the host name of its address.
#[must_use]
pub fn priority(repository: &Repository) -> Option<(Utf8PathBuf, String)> {
    let priority = repository.priority?;
    let (_, rest) = repository.url.split_once("://")?;
    let host = rest.split(['/', ':']).next().unwrap_or_default();
    Some((
        Utf8PathBuf::from(format!(
            "/etc/apt/preferences.d/gpu-bootstrap-repository-{}",
            repository.name
        )),
        format!("{HEADER}Package: *\nPin: origin \"{host}\"\nPin-Priority: {priority}\n"),
    ))
}

#[cfg(test)]
mod tests {
    use super::{apt_source, of_others, pin, priority};
    use crate::{
        config::desired::{Pin, Repository},
        host::fake::FakeFiles,
    };

    fn toolkit() -> Repository {
        Repository {
            name: "toolkit".into(),
            url: "https://example.org:8077/deb/amd64".into(),
            suites: vec!["/".into()],
            components: vec![],
            architectures: vec!["amd64".into()],
            key_url: Some("https://example.org/key".into()),
            fingerprints: vec![],
            keyring: None,
            priority: Some(600),
        }
    }

    #[test]
    fn a_priority_goes_by_the_host() {
        let (path, text) = priority(&toolkit()).expect("a priority");
        assert_eq!(
            path,
            "/etc/apt/preferences.d/gpu-bootstrap-repository-toolkit"
        );
        assert!(text.ends_with("Pin: origin \"example.org\"\nPin-Priority: 600\n"));
    }

    #[test]
    fn a_flat_repository_has_no_components() {
        let mut repository = toolkit();
        assert_eq!(
            apt_source(&repository).lines().skip(1).collect::<Vec<_>>(),
            [
                "Types: deb",
                "URIs: https://example.org:8077/deb/amd64",
                "Suites: /",
                "Architectures: amd64",
                "Signed-By: /usr/share/keyrings/gpu-bootstrap-toolkit.gpg"
            ]
        );
        // Further components of an archive that the machine trusts by apt's own keyrings.
        repository.key_url = None;
        assert!(!apt_source(&repository).contains("Signed-By"));
    }

    #[test]
    fn a_pin_prefers_a_version() {
        let text = pin(&Pin {
            name: "driver".into(),
            packages: vec!["nvidia-*".into(), "libnvidia-*".into()],
            version: "580.*".into(),
            priority: 1001,
        });
        assert!(
            text.ends_with(
                "Package: nvidia-* libnvidia-*\nPin: version 580.*\nPin-Priority: 1001\n"
            )
        );
    }

    #[test]
    fn an_entry_of_somebody_else_must_be_all_that_is_wanted() {
        const KEYS: &[u8] = include_bytes!("../../tests/keys/two.asc");
        const BOTH: [&str; 2] = [
            "8ebe33251f7e6a8e6c2120dd2de2d3dd7e65b027",
            "1732C20F83E68D3F9A3866A67294E6455BBBA7EA",
        ];
        let guide = "deb [signed-by=/k.asc] https://example.org:8077/deb/$(ARCH) /";
        let found = |text: &str, accepted: &[&str], change: fn(&mut Repository)| {
            let files = FakeFiles::new();
            files.put("/k.asc", KEYS);
            files.put("/none.asc", "no keys");
            files.put("/etc/apt/sources.list.d/theirs.list", text);
            files.put_folder("/etc/apt/sources.list.d/retired", 0o755);
            let mut repository = toolkit();
            repository.fingerprints = accepted.iter().map(ToString::to_string).collect();
            change(&mut repository);
            of_others(&files, &repository).expect("files")
        };
        assert_eq!(
            found(guide, &BOTH, |_| {}).expect("theirs"),
            "/etc/apt/sources.list.d/theirs.list"
        );
        for (text, accepted, change) in [
            // Its keyring holds a key that is not accepted, or none at all, or is not there.
            (guide, &BOTH[..1], (|_| {}) as fn(&mut Repository)),
            (guide, &[], |_| {}),
            (&guide.replace("k.asc", "none.asc"), &BOTH, |_| {}),
            (&guide.replace("k.asc", "gone.asc"), &BOTH, |_| {}),
            (&guide.replace("[signed-by=/k.asc]", ""), &BOTH, |_| {}),
            // Nobody looks at the signature, or there is more to it than one keyring.
            (
                &guide.replace("signed", "trusted=yes signed"),
                &BOTH,
                |_| {},
            ),
            (&guide.replace("/k.asc", "/k.asc,/none.asc"), &BOTH, |_| {}),
            // Not all that is wanted.
            (&guide.replace("deb [", "deb-src ["), &BOTH, |_| {}),
            (guide, &BOTH, |wanted| wanted.suites.push("stable".into())),
            (guide, &BOTH, |wanted| wanted.components.push("main".into())),
            (guide, &BOTH, |wanted| wanted.url.push('x')),
            // The archive's own, with its keyring.
            (guide, &BOTH, |wanted| wanted.key_url = None),
        ] {
            assert_eq!(found(text, accepted, change), None, "{text}");
        }
    }
}
