//! Uninstall with a journal from an older version.

use crate::{build::describe, machine::Machine};

const JOURNAL: &str = "/var/lib/gpu-bootstrap/journal.jsonl";

/// A journal from a version without policies.
fn without_policy(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut line: serde_json::Value = serde_json::from_str(line).expect("a record");
        if let Some(record) = line["record"].as_object_mut() {
            record.remove("policy");
        }
        lines.push(line.to_string() + "\n");
    }
    lines.concat()
}

#[test]
fn journal_without_policy_is_undone_with_broken_profile() {
    let machine = Machine::new(describe("debian-12-h100", toml::Table::new()));
    let before = machine.snapshot();
    assert_eq!(machine.run(&["install"]).exit, 0);
    let files = &machine.fakes.files;
    let text = files.text(JOURNAL);
    assert!(text.contains("\"policy\":{\"manager\":\"apt\""), "{text}");
    files.put_mode(JOURNAL, without_policy(&text), 0o600);
    let broken = "/etc/gpu-bootstrap/profiles/debian.toml";
    files.put(broken, "no TOML");
    let ran = machine.run(&["uninstall"]);
    assert_eq!(ran.exit, 0, "{}", ran.err);
    assert!(
        ran.err.contains("the built-in profile `debian`"),
        "{}",
        ran.err
    );
    files.take("/etc/gpu-bootstrap/profiles");
    let left = gpu_bootstrap::host::fake::diff(&before, &machine.snapshot());
    assert!(left.is_empty(), "{left:#?}");
}
