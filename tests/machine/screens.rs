//! The human-readable output on four machines: `tests/cli/node-*.snap`. `tests/cli.rs` tests the line wrapping.

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

/// The module did not compile in the package script, which compiled it because DKMS also manages another module. The next run
/// has a working compiler.
fn half_done() -> Machine {
    let differs = "faults = { dkms = true }\nfiles = { '/var/lib/dkms/zfs/2.1.11/source' = '' }";
    let machine = Machine::new(describe(BASE, differs.parse().expect("TOML")));
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

/// An unattended upgrade replaced a library of the loaded module.
fn broken() -> Machine {
    const DIRECTORY: &str = "/usr/lib/x86_64-linux-gnu";
    let machine = ready();
    let files = &machine.fakes.files;
    let link = format!("{DIRECTORY}/libnvidia-ml.so.1");
    files.put(
        &format!("{DIRECTORY}/nvidia/current/libnvidia-ml.so.535.999.01"),
        "",
    );
    files.take(&link);
    files.put_link(&link, "nvidia/current/libnvidia-ml.so.535.999.01");
    machine
}

/// cloud-init must not wait for a run that may never start.
#[test]
fn wait_without_a_run_ends_with_the_reason() {
    let ran = bare().run(&["status", "--wait"]);
    assert_eq!(ran.exit, 0);
    assert!(ran.err.contains("no run was started"), "{}", ran.err);
}

const WIDTH: usize = 120;

/// The number of lines of a plan that are compared. The plan of the bare machine is compared completely.
const PLAN: usize = 20;

/// Returns the first lines of an output.
fn beginning(text: &str, count: usize) -> &str {
    let last = text.match_indices('\n').nth(count.saturating_sub(1));
    last.map_or(text, |(end, _)| &text[..=end])
}

/// Runs the commands of an administrator, and returns the screen and the exit codes. Log lines are omitted, because several
/// steps write them concurrently.
fn screen(machine: &Machine, plan: usize) -> (String, Vec<u8>) {
    let (mut text, mut exits) = (String::new(), Vec::new());
    for line in ["status", "check", "plan", "install", "check -v"] {
        let words: Vec<&str> = line.split(' ').collect();
        let ran = machine.run_in_columns(&words, WIDTH);
        let shown = match line {
            "plan" => beginning(&ran.out, plan),
            _ => &ran.out,
        };
        text.push_str(&format!("$ gpu-bootstrap {line}\n{shown}"));
        let talk: Vec<&str> = (ran.err.lines())
            .filter(|line| !line.starts_with('['))
            .collect();
        if talk.iter().any(|line| !line.is_empty()) {
            text.push_str(&format!("--- standard error\n{}\n", talk.join("\n")));
        }
        text.push_str(&format!("--- exit {}\n\n", ran.exit));
        exits.push(ran.exit);
    }
    (text, exits)
}

/// Compares a machine with its expected screen, and with the exit codes of `status`, `check`, `plan`, `install` and a second
/// `check`.
fn session(name: &str, machine: &Machine, expected: [u8; 5]) {
    let plan = if name == "bare" { usize::MAX } else { PLAN };
    let (text, exits) = screen(machine, plan);
    assert_eq!(exits, expected, "{text}");
    // Only sentences are wrapped, not paths and commands.
    let wide: Vec<&str> = (text.lines())
        .filter(|line| line.chars().count() > WIDTH && line.trim_start().contains(' '))
        .filter(|line| !line.trim_start().starts_with(['+', '-', '~']))
        .collect();
    assert!(wide.is_empty(), "wider than {WIDTH}: {wide:#?}");
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../cli");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.add_filter(
        r"\b[0-9]+ min( [0-9]+ s)?\b|\b[0-9]+(\.[0-9])? s\b",
        "[DURATION]",
    );
    settings.add_filter(r"[0-9-]{10} [0-9:]{8} UTC", "[TIME] UTC");
    // A new finding changes only the screen of the ready machine, if it passes there.
    let hidden = if name == "ready" { "skip" } else { "skip|pass" };
    settings.add_filter(&format!(r"(?m)^(?:{hidden})  .*\n(?: +.*\n)*\n"), "");
    settings.add_filter(r" of [0-9]+ examined", " of [TOTAL] examined");
    settings.bind(|| insta::assert_snapshot!(format!("node-{name}"), text));
}

#[test]
fn a_bare_node() {
    session("bare", &bare(), [0, 4, 4, 0, 0]);
}

#[test]
fn a_half_done_node() {
    session("half-done", &half_done(), [0, 4, 4, 0, 0]);
}

#[test]
fn a_broken_node() {
    session("broken", &broken(), [0, 4, 5, 5, 4]);
}

#[test]
fn a_ready_node() {
    session("ready", &ready(), [0, 0, 0, 0, 0]);
}
