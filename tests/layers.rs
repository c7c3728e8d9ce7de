//! Modules import only lower layers. The order is the same as in `src/lib.rs` and ARCHITECTURE.md. A module may use the modules
//! before it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::Path,
    sync::LazyLock,
};

mod source;

/// The layers, from the bottom up. Modules in one line are in the same layer and must not use each other.
const LAYERS: &[&[&str]] = &[
    &["compat"],
    &["model", "exit"],
    &["error"],
    &["host"],
    &["tools"],
    &["runtimes", "dkms", "mig"],
    &["sharing"],
    &["facts"],
    &["state"],
    &["fabric"],
    &["work"],
    &["joins"],
    &["config"],
    &["modules"],
    &["change"],
    &["bundle"],
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
    LAYERS.iter().position(|modules| modules.contains(&module))
}

static PRODUCT: LazyLock<source::Module> = LazyLock::new(|| source::read(Path::new("src")));

#[test]
fn imports_go_down_only() {
    let mut wrong = Vec::new();
    for module in PRODUCT.all() {
        let Some(top) = module.path.first() else {
            continue;
        };
        let Some(own) = floor(top) else {
            wrong.push(format!("`{top}` has no layer in this test"));
            continue;
        };
        for (path, line) in &module.uses {
            let Some(other) = path.first().filter(|other| *other != top) else {
                continue;
            };
            let whose = match floor(other) {
                Some(floor) if floor > own => "a higher layer",
                Some(floor) if floor == own => "in the same layer",
                _ => continue,
            };
            wrong.push(format!("{}: uses `{other}`, {whose}", module.place(*line)));
        }
    }
    assert!(
        wrong.is_empty(),
        "imports of the same or a higher layer:\n{}",
        wrong.join("\n")
    );
}

/// Modules in one directory may use each other, but not in cycles, so that each can be read after its dependencies. `mod.rs` is
/// not part of a cycle, because it exports the interface of its directory, which all modules may use.
#[test]
fn modules_in_a_directory_have_no_cycles() {
    let mut wrong = Vec::new();
    for free_space in PRODUCT.all() {
        // The top-level modules are checked by layer.
        if free_space.path.is_empty() {
            continue;
        }
        let mut uses = Uses::new();
        for child in &free_space.children {
            for module in child.all() {
                for (path, line) in &module.uses {
                    let other = path
                        .strip_prefix(&free_space.path[..])
                        .and_then(<[_]>::first);
                    let other = other.and_then(|other| {
                        free_space.children.iter().find(|one| one.name() == other)
                    });
                    if let Some(other) = other.filter(|other| other.path != child.path) {
                        let of_child = uses.entry(child.name()).or_default();
                        of_child
                            .entry(other.name())
                            .or_insert_with(|| module.place(*line));
                    }
                }
            }
        }
        wrong.extend(circles(&uses));
    }
    assert!(
        wrong.is_empty(),
        "cyclic module dependencies:\n{}",
        wrong.join("\n")
    );
}

/// The dependencies of each module, with the location of the first use.
type Uses<'a> = BTreeMap<&'a str, BTreeMap<&'a str, String>>;

/// Reports each module of a cycle once, in the shortest cycle that begins with it.
fn circles(uses: &Uses<'_>) -> Vec<String> {
    let mut named = BTreeSet::new();
    let mut found = Vec::new();
    for first in uses.keys() {
        if named.contains(first) {
            continue;
        }
        let mut ways = VecDeque::from([vec![*first]]);
        let mut seen = BTreeSet::new();
        while let Some(way) = ways.pop_front() {
            let last = way[way.len() - 1];
            if way.len() > 1 && last == *first {
                let lines: Vec<&str> = way
                    .windows(2)
                    .map(|pair| &*uses[pair[0]][pair[1]])
                    .collect();
                found.push(format!(
                    "{}\n    {}",
                    way.join(" -> "),
                    lines.join("\n    ")
                ));
                named.extend(way);
                break;
            }
            for next in uses.get(last).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(*next) {
                    ways.push_back([&way[..], &[*next]].concat());
                }
            }
        }
    }
    found
}

#[test]
fn cycle_is_reported_with_lines() {
    let uses = Uses::from([
        (
            "a",
            BTreeMap::from([("b", "a.rs:1".to_owned()), ("d", "a.rs:2".to_owned())]),
        ),
        ("b", BTreeMap::from([("c", "b.rs:1".to_owned())])),
        ("c", BTreeMap::from([("a", "c.rs:1".to_owned())])),
    ]);
    assert_eq!(
        circles(&uses),
        ["a -> b -> c -> a\n    a.rs:1\n    b.rs:1\n    c.rs:1"]
    );
}

#[test]
fn comments_literals_and_tests_are_not_code() {
    let path = vec!["room".into(), "own".into()];
    let module = source::parsed(
        path,
        r##"use super::{a, b::{c as d, e}}; // super::comment
let x: &'a str = "super::text \" //"; let y = ['"', '\'', r#"super::raw""#];
#[cfg(test)]
mod tests { use super::only_in_tests; }
crate::f::g::<u8>(); let y: super::t::T = super::super::u;"##,
    );
    let paths: Vec<(String, usize)> = (module.uses.iter())
        .map(|(path, line)| (path.join("::"), *line))
        .collect();
    let expected = [
        ("room::a", 1),
        ("room::b::c", 1),
        ("room::b::e", 1),
        ("f::g", 5),
        ("room::t::T", 5),
        ("u", 5),
    ];
    assert_eq!(paths, expected.map(|(path, line)| (path.to_owned(), line)));
}

/// Only the backends depend on the package manager, so other code must not mention one. Checked in identifiers, including their
/// parts (`AptSources`, `rpm_query`), and in string literals, but not in comments.
#[test]
fn only_backends_and_profiles_mention_a_package_manager() {
    const NAMES: [&str; 4] = ["apt", "dpkg", "dnf", "rpm"];
    const ALLOWED: [&[&str]; 3] = [
        &["tools", "packages"],
        &["config", "profile"],
        // Files with credentials on all systems, which a recording must not contain.
        &["host", "record", "sensitive"],
    ];
    let mut wrong = Vec::new();
    for module in PRODUCT.all() {
        if ALLOWED.iter().any(|allowed| starts(&module.path, allowed)) {
            continue;
        }
        for token in &module.tokens {
            let words = match token.is_literal {
                true => (token.text.split(|c: char| !c.is_ascii_alphanumeric()))
                    .map(str::to_lowercase)
                    .collect(),
                false => words(&token.text),
            };
            if words.iter().any(|word| NAMES.contains(&&**word)) {
                wrong.push(format!("{}: `{}`", module.place(token.line), token.text));
            }
        }
    }
    wrong.dedup();
    assert!(
        wrong.is_empty(),
        "code that mentions a package manager:\n{}",
        wrong.join("\n")
    );
}

/// Only `runtimes` depends on the container runtime, so other code must not mention one. Only identifiers are checked, because
/// messages and public ids are string literals.
#[test]
fn only_the_runtimes_module_mentions_a_runtime() {
    const NAMES: [&str; 4] = ["docker", "containerd", "crio", "podman"];
    const ALLOWED: [&[&str]; 4] = [
        // Findings about the kubelet's containerd.
        &["checks"],
        &["checks", "containerd"],
        &["checks", "kubelet"],
        // nodeadm writes the containerd configuration.
        &["joins", "nodeadm"],
    ];
    let mut wrong = Vec::new();
    for module in PRODUCT.all() {
        let is_allowed = ALLOWED.iter().any(|allowed| module.path == *allowed);
        if is_allowed || starts(&module.path, &["runtimes"]) {
            continue;
        }
        for token in module.tokens.iter().filter(|token| !token.is_literal) {
            if (words(&token.text).iter()).any(|word| NAMES.contains(&&**word)) {
                wrong.push(format!("{}: `{}`", module.place(token.line), token.text));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "code that mentions a container runtime:\n{}",
        wrong.join("\n")
    );
}

fn starts(path: &[String], with: &[&str]) -> bool {
    path.len() >= with.len() && path.iter().zip(with).all(|(one, other)| one == other)
}

/// Splits an identifier into lower-case words: `AptSources` and `apt_sources` are `apt` and `sources`.
fn words(identifier: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_small = false;
    for c in identifier.chars() {
        if c == '_' || c.is_uppercase() && after_small {
            words.push(String::new());
        }
        after_small = c.is_lowercase() || c.is_numeric();
        if c != '_' {
            words.last_mut().expect("a word").extend(c.to_lowercase());
        }
    }
    words
}

/// The test references of a row: `case NAME`, `scenario NAME`, or one or more of `FILE`: `FUNCTION`.
#[test]
fn guarantees_refer_to_existing_tests() {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cases: String = (fs::read_dir("tests/vm/cases").expect("the cases"))
        .map(|entry| read(entry.expect("a file").path().to_str().expect("UTF-8")))
        .collect();
    let mut missing = Vec::new();
    let mut count = 0;
    let table = read("docs/breakages.md");
    for row in table.lines() {
        let Some(tests) = row
            .strip_suffix(" |")
            .and_then(|row| row.rsplit(" | ").next())
        else {
            continue;
        };
        let words: Vec<&str> = tests.split('`').collect();
        let mut file = None;
        for pair in words.chunks_exact(2) {
            let (kind, name) = (pair[0].trim_start_matches(['.', ',', ';', ' ']), pair[1]);
            let exists = if kind.ends_with("case ") {
                cases.contains(&format!("name = \"{name}\"\n"))
            } else if kind.ends_with("scenario ") {
                Path::new(&format!("tests/scenarios/{name}.toml")).exists()
            } else if name.ends_with(".rs") {
                file = Some(read(name));
                file.as_ref().is_some_and(|text| !text.is_empty())
            } else {
                file.as_ref()
                    .is_some_and(|text| text.contains(&format!("fn {name}(")))
            };
            count += 1;
            if !exists {
                missing.push(name);
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
    assert!(count > 40, "{count}");
}
