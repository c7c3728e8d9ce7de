//! Value types of settings. Each value is validated when it is parsed, so that an error has a location.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use bytesize::ByteSize;
use camino::{Utf8Path, Utf8PathBuf};
use jiff::SignedDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::{
    model::{
        kubernetes::check_key, packages::KEY_FILE, secret::without_logins, text::as_text,
        version::Branch,
    },
    sharing,
    tools::oci::{Address, is_digest},
};

/// The schema keyword for secret values. They are removed from everything that leaves the process, see
/// [`crate::model::secret`].
pub(super) const SECRET: &str = "x-secret";

/// For [`SECRET`]: only the credentials in the URL are secret.
pub(super) const LOGIN: &str = "login";

/// For [`SECRET`]: the value is the location of a secret. An invalid location may be the secret itself.
pub(super) const PLACE: &str = "place";

/// The reason that a value is invalid.
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

/// Defines a type for validated text, which is written unchanged to files and messages.
macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $test:expr, $what:expr, $pattern:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Returns the text.
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
    /// An HTTP or HTTPS URL.
    Url,
    |text| (text.strip_prefix("http://"))
        .or_else(|| text.strip_prefix("https://"))
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && plain(text)),
    "a URL that starts with `http://` or `https://` and has no spaces, quotes or backslashes",
    "^https?://[^/\\s][^\\s]*$"
);

checked_text!(
    /// A word for a line of a configuration file: no spaces, control characters, quotes, backslashes or backticks.
    Word,
    |text| !text.is_empty() && plain(text),
    "a word without spaces, control characters, quotes, backslashes and backticks",
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
    /// The digest of the public key of a cluster CA, as printed by kubeadm.
    CaHash,
    is_digest,
    "`sha256:` and 64 lower-case hexadecimal digits",
    "^sha256:[0-9a-f]{64}$"
);

checked_text!(
    /// A directory, a URL or a registry repository with archives of kernel modules. It is stored in a world-readable file
    /// that DKMS reads as a shell script, so it has no credentials, no query and no shell metacharacters.
    ModuleSource,
    |text| {
        let is_address = text.parse::<Url>().is_ok() || Address::parse(text).is_some();
        let safe = |c: char| c.is_ascii_alphanumeric() || "/.:_~%+,=-[]".contains(c);
        (is_address || from_root(text)) && text.chars().all(safe)
    },
    "a directory, a URL that starts with `https://` or `http://` without credentials, `?`, `*` and spaces, or \
        `oci://REGISTRY/REPOSITORY` in lower case without a tag",
    "^((https?|oci):/)?/[A-Za-z0-9/.:_~%+,=\\[\\]-]+$"
);

checked_text!(
    /// The target for archives of kernel modules: a directory or a registry repository.
    ModuleTarget,
    |text| from_root(text) || Address::parse(text).is_some(),
    "a directory, or `oci://REGISTRY/REPOSITORY` in lower case without a tag",
    "^(oci:/)?/[^\\s]+$"
);

checked_text!(
    /// A minisign public key, in the one-line form that `minisign -G` prints.
    MinisignKey,
    |text| minisign_verify::PublicKey::from_base64(text).is_ok(),
    "a minisign public key, such as the second line of `minisign.pub`",
    "^[A-Za-z0-9+/]{56}$"
);

checked_text!(
    /// A resource of the NVIDIA device plugin.
    ResourceName,
    sharing::is_resource,
    sharing::RESOURCE,
    sharing::RESOURCE_PATTERN
);

checked_text!(
    /// The type of a node condition.
    ConditionType,
    |text| check_key(text).is_ok() && !OF_KUBELETS.contains(&text),
    "a condition type such as `nvidia.com/GPUReady` that the kubelet does not use",
    "^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
);

/// The condition types of kubelets and network plugins. Source: Kubernetes, "Node Status".
const OF_KUBELETS: [&str; 5] = [
    "Ready",
    "MemoryPressure",
    "DiskPressure",
    "PIDPressure",
    "NetworkUnavailable",
];

/// Returns whether text is an absolute path without `..`, and safe in a configuration file and in a shell script of DKMS.
fn from_root(text: &str) -> bool {
    let climbs = text.split('/').any(|part| part == "..");
    // DKMS expands `$` in these paths like a shell.
    text.starts_with('/') && text.len() > 1 && !climbs && plain(text) && !text.contains('$')
}

/// Returns whether text is safe in a line of a configuration file.
fn plain(text: &str) -> bool {
    !text
        .chars()
        .any(|c| c.is_whitespace() || c.is_control() || "\"'\\`".contains(c))
}

/// A time limit in whole seconds, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimit(u64);

impl TimeLimit {
    pub(super) const fn minutes(count: u64) -> Self {
        Self(count * 60)
    }

    /// Returns the seconds.
    pub fn seconds(self) -> u64 {
        self.0
    }
}

impl FromStr for TimeLimit {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let what = "a duration of at least one second with a unit, such as `90s`, `30m` or `1h30m`";
        let duration = text.parse::<SignedDuration>();
        let seconds = duration
            .ok()
            .and_then(|time| u64::try_from(time.as_secs()).ok());
        (seconds.filter(|seconds| *seconds > 0).map(Self)).ok_or(ValueError::new(text, what))
    }
}

impl fmt::Display for TimeLimit {
    /// Whole minutes as `15m`, otherwise seconds.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 60 {
            0 => write!(to, "{}m", self.0 / 60),
            _ => write!(to, "{}s", self.0),
        }
    }
}

as_text!(
    TimeLimit,
    "a duration with a unit, such as `90s`, `30m` or `1h30m`",
    "^[0-9]"
);

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(jiff::Timestamp);

impl Moment {
    pub fn timestamp(self) -> jiff::Timestamp {
        self.0
    }
}

impl FromStr for Moment {
    type Err = ValueError;

    /// A date means midnight UTC.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let what = "a date or a time with its zone, such as `2026-01-31` or `2026-01-31T12:00:00Z`";
        let day = format!("{text}T00:00:00Z");
        (text.parse().or_else(|_| day.parse()))
            .map(Self)
            .map_err(|_| ValueError::new(text, what))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.0)
    }
}

as_text!(
    Moment,
    "a date or a time with its zone, such as `2026-01-31` or `2026-01-31T12:00:00Z`",
    "^[0-9]{4}-[0-9]{2}-[0-9]{2}"
);

/// A size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(u64);

impl Size {
    pub(super) const fn megabytes(count: u64) -> Self {
        Self(count * 1_000_000)
    }

    /// Returns the bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        (text.parse::<ByteSize>().map(|size| Self(size.0)))
            .map_err(|_| ValueError::new(text, "a size with a unit, such as `6GB` or `512MiB`"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1, "B")];
        let whole = units
            .into_iter()
            .find(|(unit, _)| self.0.is_multiple_of(*unit));
        let (unit, name) = whole.unwrap_or((1, "B"));
        write!(to, "{}{name}", self.0 / unit)
    }
}

as_text!(
    Size,
    "a size with a unit, such as `6GB` or `512MiB`",
    "^[0-9]"
);

/// The fingerprint of an OpenPGP key: 40 upper-case hexadecimal digits. Alternatively `sha256:` and the digest of a
/// key file, for vendors that publish no fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// Returns the digits in upper case without spaces, or `sha256:` and the digest in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Fingerprint {
    type Err = ValueError;

    /// Also accepts the `gpg` format in groups of four.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(digest) = text.strip_prefix(KEY_FILE) {
            let is_digest = digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit());
            return if is_digest {
                Ok(Self(format!("{KEY_FILE}{}", digest.to_ascii_lowercase())))
            } else {
                Err(ValueError::new(
                    text,
                    "`sha256:` and the 64 hexadecimal digits of the key file digest",
                ))
            };
        }
        let digits: String = text.chars().filter(|c| *c != ' ').collect();
        if digits.len() == 40 && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            Ok(Self(digits.to_ascii_uppercase()))
        } else {
            Err(ValueError::new(
                text,
                "a full key fingerprint of 40 hexadecimal digits (short key IDs can be forged)",
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
    "Fingerprint of an OpenPGP key, 40 hexadecimal digits, optionally in groups. Alternatively `sha256:` and the \
     digest of the armored key file without its `Version:` headers",
    "^(([0-9A-Fa-f] *){40}|sha256:[0-9A-Fa-f]{64})$"
);

/// An absolute path without `..`, `$`, quotes or spaces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbsolutePath(Utf8PathBuf);

impl AbsolutePath {
    /// Returns the path.
    pub fn into_inner(self) -> Utf8PathBuf {
        self.0
    }

    /// A reference to the path.
    pub fn as_path(&self) -> &Utf8Path {
        &self.0
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
                "a path that starts with `/` and has no `..`, `$`, quotes, backslashes or spaces",
            ))
        }
    }
}

impl fmt::Display for AbsolutePath {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.0.as_str())
    }
}

as_text!(AbsolutePath, "Absolute path", "^/[^\\s$]+$");

/// A proxy. Its URL may contain credentials, which are hidden in messages and `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy(Url);

impl Proxy {
    /// Returns whether a text is a URL of a supported proxy.
    pub fn is_one(text: &str) -> bool {
        text.parse::<Url>().is_ok()
    }

    /// Returns the whole URL with its credentials.
    pub fn expose(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&without_logins(self.0.as_str()))
    }
}

impl<'de> Deserialize<'de> for Proxy {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(|_: ValueError| {
            de::Error::custom("not a URL that starts with `http://` or `https://`")
        })
    }
}

impl JsonSchema for Proxy {
    fn schema_name() -> Cow<'static, str> {
        "Proxy".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = Url::json_schema(generator);
        schema.insert(SECRET.to_owned(), LOGIN.into());
        schema
    }
}

/// A driver branch, written as a number or as text.
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

/// Whether a machine must have an NVIDIA GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GpuNeed {
    /// A machine without a GPU is rejected.
    Required,
    /// A machine without a GPU is set up without the driver and everything that depends on it.
    Optional,
}

/// Which packages are held at their versions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Holding {
    /// No package.
    None,
    /// The driver, container runtimes, the container toolkit, and Kubernetes packages.
    Driver,
    /// Also kernels and their headers.
    #[default]
    DriverAndKernel,
}

/// The install method of the kernel module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Build {
    /// Packaged for the kernel, and signed.
    Precompiled,
    /// Compiled on the machine.
    Dkms,
}

impl Build {
    /// The setting that compiles the module, for hints.
    pub const COMPILE: &str = "set `driver.build = \"dkms\"`";

    /// Returns `Dkms` for a module that is compiled on the machine.
    pub const fn of(is_compiled: bool) -> Self {
        match is_compiled {
            true => Self::Dkms,
            false => Self::Precompiled,
        }
    }

    /// Whether the module is compiled on the machine.
    pub const fn is_compiled(self) -> bool {
        matches!(self, Self::Dkms)
    }

    /// A human-readable description.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Precompiled => "packaged for the kernel",
            Self::Dkms => "compiled on the machine by DKMS",
        }
    }
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
        let moment = |text: &str| text.parse::<Moment>().map(|time| time.to_string());
        for (text, time) in [
            ("2026-01-31", "2026-01-31T00:00:00Z"),
            ("2026-01-31T12:00:00+01:00", "2026-01-31T11:00:00Z"),
        ] {
            assert_eq!(moment(text).as_deref(), Ok(time));
        }
        for bad in ["", "2026-02-30", "2026-01-31T12:00", "yesterday"] {
            assert!(moment(bad).is_err(), "{bad}");
        }
        for good in ["libnvidia-*", "docker.io", "libstdc++6", "*nvidia*"] {
            assert!(good.parse::<PackagePattern>().is_ok(), "{good}");
        }
        for bad in ["", "-y", "--purge", "a b", "x;rm", "a/b"] {
            assert!(bad.parse::<PackagePattern>().is_err(), "{bad}");
        }
        for good in [
            "/srv/modules",
            "oci://m.example:5000/team/gpu",
            "https://m.example/a%20b/",
            "http://[fd00::1]:8080/m",
        ] {
            assert!(good.parse::<ModuleSource>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "srv",
            "/srv/../x",
            "https://a:b@m.example/",
            "https://m.example/?key=x",
            "oci://a:b@m.example/gpu",
            "oci://m.example/gpu:tag",
            "/srv/$(id)",
            "/a;b",
            "file:///x",
        ] {
            assert!(bad.parse::<ModuleSource>().is_err(), "{bad}");
        }
        for good in [
            "nvidia.com/gpu",
            "nvidia.com/mig-1g.10gb",
            "nvidia.com/mig-1c.3g.40gb.me.all",
        ] {
            assert!(good.parse::<ResourceName>().is_ok(), "{good}");
        }
        // The name is written to YAML without quotes.
        for bad in [
            "",
            "nvidia.com/gpu.shared",
            "nvidia.com/mig-",
            "nvidia.com/mig-1g.10gb+me",
            "nvidia.com/mig-1G.10gb",
            "nvidia.com/mig-1g: {}",
            "nvidia.com/mig-1g.",
        ] {
            assert!(bad.parse::<ResourceName>().is_err(), "{bad}");
        }
        for good in ["/srv/modules", "oci://m.example/gpu"] {
            assert!(good.parse::<ModuleTarget>().is_ok(), "{good}");
        }
        for bad in ["srv", "https://m.example/gpu", "oci://m.example"] {
            assert!(bad.parse::<ModuleTarget>().is_err(), "{bad}");
        }
        let key = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
        assert!(key.parse::<MinisignKey>().is_ok());
        assert!(key[..55].parse::<MinisignKey>().is_err());
        assert!("/etc/cdi/nvidia.yaml".parse::<AbsolutePath>().is_ok());
        for bad in ["", "/", "etc/x", "/etc/../x", "/a b", "/k/$(id)"] {
            assert!(bad.parse::<AbsolutePath>().is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_and_sizes_require_units() {
        for (text, seconds) in [
            ("90s", 90),
            ("30m", 1800),
            ("1h30m", 5400),
            ("2 hours", 7200),
        ] {
            let limit: TimeLimit = text.parse().unwrap();
            assert_eq!(limit.seconds(), seconds, "{text}");
            assert_eq!(limit.to_string().parse(), Ok(limit));
        }
        for text in ["", "30", "0s", "-5m", "soon", "10ms"] {
            assert!(text.parse::<TimeLimit>().is_err(), "{text}");
        }
        for (text, bytes) in [
            ("6GB", 6_000_000_000),
            ("1.5 GB", 1_500_000_000),
            ("512MiB", 512 << 20),
            ("0B", 0),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!(size.bytes(), bytes, "{text}");
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        for text in ["", "much", "-1GB", "6 apples"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn short_key_ids_are_rejected() {
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
}
