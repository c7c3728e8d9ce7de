//! The location of the join token: a file, a systemd credential, or the secret store of a cloud. It is not secret.

use std::fmt;
use std::str::FromStr;

use camino::{Utf8Path, Utf8PathBuf};

use crate::model::{
    clouds::{self, PartRow, SecretRow},
    text::as_text,
};

/// The location of the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// A file that only root can access.
    File(Utf8PathBuf),
    /// A systemd credential of this process or of the machine.
    Credential(String),
    /// The secret store of a cloud.
    Store(SecretLocation),
}

/// A location in the secret store of a cloud: the scheme, and the value of each part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretLocation {
    scheme: &'static str,
    parts: Vec<String>,
}

impl SecretLocation {
    /// Returns the scheme of the store in settings.
    pub fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// Returns the entry of the store in the cloud file.
    pub fn store(&self) -> Option<&'static SecretRow> {
        clouds::store(self.scheme)
    }

    /// Replaces each `{part}` in a text of the entry with its value, and `{/part}` with `/` and the value. Both become empty
    /// if the value is empty.
    pub fn filled(&self, row: &SecretRow, text: &str) -> String {
        let pairs = row.parts.iter().zip(&self.parts);
        pairs.fold(text.to_owned(), |text, (part, value)| {
            let behind_slash = match value.as_str() {
                "" => String::new(),
                value => format!("/{value}"),
            };
            (text.replace(&format!("{{/{}}}", part.name), &behind_slash))
                .replace(&format!("{{{}}}", part.name), value)
        })
    }

    /// Returns the first part, which can select the host of the store (`host-where` in the cloud file).
    pub fn first(&self) -> &str {
        self.parts.first().map_or("", String::as_str)
    }
}

/// Returns the formats of all locations, for messages.
fn forms() -> String {
    let stores = clouds::all().iter().filter_map(|row| row.secret.as_ref());
    let stores = stores.map(|row| format!("`{}:{}`", row.scheme, row.form));
    let mut all = vec!["`file:/PATH`".to_owned(), "`credential:NAME`".to_owned()];
    all.extend(stores);
    let last = all.pop().unwrap_or_default();
    format!("{} or {last}", all.join(", "))
}

/// The text is not a token location. It is not printed, because it may be the token itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a token location, which has the form {}", forms())]
pub struct TokenSourceError;

impl TokenSource {
    /// Returns the file, if it still exists after a reboot.
    pub fn persistent_file(&self) -> Option<&Utf8Path> {
        match self {
            Self::File(path) if !path.starts_with("/run") => Some(path),
            _ => None,
        }
    }
}

/// Returns whether a text consists of 1 to `most` letters, digits and characters in `signs`.
fn is_word(text: &str, signs: &str, most: usize) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || signs.contains(letter);
    (1..=most).contains(&text.len()) && text.chars().all(fits)
}

/// Parses a location. The valid characters in a credential name are from systemd.exec(5), where the name is also a file
/// name. The files in `clouds/` define the valid characters in the parts of a store location.
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
        (kind, _) => {
            let row = clouds::store(kind)?;
            let mut given = rest.splitn(row.parts.len(), '/');
            let part = |part: &PartRow| match given.next() {
                Some(text) => is_word(text, &part.signs, part.most).then(|| text.to_owned()),
                None => part.default.clone(),
            };
            let parts = row.parts.iter().map(part).collect::<Option<Vec<_>>>()?;
            Some(TokenSource::Store(SecretLocation {
                scheme: &row.scheme,
                parts,
            }))
        }
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
            Self::Store(place) => {
                let parts: Vec<&str> = (place.parts.iter().map(String::as_str))
                    .filter(|part| !part.is_empty())
                    .collect();
                write!(to, "{}:{}", place.scheme, parts.join("/"))
            }
        }
    }
}

/// Returns the prefixes of all locations, as a pattern.
fn pattern() -> String {
    let stores = clouds::all().iter().filter_map(|row| row.secret.as_ref());
    let schemes: Vec<String> = stores.map(|row| format!("|{}:", row.scheme)).collect();
    format!("^(file:/|credential:{}).+$", schemes.concat())
}

as_text!(
    TokenSource,
    format!("the location of the token: {}", forms()),
    pattern()
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_locations_are_parsed_and_validated() {
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
    fn only_persistent_files_survive_a_reboot() {
        for (text, lasts) in [
            ("file:/etc/gpu-bootstrap/join-token", true),
            ("file:/run/secrets/token", false),
            ("credential:token", false),
            ("aws-secret:eu-central-1/token", false),
        ] {
            let source: TokenSource = text.parse().expect(text);
            assert_eq!(source.persistent_file().is_some(), lasts, "{text}");
        }
    }

    #[test]
    fn error_contains_the_valid_formats() {
        let token = "abcdef.0123456789abcdef";
        let error = token.parse::<TokenSource>().expect_err("no place");
        assert!(
            error.to_string().contains("`aws-secret:REGION/NAME`"),
            "{error}"
        );
        assert!(!error.to_string().contains("abcdef"), "{error}");
    }
}
