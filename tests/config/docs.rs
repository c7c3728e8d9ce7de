//! The documentation must match the types.

use std::{collections::BTreeSet, fs, path::Path};

use gpu_bootstrap::config::{
    file, keys,
    reference::{self, KeyRow},
};

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

/// The rows of the keys come from src/config/reference.toml; what stands around them is written by hand.
#[test]
fn every_key_is_documented_and_no_other() {
    let rows = reference::rows();
    let known: BTreeSet<String> = keys::all().into_iter().collect();
    let told: BTreeSet<String> = rows.iter().map(|row| row.name.clone()).collect();
    assert_eq!(told, known, "the keys of src/config/reference.toml");
    assert_eq!(told.len(), rows.len(), "two rows of one key");
    let path = doc("configuration.md");
    let mut text = fs::read_to_string(&path).unwrap();
    let line_now = |line: &str| {
        let key = line
            .strip_prefix("| `")
            .and_then(|rest| rest.split_once("` |"));
        let row = key.and_then(|(key, _)| rows.iter().find(|row| row.name == key));
        row.map_or_else(|| line.to_owned(), KeyRow::markdown) + "\n"
    };
    let now: String = text.lines().map(line_now).collect();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &now).unwrap();
        text.clone_from(&now);
    }
    assert!(
        text == now,
        "docs/configuration.md is stale; run `make update`"
    );
    for row in rows {
        let times = text.lines().filter(|line| *line == row.markdown()).count();
        assert_eq!(times, 1, "rows of `{}` in docs/configuration.md", row.name);
    }
}
