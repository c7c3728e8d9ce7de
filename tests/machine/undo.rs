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

/// The steps of a document with their outcomes.
fn steps_of(ran: &str) -> Vec<(String, String)> {
    let document: serde_json::Value = serde_json::from_str(ran).expect("a document");
    let steps = document["steps"].as_array().expect("steps").iter();
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    steps
        .map(|step| (text(&step["id"]), text(&step["outcome"])))
        .collect()
}

#[test]
fn dry_run_lists_what_uninstall_undoes() {
    let machine = Machine::new(describe("debian-12-h100", toml::Table::new()));
    let nothing = machine.run(&["uninstall", "--dry-run"]);
    assert_eq!((nothing.exit, &*nothing.out), (0, "nothing to undo\n"));
    assert_eq!(machine.run(&["install"]).exit, 0);
    let installed = machine.snapshot();
    let dry = machine.run(&["uninstall", "--dry-run"]);
    assert_eq!(dry.exit, 0, "{}", dry.err);
    for part in [
        "things would be undone\n",
        "  - undo: install ",
        "Nothing was changed. To undo these changes:\n\n    gpu-bootstrap uninstall\n",
    ] {
        assert!(dry.out.contains(part), "{part}: {}", dry.out);
    }
    let dry = machine.run(&["uninstall", "--dry-run", "--format", "json"]);
    let changed = gpu_bootstrap::host::fake::diff(&installed, &machine.snapshot());
    assert!(changed.is_empty(), "{changed:#?}");
    let undone = machine.run(&["uninstall", "--format", "json"]);
    let planned: Vec<(String, String)> = steps_of(&undone.out)
        .into_iter()
        .map(|(id, outcome)| {
            assert_eq!(outcome, "changed", "{id}");
            (id, "would-change".to_owned())
        })
        .collect();
    assert!(!planned.is_empty());
    assert_eq!(steps_of(&dry.out), planned);
}

#[test]
fn dry_run_without_the_journal_lists_the_remaining_files() {
    let machine = Machine::new(describe("debian-12-h100", toml::Table::new()));
    assert_eq!(machine.run(&["install"]).exit, 0);
    for name in ["journal.jsonl", "receipt.json"] {
        machine
            .fakes
            .files
            .take(&format!("/var/lib/gpu-bootstrap/{name}"));
    }
    let dry = machine.run(&["uninstall", "--dry-run"]);
    assert!(
        dry.out.starts_with("no change is recorded\n"),
        "{}",
        dry.out
    );
    for part in [
        "the journal is lost",
        "rm /etc/modprobe.d/gpu-bootstrap-deny.conf",
    ] {
        let words: Vec<&str> = dry.out.split_whitespace().collect();
        assert!(words.join(" ").contains(part), "{part}: {}", dry.out);
    }
}
