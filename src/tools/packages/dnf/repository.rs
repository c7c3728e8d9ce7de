//! The dnf file of a repository, `dnf.conf(5)`.

use camino::Utf8PathBuf;

use crate::{
    model::packages::{Repository, Signed},
    tools::packages::HEADER,
};

/// Returns the path of the key: the existing keyring if specified, otherwise the file that gpu-bootstrap writes. `None` if the
/// repository has no key.
pub fn keyring_path(repository: &Repository) -> Option<Utf8PathBuf> {
    let ours = || {
        Utf8PathBuf::from(format!(
            "/etc/pki/rpm-gpg/RPM-GPG-KEY-gpu-bootstrap-{}",
            repository.name
        ))
    };
    (repository.keyring.clone()).or_else(|| repository.key_url.is_some().then(ours))
}

/// Returns the path and the text of the repository file.
pub fn source(repository: &Repository) -> (Utf8PathBuf, String) {
    let name = format!("gpu-bootstrap-{}", repository.name);
    // The URL may be a complete setting, such as the mirror list of a distribution repository.
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
    // Use only local key files, because dnf would not verify a key that it downloads itself.
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
    fn signatures_are_verified_with_the_repository_key() {
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
    fn signed_metadata_is_verified() {
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
    fn distribution_key_is_added_to_the_vendor_key() {
        let (_, text) = source(&Repository {
            key_files: vec!["/etc/pki/rpm-gpg/RPM-GPG-KEY-AlmaLinux-9".into()],
            ..repository()
        });
        let keys = "gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-gpu-bootstrap-nvidia \
                    file:///etc/pki/rpm-gpg/RPM-GPG-KEY-AlmaLinux-9";
        assert!(text.lines().any(|line| line == keys), "{text}");
    }

    #[test]
    fn mirror_list_is_kept() {
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
