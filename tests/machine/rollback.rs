//! Rollback if the repositories no longer have the packages of the previous driver.

use gpu_bootstrap::host::fake::FakeFiles;
use toml::Table;

use crate::{
    archive::LISTS,
    build::describe,
    dnf::CACHE,
    dpkg,
    machine::{Machine, Ran},
    scenarios::told,
    state::{State, list, lock, text},
};

/// Removes packages from the package lists, selected by paragraph.
pub fn forget(files: &FakeFiles, is_one: impl Fn(&str) -> bool) {
    for name in list(files, LISTS) {
        let path = format!("{LISTS}/{name}");
        let whole = text(files, &path).unwrap_or_default();
        let kept: Vec<&str> = whole.split("\n\n").filter(|part| !is_one(part)).collect();
        files.put(&path, kept.join("\n\n"));
    }
}

const OTHER: [&str; 4] = [
    "--set",
    "driver.source=nvidia",
    "--set",
    "driver.branch=595",
];

/// A node with a validated driver.
fn node() -> Machine {
    let machine = Machine::new(describe("debian-12-h100", Table::new()));
    let ran = machine.run(&[
        "install",
        "--set",
        "driver.source=nvidia",
        "--format",
        "json",
    ]);
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    machine
}

/// Reboots, and resumes like the resume unit.
fn resumed(machine: &Machine) -> Ran {
    machine.reboot();
    let words = machine.resume_command().expect("the run continues");
    let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
    args.extend(["--format", "json"]);
    machine.run(&args)
}

/// For each package manager: a node with validated driver 580.178.04, the flags for another driver, and a driver package.
fn nodes() -> [(Machine, Vec<&'static str>, &'static str); 2] {
    let almalinux = Machine::new(describe("almalinux-9-l4-archive", Table::new()));
    let ran = almalinux.run(&["install", "--format", "json"]);
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    let other = vec!["--set", "driver.branch=595"];
    [
        (node(), OTHER.to_vec(), "libcuda1"),
        (almalinux, other, "nvidia-driver-cuda-libs"),
    ]
}

fn plan(machine: &Machine) -> Ran {
    machine.run(&[&["plan", "--format", "json"], &OTHER[..]].concat())
}

#[test]
fn plan_reports_packages_missing_for_the_rollback() {
    let machine = node();
    let there = plan(&machine);
    let way = "the run rolls back to driver 580.178.04";
    assert!(there.out.contains(way), "{}", told(&there));
    forget(&machine.fakes.files, |part| {
        part.starts_with("Package: libcuda1\nVersion: 580.178.04")
    });
    let gone = plan(&machine);
    for words in [
        "no rollback to driver 580.178.04 is possible",
        "no repository offers libcuda1 580.178.04-1 any longer, or another version of its branch",
    ] {
        assert!(gone.out.contains(words), "{words}: {}", told(&gone));
    }
}

/// Reboots into another driver, which fails, and resumes the run.
fn with_a_bad_driver(machine: &Machine, other: &[&str], meanwhile: impl Fn(&mut State)) -> Ran {
    let ran = machine.run(&[&["install", "--reboot", "--format", "json"], other].concat());
    assert_eq!(ran.exit, 8, "{}", told(&ran));
    {
        let mut state = lock(&machine.state);
        state.faults.bad_driver = Some("595".to_owned());
        meanwhile(&mut state);
    }
    resumed(machine)
}

/// Another version of the previous driver's branch.
fn newer(text: &str) -> String {
    text.replace("580.178.04", "580.190.01")
}

/// Replaces the previous driver with that version in the repositories.
fn supersede(files: &FakeFiles, state: &mut State) {
    for package in &mut state.archive.packages {
        package.version = newer(&package.version);
        package.depends = package.depends.iter().map(|one| newer(one)).collect();
        package.files = package.files.iter().map(|one| newer(one)).collect();
        package.contents = (package.contents.iter())
            .map(|(path, text)| (newer(path), newer(text)))
            .collect();
        package.links = (package.links.iter())
            .map(|(path, to)| (newer(path), newer(to)))
            .collect();
    }
    supersede_in_lists(files);
}

/// Does the same in the package lists.
fn supersede_in_lists(files: &FakeFiles) {
    for directory in [LISTS, CACHE] {
        for name in list(files, directory) {
            let path = format!("{directory}/{name}");
            let whole = text(files, &path).unwrap_or_default();
            files.put(&path, newer(&whole));
        }
    }
}

#[test]
fn rollback_without_exact_version_uses_newest_of_branch() {
    for (machine, other, package) in nodes() {
        let files = &machine.fakes.files;
        let ran = with_a_bad_driver(&machine, &other, |state| supersede(files, state));
        assert_eq!(ran.exit, 6, "{}", told(&ran));
        for words in [
            "rolling back to driver 580.190.01: no repository offers",
            "driver 580.190.01 is installed again and passed validation",
        ] {
            let said = [ran.out.as_str(), ran.err.as_str()].concat();
            assert!(said.contains(words), "{words}: {}", told(&ran));
        }
        let version = dpkg::installed(files, package).expect("the package is installed");
        assert!(version.contains("580.190.01"), "{version}");
        // The installed driver is now the validated one.
        let next = machine.run(&[&["plan", "--format", "json"], &other[..]].concat());
        let way = "the run rolls back to driver 580.190.01 (`driver.rollback`)";
        assert!(next.out.contains(way), "{}", told(&next));
        let ran = machine.run(&["uninstall", "--format", "json"]);
        assert_eq!(ran.exit, 0, "{}", told(&ran));
    }
}

#[test]
fn plan_reports_the_rollback_version() {
    for (machine, other, _) in nodes() {
        let plan = || machine.run(&[&["plan", "--format", "json"], &other[..]].concat());
        let there = plan();
        let way = "the run rolls back to driver 580.178.04 (`driver.rollback`)";
        assert!(there.out.contains(way), "{}", told(&there));
        supersede_in_lists(&machine.fakes.files);
        let newer = plan();
        let way = "the run rolls back to driver 580.190.01 (`driver.rollback`), the newest of its branch: \
                   no repository offers";
        assert!(newer.out.contains(way), "{}", told(&newer));
    }
}

#[test]
fn rollback_ignores_missing_non_driver_packages() {
    const TOOLKIT: &str = "nvidia-container-toolkit";
    let machine = node();
    let ran = with_a_bad_driver(&machine, &OTHER, |state| {
        dpkg::remove(&machine.fakes.files, state, TOOLKIT, true);
        (state.archive.packages).retain(|package| package.name != TOOLKIT);
        let line = format!("Package: {TOOLKIT}\n");
        forget(&machine.fakes.files, |part| part.contains(&line));
    });
    assert_ne!(ran.exit, 0, "{}", told(&ran));
    let goes_on = "the next run continues the rollback to driver 580.178.04";
    assert!(ran.out.contains(goes_on), "{}", told(&ran));
    let next = plan(&machine);
    assert!(next.out.contains("rolls back to"), "{}", told(&next));
}

#[test]
fn branch_without_repository_prevents_rollback() {
    let machine = node();
    let ran = with_a_bad_driver(&machine, &OTHER, |state| {
        let is_old = |version: &str| version.starts_with("580.178.04");
        (state.archive.packages).retain(|package| !is_old(&package.version));
        forget(&machine.fakes.files, |part| {
            part.contains("\nVersion: 580.178.04")
        });
    });
    assert_ne!(ran.exit, 0, "{}", told(&ran));
    for words in [
        "no rollback to driver 580.178.04 is possible: no repository offers",
        "add a repository with these packages (`repositories`)",
    ] {
        assert!(ran.out.contains(words), "{words}: {}", told(&ran));
    }
    // The next run uses the driver of the settings.
    let next = plan(&machine);
    assert!(!next.out.contains("rolls back to"), "{}", told(&next));
}
