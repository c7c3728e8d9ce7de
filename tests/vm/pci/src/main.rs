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

/// Serve the PCI functions of a test machine
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Open a socket for each function, print `ready`, and serve until SIGTERM
    Serve {
        /// Machine table; `devices.toml` is in the same directory
        #[arg(long, value_name = "FILE")]
        machines: PathBuf,
        /// Machine whose functions are served
        #[arg(long, value_name = "NAME")]
        machine: String,
        /// Directory for the sockets, each named ADDRESS.sock
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
            // If standard error is closed, the message is lost, but the exit code still reports the error.
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
            // Without a receiver the process is already exiting.
            drop(signalled.send(Ok(())));
        }
    });
    let _serving = serve::start(dir, &functions, &end)?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "ready")
        .and_then(|()| stdout.flush())
        .context("cannot report that the sockets are ready")?;
    ended.recv().context("the signal thread has exited")?
}
