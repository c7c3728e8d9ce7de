//! CUDA's driver API as data: what it lists, what each GPU computed, and faults that name the call.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::pci::PciAddress;

/// What a look through CUDA's driver API found. What comes after a fault is not there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaView {
    /// How it started.
    pub start: Result<CudaStart, CudaFault>,
    /// What each device did that was asked for, in that order.
    pub devices: Vec<CudaDevice>,
    /// The copies between GPUs; `None` if there are no two GPUs, or a device failed before.
    pub peers: Option<Result<Vec<CudaPeer>, CudaFault>>,
}

/// What CUDA lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaStart {
    /// The newest CUDA version of the driver, as `13.0`.
    pub version: String,
    /// UUIDs of the devices, by index. In a process without a choice of its own CUDA lists one MIG
    /// device at most.
    pub uuids: Vec<String>,
}

/// One device, and how it went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaDevice {
    /// The UUID that was asked for.
    pub uuid: String,
    /// What it did.
    pub result: Result<CudaWork, CudaFault>,
}

/// What a device is, and the figures of its work. There is no verdict in them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaWork {
    /// Its UUID, as CUDA has it.
    pub uuid: String,
    /// Marketing name.
    pub name: String,
    /// Its place on the bus, where it has one in a form that is known.
    pub pci_address: Option<PciAddress>,
    /// As `9.0`.
    pub compute_capability: String,
    pub memory_bytes: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The highest clock of the multiprocessors, in MHz; `None` if the driver does not tell.
    pub clock_mhz: Option<u32>,
    /// The highest clock of the memory, in MHz; `None` if the driver does not tell.
    pub memory_clock_mhz: Option<u32>,
    /// From pinned memory of the host to the device, in GB/s (10⁹ bytes).
    pub to_device_gb_s: f64,
    /// From the device to pinned memory of the host.
    pub from_device_gb_s: f64,
    /// Within the device's memory, each byte counted once.
    pub on_device_gb_s: f64,
    /// From the first call to the last, in seconds.
    pub seconds: f64,
}

/// A way from one GPU to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaPeer {
    /// UUID of the GPU that was read.
    pub from: String,
    /// UUID of the GPU that was written.
    pub to: String,
    /// The figure in GB/s, if the hardware has direct access.
    pub gb_s: Option<f64>,
}

/// What went wrong, in which call, and with which devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaFault {
    /// What happened.
    pub cause: CudaCause,
    /// The function of the driver API; `None` if it was none.
    pub call: Option<String>,
    /// UUIDs of the devices that the call was about; none if it was about no device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum CudaCause {
    /// `libcuda.so.1` cannot be opened.
    NotLoadable {
        /// The message of the dynamic loader.
        why: String,
    },
    /// The library lacks the function.
    NoSymbol,
    /// The function returned an error.
    Returned {
        /// `CUresult`.
        code: i32,
    },
    /// It did not return in time, and the process was ended.
    Hung {
        /// Seconds waited.
        after_seconds: u64,
    },
    /// The process ended in the call.
    Crashed {
        /// How.
        why: String,
    },
    /// What came back from the device's memory is not what was written there.
    WrongCopy {
        /// Byte offset of the first difference.
        at: u64,
    },
    /// The kernel's result is not that of the CPU.
    WrongResult {
        /// The first number that differs.
        at: u64,
    },
    /// CUDA gives another device than the one that was asked for.
    OtherDevices {
        /// What it gives.
        found: Vec<String>,
    },
    /// It is not asked: nothing is executed there.
    NotAsked {
        /// Why not.
        why: String,
    },
    /// The process could not be started or understood.
    Failed {
        /// In words.
        why: String,
    },
}

impl CudaView {
    /// Nothing but the reason why CUDA was not asked.
    #[must_use]
    pub fn not_asked(why: &str) -> Self {
        Self {
            start: Err(CudaFault::new(CudaCause::NotAsked {
                why: why.to_owned(),
            })),
            devices: Vec::new(),
            peers: None,
        }
    }
}

impl CudaFault {
    /// Not in a call.
    #[must_use]
    pub fn new(cause: CudaCause) -> Self {
        Self {
            cause,
            call: None,
            devices: Vec::new(),
        }
    }

    #[must_use]
    pub fn in_call(call: &str, cause: CudaCause) -> Self {
        Self {
            call: Some(call.to_owned()),
            ..Self::new(cause)
        }
    }

    /// About these devices, if none is named yet.
    #[must_use]
    pub fn of<'d>(mut self, devices: impl IntoIterator<Item = &'d str>) -> Self {
        if self.devices.is_empty() {
            self.devices = devices.into_iter().map(str::to_owned).collect();
        }
        self
    }
}

impl fmt::Display for CudaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = self.call.as_deref().unwrap_or("CUDA");
        match &self.cause {
            CudaCause::NotLoadable { why } => {
                write!(f, "`libcuda.so.1` cannot be opened: {why}")
            }
            CudaCause::NoSymbol => write!(f, "`libcuda.so.1` has no function `{call}`"),
            CudaCause::Returned { code } => write!(f, "`{call}` returned {code}"),
            CudaCause::Hung { after_seconds } => {
                write!(f, "`{call}` did not return within {after_seconds} s")
            }
            CudaCause::Crashed { why } => write!(f, "`{call}` ended the process, which {why}"),
            CudaCause::WrongCopy { at } => write!(
                f,
                "what was read back from the GPU differs from what was written, first at byte {at}"
            ),
            CudaCause::WrongResult { at } => write!(
                f,
                "the GPU computed another result than the CPU, first in number {at}"
            ),
            CudaCause::OtherDevices { found } if found.is_empty() => {
                f.write_str("CUDA does not know the device by NVML's UUID")
            }
            CudaCause::OtherDevices { found } => write!(f, "CUDA gives {}", found.join(", ")),
            CudaCause::NotAsked { why } => write!(f, "CUDA was not asked: {why}"),
            CudaCause::Failed { why } => f.write_str(why),
        }
    }
}
