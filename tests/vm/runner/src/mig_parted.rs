//! NVIDIA's MIG manager (mig-parted), compiled from its own Go module. Cases compare the layouts that gpu-bootstrap applies with
//! its assertions.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::bed::{Bed, remove_tree};
use crate::machine::Machine;
use crate::sh::Cmd;
use crate::simulation::INSIDE;
use crate::{golang, toolkit};

/// The newest version that the Go module proxy serves completely. v0.15.0 has the same layout files.
const MODULE: &str = "github.com/NVIDIA/mig-parted";
const VERSION: &str = "0.14.4";

const PROGRAM: &str = "nvidia-mig-parted";

/// The layout files of the module.
const FILES: [&str; 2] = [
    "examples/config.yaml",
    "deployments/systemd/config-default.yaml",
];

/// The source file that reads the loaded modules, and their path. Not all hosts of a container have this path, and then the
/// simulated list cannot be mounted over it.
const READER: &str = "cmd/nvidia-mig-parted/util/nvml.go";
const MODULES: &str = "\"/proc/modules\"";

/// A part of the recipe, because a change of this file may change the result.
const SOURCE: &str = include_str!("mig_parted.rs");

/// Builds the directory with the program and the layout files.
pub fn build(bed: &Bed) -> Result<PathBuf> {
    let go = golang::version()?;
    bed.cached("mig-parted", &format!("{go} {SOURCE}"), None, |dir| {
        let source = dir.join("work");
        copy(&toolkit::download(MODULE, VERSION)?, &source)?;
        read_simulated_modules(&source.join(READER))?;
        compile(&source, &dir.join(PROGRAM))?;
        for file in FILES.map(Path::new) {
            let to = dir.join(file.file_name().unwrap_or_default());
            fs::copy(source.join(file), to).context("cannot keep a layout file")?;
        }
        remove_tree(&source)
    })
}

fn copy(module: &Path, to: &Path) -> Result<()> {
    let (module, to) = (module.to_string_lossy(), to.to_string_lossy());
    Cmd::new(["cp", "-rT", "--no-preserve=mode", &module, &to])
        .ok()
        .context("cannot copy the module")
        .map(drop)
}

/// The only change of the source.
fn read_simulated_modules(file: &Path) -> Result<()> {
    let text = fs::read_to_string(file).context("cannot read the source of mig-parted")?;
    if !text.contains(MODULES) {
        bail!("{READER} of {MODULE} v{VERSION} does not contain {MODULES}");
    }
    let text = text.replace(MODULES, &format!("\"{INSIDE}/driver/modules\""));
    fs::write(file, text).context("cannot write the source of mig-parted")
}

/// Its NVML bindings need cgo. Go compares each module with the `go.sum` of mig-parted.
fn compile(source: &Path, to: &Path) -> Result<()> {
    let argv = ["nice", "go", "build", "-mod=readonly", "-trimpath"];
    let further = ["-buildvcs=false", "-ldflags", "-s -w", "-o"];
    let argv = argv.into_iter().chain(further).map(String::from);
    let rest = [
        to.to_string_lossy().into_owned(),
        format!("./cmd/{PROGRAM}"),
    ];
    Cmd::new(argv.chain(rest))
        // NVML's header marks functions as deprecated, but the bindings use all of them.
        .env("CGO_CFLAGS", "-O2 -Wno-deprecated-declarations")
        .cwd(source)
        .deadline(Duration::from_secs(900))
        .ok()
        .context("cannot compile mig-parted")
        .map(drop)
}

/// Installs the program and the layout files in `/usr/lib/testbed/mig-parted` of a machine.
pub fn equip(machine: &Machine, built: &Path) -> Result<()> {
    let files = FILES.map(|file| file.rsplit('/').next().unwrap_or(file));
    for name in files.into_iter().chain([PROGRAM]) {
        machine.put(&built.join(name), &format!("{INSIDE}/mig-parted/{name}"))?;
    }
    Ok(())
}
