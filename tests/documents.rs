//! Compares documents with the program: all tests listed in them exist, and the exit codes have the same meaning.

use std::{collections::BTreeMap, path::Path, process::Command};

/// The tests in one document: a file, followed by test names.
fn listed(text: &str) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for row in text.lines().filter(|line| line.starts_with("| ")) {
        let cell = row.trim_end_matches([' ', '|']).rsplit(" | ").next();
        // Every second part was in backticks.
        let words = cell.unwrap_or_default().split('`').skip(1).step_by(2);
        let mut at = None;
        for word in words {
            if word.starts_with("src/") || word.starts_with("tests/") {
                at = Some(found.len());
                found.push((word.to_owned(), Vec::new()));
            } else if let Some(at) = at {
                found[at].1.push(word.to_owned());
            }
        }
    }
    found
}

#[test]
fn every_listed_test_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for (document, at_least) in [("SECURITY.md", 30), ("docs/guarantees.md", 40)] {
        let text = std::fs::read_to_string(root.join(document)).expect("a document");
        let tests = listed(&text);
        assert!(
            tests.len() >= at_least,
            "{document}: only {} tests",
            tests.len()
        );
        for (file, names) in tests {
            let Ok(text) = std::fs::read_to_string(root.join(&file)) else {
                wrong.push(format!("{document}: `{file}` does not exist"));
                continue;
            };
            let is_there = |name: &String| {
                text.contains(&format!("fn {name}("))
                    || text.contains(&format!("name = \"{name}\""))
            };
            wrong.extend(
                (names.iter().filter(|name| !is_there(name)))
                    .map(|name| format!("{document}: `{file}` has no test `{name}`")),
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The exit codes of the README with their meaning, without links.
fn exits_of_readme(text: &str) -> BTreeMap<String, String> {
    let is_other = |line: &&str| !line.starts_with("| exit | meaning | exit | meaning |");
    let table = text.lines().skip_while(is_other).skip(2);
    let mut found = BTreeMap::new();
    for row in table.take_while(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        for pair in cells.chunks(2) {
            // `[text](link)` gives `text`.
            let mut meaning = String::new();
            for (at, part) in pair[1].split(['[', ']']).enumerate() {
                let is_after_link = at > 0 && at % 2 == 0;
                meaning += match part.split_once(')') {
                    Some((_, rest)) if is_after_link => rest,
                    _ => part,
                };
            }
            for code in pair[0].split(", ") {
                found.insert(code.to_owned(), meaning.clone());
            }
        }
    }
    found
}

#[test]
fn readme_and_explain_have_the_same_exit_codes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("README.md")).expect("the README");
    let ran = Command::new(env!("CARGO_BIN_EXE_gpu-bootstrap"))
        .args(["explain", "exit", "--format", "json"])
        .output()
        .expect("the program runs");
    let topics: Vec<serde_json::Value> = serde_json::from_slice(&ran.stdout).expect("JSON");
    let explained: BTreeMap<String, String> = (topics.iter())
        .map(|topic| {
            let text = |key: &str| topic[key].as_str().expect("text").to_owned();
            (text("id").replace("exit ", ""), text("title"))
        })
        .collect();
    assert!(explained.len() > 10, "{explained:?}");
    assert_eq!(exits_of_readme(&text), explained);
}
