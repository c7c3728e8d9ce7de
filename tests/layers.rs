//! Modules import downwards only. The order below is the order of `src/lib.rs` and of
//! ARCHITECTURE.md; a module may use those before it.

use std::{fs, path::Path};

/// From the ground up. Modules on one line are of one floor and do not use each other.
const FLOORS: &[&[&str]] = &[
    &["model", "exit"],
    &["error"],
    &["host"],
    &["tools"],
    &["facts"],
    &["state"],
    &["compat"],
    &["config"],
    &["change"],
    &["step"],
    &["check"],
    &["steps"],
    &["checks"],
    &["event"],
    &["journal"],
    &["engine"],
    &["report"],
    &["cli"],
];

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|modules| modules.contains(&module))
}

fn sources(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    files_of(folder, "rs", found);
}

fn files_of(folder: &Path, suffix: &str, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder)
        .expect("a folder of the source")
        .flatten()
    {
        let path = entry.path();
        if path.is_dir() {
            files_of(&path, suffix, found);
        } else if path
            .extension()
            .is_some_and(|extension| extension == suffix)
        {
            found.push(path);
        }
    }
}

/// Top-level modules named after `crate::` in production code; tests may use fixtures of others.
fn imports(text: &str) -> Vec<String> {
    let production = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(text);
    let mut found = Vec::new();
    for (at, _) in production.match_indices("crate::") {
        let rest = &production[at + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 1;
            let mut word = String::new();
            let mut at_start = true;
            for c in group.chars() {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 1 => at_start = true,
                    c if at_start && depth == 1 && (c.is_alphanumeric() || c == '_') => {
                        word.push(c);
                        continue;
                    }
                    _ => {}
                }
                if !word.is_empty() {
                    found.push(std::mem::take(&mut word));
                    at_start = false;
                }
                if c == ',' && depth == 1 {
                    at_start = true;
                }
                if depth == 0 {
                    break;
                }
            }
        } else {
            found.push(
                rest.chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect(),
            );
        }
    }
    found
}

#[test]
fn imports_go_down_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let relative = file.strip_prefix(&root).expect("below src");
        let module = relative
            .components()
            .next()
            .and_then(|part| part.as_os_str().to_str())
            .map(|part| part.trim_end_matches(".rs"))
            .expect("a module");
        if matches!(module, "lib" | "main") {
            continue;
        }
        let Some(own) = floor(module) else {
            wrong.push(format!(
                "{}: `{module}` has no floor in this test",
                relative.display()
            ));
            continue;
        };
        for import in imports(&fs::read_to_string(&file).expect("a source file")) {
            match floor(&import) {
                Some(other) if other > own => {
                    wrong.push(format!(
                        "{}: uses `{import}`, which is above",
                        relative.display()
                    ));
                }
                Some(other) if other == own && import != module => {
                    wrong.push(format!(
                        "{}: uses `{import}`, of its own floor",
                        relative.display()
                    ));
                }
                _ => {}
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "imports that do not go down:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn no_file_is_too_long_to_read() {
    const LIMIT: usize = 600;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "tests", "benches"] {
        let folder = root.join(folder);
        if folder.is_dir() {
            sources(&folder, &mut files);
        }
    }
    // Tables that people write, not those that are made.
    for folder in ["profiles", "src", "tests/vm"] {
        files_of(&root.join(folder), "toml", &mut files);
    }
    let long: Vec<String> = files
        .iter()
        .filter_map(|file| {
            let lines = fs::read_to_string(file)
                .expect("a source file")
                .lines()
                .count();
            (lines > LIMIT).then(|| format!("{}: {lines} lines", file.display()))
        })
        .collect();
    assert!(
        long.is_empty(),
        "longer than {LIMIT} lines:\n{}",
        long.join("\n")
    );
}

/// The mode of a run is the engine's alone: a step or verb that knew of dry runs could forget one.
#[test]
fn only_the_engine_knows_the_mode() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for folder in ["steps", "change", "checks"] {
        let mut files = Vec::new();
        sources(&root.join(folder), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).expect("a source file");
            assert!(
                !text.contains("dry_run"),
                "{} knows of dry runs",
                file.display()
            );
        }
    }
}
