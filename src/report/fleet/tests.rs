use std::{
    collections::BTreeSet,
    io::{Cursor, Read as _, repeat},
    time::{Duration, Instant},
};

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{Collected, Fleet, markdown};
use crate::exit::Exit;

/// The document of a healthy node of type `p5.48xlarge`, as `check --format json` writes it.
fn node(name: &str) -> Value {
    json!({
        "schema": 1,
        "tool": {"name": "gpu-bootstrap", "version": "0.1.0"},
        "time": "2026-11-29T04:00:00Z",
        "exit": 0,
        "host": {
            "os": "ubuntu 24.04", "kernel": "6.8.0-1067-aws", "arch": "x86_64", "cloud": "aws",
            "instance-type": "p5.48xlarge", "instance-id": format!("i-{name}"), "gpus": 8
        },
        "node": {
            "name": name, "driver": "580.95.05", "module-flavor": "open", "toolkit": "1.18.0",
            "runtimes": {"containerd": "2.1.4"}, "gpus": {"H100 SXM5 80GB": 8}, "nvswitches": 4,
            "secure-boot": "disabled", "next-kernel": "6.8.0-1067-aws", "validated": null,
            "reboot-pending": false, "run-active": false, "time-to-ready-seconds": 140.5
        },
        "summary": {"pass": 2},
        "warnings": [],
        "findings": [
            finding("driver.module", "pass"),
            finding("drv.version.security", "warn"),
        ]
    })
}

fn finding(id: &str, status: &str) -> Value {
    let mut finding = json!({
        "id": id, "title": "A title", "status": status, "why": "w".repeat(200), "observed": null,
        "expected": null, "remedy": "run `reboot`", "command": "reboot", "links": [], "layer": "driver"
    });
    match status {
        "fail" => finding["kind"] = json!("fault"),
        "warn" => finding["kind"] = json!("risk"),
        _ => {}
    }
    finding
}

fn with(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut document = node(name);
    change(&mut document);
    document
}

fn add(document: &mut Value, finding: Value) {
    document["findings"].as_array_mut().unwrap().push(finding);
}

fn collected(documents: &[Value]) -> Collected {
    let mut collected = Collected::default();
    for (number, document) in documents.iter().enumerate() {
        let text = serde_json::to_string_pretty(document).unwrap();
        collected.read(&format!("{number}.json"), &mut Cursor::new(text));
    }
    collected
}

fn fleet(collected: Collected) -> Fleet {
    Fleet::of(collected, "2026-11-29T05:00:00Z".parse().unwrap())
}

fn text(fleet: &Fleet) -> String {
    let mut text = Vec::new();
    markdown(&mut text, fleet).unwrap();
    String::from_utf8(text).unwrap()
}

/// The differences of each outlier: `NODE: FACT VALUE, …`.
fn outliers(fleet: &Fleet) -> BTreeSet<String> {
    let groups = fleet.outliers.iter();
    let lines = groups.flat_map(|group| {
        let differences: Vec<String> = (group.differences.iter())
            .map(|one| format!("{} {}", one.fact, one.value))
            .collect();
        let differences = differences.join(", ");
        (group.nodes.iter()).map(move |node| format!("{node}: {differences}"))
    });
    lines.collect()
}

fn unused(fleet: &Fleet) -> Vec<String> {
    let lines = fleet.unused.iter();
    lines
        .map(|one| format!("{}: {}", one.document, one.why))
        .collect()
}

#[test]
fn equal_nodes_have_no_outlier() {
    let fleet = fleet(collected(&["a", "b", "c"].map(node)));
    assert_eq!((fleet.nodes, fleet.exit()), (3, Exit::Ok));
    assert!(fleet.outliers.is_empty() && fleet.failures.is_empty());
    // Warnings are listed, but they are not a failure.
    assert_eq!(fleet.warnings[0].nodes, ["a", "b", "c"]);
}

#[test]
fn outliers_are_grouped_by_their_differences() {
    let old = |name| {
        with(name, |node| {
            node["node"]["driver"] = json!("570.86.15");
            node["host"]["kernel"] = json!("6.8.0-1060-aws");
        })
    };
    let documents = [
        node("a"),
        node("b"),
        node("c"),
        node("d"),
        node("e"),
        old("f"),
        old("g"),
        with("h", |node| {
            node["node"]["runtimes"]["docker"] = json!("28.5.1");
            add(node, finding("log.xid", "fail"));
            let mut caused = finding("driver.module", "fail");
            caused["because"] = json!("log.xid");
            add(node, caused);
        }),
        with("i", |node| {
            node["node"]["runtimes"] = json!({});
            node["node"]["toolkit"] = json!(null);
            node["node"]["reboot-pending"] = json!(true);
        }),
        // Another type of node is not an outlier.
        with("l4", |node| {
            node["host"]["instance-type"] = json!("g6.xlarge");
            node["node"]["gpus"] = json!({"L4": 1});
        }),
    ];
    let fleet = fleet(collected(&documents));
    let expected = [
        "f: driver 570.86.15, kernel 6.8.0-1060-aws",
        "g: driver 570.86.15, kernel 6.8.0-1060-aws",
        "h: docker 28.5.1",
        "i: container toolkit none, containerd not installed",
    ];
    assert_eq!(
        outliers(&fleet),
        BTreeSet::from(expected.map(str::to_owned))
    );
    assert_eq!(fleet.outliers[0].nodes, ["f", "g"]);
    let causes: Vec<&str> = fleet.failures.iter().map(|group| &*group.id).collect();
    assert_eq!(causes, ["log.xid"]);
    assert_eq!((fleet.failed_nodes, fleet.exit()), (1, Exit::Drift));
    assert_snapshot!("markdown", text(&fleet));
}

#[test]
fn consequence_of_an_ignored_finding_is_listed() {
    let caused = |cause: &'static str| {
        let mut caused = finding("os.pkg.pins", "fail");
        caused["because"] = json!(cause);
        caused
    };
    let fleet = fleet(collected(&[
        with("a", |node| {
            add(node, finding("packages.hold", "fail"));
            add(node, caused("packages.hold"));
        }),
        // `--ignore packages.hold`.
        with("b", |node| {
            add(node, finding("packages.hold", "skip"));
            add(node, caused("packages.hold"));
        }),
    ]));
    let causes: Vec<(&str, &str)> = (fleet.failures.iter())
        .map(|group| (&*group.id, &*group.nodes[0]))
        .collect();
    assert_eq!(causes, [("os.pkg.pins", "b"), ("packages.hold", "a")]);
}

#[test]
fn equal_halves_have_no_majority() {
    let old = |name| with(name, |node| node["node"]["driver"] = json!("570.86.15"));
    let fleet = fleet(collected(&[node("a"), node("b"), old("c"), old("d")]));
    assert!(fleet.outliers.is_empty(), "{:?}", fleet.outliers);
    let divided = &fleet.types[0].divided;
    assert_eq!(divided.len(), 1);
    assert_eq!(
        (divided[0].fact.as_str(), divided[0].values.len()),
        ("driver", 2)
    );
    let text = text(&fleet);
    assert!(text.contains("\n## No majority: `p5.48xlarge`\n"), "{text}");
    assert!(text.contains("| `driver` | `570.86.15` (2), `580.95.05` (2) |"));
    assert_eq!(fleet.exit(), Exit::Drift);
}

#[test]
fn absent_value_can_be_the_majority() {
    let without = |name| with(name, |node| node["node"]["toolkit"] = json!(null));
    let unreadable = |name| with(name, |node| node["host"]["kernel"] = json!(null));
    let found = fleet(collected(&[without("a"), without("b"), node("c")]));
    let expected = BTreeSet::from(["c: container toolkit 1.18.0".to_owned()]);
    assert_eq!(outliers(&found), expected);
    // An unreadable value is not.
    let found = fleet(collected(&[unreadable("a"), unreadable("b"), node("c")]));
    assert!(found.outliers.is_empty(), "{:?}", found.outliers);
}

#[test]
fn incomplete_check_is_not_a_success() {
    let incomplete = |name, exit, status| {
        with(name, |node| {
            node["exit"] = json!(exit);
            add(node, finding("k8s.ready", status));
        })
    };
    let mut fleet = fleet(collected(&[
        node("a"),
        incomplete("b", 0, "unknown"),
        incomplete("c", 4, "unknown"),
        incomplete("d", 4, "fail"),
        // `--fail-on warn`.
        incomplete("e", 4, "warn"),
    ]));
    assert_eq!(fleet.incomplete, ["c"]);
    assert!(text(&fleet).contains("\n## Incomplete checks: 1 node\n\n`c`\n"));
    fleet.failures.clear();
    assert!(fleet.outliers.is_empty());
    assert_eq!(fleet.exit(), Exit::Drift);
}

#[test]
fn old_and_repeated_checks_are_listed() {
    let at = |name, time| with(name, |node| node["time"] = json!(time));
    let documents = [
        at("a", "2026-11-29T03:00:00Z"),
        at("a", "2026-11-29T04:00:00Z"),
        node("b"),
        at("old", "2026-11-27T04:00:00Z"),
        // The clock of this node is wrong.
        at("ahead", "2027-01-01T00:00:00Z"),
        // Another machine with the same name.
        with("b", |node| node["host"]["instance-id"] = json!("i-other")),
    ];
    let fleet = fleet(collected(&documents));
    let stale: Vec<&str> = fleet.stale.iter().map(|one| &*one.node).collect();
    assert_eq!(stale, ["ahead", "old"]);
    assert_eq!(
        unused(&fleet),
        ["0.json: 1.json is about the same node and not older"]
    );
    assert_eq!(fleet.warnings[0].nodes, ["a", "b (i-b)", "b (i-other)"]);
}

#[test]
fn documents_of_older_versions_are_compared_as_far_as_possible() {
    let old = with("c", |node| {
        let node = node.as_object_mut().unwrap();
        for key in ["time", "exit", "node"] {
            node.remove(key);
        }
    });
    let fleet = fleet(collected(&[node("a"), node("b"), old]));
    assert_eq!((fleet.nodes, fleet.exit()), (3, Exit::Ok));
    assert_eq!(fleet.warnings[0].nodes, ["a", "b", "i-c"]);
}

#[test]
fn invalid_documents_do_not_affect_others_in_a_stream() {
    let line = |document: &Value| format!("{document}\n");
    let pretty = |name: &str| serde_json::to_string_pretty(&node(name)).unwrap() + "\n";
    let truncated: String = pretty("x")
        .lines()
        .take(20)
        .map(|line| format!("{line}\n"))
        .collect();
    let plan = json!({"schema": 1, "tool": {"name": "gpu-bootstrap", "version": "0.1.0"}, "host": {"gpus": 1}});
    let newer = with("new", |node| node["schema"] = json!(2));
    let other = with("other", |node| node["tool"]["name"] = json!("other"));
    let stream = [
        "warning: not a document\n",
        &line(&node("a")),
        &truncated,
        &pretty("b"),
        &format!("{}{}\n", node("c"), node("d")),
        &line(&plan),
        &line(&newer),
        &line(&other),
        &line(&node("e")),
    ]
    .concat();
    let mut collected = Collected::default();
    collected.read("standard input", &mut Cursor::new(stream));
    let fleet = fleet(collected);
    assert_eq!(fleet.warnings[0].nodes, ["a", "b", "c", "d", "e"]);
    let unused = unused(&fleet);
    let expected = [
        ("standard input: ", "expected value"),
        ("standard input, document 3: ", "EOF while parsing"),
        ("standard input, document 7: ", "missing field `findings`"),
        ("standard input, document 8: ", "schema 2 is newer"),
        (
            "standard input, document 9: ",
            "not written by gpu-bootstrap",
        ),
    ];
    assert_eq!(unused.len(), expected.len(), "{unused:#?}");
    for (line, (name, why)) in unused.iter().zip(expected) {
        assert!(line.starts_with(name) && line.contains(why), "{line}");
    }
    assert_eq!(fleet.documents, 10);
}

#[test]
fn large_documents_are_skipped() {
    let (start, end) = (
        format!("{}\n{{\"findings\": \"", node("a")),
        format!("\"}}\n{}\n", node("b")),
    );
    for size in [5 << 20, 9 << 20] {
        let large = repeat(b'{').take(size);
        let mut stream = Cursor::new(&start).chain(large).chain(Cursor::new(&end));
        let mut collected = Collected::default();
        collected.read("-", &mut std::io::BufReader::new(&mut stream));
        let fleet = fleet(collected);
        assert_eq!(fleet.warnings[0].nodes, ["a", "b"]);
        assert_eq!(unused(&fleet), ["-, document 2: it is larger than 4 MiB"]);
    }
}

/// For example the log of a program that writes JSON.
#[test]
fn many_unused_documents_are_a_short_list() {
    let mut collected = Collected::default();
    collected.read("log", &mut Cursor::new("{}\n".repeat(1000)));
    let fleet = fleet(collected);
    assert_eq!(fleet.unused.len(), 1000);
    let text = text(&fleet);
    assert_eq!(text.matches("\n- `log").count(), 100);
    assert!(
        text.ends_with("\n- 900 more (see `--format json`)\n"),
        "{text}"
    );
}

#[test]
fn hostile_texts_are_harmless() {
    let evil = "\u{1b}[2J\u{202e}`|<script>[x](http://evil)\n# heading";
    let document = with(evil, |node| {
        node["host"]["instance-type"] = json!(evil);
        node["node"]["driver"] = json!(evil.repeat(1000));
        node["node"]["runtimes"][evil] = json!(evil);
        add(node, finding(evil, "fail"));
    });
    let mut collected = collected(&[document]);
    collected.reject(evil, evil);
    let fleet = fleet(collected);
    let json = serde_json::to_string(&fleet).unwrap();
    let text = text(&fleet);
    for output in [&json, &text] {
        assert!(!output.contains(['\u{1b}', '\u{202e}']), "{output}");
    }
    assert!(!json.contains("\\u001b"), "{json}");
    assert!(text.len() < 5000, "{}", text.len());
    for line in text.lines().filter(|line| line.contains("<script>")) {
        // Every second part is a code span.
        let outside: String = line.split('`').step_by(2).collect();
        assert!(!outside.contains(['<', '[']), "{line}");
        assert!(!line.starts_with("# h"), "{line}");
    }
}

/// A thousand nodes of three types with planted outliers.
#[test]
fn thousand_nodes_are_compared_in_seconds() {
    let mut stream = String::new();
    let mut planted = BTreeSet::new();
    let mut broken = BTreeSet::new();
    for number in 0..1000 {
        let name = format!("gpu-{number:04}");
        let mut document = node(&name);
        match number % 10 {
            0..6 => {}
            6..9 => {
                document["host"]["instance-type"] = json!(null);
                document["node"]["gpus"] = json!({"L40S": 4});
                document["node"]["driver"] = json!("595.71.05");
            }
            _ => {
                document["host"]["instance-type"] = json!("g6.xlarge");
                document["host"]["os"] = json!("almalinux 9.6");
                document["node"]["gpus"] = json!({"L4": 1});
            }
        }
        for other in 0..50 {
            add(&mut document, finding(&format!("other.{other}"), "pass"));
        }
        let mut plant = |what: &str| planted.insert(format!("{name}: {what}"));
        match number {
            17 => {
                document["host"]["kernel"] = json!("6.8.0-1001-aws");
                plant("kernel 6.8.0-1001-aws");
            }
            100 | 200 => {
                document["node"]["gpus"] = json!({"H100 SXM5 80GB": 7});
                plant("GPUs 7 H100 SXM5 80GB");
            }
            307 => {
                document["node"]["driver"] = json!("580.95.05");
                plant("driver 580.95.05");
            }
            409 => {
                document["host"]["os"] = json!("ubuntu 24.04");
                plant("os ubuntu 24.04");
            }
            500..505 => {
                add(&mut document, finding("log.fell-off-bus", "fail"));
                broken.insert(name.clone());
            }
            _ => {}
        }
        stream += &format!("{document}\n");
    }
    let began = Instant::now();
    let mut collected = Collected::default();
    collected.read("standard input", &mut Cursor::new(&stream));
    let fleet = fleet(collected);
    let text = text(&fleet);
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(
        (fleet.documents, fleet.nodes, fleet.unused.len()),
        (1000, 1000, 0)
    );
    assert_eq!(
        fleet.types.iter().map(|one| one.nodes).collect::<Vec<_>>(),
        [600, 300, 100]
    );
    assert_eq!(outliers(&fleet), planted);
    assert_eq!(fleet.failures.len(), 1);
    assert_eq!(
        fleet.failures[0]
            .nodes
            .iter()
            .cloned()
            .collect::<BTreeSet<_>>(),
        broken
    );
    for line in planted {
        let name = line.split(':').next().unwrap();
        assert!(text.contains(&format!("`{name}`")), "{name}");
    }
}
