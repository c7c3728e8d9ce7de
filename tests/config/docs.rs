//! The documentation must match the types.

use std::{collections::BTreeSet, fs, path::Path};

use gpu_bootstrap::config::{file, keys};

fn doc(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(name)
}

#[test]
fn schema_is_current() {
    let mut now = serde_json::to_string_pretty(&file::schema()).unwrap();
    now.push('\n');
    let path = doc("config.schema.json");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &now).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == now,
        "docs/config.schema.json is stale; run `make update`"
    );
}

#[test]
fn every_key_is_documented_and_no_other() {
    let text = fs::read_to_string(doc("configuration.md")).unwrap();
    // The row of a key starts with the key.
    let documented: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .map(|(key, _)| key.to_owned())
        .filter(|key| !key.contains(['{', ',', '-']) || key.contains('.'))
        .filter(|key| key.contains('.') || key == "profile")
        .collect();
    let known: BTreeSet<String> = keys::all().into_iter().collect();
    let missing: Vec<_> = known.difference(&documented).collect();
    let invented: Vec<_> = documented.difference(&known).collect();
    assert!(
        missing.is_empty(),
        "not in docs/configuration.md: {missing:?}"
    );
    assert!(invented.is_empty(), "no such keys: {invented:?}");
}
