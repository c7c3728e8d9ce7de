//! Kernel modules that are compiled once, at native speed, and copied to machines.
//!
//! A machine gets the modules below `/usr/lib/testbed/modules`, and a DKMS override, as an administrator would write
//! it, that uses them instead of compiling. DKMS itself still adds, builds, signs and installs. For another version or
//! kernel the override compiles as usual.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::machine::{Changes, Machine};
use crate::out::timed;
use crate::rootfs::{KEYRING, Mirror};
use crate::sh::{Cmd, Script, path, script};
use crate::tables::{MachineSpec, Root};

/// The same as for a root filesystem, because the archive may then have a newer package.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// Runs in a machine of the root filesystem.
const BUILD: Script = script!("modules.sh");
const CARRY: Script = script!("carry-modules.sh");

/// Returns the directory with the modules of a DKMS package for the kernel of the root filesystem
/// in `root`.
pub fn build(
    bed: &Bed,
    name: &str,
    spec: &Root,
    root: &Path,
    package: &str,
    mirror: &Mirror,
) -> Result<PathBuf> {
    let kernel = crate::rootfs::kernel(&root.join("root"))?;
    let archive = format!("[signed-by={KEYRING}] {} {}", mirror.main, spec.suite);
    let recipe = format!("{}\n{archive}\n{package} {kernel}", BUILD.text);
    let script = format!("set -- '{package}' '{kernel}' '{archive}'\n{}", BUILD.text);
    bed.cached(
        // With the suite, so that the modules of two releases can be compiled at the same time.
        &format!("module-{package}-{}", spec.suite),
        &recipe,
        Some(MAX_AGE),
        |dir| {
            timed(&format!("module of {package}, compiled"), || {
                compile(bed, name, root, package, &script, dir)
            })
        },
    )
    .map(|dir| dir.join("modules"))
}

/// Runs the script in a machine of the root filesystem in `root`, and stores the result in `dir`.
fn compile(
    bed: &Bed,
    name: &str,
    root: &Path,
    package: &str,
    script: &str,
    dir: &Path,
) -> Result<()> {
    let builder = MachineSpec {
        about: format!("compiles {package}"),
        root: name.into(),
        ..MachineSpec::default()
    };
    // Another package may be compiled at the same time.
    let machine = format!("module-{name}-{package}");
    let mut machine = Machine::create(bed, &machine, &builder, root, (None, Changes::default()))?;
    machine.boot()?;
    machine
        .exec(script)
        .deadline(Duration::from_secs(1500))
        .ok()?;
    machine.power_off()?;
    let (from, to) = (machine.root().join("modules"), dir.join("modules"));
    let copy = Cmd::new(["cp", "-a", &*path(&from), &*path(&to)]);
    copy.ok().map(drop)
}

/// The driver version that modules were built from: their directory is called `NAME-VERSION`.
pub fn version(modules: &Path) -> Result<String> {
    let mut entries = fs::read_dir(modules)
        .with_context(|| format!("cannot read {}", modules.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    entries
        .find_map(|name| {
            name.rsplit_once('-')
                .map(|(_, version)| version.to_string())
        })
        .with_context(|| format!("{} contains no modules", modules.display()))
}

/// Copies built modules, and the override that uses them, into the root of a machine before its first boot.
pub fn carry(root: &Path, modules: &Path) -> Result<()> {
    let done = CARRY.run(&[&path(root), &path(modules)]).ok();
    done.context("cannot copy the modules into a machine")
        .map(drop)
}
