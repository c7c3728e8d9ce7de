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

/// The rows of the keys are generated from src/config/file.rs, and the text around them is written by hand. A documentation
/// table contains all keys of its TOML tables, so a new key needs no manual edit.
#[test]
fn exactly_the_existing_keys_are_documented() {
    let rows = reference::rows();
    let known: BTreeSet<String> = keys::all().into_iter().collect();
    let told: BTreeSet<String> = rows.iter().map(|row| row.name.clone()).collect();
    assert_eq!(told, known, "the keys of src/config/file.rs");
    let path = doc("configuration.md");
    let mut text = fs::read_to_string(&path).unwrap();
    let mut now = String::new();
    let mut block: Vec<&str> = Vec::new();
    for line in text.lines().chain([""]) {
        let key = line
            .strip_prefix("| `")
            .and_then(|rest| rest.split_once("` |"));
        if let Some((key, _)) = key.filter(|(key, _)| is_key(key, rows)) {
            block.push(key);
            continue;
        }
        for row in of_block(rows, &std::mem::take(&mut block)) {
            now += &(row.markdown() + "\n");
        }
        now += &format!("{line}\n");
    }
    now.pop();
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

/// Whether a text is a current or former key, i.e. belongs to a TOML table of the settings.
fn is_key(text: &str, rows: &[KeyRow]) -> bool {
    let table = text.rsplit_once('.').map(|(table, _)| table);
    rows.iter()
        .any(|row| row.name == text || table.is_some_and(|table| row.place().0 == table))
}

/// All rows of the TOML tables in a block, and the top-level keys that it lists.
fn of_block<'r>(rows: &'r [KeyRow], block: &[&str]) -> Vec<&'r KeyRow> {
    let table = |key: &str| key.rsplit_once('.').map(|(table, _)| table.to_owned());
    let tables: BTreeSet<_> = block.iter().filter_map(|key| table(key)).collect();
    let fits = |row: &&KeyRow| match table(&row.name) {
        Some(table) => tables.contains(&table),
        None => block.contains(&&*row.name),
    };
    rows.iter().filter(fits).collect()
}
