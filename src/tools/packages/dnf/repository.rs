//! The file from which dnf reads a repository, `dnf.conf(5)`.

use camino::Utf8PathBuf;

use crate::{
    model::packages::{Repository, Signed},
    tools::packages::HEADER,
};

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
    // A repository of the distribution may be a list of mirrors.
    let is_list = ["mirrorlist=", "metalink=", "baseurl="];
    let address = match is_list.iter().any(|key| repository.url.starts_with(key)) {
        true => repository.url.clone(),
        false => format!("baseurl={}", repository.url),
    };
    let packages = u8::from(repository.signed != Signed::Metadata);
    let metadata = u8::from(repository.signed != Signed::Packages);
    let mut text = format!(
        "{HEADER}[{name}]\nname={name}\n{address}\nenabled=1\ngpgcheck={packages}\n\
         repo_gpgcheck={metadata}\n"
    );
    // Only a file: a key that dnf downloads by itself would be trusted without a look at it.
    let keys: Vec<String> = (keyring_path(repository).iter().chain(&repository.key_files))
        .map(|path| format!("file://{path}"))
        .collect();
    if !keys.is_empty() {
        text.push_str(&format!("gpgkey={}\n", keys.join(" ")));
    }
    if let Some(priority) = repository.priority {
        text.push_str(&format!("priority={priority}\n"));
    }
    (format!("/etc/yum.repos.d/{name}.repo").into(), text)
}

#[cfg(test)]
mod tests {
    use super::source;
    use crate::model::packages::{Repository, Signed};

    fn repository() -> Repository {
        Repository {
            name: "nvidia".into(),
            url: "https://example.org/rhel9/x86_64/".into(),
            suites: vec![],
            components: vec![],
            architectures: vec!["x86_64".into()],
            key_url: Some("https://example.org/key".into()),
            fingerprints: vec![],
            keyring: None,
            key_files: vec![],
            priority: None,
            packages: vec![],
            signed: Signed::Packages,
        }
    }

    #[test]
    fn signatures_are_checked_against_the_key_of_the_repository() {
        let (path, text) = source(&repository());
        assert_eq!(path, "/etc/yum.repos.d/gpu-bootstrap-nvidia.repo");
        assert_eq!(
            text.lines().skip(1).collect::<Vec<_>>(),
            [
                "[gpu-bootstrap-nvidia]",
                "name=gpu-bootstrap-nvidia",
                "baseurl=https://example.org/rhel9/x86_64/",
                "enabled=1",
                "gpgcheck=1",
                "repo_gpgcheck=0",
                "gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-gpu-bootstrap-nvidia",
            ]
        );
    }

    #[test]
    fn a_vendor_that_signs_only_metadata_is_verified_by_them() {
        let of = |signed: Signed| {
            let text = source(&Repository {
                signed,
                ..repository()
            });
            let has = |line: &str| text.1.lines().any(|one| one == line);
            (has("gpgcheck=1"), has("repo_gpgcheck=1"))
        };
        assert_eq!(of(Signed::Metadata), (false, true));
        assert_eq!(of(Signed::Both), (true, true));
    }

    #[test]
    fn a_key_of_the_distribution_can_sign_beside_the_vendors() {
        let (_, text) = source(&Repository {
            key_files: vec!["/etc/pki/rpm-gpg/RPM-GPG-KEY-AlmaLinux-9".into()],
            ..repository()
        });
        let keys = "gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-gpu-bootstrap-nvidia \
                    file:///etc/pki/rpm-gpg/RPM-GPG-KEY-AlmaLinux-9";
        assert!(text.lines().any(|line| line == keys), "{text}");
    }

    #[test]
    fn a_list_of_mirrors_stays_one() {
        let (_, text) = source(&Repository {
            url: "mirrorlist=https://mirrors.example.org/9/crb".into(),
            ..repository()
        });
        assert!(
            text.contains("\nmirrorlist=https://mirrors.example.org/9/crb\n"),
            "{text}"
        );
    }
}
