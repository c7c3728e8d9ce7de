//! Archives that no longer have the packages of the driver before.

use gpu_bootstrap::host::fake::FakeFiles;
use toml::Table;

use crate::{
    archive::LISTS,
    build::describe,
    dpkg,
    machine::{Machine, Ran},
    scenarios::told,
    state::{State, list, lock, text},
};

/// Takes packages out of the lists of the machine, by the paragraph of each.
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

/// A node with a driver that was proven.
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

fn plan(machine: &Machine) -> Ran {
    machine.run(&[&["plan", "--format", "json"], &OTHER[..]].concat())
}

#[test]
fn a_plan_names_what_nobody_offers_any_more_for_the_way_back() {
    let machine = node();
    let there = plan(&machine);
    let way = "the run goes back to driver 580.178.04";
    assert!(there.out.contains(way), "{}", told(&there));
    forget(&machine.fakes.files, |part| {
        part.starts_with("Package: libcuda1\nVersion: 580.178.04")
    });
    let gone = plan(&machine);
    for words in [
        "there is no way back to driver 580.178.04",
        "no repository offers libcuda1 580.178.04-1 any more",
    ] {
        assert!(gone.out.contains(words), "{words}: {}", told(&gone));
    }
}

/// Reboots into another driver, which fails, and runs the run that resumes.
fn with_a_bad_driver(machine: &Machine, meanwhile: impl Fn(&mut State)) -> Ran {
    let ran = machine.run(&[&["install", "--reboot", "--format", "json"], &OTHER[..]].concat());
    assert_eq!(ran.exit, 8, "{}", told(&ran));
    {
        let mut state = lock(&machine.state);
        state.faults.bad_driver = Some("595".to_owned());
        meanwhile(&mut state);
    }
    machine.reboot();
    machine.guard();
    let words = machine.resume_command().expect("the run continues");
    let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
    args.extend(["--format", "json"]);
    machine.run(&args)
}

#[test]
fn a_way_back_goes_on_where_only_a_package_beside_the_driver_is_missing() {
    const TOOLKIT: &str = "nvidia-container-toolkit";
    let machine = node();
    let ran = with_a_bad_driver(&machine, |state| {
        dpkg::remove(&machine.fakes.files, state, TOOLKIT, true);
        (state.archive.packages).retain(|package| package.name != TOOLKIT);
        let line = format!("Package: {TOOLKIT}\n");
        forget(&machine.fakes.files, |part| part.contains(&line));
    });
    assert_ne!(ran.exit, 0, "{}", told(&ran));
    let goes_on = "the next run goes on with the way back to driver 580.178.04";
    assert!(ran.out.contains(goes_on), "{}", told(&ran));
    let next = plan(&machine);
    assert!(next.out.contains("goes back to"), "{}", told(&next));
}

#[test]
fn a_way_back_to_packages_that_nobody_offers_ends() {
    let machine = node();
    let ran = with_a_bad_driver(&machine, |state| {
        let is_old = |version: &str| version.starts_with("580.178.04");
        (state.archive.packages).retain(|package| !is_old(&package.version));
        forget(&machine.fakes.files, |part| {
            part.contains("\nVersion: 580.178.04")
        });
    });
    assert_ne!(ran.exit, 0, "{}", told(&ran));
    let ended = "the way back to driver 580.178.04 has failed, too";
    assert!(ran.out.contains(ended), "{}", told(&ran));
    // The next run wants what the settings say.
    let next = plan(&machine);
    assert!(!next.out.contains("goes back to"), "{}", told(&next));
}
