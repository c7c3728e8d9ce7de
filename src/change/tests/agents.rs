//! Tests the k3s agent when the container toolkit is removed. The agent detected the nvidia runtime at startup.

use super::{
    archive::{Archive, Kind, Offered},
    kit::{TestMachine, says},
    packages::install,
    with_each_manager,
};
use crate::{
    change::{FollowUp, Undo},
    host::fake::{failed, ok},
    tools::toolkit,
};

const CONFIG: &str = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";
const RUNTIME: &str = "BinaryName = '/usr/bin/nvidia-container-runtime'\n";

with_each_manager! {
    agent_is_restarted_when_the_toolkit_is_removed
    agent_whose_containers_would_stop_is_not_restarted
    template_with_the_runtime_is_kept_and_reported
}

/// A machine with the toolkit and an agent that generates its configuration at each start, unless a template overrides it. Also
/// returns the undo of the toolkit's installation.
async fn machine(kind: Kind, kill_mode: &str, has_template: bool) -> (TestMachine, Undo) {
    let machine = TestMachine::with(kind);
    let archive = Archive::on(&machine);
    machine.fakes.files.put_directory("/usr/bin", 0o755);
    let toolkit = Offered::new("1.18.0", &[]).configured_by(toolkit::RUNTIME);
    archive.offer("toolkit", toolkit);
    let kill_mode = format!("KillMode={kill_mode}\n");
    (machine.fakes.exec).on("systemctl", move |cmd, files| {
        let asks = |about: &str| cmd.args.iter().any(|arg| arg.contains(about));
        match &*cmd.args[0] {
            "show" if asks("KillMode") => ok(kill_mode.clone()),
            "show" if asks("NeedDaemonReload") => ok("NeedDaemonReload=no\n"),
            "show" if asks("k3s-agent") => {
                ok("LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nResult=success\n")
            }
            "show" => {
                ok("LoadState=not-found\nActiveState=inactive\nUnitFileState=\nResult=success\n")
            }
            "restart" if asks("k3s-agent") => {
                let text = if has_template {
                    RUNTIME
                } else {
                    "version = 3\n"
                };
                files.put(CONFIG, text);
                ok("")
            }
            "daemon-reload" => ok(""),
            verb => failed(1, format!("Unknown command verb {verb}.")),
        }
    });
    let undo = machine.apply(&install(&["toolkit"])).await.unwrap();
    machine.fakes.files.put(CONFIG, RUNTIME);
    (machine, undo)
}

fn restarts(machine: &TestMachine) -> usize {
    let is_restart = |line: &&String| *line == "systemctl restart -- k3s-agent.service";
    machine.fakes.exec.lines().iter().filter(is_restart).count()
}

async fn agent_is_restarted_when_the_toolkit_is_removed(kind: Kind) {
    let (machine, undo) = machine(kind, "process", false).await;
    // The undo of our restart after the toolkit installation does not restart the agent while the runtime exists.
    let ours = Undo::FollowUp {
        then: vec![FollowUp::RestartUnit {
            unit: "k3s-agent.service".into(),
        }],
    };
    machine.reverts_nothing(&ours).await;
    let what = machine.reverts(&undo).await;
    assert!(what.contains("restarted `k3s-agent.service`"), "{what}");
    assert_eq!(restarts(&machine), 1);
    machine.revert(&ours).await;
    machine.revert(&undo).await;
    assert_eq!(restarts(&machine), 1);
}

async fn agent_whose_containers_would_stop_is_not_restarted(kind: Kind) {
    let (machine, undo) = machine(kind, "control-group", false).await;
    let (what, why) = machine.reverts_in_part(&undo).await;
    says(&what, "`k3s-agent.service`, whose containerd");
    let words = "run `systemctl restart k3s-agent.service` when they may";
    says(&why, words);
    assert_eq!(restarts(&machine), 0);
}

async fn template_with_the_runtime_is_kept_and_reported(kind: Kind) {
    let (machine, undo) = machine(kind, "process", true).await;
    let (_, why) = machine.reverts_in_part(&undo).await;
    says(&why, "template contains it");
    assert_eq!(restarts(&machine), 1);
}
