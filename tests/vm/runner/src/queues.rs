//! The custom resource definitions of the queues of Kueue and Volcano, from their Go modules, for an API server that then validates
//! the queues of gpu-bootstrap. Their controllers do not run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::go_module;
use crate::machine::Machine;
use crate::simulation::INSIDE;

/// The modules with their versions, as in `tests/examples/run.sh`, and the definitions. Source of the paths: the modules.
const DEFINITIONS: [((&str, &str), &str, &str); 4] = [
    (KUEUE, KUEUE_BASES, "kueue.x-k8s.io_resourceflavors.yaml"),
    (KUEUE, KUEUE_BASES, "kueue.x-k8s.io_clusterqueues.yaml"),
    (KUEUE, KUEUE_BASES, "kueue.x-k8s.io_localqueues.yaml"),
    (
        ("volcano.sh/volcano", "v1.15.1"),
        "config/crd/volcano/bases",
        "scheduling.volcano.sh_queues.yaml",
    ),
];
const KUEUE: (&str, &str) = ("sigs.k8s.io/kueue", "v0.17.0");
const KUEUE_BASES: &str = "config/components/crd/bases";

/// Builds the directory with the definitions.
pub fn build(bed: &Bed) -> Result<PathBuf> {
    bed.cached("queues", &format!("{DEFINITIONS:?}"), None, |dir| {
        for ((module, version), bases, name) in DEFINITIONS {
            let from = go_module::download(module, version)?.join(bases).join(name);
            // Not copied with `fs::copy`, because the files of a module are read-only.
            let text = fs::read(&from);
            let text = text.with_context(|| format!("cannot read {}", from.display()))?;
            fs::write(dir.join(name), text).with_context(|| format!("cannot write {name}"))?;
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
