//! How `plan` and `install` simulate the packages of all steps: as one transaction, and separately to find the step at fault.

use gpu_bootstrap::{change::packages::FURTHER, host::fake};
use serde_json::Value;
use toml::Table;

use crate::{
    apt,
    build::describe,
    machine::{Machine, Ran},
    state::lock,
};

const DEBIAN: &str = "debian-12-h100";
const HEADERS: &str = "linux-headers-6.1.0-44-amd64";

/// A bare machine with package lists.
fn machine(base: &str) -> Machine {
    let lists: Table = "lists = true".parse().expect("TOML");
    Machine::new(describe(base, lists))
}

fn plan(machine: &Machine) -> (Ran, Value) {
    let ran = machine.run(&["plan", "--format", "json"]);
    let document = serde_json::from_str(&ran.out).expect("JSON");
    (ran, document)
}

fn steps(document: &Value) -> impl Iterator<Item = &Value> {
    document["steps"].as_array().into_iter().flatten()
}

/// The simulated actions of a step.
fn actions<'d>(document: &'d Value, id: &str) -> &'d str {
    (steps(document).filter(|step| step["id"] == *id))
        .filter_map(|step| step["changes"].as_array())
        .flatten()
        .find(|change| change["kind"] == "install-packages")
        .and_then(|change| change["diff"].as_str())
        .unwrap_or_default()
}

/// The steps with this outcome.
fn with_outcome<'d>(document: &'d Value, outcome: &str) -> Vec<&'d str> {
    steps(document)
        .filter(|step| step["outcome"] == *outcome)
        .filter_map(|step| step["id"].as_str())
        .collect()
}

#[test]
fn plan_simulates_the_packages_of_all_steps_once() {
    for (base, simulation, package) in rows! {
        DEBIAN, "-s", "+ linux-headers-6.1.0-44-amd64 6.1.176-1";
        "almalinux-9-l4-archive", "--assumeno", "+ kernel-devel-matched";
    } {
        let machine = machine(base);
        let (ran, document) = plan(&machine);
        assert_eq!(ran.exit, 4, "{}", ran.err);
        let headers = actions(&document, "kernel.headers");
        assert!(headers.contains(package), "{headers}");
        let mut lines: Vec<String> = (ran.commands.iter())
            .filter(|cmd| ["apt-get", "apt-cache", "dnf"].contains(&cmd.program.as_str()))
            .map(|cmd| cmd.line())
            .collect();
        let is_simulation = |line: &&String| line.split(' ').any(|word| word == simulation);
        assert_eq!(lines.iter().filter(is_simulation).count(), 1, "{lines:#?}");
        // No query is repeated.
        let all = lines.len();
        lines.sort();
        let text = format!("{lines:#?}");
        lines.dedup();
        assert_eq!(lines.len(), all, "{text}");
    }
}

#[test]
fn plan_lists_each_action_with_its_step() {
    let (_, document) = plan(&machine(DEBIAN));
    let headers = actions(&document, "kernel.headers");
    let (own, further) = headers.split_once(FURTHER).expect("dependencies");
    assert_eq!(own, format!("+ {HEADERS} 6.1.176-1\n"));
    assert!(further.contains("+ runc 1.1.5+ds1-1+deb12u1"), "{further}");
    assert!(!further.contains("docker.io"), "{further}");
    for (step, expected) in [
        ("runtime.docker", "+ docker.io 20.10.24+dfsg1-1+deb12u1+b6"),
        ("runtime.containerd", "+ containerd 1.6.20~ds1-1+deb12u3"),
    ] {
        assert_eq!(actions(&document, step), expected);
    }
}

/// The only blocked step of a plan, and its reason.
fn blocked(machine: &Machine) -> (String, String) {
    let (ran, document) = plan(machine);
    assert_eq!(ran.exit, 5, "{}", ran.err);
    let blocked = with_outcome(&document, "blocked");
    let [id] = blocked[..] else {
        panic!("{blocked:?} are blocked");
    };
    let step = steps(&document).find(|step| step["id"] == *id);
    let why = step
        .and_then(|step| step["why"].as_str())
        .expect("a reason");
    (id.to_owned(), why.to_owned())
}

#[test]
fn rejected_transaction_blocks_the_step_at_fault() {
    let machine = machine(DEBIAN);
    for package in &mut lock(&machine.state).archive.packages {
        if package.name == "docker.io" {
            package.conflicts.push("bash".to_owned());
        }
    }
    let (id, why) = blocked(&machine);
    assert_eq!(id, "runtime.docker");
    assert!(why.contains("would remove bash 5.2.15-2+b8"), "{why}");
    assert!(!why.contains("in one transaction"), "{why}");
}

/// The package manager removes a package only if the kernel headers and Docker are installed together.
#[test]
fn removal_by_the_merged_transaction_blocks_the_run() {
    let machine = machine(DEBIAN);
    let state = machine.state.clone();
    (machine.fakes.exec).on_result("apt-get", move |cmd, files| {
        let mut output = apt::apt_get(cmd, files, &mut lock(&state))?;
        let installs = |name: &str| {
            let spec = format!("{name}=");
            cmd.args.iter().any(|arg| arg.starts_with(&spec))
        };
        if cmd.args.iter().any(|arg| arg == "-s") && installs(HEADERS) && installs("docker.io") {
            output.stdout.push_str("Remv bash [5.2.15-2+b8]\n");
        }
        Ok(output)
    });
    let (id, why) = blocked(&machine);
    assert_eq!(id, "runtime.docker");
    let expected = format!("would remove bash 5.2.15-2+b8 (in one transaction with {HEADERS})");
    assert!(why.contains(&expected), "{why}");
    let before = machine.snapshot();
    assert_eq!(machine.run(&["install"]).exit, 5);
    let differences = fake::diff(&before, &machine.snapshot());
    assert!(differences.is_empty(), "{differences:#?}");
}
