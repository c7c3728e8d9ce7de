//! Generates the apt files of a repository, of its priority, and of a version pin.

use camino::Utf8PathBuf;

use crate::{
    model::packages::{Pin, Repository},
    tools::packages::HEADER,
};

/// Returns the keyring path of a repository: the specified existing keyring, or our own file if the repository has a key URL.
/// `None` if apt uses its own keyrings.
pub fn keyring_path(repository: &Repository) -> Option<Utf8PathBuf> {
    // apt derives the keyring format from the file extension.
    let form = match repository.names_key_file() {
        true => "asc",
        false => "gpg",
    };
    let ours = || {
        Utf8PathBuf::from(format!(
            "/usr/share/keyrings/gpu-bootstrap-{}.{form}",
            repository.name
        ))
    };
    (repository.keyring.clone()).or_else(|| repository.key_url.is_some().then(ours))
}

fn source_path(repository: &Repository) -> Utf8PathBuf {
    Utf8PathBuf::from(format!(
        "/etc/apt/sources.list.d/gpu-bootstrap-{}.sources",
        repository.name
    ))
}

/// Returns the path and the content of the source file, in deb822 format, `sources.list(5)`.
pub fn source(repository: &Repository) -> (Utf8PathBuf, String) {
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
    (source_path(repository), text)
}

/// Prefix of our files in `/etc/apt/preferences.d`. For each version, the first record that lists the package takes precedence,
/// `apt_preferences(5)`. apt reads `/etc/apt/preferences` first, and then the directory in name order (tested with apt 2.6).
/// Our files must be last, so that they never allow a version that a record of the administrator for this package blocks. They
/// still override a record for `*`, see `LIFTED` in `exclusions.rs`. A record has only one `Pin` field, so a pin on a version
/// cannot be restricted to one repository.
pub const PREFERENCES: &str = "zz-gpu-bootstrap-";

fn preferences(name: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("/etc/apt/preferences.d/{PREFERENCES}{name}"))
}

/// Returns the path and the content of a version pin, `apt_preferences(5)`.
pub fn pin(pin: &Pin) -> (Utf8PathBuf, String) {
    (
        preferences(&pin.name),
        format!(
            "{HEADER}Package: {}\nPin: version {}\nPin-Priority: {}\n",
            pin.packages.join(" "),
            pin.version,
            pin.priority
        ),
    )
}

/// Returns the path and the content of the file that sets the priority of a repository's packages, or `None` to keep the
/// default priority of apt. The repository is identified by `origin`, which is the host name of its URL, `apt_preferences(5)`.
/// The record lists the packages instead of `*`, because a mirror may contain other repositories under the same host name, such
/// as backports.
pub fn priority(repository: &Repository) -> Option<(Utf8PathBuf, String)> {
    let priority = repository.priority?;
    if repository.packages.is_empty() {
        return None;
    }
    let packages = repository.packages.join(" ");
    let (_, rest) = repository.url.split_once("://")?;
    let authority = rest.split('/').next().unwrap_or_default();
    let host_and_port = authority.rsplit('@').next().unwrap_or_default();
    // An IPv6 address has brackets only in the URL: `apt-cache policy` prints `origin fd00::1`, and a pin on `[fd00::1]` has no
    // effect (tested with apt 2.6).
    let host = match host_and_port.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => host_and_port.split(':').next(),
    };
    let host = host.unwrap_or_default();
    Some((
        preferences(&format!("repository-{}", repository.name)),
        format!("{HEADER}Package: {packages}\nPin: origin \"{host}\"\nPin-Priority: {priority}\n"),
    ))
}

#[cfg(test)]
mod tests {
    use super::{pin, priority, source};
    use crate::model::packages::{Pin, Repository};

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
            key_files: vec![],
            signed: crate::model::packages::Signed::Packages,
            priority: Some(600),
            packages: vec![
                "nvidia-container-toolkit".into(),
                "libnvidia-container*".into(),
            ],
        }
    }

    #[test]
    fn priority_applies_to_listed_packages_by_host() {
        let (path, text) = priority(&toolkit()).expect("a priority");
        assert_eq!(
            path,
            "/etc/apt/preferences.d/zz-gpu-bootstrap-repository-toolkit"
        );
        assert!(text.ends_with(
            "Package: nvidia-container-toolkit libnvidia-container*\n\
             Pin: origin \"example.org\"\nPin-Priority: 600\n"
        ));
        for (url, origin) in [
            ("http://[fd00::1]/debian", "fd00::1"),
            ("http://[fd00::1]:8080/debian", "fd00::1"),
            ("https://mirror.example:8080", "mirror.example"),
        ] {
            let url = url.to_owned();
            let (_, text) = priority(&Repository { url, ..toolkit() }).expect("a priority");
            assert!(
                text.contains(&format!("Pin: origin \"{origin}\"\n")),
                "{text}"
            );
        }
        // Without packages, the priority would apply to other repositories on the same server.
        let none = Repository {
            packages: vec![],
            ..toolkit()
        };
        assert_eq!(priority(&none), None);
    }

    #[test]
    fn flat_repository_has_no_components() {
        let mut repository = toolkit();
        assert_eq!(
            source(&repository).1.lines().skip(1).collect::<Vec<_>>(),
            [
                "Types: deb",
                "URIs: https://example.org:8077/deb/amd64",
                "Suites: /",
                "Architectures: amd64",
                "Signed-By: /usr/share/keyrings/gpu-bootstrap-toolkit.gpg"
            ]
        );
        // An additional component of the distribution's archive is verified with apt's own keyrings.
        repository.key_url = None;
        assert!(!source(&repository).1.contains("Signed-By"));
    }

    #[test]
    fn pin_has_package_and_version_patterns() {
        let (_, text) = pin(&Pin {
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
}
