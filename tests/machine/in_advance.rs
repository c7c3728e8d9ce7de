//! Downloads of the packages of the following transaction, while the current transaction is performed.

use gpu_bootstrap::host::{Cmd, fake::failed};
use toml::Table;

use crate::{
    apt::{self, WITHOUT_LOCKS},
    build::describe,
    machine::{Machine, Ran},
    state::lock,
};

/// A bare machine on which DKMS compiles the driver, so that Docker is installed in a second transaction.
fn machine() -> Machine {
    Machine::new(describe("debian-12-h100", Table::new()))
}

fn is_in_advance(cmd: &&Cmd) -> bool {
    cmd.args.iter().any(|arg| arg == WITHOUT_LOCKS)
}

/// The steps of all package transactions, each with the packages on its command line.
fn transactions(ran: &Ran) -> Vec<(&'static str, Vec<&str>)> {
    let has = |cmd: &Cmd, word: &str| cmd.args.iter().any(|arg| arg == word);
    (ran.commands.iter())
        .filter(|cmd| cmd.program == "apt-get" && has(cmd, "install"))
        .filter(|cmd| !has(cmd, "-s") && !has(cmd, "--print-uris"))
        .map(|cmd| {
            let kind = match (is_in_advance(&cmd), has(cmd, "--download-only")) {
                (true, _) => "download in advance",
                (false, true) => "download",
                (false, false) => "install",
            };
            let packages = cmd.args.iter().skip_while(|arg| *arg != "--").skip(1);
            (kind, packages.map(String::as_str).collect())
        })
        .collect()
}

#[test]
fn packages_of_the_following_transaction_are_downloaded_in_advance() {
    let ran = machine().run(&["install"]);
    assert_eq!(ran.exit, 0, "{}", ran.err);
    let found = transactions(&ran);
    let kinds: Vec<&str> = found.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(
        kinds,
        [
            "download",
            "install",
            "download in advance",
            "download",
            "install"
        ]
    );
    let has = |at: usize, name: &str| found[at].1.iter().any(|one| one.starts_with(name));
    assert!(has(1, "nvidia-kernel-dkms="), "{found:#?}");
    assert!(has(2, "docker.io="), "{found:#?}");
    assert_eq!(found[2].1, found[3].1);
}

#[test]
fn failed_download_in_advance_does_not_fail_the_run() {
    let machine = machine();
    let state = machine.state.clone();
    (machine.fakes.exec).on_result("apt-get", move |cmd, files| {
        if is_in_advance(&cmd) {
            let error = "E: Failed to fetch http://debian.example.org/docker.deb  503\n";
            return Ok(failed(100, error));
        }
        apt::apt_get(cmd, files, &mut lock(&state))
    });
    let ran = machine.run(&["install"]);
    assert_eq!(ran.exit, 0, "{}", ran.err);
    assert_eq!(ran.commands.iter().filter(is_in_advance).count(), 1);
}
