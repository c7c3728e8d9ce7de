//! Compares documents with the program: all tests listed in them exist, the exit codes have the same meaning, and the screens
//! in the README are real. Pages for users have a realistic reading time. `release/publisher` and the documents agree.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use serde_json::Value;

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

/// The exit codes of a document with their meaning, without links.
fn documented_exits(text: &str) -> BTreeMap<String, String> {
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
fn troubleshooting_and_explain_have_the_same_exit_codes() {
    let text = document("docs/troubleshooting.md");
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
    assert_eq!(documented_exits(&text), explained);
}

fn document(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The code blocks of the README.
fn readme_blocks() -> Vec<String> {
    let text = document("README.md");
    let blocks = text.split("\n```").skip(1).step_by(2);
    blocks.map(str::to_owned).collect()
}

#[test]
fn readme_fits_120_lines() {
    let lines = document("README.md").lines().count();
    assert!(lines <= 120, "{lines} lines");
}

/// The success screen has the lines of the recorded run on a booted machine, in the same order.
#[test]
fn success_screen_of_the_readme_is_recorded() {
    let blocks = readme_blocks();
    let screen = blocks.iter().find(|block| block.contains("ready: "));
    let recording = document("docs/install.svg");
    let mut printed = recording.lines();
    for line in screen.expect("the screen").lines() {
        let text = line.trim();
        if text.is_empty() {
            continue;
        }
        let recorded = printed.any(|shown| shown.contains(text));
        assert!(recorded, "not recorded: {line}");
    }
}

/// The failure screen is the start of the output of its command.
#[test]
fn failure_screen_of_the_readme_is_real() {
    let blocks = readme_blocks();
    let screen = blocks.iter().find(|block| block.contains("fault: "));
    let (command, screen) = (screen.expect("the screen").trim())
        .split_once('\n')
        .expect("a command with its output");
    let arguments = (command.strip_prefix("$ gpu-bootstrap ")).expect("a command");
    let ran = Command::new(env!("CARGO_BIN_EXE_gpu-bootstrap"))
        .args(arguments.split(' '))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("COLUMNS", "100")
        .output()
        .expect("the program runs");
    let printed = String::from_utf8_lossy(&ran.stdout);
    assert!(printed.starts_with(screen), "{printed}");
}

/// Each example is linked in a page, and a test contains its path.
#[test]
fn every_example_is_linked_and_validated() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |directory: &str| {
        let entries = std::fs::read_dir(root.join(directory)).expect("a directory");
        entries.map(|entry| entry.expect("an entry").path())
    };
    let is_page = |path: &std::path::PathBuf| path.extension().is_some_and(|kind| kind == "md");
    let pages: String = (read("docs").filter(is_page))
        .map(|path| std::fs::read_to_string(path).expect("a page"))
        .collect();
    let validators = document("tests/examples/run.sh") + &document("tests/cli.rs");
    let is_comment = |line: &&str| line.trim_start().starts_with(['#', '/']);
    let validators: Vec<&str> = (validators.lines())
        .filter(|line| !is_comment(line))
        .collect();
    let validators = validators.join("\n");
    let directories: Vec<_> = read("examples").filter(|path| path.is_dir()).collect();
    assert!(directories.len() > 10, "{directories:?}");
    for directory in directories {
        let name = directory.file_name().expect("a name").to_string_lossy();
        let (link, tested) = (format!("](../examples/{name}"), format!("examples/{name}"));
        assert!(pages.contains(&link), "no page links examples/{name}");
        assert!(validators.contains(&tested), "no validator for {tested}");
    }
}

#[test]
fn documents_contain_no_merge_conflicts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = std::fs::read_dir(root.join("docs")).expect("a directory");
    let pages = pages.map(|entry| entry.expect("an entry").path());
    for path in pages.filter(|path| path.extension().is_some_and(|kind| kind == "md")) {
        let text = std::fs::read_to_string(&path).expect("a page");
        let is_conflict =
            |line: &&str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
        assert_eq!(text.lines().find(is_conflict), None, "{}", path.display());
    }
}

/// Readers manage 200 words per minute.
#[test]
fn reading_times_are_realistic() {
    let index = document("docs/README.md");
    let mut pages = Vec::new();
    let mut wrong = Vec::new();
    for row in index.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let Some(Ok(minutes)) = cells.get(2).map(|cell| cell.parse::<usize>()) else {
            continue;
        };
        let page = cells[1].rsplit(['(', ')']).nth(1).expect("a link");
        let text = document(&format!("docs/{page}"));
        let needed = text.split_whitespace().count().div_ceil(200);
        let unit = if minutes == 1 { "minute" } else { "minutes" };
        let stated = format!("\n\n*{minutes} {unit}");
        if !text.contains(&stated) || !(needed..=needed + 1).contains(&minutes) {
            wrong.push(format!(
                "docs/{page}: {needed} minutes are needed, docs/README.md has {minutes}"
            ));
        }
        pages.push(page);
    }
    assert!(pages.len() > 15, "{pages:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn index_of_documents_is_complete() {
    let index = document("docs/README.md");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let missing: Vec<String> = (std::fs::read_dir(directory).expect("the documents"))
        .map(|entry| entry.expect("an entry").file_name())
        .filter_map(|name| name.to_str().map(str::to_owned))
        .filter(|name| name.ends_with(".md") && name != "README.md")
        .filter(|name| !index.contains(&format!("]({name}")))
        .collect();
    assert!(missing.is_empty(), "not in docs/README.md: {missing:?}");
}

/// The documents contain the values of `release/publisher`, or state that they are missing.
#[test]
fn documents_contain_the_publisher() {
    let publisher = document("release/publisher");
    let value = |name: &str| {
        let start = format!("{name}='");
        let mut lines = publisher.lines();
        let rest = lines.find_map(|line| line.strip_prefix(&start));
        rest.and_then(|rest| rest.strip_suffix('\''))
            .unwrap_or_else(|| panic!("release/publisher: no line {name}='VALUE'"))
            .to_owned()
    };
    let (repository, key) = (value("REPOSITORY"), value("PUBLIC_KEY"));
    let readme = document("README.md");
    let verify = document("docs/verify.md");
    assert_eq!(verify.contains("is not published yet"), key.is_empty());
    // An empty value is in every text.
    for (path, text) in [("README.md", readme), ("docs/verify.md", verify)] {
        assert!(text.contains(&repository), "{path}: no {repository}");
        assert!(text.contains(&key), "{path}: no {key}");
    }
    let manifest = document("Cargo.toml");
    assert!(
        manifest.contains(&repository),
        "Cargo.toml: no {repository}"
    );
}

/// The metrics in a text.
fn metrics(text: &str) -> BTreeSet<&str> {
    const PREFIX: &str = "gpu_bootstrap_";
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let names = text.match_indices(PREFIX).map(|(at, _)| {
        let rest = &text[at..];
        &rest[..rest.find(|c: char| !is_part(c)).unwrap_or(rest.len())]
    });
    names.filter(|name| *name != PREFIX).collect()
}

#[test]
fn metrics_are_documented() {
    let exported = document(
        "src/report/formats/snapshots/gpu_bootstrap__report__formats__tests__prometheus.snap",
    );
    let exported: BTreeSet<&str> = (exported.lines())
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let reference = document("docs/check.md");
    let rows = reference
        .lines()
        .filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.filter_map(|row| row.split(['`', '{']).next());
    let documented: BTreeSet<&str> = rows
        .filter(|name| name.starts_with("gpu_bootstrap_"))
        .collect();
    assert_eq!(exported, documented);
    for file in [
        "docs/fleet.md",
        "examples/monitoring/prometheus-rule.yaml",
        "examples/monitoring/test.yaml",
        "examples/monitoring/dashboard.json",
    ] {
        let text = document(file);
        let mut unknown = metrics(&text);
        unknown.retain(|name| !exported.contains(name));
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}

#[test]
fn alerts_are_documented_and_tested() {
    let rules = document("examples/monitoring/prometheus-rule.yaml");
    let names: Vec<&str> = (rules.lines())
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert!(names.len() > 5, "{names:?}");
    let (page, tests) = (
        document("docs/fleet.md"),
        document("examples/monitoring/test.yaml"),
    );
    for name in names {
        assert!(
            page.contains(&format!("`{name}`")),
            "docs/fleet.md has no `{name}`"
        );
        assert!(
            tests.contains(&format!("alertname: {name}\n")),
            "no test of {name}"
        );
    }
    let pages = rules.matches("https://docs.example.com/gpu-bootstrap/");
    assert_eq!(pages.count(), rules.matches("runbook_url: ").count());
    for link in rules
        .split("https://docs.example.com/gpu-bootstrap/")
        .skip(1)
    {
        let (file, anchor) = link.split_once('#').expect("an anchor");
        let anchor = anchor.split(['"', '\n']).next().unwrap_or_default();
        let page = document(&format!("docs/{file}"));
        let is_there = match (file, anchor) {
            ("findings.md", "{{ $labels.id }}") => true,
            ("findings.md", id) => {
                page.contains(&format!("| `{id}`<br>"))
                    || page.contains(&format!("<a id=\"{id}\">"))
            }
            (_, title) => page.to_lowercase().contains(&format!("\n## {title}\n")),
        };
        assert!(is_there, "docs/{file} has no anchor `{anchor}`");
    }
}

#[test]
fn dashboard_is_consistent() {
    let dashboard: Value =
        serde_json::from_str(&document("examples/monitoring/dashboard.json")).expect("JSON");
    let source = serde_json::json!({"type": "prometheus", "uid": "${datasource}"});
    let panels = dashboard["panels"].as_array().expect("panels");
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64()), "{title}: repeated ID");
        assert_eq!(panel["datasource"], source, "{title}");
        let at = |key: &str| panel["gridPos"][key].as_u64().expect("a position");
        assert!(at("x") + at("w") <= 24, "{title}: too wide");
        for (x, y) in (0..at("w")).flat_map(|x| (0..at("h")).map(move |y| (x, y))) {
            assert!(
                cells.insert((at("x") + x, at("y") + y)),
                "{title}: overlaps"
            );
        }
        let targets = panel["targets"].as_array().expect("queries");
        let mut names = BTreeSet::new();
        for target in targets {
            assert_eq!(target["datasource"], source, "{title}");
            assert!(
                names.insert(target["refId"].as_str()),
                "{title}: repeated refId"
            );
            let query = target["expr"].as_str().expect("a query");
            assert!(
                query.contains("$instance"),
                "{title}: not only the selected nodes"
            );
        }
    }
    assert!(panels.len() > 10);
    let variables = dashboard["templating"]["list"]
        .as_array()
        .expect("variables");
    let names: BTreeSet<&str> = (variables.iter())
        .filter_map(|variable| variable["name"].as_str())
        .collect();
    for used in ["datasource", "gpu", "instance", "docs"] {
        assert!(names.contains(used), "no variable `{used}`");
    }
}
