//! The file from which dnf reads a repository, `dnf.conf(5)`.

use camino::Utf8PathBuf;

use crate::{model::packages::Repository, tools::packages::HEADER};

/// The path of the key, ours or one of the distribution.
#[must_use]
pub fn keyring_path(repository: &Repository) -> Option<Utf8PathBuf> {
    let ours = || {
        Utf8PathBuf::from(format!(
            "/etc/pki/rpm-gpg/RPM-GPG-KEY-gpu-bootstrap-{}",
            repository.name
        ))
    };
    (repository.keyring.clone()).or_else(|| repository.key_url.is_some().then(ours))
}

/// The repository's file: path and text.
#[must_use]
pub fn source(repository: &Repository) -> (Utf8PathBuf, String) {
    let name = format!("gpu-bootstrap-{}", repository.name);
    let mut text = format!(
        "{HEADER}[{name}]\nname={name}\nbaseurl={}\nenabled=1\ngpgcheck=1\n",
        repository.url
    );
    if let Some(keyring) = keyring_path(repository) {
        text.push_str(&format!("gpgkey=file://{keyring}\n"));
    }
    if let Some(priority) = repository.priority {
        text.push_str(&format!("priority={priority}\n"));
    }
    (format!("/etc/yum.repos.d/{name}.repo").into(), text)
}

#[cfg(test)]
mod tests {
    use super::source;
    use crate::model::packages::Repository;

    #[test]
    fn signatures_are_checked_against_the_key_of_the_repository() {
        let (path, text) = source(&Repository {
            name: "nvidia".into(),
            url: "https://example.org/rhel9/x86_64/".into(),
            suites: vec![],
            components: vec![],
            architectures: vec!["x86_64".into()],
            key_url: Some("https://example.org/key".into()),
            fingerprints: vec![],
            keyring: None,
            priority: None,
            packages: vec![],
        });
        assert_eq!(path, "/etc/yum.repos.d/gpu-bootstrap-nvidia.repo");
        assert_eq!(
            text.lines().skip(1).collect::<Vec<_>>(),
            [
                "[gpu-bootstrap-nvidia]",
                "name=gpu-bootstrap-nvidia",
                "baseurl=https://example.org/rhel9/x86_64/",
                "enabled=1",
                "gpgcheck=1",
                "gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-gpu-bootstrap-nvidia",
            ]
        );
    }
}
