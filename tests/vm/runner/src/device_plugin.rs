//! NVIDIA's device plugin and its MPS control daemon, compiled from their own Go module. They use the GPUs and MIG devices of the
//! fake NVML.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::machine::Machine;
use crate::sh::{Script, path, script};
use crate::simulation::INSIDE;
use crate::{go_module, golang};

/// The newest version that the Go module proxy serves completely. v0.20.0 has the same names of resources.
const MODULE: &str = "github.com/NVIDIA/k8s-device-plugin";
const VERSION: &str = "0.19.3";

const BUILD: Script = script!("device-plugin.sh");

/// The limit of the script for the compiler, and a margin for the rest, so that its own errors are reported.
const LIMIT: Duration = Duration::from_secs(1500 + 120);

const PROGRAMS: [&str; 2] = ["nvidia-device-plugin", "mps-control-daemon"];

/// Builds the directory with the programs.
pub fn build(bed: &Bed) -> Result<PathBuf> {
    let go = golang::version()?;
    let recipe = format!("{MODULE} {VERSION} {go}\n{}", BUILD.text);
    bed.cached("device-plugin", &recipe, None, |dir| {
        let module = go_module::download(MODULE, &format!("v{VERSION}"))?;
        let command = BUILD.run(&[&path(&module)]);
        let done = command.cwd(dir).deadline(LIMIT).ok();
        done.context("cannot build the device plugin").map(drop)
    })
}

/// Installs the programs in `/usr/lib/testbed` of a machine.
pub fn equip(machine: &Machine, built: &Path) -> Result<()> {
    for program in PROGRAMS {
        machine.put(&built.join(program), &format!("{INSIDE}/{program}"))?;
    }
    Ok(())
}
