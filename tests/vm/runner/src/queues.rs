//! The custom resource definitions of the queues of Kueue and Volcano, from their Go modules, for an API server that then validates
//! the queues of gpu-bootstrap. Their controllers do not run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::machine::Machine;
use crate::sh::{Script, script};
use crate::simulation::INSIDE;

/// The modules with their versions, as in `tests/examples/run.sh`, and the definitions. Source of the paths: the modules.
const DEFINITIONS: [(&str, &str, &str); 4] = [
    (KUEUE, KUEUE_BASES, "kueue.x-k8s.io_resourceflavors.yaml"),
    (KUEUE, KUEUE_BASES, "kueue.x-k8s.io_clusterqueues.yaml"),
    (KUEUE, KUEUE_BASES, "kueue.x-k8s.io_localqueues.yaml"),
    (
        "volcano.sh/volcano@v1.15.1",
        "config/crd/volcano/bases",
        "scheduling.volcano.sh_queues.yaml",
    ),
];
const KUEUE: &str = "sigs.k8s.io/kueue@v0.17.0";
const KUEUE_BASES: &str = "config/components/crd/bases";

const COPY: Script = script!("module-files.sh");

/// The limit of the script for each download, and a margin.
const LIMIT: Duration = Duration::from_secs(300 + 60);

/// Builds the directory with the definitions.
pub fn build(bed: &Bed) -> Result<PathBuf> {
    let recipe = format!("{DEFINITIONS:?}\n{}", COPY.text);
    bed.cached("queues", &recipe, None, |dir| {
        for (module, bases, name) in DEFINITIONS {
            let command = COPY.run(&[module, &format!("{bases}/{name}")]);
            let done = command.cwd(dir).deadline(LIMIT).ok();
            done.with_context(|| format!("cannot get {name} of {module}"))?;
        }
        Ok(())
    })
}

/// Installs the definitions in `/usr/lib/testbed/queues` of a machine.
pub fn equip(machine: &Machine, built: &Path) -> Result<()> {
    for (_, _, name) in DEFINITIONS {
        machine.put(&built.join(name), &format!("{INSIDE}/queues/{name}"))?;
    }
    Ok(())
}
