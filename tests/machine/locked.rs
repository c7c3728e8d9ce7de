//! Machines that are installed from the same lock file while the repositories move on.

use std::collections::BTreeMap;

use toml::{Table, Value};

use crate::{build::describe, dpkg, machine::Machine};

const LOCK: &str = "/root/node.lock";

/// A machine with the packages of this archive and these files.
fn machine(base: &str, archive: &str, files: &[(&str, &str)]) -> Machine {
    let mut about = Table::new();
    about.insert("archive".to_owned(), archive.into());
    let files = files.iter();
    let files = files.map(|(path, text)| ((*path).to_owned(), Value::from(*text)));
    about.insert("files".to_owned(), Value::Table(files.collect()));
    Machine::new(describe(base, about))
}

/// Installed packages with their versions.
fn packages(machine: &Machine) -> BTreeMap<String, String> {
    let all = dpkg::read(&machine.fakes.files).into_iter();
    all.filter(|(_, entry)| entry.there())
        .map(|(name, entry)| (name, entry.version))
        .collect()
}

fn run(machine: &Machine, args: &[&str]) -> String {
    let ran = machine.run(args);
    assert_eq!(ran.exit, 0, "{args:?}: {}{}", ran.out, ran.err);
    ran.out
}

#[test]
fn machines_with_the_same_lock_are_equal() {
    for (base, archive) in rows! {
        "debian-12-h100", "debian-12";
        "almalinux-9-l4-archive", "almalinux-9";
    } {
        let first = machine(base, archive, &[]);
        run(&first, &["install"]);
        let lock = run(&first, &["lock"]);
        let moved = format!("{archive}-moved");

        let newest = machine(base, &moved, &[]);
        run(&newest, &["install"]);
        assert_ne!(packages(&newest), packages(&first), "{base}");

        let second = machine(base, &moved, &[(LOCK, &lock)]);
        run(&second, &["install", "--lock", LOCK]);
        assert_eq!(packages(&second), packages(&first), "{base}");
        assert_eq!(run(&second, &["lock"]), lock, "{base}");
    }
}

#[test]
fn lock_of_another_release_is_rejected() {
    let first = machine("debian-12-h100", "debian-12", &[]);
    run(&first, &["install"]);
    let lock = run(&first, &["lock"]).replace("release = \"12\"", "release = \"13\"");
    let second = machine("debian-12-h100", "debian-12", &[(LOCK, &lock)]);
    let before = second.snapshot();
    let ran = second.run(&["install", "--lock", LOCK]);
    assert_eq!(ran.exit, 5, "{}", ran.err);
    let said = "system debian 13 in the lock, debian 12 on this machine";
    let err: Vec<&str> = ran.err.split_whitespace().collect();
    assert!(err.join(" ").contains(said), "{}", ran.err);
    assert!(gpu_bootstrap::host::fake::diff(&before, &second.snapshot()).is_empty());
}
