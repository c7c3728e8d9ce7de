//! NVIDIA's MIG manager (mig-parted), compiled from its own Go module. Cases compare the layouts that gpu-bootstrap applies with
//! its assertions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::golang;
use crate::machine::Machine;
use crate::sh::{Script, script};
use crate::simulation::INSIDE;

/// The newest version that the Go module proxy serves completely. v0.15.0 has the same layout files.
const MODULE: &str = "github.com/NVIDIA/mig-parted";
const VERSION: &str = "0.14.4";

const BUILD: Script = script!("mig-parted.sh");

/// For the download and the compiler.
const LIMIT: Duration = Duration::from_secs(300 + 900);

/// The program and its layout files.
const FILES: [&str; 3] = ["nvidia-mig-parted", "config.yaml", "config-default.yaml"];

/// Builds the directory with the program and the layout files.
pub fn build(bed: &Bed) -> Result<PathBuf> {
    let go = golang::version()?;
    let recipe = format!("{MODULE} {VERSION} {go} {}", BUILD.text);
    bed.cached("mig-parted", &recipe, None, |dir| {
        let modules = format!("{INSIDE}/driver/modules");
        let command = BUILD.run(&[MODULE, VERSION, &modules]);
        let done = command.cwd(dir).deadline(LIMIT).ok();
        done.context("cannot build mig-parted").map(drop)
    })
}

/// Installs the program and the layout files in `/usr/lib/testbed/mig-parted` of a machine.
pub fn equip(machine: &Machine, built: &Path) -> Result<()> {
    for name in FILES {
        machine.put(&built.join(name), &format!("{INSIDE}/mig-parted/{name}"))?;
    }
    Ok(())
}
