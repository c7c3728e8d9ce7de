//! Builds everything that goes into a machine, with the slow parts in parallel.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::bed::Bed;
use crate::out::timed;
use crate::repo::PORT;
use crate::repo::table::Table;
use crate::serve::PROGRAM;
use crate::server::PROXY;
use crate::sh::Cmd;
use crate::simulation::Fakes;
use crate::tables::Machines;
use crate::{
    agents, almalinux, crictl, device_plugin, disk_image, image, kubernetes, lock, mig_parted,
    modules, needs, pods, qemu, queues, real, release, repo, rootfs, toolkit, ubuntu,
};

/// Programs that are compiled from the repository.
pub const PRODUCT: &str = "gpu-bootstrap";
const NVML: &str = "libfake_nvml.so";
const CUDA: &str = "libfake_cuda.so";
const SMI: &str = "mig-smi";

/// Assets that the chosen cases need.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Names of root filesystems.
    pub roots: BTreeSet<String>,
    /// Names of images.
    pub images: BTreeSet<String>,
    /// DKMS packages with precompiled modules, by root filesystem.
    pub carried: BTreeMap<String, BTreeSet<String>>,
    /// Root filesystems of machines next to a Kubernetes control plane.
    pub clusters: BTreeSet<String>,
    /// Whether a machine is emulated.
    pub qemu: bool,
    /// Whether a machine has the release packages of the product.
    pub packages: bool,
    /// Whether a machine has NVIDIA's mig-parted.
    pub mig_parted: bool,
    /// Whether a machine has NVIDIA's device plugin.
    pub device_plugin: bool,
    /// Whether a machine has the definitions of queues.
    pub queues: bool,
}

/// Files to put into machines.
pub struct Assets {
    /// Directories of root filesystems and of images, by name.
    pub roots: BTreeMap<String, PathBuf>,
    /// Directories of compiled modules, by root filesystem and DKMS package.
    pub modules: BTreeMap<(String, String), PathBuf>,
    repositories: repo::Repositories,
    /// Repositories for simulated AlmaLinux and Ubuntu machines, by root filesystem.
    own: BTreeMap<String, repo::Repositories>,
    /// Repositories for machines next to a control plane, by root filesystem.
    clusters: BTreeMap<String, repo::Repositories>,
    /// Directories of the Kubernetes programs, the programs that run pods, and the fake agent, if a machine is next to
    /// a control plane.
    pub kubernetes: Option<(PathBuf, PathBuf, PathBuf)>,
    pub image: PathBuf,
    pub mirror: rootfs::Mirror,
    pub product: PathBuf,
    /// SHA-256 of `product` as hexadecimal digits. `None` if it was not compiled.
    pub product_digest: Option<String>,
    /// The directory of the release packages of the product, if a machine needs them.
    pub packages: Option<PathBuf>,
    /// The directory with NVIDIA's mig-parted, if a machine needs it.
    pub mig_parted: Option<PathBuf>,
    /// The directory with NVIDIA's device plugin, if a machine needs it.
    pub device_plugin: Option<PathBuf>,
    /// The directory with the definitions of queues, if a machine needs them.
    pub queues: Option<PathBuf>,
    pub fakes: Fakes,
}

impl Assets {
    /// The repositories for machines of a root filesystem. With `cluster`, for machines next to a control plane.
    pub fn repositories(&self, root: &str, cluster: bool) -> &repo::Repositories {
        let cluster = self.clusters.get(root).filter(|_| cluster);
        (cluster.or(self.own.get(root))).unwrap_or(&self.repositories)
    }

    /// The repositories for a root filesystem that simulates AlmaLinux.
    pub fn served(&self, root: &str) -> Option<&repo::Repositories> {
        (self.own.get(root)).filter(|one| one.table.release.is_some())
    }
}

/// The program that machines run.
#[derive(Clone, Copy)]
pub enum Program<'a> {
    /// From this source, without optimization.
    Compiled,
    /// A file.
    Given(&'a Path),
}

/// Builds the missing assets; with `program` also copies that binary and the fakes.
pub fn prepare(
    bed: &Bed,
    machines: &Machines,
    wanted: &Wanted,
    program: Option<Program<'_>>,
) -> Result<Assets> {
    if let Some(Program::Given(file)) = program
        && !file.is_file()
    {
        bail!("program {} does not exist", file.display());
    }
    needs::ensure(&machines.toolkit.go)?;
    let mirror = rootfs::mirror()?;
    let numbers = releases(machines, &wanted.roots)?;
    let ubuntus: Vec<_> = (machines.ubuntu.iter())
        .filter(|(name, _)| wanted.roots.contains(*name))
        .collect();
    thread::scope(|scope| {
        // Start the slowest builds first: with two CPUs no other work hides their time.
        let kubernetes = scope.spawn(|| match wanted.clusters.is_empty() {
            true => anyhow::Ok(None),
            false => {
                let programs = timed("Kubernetes, compiled", || kubernetes::build(bed, &mirror))?;
                let programs = timed("crictl, compiled", || crictl::build(bed, &programs))?;
                let for_pods = timed("programs that run pods, compiled", || pods::build(bed))?;
                let agents = timed("fake agents", || agents::build(bed))?;
                Ok(Some((programs, for_pods, agents)))
            }
        });
        let repositories = scope.spawn(|| {
            let toolkit = timed("container toolkit, compiled and packed", || {
                toolkit::build(bed, &machines.toolkit)
            })?;
            let build = |root: &str, mut table: Table| {
                let tree = (machines.real.get(root))
                    .map(|file| real::fill_table(bed, &mirror, &bed.here(file), &mut table))
                    .transpose()?;
                repo::build(bed, table, (&toolkit, tree.as_deref()), &mirror, None)
            };
            let mut own = BTreeMap::new();
            for (root, name) in &numbers {
                let (number, _) = almalinux::release(name);
                let table = Table::of_rpms(&bed.here("rpms"), number)?;
                let what = format!("repositories for release {number}");
                own.insert(root.clone(), timed(&what, || build(root, table))?);
            }
            let table = Table::load(&[bed.here("packages.toml")], None)?;
            let repositories = timed("signed repositories of fake packages", || build("", table))?;
            for (name, row) in &ubuntus {
                let files: Vec<PathBuf> = row.packages.iter().map(|name| bed.here(name)).collect();
                let table = Table::load(&files, None)?;
                let one = timed(&format!("the same for {name}"), || build(name, table))?;
                own.insert((*name).clone(), one);
            }
            anyhow::Ok((toolkit, repositories, own))
        });
        let compiled = scope.spawn(|| match program {
            Some(program) => timed("gpu-bootstrap and the fake libraries, compiled", || {
                programs(bed, program).map(Some)
            }),
            None => Ok(None),
        });
        let emulator = scope.spawn(|| match wanted.qemu {
            true => timed("QEMU", || qemu::root(bed)).map(drop),
            false => Ok(()),
        });
        let image = scope.spawn(|| timed("probe image", || image::build(bed)));
        let partitioner = scope.spawn(|| match wanted.mig_parted {
            true => timed("mig-parted, compiled", || mig_parted::build(bed)).map(Some),
            false => Ok(None),
        });
        let plugin = scope.spawn(|| match wanted.device_plugin {
            true => timed("device plugin, compiled", || device_plugin::build(bed)).map(Some),
            false => Ok(None),
        });
        let queues = scope.spawn(|| match wanted.queues {
            true => timed("definitions of queues", || queues::build(bed)).map(Some),
            false => Ok(None),
        });
        let (mut roots, mut carrying) = (BTreeMap::new(), Vec::new());
        let plain =
            |name: &&String| !machines.ubuntu.contains_key(*name) && !numbers.contains_key(*name);
        let mut first: Vec<&String> = wanted.roots.iter().filter(plain).collect();
        // Compiling a module takes minutes, so roots that need one come first.
        first.sort_by_key(|name| !wanted.carried.contains_key(*name));
        for name in first {
            let spec = machines.root(name)?;
            let root = timed(&format!("root filesystem {name}"), || {
                rootfs::build(bed, spec)
            })?;
            roots.insert(name.clone(), root.clone());
            for package in wanted.carried.get(name).into_iter().flatten() {
                let (mirror, root) = (&mirror, root.clone());
                carrying.push(scope.spawn(move || {
                    let directory = modules::build(bed, name, spec, &root, package, mirror)?;
                    anyhow::Ok(((name.clone(), package.clone()), directory))
                }));
            }
        }
        for (name, row) in &ubuntus {
            let spec = machines.root(&row.from)?;
            let root = timed(&format!("root filesystem {name}"), || {
                ubuntu::build(bed, name, spec)
            })?;
            roots.insert((*name).clone(), root);
        }
        for name in numbers.keys() {
            let spec = machines.root(name)?;
            timed(&format!("Debian's part of {name}"), || {
                almalinux::base(bed, spec).map(drop)
            })?;
        }
        for name in &wanted.images {
            let disk = timed(&format!("image {name}"), || {
                disk_image::provide(bed, machines, name)
            })?;
            roots.insert(name.clone(), disk);
        }
        let joined = |_| anyhow!("a part of the preparation panicked");
        let (toolkit, repositories, own) = repositories.join().map_err(joined)??;
        for (name, number) in &numbers {
            let spec = machines.root(name)?;
            let root = timed(&format!("root filesystem {name}"), || {
                almalinux::build(bed, spec, number, &own[name])
            })?;
            roots.insert(name.clone(), root);
        }
        let mut clusters = BTreeMap::new();
        let kubernetes = kubernetes.join().map_err(joined)??;
        if let Some((programs, ..)) = &kubernetes {
            for name in &wanted.clusters {
                let what = format!("repositories with Kubernetes for {name}");
                let base = own.get(name).unwrap_or(&repositories);
                let release = base.table.release.as_ref();
                let file = release.map_or("kubernetes.toml", |_| "rpms/kubernetes.toml");
                let table = Table::load(&[bed.here(file)], release)?;
                let sources = (&*toolkit, Some(&**programs));
                let one = timed(&what, || {
                    repo::build(bed, table, sources, &mirror, Some(base))
                })?;
                clusters.insert(name.clone(), one);
            }
        }
        let mut carried = BTreeMap::new();
        for compiling in carrying {
            let (key, directory) = compiling.join().map_err(joined)??;
            carried.insert(key, directory);
        }
        let programs = compiled.join().map_err(joined)??;
        let release = match wanted.packages && programs.is_some() {
            true => Some(timed("release packages", || release::build(bed))?),
            false => None,
        };
        emulator.join().map_err(joined)??;
        Ok(Assets {
            roots,
            modules: carried,
            repositories,
            own,
            clusters,
            kubernetes,
            image: image.join().map_err(joined)??,
            mirror: mirror.clone(),
            product_digest: programs
                .map(|()| digest(&bed.programs.join(PRODUCT)))
                .transpose()?,
            product: bed.programs.join(PRODUCT),
            packages: release,
            mig_parted: partitioner.join().map_err(joined)??,
            device_plugin: plugin.join().map_err(joined)??,
            queues: queues.join().map_err(joined)??,
            fakes: Fakes {
                nvml: bed.programs.join(NVML),
                cuda: bed.programs.join(CUDA),
                smi: bed.programs.join(SMI),
            },
        })
    })
}

/// The SHA-256 of a file as hexadecimal digits.
fn digest(path: &Path) -> Result<String> {
    let name = path.to_string_lossy();
    let said = Cmd::new(["sha256sum", "--binary", &name]).ok()?.stdout;
    let digest = said.split_whitespace().next();
    digest
        .map(str::to_owned)
        .context("`sha256sum` printed no digest")
}

/// The simulated AlmaLinux releases, by root filesystem.
fn releases(machines: &Machines, roots: &BTreeSet<String>) -> Result<BTreeMap<String, String>> {
    let mut releases = BTreeMap::new();
    for name in roots {
        if machines.ubuntu.contains_key(name) {
            continue;
        }
        if let Some(number) = &machines.root(name)?.almalinux {
            releases.insert(name.clone(), number.clone());
        }
    }
    Ok(releases)
}

/// Template values for configurations and cases on machines of a root filesystem.
pub fn values(assets: &Assets, root: &str, cluster: bool) -> BTreeMap<String, String> {
    let mut values = assets.repositories(root, cluster).values();
    for (name, value) in [
        ("proxy", PROXY),
        ("mirror", &assets.mirror.main),
        ("security-mirror", &assets.mirror.security),
        ("image", image::NAME),
        ("image-archive", "/usr/lib/testbed/probe.tar"),
        ("program-url", &format!("http://127.0.0.1:{PORT}/{PROGRAM}")),
        (
            "program-sha256",
            assets.product_digest.as_deref().unwrap_or_default(),
        ),
    ] {
        values.insert(name.into(), value.into());
    }
    let family = match assets.served(root) {
        Some(_) => RPM,
        None => DEB,
    };
    for (name, value) in family {
        values.insert(name.into(), value.into());
    }
    if assets.packages.is_some() {
        values.extend(release::values(assets.served(root).is_some()));
    }
    values
}

/// Names that differ between the families, for cases that run on both.
type Family = [(&'static str, &'static str); 4];
const DEB: Family = [
    ("module-package", "nvidia-kernel-open-dkms"),
    ("cuda-package", "libcuda1"),
    ("lock", "/var/lib/dpkg/lock"),
    ("unknown-key", "NO_PUBKEY"),
];
const RPM: Family = [
    ("module-package", "kmod-nvidia-open-dkms"),
    ("cuda-package", "nvidia-driver-cuda-libs"),
    ("lock", "/var/lib/rpm/.rpm.lock"),
    ("unknown-key", "GPG"),
];

/// The cargo build directory: `CARGO_TARGET_DIR`, relative to the repository's root.
fn target(repo: &Path, named: Option<OsString>) -> PathBuf {
    match named {
        Some(named) if !named.is_empty() => repo.join(named),
        _ => repo.join("target"),
    }
}

/// Compiles the repository's programs, and copies them so that they no longer change.
fn programs(bed: &Bed, program: Program<'_>) -> Result<()> {
    let target = target(&bed.repo, env::var_os("CARGO_TARGET_DIR"));
    fs::create_dir_all(&target).with_context(|| format!("cannot make {}", target.display()))?;
    // A concurrent build must not replace them while they are copied.
    let _turn = lock::take(&target.join("vm-programs.lock"), "the compiler")?;
    // Same as in `make vm`, to avoid compiling twice.
    Cmd::new(["cargo", "build", "--quiet", "--locked", "--workspace"])
        .cwd(&bed.repo)
        .deadline(Duration::from_secs(1800))
        .ok()?;
    fs::create_dir(&bed.programs).context("cannot make the program directory")?;
    let copy = |from: &Path, name: &str| {
        let to = bed.programs.join(name);
        fs::copy(from, &to)
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
    };
    for name in [NVML, CUDA, SMI, "vm-pci"] {
        copy(&target.join("debug").join(name), name)?;
    }
    match program {
        Program::Given(file) => {
            copy(file, PRODUCT)?;
        }
        Program::Compiled => {
            let from = target.join("debug").join(PRODUCT);
            let to = bed.programs.join(PRODUCT);
            // It is copied into each machine and into each validation image, and symbols are most of its 100 MB.
            Cmd::new([
                "strip",
                "-o",
                &to.to_string_lossy(),
                &from.to_string_lossy(),
            ])
            .ok()
            .context("cannot strip the program")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_directory_matches_cargo() {
        let repo = Path::new("/repo");
        for (named, directory) in [
            (None, "/repo/target"),
            (Some(""), "/repo/target"),
            (Some("build"), "/repo/build"),
            (Some("/tmp/build"), "/tmp/build"),
        ] {
            assert_eq!(target(repo, named.map(Into::into)), Path::new(directory));
        }
    }
}
