//! The event schema must match the type.

use std::{fs, path::Path};

use gpu_bootstrap::event::Envelope;

#[test]
fn schema_is_current() {
    let schema = schemars::schema_for!(Envelope);
    let mut now = serde_json::to_string_pretty(&schema).unwrap();
    now.push('\n');
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/events.schema.json");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &now).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == now,
        "docs/events.schema.json is stale; run `make update`"
    );
}

#[test]
fn every_kind_is_documented() {
    let schema = schemars::schema_for!(Envelope).to_value();
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/events.md")).unwrap();
    let kinds = schema["$defs"]["Event"]["oneOf"].as_array().unwrap();
    for kind in kinds {
        let kind = kind["properties"]["kind"]["const"].as_str().unwrap();
        assert!(
            text.contains(&format!("| `{kind}` |")),
            "docs/events.md has no row about `{kind}`"
        );
    }
}
