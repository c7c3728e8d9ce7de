//! `vm-pci`: the PCI functions of a test machine, for QEMU's device `vfio-user-pci`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use gpu_bootstrap_vm_pci::{serve, table};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Serves the PCI functions of a test machine.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Open a socket for each function, say `ready`, and answer until SIGTERM
    Serve {
        /// The table of machines; `devices.toml` is beside it
        #[arg(long, value_name = "FILE")]
        machines: PathBuf,
        /// The machine whose functions are served
        #[arg(long, value_name = "NAME")]
        machine: String,
        /// Where the sockets are made, each called ADDRESS.sock
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    let Command::Serve {
        machines,
        machine,
        dir,
    } = Cli::parse().command;
    match run(&machines, &machine, &dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, nobody can read the message; the exit code still reports
            // the error.
            drop(writeln!(std::io::stderr(), "error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(machines: &Path, machine: &str, dir: &Path) -> Result<()> {
    let functions = table::functions_of(machines, machine)?;
    let (end, ended) = channel();
    // Before the first socket, so that an early signal leaves none.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let signalled = end.clone();
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            // Without a receiver the process is about to end anyway.
            drop(signalled.send(Ok(())));
        }
    });
    let _serving = serve::start(dir, &functions, &end)?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "ready")
        .and_then(|()| stdout.flush())
        .context("cannot say that the sockets are ready")?;
    ended.recv().context("nobody is left to say when to end")?
}
