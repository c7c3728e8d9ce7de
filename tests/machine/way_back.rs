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

/// Where the files of the driver before are.
const KEPT: &str = "/var/lib/gpu-bootstrap/way-back";

/// Reboots, and continues as the unit does.
fn resumed(machine: &Machine) -> Ran {
    machine.reboot();
    let words = machine.resume_command().expect("the run continues");
    let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
    args.extend(["--format", "json"]);
    machine.run(&args)
}

/// A node of each package manager with driver 580.178.04 that was proven, the flags for another one, and a
/// package of the driver.
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

/// From now on no repository offers the driver before.
fn withdraw(machine: &Machine) {
    let mut state = lock(&machine.state);
    for package in &mut state.archive.packages {
        if package.version.contains("580.178.04") {
            package.repo = "gone".to_owned();
        }
    }
}

#[test]
fn the_files_of_the_driver_before_lead_back_to_it_when_nobody_offers_it_any_more() {
    for (machine, other, package) in nodes() {
        let files = &machine.fakes.files;
        let moved = [&["install", "--reboot", "--format", "json"], &other[..]].concat();
        let ran = machine.run(&moved);
        assert_eq!(ran.exit, 8, "{}", told(&ran));
        let list = text(files, &format!("{KEPT}/kept.json")).expect("a list");
        assert!(list.contains(package), "{list}");
        withdraw(&machine);
        lock(&machine.state).faults.bad_driver = Some("595".to_owned());
        let ran = resumed(&machine);
        assert_eq!(ran.exit, 6, "{}", told(&ran));
        let back = "driver 580.178.04 is back, and has passed its proof";
        assert!(ran.out.contains(back), "{}", told(&ran));
        let version = dpkg::installed(files, package).expect("it is there");
        assert!(version.contains("580.178.04"), "{version}");
        // They stay while this driver does: the next attempt needs the same way back.
        let plan = machine.run(&[&["plan", "--format", "json"], &other[..]].concat());
        let way = "the run goes back to driver 580.178.04";
        assert!(plan.out.contains(way), "{}", told(&plan));
        let ran = machine.run(&["uninstall", "--format", "json"]);
        assert_eq!(ran.exit, 0, "{}", told(&ran));
        assert!(list_of(files).is_empty());
    }
}

#[test]
fn what_was_kept_goes_when_the_new_driver_is_proven() {
    for (machine, other, _) in nodes() {
        let files = &machine.fakes.files;
        let moved = [&["install", "--reboot", "--format", "json"], &other[..]].concat();
        let plan = machine.run(&[&["plan", "--format", "json"], &other[..]].concat());
        let kept = "in all, are kept in `/var/lib/gpu-bootstrap/way-back` until then";
        assert!(plan.out.contains(kept), "{}", told(&plan));
        let ran = machine.run(&moved);
        assert_eq!(ran.exit, 8, "{}", told(&ran));
        assert!(!list_of(files).is_empty());
        let ran = resumed(&machine);
        assert_eq!(ran.exit, 0, "{}", told(&ran));
        assert!(list_of(files).is_empty(), "{:?}", list_of(files));
    }
}

#[test]
fn a_kept_file_that_somebody_has_changed_is_not_installed() {
    let machine = node();
    let files = &machine.fakes.files;
    let moved = [&["install", "--reboot", "--format", "json"], &OTHER[..]].concat();
    let ran = machine.run(&moved);
    assert_eq!(ran.exit, 8, "{}", told(&ran));
    withdraw(&machine);
    lock(&machine.state).faults.bad_driver = Some("595".to_owned());
    let file = format!("{KEPT}/libcuda1_580.178.04-1_amd64.deb");
    files.put(
        &file,
        format!("{}\n", text(files, &file).expect("it is kept")),
    );
    let ran = resumed(&machine);
    let why = "its content is not what was downloaded";
    assert!(ran.out.contains(why), "{}", told(&ran));
    let version = dpkg::installed(files, "libcuda1").expect("it is there");
    assert!(version.starts_with("595"), "{version}");
}

fn list_of(files: &FakeFiles) -> Vec<String> {
    list(files, KEPT)
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
    resumed(machine)
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
        // Somebody has removed what was kept of it.
        machine.fakes.files.take(KEPT);
    });
    assert_ne!(ran.exit, 0, "{}", told(&ran));
    let ended = "the way back to driver 580.178.04 has failed, too";
    assert!(ran.out.contains(ended), "{}", told(&ran));
    // The next run wants what the settings say.
    let next = plan(&machine);
    assert!(!next.out.contains("goes back to"), "{}", told(&next));
}
