//! Checks that all tests listed in documents exist.

use std::path::Path;

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
