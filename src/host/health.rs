//! GPU health as reported by NVML.

use serde::{Deserialize, Serialize};

/// The current health of a GPU according to NVML. A value is `None` if the GPU or its driver does not
/// report it. For example, NVML hides memory errors while a GPU has MIG devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct GpuHealth {
    /// The recovery action requested by the driver: `nvmlDeviceGpuRecoveryAction_t`, field 230,
    /// branch 565 and later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery_action: Option<u32>,
    /// Memory errors. Also `None` while ECC is disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc: Option<EccErrors>,
    /// The ECC mode now and after a reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_mode: Option<EccMode>,
    /// Uncorrected SRAM errors exceed NVIDIA's threshold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sram_threshold_exceeded: Option<bool>,
    /// Remapped rows (Ampere and later).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remapped_rows: Option<RemappedRows>,
    /// Retired memory pages (before Ampere).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retired_pages: Option<RetiredPages>,
    /// The infoROM is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inforom_valid: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Temperature>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerLimit>,
    /// The reasons for lower clocks: the bits of `nvmlClocksEventReason…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_events: Option<u64>,
    /// The performance state. 0 is full speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub performance_state: Option<u32>,
    /// The PCIe link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieLink>,
    /// Links to other GPUs and switches. Not queried in MIG mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<NvLinks>,
}

/// ECC memory errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EccErrors {
    /// Corrected errors since the driver was loaded.
    pub corrected: u64,
    /// Uncorrected errors since the driver was loaded.
    pub uncorrected: u64,
    /// Uncorrected errors in the lifetime of the GPU.
    pub lifetime_uncorrected: u64,
}

/// Whether ECC is enabled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EccMode {
    pub current: bool,
    /// After the next reset.
    pub pending: bool,
}

/// Remapped memory rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RemappedRows {
    /// Rows remapped because of corrected errors.
    pub correctable: u32,
    /// Rows remapped because of uncorrected errors.
    pub uncorrectable: u32,
    /// More rows will be remapped at the next reset.
    pub pending: bool,
    /// A row could not be remapped.
    pub failed: bool,
    /// Memory banks without spare rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exhausted_banks: Option<u32>,
}

/// Retired memory pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RetiredPages {
    /// Pages with double-bit errors or multiple single-bit errors.
    pub count: u32,
    /// More pages will be retired at the next reset.
    pub pending: bool,
}

/// Temperatures in degrees Celsius.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Temperature {
    /// The GPU temperature.
    pub gpu: i32,
    /// The margin to the slowdown temperature. The hardware slows down at 0 or less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub margin: Option<i32>,
    /// The memory temperature, if it has a sensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u32>,
    /// The memory temperature at which the driver slows down the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<u32>,
}

/// Power limits in milliwatts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PowerLimit {
    /// The limit in effect.
    pub enforced: u32,
    /// The default limit of the board.
    pub default: u32,
}

/// The PCIe link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PcieLink {
    /// Lanes in use.
    pub width: u32,
    /// Lanes supported by GPU and slot.
    pub max_width: u32,
    /// Generation in use. It is lower while the GPU is idle.
    pub generation: u32,
    /// Generation supported by GPU and slot.
    pub max_generation: u32,
}

/// Links to other GPUs and switches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NvLinks {
    /// The number of links.
    pub count: u32,
    /// The number of active links.
    pub active: u32,
    /// Recovery errors since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery_errors: Option<u32>,
}
