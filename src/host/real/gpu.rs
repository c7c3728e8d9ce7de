//! Calls NVML in a child process, because a call can hang forever on a faulty GPU, and a library of
//! another version than the kernel module can crash. CUDA is in `cuda`.

mod mig;

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nvml_wrapper::enum_wrappers::device::ComputeMode as NvmlComputeMode;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml as Library};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v3_t, nvmlReturn_t,
};

use super::cuda::{Asking, TimeLimits};
use super::ourselves::Ourselves;
use super::{
    answer::{code, optional, version_of},
    health::health,
};
use crate::host::exec::tail;
use crate::host::{
    ComputeMode, CudaView, Exec, ExecError, FabricHealth, FabricProgress, Gpu, GpuFabric,
    GpuHealth, MigSupport, Nvml, NvmlDevice, NvmlView,
};
use crate::model::pci::PciId;

/// The hidden subcommand that prints [`nvml_view`] as JSON.
pub const NVML_VIEW: &str = "nvml-view";

/// Healthy nodes with many GPUs and without persistence mode need almost this long.
const DEADLINE: Duration = Duration::from_secs(30);

/// The library name in the driver packages of every distribution.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// If one of these paths exists, a driver is loaded. The last one is for WSL.
const DRIVER_TRACES: [&str; 4] = [
    "/proc/driver/nvidia/version",
    "/sys/module/nvidia",
    "/dev/nvidiactl",
    "/dev/dxg",
];

/// NVML and CUDA on this machine.
#[derive(Clone)]
pub struct RealGpu {
    exec: Arc<dyn Exec>,
    program: Ourselves,
    deadline: Duration,
    limits: TimeLimits,
}

impl RealGpu {
    /// Creates an interface that runs this binary in child processes, using `exec`.
    pub fn new(exec: Arc<dyn Exec>) -> Self {
        Self::of(exec, Ourselves::of_process(), TimeLimits::default())
    }

    /// Creates an interface with another program for the child processes and other time limits for
    /// CUDA. For tests.
    pub fn of(exec: Arc<dyn Exec>, program: Ourselves, limits: TimeLimits) -> Self {
        Self {
            exec,
            program,
            deadline: DEADLINE,
            limits,
        }
    }
}

#[async_trait]
impl Gpu for RealGpu {
    async fn survey(&self) -> Nvml {
        let cmd = self.program.command([NVML_VIEW.to_owned()]);
        let cmd = cmd.deadline(self.deadline);
        let output = match self.exec.run(&cmd, &mut |_, _| {}).await {
            Ok(output) => output,
            Err(ExecError::Deadline { after, .. }) => {
                return Nvml::Hung {
                    after_seconds: after.as_secs(),
                };
            }
            Err(error) => return failed(format!("NVML could not be queried: {error}")),
        };
        if !output.ok() {
            let said = tail(&output.stderr);
            return failed(format!("the NVML process {}: {said}", output.status));
        }
        serde_json::from_str(&output.stdout)
            .unwrap_or_else(|error| failed(format!("the NVML process printed no result: {error}")))
    }

    async fn compute(&self, devices: &[String], within: Duration) -> CudaView {
        let asking = Asking {
            exec: &*self.exec,
            program: &self.program,
            limits: self.limits,
            until: tokio::time::Instant::now() + self.limits.whole.min(within),
        };
        asking.view(devices).await
    }
}

fn failed(why: String) -> Nvml {
    Nvml::Failed { code: None, why }
}

/// Calls NVML in this process. It may hang or crash, so only the child process of [`RealGpu`] calls
/// it.
pub fn nvml_view() -> Nvml {
    view(
        Path::new(LIBRARY),
        DRIVER_TRACES.iter().any(|path| Path::new(path).exists()),
    )
}

fn view(library: &Path, driver: bool) -> Nvml {
    // SAFETY: the driver library, found in the same way as by every CUDA program. Its initializers
    // run in every process that uses the GPU.
    if let Err(error) = unsafe { libloading::Library::new(library) } {
        return Nvml::NotLoadable {
            why: error.to_string(),
        };
    }
    if !driver {
        // As root, `nvmlInit` would load the kernel module (with `nvidia-modprobe`), but a query
        // must not change anything.
        return Nvml::DriverNotLoaded;
    }
    inventory(library.as_os_str()).unwrap_or_else(state)
}

fn inventory(library: &OsStr) -> Result<Nvml, NvmlError> {
    let nvml = Library::builder().lib_path(library).init()?;
    let count = nvml.device_count()?;
    if count == 0 {
        return Ok(Nvml::NoDevices);
    }
    let cuda_version = optional(nvml.sys_cuda_driver_version())?.map(|version| {
        let major = nvml_wrapper::cuda_driver_version_major(version);
        let minor = nvml_wrapper::cuda_driver_version_minor(version);
        format!("{major}.{minor}")
    });
    Ok(Nvml::Ready(NvmlView {
        driver_version: nvml.sys_driver_version()?,
        cuda_version,
        devices: devices(&nvml, count),
    }))
}

/// Queries all GPUs in parallel, because validating the infoROM takes 70 ms per GPU (measured on an
/// H100).
fn devices(nvml: &Library, count: u32) -> Vec<NvmlDevice> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..count)
            .map(|index| scope.spawn(move || device(nvml, index)))
            .collect();
        (asked.into_iter())
            .map(|one| {
                one.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    })
}

/// Converts an NVML initialization error to a state.
fn state(error: NvmlError) -> Nvml {
    match error {
        NvmlError::LibloadingError(error) => Nvml::NotLoadable {
            why: error.to_string(),
        },
        NvmlError::DriverNotLoaded => Nvml::DriverNotLoaded,
        NvmlError::LibRmVersionMismatch => Nvml::VersionMismatch,
        error => Nvml::Failed {
            code: code(&error),
            why: error.to_string(),
        },
    }
}

/// Queries one GPU. The error of a GPU that does not respond is a part of the result, so that the
/// other GPUs are still listed.
fn device(nvml: &Library, index: u32) -> NvmlDevice {
    let mut about = NvmlDevice {
        index,
        uuid: None,
        name: None,
        pci_address: None,
        pci_id: None,
        minor: None,
        memory_bytes: None,
        compute_capability: None,
        persistence: None,
        compute_mode: None,
        mig: None,
        mig_devices: Vec::new(),
        mig_support: None,
        fabric: None,
        health: None,
        error: None,
    };
    let filled = nvml
        .device_by_index(index)
        .and_then(|device| fill(&mut about, nvml, &device));
    if let Err(error) = filled {
        about.error = Some(error.to_string());
    }
    about
}

/// Reads the values of the GPU, the most important first, until the first error. A value that is
/// not available is not an error.
fn fill(about: &mut NvmlDevice, nvml: &Library, device: &Device<'_>) -> Result<(), NvmlError> {
    if let Some(pci) = optional(device.pci_info())? {
        // An address in an unknown format is omitted. The parse error contains no further
        // information.
        about.pci_address = pci.bus_id.parse().ok();
        let [device_high, device_low, vendor_high, vendor_low] = pci.pci_device_id.to_be_bytes();
        about.pci_id = Some(PciId {
            vendor: u16::from_be_bytes([vendor_high, vendor_low]),
            device: u16::from_be_bytes([device_high, device_low]),
        });
    }
    about.uuid = optional(device.uuid())?;
    about.name = optional(device.name())?;
    about.minor = optional(device.minor_number())?;
    about.memory_bytes = optional(device.memory_info())?.map(|memory| memory.total);
    about.compute_capability = optional(device.cuda_compute_capability())?
        .map(|capability| format!("{}.{}", capability.major, capability.minor));
    about.persistence = optional(device.is_in_persistent_mode())?;
    about.compute_mode = optional(device.compute_mode())?.map(compute_mode);
    if let Some(mode) = optional(device.mig_mode())? {
        about.mig = Some(mode.current != 0);
        about.mig_support = Some(MigSupport {
            pending: mode.pending != 0,
            profiles: mig::profiles(nvml, device, about.memory_bytes)?,
        });
    }
    if about.mig == Some(true) {
        about.mig_devices = mig::devices(nvml, device, about.memory_bytes)?;
    }
    about.fabric = optional(fabric(nvml, device))?.flatten();
    // In MIG mode, a GPU does not use its NVLinks, and on some boards they are disabled.
    let uses_nvlink = about.mig != Some(true);
    let into = about.health.insert(GpuHealth::default());
    health(nvml, device, uses_nvlink, into)
}

fn compute_mode(mode: NvmlComputeMode) -> ComputeMode {
    match mode {
        NvmlComputeMode::Default => ComputeMode::Default,
        NvmlComputeMode::ExclusiveThread => ComputeMode::ExclusiveThread,
        NvmlComputeMode::Prohibited => ComputeMode::Prohibited,
        NvmlComputeMode::ExclusiveProcess => ComputeMode::ExclusiveProcess,
    }
}

/// Returns the fabric registration of the GPU, or `None` if it has no fabric. `nvml-wrapper` has no
/// function for this.
fn fabric(nvml: &Library, device: &Device<'_>) -> Result<Option<GpuFabric>, NvmlError> {
    // SAFETY: the handle is only used while `device`, and therefore the library, is alive.
    let handle = unsafe { device.handle() };
    let answer = match fabric_info(nvml, handle) {
        // Older drivers only have the first version of the function or its struct.
        Err(error) if is_newer_than_driver(&error) => first_fabric_info(nvml, handle)?,
        answer => answer?,
    };
    let state = match answer.state {
        1 => FabricProgress::NotStarted,
        2 => FabricProgress::InProgress,
        3 => FabricProgress::Completed,
        // 0 is "not supported".
        _ => return Ok(None),
    };
    Ok(Some(GpuFabric {
        state,
        status: answer.status,
        cluster: cluster(answer.cluster),
        clique: answer.clique,
        health: match answer.health {
            1 => Some(FabricHealth::Healthy),
            2 => Some(FabricHealth::Unhealthy),
            3 => Some(FabricHealth::LimitedCapacity),
            // 0 is "not supported".
            _ => None,
        },
    }))
}

/// The result of both versions of the function. The first version does not report the health.
struct FabricAnswer {
    state: u8,
    status: nvmlReturn_t,
    cluster: [u8; 16],
    clique: u32,
    health: u8,
}

/// Formats the UUID of a cluster. Zeros mean that there is none.
fn cluster(bytes: [u8; 16]) -> Option<String> {
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    (bytes != [0; 16]).then(|| parts.join("-"))
}

/// Whether the driver lacks the function or the struct version.
fn is_newer_than_driver(error: &NvmlError) -> bool {
    /// `NVML_ERROR_ARGUMENT_VERSION_MISMATCH` in `nvml.h`.
    const OTHER_VERSION: i32 = 25;
    matches!(
        error,
        NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) | NvmlError::InvalidArg
    ) || code(error) == Some(OTHER_VERSION)
}

fn fabric_info(nvml: &Library, device: nvmlDevice_t) -> Result<FabricAnswer, NvmlError> {
    let ask = (nvml.lib().nvmlDeviceGetGpuFabricInfoV.as_ref())
        .map_err(|_| NvmlError::FunctionNotFound)?;
    let mut info = nvmlGpuFabricInfo_v3_t {
        version: version_of::<nvmlGpuFabricInfo_v3_t>(3),
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
        healthSummary: 0,
    };
    // SAFETY: `info` is the struct of the version in its first field.
    nvml_try(unsafe { ask(device, &raw mut info) })?;
    Ok(FabricAnswer {
        state: info.state,
        status: info.status,
        cluster: info.clusterUuid,
        clique: info.cliqueId,
        health: info.healthSummary,
    })
}

fn first_fabric_info(nvml: &Library, device: nvmlDevice_t) -> Result<FabricAnswer, NvmlError> {
    let ask = (nvml.lib().nvmlDeviceGetGpuFabricInfo.as_ref())
        .map_err(|_| NvmlError::FunctionNotFound)?;
    let mut info = nvmlGpuFabricInfo_t {
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
    };
    // SAFETY: `info` is the struct that this function writes.
    nvml_try(unsafe { ask(device, &raw mut info) })?;
    Ok(FabricAnswer {
        state: info.state,
        status: info.status,
        cluster: info.clusterUuid,
        clique: info.cliqueId,
        health: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Cmd;
    use crate::host::exec::Status;
    use crate::host::fake::{FakeExec, FakeFiles, failed as exits, ok};

    async fn survey(
        answer: impl FnMut(&Cmd, &FakeFiles) -> Result<crate::host::Output, ExecError> + Send + 'static,
    ) -> Nvml {
        let exec = FakeExec::new(&FakeFiles::new());
        exec.on_result("/proc/self/exe", answer);
        let nvml = RealGpu::new(Arc::new(exec.clone())).survey().await;
        assert_eq!(exec.lines(), ["/proc/self/exe nvml-view"]);
        nvml
    }

    #[tokio::test]
    async fn result_of_the_child_is_returned() {
        for state in [
            Nvml::DriverNotLoaded,
            Nvml::VersionMismatch,
            Nvml::NoDevices,
        ] {
            let text = serde_json::to_string(&state).unwrap();
            assert_eq!(survey(move |_, _| Ok(ok(text.clone()))).await, state);
        }
    }

    #[tokio::test]
    async fn hung_crashed_or_invalid_child_is_a_state() {
        let hung = survey(|cmd, _| {
            Err(ExecError::Deadline {
                command: cmd.line(),
                after: cmd.deadline,
                tail: String::new(),
            })
        });
        assert_eq!(hung.await, Nvml::Hung { after_seconds: 30 });
        let crashed = survey(|_, _| {
            Ok(crate::host::Output {
                status: Status::Signalled(11),
                ..exits(0, "")
            })
        });
        let Nvml::Failed { why, .. } = crashed.await else {
            panic!("a crash is a failure");
        };
        assert!(why.contains("signal 11"), "{why}");
        let Nvml::Failed { why, .. } = survey(|_, _| Ok(ok("Segmentation fault"))).await else {
            panic!("invalid output is a failure");
        };
        assert!(why.contains("printed no result"), "{why}");
    }

    #[tokio::test]
    async fn hung_child_is_killed() {
        let gpu = RealGpu {
            // Runs `yes nvml-view`, which never exits.
            program: Ourselves {
                program: "yes".to_owned(),
                ..Ourselves::of_process()
            },
            deadline: Duration::from_secs(1),
            limits: TimeLimits::default(),
            exec: Arc::new(crate::host::real::RealExec::default()),
        };
        assert_eq!(gpu.survey().await, Nvml::Hung { after_seconds: 1 });
    }

    #[test]
    fn missing_or_invalid_library_is_not_loadable() {
        for path in ["/no/such/libnvidia-ml.so.1", "/etc/passwd"] {
            let Nvml::NotLoadable { why } = view(Path::new(path), true) else {
                panic!("{path} is not a library");
            };
            assert!(why.contains(path), "{why}");
        }
    }

    #[test]
    fn nvml_is_not_initialized_without_a_driver() {
        // Any library works, because it is opened without calling a function.
        assert_eq!(view(Path::new("libc.so.6"), false), Nvml::DriverNotLoaded);
        // With a driver a function would be called, and this library does not have it.
        let Nvml::Failed { why, code: None } = view(Path::new("libc.so.6"), true) else {
            panic!("libc is not NVML");
        };
        assert!(why.contains("nvmlInit"), "{why}");
    }

    #[test]
    fn zeros_are_not_a_cluster() {
        assert_eq!(cluster([0; 16]), None);
        let uuid = "01020304-0506-0708-090a-0b0c0d0e0f10";
        let bytes = std::array::from_fn(|at| u8::try_from(at + 1).unwrap());
        assert_eq!(cluster(bytes).as_deref(), Some(uuid));
    }

    #[test]
    fn initialization_errors_are_states() {
        assert_eq!(state(NvmlError::DriverNotLoaded), Nvml::DriverNotLoaded);
        assert_eq!(
            state(NvmlError::LibRmVersionMismatch),
            Nvml::VersionMismatch
        );
        assert!(matches!(
            state(NvmlError::GpuLost),
            Nvml::Failed { code: Some(15), .. }
        ));
        assert!(matches!(
            state(NvmlError::UnexpectedVariant(25)),
            Nvml::Failed { code: Some(25), .. }
        ));
    }
}
