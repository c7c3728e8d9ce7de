//! Tests the undo of a CRI-O configuration by an earlier version. The program `crio` is simulated according to its documentation.

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::kit::{TestMachine, configure};
use crate::{
    change::{ApplyChanges, Change, STOPPED},
    config::desired::Daemon,
    host::{
        Output, ReadFiles,
        fake::{FakeFiles, diff, failed, ok},
    },
};

const PACKAGED: &str = "/etc/crio/crio.conf.d/10-crio.conf";
const OWN: &str = "/etc/crio/crio.conf.d/99-nvidia.toml";

/// A machine with a running CRI-O, which reads its files.
fn machine() -> TestMachine {
    let machine = TestMachine::new();
    machine.units.put("crio.service", "enabled", "active");
    machine.fakes.files.put(
        PACKAGED,
        "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\nruntime_path = \"/usr/bin/crun\"\n",
    );
    machine.fakes.exec.on("crio", |_, files| {
        let text = |path: &str| {
            files
                .read_text(path.into())
                .ok()
                .flatten()
                .unwrap_or_default()
        };
        ok(text(PACKAGED) + &text(OWN))
    });
    machine
}

/// The CRI-O output without our keys.
fn packaged(files: &FakeFiles) -> Output {
    ok(files.read_text(PACKAGED.into()).unwrap().unwrap())
}

fn change() -> Change {
    let key = ["crio", "runtime", "runtimes", "nvidia"];
    let entry = json!({"runtime_path": "/usr/bin/nvidia-container-runtime"});
    let daemon: Daemon = serde_json::from_value(json!("crio")).unwrap();
    configure(daemon, OWN, &key, entry)
}

fn change_applier(machine: &TestMachine) -> Vec<String> {
    let lines = machine.fakes.exec.lines();
    lines
        .into_iter()
        .filter(|line| line.starts_with("systemctl re"))
        .collect()
}

#[tokio::test]
async fn configuration_of_an_earlier_version_is_undone() {
    let machine = machine();
    machine.apply_and_undo(&change()).await;
    assert_eq!(
        change_applier(&machine),
        [
            "systemctl restart -- crio.service",
            "systemctl restart -- crio.service"
        ]
    );
}

#[tokio::test]
async fn stopped_undo_is_completed_by_the_next_run() {
    let machine = machine();
    let before = machine.snapshot();
    let undo = machine.apply(&change()).await.unwrap();
    let ours = machine.snapshot();
    // The daemon does not respond, with or without the keys.
    machine
        .fakes
        .exec
        .on("crio", |cmd, files| match cmd.args[0].as_str() {
            "status" => failed(1, "connection refused"),
            _ => packaged(files),
        });
    let stop = CancellationToken::new();
    stop.cancel();
    let applier = machine.restarted().stopped_by(stop);
    let ended = applier.revert(&undo, &machine.sink).await;
    assert_eq!(ended.unwrap_err().reason, STOPPED);
    let left = diff(&ours, &machine.snapshot());
    assert!(left.is_empty(), "{left:#?}");
    machine.fakes.exec.on("crio", |_, files| packaged(files));
    machine.revert(&undo).await;
    let left = diff(&before, &machine.snapshot());
    assert!(left.is_empty(), "{left:#?}");
}
