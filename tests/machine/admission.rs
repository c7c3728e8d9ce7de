//! The order of validation, join and startup taint removal.

use toml::Table;

use crate::{build::describe, machine::Machine, scenarios::told};

const KUBECONFIG: &str = "/etc/gpu-bootstrap/cluster.kubeconfig";

/// Pods are scheduled as soon as the startup taint is gone.
#[test]
fn startup_taint_is_removed_after_validation_and_join() {
    let machine = Machine::new(describe("debian-12-cluster", Table::new()));
    let files = &machine.fakes.files;
    files.put_mode(KUBECONFIG, "clusters: []\n", 0o600);
    files.put(
        "/lib/systemd/system/kubelet.service",
        "[Install]\nWantedBy=multi-user.target\n",
    );
    let set = format!("cluster.kubeconfig-file={KUBECONFIG}");
    let ran = machine.run(&["install", "--set", &set, "--format", "json"]);
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    let document: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(document["node"]["endpoint"], "https://10.0.0.1:6443");
    let lines: Vec<String> = ran.commands.iter().map(|cmd| cmd.line()).collect();
    let last = |words: &str| {
        let has = |line: &String| {
            words
                .split(' ')
                .all(|word| line.split(' ').any(|w| w == word))
        };
        let found = lines.iter().rposition(has);
        found.unwrap_or_else(|| panic!("`{words}` did not run: {lines:#?}"))
    };
    let untainted = last("taint node");
    for earlier in ["docker run", "ctr run", "kubeadm join"] {
        assert!(last(earlier) < untainted, "{earlier}: {lines:#?}");
    }
    let again = machine.run(&[
        "check",
        "--set",
        &set,
        "--only",
        "cluster.node",
        "--format",
        "json",
    ]);
    assert_eq!(again.exit, 0, "{}", told(&again));
}
