//! Values of settings. Each is validated when it is read, so that an error has its place.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use camino::Utf8PathBuf;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::model::{text::as_text, version::Branch};

/// Why a value is not acceptable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}")]
pub struct ValueError {
    text: String,
    what: &'static str,
}

impl ValueError {
    fn new(text: &str, what: &'static str) -> Self {
        Self {
            text: text.to_owned(),
            what,
        }
    }
}

/// Text that passed a test, with the forms it has in files and messages.
macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $test:expr, $what:literal, $pattern:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = ValueError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let test: fn(&str) -> bool = $test;
                if test(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(ValueError::new(text, $what))
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str(&self.0)
            }
        }

        as_text!($name, $what, $pattern);
    };
}

checked_text!(
    /// An HTTP or HTTPS address.
    Url,
    |text| (text.strip_prefix("http://"))
        .or_else(|| text.strip_prefix("https://"))
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && plain(text)),
    "an address that starts with `http://` or `https://` and has no spaces",
    "^https?://[^/\\s][^\\s]*$"
);

checked_text!(
    /// A word that goes into a line of a configuration file: no spaces, no control characters.
    Word,
    |text| !text.is_empty() && plain(text),
    "a word without spaces and control characters",
    "^\\S+$"
);

checked_text!(
    /// A package name, or a shell pattern over package names.
    PackagePattern,
    |text| text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '*')
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-._*?:".contains(c)),
    "a package name or a pattern such as `libnvidia-*`",
    "^[A-Za-z0-9*][A-Za-z0-9+._*?:-]*$"
);

checked_text!(
    /// A version, or a shell pattern over versions.
    VersionPattern,
    |text| text.starts_with(|c: char| c.is_ascii_digit())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-._*?:~".contains(c)),
    "a version or a pattern such as `1.20.*`",
    "^[0-9][A-Za-z0-9+._*?:~-]*$"
);

checked_text!(
    /// Where a CDI specification is written. `nvidia-ctk` would write JSON where a name ends so,
    /// and container runtimes read neither other endings nor `.yml`. Sources:
    /// nvidia-container-toolkit, `cmd/nvidia-ctk/cdi/generate/generate.go`;
    /// container-device-interface, `pkg/cdi/spec-dirs.go`.
    CdiPath,
    |text| from_root(text) && text.ends_with(".yaml"),
    "a path that starts with `/`, ends in `.yaml` and has no `..` or spaces",
    "^/[^\\s]+\\.yaml$"
);

/// Whether text is a path from the root without `..`.
fn from_root(text: &str) -> bool {
    let climbs = text.split('/').any(|part| part == "..");
    text.starts_with('/') && text.len() > 1 && !climbs && plain(text)
}

/// Whether text can stand in a line of a configuration file without changing its meaning.
fn plain(text: &str) -> bool {
    !text
        .chars()
        .any(|c| c.is_whitespace() || c.is_control() || "\"'\\`".contains(c))
}

/// The fingerprint of an OpenPGP key: 40 hexadecimal digits in upper case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// The digits, in upper case and without spaces.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Fingerprint {
    type Err = ValueError;

    /// Takes the form that `gpg` prints too, in groups of four.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits: String = text.chars().filter(|c| *c != ' ').collect();
        if digits.len() == 40 && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            Ok(Self(digits.to_ascii_uppercase()))
        } else {
            Err(ValueError::new(
                text,
                "a whole key fingerprint of 40 hexadecimal digits (a short key id can be forged)",
            ))
        }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

as_text!(
    Fingerprint,
    "Fingerprint of an OpenPGP key, 40 hexadecimal digits, perhaps in groups",
    "^([0-9A-Fa-f] *){40}$"
);

/// A path from the root, without `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbsolutePath(Utf8PathBuf);

impl AbsolutePath {
    /// The path.
    #[must_use]
    pub fn into_inner(self) -> Utf8PathBuf {
        self.0
    }
}

impl FromStr for AbsolutePath {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if from_root(text) {
            Ok(Self(Utf8PathBuf::from(text)))
        } else {
            Err(ValueError::new(
                text,
                "a path that starts with `/` and has no `..` or spaces",
            ))
        }
    }
}

impl fmt::Display for AbsolutePath {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.0.as_str())
    }
}

as_text!(AbsolutePath, "Path from the root", "^/[^\\s]+$");

/// A proxy: may hold a password, so neither messages nor `Debug` show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy(Url);

impl Proxy {
    /// The whole address, with what is secret in it.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.as_str()
    }

    /// The address with user and password left out.
    #[must_use]
    pub fn redacted(&self) -> String {
        redact(self.0.as_str())
    }
}

/// A text in which what is secret in an address is left out.
#[must_use]
pub fn without_secret<'t>(text: &'t str, url: &str) -> Cow<'t, str> {
    let secret = url.split_once("://").and_then(|(_, rest)| {
        let end = rest.find('/').unwrap_or(rest.len());
        rest[..end].rsplit_once('@')
    });
    match secret {
        Some((secret, _)) if text.contains(secret) => text.replace(secret, "***").into(),
        _ => text.into(),
    }
}

/// Whether an address in the text holds a user or password.
#[must_use]
pub fn holds_password(text: &str) -> bool {
    text.match_indices("://").any(|(at, mark)| {
        let rest = &text[at + mark.len()..];
        let end = rest
            .find(|c: char| c == '/' || c == '"' || c == '\'' || c.is_whitespace())
            .unwrap_or(rest.len());
        rest[..end].contains('@')
    })
}

/// An address with user and password left out.
#[must_use]
pub fn redact(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://***{}", &rest[at..]),
        None => url.to_owned(),
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.redacted())
    }
}

impl<'de> Deserialize<'de> for Proxy {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(|_: ValueError| {
            de::Error::custom("not an address that starts with `http://` or `https://`")
        })
    }
}

impl JsonSchema for Proxy {
    fn schema_name() -> Cow<'static, str> {
        "Proxy".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Url::json_schema(generator)
    }
}

/// A driver branch, which people write as a number or as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BranchKey(pub Branch);

impl<'de> Deserialize<'de> for BranchKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = BranchKey;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a driver branch such as 580")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<BranchKey, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<BranchKey, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<BranchKey, E> {
                text.parse().map(BranchKey).map_err(E::custom)
            }
        }

        from.deserialize_any(Visitor)
    }
}

impl JsonSchema for BranchKey {
    fn schema_name() -> Cow<'static, str> {
        "BranchKey".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let text = Branch::json_schema(generator);
        json_schema!({
            "description": "NVIDIA driver branch, such as 580",
            "anyOf": [{ "type": "integer", "minimum": 100, "maximum": 9999 }, text],
        })
    }
}

/// How the kernel module comes to the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Build {
    /// Packaged for the kernel, and signed.
    Precompiled,
    /// Compiled on the machine.
    Dkms,
}

impl fmt::Display for Build {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Precompiled => "precompiled",
            Self::Dkms => "dkms",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_check_themselves() {
        for good in ["http://127.0.0.1:8000/deb/", "https://example.com"] {
            assert!(good.parse::<Url>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "ftp://x",
            "http://",
            "http:///x",
            "http://a b",
            "https://a\nDeb: x",
        ] {
            assert!(bad.parse::<Url>().is_err(), "{bad}");
        }
        for good in ["libnvidia-*", "docker.io", "libstdc++6", "*nvidia*"] {
            assert!(good.parse::<PackagePattern>().is_ok(), "{good}");
        }
        for bad in ["", "-y", "--purge", "a b", "x;rm", "a/b"] {
            assert!(bad.parse::<PackagePattern>().is_err(), "{bad}");
        }
        assert!("/etc/cdi/nvidia.yaml".parse::<AbsolutePath>().is_ok());
        for bad in ["", "/", "etc/x", "/etc/../x", "/a b"] {
            assert!(bad.parse::<AbsolutePath>().is_err(), "{bad}");
        }
        assert!("/etc/cdi/nvidia.yaml".parse::<CdiPath>().is_ok());
        for bad in [
            "/etc/cdi/nvidia.json",
            "/etc/cdi/nvidia.yml",
            "/etc/cdi/nvidia",
            "nvidia.yaml",
        ] {
            assert!(bad.parse::<CdiPath>().is_err(), "{bad}");
        }
    }

    #[test]
    fn fingerprints_are_whole() {
        let spaced = "9DC8 5822 9FC7 DD38 854A  E2D8 8D81 803C 0EBF CD88";
        let print: Fingerprint = spaced.to_ascii_lowercase().parse().unwrap();
        assert_eq!(print.as_str(), "9DC858229FC7DD38854AE2D88D81803C0EBFCD88");
        for bad in [
            "",
            "0EBFCD88",
            "8D81803C0EBFCD88",
            "9DC858229FC7DD38854AE2D88D81803C0EBFCD8G",
        ] {
            assert!(bad.parse::<Fingerprint>().is_err(), "{bad}");
        }
    }

    #[test]
    fn passwords_of_proxies_stay_out_of_messages() {
        assert_eq!(
            redact("http://joe:s3cret@proxy:3128/x"),
            "http://***@proxy:3128/x"
        );
        assert_eq!(redact("http://proxy:3128"), "http://proxy:3128");
        assert_eq!(redact("http://a@b@proxy"), "http://***@proxy");
        let proxy = "http://joe:s3cret@proxy:3128";
        assert_eq!(
            without_secret("E: http://joe:s3cret@proxy:3128 said no", proxy),
            "E: http://***@proxy:3128 said no"
        );
        assert_eq!(without_secret("E: no", "http://proxy"), "E: no");
        for (text, holds) in [
            ("packages.proxy=http://joe:s3cret@proxy:3128", true),
            ("packages={proxy=\"http://joe@proxy\"}", true),
            ("packages.proxy=http://proxy:3128/a@b", false),
            ("node.label=joe@example.com", false),
        ] {
            assert_eq!(holds_password(text), holds, "{text}");
        }
    }
}
