//! Tests the undo of a runtime configuration after an administrator has edited it. Programs are simulated.

use serde_json::{Value, json};

use super::{
    archive::{Archive, Kind, Offered},
    kit::{TestMachine, configure, says},
    packages::install,
    system::restarts,
    with_each_manager,
};
use crate::{
    change::Change,
    config::desired::Daemon,
    host::{
        ReadFiles,
        fake::{diff, failed, ok},
    },
};

const JSON: &str = "/etc/docker/daemon.json";
const TOML: &str = "/etc/containerd/config.toml";
const PROGRAM: &str = "/usr/bin/nvidia-container-runtime";

/// A machine with Docker and containerd. `dockerd --validate` rejects a file with `broken`. `containerd config dump` prints the
/// file without validation.
fn machine(docker: &str, containerd: &str) -> TestMachine {
    machine_with(Kind::Apt, docker, containerd)
}

fn machine_with(kind: Kind, docker: &str, containerd: &str) -> TestMachine {
    let machine = TestMachine::with(kind);
    machine.units.put("docker.service", "enabled", "active");
    machine.units.put("containerd.service", "enabled", "active");
    machine.fakes.files.put(JSON, docker);
    machine.fakes.files.put(TOML, containerd);
    let file = |files: &crate::host::fake::FakeFiles| -> Value {
        let text = files.read_text(JSON.into()).ok().flatten();
        serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default()
    };
    (machine.fakes.exec).on("docker", move |cmd, files| match &*cmd.args[0] {
        "ps" => ok(""),
        _ => {
            let runtimes = file(files).get("runtimes").cloned();
            ok(json!({"Runtimes": runtimes.unwrap_or(json!({}))}).to_string())
        }
    });
    machine.fakes.exec.on("dockerd", move |cmd, files| {
        let file = file(files);
        match (&*cmd.args[0], file.get("broken")) {
            ("--version", _) => ok("Docker version 26.1.5, build 411e817\n"),
            (_, None) => ok("configuration OK\n"),
            (_, Some(_)) => failed(1, "the following directives don't match any: broken"),
        }
    });
    (machine.fakes.exec).on("containerd", |_, files| ok(files.text(TOML)));
    (machine.fakes.exec).on("ctr", |_, _| {
        ok("io.containerd.grpc.v1  cri  linux/amd64  ok\n")
    });
    machine
}

fn docker() -> Change {
    let entry = json!({"args": [], "path": "nvidia-container-runtime"});
    configure(Daemon::Docker, JSON, &["runtimes", "nvidia"], entry)
}

/// The CRI plugin that contains the runtimes, in versions 2 and 3 of the configuration format.
const PLUGINS: [(u8, &str); 2] = [
    (2, "io.containerd.grpc.v1.cri"),
    (3, "io.containerd.cri.v1.runtime"),
];

fn containerd(plugin: &str) -> Change {
    configure(
        Daemon::Containerd,
        TOML,
        &["plugins", plugin, "containerd", "runtimes", "nvidia"],
        json!({"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": PROGRAM}}),
    )
}

fn root(version: u8, plugin: &str) -> String {
    format!(
        "version = {version}\n\n[plugins.'{plugin}'.containerd]\nsnapshotter = 'overlayfs' # the team\n"
    )
}

/// The CRI plugin may have been disabled before. After an undo, containerd must only run.
#[tokio::test]
async fn undo_does_not_require_the_cri_plugin() {
    let machine = machine("{}\n", &root(2, PLUGINS[0].1));
    let undo = machine.apply(&containerd(PLUGINS[0].1)).await.unwrap();
    (machine.fakes.exec).on("ctr", |_, _| {
        ok("io.containerd.grpc.v1  cri  linux/amd64  skip\n")
    });
    machine.reverts(&undo).await;
}

#[tokio::test]
async fn edited_docker_entry_is_removed_with_its_runtime() {
    let machine = machine("{\"mtu\": 1400}\n", "version = 2\n");
    let before = machine.snapshot();
    let undo = machine.apply(&docker()).await.unwrap();
    let ours = machine.fakes.files.text(JSON);
    let edited = (ours.replace("\"args\": []", "\"args\": [\"--debug\"]"))
        .replace("\"mtu\"", "\"default-runtime\": \"nvidia\", \"mtu\"");
    machine.fakes.files.put(JSON, edited);
    let what = machine.reverts(&undo).await;
    for part in [
        "default-runtime",
        "runtimes.nvidia.args",
        "although modified later",
    ] {
        assert!(what.contains(part), "{what}");
    }
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
    // Other settings of the administrator are kept, including an entry with a different program.
    let theirs = "{\"mtu\":1300,\"default-runtime\":\"nvidia\",\"runtimes\":{\"nvidia\":{\"path\":\"/opt/own\"}}}";
    machine.fakes.files.put(JSON, theirs);
    says(machine.reverts_in_part(&undo).await.0, "runtimes.nvidia");
    assert_eq!(machine.fakes.files.text(JSON), theirs);
}

#[tokio::test]
async fn edited_containerd_entry_is_removed_with_its_runtime() {
    for (version, plugin) in PLUGINS {
        let root = root(version, plugin);
        let machine = machine("{}\n", &root);
        let undo = machine.apply(&containerd(plugin)).await.unwrap();
        let ours = machine.fakes.files.text(TOML);
        let edited = ours.replace(
            "# the team\n",
            "# the team\ndefault_runtime_name = 'nvidia'\n",
        ) + "SystemdCgroup = true\n\n[grpc]\ngid = 5\n";
        machine.fakes.files.put(TOML, edited);
        let what = machine.reverts(&undo).await;
        for part in [
            "containerd.default_runtime_name",
            "nvidia.options.SystemdCgroup",
        ] {
            assert!(what.contains(part), "{what}");
        }
        let now = machine.fakes.files.text(TOML);
        assert!(!now.contains("nvidia"), "{now}");
        says(&now, "# the team\n");
        says(&now, "gid = 5\n");
        // An entry with a different program is kept.
        let theirs = ours.replace(PROGRAM, "/opt/own/runtime");
        machine.fakes.files.put(TOML, theirs.clone());
        machine.reverts_in_part(&undo).await;
        assert_eq!(machine.fakes.files.text(TOML), theirs);
    }
}

#[tokio::test]
async fn replaced_default_runtime_is_restored() {
    for (version, plugin) in PLUGINS {
        let root = root(version, plugin)
            + "default_runtime_name = 'runc'\n"
            + &format!("[plugins.'{plugin}'.containerd.runtimes.runc]\nruntime_type = 'r'\n");
        let machine = machine("{}\n", &root);
        let undo = machine.apply(&containerd(plugin)).await.unwrap();
        let edited = machine.fakes.files.text(TOML);
        let edited = edited.replace(
            "default_runtime_name = 'runc'",
            "default_runtime_name = 'nvidia'",
        );
        machine.fakes.files.put(TOML, edited);
        machine.reverts(&undo).await;
        let now = machine.fakes.files.text(TOML);
        assert!(!now.contains("nvidia"), "{now}");
        assert!(
            now.contains("default_runtime_name = \"runc\"") || now == root,
            "{now}"
        );
    }
}

#[tokio::test]
async fn configuration_rejected_without_our_keys_is_restored() {
    let machine = machine("{}\n", "version = 3\n");
    let undo = machine.apply(&docker()).await.unwrap();
    let broken = machine
        .fakes
        .files
        .text(JSON)
        .replacen('{', "{\"broken\": 1,", 1);
    machine.fakes.files.put(JSON, broken.clone());
    let began = restarts(&machine);
    let (what, why) = machine.reverts_in_part(&undo).await;
    assert!(
        what.contains(JSON) && why.contains("don't match any: broken"),
        "{what}: {why}"
    );
    assert_eq!(machine.fakes.files.text(JSON), broken);
    assert_eq!(restarts(&machine), began);
    // If the entry was also edited, no removal is reported, because the file with the entry is restored.
    let edited = broken.replace("\"args\": []", "\"args\": [\"--debug\"]");
    machine.fakes.files.put(JSON, edited.clone());
    machine.revert(&undo).await;
    assert_eq!(machine.fakes.files.text(JSON), edited);
    assert!(!machine.sink.text().contains("although modified later"));
    // When the file is corrected, the same undo completes.
    let right = broken.replace("\"broken\": 1,", "");
    machine.fakes.files.put(JSON, right);
    machine.reverts(&undo).await;

    // A file that is not ours makes nvidia the default runtime, so our file keeps the runtime.
    for (version, plugin) in PLUGINS {
        let machine = self::machine("{}\n", &format!("version = {version}\n"));
        let undo = machine.apply(&containerd(plugin)).await.unwrap();
        let ours = machine.fakes.files.text(TOML);
        machine.fakes.exec.on("containerd", move |_, files| {
            ok(files.text(TOML)
                + &format!("[plugins.'{plugin}'.containerd]\ndefault_runtime_name = 'nvidia'\n"))
        });
        let began = restarts(&machine);
        let (_, why) = machine.reverts_in_part(&undo).await;
        assert!(why.contains("default runtime would be nvidia"), "{why}");
        assert_eq!(machine.fakes.files.text(TOML), ours);
        assert_eq!(restarts(&machine), began);
        (machine.fakes.exec).on("containerd", |_, _| failed(1, "toml: expected ]"));
        let (_, why) = machine.reverts_in_part(&undo).await;
        assert!(why.contains("toml: expected ]"), "{why}");
    }
}

#[tokio::test]
async fn failed_daemon_undo_does_not_block_another() {
    let root = root(PLUGINS[1].0, PLUGINS[1].1);
    let machine = machine("{}\n", &root);
    let older = machine.apply(&docker()).await.unwrap();
    let newer = machine.apply(&containerd(PLUGINS[1].1)).await.unwrap();
    let ours = machine.fakes.files.text(TOML);
    (machine.fakes.exec).on("containerd", |_, files| {
        match files.text(TOML).contains("nvidia") {
            true => ok(files.text(TOML)),
            false => failed(1, "no runtime nvidia"),
        }
    });
    let (what, why) = machine.reverts_in_part(&newer).await;
    assert!(
        what.contains(TOML) && why.contains("no runtime nvidia"),
        "{what}: {why}"
    );
    machine.reverts(&older).await;
    assert_eq!(machine.fakes.files.text(TOML), ours);
    assert_eq!(machine.fakes.files.text(JSON), "{}\n");
    let lines = machine.fakes.exec.lines();
    let restarted = |unit: &str| {
        lines
            .iter()
            .filter(|line| line.contains("restart") && line.contains(unit))
            .count()
    };
    assert!(restarted("docker.service") >= 1, "{lines:?}");
    // containerd was only restarted by the change, which added the runtime.
    assert_eq!(restarted("containerd.service"), 1, "{lines:?}");
}

#[tokio::test]
async fn daemon_is_not_restarted_with_a_rejected_file() {
    let machine = machine("{}\n", "version = 3\n");
    let undo = machine.apply(&containerd(PLUGINS[1].1)).await.unwrap();
    machine.fakes.files.put(TOML, "version = 3\n");
    (machine.fakes.exec).on("containerd", |_, _| failed(1, "toml: expected ]"));
    let began = restarts(&machine);
    let (what, why) = machine.reverts_in_part(&undo).await;
    assert!(
        what.contains("`containerd.service`") && why.contains("expected ]"),
        "{what}: {why}"
    );
    assert_eq!(restarts(&machine), began);
    // The next undo restarts it.
    (machine.fakes.exec).on("containerd", |_, files| ok(files.text(TOML)));
    machine.reverts(&undo).await;
    assert_eq!(restarts(&machine), began + 1);
}

#[tokio::test]
async fn unreadable_file_does_not_restart_a_running_daemon() {
    for (change, path) in [(docker(), JSON), (containerd(PLUGINS[1].1), TOML)] {
        let machine = machine("{}\n", "version = 3\n");
        let undo = machine.apply(&change).await.unwrap();
        let broken = format!("{}]", machine.fakes.files.text(path));
        machine.fakes.files.put(path, broken.clone());
        machine.fakes.exec.clear_log();
        machine.reverts_in_part(&undo).await;
        assert_eq!(machine.fakes.files.text(path), broken);
        let lines = machine.fakes.exec.lines();
        assert!(
            !lines.iter().any(|line| line.contains("restart")),
            "{lines:?}"
        );
    }
}

with_each_manager! {
    runtime_package_is_kept_while_used
}

async fn runtime_package_is_kept_while_used(kind: Kind) {
    let machine = machine_with(kind, "{}\n", "version = 3\n");
    let archive = Archive::on(&machine);
    let base = Offered::new("1.18.0", &["toolkit-common"]);
    archive.offer("toolkit-base", base.owning(PROGRAM));
    archive.offer("toolkit-common", Offered::new("1.18.0", &[]));
    archive.offer("toolkit", Offered::new("1.18.0", &["toolkit-base"]));
    let packages = machine.apply(&install(&["toolkit"])).await.unwrap();
    let keys = machine.apply(&docker()).await.unwrap();
    let broken = (machine.fakes.files.text(JSON)).replacen('{', "{\"broken\": 1,", 1);
    machine.fakes.files.put(JSON, broken.clone());
    machine.reverts_in_part(&keys).await;
    let (what, why) = machine.reverts_in_part(&packages).await;
    assert!(
        what.contains("2 packages") && why.contains(PROGRAM),
        "{what}: {why}"
    );
    assert_eq!(archive.known(), ["toolkit-base", "toolkit-common"]);
    (machine.fakes.files).put(JSON, broken.replace("\"broken\": 1,", ""));
    machine.reverts(&keys).await;
    machine.reverts(&packages).await;
    assert_eq!(archive.known(), [""; 0]);
    // An entry with a different program is kept, and needs no package.
    let packages = machine.apply(&install(&["toolkit"])).await.unwrap();
    let keys = machine.apply(&docker()).await.unwrap();
    let theirs = "{\"runtimes\":{\"nvidia\":{\"path\":\"/usr/local/nvidia/toolkit/nvidia-container-runtime\"}}}";
    machine.fakes.files.put(JSON, theirs);
    machine.reverts_in_part(&keys).await;
    machine.reverts(&packages).await;
}

const READY: &str = r#"{"status": {"conditions": [{"type": "RuntimeReady", "status": true},
    {"type": "NetworkReady", "status": false, "message": "cni plugin not initialized"}]}}"#;

#[tokio::test]
async fn cri_must_be_ready_without_pod_network() {
    let machine = || machine("{}\n", "version = 3\n");
    let change = containerd(PLUGINS[1].1);
    let without = machine();
    without.apply(&change).await.unwrap();
    assert!(!without.sink.text().contains("network"));

    let ready = machine();
    let mut asked = 0;
    ready.fakes.exec.on("crictl", move |_, _| {
        asked += 1;
        match asked {
            1 => failed(1, "server is not initialized yet"),
            _ => ok(READY),
        }
    });
    ready.apply(&change).await.unwrap();
    let said = ready.sink.text();
    let words = "no pod network yet: NetworkReady is false: cni plugin not";
    says(&said, words);

    // An error because the client uses another CRI version does not mean that containerd is not ready.
    let old = machine();
    (old.fakes.exec).on("crictl", |_, _| {
        failed(1, "unknown service runtime.v1alpha2.RuntimeService")
    });
    old.apply(&change).await.unwrap();

    let dead = machine();
    let before = dead.snapshot();
    dead.fakes
        .exec
        .on("crictl", |_, _| ok(READY.replace("true", "false")));
    let error = dead.apply(&change).await.unwrap_err();
    let causes = crate::error::causes(&error).join("; ");
    assert!(
        causes.contains("RuntimeReady is false"),
        "{error}: {causes}"
    );
    let left = diff(&before, &dead.snapshot());
    assert!(left.is_empty(), "{left:#?}");
}
