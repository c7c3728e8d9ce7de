//! What a tool changed in a JSON file, by key. So its change can be undone after an administrator has
//! edited the file, too, and the administrator's settings stay.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A key of a JSON file that a change has added, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Edit {
    /// The key: one name, or two where it is inside of an object.
    pub key: Vec<String>,
    /// Its value before the change; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// Its value after the change; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// The result of taking edits back.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TakenBack {
    /// The content without the edits.
    pub(super) object: Map<String, Value>,
    /// Keys that were taken back.
    pub(super) taken: Vec<String>,
    /// Keys that somebody has changed since; they stay.
    pub(super) left: Vec<String>,
}

/// A text as a JSON object.
pub(super) fn object(text: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(text).ok()
}

/// An object as the text of a file, in the layout of `nvidia-ctk`: four spaces.
pub(super) fn text(object: &Map<String, Value>) -> Result<Vec<u8>, serde_json::Error> {
    let mut text = Vec::new();
    let layout = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    object.serialize(&mut serde_json::Serializer::with_formatter(
        &mut text, layout,
    ))?;
    text.push(b'\n');
    Ok(text)
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

/// Takes edits back whose keys still have the value of the change.
pub(super) fn take_back(now: &Map<String, Value>, edits: &[Edit]) -> TakenBack {
    let mut back = TakenBack {
        object: now.clone(),
        taken: Vec::new(),
        left: Vec::new(),
    };
    for edit in edits {
        let Some((name, section)) = edit.key.split_last() else {
            continue;
        };
        let found = match section.first() {
            None => back.object.get(name),
            Some(section) => back.object.get(section).and_then(|inside| inside.get(name)),
        };
        if found == edit.before.as_ref() {
            continue;
        }
        if found != edit.after.as_ref() {
            back.left.push(edit.key.join("."));
            continue;
        }
        match section.first() {
            None => set(&mut back.object, name, edit.before.as_ref()),
            Some(section) => {
                let inside = (back.object.entry(section.clone()))
                    .or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(inside) = inside {
                    set(inside, name, edit.before.as_ref());
                    if inside.is_empty() {
                        back.object.shift_remove(section);
                    }
                }
            }
        }
        back.taken.push(edit.key.join("."));
    }
    back
}

fn set(object: &mut Map<String, Value>, name: &str, value: Option<&Value>) {
    match value {
        Some(value) => {
            object.insert(name.to_owned(), value.clone());
        }
        None => {
            object.shift_remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Map<String, Value> {
        object(text.as_bytes()).expect("an object")
    }

    const OURS: &str = r#"{"log-driver":"local","runtimes":{"nvidia":{"args":[],"path":"n"}},
                           "default-runtime":"nvidia"}"#;

    #[test]
    fn edits_are_taken_back_and_other_settings_stay() {
        let before = json(r#"{"log-driver":"local"}"#);
        let edits = edits(&before, &json(OURS));
        let keys: Vec<String> = edits.iter().map(|edit| edit.key.join(".")).collect();
        assert_eq!(keys, ["runtimes.nvidia", "default-runtime"]);
        let back = take_back(&json(OURS), &edits);
        assert_eq!(back.object, before, "no empty section stays");
        let theirs = json(
            r#"{"mtu":1400,"runtimes":{"kata":{"path":"k"},"nvidia":{"args":[],"path":"n"}},
                "default-runtime":"kata"}"#,
        );
        let back = take_back(&theirs, &edits);
        assert_eq!(back.taken, ["runtimes.nvidia"]);
        assert_eq!(back.left, ["default-runtime"], "somebody chose another one");
        let left = r#"{"mtu":1400,"runtimes":{"kata":{"path":"k"}},"default-runtime":"kata"}"#;
        assert_eq!(back.object, json(left));
        assert!(take_back(&before, &edits).taken.is_empty());
    }

    #[test]
    fn a_value_that_was_replaced_comes_back() {
        let before = json(r#"{"runtimes":{"nvidia":{"path":"old"}},"features":[1]}"#);
        let after = json(r#"{"runtimes":{"nvidia":{"path":"n"}},"features":{"cdi":true}}"#);
        let edits = edits(&before, &after);
        assert_eq!(edits.len(), 2);
        assert_eq!(take_back(&after, &edits).object, before);
        let edited = json(r#"{"runtimes":{"nvidia":{"path":"x"}},"features":{"cdi":true}}"#);
        assert_eq!(take_back(&edited, &edits).left, ["runtimes.nvidia"]);
    }
}
