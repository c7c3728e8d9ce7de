//! What a person sees of four machines, as text at two widths: `tests/cli/node-*.snap`.

use crate::{
    build::describe,
    machine::Machine,
    state::{Faults, lock},
};
use toml::Table;

const BASE: &str = "debian-12-h100";

fn bare() -> Machine {
    Machine::new(describe(BASE, Table::new()))
}

/// The module did not compile. The next run will find a compiler that works.
fn half_done() -> Machine {
    let faults = "faults = { dkms = true }".parse().expect("TOML");
    let machine = Machine::new(describe(BASE, faults));
    assert_eq!(machine.run(&["install"]).exit, 6);
    lock(&machine.state).faults = Faults::default();
    machine
}

fn ready() -> Machine {
    let machine = bare();
    let ran = machine.run(&["install"]);
    assert_eq!(ran.exit, 0, "{}", ran.err);
    machine
}

/// An upgrade in the background replaced a library of the loaded module.
fn broken() -> Machine {
    const FOLDER: &str = "/usr/lib/x86_64-linux-gnu";
    let machine = ready();
    let files = &machine.fakes.files;
    let link = format!("{FOLDER}/libnvidia-ml.so.1");
    files.put(
        &format!("{FOLDER}/nvidia/current/libnvidia-ml.so.535.999.01"),
        "",
    );
    files.take(&link);
    files.put_link(&link, "nvidia/current/libnvidia-ml.so.535.999.01");
    machine
}

/// Runs the commands that a person would run there. Log lines are left out: several steps write
/// them at the same time.
fn screen(machine: &Machine, width: usize) -> String {
    let mut text = String::new();
    for line in ["status", "check", "plan", "install", "check -v"] {
        let words: Vec<&str> = line.split(' ').collect();
        let ran = machine.run_in_columns(&words, width);
        text.push_str(&format!("$ gpu-bootstrap {line}\n{}", ran.out));
        let talk: Vec<&str> = (ran.err.lines())
            .filter(|line| !line.starts_with('['))
            .collect();
        if talk.iter().any(|line| !line.is_empty()) {
            text.push_str(&format!("--- standard error\n{}\n", talk.join("\n")));
        }
        text.push_str(&format!("--- exit {}\n\n", ran.exit));
    }
    text
}

fn session(name: &str, machine: impl Fn() -> Machine) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../cli");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.add_filter(
        r"\b[0-9]+ min( [0-9]+ s)?\b|\b[0-9]+(\.[0-9])? s\b",
        "[DURATION]",
    );
    settings.add_filter(r"[0-9-]{10} [0-9:]{8} UTC", "[TIME] UTC");
    for width in [80, 120] {
        let text = screen(&machine(), width);
        let wide: Vec<&str> = (text.lines())
            .filter(|line| line.chars().count() > width && line.trim_start().contains(' '))
            .collect();
        settings.bind(|| insta::assert_snapshot!(format!("node-{name}-{width}"), text));
        // Files and commands are not broken; sentences are.
        let sentences = wide
            .iter()
            .filter(|line| !line.trim_start().starts_with(['+', '-', '~']));
        assert_eq!(sentences.count(), 0, "wider than {width}: {wide:#?}");
    }
}

#[test]
fn a_bare_node() {
    session("bare", bare);
}

#[test]
fn a_half_done_node() {
    session("half-done", half_done);
}

#[test]
fn a_broken_node() {
    session("broken", broken);
}

#[test]
fn a_ready_node() {
    session("ready", ready);
}
