//! What a change did to a JSON or TOML file, by key. So it can be undone after an administrator has
//! edited the file, too, and the administrator's settings stay.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::document::{Document, DocumentError, Setting};

/// A key of a JSON or TOML file that a change has added, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Edit {
    /// The key: its name, after those of the objects or tables around it.
    pub key: Vec<String>,
    /// Its value before the change; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// Its value after the change; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// The result of taking edits back.
#[derive(Debug, Clone)]
pub(super) struct TakenBack {
    /// The document without the edits.
    pub(super) document: Document,
    /// Keys that were taken back.
    pub(super) taken: Vec<String>,
    /// Keys that somebody has changed since; they stay.
    pub(super) left: Vec<String>,
}

/// Sets keys, and says what that has changed. The version of the format is no edit: whoever adds more
/// to the file relies on it.
pub(super) fn set(
    document: &mut Document,
    settings: &[Setting],
) -> Result<Vec<Edit>, DocumentError> {
    let mut edits = Vec::new();
    for setting in settings {
        let before = document.get(&setting.key);
        if before == setting.value {
            continue;
        }
        document.set(setting)?;
        if setting.key != ["version"] {
            edits.push(Edit {
                key: setting.key.clone(),
                before,
                after: setting.value.clone(),
            });
        }
    }
    Ok(edits)
}

/// The keys that differ. Objects are compared key by key, but what is inside of their values is one
/// value: half of a runtime's entry is of no use.
pub(super) fn edits(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<Edit> {
    let empty = Map::new();
    let mut edits = Vec::new();
    for name in names(before, after) {
        let (old, new) = (before.get(name), after.get(name));
        if old == new {
            continue;
        }
        let inside = |value: Option<&'_ Value>| match value {
            Some(Value::Object(inside)) => Some(inside.clone()),
            None => Some(empty.clone()),
            Some(_) => None,
        };
        match (inside(old), inside(new)) {
            (Some(old), Some(new)) => {
                for inner in names(&old, &new) {
                    if old.get(inner) != new.get(inner) {
                        edits.push(Edit {
                            key: vec![name.clone(), inner.clone()],
                            before: old.get(inner).cloned(),
                            after: new.get(inner).cloned(),
                        });
                    }
                }
            }
            _ => edits.push(Edit {
                key: vec![name.clone()],
                before: old.cloned(),
                after: new.cloned(),
            }),
        }
    }
    edits
}

/// The names in either object, each once.
fn names<'m>(
    before: &'m Map<String, Value>,
    after: &'m Map<String, Value>,
) -> impl Iterator<Item = &'m String> {
    let new = after.keys().filter(|name| !before.contains_key(*name));
    before.keys().chain(new)
}

/// Whether somebody relies on what was added: containerd before 2.0 forgets its own runc as soon as a file
/// names another runtime, so whoever has added one since needs the runc beside it.
fn is_needed_beside(edit: &Edit, document: &Document) -> bool {
    let Some((name, around)) = edit.key.split_last() else {
        return false;
    };
    let others = document.get(around);
    let others = others.as_ref().and_then(Value::as_object);
    edit.before.is_none()
        && name == "runc"
        && around.last().is_some_and(|table| table == "runtimes")
        && others.is_some_and(|all| all.len() > 1)
}

/// Takes edits back whose keys still have the value of the change.
pub(super) fn take_back(now: &Document, edits: &[Edit]) -> Result<TakenBack, DocumentError> {
    let mut back = TakenBack {
        document: now.clone(),
        taken: Vec::new(),
        left: Vec::new(),
    };
    // The last one first: what an earlier one was made for is gone then.
    for edit in edits.iter().rev() {
        let found = back.document.get(&edit.key);
        if found == edit.before {
            continue;
        }
        if found != edit.after {
            back.left.push(edit.key.join("."));
            continue;
        }
        if is_needed_beside(edit, &back.document) {
            continue;
        }
        back.document.set(&Setting {
            key: edit.key.clone(),
            value: edit.before.clone(),
        })?;
        back.taken.push(edit.key.join("."));
    }
    Ok(back)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document::Format;

    fn json(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).expect("an object")
    }

    fn document(text: &str) -> Document {
        Document::parse(Format::Json, text).expect("an object")
    }

    const OURS: &str = r#"{"log-driver":"local","runtimes":{"nvidia":{"args":[],"path":"n"}},
                           "default-runtime":"nvidia"}"#;

    #[test]
    fn edits_are_taken_back_and_other_settings_stay() {
        let before = r#"{"log-driver":"local"}"#;
        let edits = edits(&json(before), &json(OURS));
        let keys: Vec<String> = edits.iter().map(|edit| edit.key.join(".")).collect();
        assert_eq!(keys, ["runtimes.nvidia", "default-runtime"]);
        let back = take_back(&document(OURS), &edits).unwrap();
        assert!(
            back.document.is_like(&document(before)),
            "no empty section stays"
        );
        let theirs = document(
            r#"{"mtu":1400,"runtimes":{"kata":{"path":"k"},"nvidia":{"args":[],"path":"n"}},
                "default-runtime":"kata"}"#,
        );
        let back = take_back(&theirs, &edits).unwrap();
        assert_eq!(back.taken, ["runtimes.nvidia"]);
        assert_eq!(back.left, ["default-runtime"], "somebody chose another one");
        let left = r#"{"mtu":1400,"runtimes":{"kata":{"path":"k"}},"default-runtime":"kata"}"#;
        assert!(back.document.is_like(&document(left)));
        let nothing = take_back(&document(before), &edits).unwrap();
        assert!(nothing.taken.is_empty());
    }

    #[test]
    fn a_value_that_was_replaced_comes_back() {
        let before = r#"{"runtimes":{"nvidia":{"path":"old"}},"features":[1]}"#;
        let after = r#"{"runtimes":{"nvidia":{"path":"n"}},"features":{"cdi":true}}"#;
        let edits = edits(&json(before), &json(after));
        assert_eq!(edits.len(), 2);
        let back = take_back(&document(after), &edits).unwrap();
        assert!(back.document.is_like(&document(before)));
        let edited = document(r#"{"runtimes":{"nvidia":{"path":"x"}},"features":{"cdi":true}}"#);
        let back = take_back(&edited, &edits).unwrap();
        assert_eq!(back.left, ["runtimes.nvidia"]);
    }

    #[test]
    fn runc_stays_beside_a_runtime_that_somebody_has_added() {
        let toml = |text: &str| Document::parse(Format::Toml, text).expect("TOML");
        let entry = |name: &str| Setting {
            key: ["plugins", "cri", "runtimes", name]
                .map(str::to_owned)
                .to_vec(),
            value: Some(serde_json::json!({"type": name})),
        };
        let mut now = toml("version = 2\n");
        let edits = set(&mut now, &[entry("runc"), entry("nvidia")]).unwrap();
        assert_eq!(
            take_back(&now, &edits).unwrap().document.text(),
            "version = 2\n"
        );
        now.set(&entry("kata")).unwrap();
        let back = take_back(&now, &edits).unwrap().document;
        assert_eq!(back.get(&entry("runc").key), entry("runc").value);
        assert_eq!(back.get(&entry("nvidia").key), None);
    }

    #[test]
    fn comments_that_were_added_since_stay() {
        let toml = |text: &str| Document::parse(Format::Toml, text).expect("TOML");
        let nvidia = ["plugins", "cri", "runtimes", "nvidia"]
            .map(str::to_owned)
            .to_vec();
        let before = "version = 2\n[grpc]\ngid = 0\n";
        let mut now = toml(before);
        let entry = Setting {
            key: nvidia,
            value: Some(serde_json::json!({"type": "r"})),
        };
        let edits = set(&mut now, &[entry]).unwrap();
        let back = take_back(&now, &edits).unwrap();
        assert_eq!(back.document.text(), before);
        let edited = now.text().replace("gid = 0", "gid = 5 # ours");
        let back = take_back(&toml(&edited), &edits).unwrap();
        assert_eq!(
            back.document.text(),
            "version = 2\n[grpc]\ngid = 5 # ours\n"
        );
        assert!(set(&mut toml(before), &[]).unwrap().is_empty());
    }
}
