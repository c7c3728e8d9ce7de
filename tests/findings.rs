//! The registry of findings. Its documentation page is generated from it, and test inputs must cover each finding.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

use gpu_bootstrap::model::findings::{Layer, rows};
use toml::{Table, Value};

/// Renders the documentation page.
fn page() -> String {
    let mut page = String::from(
        "<!-- Generated from src/model/findings.toml by `make update`. -->\n\n# The findings of `check`\n\nThis page \
         lists the findings by layer, from the hardware to the cluster. A failure has the kind in its row, and so has a \
         warning, except that a warning of the kind `fault` is a risk. `gpu-bootstrap explain ID` prints one row, and a \
         command that shows details.\n",
    );
    for layer in Layer::ALL {
        write!(
            page,
            "\n## {}\n\n| finding | kind | data | fails if | warns if | remedy |\n|---|---|---|---|---|---|\n",
            layer.name()
        )
        .expect("memory takes it");
        for row in rows().iter().filter(|row| row.layer == layer) {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let looks = match &row.source {
                Some(source) => format!("{} [Source]({source})", row.looks),
                None => row.looks.clone(),
            };
            writeln!(
                page,
                "| <a id=\"{0}\"></a>`{0}`<br>{1} | {2} | {looks} | {3} | {4} | {5} |",
                row.id,
                row.title,
                row.kind.name(),
                text(&row.fails),
                text(&row.warns),
                row.remedy.name()
            )
            .expect("memory takes it");
        }
    }
    page
}

#[test]
fn the_page_is_current() {
    let page = page();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/findings.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &page).expect("the page can be written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == page, "docs/findings.md is stale; run `make update`");
}

/// A kind of result of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Passes,
    /// Fails or warns.
    Fails,
    /// The data is unreadable or inconclusive.
    CannotKnow,
}

use Case::{CannotKnow, Fails, Passes};

/// Results that a finding cannot have, with the reason.
const NEVER: &[(&str, Case, &str)] = &[
    (
        "virt.container",
        Passes,
        "skipped outside of a container, because that is not an achievement",
    ),
    (
        "virt.container",
        CannotKnow,
        "container runtimes always leave evidence, so its absence means no container",
    ),
    (
        "virt.vgpu-host",
        Passes,
        "skipped on a machine that is not a vGPU host",
    ),
    (
        "pci.gpu.identity",
        CannotKnow,
        "a GPU that is missing in all tables is its warning",
    ),
    (
        "pci.driver-bound",
        CannotKnow,
        "`check --lspci` skips it if the output has no drivers, and `check` fails earlier if driver links are unreadable",
    ),
    (
        "node.upgrade",
        Passes,
        "reported only after a failed upgrade",
    ),
    (
        "node.upgrade",
        CannotKnow,
        "a warning reports an unreadable journal",
    ),
    (
        "os.managed",
        Fails,
        "a driver managed by another program is not a failure",
    ),
];

/// The findings and results that other tests expect: the scenarios, and the trees of `tests/hosts`.
fn expected() -> BTreeSet<(String, String)> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut files = vec![tests.join("hosts/reports.toml")];
    for directory in ["scenarios", "hosts/machines"] {
        let directory = fs::read_dir(tests.join(directory)).expect("a test directory");
        files.extend(directory.map(|entry| entry.expect("a file").path()));
    }
    let mut found = BTreeSet::new();
    for path in files {
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("an input");
        let table: Table = (text.parse()).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        for key in ["then", "machine", "case"] {
            // A scenario has a table `machine`, the files in `tests/hosts` have a list of machines.
            let inputs = table.get(key).and_then(Value::as_array);
            for input in inputs.into_iter().flatten() {
                for named in ["findings", "finds"] {
                    let named = input.get(named).and_then(Value::as_table);
                    found.extend((named.into_iter().flatten()).map(|(id, verdict)| {
                        let verdict = verdict.as_str().expect("a verdict");
                        (id.clone(), verdict.to_owned())
                    }));
                }
                let first = input.get("first").and_then(Value::as_str);
                found.extend(first.map(|id| (id.to_owned(), "fail".to_owned())));
            }
        }
    }
    found
}

#[test]
fn each_finding_has_passing_failing_and_unknown_inputs() {
    let expected = expected();
    let mut wrong = String::new();
    for row in rows() {
        let id = row.id.as_str();
        for case in [Passes, Fails, CannotKnow] {
            let verdicts: &[&str] = match case {
                Passes => &["pass"],
                Fails => &["fail", "warn"],
                CannotKnow => &["unknown"],
            };
            let has = (verdicts.iter())
                .any(|verdict| expected.contains(&(id.to_owned(), (*verdict).to_owned())));
            let never = NEVER
                .iter()
                .any(|(of, other, _)| *of == id && *other == case);
            match (has, never) {
                (false, false) => writeln!(wrong, "{id}: no input for {case:?}"),
                (true, true) => {
                    writeln!(wrong, "{id}: an input for {case:?}, which `NEVER` excludes")
                }
                _ => Ok(()),
            }
            .expect("memory takes it");
        }
    }
    for (id, _, why) in NEVER {
        let exists = rows().iter().any(|row| row.id.as_str() == *id);
        assert!(exists && !why.is_empty(), "{id}");
    }
    assert!(wrong.is_empty(), "{wrong}");
}
