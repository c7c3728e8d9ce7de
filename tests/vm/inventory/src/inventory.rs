//! The inventory file, which defines the NVML results.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::faults::Faults;
use crate::gpu::{self, FabricState, Gpu};
use crate::mig;
use crate::model;

/// The environment variable with the path of the file.
pub const VARIABLE: &str = "GPU_FAKE_NVML";

/// The file that is read if neither the variable nor a file next to the library exists.
pub const DEFAULT_PATH: &str = "/etc/fake-nvml.toml";

/// A machine as NVML reports it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Inventory {
    /// Version of the kernel module, for example `535.261.03`.
    pub driver_version: String,
    /// The newest CUDA version that the driver supports, for example `12.2`.
    pub cuda_version: String,
    /// Version of the library; `12.535.261.03` and so on if absent.
    #[serde(default)]
    pub nvml_version: String,
    /// A file that persists the settings of programs (persistence, compute mode, …) for the next program. Without it a
    /// setting lasts as long as the program. MIG is in the inventory itself.
    pub state_file: Option<PathBuf>,
    /// The file of this inventory. `None` if it is appended to the library.
    #[serde(skip)]
    pub source: Option<PathBuf>,
    /// Confidential computing.
    #[serde(default)]
    pub conf_compute: ConfCompute,
    /// The GPUs, in NVML's order.
    #[serde(default, rename = "gpu")]
    pub gpus: Vec<Gpu>,
    /// The faults.
    #[serde(default)]
    pub faults: Faults,
}

/// `[conf-compute]`, in NVML's numbers.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ConfCompute {
    /// 0 unavailable, 1 simulation, 2 production.
    pub environment: u32,
    /// Confidential computing is on.
    pub enabled: bool,
    /// Developer tools are allowed.
    pub dev_tools: bool,
    /// 0 none, 1 protected PCIe, 2 encrypted NVLink.
    pub multi_gpu: u32,
    /// CPU technology: 0 none, 1 SEV, 2 TDX, 3 SEV-SNP, 4 SNP with vTOM.
    pub cpu: u32,
    /// The GPUs support it.
    pub capable: bool,
    /// The GPUs accept work.
    pub ready: bool,
}

/// The reason an inventory cannot be used.
#[derive(Debug)]
pub struct Unusable(String);

impl fmt::Display for Unusable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

/// The file name in the directory of a library, for a program that clears the environment of its children.
pub const BESIDE: &str = "fake-nvml.toml";

/// The directory with the nodes of MIG devices.
const CAPABILITIES: &str = "/dev/nvidia-caps";

/// The program `mig-changed` next to an inventory, if it exists. It runs after each change of MIG, and creates the nodes of MIG
/// devices, like the driver.
pub fn changed_program(inventory: &Path) -> Option<PathBuf> {
    let program = inventory.with_file_name("mig-changed");
    program.exists().then_some(program)
}

/// The two parts of the line that separates a library from its appended inventory. They are split so that the program
/// itself does not contain this line.
const APPENDED: [&str; 2] = ["\n# inventory of the ", "fake\n"];

/// The files of the library that this process has mapped, `proc_pid_maps(5)`.
fn mapped(library: &str) -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let paths = (maps.lines()).filter_map(|line| line.find('/').map(|at| &line[at..]));
    let of_it = paths.filter(|path| {
        let name = path.rsplit('/').next();
        name.is_some_and(|name| name.starts_with(library))
    });
    of_it.map(PathBuf::from).collect()
}

/// The inventory that was appended to a file; the last one counts.
fn appended(path: &Path) -> Option<String> {
    let bytes = std::fs::read(path).ok()?;
    let line = APPENDED.concat();
    let at = bytes
        .windows(line.len())
        .rposition(|window| window == line.as_bytes())?;
    String::from_utf8(bytes[at + line.len()..].to_vec()).ok()
}

impl Inventory {
    /// Reads the inventory: from the path in the environment, the directory of the library whose name begins with
    /// `library`, [`DEFAULT_PATH`], or the end of the library itself, because a container gets only the libraries.
    ///
    /// # Errors
    /// If it cannot be read, or as [`Inventory::parse`].
    pub fn find(library: &str) -> Result<Self, Unusable> {
        let default = PathBuf::from(DEFAULT_PATH);
        let libraries = mapped(library);
        let beside = (libraries.iter()).map(|path| path.with_file_name(BESIDE));
        let named = std::env::var_os(VARIABLE).map(PathBuf::from);
        let mut others = beside.chain([default.clone()]).filter(|path| path.exists());
        let mut found = if let Some(path) = named.or_else(|| others.next()) {
            Self::read(&path)?
        } else {
            let text = libraries.iter().find_map(|path| appended(path));
            Self::parse(&text.ok_or_else(|| in_file(&default, &"it does not exist"))?)?
        };
        found.hide_parts();
        Ok(found)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or as [`Inventory::parse`].
    pub fn read(path: &Path) -> Result<Self, Unusable> {
        let mut found = Self::parse(&text_of(path)?).map_err(|source| in_file(path, &source))?;
        // A link must not be replaced when the file is replaced.
        let path = path
            .canonicalize()
            .map_err(|source| in_file(path, &source))?;
        if changed_program(&path).is_some() {
            for (index, gpu) in (0..).zip(&mut found.gpus) {
                gpu.mig.nodes_of = Some(index);
            }
        }
        found.source = Some(path);
        Ok(found)
    }

    /// Removes the MIG devices whose nodes this process does not have.
    pub fn hide_parts(&mut self) {
        for gpu in &mut self.gpus {
            gpu.mig.devices.retain(|part| {
                let mut numbers = part.capabilities.iter();
                numbers.all(|number| {
                    let node = format!("{CAPABILITIES}/nvidia-cap{number}");
                    Path::new(&node).exists()
                })
            });
        }
    }

    /// Parses, completes and validates.
    ///
    /// # Errors
    /// If a key is unknown, a value is not valid, or a GPU is incomplete.
    pub fn parse(text: &str) -> Result<Self, Unusable> {
        let mut inventory: Self =
            toml::from_str(text).map_err(|source| Unusable(source.to_string()))?;
        if inventory.cuda().is_none() {
            return Err(Unusable(format!(
                "`cuda-version` is `{}`, expected a version such as `12.2`",
                inventory.cuda_version
            )));
        }
        if inventory.nvml_version.is_empty() {
            let major = inventory.cuda().map_or(0, |(major, _)| major);
            inventory.nvml_version = format!("{major}.{}", inventory.driver_version);
        }
        if inventory.gpus.len() > 0xff {
            return Err(Unusable(String::from("more than 255 GPUs")));
        }
        for (index, gpu) in inventory.gpus.iter_mut().enumerate() {
            complete(index, gpu)
                .map_err(|why| Unusable(format!("gpu {index} ({}): {why}", gpu.pci_address)))?;
        }
        inventory.check()?;
        Ok(inventory)
    }

    /// `(12, 2)` of `12.2`.
    pub fn cuda(&self) -> Option<(u32, u32)> {
        gpu::two_numbers(&self.cuda_version, '.', 10)
    }

    /// `(580, 82)` of `580.82.07`; a version of another form counts as an old driver.
    pub fn driver(&self) -> (u32, u32) {
        let mut parts = self.driver_version.split('.');
        let mut number = || parts.next().and_then(|part| part.parse().ok());
        (number().unwrap_or(0), number().unwrap_or(0))
    }

    /// Checks the names of NVML functions in faults.
    ///
    /// # Errors
    /// If one is not among `symbols`.
    pub fn check_nvml(&self, symbols: impl Iterator<Item = &'static str>) -> Result<(), Unusable> {
        let of_gpus = (self.gpus.iter()).flat_map(|gpu| gpu.hang.iter().chain(gpu.returns.keys()));
        let named = self.faults.named().chain(of_gpus.map(String::as_str));
        known(symbols, named)
    }

    /// Checks the names of CUDA driver API functions in faults.
    ///
    /// # Errors
    /// If one is not among `symbols`.
    pub fn check_cuda(&self, symbols: impl Iterator<Item = &'static str>) -> Result<(), Unusable> {
        let faults = &self.faults.cuda;
        let of_all = faults.hang.iter().chain(faults.returns.keys());
        let of_gpus =
            (self.gpus.iter()).flat_map(|gpu| gpu.cuda.hang.iter().chain(gpu.cuda.returns.keys()));
        let named = of_all.chain(&faults.crash).chain(of_gpus);
        known(symbols, named.map(String::as_str))
    }

    /// Checks that need the whole inventory.
    fn check(&self) -> Result<(), Unusable> {
        let mut seen = BTreeSet::new();
        for gpu in &self.gpus {
            let parts = gpu.mig.devices.iter().map(|part| &part.uuid);
            for identity in [&gpu.pci_address, &gpu.uuid].into_iter().chain(parts) {
                if !seen.insert(identity) {
                    return Err(Unusable(format!("duplicate `{identity}`")));
                }
            }
        }
        let faulty = self.faults.gpu_lost.iter();
        let mut faulty = faulty.chain(&self.faults.reset_required);
        if let Some(absent) = faulty.find(|index| **index >= self.gpus.len()) {
            return Err(Unusable(format!(
                "a fault refers to gpu {absent}, which does not exist"
            )));
        }
        Ok(())
    }
}

/// Checks function names in faults.
fn known<'n>(
    known: impl Iterator<Item = &'static str>,
    mut named: impl Iterator<Item = &'n str>,
) -> Result<(), Unusable> {
    let known: BTreeSet<&str> = known.collect();
    match named.find(|name| !known.contains(name)) {
        Some(unknown) => Err(Unusable(format!("unknown function `{unknown}`"))),
        None => Ok(()),
    }
}

/// Reads a TOML file as the given type.
pub fn toml_file<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Unusable> {
    toml::from_str(&text_of(path)?).map_err(|source| in_file(path, &source))
}

fn text_of(path: &Path) -> Result<String, Unusable> {
    std::fs::read_to_string(path).map_err(|source| in_file(path, &source))
}

fn in_file(path: &Path, why: &dyn fmt::Display) -> Unusable {
    Unusable(format!("{}: {why}", path.display()))
}

/// Fills in the missing keys of an entry.
fn complete(index: usize, gpu: &mut Gpu) -> Result<(), String> {
    let (domain, bus, device) = gpu::address(&gpu.pci_address)
        .ok_or("`pci-address` is not an address such as `0000:18:00.0`")?;
    for id in [&gpu.pci_id, &gpu.pci_subsystem] {
        gpu::two_numbers(id, ':', 16)
            .ok_or_else(|| format!("`{id}` is not an ID such as `10de:2330`"))?;
    }
    let model = model::find(&gpu.pci_id).map_err(|source| source.to_string())?;
    let missing =
        |key: &str| format!("`{key}` is needed, because the model is not in `models.toml`");
    let known = model.as_ref();
    if gpu.name.is_empty() {
        gpu.name = known
            .map(|row| row.name.clone())
            .ok_or_else(|| missing("name"))?;
    }
    if gpu.memory_mib == 0 {
        let nominal = known.map(|row| row.memory_gib << 10);
        gpu.memory_mib = nominal.ok_or_else(|| missing("memory-mib"))?;
    }
    if gpu.compute_capability.is_empty() {
        let capability = known.map(|row| row.compute_capability.clone());
        gpu.compute_capability = capability.ok_or_else(|| missing("compute-capability"))?;
    }
    gpu::two_numbers(&gpu.compute_capability, '.', 10)
        .ok_or_else(|| format!("`{}` is not a compute capability", gpu.compute_capability))?;
    let place = format!("{domain:08x}{bus:02x}{device:02x}");
    fill(&mut gpu.uuid, || {
        format!("GPU-00000000-0000-4000-8000-{place}")
    });
    fill(&mut gpu.serial, || {
        format!("1{:012}", (domain << 16) | (bus << 8) | device)
    });
    if gpu.bar1_mib == 0 {
        gpu.bar1_mib = gpu.memory_mib.next_power_of_two();
    }
    gpu.minor.get_or_insert(index as u32);
    gpu.brand
        .get_or_insert(known.map(|row| row.brand).unwrap_or_default());
    gpu.ecc
        .supported
        .get_or_insert(known.is_some_and(|row| row.ecc));
    gpu.mig
        .supported
        .get_or_insert(known.is_some_and(|row| row.mig));
    gpu.mig
        .slices
        .get_or_insert(known.map_or(7, |row| row.mig_slices));
    gpu.nvlink
        .links
        .get_or_insert(known.map_or(0, |row| row.links));
    gpu.nvlink
        .remote
        .get_or_insert(known.map(|row| row.remote).unwrap_or_default());
    gpu.fabric.state.get_or_insert(match known {
        Some(row) if row.fabric => FabricState::Completed,
        _ => FabricState::NotSupported,
    });
    let turing = gpu.capability() >= (7, 5);
    gpu.gsp.get_or_insert(turing);
    let generation = gpu.pcie_generation();
    gpu.pcie.max_generation.get_or_insert(generation);
    gpu.pcie.generation = gpu.pcie.generation.or(gpu.pcie.max_generation);
    gpu::uuid_bytes(&gpu.fabric.cluster_uuid)
        .ok_or_else(|| format!("`{}` is not a UUID", gpu.fabric.cluster_uuid))?;
    if let Some(id) = gpu.fields.keys().find(|id| id.parse::<u32>().is_err()) {
        return Err(format!("`{id}` is not a field ID"));
    }
    if gpu.mig.devices.len() > 7 {
        return Err(String::from("more than 7 MIG devices"));
    }
    for (position, part) in gpu.mig.devices.iter_mut().enumerate() {
        fill(&mut part.uuid, || {
            format!("MIG-00000000-0000-5000-800{position}-{place}")
        });
        part.gpu_instance.get_or_insert(7 + position as u32);
        mig::profile(&part.profile, gpu.memory_mib, gpu.mig.slices.unwrap_or(7))
            .ok_or_else(|| format!("`{}` is not a supported MIG profile", part.profile))?;
    }
    gpu.add_instances_of_devices()
}

fn fill(place: &mut String, make: impl FnOnce() -> String) {
    if place.is_empty() {
        *place = make();
    }
}
