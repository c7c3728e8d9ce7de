//! One GPU: its entry in the inventory, completed with the values of its model.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cuda::GpuCuda;
use crate::faults::{self, Fault};

/// Declares the tables of a GPU: every key is optional, and unknown keys are errors.
macro_rules! tables {
    ($($(#[$note:meta])* $name:ident { $($(#[$field_note:meta])* $field:ident: $type:ty = $default:expr,)* })*) => {$(
        $(#[$note])*
        #[derive(Debug, Clone, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        pub struct $name { $($(#[$field_note])* pub $field: $type,)* }
        impl Default for $name {
            fn default() -> Self { Self { $($field: $default,)* } }
        }
    )*};
}

/// Declares values that are a number in NVML and a word in the inventory.
macro_rules! words {
    ($($(#[$note:meta])* $name:ident { $($word:ident = $number:expr,)* })*) => {$(
        $(#[$note])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
        #[serde(rename_all = "kebab-case")]
        #[repr(u32)]
        pub enum $name { #[default] $($word = $number,)* }
        impl $name {
            /// The value of an NVML number, if valid.
            pub fn from_number(number: u32) -> Option<Self> {
                [$(Self::$word),*].into_iter().find(|word| *word as u32 == number)
            }
        }
    )*};
}

words! {
    /// `nvmlBrandType_t`.
    Brand { Nvidia = 14, Tesla = 2, Quadro = 1, QuadroRtx = 12, NvidiaRtx = 13, Geforce = 5,
        GeforceRtx = 15, Titan = 6, TitanRtx = 16, Unknown = 0, }
    /// `nvmlComputeMode_t`.
    ComputeMode { Default = 0, ExclusiveThread = 1, Prohibited = 2, ExclusiveProcess = 3, }
    /// `nvmlGpuVirtualizationMode_t`.
    Virtualization { None = 0, Passthrough = 1, Vgpu = 2, HostVgpu = 3, HostVsga = 4, }
    /// `nvmlIntNvLinkDeviceType_t`.
    Remote { Gpu = 0, IbmNpu = 1, Switch = 2, Unknown = 255, }
    /// `nvmlGpuFabricState_t`.
    FabricState { NotSupported = 0, NotStarted = 1, InProgress = 2, Completed = 3, }
    /// The health summary of `nvmlGpuFabricInfo_v3_t`.
    FabricHealth { NotSupported = 0, Healthy = 1, Unhealthy = 2, LimitedCapacity = 3, }
    /// Field 230, supported from driver 565 on.
    RecoveryAction { None = 0, GpuReset = 1, NodeReboot = 2, DrainP2p = 3, DrainAndReset = 4,
        RecoverImexDomain = 5, BusReset = 6, SystemReboot = 7, }
    /// `nvmlClocksEventReason…`, as bits.
    EventReason { GpuIdle = 0x1, ApplicationsClocksSetting = 0x2, SwPowerCap = 0x4,
        HwSlowdown = 0x8, SyncBoost = 0x10, SwThermalSlowdown = 0x20, HwThermalSlowdown = 0x40,
        HwPowerBrakeSlowdown = 0x80, DisplayClockSetting = 0x100, }
    /// The role of a process on the GPU.
    ProcessKind { Compute = 0, Graphics = 1, Mps = 2, }
}

tables! {
    /// Errors of one kind of memory.
    EccCounts {
        volatile_corrected: u64 = 0, volatile_uncorrected: u64 = 0,
        aggregate_corrected: u64 = 0, aggregate_uncorrected: u64 = 0,
    }
    /// `[gpu.ecc]`.
    Ecc {
        /// Whether the GPU has ECC; the model's value if absent.
        supported: Option<bool> = None,
        enabled: bool = true,
        dram: EccCounts = EccCounts::default(),
        sram: EccCounts = EccCounts::default(),
        sram_threshold_exceeded: bool = false,
    }
    /// `[gpu.remapped-rows]`, from Ampere on.
    RemappedRows {
        correctable: u32 = 0, uncorrectable: u32 = 0, pending: bool = false, failed: bool = false,
        histogram: Histogram = Histogram::default(),
    }
    /// Banks by the number of rows that they can still remap.
    Histogram { max: u32 = 640, high: u32 = 0, partial: u32 = 0, low: u32 = 0, none: u32 = 0, }
    /// `[gpu.retired-pages]`, before Ampere.
    RetiredPages {
        single_bit: Vec<u64> = Vec::new(), double_bit: Vec<u64> = Vec::new(),
        pending: bool = false,
    }
    /// `[gpu.temperature]`, in degrees Celsius.
    Temperature {
        gpu: u32 = 34, memory: u32 = 40, slowdown: u32 = 90, shutdown: u32 = 95,
        memory_max: u32 = 95, gpu_max: u32 = 87,
        /// Degrees left before the GPU is throttled, from Hopper on.
        margin: i32 = 53,
        slowdown_tlimit: i32 = -2, shutdown_tlimit: i32 = -5, memory_max_tlimit: i32 = 0,
        gpu_max_tlimit: i32 = 0,
    }
    /// `[gpu.power]`, in milliwatts.
    Power {
        usage: u32 = 70_000, limit: u32 = 350_000, min_limit: u32 = 100_000,
        max_limit: u32 = 350_000, default_limit: u32 = 350_000,
    }
    /// `[gpu.clocks]`, in megahertz.
    Clocks {
        graphics: u32 = 345, sm: u32 = 345, memory: u32 = 1593, video: u32 = 765,
        max_graphics: u32 = 1980, max_sm: u32 = 1980, max_memory: u32 = 2619,
        max_video: u32 = 1545,
        pstate: u32 = 0,
        event_reasons: Vec<EventReason> = vec![EventReason::GpuIdle],
        /// Microseconds, fields 251 to 253.
        sw_thermal_microseconds: u64 = 0, hw_thermal_microseconds: u64 = 0,
        power_brake_microseconds: u64 = 0,
    }
    /// `[gpu.pcie]`.
    Pcie {
        /// The architecture's values if absent.
        generation: Option<u32> = None, max_generation: Option<u32> = None,
        width: u32 = 16, max_width: u32 = 16, replays: u32 = 0, rollovers: u32 = 0,
        correctable_errors: u64 = 0, non_fatal_errors: u64 = 0, fatal_errors: u64 = 0,
    }
    /// `[gpu.nvlink]`.
    Nvlink {
        /// The model's values if absent.
        links: Option<u32> = None, remote: Option<Remote> = None,
        /// Links that are not active.
        down: Vec<u32> = Vec::new(),
        replay_errors: u64 = 0, recovery_errors: u64 = 0, crc_flit_errors: u64 = 0,
        crc_data_errors: u64 = 0,
    }
    /// `[gpu.fabric]`.
    Fabric {
        /// The model's value if absent.
        state: Option<FabricState> = None,
        /// An NVML return code.
        status: u32 = 0,
        cluster_uuid: String = String::from("00000000-0000-0000-0000-000000000000"),
        clique: u32 = 0, health_mask: u32 = 0,
        health: FabricHealth = FabricHealth::Healthy,
    }
    /// `[gpu.mig]`.
    Mig {
        /// Whether the GPU supports MIG; the model's value if absent.
        supported: Option<bool> = None,
        /// Compute slices of the GPU; the model's value if absent.
        slices: Option<u32> = None,
        enabled: bool = false,
        /// The mode after the next reset; `enabled` if absent.
        pending: Option<bool> = None,
        /// The GPU instances; those of `devices` are added.
        gpu_instances: Vec<GpuInstance> = Vec::new(),
        devices: Vec<MigDevice> = Vec::new(),
        /// The index of the GPU if new instances have nodes in `/dev/nvidia-caps`.
        #[serde(skip)]
        nodes_of: Option<u32> = None,
    }
}

impl Mig {
    /// Compute slices of the GPU.
    pub fn slices(&self) -> u32 {
        self.slices.unwrap_or(7)
    }
}

/// `[[gpu.mig.gpu-instances]]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct GpuInstance {
    /// For example `3g.40gb`.
    pub profile: String,
    /// Unique on the GPU.
    pub id: u32,
    /// The first memory slice.
    pub start: u32,
}

/// `[[gpu.mig.devices]]`: a compute instance.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MigDevice {
    /// For example `1g.10gb`, or `1c.3g.40gb` for a compute instance that is smaller than its GPU instance.
    pub profile: String,
    /// UUID of the MIG device; computed from the GPU's address if absent.
    #[serde(default)]
    pub uuid: String,
    /// GPU instance id; 7 plus the position if absent. Compute instances may share one.
    pub gpu_instance: Option<u32>,
    /// Compute instance id.
    #[serde(default)]
    pub compute_instance: u32,
    /// Numbers of the nodes in `/dev/nvidia-caps`. A process without one of them does not see the device, as in a container.
    #[serde(default)]
    pub capabilities: Vec<u32>,
}

/// `[[gpu.processes]]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Memory in use.
    pub memory_mib: u64,
    /// Compute by default.
    #[serde(default)]
    pub kind: ProcessKind,
}

/// `[[gpu]]`. For a model in `models.toml` only `pci-address` and `pci-id` are needed.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Gpu {
    /// For example `0000:18:00.0`.
    pub pci_address: String,
    /// For example `10de:2330`.
    pub pci_id: String,
    /// For example `10de:16c1`.
    #[serde(default = "no_subsystem")]
    pub pci_subsystem: String,
    /// Marketing name.
    #[serde(default)]
    pub name: String,
    /// NVML brand.
    pub brand: Option<Brand>,
    /// For example `9.0`.
    #[serde(default)]
    pub compute_capability: String,
    /// `GPU-…`; computed from the address if absent.
    #[serde(default)]
    pub uuid: String,
    /// Computed from the address if absent.
    #[serde(default)]
    pub serial: String,
    /// Number of `/dev/nvidiaN`; the index if absent.
    pub minor: Option<u32>,
    /// Framebuffer.
    #[serde(default)]
    pub memory_mib: u64,
    /// Memory in use.
    #[serde(default)]
    pub memory_used_mib: u64,
    /// Reserved by the driver.
    #[serde(default)]
    pub memory_reserved_mib: u64,
    /// Size of BAR1; the next power of two above the framebuffer if absent.
    #[serde(default)]
    pub bar1_mib: u64,
    /// Persistence mode.
    #[serde(default)]
    pub persistence: bool,
    /// While this path exists, a program uses the GPU: it cannot be reset, and its instances cannot be destroyed.
    pub in_use_while: Option<PathBuf>,
    /// Compute mode.
    #[serde(default)]
    pub compute_mode: ComputeMode,
    /// The driver's recovery action.
    #[serde(default)]
    pub recovery_action: RecoveryAction,
    /// Virtualization mode.
    #[serde(default)]
    pub virtualization: Virtualization,
    /// Video BIOS version.
    #[serde(default = "a_version")]
    pub vbios: String,
    /// InfoROM image version.
    #[serde(default = "a_version")]
    pub inforom: String,
    /// Part number of the board.
    #[serde(default = "a_version")]
    pub board_part_number: String,
    /// Whether GSP firmware runs; from Turing on the default is yes.
    pub gsp: Option<bool>,
    /// NUMA node.
    #[serde(default)]
    pub numa_node: u32,
    /// ECC.
    #[serde(default)]
    pub ecc: Ecc,
    /// Row remapper.
    #[serde(default)]
    pub remapped_rows: RemappedRows,
    /// Retired pages.
    #[serde(default)]
    pub retired_pages: RetiredPages,
    /// Temperatures.
    #[serde(default)]
    pub temperature: Temperature,
    /// Power.
    #[serde(default)]
    pub power: Power,
    /// Clocks.
    #[serde(default)]
    pub clocks: Clocks,
    /// PCI Express.
    #[serde(default)]
    pub pcie: Pcie,
    /// NVLink.
    #[serde(default)]
    pub nvlink: Nvlink,
    /// NVLink fabric.
    #[serde(default)]
    pub fabric: Fabric,
    /// MIG.
    #[serde(default)]
    pub mig: Mig,
    /// Processes on the GPU.
    #[serde(default)]
    pub processes: Vec<Process>,
    /// Field values by id; they override everything else.
    #[serde(default)]
    pub fields: BTreeMap<String, i64>,
    /// Functions that never return for this GPU.
    #[serde(default)]
    pub hang: Vec<String>,
    /// Return codes for this GPU by function.
    #[serde(default)]
    pub returns: BTreeMap<String, u32>,
    /// The return code of every function for this GPU, once it has a handle.
    pub fails_with: Option<u32>,
    /// CUDA faults of this GPU.
    #[serde(default)]
    pub cuda: GpuCuda,
}

fn no_subsystem() -> String {
    String::from("10de:0000")
}

fn a_version() -> String {
    String::from("00.00.00.00.01")
}

impl Gpu {
    /// The fault of a function for this GPU.
    pub fn fault(&self, symbol: &str) -> Option<Fault> {
        faults::find(&self.hang, &self.returns, symbol).or_else(|| {
            let code = self.fails_with.filter(|code| *code != 0)?;
            Some(Fault::Return(crate::code::Code(code)))
        })
    }

    /// `(major, minor)`, checked when the inventory was read.
    pub fn capability(&self) -> (u32, u32) {
        two_numbers(&self.compute_capability, '.', 10).unwrap_or_default()
    }

    /// `nvmlDeviceArchitecture_t`.
    pub fn architecture(&self) -> u32 {
        match self.capability() {
            (3, _) => 2,
            (5, _) => 3,
            (6, _) => 4,
            (7, 0..=4) => 5,
            (7, _) => 6,
            (8, 9) => 8,
            (8, _) => 7,
            (9, _) => 9,
            (10..=12, _) => 10,
            _ => u32::MAX,
        }
    }

    /// Ampere or newer, which remap rows; older GPUs retire pages.
    pub fn remaps_rows(&self) -> bool {
        self.capability() >= (8, 0)
    }

    /// Hopper or newer, which report thermal limits as the remaining margin.
    pub fn has_margin(&self) -> bool {
        self.capability() >= (9, 0)
    }

    /// The architecture's PCI Express generation.
    pub fn pcie_generation(&self) -> u32 {
        match self.capability() {
            (..=7, _) => 3,
            (8, _) => 4,
            _ => 5,
        }
    }

    /// Domain, bus and device; the function of a GPU is 0.
    pub fn address(&self) -> (u32, u32, u32) {
        address(&self.pci_address).unwrap_or_default()
    }

    /// Device above vendor, as NVML packs them.
    pub fn packed(id: &str) -> u32 {
        two_numbers(id, ':', 16).map_or(0, |(vendor, device)| (device << 16) | vendor)
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        let running: u64 = self
            .processes
            .iter()
            .map(|process| process.memory_mib)
            .sum();
        (self.memory_used_mib.max(running)) << 20
    }
}

/// Two numbers around a separator.
pub fn two_numbers(text: &str, separator: char, radix: u32) -> Option<(u32, u32)> {
    let (left, right) = text.split_once(separator)?;
    Some((
        u32::from_str_radix(left, radix).ok()?,
        u32::from_str_radix(right, radix).ok()?,
    ))
}

/// The 16 bytes of a UUID.
pub fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|character| *character != '-').collect();
    if digits.len() != 32 {
        return None;
    }
    u128::from_str_radix(&digits, 16)
        .ok()
        .map(u128::to_be_bytes)
}

/// Domain, bus and device of `0000:18:00.0`.
pub fn address(text: &str) -> Option<(u32, u32, u32)> {
    let (domain, rest) = text.split_once(':')?;
    let (place, function) = rest.split_once('.')?;
    let (bus, device) = two_numbers(place, ':', 16)?;
    let fits = bus <= 0xff && device <= 0x1f && function == "0";
    let domain = u32::from_str_radix(domain, 16).ok()?;
    fits.then_some((domain, bus, device))
}
