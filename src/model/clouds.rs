//! The clouds, one file each in `clouds/`: how each is recognised, what its metadata service tells, and where it keeps secrets.
//! What one of them needs that is no data, as a signature, has a name here and its code elsewhere.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use super::text::folder;

/// A cloud.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CloudRow {
    /// Its name in facts and in the matrix.
    pub name: String,
    /// Its name for people.
    pub title: String,
    /// cloud-init's name for it.
    pub cloud_init: Option<String>,
    /// Others are built on it: their own marks count first.
    #[serde(default)]
    pub base: bool,
    #[serde(default)]
    pub firmware: Vec<FirmwareMark>,
    /// Where cloud-init's file has what only this cloud tells.
    #[serde(default)]
    pub instance_data: BTreeMap<InstanceKey, Vec<ValueRule>>,
    pub metadata: Option<MetadataRow>,
    #[serde(default)]
    pub node: NodeRow,
    pub secret: Option<SecretRow>,
}

/// What the firmware of its machines says. Every key that is there must match.
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
    /// Where this was read, and how sure it is; for people.
    pub source: String,
    pub confidence: String,
}

/// What a cloud tells of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstanceKey {
    InstanceId,
    InstanceType,
    Lifecycle,
    Region,
    Zone,
}

/// Where a value is, and what becomes of it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, from = "WrittenRule")]
pub struct ValueRule {
    /// A JSON pointer into a document, or a path behind the common one.
    pub at: String,
    /// It is a part of another value.
    pub of: Option<InstanceKey>,
    /// Only what stands before the last of these signs.
    pub without_last: Option<char>,
    /// Our word for each of theirs; another one tells nothing.
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
    /// What a text means.
    #[must_use]
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

/// Its metadata service.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MetadataRow {
    /// `NAME: VALUE`, without which nothing is told.
    pub header: Option<String>,
    /// Such a header with a value that the service gives.
    pub token: Option<TokenRow>,
    /// The address of one document of JSON that has all keys.
    pub document: Option<String>,
    /// Each key has an address of its own, which begins so.
    pub each: Option<String>,
    pub keys: BTreeMap<InstanceKey, ValueRule>,
}

/// A token of a metadata service.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TokenRow {
    /// PUT here gives it.
    pub path: String,
    /// The header of that request, `NAME: VALUE`.
    pub ask: String,
    /// The header that has it.
    pub header: String,
}

/// What a node of Kubernetes is told.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NodeRow {
    /// The name of its zone, where this is not that of the cloud.
    pub zone: Option<String>,
}

/// The store of secrets.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SecretRow {
    /// How settings name it: `SCHEME:PART/PART`.
    pub scheme: String,
    /// The parts, for people.
    pub form: String,
    pub parts: Vec<PartRow>,
    pub identity: Identity,
    /// Where the metadata service has the identity.
    pub identity_path: String,
    /// By the status of that answer: why there is none.
    pub none: BTreeMap<String, String>,
    /// Statuses of that answer that pass.
    #[serde(default)]
    pub later: Vec<u16>,
    /// The name in a signature.
    #[serde(default)]
    pub service: String,
    pub host: String,
    /// Another host, by a pattern over the first part.
    #[serde(default)]
    pub host_where: BTreeMap<String, String>,
    pub path: String,
    #[serde(default)]
    pub headers: Vec<String>,
    /// With a body it is a POST.
    pub body: Option<String>,
    /// JSON pointers to the secret.
    #[serde(default)]
    pub value: Vec<String>,
    #[serde(default)]
    pub value_base64: Vec<String>,
    /// A JSON pointer to the word that names an error.
    pub word: String,
    #[serde(default)]
    pub words: BTreeMap<String, SecretFault>,
    pub hints: BTreeMap<SecretFault, String>,
}

/// A part of a secret's place.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PartRow {
    pub name: String,
    /// Signs beside letters and digits.
    pub signs: String,
    /// Its longest length.
    pub most: usize,
    /// What counts where it is not named.
    pub default: Option<String>,
}

/// How an instance shows who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Identity {
    /// `access_token` of a document, as a bearer.
    Bearer,
    /// Credentials of a role, with which each request is signed.
    SignedV4,
}

/// Why the secret is not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecretFault {
    /// The instance has no identity that could ask.
    NoIdentity,
    /// The identity may not read the secret.
    Denied,
    /// There is no such secret.
    NotFound,
    /// What is there is no token.
    Form,
    /// Nobody answers, or only that it cannot serve now.
    Unreachable,
    /// It is refused for another reason.
    Refused,
}

static CLOUDS: LazyLock<Vec<CloudRow>> = LazyLock::new(|| {
    let files = folder("clouds").into_iter().flatten();
    let mut rows: Vec<CloudRow> = files
        .map(|(name, text)| {
            parse(text)
                .unwrap_or_else(|error| panic!("clouds/{name}.toml, which a test reads: {error}"))
        })
        .collect();
    rows.sort_by_key(|row| row.base);
    rows
});

fn parse(text: &str) -> Result<CloudRow, String> {
    let row: CloudRow = toml::from_str(text).map_err(|error| error.to_string())?;
    let is_unused = |row: &SecretRow| {
        row.identity == Identity::Bearer && !(row.service.is_empty() && row.headers.is_empty())
    };
    match row.secret.as_ref().is_some_and(is_unused) {
        true => Err("`service` and `headers` are only for the identity `signed-v4`".to_owned()),
        false => Ok(row),
    }
}

/// All of them; those on which others are built come last.
#[must_use]
pub fn all() -> &'static [CloudRow] {
    &CLOUDS
}

/// The cloud of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static CloudRow> {
    all().iter().find(|row| row.name == name)
}

/// The store of secrets of this scheme.
#[must_use]
pub fn store(scheme: &str) -> Option<&'static SecretRow> {
    let mut stores = all().iter().filter_map(|row| row.secret.as_ref());
    stores.find(|row| row.scheme == scheme)
}

/// `NAME: VALUE`.
#[must_use]
pub fn header(text: &'static str) -> (&'static str, &'static str) {
    text.split_once(": ").unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{all, folder, parse};

    #[test]
    fn keys_without_effect_are_rejected() {
        let (_, azure) = (folder("clouds").unwrap())
            .find(|(name, _)| *name == "azure")
            .unwrap();
        assert!(azure.contains("[secret]\n") && parse(azure).is_ok());
        for key in ["service = \"vault\"", "headers = [\"a: b\"]"] {
            let text = azure.replace("[secret]\n", &format!("[secret]\n{key}\n"));
            let error = parse(&text).unwrap_err();
            assert!(error.contains("`signed-v4`"), "{error}");
        }
    }

    #[test]
    fn every_file_is_a_cloud_with_a_mark_and_one_way_to_its_keys() {
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
        let files: BTreeSet<String> = (folder("clouds").unwrap())
            .map(|(name, _)| name.to_owned())
            .collect();
        assert_eq!(names.into_iter().cloned().collect::<BTreeSet<_>>(), files);
        assert!(files.len() > 10);
    }
}
