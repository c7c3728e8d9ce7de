//! Programs that a machine next to a control plane needs to run pods: a fake of NVIDIA's device plugin, the program of
//! the pause image, and runc without cgroups. They are compiled with the Kubernetes module.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::golang;

/// The programs.
pub const PROGRAMS: [&str; 3] = ["device-plugin", "pause", "plain-runc"];

const LIMIT: Duration = Duration::from_secs(1800);

/// A part of the recipe, because a change of this file may change the result.
const SOURCE: &str = include_str!("pods.rs");

/// Builds the directory with the programs.
pub fn build(bed: &Bed) -> Result<PathBuf> {
    let here = bed.here("kubernetes");
    let mut sources = String::new();
    for name in PROGRAMS {
        let path = here.join(name).join("main.go");
        sources += &fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
    }
    let sums = fs::read_to_string(here.join("go.sum")).context("cannot read go.sum")?;
    let go = golang::version()?;
    let recipe = format!("{sources} {sums} {go} {SOURCE} {}", golang::SOURCE);
    bed.cached("pods", &recipe, None, |dir| compile(&here, dir))
}

fn compile(here: &Path, to: &Path) -> Result<()> {
    let to = format!("{}/", to.display());
    let packages = PROGRAMS.map(|name| format!("./{name}"));
    golang::build(here, packages, "", &to)
        .deadline(LIMIT)
        .ok()
        .context("cannot compile the programs that run pods")
        .map(drop)
}
