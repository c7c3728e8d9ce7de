//! The health of a GPU, as NVML tells it.

use serde::{Deserialize, Serialize};

/// What NVML says of a GPU's health now. `None` where the GPU or its driver does not report a value: NVML hides
/// the errors of memory while a GPU has MIG devices, for example.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct GpuHealth {
    /// What the driver asks for: `nvmlDeviceGpuRecoveryAction_t`, field 230, of branch 565 and newer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery_action: Option<u32>,
    /// Errors of memory; `None` also while ECC is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc: Option<EccErrors>,
    /// ECC is on now, and will be after a reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_mode: Option<EccMode>,
    /// SRAM has had more uncorrected errors than NVIDIA allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sram_threshold_exceeded: Option<bool>,
    /// Remapped rows, from Ampere on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remapped_rows: Option<RemappedRows>,
    /// Pages of memory that are not used any more, before Ampere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retired_pages: Option<RetiredPages>,
    /// The board's own data is whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inforom_valid: Option<bool>,
    /// Temperatures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Temperature>,
    /// Power limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerLimit>,
    /// Why clocks are lower than they could be: the bits of `nvmlClocksEventReason…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_events: Option<u64>,
    /// 0 is full speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub performance_state: Option<u32>,
    /// The link to the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieLink>,
    /// Links to other GPUs and switches; not asked of a GPU in MIG mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<NvLinks>,
}

/// Errors of memory. The volatile ones are counted since the driver was loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EccErrors {
    /// Corrected since the driver was loaded.
    pub corrected: u64,
    /// Not corrected since the driver was loaded.
    pub uncorrected: u64,
    /// Not corrected in the GPU's life.
    pub lifetime_uncorrected: u64,
}

/// Whether errors of memory are corrected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EccMode {
    /// Now.
    pub current: bool,
    /// After the next reset.
    pub pending: bool,
}

/// Remapped rows: spare ones stand in for broken ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RemappedRows {
    /// For errors that were corrected.
    pub correctable: u32,
    /// For errors that were not.
    pub uncorrectable: u32,
    /// Some more after the next reset.
    pub pending: bool,
    /// A row could not be remapped.
    pub failed: bool,
    /// Banks of memory that have no spare row left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exhausted_banks: Option<u32>,
}

/// Pages of memory that are not used any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RetiredPages {
    /// For errors of two bits, and for many of one.
    pub count: u32,
    /// Some more after the next reset.
    pub pending: bool,
}

/// Degrees Celsius.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Temperature {
    /// Of the GPU.
    pub gpu: i32,
    /// Until the hardware slows down; at 0 and below it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub margin: Option<i32>,
    /// Of the memory, where it has a sensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u32>,
    /// At which the driver slows the memory down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<u32>,
}

/// Milliwatts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PowerLimit {
    /// In force now, whoever set it.
    pub enforced: u32,
    /// The board's own.
    pub default: u32,
}

/// The link to the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PcieLink {
    /// Lanes in use.
    pub width: u32,
    /// Lanes that GPU and slot could use.
    pub max_width: u32,
    /// Generation in use; it falls while the GPU is idle.
    pub generation: u32,
    /// Generation that GPU and slot could use.
    pub max_generation: u32,
}

/// Links to other GPUs and switches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NvLinks {
    /// That the GPU has.
    pub count: u32,
    /// That work.
    pub active: u32,
    /// Recovery errors since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery_errors: Option<u32>,
}
