//! The configuration keys, derived from the types. Used for errors about unknown keys, the environment, the
//! documentation and the schema.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::{
    config::{
        file::Config,
        values::{LOGIN, PLACE, SECRET},
    },
    model::{
        secret::{self, Secret},
        text::nearest,
        token::TokenSource,
    },
};

/// A node of the key tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyNode {
    /// A key with a value.
    Leaf(Secrecy),
    /// A table with these keys.
    Table(BTreeMap<String, KeyNode>),
    /// A table with keys that the administrator chooses.
    Map(Box<KeyNode>),
}

/// The secret part of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrecy {
    /// No part.
    Open,
    /// The credentials in a URL.
    Login,
    /// The value is the location of a secret. An invalid location may be a secret that was entered by mistake.
    Location,
    /// The whole value.
    Whole,
}

/// Placeholder in a dotted key for a name that the administrator chooses.
pub const ANY: &str = "NAME";

/// The tree of all keys, from the configuration schema.
pub static TREE: LazyLock<KeyNode> = LazyLock::new(|| node(&inlined()));

/// Returns the configuration schema with inlined types.
pub(super) fn inlined() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
    });
    (settings.into_generator().into_root_schema_for::<Config>()).to_value()
}

fn node(schema: &Value) -> KeyNode {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        let children = properties.iter();
        return KeyNode::Table(
            children
                .map(|(name, child)| (name.clone(), node(child)))
                .collect(),
        );
    }
    if let Some(child @ Value::Object(_)) = schema.get("additionalProperties") {
        return KeyNode::Map(Box::new(node(child)));
    }
    KeyNode::Leaf(match schema.get(SECRET).and_then(Value::as_str) {
        None => Secrecy::Open,
        Some(LOGIN) => Secrecy::Login,
        Some(PLACE) => Secrecy::Location,
        Some(_) => Secrecy::Whole,
    })
}

/// Returns every dotted key.
pub fn all() -> Vec<String> {
    let mut found = Vec::new();
    collect(&TREE, "", &mut found);
    found
}

fn collect(node: &KeyNode, prefix: &str, found: &mut Vec<String>) {
    match node {
        KeyNode::Leaf(_) => found.push(prefix.to_owned()),
        KeyNode::Table(children) => {
            for (name, child) in children {
                collect(child, &join(prefix, name), found);
            }
        }
        KeyNode::Map(child) => collect(child, &join(prefix, ANY), found),
    }
}

/// Returns the secret part of a key's value, based on the type of the key or otherwise on its name. A key that is unknown
/// here may be a secret in another version of gpu-bootstrap.
pub fn secrecy(path: &[String]) -> Secrecy {
    let mut node = Some(&*TREE);
    for part in path {
        node = match node {
            Some(KeyNode::Table(children)) => children.get(part),
            Some(KeyNode::Map(child)) => Some(child),
            Some(KeyNode::Leaf(_)) | None => None,
        };
    }
    let named = |parts: &[String]| parts.iter().any(|part| secret::is_secret_name(part));
    match node {
        Some(KeyNode::Leaf(Secrecy::Open)) if !named(&path[path.len().saturating_sub(1)..]) => {
            Secrecy::Open
        }
        Some(KeyNode::Leaf(secrecy @ (Secrecy::Login | Secrecy::Location | Secrecy::Whole))) => {
            *secrecy
        }
        _ if named(path) => Secrecy::Whole,
        _ => Secrecy::Open,
    }
}

/// Returns the value of a key if it is a secret or contains one. A URL with credentials is a secret for every key.
pub fn secret(path: &[String], value: &str) -> Option<Secret> {
    let is_secret = match secrecy(path) {
        Secrecy::Whole => !value.is_empty(),
        Secrecy::Login => value.contains('@'),
        Secrecy::Location => !value.is_empty() && value.parse::<TokenSource>().is_err(),
        Secrecy::Open => secret::has_login(value),
    };
    is_secret.then(|| Secret::new(value))
}

/// Joins two parts of a dotted key.
pub fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}.{name}")
    }
}

/// Keys that users expect, for example from other tools, and the key that was probably meant.
const EXPECTED: [(&str, &str); 1] = [("driver.open", "driver.flavor")];

/// Returns the key that was probably meant: a similar one in the same table, or the same name in another table.
pub fn suggestion(
    siblings: &BTreeMap<String, KeyNode>,
    prefix: &str,
    name: &str,
) -> Option<String> {
    let path = join(prefix, name);
    if let Some((_, meant)) = EXPECTED.iter().find(|(expected, _)| *expected == path) {
        return Some((*meant).to_owned());
    }
    if let Some(sibling) = nearest(name, siblings.keys().map(String::as_str)) {
        return Some(join(prefix, sibling));
    }
    // The name may contain a key in another spelling: kubeadm's `DiscoveryTokenCACertHashes` contains `ca-cert-hashes`.
    let plain = |text: &str| text.replace(['-', '_'], "").to_ascii_lowercase();
    let (words, shortest) = (plain(name), 8);
    let within = (siblings.keys())
        .filter(|key| plain(key).len() >= shortest && words.contains(&plain(key)))
        .max_by_key(|key| key.len());
    if let Some(sibling) = within {
        return Some(join(prefix, sibling));
    }
    all().into_iter().find(|key| {
        key.rsplit('.')
            .next()
            .is_some_and(|last| last == name || strsim::jaro_winkler(last, name) > 0.9)
    })
}

#[cfg(test)]
mod tests {
    use super::{KeyNode, Secrecy, TREE, all, secrecy, secret, suggestion};

    #[test]
    fn tree_has_the_keys_of_the_types() {
        let keys = all();
        for key in [
            "profile",
            "driver.branch",
            "runtime.use",
            "repositories.NAME.key-url",
            "packages.lock-timeout",
            "gpu",
        ] {
            assert!(keys.iter().any(|known| known == key), "{key} in {keys:?}");
        }
    }

    #[test]
    fn secrets_are_detected_by_key() {
        let path = |key: &str| key.split('.').map(str::to_owned).collect::<Vec<_>>();
        for (key, is) in [
            ("packages.proxy", Secrecy::Login),
            ("cluster.token", Secrecy::Location),
            ("cluster.join-token", Secrecy::Whole),
            ("registry.NAME.password", Secrecy::Whole),
            ("registry.credentials.user", Secrecy::Whole),
            ("repositories.token.url", Secrecy::Open),
            ("repositories.own.url", Secrecy::Open),
            ("cluster.kubeconfig-file", Secrecy::Open),
        ] {
            assert_eq!(secrecy(&path(key)), is, "{key}");
        }
        for (key, value, is) in [
            ("packages.proxy", "http://proxy:3128", false),
            ("packages.proxy", "http://joe:pa/ss@proxy:3128", true),
            ("validation.image", "https://joe@registry/image", true),
            ("validation.image", "registry/image@sha256:0", false),
            ("cluster.token", "abcdef.0123", true),
            ("cluster.token", "", false),
            ("cluster.token", "file:/etc/token", false),
            ("cluster.token", "credential:token", false),
        ] {
            assert_eq!(secret(&path(key), value).is_some(), is, "{key}={value}");
        }
    }

    #[test]
    fn keys_of_same_and_other_tables_are_suggested() {
        let KeyNode::Table(top) = &*TREE else {
            panic!("the root is a table");
        };
        assert_eq!(suggestion(top, "", "drivr").as_deref(), Some("driver"));
        assert_eq!(
            suggestion(top, "", "branch").as_deref(),
            Some("driver.branch")
        );
        assert_eq!(suggestion(top, "", "zzzz"), None);
        let Some(KeyNode::Table(cluster)) = top.get("cluster") else {
            panic!("`cluster` is a table");
        };
        assert_eq!(
            suggestion(cluster, "cluster", "DiscoveryTokenCACertHashes").as_deref(),
            Some("cluster.ca-cert-hashes")
        );
        let Some(KeyNode::Table(driver)) = top.get("driver") else {
            panic!("`driver` is a table");
        };
        assert_eq!(
            suggestion(driver, "driver", "brnach").as_deref(),
            Some("driver.branch")
        );
        assert_eq!(
            suggestion(driver, "driver", "flavor").as_deref(),
            Some("driver.flavor")
        );
    }
}
