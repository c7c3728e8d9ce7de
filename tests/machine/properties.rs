//! Properties of every machine with a successful installation.

use gpu_bootstrap::host::fake;
use toml::Table;

use crate::{
    build::describe,
    machine::{Machine, Ran},
    scenarios::{in_parallel, package_work, told},
};

/// Machines on which `install` exits with 0, with the required flags.
const MACHINES: [(&str, &str, &[&str]); 8] = rows! {
    "debian-12-h100", "", &[];
    "debian-12-h100",
        "packages = ['linux-image-amd64', 'docker.io']\nfiles = { '/etc/dkms/framework.conf' = 'modprobe_on_install=no' }",
        &[];
    "debian-12-h100", "gpus = ['10de:20b2', '10de:20b2']", &[];
    "debian-12-h100", "", &["--set", "driver.source=nvidia"];
    // DKMS does not read the source file in the simulation. The machine case `pool` covers it.
    "debian-12-h100",
        "files = { '/usr/local/bin/gpu-bootstrap' = 'the program' }\nlinks = { '/proc/self/exe' = '/usr/local/bin/gpu-bootstrap' }",
        &[
            "--set",
            "runtime.use=[\"containerd\"]",
            "--set",
            "driver.prebuilt.sources=[\"/srv/modules\"]",
            "--set",
            "driver.prebuilt.unsigned=true",
        ];
    "debian-12-h100",
        "",
        &[
            "--set",
            "driver.source=nvidia",
            "--set",
            "driver.flavor=proprietary",
            "--set",
            "driver.prebuilt.sources=[\"https://modules.example/gpu\"]",
            "--set",
            "driver.prebuilt.unsigned=true",
            "--set",
            "driver.prebuilt.only=true",
        ];
    "debian-12-h100", "gpus = []", &["--set", "gpu=optional"];
    "debian-12-h100",
        "gpus = ['10de:20b5', '10de:20b5']\nfiles = { '/usr/local/bin/gpu-bootstrap' = 'the program' }\nlinks = { '/proc/self/exe' = '/usr/local/bin/gpu-bootstrap' }",
        &["--set", "mig.layout=all-balanced"];
};

fn machine(at: usize) -> Machine {
    let (base, differs, _) = MACHINES[at];
    Machine::new(describe(base, differs.parse::<Table>().expect("TOML")))
}

fn install(at: usize) -> Vec<&'static str> {
    [&["install"], MACHINES[at].2].concat()
}

fn each(work: impl Fn(usize) -> Vec<String> + Sync) {
    let all: Vec<usize> = (0..MACHINES.len()).collect();
    let wrong = in_parallel(&all, |at| {
        work(*at)
            .into_iter()
            .map(|line| format!("{:?}: {line}", MACHINES[*at]))
            .collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn read_only_commands_change_nothing() {
    each(|at| {
        let machine = machine(at);
        let flags = MACHINES[at].2;
        let mut wrong = Vec::new();
        let mut look = |machine: &Machine, command: &str| {
            let before = machine.fakes.files.snapshot();
            machine.run(&[&[command], flags].concat());
            let differences = fake::diff(&before, &machine.fakes.files.snapshot());
            if !differences.is_empty() {
                wrong.push(format!("`{command}` changed {differences:#?}"));
            }
        };
        for command in ["check", "plan"] {
            look(&machine, command);
        }
        machine.run(&install(at));
        for command in ["check", "plan"] {
            look(&machine, command);
        }
        wrong
    });
}

#[test]
fn second_install_has_no_changes() {
    each(|at| {
        let machine = machine(at);
        let first = machine.run(&install(at));
        let before = machine
            .fakes
            .files
            .snapshot()
            .without(&["/var/lib/gpu-bootstrap", "/run"]);
        let second = machine.run(&[&install(at)[..], &["--format", "json"]].concat());
        let after = machine
            .fakes
            .files
            .snapshot()
            .without(&["/var/lib/gpu-bootstrap", "/run"]);
        let mut wrong = Vec::new();
        if (first.exit, second.exit) != (0, 0) {
            wrong.push(format!(
                "exit {} then {}\n{}{}\n{}{}",
                first.exit, second.exit, first.out, first.err, second.out, second.err
            ));
        }
        let document: serde_json::Value = serde_json::from_str(&second.out).unwrap_or_default();
        for step in document["steps"].as_array().expect("steps") {
            if step["outcome"] != "satisfied" && step["outcome"] != "not-applicable" {
                wrong.push(format!("{step}"));
            }
        }
        wrong.extend(package_work(&second));
        wrong.extend(fake::diff(&before, &after));
        wrong
    });
}

#[test]
fn uninstall_restores_the_machine() {
    each(|at| {
        let machine = machine(at);
        let before = machine.snapshot();
        let installed = machine.run(&install(at));
        let undone = machine.run(&["uninstall"]);
        let mut wrong = fake::diff(&before, &machine.snapshot());
        if (installed.exit, undone.exit) != (0, 0) {
            wrong.push(format!(
                "exit {} then {}: {}{}",
                installed.exit, undone.exit, undone.out, undone.err
            ));
        }
        wrong
    });
}

/// Every machine change and every journal write is a mutation. Killing a process right before the nth mutation, for every n,
/// therefore covers a kill after every record and every change. [`points`] selects the values of n.
#[test]
fn the_next_install_finishes_a_killed_one() {
    each_killed(|at, n| {
        let machine = machine(at);
        machine.stop_at(n);
        machine.run(&install(at));
        machine.go_on();
        let again = machine.run(&install(at));
        (again, machine)
    });
}

/// The same, followed by `uninstall`, because the journal contains all changes of the killed process.
#[test]
fn uninstall_undoes_a_killed_install() {
    for (at, points) in points() {
        let untouched = machine(at).snapshot();
        let wrong = in_parallel(&points, |n| {
            let machine = machine(at);
            machine.stop_at(*n);
            machine.run(&install(at));
            machine.go_on();
            let undone = machine.run(&["uninstall"]);
            evaluate(*n, &undone, fake::diff(&untouched, &machine.snapshot()))
        });
        assert!(
            wrong.is_empty(),
            "{:?}:\n{}",
            MACHINES[at],
            wrong.join("\n")
        );
    }
}

const AMPERE: &str = "10de:20b5";
const HOPPER: &str = "10de:2330";

/// Changes of `mig.layout` on two GPUs: the model, the layout before, the layout afterwards, and the distance of the mutations to
/// kill at. An empty text is no setting.
const MIG_CHANGES: [(&str, &str, &str, usize); 6] = rows! {
    AMPERE, "", "all-balanced", 1;
    AMPERE, "all-1g.10gb", "all-3g.40gb", 7;
    AMPERE, "all-balanced", "", 7;
    HOPPER, "", "all-balanced", 7;
    HOPPER, "all-1g.10gb", "all-3g.40gb", 7;
    HOPPER, "all-balanced", "", 7;
};

/// Kills the change of a MIG layout right before a mutation.
#[test]
fn killed_mig_change_is_finished_or_undone() {
    for (index, (gpu, from, to, distance)) in MIG_CHANGES.into_iter().enumerate() {
        let bare = || {
            let (base, differs, _) = MACHINES[MACHINES.len() - 1];
            let differs = differs.replace(AMPERE, gpu);
            Machine::new(describe(base, differs.parse::<Table>().expect("TOML")))
        };
        let install = |machine: &Machine, layout: &str| match layout {
            "" => machine.run(&["install"]),
            _ => machine.run(&["install", "--set", &format!("mig.layout={layout}")]),
        };
        let prepared = || {
            let machine = bare();
            let ran = install(&machine, from);
            assert_eq!(ran.exit, 0, "{}", told(&ran));
            machine
        };
        let untouched = bare().snapshot();
        let reference = prepared();
        let count = reference.counting(|machine| drop(install(machine, to)));
        let wanted = reference.snapshot();
        assert!(count > 5, "{gpu}: `{to}` after `{from}` changes nothing");
        let points = every(distance, index, count);
        let wrong = in_parallel(&points, |n| {
            let machine = prepared();
            machine.stop_at(*n);
            install(&machine, to);
            machine.go_on();
            let again = install(&machine, to);
            let mut wrong = evaluate(*n, &again, fake::diff(&wanted, &machine.snapshot()));
            let undone = machine.run(&["uninstall"]);
            wrong.extend(evaluate(
                *n,
                &undone,
                fake::diff(&untouched, &machine.snapshot()),
            ));
            wrong
        });
        assert!(
            wrong.is_empty(),
            "{gpu}, `{from}` to `{to}`:\n{}",
            wrong.join("\n")
        );
    }
}

/// The next uninstall finishes a killed one.
#[test]
fn the_next_uninstall_finishes_a_killed_one() {
    let before = machine(0);
    let untouched = before.snapshot();
    before.run(&install(0));
    let points = sample(0, before.count(&["uninstall"]));
    let wrong = in_parallel(&points, |n| {
        let machine = machine(0);
        machine.run(&install(0));
        machine.stop_at(*n);
        machine.run(&["uninstall"]);
        machine.go_on();
        let undone = machine.run(&["uninstall"]);
        evaluate(*n, &undone, fake::diff(&untouched, &machine.snapshot()))
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The mutations to kill at: every fifth on the first machine, and every fifteenth on the others, each with another offset, so
/// that together they cover more kinds of changes. `EVERY_MUTATION` selects all of the first machine. The offset changes daily
/// or is set with `SEED`. A failure reports its mutation.
fn points() -> Vec<(usize, Vec<u64>)> {
    (0..MACHINES.len())
        .map(|at| (at, sample(at, machine(at).count(&install(at)))))
        .collect()
}

fn sample(at: usize, count: u64) -> Vec<u64> {
    let step = match at {
        0 if std::env::var_os("EVERY_MUTATION").is_some() => 1,
        0 => 5,
        _ => 15,
    };
    every(step, at, count)
}

/// Every `step`th mutation.
fn every(step: usize, offset: usize, count: u64) -> Vec<u64> {
    let seed: u64 = match std::env::var("SEED") {
        Ok(seed) => seed.parse().expect("SEED is a number"),
        Err(_) => {
            let now = std::time::SystemTime::now();
            let since = now.duration_since(std::time::UNIX_EPOCH);
            since.expect("a clock after 1970").as_secs() / 86_400
        }
    };
    let first = 1 + (offset as u64 + seed) % step as u64;
    let points: Vec<u64> = (first..=count).step_by(step).collect();
    assert!(!points.is_empty(), "machine {offset} is never killed");
    points
}

fn each_killed(work: impl Fn(usize, u64) -> (Ran, Machine) + Sync) {
    for (at, points) in points() {
        let reference = machine(at);
        reference.run(&install(at));
        let wanted = reference.snapshot();
        let wrong = in_parallel(&points, |n| {
            let (ran, machine) = work(at, *n);
            evaluate(*n, &ran, fake::diff(&wanted, &machine.snapshot()))
        });
        assert!(
            wrong.is_empty(),
            "{:?}:\n{}",
            MACHINES[at],
            wrong.join("\n")
        );
    }
}

fn evaluate(n: u64, ran: &Ran, differences: Vec<String>) -> Vec<String> {
    let mut wrong = differences;
    if ran.exit != 0 {
        wrong.push(told(ran));
    }
    wrong
        .iter()
        .map(|line| format!("killed at {n}: {line}"))
        .collect()
}
