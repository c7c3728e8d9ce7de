//! NVIDIA's MIG manager (mig-parted), compiled from its own Go module. Cases compare the layouts that gpu-bootstrap applies with
//! its assertions.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::machine::Machine;
use crate::sh::{Script, path, script};
use crate::simulation::INSIDE;
use crate::{go_module, golang};

/// The newest version that the Go module proxy serves completely. v0.15.0 has the same layout files.
const MODULE: &str = "github.com/NVIDIA/mig-parted";
const VERSION: &str = "0.14.4";

const BUILD: Script = script!("mig-parted.sh");

/// The limit of the script for the compiler, and a margin for the rest, so that its own errors are reported.
const LIMIT: Duration = Duration::from_secs(900 + 120);

/// The copies of its layout files in the repository, which the script compares with the files of the module.
const COPIES: &str = "tests/mig-parted";
const LAYOUTS: [&str; 2] = ["config.yaml", "config-default.yaml"];

/// The program and the layout files that cases use.
const FILES: [&str; 3] = ["nvidia-mig-parted", "config-default.yaml", "config.yaml"];

/// The layouts that gpu-bootstrap computes from the files. A unit test of gpu-bootstrap writes it.
const TABLE: &str = "layouts.txt";

/// Builds the directory with the program and the layout files.
pub fn build(bed: &Bed) -> Result<PathBuf> {
    let go = golang::version()?;
    let modules = format!("{INSIDE}/driver/modules");
    let copies = bed.repo.join(COPIES);
    let mut recipe = format!("{MODULE} {VERSION} {go} {modules}\n{}", BUILD.text);
    for name in LAYOUTS {
        let path = copies.join(name);
        recipe += &fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
    }
    bed.cached("mig-parted", &recipe, None, |dir| {
        let module = go_module::download(MODULE, &format!("v{VERSION}"))?;
        let command = BUILD.run(&[&path(&module), &modules, &path(&copies)]);
        let done = command.cwd(dir).deadline(LIMIT).ok();
        done.context("cannot build mig-parted").map(drop)
    })
}

/// Installs the program, the layout files and the table of layouts in `/usr/lib/testbed/mig-parted` of a machine.
pub fn equip(bed: &Bed, machine: &Machine, built: &Path) -> Result<()> {
    let inside = |name| format!("{INSIDE}/mig-parted/{name}");
    for name in FILES {
        machine.put(&built.join(name), &inside(name))?;
    }
    machine.put(&bed.repo.join(COPIES).join(TABLE), &inside(TABLE))
}
