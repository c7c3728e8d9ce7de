//! The types of the entries in `compat/cuda-driver-matrix.toml`.

use serde::Deserialize;

pub use crate::chips::{ChipRange, Series};
pub use crate::evidence::Confidence;
pub use crate::options::{InstanceFlavor, ModuleOption};

use crate::evidence::row;
use crate::identity::{Architecture, Flavor, SupportedFlavors};
use crate::version::{Branch, CudaVersion, CudnnVersion, DriverVersion, KernelVersion};
use crate::{capability::ComputeCapability, pci::PciId};

/// The supported schema version of the file.
pub const SCHEMA: u32 = 1;

/// The compatibility matrix: drivers, GPUs, CUDA versions and kernels.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Matrix {
    /// The schema version.
    pub schema: u32,
    /// The date of `support` and of the newest versions.
    pub as_of: jiff::civil::Date,
    /// The sources of the entries.
    #[serde(rename = "source")]
    pub citations: Vec<Citation>,
    /// GPU generations, oldest first.
    #[serde(rename = "architecture")]
    pub architectures: Vec<ArchitectureRow>,
    /// Compute capabilities of the generations.
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
    /// NVIDIA base images.
    #[serde(rename = "cuda-image", default)]
    pub cuda_images: Vec<CudaImage>,
    /// Minor-version compatibility.
    #[serde(rename = "cuda-major")]
    pub cuda_majors: Vec<CudaMajor>,
    /// Newer CUDA on an older driver.
    #[serde(rename = "forward-compat", default)]
    pub forward_compat: Vec<ForwardCompat>,
    /// The boards that support forward compatibility.
    pub forward_compat_policy: ForwardCompatPolicy,
    /// The rule for a GPU without an entry.
    pub unlisted_gpu: UnlistedGpu,
    /// Device ID ranges of one architecture.
    #[serde(rename = "chip-range", default)]
    pub chip_ranges: Vec<ChipRange>,
    /// Product names of GPUs without an entry.
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
    /// Subsystem IDs in vGPU guests.
    #[serde(rename = "vgpu", default)]
    pub vgpus: Vec<Vgpu>,
    /// NVIDIA security bulletins about drivers.
    #[serde(rename = "driver-floor", default)]
    pub driver_floors: Vec<DriverFloor>,
    /// NVIDIA security bulletins about other packages.
    #[serde(rename = "package-floor", default)]
    pub package_floors: Vec<PackageFloor>,
    /// Fixes that a kernel requires, for each branch.
    #[serde(rename = "kernel-fix", default)]
    pub kernel_fixes: Vec<KernelFix>,
    /// The newest kernel on which a version is known to build.
    #[serde(rename = "kernel-limit", default)]
    pub kernel_limits: Vec<KernelLimit>,
    /// The oldest kernel that versions support.
    #[serde(rename = "kernel-oldest", default)]
    pub kernel_oldest: Vec<KernelOldest>,
    /// Reports about a kernel and some versions.
    #[serde(rename = "kernel-report", default)]
    pub kernel_reports: Vec<KernelReport>,
    /// cuDNN releases.
    #[serde(rename = "cudnn", default)]
    pub cudnn: Vec<Cudnn>,
    /// Cloud instance types.
    #[serde(rename = "instance-type", default)]
    pub instance_types: Vec<InstanceType>,
    /// Kernel module options that boards or instance types require.
    #[serde(rename = "module-option", default)]
    pub module_options: Vec<ModuleOption>,
    /// Preferred kernel module flavors on instance types.
    #[serde(rename = "instance-flavor", default)]
    pub instance_flavors: Vec<InstanceFlavor>,
}

/// A source of entries.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Citation {
    /// Its key in `sources`.
    pub key: String,
    /// The title.
    pub title: String,
    /// The location.
    pub r#where: String,
    /// The date of publication or access, as precise as known.
    pub date: String,
}

/// The service that GPUs need to communicate beyond PCI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fabric {
    /// No service.
    None,
    /// The fabric manager, of exactly the driver version.
    Fm,
    /// The fabric manager and the NVLink subnet manager.
    #[serde(rename = "fm+nvlsm")]
    FmNvlsm,
    /// IMEX on the node; the fabric manager runs elsewhere.
    Imex,
}

row! {
    /// A GPU generation.
    ArchitectureRow {
        /// `hopper`.
        name: Architecture,
        /// `Hopper`.
        title: String,
        /// The prefixes of its chip names in `pci.ids`.
        chip_prefixes: Vec<String>,
        /// The module flavors that its boards support. The entry of a board takes precedence.
        modules: SupportedFlavors,
        /// The last branch that supports it. `None` if it is still supported.
        last_branch: Option<Branch>,
    }
}

row! {
    /// Compute capabilities with the same limits.
    CapabilityRow {
        /// The capabilities.
        versions: Vec<ComputeCapability>,
        /// The architecture's name.
        architecture: Architecture,
        /// The minimum driver for all boards with these capabilities. A board may require a newer one.
        min_driver: Option<DriverVersion>,
        /// The first CUDA version with code for these capabilities.
        first_cuda: CudaVersion,
        /// The last CUDA version with code for these capabilities. `None` if they are still supported.
        last_cuda: Option<CudaVersion>,
    }
}

/// The support type of a branch, as NVIDIA publishes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BranchKind {
    /// Long-term support branch.
    Ltsb,
    /// Production branch.
    Pb,
    /// New feature branch, short-lived.
    Nfb,
    /// Only shipped with a toolkit.
    Development,
    /// For old GPUs.
    Legacy,
    /// Not found in a source.
    Unknown,
}

impl BranchKind {
    /// The type as text.
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

/// The support status of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Support {
    /// It gets fixes.
    Supported,
    /// It is end-of-life.
    Ended,
    /// Not found in a source.
    Unknown,
}

/// The open kernel modules of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OpenModules {
    /// Not available.
    None,
    /// Available; the proprietary modules are the default.
    Available,
    /// The default.
    Default,
    /// The only modules.
    Only,
}

row! {
    /// A driver branch.
    BranchRow {
        /// Its number.
        branch: Branch,
        /// Its support type.
        kind: BranchKind,
        /// The newest known version.
        newest_version: DriverVersion,
        /// Its release date, as precise as known.
        newest_date: Option<String>,
        /// The end-of-life date.
        end_of_life: Option<String>,
        /// The support status on [`Matrix::as_of`].
        support: Support,
        /// The date from which a long-term branch is preferred. Before this date, few machines have run it.
        default_from: Option<jiff::civil::Date>,
        /// The CUDA version that the driver API reports.
        max_cuda: CudaVersion,
        /// The newest architecture that its newest version supports.
        newest_architecture: Architecture,
        /// Its open modules.
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
        /// The first driver that supports every feature. `None` if unknown.
        min_driver: Option<DriverVersion>,
        /// Architectures, as printed by `uname -m`.
        arches: Vec<String>,
    }
}

row! {
    /// Base images of a CUDA toolkit, `nvidia/cuda:VERSION-base-SYSTEM`.
    CudaImage {
        /// The toolkit.
        version: CudaVersion,
        /// Systems, as in the tags. The first one is used for other systems.
        systems: Vec<String>,
    }
}

row! {
    /// A CUDA major version.
    CudaMajor {
        /// Its number.
        major: u32,
        /// The minimum driver for all its minor versions. `None` if each has its own minimum.
        minor_version_min_driver: Option<DriverVersion>,
    }
}

row! {
    /// A `cuda-compat` package.
    ForwardCompat {
        /// Its CUDA version.
        cuda: CudaVersion,
        /// The branches that it supports.
        branches: Vec<Branch>,
    }
}

row! {
    /// The boards that support forward compatibility.
    ForwardCompatPolicy {
        /// Brands without support, as in board names.
        excluded: Vec<String>,
    }
}

row! {
    /// The rule for a GPU without an entry.
    UnlistedGpu {
        /// The first device ID for which the open modules are assumed.
        open_from: PciId,
    }
}

row! {
    /// A GPU.
    Gpu {
        /// Its id.
        pci_id: PciId,
        /// The board, if several boards have the same ID.
        subsystem_id: Option<PciId>,
        /// The product name.
        name: String,
        /// Other names.
        #[serde(default)]
        aliases: Vec<String>,
        /// The architecture's name.
        architecture: Architecture,
        /// Its compute capability.
        compute_capability: ComputeCapability,
        /// The fabric service on a complete baseboard. A VM that sees no NVSwitch needs none.
        fabric: Fabric,
        /// The supported module flavors.
        modules: SupportedFlavors,
        /// The first version of each branch that supports it, oldest first.
        #[serde(default)]
        min_drivers: Vec<DriverVersion>,
        /// Newer branches that do not list it.
        #[serde(default)]
        not_named_in: Vec<Branch>,
        /// The oldest version that is known to list it.
        named_since: Option<DriverVersion>,
        /// The oldest recommended version. Older ones work, but have known problems.
        advised_driver: Option<DriverVersion>,
    }
}

row! {
    /// An NVSwitch.
    NvSwitch {
        /// Its PCI ID. `None` if it is not an NVIDIA PCI device.
        pci_id: Option<PciId>,
        /// The name.
        name: String,
        /// `false` for a device that only looks like an NVSwitch.
        is_switch: bool,
    }
}

row! {
    /// The smallest MIG profile of a class of boards.
    MigProfile {
        /// The profile, as printed by `nvidia-smi mig`.
        smallest: String,
        /// The memory size of these boards.
        memory_gb: u32,
        /// The boards, as text.
        boards: String,
        /// The maximum number on a GPU.
        max_instances: u32,
    }
}

/// A vGPU profile in a guest.
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
        /// Its date.
        date: jiff::civil::Date,
        /// The CVEs, most severe first. May be incomplete.
        #[serde(default)]
        cves: Vec<String>,
        /// The first fixed version of each branch, on Linux.
        first_fixed: Vec<DriverVersion>,
    }
}

row! {
    /// A security bulletin about other packages.
    PackageFloor {
        /// Its number.
        bulletin: String,
        /// Its date.
        date: jiff::civil::Date,
        /// The CVEs, most severe first.
        #[serde(default)]
        cves: Vec<String>,
        /// The names of the packages.
        packages: Vec<String>,
        /// The first fixed version, without epoch and revision.
        first_fixed: String,
    }
}

row! {
    /// The first versions with the fix for a kernel.
    KernelFix {
        /// The first mainline kernel that requires it.
        kernel: KernelVersion,
        /// The first fixed version of each branch.
        first_fixed: Vec<DriverVersion>,
        /// The first version of each branch with all known fixes for the kernel.
        #[serde(default)]
        complete: Vec<DriverVersion>,
        /// Branches that ended without the fix.
        #[serde(default)]
        never_fixed: Vec<Branch>,
        /// Only for this architecture, as printed by `uname -m`.
        arch: Option<String>,
        /// Only for these modules.
        flavor: Option<Flavor>,
    }
}

row! {
    /// The newest mainline kernel on which a version builds without patches.
    KernelLimit {
        /// The version.
        driver: DriverVersion,
        /// The kernel.
        newest_kernel: KernelVersion,
        /// The first kernel that is known to need a patch.
        first_broken: Option<KernelVersion>,
    }
}

row! {
    /// The oldest kernel that a range of versions supports.
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
        /// A mainline series, or the beginning of a release. `None` for all.
        kernel: Option<KernelVersion>,
        /// The end of the release, such as the vendor suffix for 64 KiB pages.
        ending: Option<String>,
        /// Also applies to later vendor releases, which have a higher last number.
        #[serde(default)]
        or_later: bool,
        /// From this version on.
        first_driver: Option<DriverVersion>,
        /// Up to this version.
        last_driver: DriverVersion,
        /// The kernel modules of the report. `None` for both.
        modules: Option<SupportedFlavors>,
        /// The modules build, and the failure occurs at run time.
        #[serde(default)]
        builds: bool,
        /// The failure.
        report: String,
        /// The driver error that the failure causes.
        shows: Option<Shows>,
    }
}

/// A driver error that is caused by a known failure.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shows {
    /// The Xid number.
    pub xid: u32,
    /// The remedy.
    pub remedy: String,
}

row! {
    /// The packages of a cuDNN version for one CUDA major version.
    Cudnn {
        /// Its version.
        version: CudnnVersion,
        /// The CUDA major version.
        cuda_major: u32,
        /// The oldest supported CUDA version.
        cuda_min: CudaVersion,
        /// The newest CUDA version at its release.
        cuda_max: CudaVersion,
        /// The oldest driver.
        min_driver: DriverVersion,
        /// The lowest compute capability.
        capability_min: ComputeCapability,
        /// The highest compute capability at its release.
        capability_max: ComputeCapability,
    }
}

/// The driver of an instance type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstanceDriver {
    /// The data center driver.
    DataCenter,
    /// The licensed driver for vGPU guests.
    Grid,
    /// None, because the GPU is not an NVIDIA GPU.
    None,
}

row! {
    /// A cloud instance type.
    InstanceType {
        /// `aws`, `gcp`, `azure`, `oracle`.
        provider: String,
        /// Its name.
        name: String,
        /// The GPU, as text.
        gpu: String,
        /// The PCI IDs of the GPU. Several IDs are alternatives.
        #[serde(default)]
        gpu_ids: Vec<PciId>,
        /// The number of whole GPUs.
        gpus: u32,
        /// The slice of a GPU, if it is not a whole one.
        gpu_fraction: Option<f64>,
        /// The architecture, as printed by `uname -m`.
        arch: String,
        /// The driver.
        driver: InstanceDriver,
        /// The fabric service of its GPUs.
        fabric: Fabric,
    }
}
