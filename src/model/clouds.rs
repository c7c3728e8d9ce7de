//! The clouds, each with a file in `clouds/`: how to detect it, what its metadata service reports, and where it
//! stores secrets. Features that cannot be expressed as data, such as signatures, have a name here and are
//! implemented elsewhere.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use super::text::directory;

/// A cloud.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CloudRow {
    /// The name in facts and in the matrix.
    pub name: String,
    /// The name in messages.
    pub title: String,
    /// The cloud-init name.
    pub cloud_init: Option<String>,
    /// Other clouds are built on it, so their markers have priority.
    #[serde(default)]
    pub base: bool,
    #[serde(default)]
    pub firmware: Vec<FirmwareMark>,
    /// The locations of values that only this cloud has, in the instance data file of cloud-init.
    #[serde(default)]
    pub instance_data: BTreeMap<InstanceKey, Vec<ValueRule>>,
    pub metadata: Option<MetadataRow>,
    #[serde(default)]
    pub node: NodeRow,
    pub secret: Option<SecretRow>,
}

/// Firmware strings of its machines. Every given key must match.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FirmwareMark {
    pub sys_vendor: Option<String>,
    pub product_name: Option<String>,
    pub chassis_asset_tag: Option<String>,
    pub hypervisor_uuid: Option<String>,
    /// The product name is the instance type.
    #[serde(default)]
    pub product_is_type: bool,
    /// The source of this entry and its reliability.
    pub source: String,
    pub confidence: String,
}

/// A value that a cloud reports about an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstanceKey {
    InstanceId,
    InstanceType,
    Lifecycle,
    Region,
    Zone,
}

/// The location of a value, and its conversion.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, from = "WrittenRule")]
pub struct ValueRule {
    /// A JSON pointer into a document, or the rest of the path after the common prefix ([`MetadataRow::each`]).
    pub at: String,
    /// The value is part of another value.
    pub of: Option<InstanceKey>,
    /// Only the part before the last occurrence of this character is used.
    pub without_last: Option<char>,
    /// Our word for each value of the cloud. Other values are ignored.
    pub words: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenRule {
    At(String),
    Rule(WrittenTable),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenTable {
    #[serde(default)]
    at: String,
    of: Option<InstanceKey>,
    without_last: Option<char>,
    #[serde(default)]
    words: BTreeMap<String, String>,
}

impl From<WrittenRule> for ValueRule {
    fn from(written: WrittenRule) -> Self {
        match written {
            WrittenRule::At(at) => Self {
                at,
                ..Self::default()
            },
            WrittenRule::Rule(WrittenTable {
                at,
                of,
                without_last,
                words,
            }) => Self {
                at,
                of,
                without_last,
                words,
            },
        }
    }
}

impl ValueRule {
    /// Converts a value.
    pub fn meaning(&self, text: &str) -> Option<String> {
        let text = match self.without_last {
            Some(sign) => text.rsplit_once(sign)?.0,
            None => text,
        };
        match self.words.is_empty() {
            true => Some(text.to_owned()),
            false => self.words.get(text).cloned(),
        }
    }
}

/// The metadata service of a cloud.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MetadataRow {
    /// The required header `NAME: VALUE`.
    pub header: Option<String>,
    /// A header with a token that the service issues.
    pub token: Option<TokenRow>,
    /// The URL of one JSON document with all keys.
    pub document: Option<String>,
    /// The URL prefix, if each key has a separate URL.
    pub each: Option<String>,
    pub keys: BTreeMap<InstanceKey, ValueRule>,
}

/// A metadata service token.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TokenRow {
    /// The path of the PUT request that issues it.
    pub path: String,
    /// The header of this request, `NAME: VALUE`.
    pub ask: String,
    /// The header for the token.
    pub header: String,
}

/// Values for a Kubernetes node.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NodeRow {
    /// The zone, if it differs from the cloud zone.
    pub zone: Option<String>,
}

/// The secret store.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SecretRow {
    /// The scheme in settings: `SCHEME:PART/PART`.
    pub scheme: String,
    /// The parts, for messages.
    pub form: String,
    pub parts: Vec<PartRow>,
    pub identity: Identity,
    /// The path of the identity in the metadata service.
    pub identity_path: String,
    /// The reason for a missing identity, by HTTP status.
    pub none: BTreeMap<String, String>,
    /// HTTP statuses of transient failures.
    #[serde(default)]
    pub later: Vec<u16>,
    /// The service name in a signature.
    #[serde(default)]
    pub service: String,
    pub host: String,
    /// Different hosts, by a pattern that the first part of the secret location matches.
    #[serde(default)]
    pub host_where: BTreeMap<String, String>,
    pub path: String,
    #[serde(default)]
    pub headers: Vec<String>,
    /// If set, the request is a POST with this body.
    pub body: Option<String>,
    /// JSON pointers to the secret.
    #[serde(default)]
    pub value: Vec<String>,
    #[serde(default)]
    pub value_base64: Vec<String>,
    /// A JSON pointer to the error code.
    pub word: String,
    #[serde(default)]
    pub words: BTreeMap<String, SecretFault>,
    pub hints: BTreeMap<SecretFault, String>,
}

/// A part of a secret location.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PartRow {
    pub name: String,
    /// Allowed characters other than letters and digits.
    pub signs: String,
    /// The maximum length.
    pub most: usize,
    /// The default value.
    pub default: Option<String>,
}

/// How an instance authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Identity {
    /// `access_token` of a document, as a bearer token.
    Bearer,
    /// Role credentials that sign each request.
    SignedV4,
}

/// The reason that the secret is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecretFault {
    /// The instance has no identity.
    NoIdentity,
    /// The identity has no permission to read the secret.
    Denied,
    /// The secret does not exist.
    NotFound,
    /// The secret is not a join token.
    Form,
    /// The service does not respond, or is temporarily unavailable.
    Unreachable,
    /// Rejected for another reason.
    Refused,
}

static CLOUDS: LazyLock<Vec<CloudRow>> = LazyLock::new(|| {
    let files = directory("clouds").into_iter().flatten();
    let mut rows: Vec<CloudRow> = files
        .map(|(name, text)| {
            parse(text).unwrap_or_else(|error| {
                panic!("clouds/{name}.toml (a test ensures that it is valid): {error}")
            })
        })
        .collect();
    rows.sort_by_key(|row| row.base);
    rows
});

fn parse(text: &str) -> Result<CloudRow, String> {
    let row: CloudRow = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let is_unused = |row: &SecretRow| {
        row.identity == Identity::Bearer && !(row.service.is_empty() && row.headers.is_empty())
    };
    match row.secret.as_ref().is_some_and(is_unused) {
        true => Err("`service` and `headers` are only for the identity `signed-v4`".to_owned()),
        false => Ok(row),
    }
}

/// Returns all clouds. Those on which other clouds are built come last.
pub fn all() -> &'static [CloudRow] {
    &CLOUDS
}

/// Returns the cloud with this name.
pub fn named(name: &str) -> Option<&'static CloudRow> {
    all().iter().find(|row| row.name == name)
}

/// Returns the secret store with this scheme.
pub fn store(scheme: &str) -> Option<&'static SecretRow> {
    let mut stores = all().iter().filter_map(|row| row.secret.as_ref());
    stores.find(|row| row.scheme == scheme)
}

/// Parses `NAME: VALUE`.
pub fn header(text: &'static str) -> (&'static str, &'static str) {
    text.split_once(": ").unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::{all, directory, parse};

    #[test]
    fn keys_without_effect_are_rejected() {
        let (_, azure) = (directory("clouds").unwrap())
            .find(|(name, _)| *name == "azure")
            .unwrap();
        assert!(parse(azure).is_ok());
        for (key, value) in [("service", json!("vault")), ("headers", json!(["a: b"]))] {
            let mut row: Value = serde_json::from_str(azure).unwrap();
            row["secret"][key] = value;
            let error = parse(&row.to_string()).unwrap_err();
            assert!(error.contains("`signed-v4`"), "{error}");
        }
    }

    #[test]
    fn each_cloud_has_marker_and_one_metadata_format() {
        let mut names = BTreeSet::new();
        for row in all() {
            assert!(names.insert(&row.name), "{}", row.name);
            assert!(!row.firmware.is_empty(), "{}", row.name);
            for mark in &row.firmware {
                let marks = [
                    &mark.sys_vendor,
                    &mark.product_name,
                    &mark.chassis_asset_tag,
                    &mark.hypervisor_uuid,
                ];
                assert!(marks.iter().any(|one| one.is_some()), "{}", row.name);
            }
            if let Some(metadata) = &row.metadata {
                assert!(
                    metadata.document.is_some() != metadata.each.is_some(),
                    "{}",
                    row.name
                );
                assert!(
                    metadata.header.is_some() != metadata.token.is_some(),
                    "{}",
                    row.name
                );
            }
            if let Some(secret) = &row.secret {
                assert!(!secret.value.is_empty() || !secret.value_base64.is_empty());
            }
        }
        let files: BTreeSet<String> = (directory("clouds").unwrap())
            .map(|(name, _)| name.to_owned())
            .collect();
        assert_eq!(names.into_iter().cloned().collect::<BTreeSet<_>>(), files);
        assert!(files.len() > 10);
    }
}
