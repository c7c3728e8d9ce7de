//! The rows of `compat/cuda-driver-matrix.toml` as types.

use serde::Deserialize;

pub use crate::chips::{ChipRange, Series};
pub use crate::evidence::Confidence;
pub use crate::options::{InstanceFlavour, ModuleOption};

use crate::evidence::row;
use crate::identity::{Architecture, Flavour, SupportedFlavours};
use crate::version::{Branch, CudaVersion, CudnnVersion, DriverVersion, KernelVersion};
use crate::{capability::ComputeCapability, pci::PciId};

/// The form of the file that this program reads.
pub const SCHEMA: u32 = 1;

/// Everything that is known about drivers, GPUs, CUDA and kernels.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Matrix {
    /// The form of the file.
    pub schema: u32,
    /// The day for which `support` and the newest versions are true.
    pub as_of: jiff::civil::Date,
    /// Where the rows were read.
    #[serde(rename = "source")]
    pub citations: Vec<Citation>,
    /// Generations of GPUs, oldest first.
    #[serde(rename = "architecture")]
    pub architectures: Vec<ArchitectureRow>,
    /// Compute capabilities within them.
    #[serde(rename = "compute-capability")]
    pub capabilities: Vec<CapabilityRow>,
    /// Driver branches, oldest first.
    #[serde(rename = "branch")]
    pub branches: Vec<BranchRow>,
    /// From which branch on `branches` is complete.
    #[serde(default)]
    pub branch_list: Option<BranchList>,
    /// CUDA toolkits.
    #[serde(rename = "cuda")]
    pub toolkits: Vec<Toolkit>,
    /// NVIDIA's base images.
    #[serde(rename = "cuda-image", default)]
    pub cuda_images: Vec<CudaImage>,
    /// What minor-version compatibility accepts.
    #[serde(rename = "cuda-major")]
    pub cuda_majors: Vec<CudaMajor>,
    /// Newer CUDA on an older driver.
    #[serde(rename = "forward-compat", default)]
    pub forward_compat: Vec<ForwardCompat>,
    /// For which boards that is.
    pub forward_compat_policy: ForwardCompatPolicy,
    /// The rule for a GPU without a row.
    pub unlisted_gpu: UnlistedGpu,
    /// Blocks of device ids of one architecture.
    #[serde(rename = "chip-range", default)]
    pub chip_ranges: Vec<ChipRange>,
    /// Product names of GPUs without a row.
    #[serde(rename = "series", default)]
    pub series: Vec<Series>,
    /// GPUs.
    #[serde(rename = "gpu")]
    pub gpus: Vec<Gpu>,
    /// NVSwitches.
    #[serde(rename = "nvswitch", default)]
    pub nvswitches: Vec<NvSwitch>,
    /// Smallest MIG profiles.
    #[serde(rename = "mig-profile", default)]
    pub mig_profiles: Vec<MigProfile>,
    /// Subsystems that vGPU guests see.
    #[serde(rename = "vgpu", default)]
    pub vgpus: Vec<Vgpu>,
    /// First versions with the fixes of NVIDIA's security bulletins about drivers.
    #[serde(rename = "driver-floor", default)]
    pub driver_floors: Vec<DriverFloor>,
    /// The same of other packages.
    #[serde(rename = "package-floor", default)]
    pub package_floors: Vec<PackageFloor>,
    /// Fixes that a kernel needs, per branch.
    #[serde(rename = "kernel-fix", default)]
    pub kernel_fixes: Vec<KernelFix>,
    /// The newest kernel a version was seen to build on.
    #[serde(rename = "kernel-limit", default)]
    pub kernel_limits: Vec<KernelLimit>,
    /// The oldest kernel that versions ask for.
    #[serde(rename = "kernel-oldest", default)]
    pub kernel_oldest: Vec<KernelOldest>,
    /// Reports about one kernel and some versions.
    #[serde(rename = "kernel-report", default)]
    pub kernel_reports: Vec<KernelReport>,
    /// cuDNN releases.
    #[serde(rename = "cudnn", default)]
    pub cudnn: Vec<Cudnn>,
    /// Instance types of clouds.
    #[serde(rename = "instance-type", default)]
    pub instance_types: Vec<InstanceType>,
    /// Options of kernel modules that boards or instance types need.
    #[serde(rename = "module-option", default)]
    pub module_options: Vec<ModuleOption>,
    /// Flavours of kernel modules that instance types need.
    #[serde(rename = "instance-flavour", default)]
    pub instance_flavours: Vec<InstanceFlavour>,
}

/// A document or a file that rows were read from.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Citation {
    /// How rows name it.
    pub key: String,
    /// What it is.
    pub title: String,
    /// Where it is.
    pub r#where: String,
    /// When it was written or read, as precisely as is known.
    pub date: String,
}

/// What holds the GPUs of a machine together beyond PCI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fabric {
    /// Nothing to run.
    None,
    /// The fabric manager, of exactly the driver's version.
    Fm,
    /// The fabric manager and the NVLink subnet manager.
    #[serde(rename = "fm+nvlsm")]
    FmNvlsm,
    /// IMEX on the node; the fabric manager runs elsewhere.
    Imex,
}

row! {
    /// A generation of GPUs.
    ArchitectureRow {
        /// `hopper`.
        name: Architecture,
        /// `Hopper`.
        title: String,
        /// How the names of its chips begin in `pci.ids`.
        chip_prefixes: Vec<String>,
        /// SupportedFlavours of its boards, where a board says nothing else.
        modules: SupportedFlavours,
        /// The last branch that drives it; `None` while it is current.
        last_branch: Option<Branch>,
    }
}

row! {
    /// Compute capabilities that share their bounds.
    CapabilityRow {
        /// The capabilities.
        versions: Vec<ComputeCapability>,
        /// The architecture's name.
        architecture: Architecture,
        /// The floor of all boards with it.
        min_driver: Option<DriverVersion>,
        /// The first toolkit with code for it.
        first_cuda: CudaVersion,
        /// The last one; `None` while it is current.
        last_cuda: Option<CudaVersion>,
    }
}

/// The support type of a branch, as NVIDIA publishes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BranchKind {
    /// Long-term support.
    Ltsb,
    /// Production.
    Pb,
    /// New features, short-lived.
    Nfb,
    /// Shipped with a toolkit only.
    Development,
    /// Kept for old GPUs.
    Legacy,
    /// Not read.
    Unknown,
}

impl BranchKind {
    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Ltsb => "long-term support branch",
            Self::Pb => "production branch",
            Self::Nfb => "new feature branch",
            Self::Development => "development branch",
            Self::Legacy => "legacy branch",
            Self::Unknown => "branch of unknown kind",
        }
    }
}

/// Whether a branch still gets fixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Support {
    /// It does.
    Supported,
    /// It does not.
    Ended,
    /// Not read.
    Unknown,
}

/// What a branch offers of the open kernel modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OpenModules {
    /// It has none.
    None,
    /// It has them; the proprietary ones are the default.
    Available,
    /// They are the default.
    Default,
    /// It has no others.
    Only,
}

row! {
    /// A driver branch.
    BranchRow {
        /// Its number.
        branch: Branch,
        /// What NVIDIA calls it.
        kind: BranchKind,
        /// The newest version known.
        newest_version: DriverVersion,
        /// When that came out, as precisely as is known.
        newest_date: Option<String>,
        /// When fixes end.
        end_of_life: Option<String>,
        /// Whether it got fixes on [`Matrix::as_of`].
        support: Support,
        /// The day from which a long-term branch goes before all others: its first release has been run by few.
        default_from: Option<jiff::civil::Date>,
        /// The CUDA version that the driver API reports.
        max_cuda: CudaVersion,
        /// The newest architecture that its newest version drives.
        newest_architecture: Architecture,
        /// What it offers of the open modules.
        open: OpenModules,
        /// Whether it has proprietary modules.
        proprietary: bool,
    }
}

row! {
    /// The range in which the list of branches is complete.
    BranchList {
        /// Every Linux branch from this one to the newest one has an entry.
        complete_from: Branch,
    }
}

row! {
    /// A CUDA toolkit.
    Toolkit {
        /// Its version.
        version: CudaVersion,
        /// The driver for every feature; `None` where it was not read.
        min_driver: Option<DriverVersion>,
        /// Architectures, as `uname -m` names them.
        arches: Vec<String>,
    }
}

row! {
    /// Base images of a CUDA toolkit, `nvidia/cuda:VERSION-base-SYSTEM`.
    CudaImage {
        /// The toolkit.
        version: CudaVersion,
        /// Systems as the tags name them; the first one is for machines with another system.
        systems: Vec<String>,
    }
}

row! {
    /// A CUDA major version.
    CudaMajor {
        /// Its number.
        major: u32,
        /// The driver for all its minor versions; `None` where each needs its own minimum.
        minor_version_min_driver: Option<DriverVersion>,
    }
}

row! {
    /// A `cuda-compat` package.
    ForwardCompat {
        /// The CUDA version that it brings.
        cuda: CudaVersion,
        /// The branches that it works on.
        branches: Vec<Branch>,
    }
}

row! {
    /// Which boards forward compatibility is for.
    ForwardCompatPolicy {
        /// Brands that it is not for, as names of boards begin.
        excluded: Vec<String>,
    }
}

row! {
    /// The rule for a GPU without a row.
    UnlistedGpu {
        /// From this device id on, the open modules are assumed.
        open_from: PciId,
    }
}

row! {
    /// A GPU.
    Gpu {
        /// Its id.
        pci_id: PciId,
        /// The board, where several share the id.
        subsystem_id: Option<PciId>,
        /// What people call it.
        name: String,
        /// What else it is called.
        #[serde(default)]
        aliases: Vec<String>,
        /// The architecture's name.
        architecture: Architecture,
        /// Its compute capability.
        compute_capability: ComputeCapability,
        /// What the full board needs; a slice without a visible NVSwitch needs nothing.
        fabric: Fabric,
        /// The modules that it runs with.
        modules: SupportedFlavours,
        /// The first version of each branch that knows it, oldest first.
        #[serde(default)]
        min_drivers: Vec<DriverVersion>,
        /// Newer branches that never list it.
        #[serde(default)]
        not_named_in: Vec<Branch>,
        /// No older version was seen to list it.
        named_since: Option<DriverVersion>,
        /// Below it the board works with known problems.
        advised_driver: Option<DriverVersion>,
    }
}

row! {
    /// An NVSwitch.
    NvSwitch {
        /// Its id; `None` where it is no NVIDIA device on PCI.
        pci_id: Option<PciId>,
        /// What it is.
        name: String,
        /// False for a device that looks like one.
        is_switch: bool,
    }
}

row! {
    /// The smallest MIG profile of a class of boards.
    MigProfile {
        /// As `nvidia-smi mig` names it.
        smallest: String,
        /// The memory class.
        memory_gb: u32,
        /// Boards.
        boards: String,
        /// How many fit on a GPU.
        max_instances: u32,
    }
}

/// A vGPU profile as a guest sees it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct VgpuProfile {
    /// The subsystem.
    pub subsystem_id: PciId,
    /// The profile's name.
    pub name: String,
}

row! {
    /// The vGPU profiles of a GPU.
    Vgpu {
        /// The physical GPU.
        pci_id: PciId,
        /// Its profiles.
        profiles: Vec<VgpuProfile>,
    }
}

row! {
    /// A security bulletin about drivers.
    DriverFloor {
        /// Its number.
        bulletin: String,
        /// When it came out.
        date: jiff::civil::Date,
        /// What it is about, the worst first; not always all of it.
        #[serde(default)]
        cves: Vec<String>,
        /// The first fixed version of each branch, on Linux.
        first_fixed: Vec<DriverVersion>,
    }
}

row! {
    /// A security bulletin about something else that is installed as packages.
    PackageFloor {
        /// Its number.
        bulletin: String,
        /// When it came out.
        date: jiff::civil::Date,
        /// What it is about, the worst first.
        #[serde(default)]
        cves: Vec<String>,
        /// The names of the packages.
        packages: Vec<String>,
        /// The first fixed version, without epoch and revision.
        first_fixed: String,
    }
}

row! {
    /// The versions that brought the fix for a kernel.
    KernelFix {
        /// The first mainline kernel that needs it.
        kernel: KernelVersion,
        /// The first fixed version of each branch.
        first_fixed: Vec<DriverVersion>,
        /// From here on no further fix is known.
        #[serde(default)]
        complete: Vec<DriverVersion>,
        /// Branches that ended without it.
        #[serde(default)]
        never_fixed: Vec<Branch>,
        /// For this architecture alone, as `uname -m` names it.
        arch: Option<String>,
        /// For these modules alone.
        flavour: Option<Flavour>,
    }
}

row! {
    /// The newest mainline kernel that a version was seen to build on without patches.
    KernelLimit {
        /// The version.
        driver: DriverVersion,
        /// The kernel.
        newest_kernel: KernelVersion,
        /// The first kernel that it was seen to need a patch for.
        first_broken: Option<KernelVersion>,
    }
}

row! {
    /// The oldest kernel that a range of versions asks for.
    KernelOldest {
        /// The kernel.
        kernel: KernelVersion,
        /// From this version on.
        first_driver: Option<DriverVersion>,
        /// Up to this version.
        last_driver: Option<DriverVersion>,
    }
}

row! {
    /// A report that some versions fail on a kernel.
    KernelReport {
        /// A mainline series, or the beginning of a release; `None` for all.
        kernel: Option<KernelVersion>,
        /// What the release must end with: vendors name the kernels with pages of 64 KiB so.
        ending: Option<String>,
        /// The vendor's later releases, too: those that count on from its last number.
        #[serde(default)]
        or_later: bool,
        /// From this version on.
        first_driver: Option<DriverVersion>,
        /// Up to this version.
        last_driver: DriverVersion,
        /// The kernel modules that it speaks of; `None` for both.
        modules: Option<SupportedFlavours>,
        /// The modules build, and what was reported comes later.
        #[serde(default)]
        builds: bool,
        /// What was reported.
        report: String,
        /// The error of the driver by which it shows.
        shows: Option<Shows>,
    }
}

/// An error of the driver by which a fault of a driver on a kernel shows.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shows {
    /// Its number.
    pub xid: u32,
    /// What helps.
    pub remedy: String,
}

row! {
    /// The packages of a cuDNN version for one CUDA major version.
    Cudnn {
        /// Its version.
        version: CudnnVersion,
        /// The CUDA major version.
        cuda_major: u32,
        /// The oldest CUDA that it was released for.
        cuda_min: CudaVersion,
        /// The newest CUDA that it was released for.
        cuda_max: CudaVersion,
        /// The oldest driver.
        min_driver: DriverVersion,
        /// The lowest compute capability.
        capability_min: ComputeCapability,
        /// The highest compute capability that existed then.
        capability_max: ComputeCapability,
    }
}

/// Which driver an instance type takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstanceDriver {
    /// The ordinary one.
    DataCenter,
    /// The licensed one for vGPU guests.
    Grid,
    /// None: its GPU is not NVIDIA's.
    None,
}

row! {
    /// An instance type of a cloud.
    InstanceType {
        /// `aws`, `gcp`, `azure`, `oracle`.
        provider: String,
        /// Its name.
        name: String,
        /// The GPU, for people.
        gpu: String,
        /// Its ids.
        #[serde(default)]
        gpu_ids: Vec<PciId>,
        /// Whole GPUs.
        gpus: u32,
        /// The slice, where it is one.
        gpu_fraction: Option<f64>,
        /// As `uname -m` names it.
        arch: String,
        /// The driver it takes.
        driver: InstanceDriver,
        /// What its GPUs need to work together.
        fabric: Fabric,
    }
}
