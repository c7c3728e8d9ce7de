//! NVIDIA's container toolkit, compiled from its Go module and packaged with its own packaging files under NVIDIA's
//! names. libnvidia-container is written in C and not available as a module, so the packages of that name are marked as
//! fakes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::sh::{Script, path, script};
use crate::tables::Toolkit;
use crate::{go_module, golang};

const BUILD: Script = script!("toolkit.sh");

/// For the compiler, which the script limits, and the packages.
const LIMIT: Duration = Duration::from_secs(900 + 600);

/// Builds the directory with the toolkit's packages.
pub fn build(bed: &Bed, spec: &Toolkit) -> Result<PathBuf> {
    let go = golang::version()?;
    let recipe = format!("{spec:?} {go} {}", BUILD.text);
    let dir = bed.cached("toolkit", &recipe, None, |dir| {
        let module = go_module::download(&spec.module, &format!("v{}", spec.version))?;
        let command = BUILD.run(&[&path(&module), &spec.module, &spec.version, &spec.revision]);
        let done = command.cwd(dir).deadline(LIMIT).ok();
        done.context("cannot build the container toolkit").map(drop)
    })?;
    Ok(dir.join("packages"))
}
