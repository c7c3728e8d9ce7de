//! Records the changes to a JSON or TOML file by key, so that they can be reverted even after an administrator has edited the
//! file, and the administrator's settings are kept.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    model::document::{Document, DocumentError, Setting},
    tools::toolkit,
};

/// A key of a JSON or TOML file that a change has added, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Edit {
    /// The path of the key, starting with the names of the enclosing objects or tables.
    pub key: Vec<String>,
    /// The value before the change, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// The value after the change, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// The result of reverting edits.
#[derive(Debug, Clone)]
pub(super) struct RevertedEdit {
    /// The document without the edits.
    pub(super) document: Document,
    /// Reverted keys.
    pub(super) taken: Vec<String>,
    /// Keys that were modified since the change. They are kept.
    pub(super) left: Vec<String>,
    /// Keys that were modified since the change but reverted anyway, because they are useless without the removed runtime
    /// program.
    pub(super) theirs: Vec<String>,
}

/// Sets keys and returns the edits. The format version is not recorded as an edit, because later additions to the file depend
/// on it.
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

/// The names in either object, without duplicates.
fn names<'m>(
    before: &'m Map<String, Value>,
    after: &'m Map<String, Value>,
) -> impl Iterator<Item = &'m String> {
    let new = after.keys().filter(|name| !before.contains_key(*name));
    before.keys().chain(new)
}

/// Returns `true` if a runc entry that we added is still needed: containerd before 2.0 drops its built-in runc if a file
/// defines another runtime, so the entry is needed as long as the file contains another one.
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

/// The program of a runtime entry (Docker, containerd or CRI-O).
fn program(entry: Option<&Value>) -> Option<&str> {
    let entry = entry?;
    let options = entry.get("options");
    (entry.get("path"))
        .or_else(|| options?.get("BinaryName"))
        .or_else(|| entry.get("runtime_path"))?
        .as_str()
}

/// Returns `true` if an entry still refers to the program of the change, or to one from the same package.
fn names_program_of(edit: &Edit, found: Option<&Value>) -> bool {
    let (Some(ours), Some(now)) = (program(edit.after.as_ref()), program(found)) else {
        return false;
    };
    toolkit::comes_with(now, ours)
}

/// The name of a runtime and the path of the table that contains `runtimes`, if the key is a runtime entry.
fn runtime_of(key: &[String]) -> Option<(&String, &[String])> {
    let (name, around) = key.split_last()?;
    let (table, outer) = around.split_last()?;
    (table == "runtimes").then_some((name, outer))
}

/// Collects the innermost keys whose values differ.
fn differing(key: &str, ours: Option<&Value>, now: Option<&Value>, found: &mut Vec<String>) {
    match (ours, now) {
        (Some(Value::Object(ours)), Some(Value::Object(now))) => {
            for name in names(ours, now) {
                differing(
                    &format!("{key}.{name}"),
                    ours.get(name),
                    now.get(name),
                    found,
                );
            }
        }
        _ if ours != now => found.push(key.to_owned()),
        _ => {}
    }
}

/// Keys of the default runtime (Docker, containerd and CRI-O).
const DEFAULTS: [&str; 3] = ["default-runtime", "default_runtime_name", "default_runtime"];

/// Reverts edits whose keys still have the value of the change. A runtime entry is also removed if it was edited but still
/// refers to the program of the change, together with a default that selects it. If the entry or the default remained, a daemon
/// would not start, or could not start containers. `before` is the document before the change.
pub(super) fn revert(
    now: &Document,
    edits: &[Edit],
    before: Option<&Document>,
) -> Result<RevertedEdit, DocumentError> {
    let mut back = RevertedEdit {
        document: now.clone(),
        taken: Vec::new(),
        left: Vec::new(),
        theirs: Vec::new(),
    };
    // Last edit first, because it may depend on earlier ones.
    for edit in edits.iter().rev() {
        let found = back.document.get(&edit.key);
        if found == edit.before {
            continue;
        }
        let name = edit.key.join(".");
        let runtime = runtime_of(&edit.key).filter(|_| names_program_of(edit, found.as_ref()));
        if found != edit.after {
            if runtime.is_none() {
                back.left.push(name);
                continue;
            }
            let (ours, now) = (edit.after.as_ref(), found.as_ref());
            differing(&name, ours, now, &mut back.theirs);
        }
        if is_needed_beside(edit, &back.document) {
            continue;
        }
        back.document.set(&Setting {
            key: edit.key.clone(),
            value: edit.before.clone(),
        })?;
        back.taken.push(name);
        let Some((runtime, outer)) = runtime.filter(|_| edit.before.is_none()) else {
            continue;
        };
        for default in DEFAULTS {
            let mut key = outer.to_vec();
            key.push(default.to_owned());
            let names_it = |value: &Value| value.as_str() == Some(runtime);
            // A default in the change is reverted by its own edit.
            if edits.iter().any(|edit| edit.key == key)
                || !back.document.get(&key).as_ref().is_some_and(names_it)
            {
                continue;
            }
            let value = before.and_then(|before| before.get(&key));
            back.theirs.push(key.join("."));
            back.document.set(&Setting {
                key,
                value: value.filter(|value| !names_it(value)),
            })?;
        }
    }
    Ok(back)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::document::Format;

    fn setting(key: &[&str], value: Value) -> Setting {
        Setting {
            key: key.iter().map(ToString::to_string).collect(),
            value: Some(value),
        }
    }

    fn document(text: &str) -> Document {
        Document::parse(Format::Json, text).expect("an object")
    }

    const OURS: &str = r#"{"log-driver":"local","runtimes":{"nvidia":{"args":[],"path":"n"}},
                           "default-runtime":"nvidia"}"#;

    #[test]
    fn edits_are_reverted_and_other_settings_kept() {
        let before = r#"{"log-driver":"local"}"#;
        let mut now = document(before);
        let nvidia = json!({"args": [], "path": "n"});
        let edits = set(
            &mut now,
            &[
                setting(&["runtimes", "nvidia"], nvidia),
                setting(&["default-runtime"], json!("nvidia")),
            ],
        )
        .unwrap();
        assert!(now.is_like(&document(OURS)));
        let keys: Vec<String> = edits.iter().map(|edit| edit.key.join(".")).collect();
        assert_eq!(keys, ["runtimes.nvidia", "default-runtime"]);
        let back = revert(&document(OURS), &edits, None).unwrap();
        assert!(
            back.document.is_like(&document(before)),
            "no empty section remains"
        );
        let theirs = document(
            r#"{"mtu":1400,"runtimes":{"kata":{"path":"k"},"nvidia":{"args":[],"path":"n"}},
                "default-runtime":"kata"}"#,
        );
        let back = revert(&theirs, &edits, None).unwrap();
        assert_eq!(back.taken, ["runtimes.nvidia"]);
        assert_eq!(
            back.left,
            ["default-runtime"],
            "the default was changed later"
        );
        let left = r#"{"mtu":1400,"runtimes":{"kata":{"path":"k"}},"default-runtime":"kata"}"#;
        assert!(back.document.is_like(&document(left)));
        let nothing = revert(&document(before), &edits, None).unwrap();
        assert!(nothing.taken.is_empty());
    }

    #[test]
    fn replaced_value_is_restored() {
        let before = r#"{"runtimes":{"nvidia":{"path":"old"}},"features":[1]}"#;
        let after = r#"{"runtimes":{"nvidia":{"path":"n"}},"features":{"cdi":true}}"#;
        let edits = set(
            &mut document(before),
            &[
                setting(&["runtimes", "nvidia"], json!({"path": "n"})),
                setting(&["features"], json!({"cdi": true})),
            ],
        )
        .unwrap();
        assert_eq!(edits.len(), 2);
        let back = revert(&document(after), &edits, None).unwrap();
        assert!(back.document.is_like(&document(before)));
        let edited = document(r#"{"runtimes":{"nvidia":{"path":"x"}},"features":{"cdi":true}}"#);
        let back = revert(&edited, &edits, None).unwrap();
        assert_eq!(back.left, ["runtimes.nvidia"]);
    }

    #[test]
    fn edited_entry_with_our_program_is_removed() {
        let ours = json!({"args": [], "path": "nvidia-container-runtime"});
        let edits = set(
            &mut document("{}"),
            &[setting(&["runtimes", "nvidia"], ours)],
        )
        .unwrap();
        let entry = |path: &str| {
            document(&format!(
                r#"{{"default-runtime":"nvidia","runtimes":{{"nvidia":{{"args":["-d"],"path":"{path}"}}}}}}"#
            ))
        };
        for path in [
            "nvidia-container-runtime",
            "/usr/bin/nvidia-container-runtime",
            "/usr/bin/nvidia-container-runtime.cdi",
        ] {
            let back = revert(&entry(path), &edits, None).unwrap();
            assert!(back.document.is_like(&document("{}")), "{path}");
            assert!(back.left.is_empty());
            let last = back.theirs.last().map(String::as_str);
            assert_eq!(last, Some("default-runtime"), "{path}");
            assert!(back.theirs.contains(&"runtimes.nvidia.args".to_owned()));
        }
        for path in [
            "/opt/bin/nvidia-container-runtime",
            "nvidia-container-runtime2",
            "runsc",
        ] {
            let back = revert(&entry(path), &edits, None).unwrap();
            assert_eq!(back.left, ["runtimes.nvidia"], "{path}");
            assert!(back.document.is_like(&entry(path)), "{path}");
        }
        // Restore the previous default.
        let before = document(r#"{"default-runtime":"kata"}"#);
        let now = entry("nvidia-container-runtime");
        let back = revert(&now, &edits, Some(&before)).unwrap();
        assert!(back.document.is_like(&before));
    }

    #[test]
    fn runc_entry_is_kept_if_user_added_a_runtime() {
        let toml = |text: &str| Document::parse(Format::Toml, text).expect("TOML");
        let entry = |name: &str| Setting {
            key: ["plugins", "cri", "runtimes", name]
                .map(str::to_owned)
                .to_vec(),
            value: Some(json!({"type": name})),
        };
        let mut now = toml("version = 2\n");
        let edits = set(&mut now, &[entry("runc"), entry("nvidia")]).unwrap();
        assert_eq!(
            revert(&now, &edits, None).unwrap().document.text(),
            "version = 2\n"
        );
        now.set(&entry("kata")).unwrap();
        let back = revert(&now, &edits, None).unwrap().document;
        assert_eq!(back.get(&entry("runc").key), entry("runc").value);
        assert_eq!(back.get(&entry("nvidia").key), None);
    }

    #[test]
    fn comments_added_later_are_kept() {
        let toml = |text: &str| Document::parse(Format::Toml, text).expect("TOML");
        let nvidia = ["plugins", "cri", "runtimes", "nvidia"]
            .map(str::to_owned)
            .to_vec();
        let before = "version = 2\n[grpc]\ngid = 0\n";
        let mut now = toml(before);
        let entry = Setting {
            key: nvidia,
            value: Some(json!({"type": "r"})),
        };
        let edits = set(&mut now, &[entry]).unwrap();
        let back = revert(&now, &edits, None).unwrap();
        assert_eq!(back.document.text(), before);
        let edited = now.text().replace("gid = 0", "gid = 5 # ours");
        let back = revert(&toml(&edited), &edits, None).unwrap();
        assert_eq!(
            back.document.text(),
            "version = 2\n[grpc]\ngid = 5 # ours\n"
        );
        assert!(set(&mut toml(before), &[]).unwrap().is_empty());
    }
}
