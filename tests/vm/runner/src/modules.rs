//! Kernel modules that are compiled once, at native speed, and copied to machines.
//!
//! A machine gets the modules below `/usr/lib/testbed/modules`, and a DKMS override, as an administrator would write
//! it, that uses them instead of compiling. DKMS itself still adds, builds, signs and installs. For another version or
//! kernel the override compiles as usual.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::machine::{Changes, Machine};
use crate::out::timed;
use crate::rootfs::{KEYRING, Mirror};
use crate::sh::Cmd;
use crate::tables::{Kind, MachineSpec, Root};

/// The same as for a root filesystem, because the archive may then have a newer package.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// The directory of the modules in a machine.
const INSIDE: &str = "usr/lib/testbed/modules";

/// Debian's DKMS names of NVIDIA's module: the proprietary one and the open one.
const NAMES: [&str; 2] = ["nvidia-current", "nvidia-current-open"];

/// DKMS reads this after a module's own configuration, and defines variables such as `PACKAGE_NAME`. It is one line
/// without glob patterns, because DKMS expands the words again when it passes them on.
const OVERRIDE: &str = r#"# The test bed carries compiled modules; any other version is compiled.
carried=/usr/lib/testbed/modules/$PACKAGE_NAME-$PACKAGE_VERSION/$kernelver
MAKE[0]="if test -d $carried; then cp -r $carried/. .; else ${MAKE[0]}; fi"
"#;

/// Compiles the modules of `$1` for kernel `$3`, from the archive `$2` and its components, and leaves them in
/// `/modules` under the names from the compiler.
const BUILD: &str = r#"
set -euo pipefail
package=$1 archive=$2 kernel=$3
export DEBIAN_FRONTEND=noninteractive
echo "deb $archive contrib non-free non-free-firmware" >/etc/apt/sources.list.d/modules.list
sed -i 's/^update_initramfs=.*/update_initramfs=no/' /etc/initramfs-tools/update-initramfs.conf
apt-get -q update
apt-get -q -y --no-install-recommends -o Dpkg::Use-Pty=0 install "linux-headers-$kernel" "$package"
for built in /var/lib/dkms/nvidia-current*/*/"$kernel"/*/module; do
    path=${built#/var/lib/dkms/}
    IFS=/ read -r name version _ <<<"$path"
    to=/modules/$name-$version/$kernel
    mkdir -p "$to"
    for file in "$built"/*.ko*; do
        short=${file##*/}
        copy=$to/nvidia${short#"$name"}
        cp "$file" "$copy"
        # DKMS installs modules compressed from Debian 13 on, and looks for them as the compiler leaves them.
        case $copy in *.xz) xz -d "$copy" ;; esac
    done
done
ls /modules/*/*/nvidia.ko
"#;

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
    let recipe = format!("{BUILD}\n{archive}\n{package} {kernel}");
    let script = format!("set -- '{package}' '{archive}' '{kernel}'\n{BUILD}");
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
        kind: Kind::Container,
        root: name.into(),
        config: None,
        configs: String::new(),
        carried: Vec::new(),
        kernel: None,
        secure_boot: false,
        dmi: BTreeMap::new(),
        loads_modules: false,
        image_files: Vec::new(),
        cloud: None,
        pci: Vec::new(),
        faults: toml::Table::new(),
        key: String::new(),
        functions: Vec::new(),
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
    let made = machine.root().join("modules");
    Cmd::new([
        "cp",
        "-a",
        &made.to_string_lossy(),
        &dir.join("modules").to_string_lossy(),
    ])
    .ok()
    .map(drop)
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
    let inside = root.join(INSIDE);
    fs::create_dir_all(&inside).with_context(|| format!("cannot make {}", inside.display()))?;
    Cmd::new([
        "cp",
        "-a",
        "--reflink=auto",
        &format!("{}/.", modules.display()),
        &inside.to_string_lossy(),
    ])
    .ok()
    .context("cannot copy the modules into a machine")?;
    let dkms = root.join("etc/dkms");
    fs::create_dir_all(&dkms).with_context(|| format!("cannot make {}", dkms.display()))?;
    for name in NAMES {
        let file = dkms.join(format!("{name}.conf"));
        fs::write(&file, OVERRIDE).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}
