//! Where the token is that joins a cluster: in a file, a credential of systemd's, or the secrets of a cloud. No secret is
//! in here.

use std::fmt;
use std::str::FromStr;

use camino::{Utf8Path, Utf8PathBuf};

use crate::model::text::as_text;

/// Where the token is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// A file of root's.
    File(Utf8PathBuf),
    /// A credential that systemd gives to this program, or to the machine.
    Credential(String),
    /// AWS Secrets Manager.
    Aws {
        region: String,
        /// The secret's name, or its whole ARN.
        name: String,
    },
    /// Google Secret Manager.
    Gcp {
        project: String,
        /// The secret's name.
        name: String,
        /// Its version, or `latest`.
        version: String,
    },
    /// Azure Key Vault.
    Azure {
        /// The vault's name.
        vault: String,
        /// The secret's name.
        name: String,
        /// Its version; `None` is the newest.
        version: Option<String>,
    },
}

/// A text names no such place. It is not shown: it may be the token itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "it names no place of a token, which is written as `file:/PATH`, `credential:NAME`, \
     `aws-secret:REGION/NAME`, `gcp-secret:PROJECT/NAME` or `azure-secret:VAULT/NAME`"
)]
pub struct TokenSourceError;

impl TokenSource {
    /// The file, if it is there after a reboot, too.
    #[must_use]
    pub fn lasting_file(&self) -> Option<&Utf8Path> {
        match self {
            Self::File(path) if !path.starts_with("/run") => Some(path),
            _ => None,
        }
    }
}

/// A word of a name: the letters and digits, and these signs.
fn is_word(text: &str, signs: &str, most: usize) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || signs.contains(letter);
    (1..=most).contains(&text.len()) && text.chars().all(fits)
}

/// Sources of the letters: AWS, "CreateSecret" (`/_+=.@-`; an ARN has `:`, too); Google, "projects.secrets" (255 letters,
/// digits, `-`, `_`) and "Creating and managing projects"; Azure, "About keys, secrets, and certificates" (vault and
/// object names); systemd.exec(5), which takes a credential's name for a file name.
fn parse(text: &str) -> Option<TokenSource> {
    let (kind, rest) = text.split_once(':')?;
    match (kind, rest.split_once('/')) {
        ("file", Some(("", _))) => {
            let is_plain = !rest.ends_with('/') && !rest.chars().any(char::is_control);
            let climbs = rest.split('/').any(|part| part == "..");
            (is_plain && !climbs).then(|| TokenSource::File(rest.into()))
        }
        ("credential", None) => (is_word(rest, "-_.", 255) && !rest.starts_with('.'))
            .then(|| TokenSource::Credential(rest.to_owned())),
        ("aws-secret", Some((region, name))) => (is_word(region, "-", 32)
            && is_word(name, "/_+=.@-:", 2048))
        .then(|| TokenSource::Aws {
            region: region.to_owned(),
            name: name.to_owned(),
        }),
        ("gcp-secret", Some((project, rest))) => {
            let (name, version) = rest.split_once('/').unwrap_or((rest, "latest"));
            (is_word(project, "-.:", 64) && is_word(name, "-_", 255) && is_word(version, "-_", 63))
                .then(|| TokenSource::Gcp {
                    project: project.to_owned(),
                    name: name.to_owned(),
                    version: version.to_owned(),
                })
        }
        ("azure-secret", Some((vault, rest))) => {
            let (name, version) = match rest.split_once('/') {
                Some((name, version)) => (name, Some(version)),
                None => (rest, None),
            };
            let fits = is_word(vault, "-", 24)
                && is_word(name, "-", 127)
                && version.is_none_or(|version| is_word(version, "", 32));
            fits.then(|| TokenSource::Azure {
                vault: vault.to_owned(),
                name: name.to_owned(),
                version: version.map(str::to_owned),
            })
        }
        _ => None,
    }
}

impl FromStr for TokenSource {
    type Err = TokenSourceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or(TokenSourceError)
    }
}

impl fmt::Display for TokenSource {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(to, "file:{path}"),
            Self::Credential(name) => write!(to, "credential:{name}"),
            Self::Aws { region, name } => write!(to, "aws-secret:{region}/{name}"),
            Self::Gcp {
                project,
                name,
                version,
            } => write!(to, "gcp-secret:{project}/{name}/{version}"),
            Self::Azure {
                vault,
                name,
                version,
            } => {
                write!(to, "azure-secret:{vault}/{name}")?;
                (version.iter()).try_for_each(|version| write!(to, "/{version}"))
            }
        }
    }
}

as_text!(
    TokenSource,
    "where the token is: `file:/PATH`, `credential:NAME`, `aws-secret:REGION/NAME`, `gcp-secret:PROJECT/NAME`, `azure-secret:VAULT/NAME`",
    "^(file:/|credential:|aws-secret:|gcp-secret:|azure-secret:).+$"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_tokens() {
        for (text, shown) in rows! {
            "file:/etc/gpu-bootstrap/join-token", None;
            "credential:gpu-bootstrap.join-token", None;
            "aws-secret:eu-central-1/prod/gpu/token", None;
            "aws-secret:eu-central-1/arn:aws:secretsmanager:eu-central-1:123456789012:secret:gpu-a1b2c3",
                None;
            "gcp-secret:my-project/join-token", Some("gcp-secret:my-project/join-token/latest");
            "gcp-secret:example.com:my-project/join_token/3", None;
            "azure-secret:my-vault/join-token", None;
            "azure-secret:my-vault/join-token/0123456789abcdef0123456789abcdef", None;
        } {
            let source: TokenSource = text.parse().expect(text);
            assert_eq!(source.to_string(), shown.unwrap_or(text));
            assert_eq!(source.to_string().parse().as_ref(), Ok(&source));
        }
        for text in [
            "",
            "token",
            "abcdef.0123456789abcdef",
            "/etc/token",
            "file:/etc/gpu-bootstrap/",
            "file:etc/token",
            "file:/etc/../token",
            "file:",
            "credential:",
            "credential:../token",
            "credential:a/b",
            "aws-secret:token",
            "aws-secret:evil.example/x/token",
            "aws-secret:eu-central-1/",
            "aws-secret:eu-central-1/a b",
            "gcp-secret:p/a/b/c",
            "gcp-secret:p/a?b",
            "azure-secret:evil.example/x",
            "azure-secret:v/x#",
            "azure-secret:v/x/y/z",
        ] {
            assert!(text.parse::<TokenSource>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_files_that_a_boot_leaves_last() {
        for (text, lasts) in [
            ("file:/etc/gpu-bootstrap/join-token", true),
            ("file:/run/secrets/token", false),
            ("credential:token", false),
            ("aws-secret:eu-central-1/token", false),
        ] {
            let source: TokenSource = text.parse().expect(text);
            assert_eq!(source.lasting_file().is_some(), lasts, "{text}");
        }
    }

    #[test]
    fn an_error_says_what_to_write() {
        let token = "abcdef.0123456789abcdef";
        let error = token.parse::<TokenSource>().expect_err("no place");
        assert!(
            error.to_string().contains("`aws-secret:REGION/NAME`"),
            "{error}"
        );
        assert!(!error.to_string().contains("abcdef"), "{error}");
    }
}
