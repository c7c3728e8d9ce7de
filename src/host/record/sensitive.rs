//! Files and commands that a recording omits, because they may contain secrets unknown to
//! gpu-bootstrap. In doubt, a file is omitted: a missing file is inconvenient, but a leaked
//! password is an incident.

use camino::Utf8Path;

use crate::model::secret::{NAMES, logins, secret_values};

/// Texts (in lower case) that occur only in files with secrets.
const MARKS: [&str; 4] = [
    "private key-----",
    "age-secret-key-",
    "client-key-data",
    "certificate-key",
];

/// Returns the reason to omit a file because of its path, if any.
pub(super) fn path(path: &Utf8Path) -> Option<&'static str> {
    let text = path.as_str();
    let name = path.file_name().unwrap_or_default();
    if ["shadow", "gshadow", "opasswd"]
        .iter()
        .any(|file| name.trim_end_matches('-') == *file)
    {
        return Some("contains password hashes");
    }
    if matches!(
        path.extension(),
        Some("key" | "p12" | "pfx" | "jks" | "keytab")
    ) || (name.starts_with("ssh_host_") && name.ends_with("_key"))
        || (text.contains("/.ssh/") && !name.ends_with(".pub"))
    {
        return Some("named like a private key");
    }
    if text.starts_with("/etc/apt/auth.conf")
        || text.contains("/.docker/")
        || text.contains("/backups/")
        || text.starts_with("/var/lib/kubelet/config.json")
        || name == ".netrc"
        || name == "environ"
        || name.starts_with("user-data")
    {
        return Some("may contain credentials");
    }
    None
}

/// Returns the reason to omit a text because of its content, if any.
pub(super) fn content(content: &[u8]) -> Option<&'static str> {
    let text = String::from_utf8_lossy(content).to_ascii_lowercase();
    if MARKS.iter().any(|mark| text.contains(mark)) {
        return Some("contains a private key");
    }
    if logins(&text).any(|login| login.contains(':')) {
        return Some("contains a URL with a password");
    }
    if !secret_values(&text).is_empty() {
        return Some("may contain a password or token");
    }
    None
}

/// Returns the reason to omit a command because of its arguments, if any.
pub(super) fn args<'a>(args: impl IntoIterator<Item = &'a String>) -> Option<&'static str> {
    args.into_iter()
        .any(|arg| {
            let arg = arg.to_ascii_lowercase();
            content(arg.as_bytes()).is_some()
                || (arg.starts_with('-') && NAMES.iter().any(|name| arg.ends_with(name)))
        })
        .then_some("the arguments may contain a password or token")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_found_in_every_syntax() {
        for text in [
            "-----BEGIN OPENSSH PRIVATE KEY-----\n",
            "users:\n- user:\n    client-key-data: LS0t\n",
            "{\"a\":1,\"join-token\":\"abcdef.0123\"}",
            "password = \"x\"",
            "deb https://user:hush@mirror.example/ stable main\n",
            "K3S_TOKEN=abc",
            "K3S_TOKEN=/abc",
            "  aws_secret: abc",
            "client\0--token\0hunter2",
            "command = [\"/opt/join\", \"--token\", \"abcdef.0123\"]",
            "  auth = \"dXNlcjpTM2NyM3RQYXNz\"\n",
        ] {
            assert!(content(text.as_bytes()).is_some(), "{text}");
        }
    }

    #[test]
    fn ordinary_files_are_kept() {
        for text in [
            "ID=debian\n",
            "token = \"file:/run/token\"\n",
            "auth: {password: null, token: \"\"}",
            "deb [signed-by=/usr/share/keyrings/x.gpg] https://mirror.example/debian stable main",
            "root:x:0:0:root:/root:/bin/bash",
            "the token must be given",
            "-----BEGIN CERTIFICATE-----\n",
            "https://example/?q=a@b:c",
        ] {
            assert_eq!(content(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn secret_file_is_recognized_by_its_path() {
        for text in [
            "/etc/shadow",
            "/etc/shadow-",
            "/etc/ssh/ssh_host_ed25519_key",
            "/root/.ssh/id_rsa",
            "/etc/kubernetes/pki/ca.key",
            "/root/.docker/config.json",
            "/proc/1/environ",
            "/var/lib/cloud/instance/user-data.txt",
        ] {
            assert!(path(Utf8Path::new(text)).is_some(), "{text}");
        }
        for text in [
            "/etc/passwd",
            "/etc/ssh/ssh_host_ed25519_key.pub",
            "/etc/docker/daemon.json",
        ] {
            assert_eq!(path(Utf8Path::new(text)), None, "{text}");
        }
    }

    #[test]
    fn secret_arguments_are_recognized() {
        let args_of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            args(&words)
        };
        assert!(args_of(&["join", "--token", "abc"]).is_some());
        assert!(args_of(&["join", "--token=abc"]).is_some());
        assert_eq!(args_of(&["-W", "-f", "${Package}\\t${Version}\\n"]), None);
    }
}
