//! The keys of the configuration, derived from its types: for errors about unknown keys, the
//! environment, the documentation and the schema.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::{config::file::Config, model::text::nearest};

/// A part of the tree of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A key with a value.
    Leaf,
    /// A table with these keys.
    Table(BTreeMap<String, Node>),
    /// A table whose keys are names that the administrator chooses.
    Map(Box<Node>),
}

/// Stands for a chosen name in a dotted key.
pub const ANY: &str = "NAME";

/// The tree of all keys.
pub static TREE: LazyLock<Node> = LazyLock::new(|| {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
    });
    let schema = settings.into_generator().into_root_schema_for::<Config>();
    node(schema.as_value())
});

/// Every key, dotted.
#[must_use]
pub fn all() -> Vec<String> {
    let mut found = Vec::new();
    collect(&TREE, "", &mut found);
    found
}

fn collect(node: &Node, prefix: &str, found: &mut Vec<String>) {
    match node {
        Node::Leaf => found.push(prefix.to_owned()),
        Node::Table(children) => {
            for (name, child) in children {
                collect(child, &join(prefix, name), found);
            }
        }
        Node::Map(child) => collect(child, &join(prefix, ANY), found),
    }
}

/// Two parts of a dotted key as one.
#[must_use]
pub fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}.{name}")
    }
}

/// The key that was probably meant: a similar one in the same table, or the same name in another.
#[must_use]
pub fn suggestion(siblings: &BTreeMap<String, Node>, prefix: &str, name: &str) -> Option<String> {
    if let Some(sibling) = nearest(name, siblings.keys().map(String::as_str)) {
        return Some(join(prefix, sibling));
    }
    all().into_iter().find(|key| {
        key.rsplit('.')
            .next()
            .is_some_and(|last| last == name || strsim::jaro_winkler(last, name) > 0.9)
    })
}

fn node(schema: &Value) -> Node {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        let children = properties
            .iter()
            .map(|(name, child)| (name.clone(), node(child)));
        return Node::Table(children.collect());
    }
    match schema.get("additionalProperties") {
        Some(child @ Value::Object(_)) => Node::Map(Box::new(node(child))),
        _ => Node::Leaf,
    }
}

#[cfg(test)]
mod tests {
    use super::{Node, TREE, all, suggestion};

    #[test]
    fn the_tree_has_the_keys_of_the_types() {
        let keys = all();
        for key in [
            "profile",
            "driver.branch",
            "runtime.use",
            "repositories.NAME.key-url",
            "packages.lock-timeout-seconds",
            "preflight.allow-no-gpu",
        ] {
            assert!(keys.iter().any(|known| known == key), "{key} in {keys:?}");
        }
    }

    #[test]
    fn keys_are_suggested_nearby_and_elsewhere() {
        let Node::Table(top) = &*TREE else {
            panic!("the root is a table");
        };
        assert_eq!(suggestion(top, "", "drivr").as_deref(), Some("driver"));
        assert_eq!(
            suggestion(top, "", "branch").as_deref(),
            Some("driver.branch")
        );
        assert_eq!(suggestion(top, "", "zzzz"), None);
        let Some(Node::Table(driver)) = top.get("driver") else {
            panic!("`driver` is a table");
        };
        assert_eq!(
            suggestion(driver, "driver", "brnach").as_deref(),
            Some("driver.branch")
        );
        assert_eq!(
            suggestion(driver, "driver", "flavor").as_deref(),
            Some("driver.flavour")
        );
    }
}
