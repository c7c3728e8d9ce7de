//! `upgrade`: a node in use leaves service before the first change, and returns after the validation.

use std::sync::{Arc, Mutex};

use gpu_bootstrap::{
    host::{
        Clock as _, HttpError,
        fake::{self, Mutation, ok},
    },
    journal::{Journal, Record},
};
use serde_json::{Value, json};
use toml::Table;

use crate::{
    build::describe,
    dpkg,
    fleetlock::{LockServer, locked},
    machine::{Machine, Ran},
    scenarios::{in_parallel, told},
    state::{Pod, Shared, lock},
};

/// The fleet lock.
pub const SERVER: &str = "https://lock.example";

const LOCK: &str = "https://lock.example/v1/pre-reboot";
const UNLOCK: &str = "https://lock.example/v1/steady-state";
const MAINTENANCE: &str = "gpu-bootstrap/maintenance";
pub const FAILED: &str = "gpu-bootstrap/upgrade-failed";

/// The settings of the first driver.
pub const BEFORE: [&str; 2] = ["--set", "driver.source=nvidia"];

/// The settings of the upgrade.
pub const AFTER: [&str; 8] = [
    "--set",
    "driver.source=nvidia",
    "--set",
    "driver.version=595.91.07",
    "--set",
    "driver.cuda=13.2",
    "--set",
    "fleet.lock=fleetlock:https://lock.example",
];

/// The command of the check timer.
const METRICS: [&str; 5] = [
    "check",
    "--as-installed",
    "--format",
    "prometheus",
    "--node-condition",
];

/// A node with the first driver, whose kubelet may cordon it and evict its pods.
fn node() -> Machine {
    node_with_id("0123456789abcdef0123456789abcdef")
}

/// The same with this machine ID.
pub fn node_with_id(id: &str) -> Machine {
    let machine = Machine::new(describe("debian-12-cluster", Table::new()));
    machine
        .fakes
        .files
        .put("/etc/machine-id", format!("{id}\n"));
    machine.fakes.files.put(
        "/lib/systemd/system/kubelet.service",
        "[Install]\nWantedBy=multi-user.target\n",
    );
    let ran = run(&machine, "install", &BEFORE);
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    assert!(driver(&machine).starts_with("580."), "{}", driver(&machine));
    machine.fakes.http.serve(LOCK, "");
    machine.fakes.http.serve(UNLOCK, "");
    machine
}

pub fn run(machine: &Machine, command: &str, options: &[&str]) -> Ran {
    let mut args = vec![command, "--format", "json"];
    args.extend(options);
    machine.run(&args)
}

/// Boots, and continues the run.
pub fn resumed(machine: &Machine) -> Option<Ran> {
    machine.reboot();
    let words = machine.resume_command()?;
    let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
    args.extend(["--format", "json"]);
    Some(machine.run(&args))
}

/// The installed version of a driver package.
pub fn driver(machine: &Machine) -> String {
    let packages = dpkg::read(&machine.fakes.files);
    packages["libcuda1"].version.clone()
}

fn pod(name: &str, owner: Option<&str>, rest: Value) -> Pod {
    let owners = owner.map(|kind| json!([{"kind": kind, "controller": true}]));
    let mut object = json!({
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "ownerReferences": owners.unwrap_or_else(|| json!([])),
        },
    });
    if let Some(rest) = rest.as_object() {
        object
            .as_object_mut()
            .expect("an object")
            .extend(rest.clone());
    }
    Pod {
        object,
        refusals: 0,
        is_forbidden: false,
        lingers: 1,
    }
}

fn put_pods(machine: &Machine, pods: Vec<Pod>) {
    lock(&machine.state).pods = pods;
}

fn pods(machine: &Machine) -> Vec<String> {
    let name = |pod: &Pod| {
        pod.object["metadata"]["name"]
            .as_str()
            .expect("a name")
            .to_owned()
    };
    lock(&machine.state).pods.iter().map(name).collect()
}

pub fn annotation(machine: &Machine, key: &str) -> Option<String> {
    let state = lock(&machine.state);
    let node = state.node.as_ref().expect("a node");
    node["metadata"]["annotations"][key]
        .as_str()
        .map(str::to_owned)
}

pub fn is_cordoned(state: &Shared) -> bool {
    let state = lock(state);
    state.node.as_ref().expect("a node")["spec"]["unschedulable"] == true
}

/// The reason of the condition of the node that `check` has written.
fn condition(machine: &Machine) -> String {
    let state = lock(&machine.state);
    let node = state.node.as_ref().expect("a node");
    let conditions = node["status"]["conditions"].as_array().expect("conditions");
    let own = conditions
        .iter()
        .find(|one| one["type"] == "nvidia.com/GPUReady");
    let reason = own.and_then(|own| own["reason"].as_str());
    reason.expect("a reason").to_owned()
}

/// The requests for the fleet lock.
fn lock_requests(machine: &Machine) -> Vec<String> {
    let mut log = machine.fakes.http.log();
    log.retain(|url| url.starts_with(SERVER));
    log
}

/// The reason of the result of the maintenance, and its hint.
fn why(ran: &Ran) -> String {
    let document: Value = serde_json::from_str(&ran.out).expect("JSON");
    let steps = document["steps"].as_array().expect("steps");
    let step = steps.iter().find(|step| step["id"] == "maintenance");
    step.map_or_else(String::new, |step| {
        format!("{} {}", step["why"], step["hint"])
    })
}

#[test]
fn upgrade_drains_installs_reboots_and_returns() {
    let machine = node();
    let budget = Pod {
        refusals: 3,
        ..pod("budget", Some("ReplicaSet"), Value::Null)
    };
    put_pods(
        &machine,
        vec![
            budget,
            pod("daemon", Some("DaemonSet"), Value::Null),
            pod("done", None, json!({"status": {"phase": "Succeeded"}})),
        ],
    );
    let ran = run(&machine, "upgrade", &[&AFTER[..], &["--reboot"]].concat());
    assert_eq!(ran.exit, 8, "{}", told(&ran));
    assert_eq!(pods(&machine), ["daemon"]);
    assert!(is_cordoned(&machine.state));
    let note = annotation(&machine, MAINTENANCE).expect("a reason");
    assert!(note.contains("driver 595.91.07"), "{note}");
    assert_eq!(lock_requests(&machine), [LOCK]);
    // The node leaves before the packages of the upgrade are installed.
    let history = Journal::read(&machine.host()).expect("a journal");
    let kinds: Vec<&str> = (history.lines.iter())
        .filter_map(|line| match &line.record {
            Record::Intent { change, .. } => Some(change.kind()),
            _ => None,
        })
        .collect();
    let left = kinds.iter().position(|kind| *kind == "leave-service");
    let installed = kinds.iter().rposition(|kind| *kind == "install-packages");
    assert!(left.is_some() && left < installed, "{kinds:?}");
    let check = machine.run(&["check", "--as-installed", "--format", "prometheus"]);
    assert!(
        check.out.contains("gpu_bootstrap_maintenance 1\n"),
        "{}",
        check.out
    );

    let ran = resumed(&machine).expect("a resume unit");
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    assert!(driver(&machine).starts_with("595."));
    assert!(!is_cordoned(&machine.state));
    assert_eq!(annotation(&machine, MAINTENANCE), None);
    assert_eq!(lock_requests(&machine), [LOCK, UNLOCK]);
    let check = machine.run(&["check", "--as-installed", "--format", "prometheus"]);
    assert!(
        check.out.contains("gpu_bootstrap_maintenance 0\n"),
        "{}",
        check.out
    );

    // A second upgrade has nothing to do, and does not touch the node.
    let again = run(&machine, "upgrade", &AFTER);
    assert_eq!(again.exit, 0, "{}", told(&again));
    assert_eq!(lock_requests(&machine), [LOCK, UNLOCK]);
    let touched =
        |line: &String| line.contains("patch node") || line.contains("--raw=/api/v1/pods");
    let lines: Vec<String> = again.commands.iter().map(|cmd| cmd.line()).collect();
    assert!(!lines.iter().any(touched), "{lines:#?}");
}

#[test]
fn node_that_was_cordoned_before_stays_cordoned() {
    let machine = node();
    if let Some(node) = &mut lock(&machine.state).node {
        node["spec"]["unschedulable"] = json!(true);
    }
    let ran = run(&machine, "upgrade", &[&AFTER[..], &["--reboot"]].concat());
    assert_eq!(ran.exit, 8, "{}", told(&ran));
    let ran = resumed(&machine).expect("a resume unit");
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    assert!(is_cordoned(&machine.state));
    assert_eq!(annotation(&machine, MAINTENANCE), None);
}

/// An administrator who takes over removes the annotation.
#[test]
fn cordon_of_an_administrator_is_kept() {
    let machine = node();
    let ran = run(&machine, "upgrade", &[&AFTER[..], &["--reboot"]].concat());
    assert_eq!(ran.exit, 8, "{}", told(&ran));
    if let Some(node) = &mut lock(&machine.state).node {
        node["metadata"]["annotations"] = json!({});
    }
    // The server of the lock is unavailable for a moment.
    let unavailable = HttpError::Status {
        url: UNLOCK.to_owned(),
        status: 503,
    };
    machine.fakes.http.fail_next(UNLOCK, unavailable);
    let ran = resumed(&machine).expect("a resume unit");
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    assert!(is_cordoned(&machine.state));
    assert_eq!(lock_requests(&machine), [LOCK, UNLOCK, UNLOCK]);
}

/// Without a cluster, commands take the machine out of service. Any command that finishes the upgrade returns it.
#[test]
fn install_after_a_manual_reboot_returns_the_machine() {
    const FLEET: &str = "/usr/local/sbin/fleet";
    let machine = Machine::new(describe("debian-12-h100", Table::new()));
    machine.fakes.files.put_mode(FLEET, "#!/bin/sh\n", 0o755);
    machine.fakes.exec.on(FLEET, |_, _| ok(""));
    let ran = run(&machine, "install", &BEFORE);
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    let commands = [
        "--set",
        "fleet.lock=command:/usr/local/sbin/fleet lock",
        "--set",
        r#"fleet.leave-command=["/usr/local/sbin/fleet", "leave"]"#,
        "--set",
        r#"fleet.return-command=["/usr/local/sbin/fleet", "return"]"#,
        "--set",
        "fleet.drain-timeout=10s",
    ];
    let calls = |ran: &Ran| -> Vec<String> {
        let lines = ran.commands.iter().map(|cmd| cmd.line());
        let calls = lines.filter_map(|line| Some(line.strip_prefix(FLEET)?.trim().to_owned()));
        calls.collect()
    };
    let options = [&AFTER[..6], &commands].concat();
    let ran = run(&machine, "upgrade", &options);
    assert_eq!(ran.exit, 8, "{}", told(&ran));
    assert!(
        ran.err.contains("\n    gpu-bootstrap upgrade\n"),
        "{}",
        ran.err
    );
    assert_eq!(calls(&ran), ["lock acquire", "leave"]);
    machine.reboot();
    let ran = run(&machine, "install", &options);
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    assert_eq!(calls(&ran), ["return", "lock release"]);
    // The scheduler may need minutes after a boot until it accepts the return, also with a short time limit for the drain.
    let back = (ran.commands.iter()).find(|cmd| cmd.args == ["return"]);
    assert_eq!(back.expect("the return").deadline.as_secs(), 300);
}

/// The driver is not changed, and the node is in service, without the lock.
pub fn assert_stayed(machine: &Machine, ran: &Ran, reason: &str) {
    assert_eq!(ran.exit, 5, "{}", told(ran));
    assert!(why(ran).contains(reason), "{}\n{}", why(ran), told(ran));
    assert!(driver(machine).starts_with("580."));
    assert!(!is_cordoned(&machine.state));
    assert_eq!(annotation(machine, MAINTENANCE), None);
    let requests = lock_requests(machine);
    assert!(
        requests.is_empty() || requests.ends_with(&[UNLOCK.to_owned()]),
        "{requests:?}"
    );
    assert_eq!(machine.resume_command(), None);
}

#[test]
fn budget_that_never_permits_an_eviction_blocks() {
    let machine = node();
    let budget = Pod {
        refusals: u32::MAX,
        ..pod("budget", Some("ReplicaSet"), Value::Null)
    };
    put_pods(
        &machine,
        vec![budget, pod("other", Some("Job"), Value::Null)],
    );
    let ran = run(&machine, "upgrade", &[&AFTER[..], &["--reboot"]].concat());
    assert_stayed(&machine, &ran, "default/budget: Cannot evict pod");
    assert_eq!(lock_requests(&machine), [LOCK, UNLOCK]);
    assert_eq!(pods(&machine), ["budget"]);
}

#[test]
fn pod_without_a_controller_blocks_before_the_cordon() {
    let machine = node();
    put_pods(
        &machine,
        vec![
            pod("own", None, Value::Null),
            pod(
                "data",
                Some("ReplicaSet"),
                json!({"spec": {"volumes": [{"emptyDir": {}}]}}),
            ),
        ],
    );
    let ran = run(&machine, "upgrade", &AFTER);
    assert_stayed(&machine, &ran, "fleet.evict-unmanaged = true");
    assert_stayed(&machine, &ran, "fleet.delete-emptydir-data = true");
    assert_eq!(lock_requests(&machine), [""; 0]);
    let consent = [
        "--set",
        "fleet.evict-unmanaged=true",
        "--set",
        "fleet.delete-emptydir-data=true",
    ];
    let ran = run(&machine, "upgrade", &[&AFTER[..], &consent].concat());
    assert_eq!(ran.exit, 8, "{}", told(&ran));
    assert_eq!(pods(&machine), [""; 0]);
}

#[test]
fn process_that_uses_a_gpu_blocks() {
    let machine = node();
    let files = &machine.fakes.files;
    files.put("/proc/4711/comm", "python3\n");
    files.put("/proc/4711/cgroup", "0::/user.slice\n");
    files.put_link("/proc/4711/exe", "/usr/bin/python3.11");
    files.put_link("/proc/4711/fd/7", "/dev/nvidia0");
    let ran = run(&machine, "upgrade", &AFTER);
    assert_stayed(&machine, &ran, "in use by python3 (process 4711)");
    let consent = ["--set", "fleet.gpu-processes=end"];
    let ran = run(&machine, "upgrade", &[&AFTER[..], &consent].concat());
    assert_eq!(ran.exit, 8, "{}", told(&ran));
}

#[test]
fn lock_that_is_held_blocks() {
    let machine = node();
    machine.fakes.http.forget(LOCK);
    let began = machine.fakes.clock.monotonic();
    let limit = ["--set", "fleet.lock-timeout=40s"];
    let ran = run(&machine, "upgrade", &[&AFTER[..], &limit].concat());
    assert_stayed(&machine, &ran, "the server returned 404");
    assert!(!ran.out.contains("released"), "{}", told(&ran));
    // The last pause is shorter.
    assert_eq!(lock_requests(&machine), [LOCK, LOCK, LOCK, UNLOCK]);
    let waited = machine.fakes.clock.monotonic() - began;
    assert!(waited.as_secs() < 60, "{waited:?}");
}

/// The GPUs of a node that waits for the lock are in use, so its alerts are not silent.
#[test]
fn waiting_for_the_lock_is_not_maintenance() {
    let machine = Arc::new(node());
    // `check` finds the run in progress by its process.
    let pid = std::process::id();
    let stat = format!("{pid} (gpu-bootstrap) S {}77\n", "0 ".repeat(18));
    (machine.fakes.files).put(&format!("/proc/{pid}/stat"), stat);
    let server = LockServer::new(1);
    let outputs = Arc::new(Mutex::new(Vec::new()));
    let (here, seen) = (machine.clone(), outputs.clone());
    machine.fakes.http.serve_with(SERVER, move |request| {
        // Another process, because this thread already has an asynchronous runtime.
        let output = std::thread::scope(|scope| {
            let process = || {
                let metrics = here.run(&METRICS).out;
                assert_ne!(condition(&here), "Upgrading");
                metrics + &here.run(&["status"]).out
            };
            scope.spawn(process).join().expect("no panic")
        });
        locked(&seen).push(output);
        server.answer(SERVER, request)
    });
    let ran = run(&machine, "upgrade", &AFTER);
    assert_eq!(ran.exit, 8, "{}", told(&ran));
    let seen = locked(&outputs).concat();
    for line in [
        "gpu_bootstrap_upgrade_waiting 1\n",
        "gpu_bootstrap_maintenance 0\n",
        "gpu_bootstrap_run_active 0\n",
        "waiting for the fleet lock or for the end of its workloads since",
    ] {
        assert!(seen.contains(line), "{line}: {seen}");
    }
    let check = machine.run(&METRICS);
    assert_eq!(condition(&machine), "Upgrading");
    for line in [
        "gpu_bootstrap_upgrade_waiting 0\n",
        "gpu_bootstrap_maintenance 1\n",
    ] {
        assert!(check.out.contains(line), "{line}: {}", check.out);
    }
}

/// A node that lost power at the first eviction of its upgrade, and has not booted yet.
fn without_power_in_its_drain() -> Machine {
    let machine = node();
    put_pods(&machine, vec![pod("web", Some("ReplicaSet"), Value::Null)]);
    let mut is_off = false;
    machine.fakes.files.before_mutations(move |_, mutation| {
        is_off |= matches!(mutation, Mutation::Run(line) if line.contains("/eviction"));
        match is_off {
            true => Err(std::io::Error::other("power loss")),
            false => Ok(()),
        }
    });
    run(&machine, "upgrade", &[&AFTER[..], &["--reboot"]].concat());
    machine.go_on();
    assert!(is_cordoned(&machine.state));
    assert_eq!(pods(&machine), ["web"]);
    assert_eq!(lock_requests(&machine), [LOCK]);
    machine
}

/// The upgrade has finished. The lock was acquired before and after the power loss, and then released, which may be repeated.
fn assert_upgraded(machine: &Machine, ran: &Ran) {
    assert_eq!(ran.exit, 0, "{}", told(ran));
    assert!(driver(machine).starts_with("595."));
    assert!(!is_cordoned(&machine.state));
    let requests = lock_requests(machine);
    let (acquired, released) = requests.split_at(2);
    assert_eq!(acquired, [LOCK, LOCK]);
    assert!(!released.is_empty(), "{requests:?}");
    assert!(released.iter().all(|url| url == UNLOCK), "{requests:?}");
}

#[test]
fn drain_continues_when_the_api_server_responds_after_the_boot() {
    let machine = without_power_in_its_drain();
    lock(&machine.state).faults.api_server = 60;
    // The module was not loaded again after the boot, so no other reboot is needed.
    let ran = resumed(&machine).expect("a resume unit");
    assert_eq!(lock(&machine.state).faults.api_server, 0);
    assert_eq!(pods(&machine), [""; 0]);
    assert_upgraded(&machine, &ran);
}

#[test]
fn interrupted_drain_keeps_the_lock_while_the_api_server_is_away() {
    let machine = without_power_in_its_drain();
    lock(&machine.state).faults.api_server = u32::MAX;
    let ran = resumed(&machine).expect("a resume unit");
    assert_eq!(ran.exit, 6, "{}", told(&ran));
    for part in ["not returned to service", "10.0.0.1:6443 was refused"] {
        assert!(ran.out.contains(part), "{part}: {}", told(&ran));
    }
    assert!(driver(&machine).starts_with("580."));
    assert!(is_cordoned(&machine.state));
    assert!(annotation(&machine, MAINTENANCE).is_some());
    assert_eq!(lock_requests(&machine), [LOCK]);
    let check = machine.run(&["check", "--as-installed", "--format", "prometheus"]);
    assert!(
        check.out.contains("gpu_bootstrap_maintenance 1\n"),
        "{}",
        check.out
    );

    lock(&machine.state).faults.api_server = 0;
    let ran = run(&machine, "upgrade", &[&AFTER[..], &["--reboot"]].concat());
    assert_upgraded(&machine, &ran);
}

#[test]
fn driver_without_a_way_back_is_kept() {
    let machine = node();
    (lock(&machine.state).archive).withdraw(&machine.fakes.files, "libcuda1=580.*");
    let ran = run(&machine, "upgrade", &AFTER);
    assert_stayed(&machine, &ran, "no way back");
    assert_eq!(lock_requests(&machine), [""; 0]);
}

#[test]
fn upgrade_only_starts_in_its_window() {
    let machine = node();
    let now = "2026-11-27T12:00:00Z".parse().expect("a time");
    machine.fakes.clock.set(now);
    let window = ["--set", "fleet.window=Sat 02:00-05:00 UTC"];
    let ran = run(&machine, "upgrade", &[&AFTER[..], &window].concat());
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    assert!(
        why(&ran).contains("opens at 2026-11-28T02:00:00Z"),
        "{}",
        why(&ran)
    );
    assert!(
        ran.out.contains("run `gpu-bootstrap upgrade` again then"),
        "{}",
        told(&ran)
    );
    assert!(driver(&machine).starts_with("580."));
    assert!(!is_cordoned(&machine.state));
    assert_eq!(lock_requests(&machine), [""; 0]);
    let ran = run(
        &machine,
        "upgrade",
        &[&AFTER[..], &window, &["--now"]].concat(),
    );
    assert_eq!(ran.exit, 8, "{}", told(&ran));
}

/// A node that could not return to service is not left alone: the next run continues the upgrade outside of the window, or
/// returns the node.
#[test]
fn failed_return_is_reported_and_repeated() {
    let stuck = || {
        let machine = node();
        let budget = Pod {
            refusals: u32::MAX,
            ..pod("budget", Some("ReplicaSet"), Value::Null)
        };
        put_pods(&machine, vec![budget]);
        machine.fakes.http.forget(UNLOCK);
        let ran = run(&machine, "upgrade", &AFTER);
        assert_eq!(ran.exit, 6, "{}", told(&ran));
        assert!(
            why(&ran).contains("not returned to service: the fleet lock"),
            "{}",
            why(&ran)
        );
        assert!(ran.out.contains("Cannot evict pod"), "{}", told(&ran));
        assert!(!ran.out.contains("stays in service"), "{}", told(&ran));
        machine.fakes.http.serve(UNLOCK, "");
        machine
    };
    let machine = stuck();
    put_pods(&machine, vec![pod("own", None, Value::Null)]);
    let ran = run(&machine, "upgrade", &AFTER);
    assert_stayed(&machine, &ran, "fleet.evict-unmanaged = true");
    let requests = lock_requests(&machine);
    assert_eq!(requests.last().map(String::as_str), Some(UNLOCK));

    let machine = stuck();
    put_pods(&machine, Vec::new());
    let now = "2026-11-27T12:00:00Z".parse().expect("a time");
    machine.fakes.clock.set(now);
    let window = ["--set", "fleet.window=Sat 02:00-05:00 UTC"];
    let ran = run(&machine, "upgrade", &[&AFTER[..], &window].concat());
    assert_eq!(ran.exit, 8, "{}", told(&ran));
    assert!(is_cordoned(&machine.state));
}

#[test]
fn failed_driver_is_rolled_back_and_the_node_stays_cordoned() {
    let machine = node();
    let ran = run(&machine, "upgrade", &[&AFTER[..], &["--reboot"]].concat());
    assert_eq!(ran.exit, 8, "{}", told(&ran));
    lock(&machine.state).faults.bad_driver = Some("595".to_owned());
    let mut ran = resumed(&machine).expect("a resume unit");
    while ran.exit == 8 {
        ran = resumed(&machine).expect("a resume unit");
    }
    assert_eq!(ran.exit, 6, "{}", told(&ran));
    assert!(driver(&machine).starts_with("580."));
    assert!(is_cordoned(&machine.state));
    let reason = annotation(&machine, FAILED).expect("a reason");
    assert!(
        reason.contains("driver 595.91.07 failed validation"),
        "{reason}"
    );
    // The lock is kept, so that the next node does not start.
    assert_eq!(lock_requests(&machine), [LOCK]);
    let check = machine.run(&METRICS);
    assert!(
        check.out.contains("gpu_bootstrap_maintenance 1\n"),
        "{}",
        check.out
    );
    assert_eq!(condition(&machine), "UpgradeFailed");
    let status = machine.run(&["status"]).out;
    let status: Vec<&str> = status.split_whitespace().collect();
    let status = status.join(" ");
    for part in [
        "not done: `upgrade` ended with status 6",
        "the upgrade failed: driver 595.91.07 failed validation",
        "is installed again and passed validation",
        "driver 580.",
        "in the settings to return the node to service, then run: gpu-bootstrap upgrade",
    ] {
        assert!(status.contains(part), "{part}: {status}");
    }
    // With the previous driver in the settings, the node returns to service.
    let ran = run(&machine, "upgrade", &BEFORE);
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    assert!(!is_cordoned(&machine.state));
    assert_eq!(annotation(&machine, FAILED), None);
    assert_eq!(lock_requests(&machine), [LOCK, UNLOCK]);
    machine.run(&METRICS);
    assert_ne!(condition(&machine), "UpgradeFailed");
}

/// A kubelet whose permissions do not include evictions.
#[test]
fn configured_kubeconfig_replaces_that_of_the_kubelet() {
    const ACCESS: &str = "/root/fleet.kubeconfig";
    let machine = node();
    put_pods(&machine, vec![pod("web", Some("ReplicaSet"), Value::Null)]);
    let setting = format!("fleet.kubeconfig-file={ACCESS}");
    let options = [&AFTER[..], &["--set", &setting, "--reboot"]].concat();
    let own = machine.fakes.files.text("/etc/kubernetes/kubelet.conf");
    // The access could cordon any node, so the node must be this machine.
    if let Some(node) = &mut lock(&machine.state).node {
        node["status"]["nodeInfo"]["systemUUID"] = json!("11111111-2222-3333-4444-555555555555");
    }
    // Other users could read its credentials.
    machine.fakes.files.put_mode(ACCESS, own.clone(), 0o644);
    let ran = run(&machine, "upgrade", &options);
    assert!([5, 6].contains(&ran.exit), "{}", told(&ran));
    assert!(ran.out.contains(ACCESS), "{}", told(&ran));
    assert!(driver(&machine).starts_with("580."));
    assert!(!is_cordoned(&machine.state));
    assert_eq!(pods(&machine), ["web"]);

    machine.fakes.files.put_mode(ACCESS, own, 0o600);
    let first = run(&machine, "upgrade", &options);
    assert_eq!(first.exit, 8, "{}", told(&first));
    assert_eq!(pods(&machine), [""; 0]);
    assert!(is_cordoned(&machine.state));
    let second = resumed(&machine).expect("a resume unit");
    assert_eq!(second.exit, 0, "{}", told(&second));
    assert!(!is_cordoned(&machine.state));
    for (ran, verbs) in [
        (&first, &["/pods?", "/eviction", "patch node"][..]),
        (&second, &["patch node"]),
    ] {
        let lines: Vec<String> = ran.commands.iter().map(|cmd| cmd.line()).collect();
        for verb in verbs {
            let lines: Vec<&String> = lines.iter().filter(|line| line.contains(verb)).collect();
            let uses = |line: &&&String| line.contains(&format!("--kubeconfig={ACCESS} "));
            assert!(!lines.is_empty(), "{verb}");
            assert_eq!(lines.iter().filter(uses).count(), lines.len(), "{lines:#?}");
        }
    }
}

#[test]
fn dry_run_lists_the_pods_and_changes_nothing() {
    let machine = node();
    put_pods(
        &machine,
        vec![
            pod("web", Some("ReplicaSet"), Value::Null),
            Pod {
                refusals: u32::MAX,
                ..pod("budget", Some("ReplicaSet"), Value::Null)
            },
            pod("own", None, Value::Null),
            Pod {
                is_forbidden: true,
                ..pod("other", Some("ReplicaSet"), Value::Null)
            },
        ],
    );
    let before = machine.snapshot();
    let ran = run(&machine, "upgrade", &[&AFTER[..], &["--dry-run"]].concat());
    assert_eq!(ran.exit, 4, "{}", told(&ran));
    for part in [
        "evict default/web\"",
        "evict default/budget, which is not possible now: Cannot evict pod as it would violate the pod's disruption budget; \
         if this does not change within 900 s",
        "evict default/other, which fails: Error from server (Forbidden): pods",
        "unless this changes, the upgrade does not start; if the kubelet is not allowed to evict pods, set \
         `fleet.kubeconfig-file`",
        "reboot if the new driver differs from the loaded driver 580.",
        "the upgrade would not start",
        "default/own has no controller that starts it on another node: it blocks the upgrade, unless \
         `fleet.evict-unmanaged` is true",
    ] {
        assert!(ran.out.contains(part), "{part}: {}", told(&ran));
    }
    assert_eq!(fake::diff(&before, &machine.snapshot()), [""; 0]);
    assert_eq!(pods(&machine), ["web", "budget", "own", "other"]);
    assert!(!is_cordoned(&machine.state));
}

/// `install` would replace the driver without taking the node out of service.
#[test]
fn check_recommends_an_upgrade_only_if_jobs_would_stop() {
    let machine = node();
    let command = |options: &[&str], id: &str| {
        let ran = run(&machine, "check", options);
        let document: Value = serde_json::from_str(&ran.out).expect("JSON");
        let findings = document["findings"].as_array().expect("findings");
        let finding = findings.iter().find(|one| one["id"] == id).expect(id);
        assert_eq!(finding["status"], "fail", "{finding}");
        finding["command"].as_str().map(str::to_owned)
    };
    let hold = ["--set", r#"hold-extra=["bash"]"#];
    let install = Some("gpu-bootstrap install".to_owned());
    let upgrade = Some("gpu-bootstrap upgrade".to_owned());
    let quiet = [&BEFORE[..], &hold].concat();
    assert_eq!(command(&quiet, "packages.hold"), install);
    assert_eq!(command(&AFTER, "driver.packages"), upgrade);
    // `install` would also replace the driver.
    let both = [&AFTER[..], &hold].concat();
    assert_eq!(command(&both, "packages.hold"), upgrade);
}

/// After a kill at any change, the node is in service with the previous driver, or it is cordoned with a reason. The next run
/// finishes the upgrade.
#[test]
fn killed_upgrade_leaves_a_node_with_a_reason() {
    let options = [&AFTER[..], &["--reboot"]].concat();
    let count = {
        let machine = node();
        let mut args = vec!["upgrade", "--format", "json"];
        args.extend(&options);
        machine.count(&args)
    };
    // Every change of the first part, in which the node leaves service, and a sample of the rest.
    let points: Vec<u64> = (1..=count).filter(|n| *n <= 30 || n % 15 == 0).collect();
    let wrong = in_parallel(&points, |n| {
        let machine = node();
        put_pods(&machine, vec![pod("web", Some("ReplicaSet"), Value::Null)]);
        machine.stop_at(*n);
        run(&machine, "upgrade", &options);
        machine.go_on();
        let mut wrong = Vec::new();
        match (
            is_cordoned(&machine.state),
            annotation(&machine, MAINTENANCE),
        ) {
            (true, None) => wrong.push(format!("{n}: cordoned without a reason")),
            (false, _) if !driver(&machine).starts_with("580.") => {
                wrong.push(format!("{n}: in service with driver {}", driver(&machine)));
            }
            _ => {}
        }
        let mut ran = run(&machine, "upgrade", &options);
        for _ in 0..3 {
            if ran.exit == 8 {
                ran = resumed(&machine).unwrap_or(ran);
            }
        }
        if ran.exit != 0 || is_cordoned(&machine.state) || !driver(&machine).starts_with("595.") {
            wrong.push(format!("{n}: not finished: {}", told(&ran)));
        }
        wrong
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The journal of an upgrade is read by the current version, with the return as the undo.
#[test]
fn journal_contains_the_way_back_to_service() {
    let machine = node();
    let ran = run(&machine, "upgrade", &AFTER);
    assert_eq!(ran.exit, 8, "{}", told(&ran));
    let history = Journal::read(&machine.host()).expect("a journal");
    let first = history.lines.iter().find_map(|line| match &line.record {
        Record::Intent { steps, undo, .. } if steps[0].as_str() == "maintenance" => Some(undo),
        _ => None,
    });
    let undo = serde_json::to_value(first.expect("a change")).expect("JSON");
    assert_eq!(undo["undo"], "return-to-service");
    assert_eq!(
        undo["method"],
        json!({"by": "cluster", "node": "gpu-1", "access": null})
    );
    assert_eq!(
        undo["lock"],
        json!({"lock": "fleetlock:https://lock.example", "group": "default"})
    );
}
