//! The host capabilities that depend on the machine state: NVML, network and time.

use std::time::Duration;

use async_trait::async_trait;
use gpu_bootstrap::host::{
    Clock, CudaDevice, CudaFault, CudaStart, CudaView, CudaWork, Gpu, Http, HttpError, HttpRequest,
    HttpResponse, Nvml, NvmlDevice, NvmlView, ReadFiles,
    fake::{FakeClock, FakeFiles, FakeHttp},
};

use crate::{
    containers, kernel, mig,
    state::{Shared, State, lock},
};

/// NVML of the machine.
pub struct MachineGpu {
    pub files: FakeFiles,
    pub state: Shared,
}

#[async_trait]
impl Gpu for MachineGpu {
    async fn survey(&self) -> Nvml {
        // A killed process makes no more calls.
        if self.files.killed() {
            return Nvml::DriverNotLoaded;
        }
        survey(&self.files, &lock(&self.state))
    }

    async fn compute(&self, devices: &[String], _: Duration) -> CudaView {
        // Only called after NVML succeeds. `tests/probe` covers the other CUDA errors.
        let wrong = lock(&self.state).faults.computes_wrong;
        let plain = |uuid: &String| uuid.trim_start_matches("GPU-").to_owned();
        let work = || CudaWork {
            name: "NVIDIA simulated".to_owned(),
            compute_capability: "9.0".to_owned(),
            memory_bytes: 80 << 30,
            seconds: 0.5,
        };
        CudaView {
            start: Ok(CudaStart {
                version: "12.2".to_owned(),
                uuids: devices.iter().map(plain).collect(),
            }),
            devices: (devices.iter().enumerate())
                .map(|(index, uuid)| CudaDevice {
                    uuid: uuid.clone(),
                    result: match wrong && index == 0 {
                        true => Err(CudaFault::WrongResult { at: 7 }),
                        false => Ok(work()),
                    },
                })
                .collect(),
        }
    }
}

/// The NVML results for the current machine state.
pub fn survey(files: &FakeFiles, state: &State) -> Nvml {
    let Some(library) = containers::library(files) else {
        return Nvml::NotLoadable {
            why: "libnvidia-ml.so.1: cannot open shared object file".to_owned(),
        };
    };
    // A test may hide the driver version.
    if files
        .read_text("/sys/module/nvidia/version".into())
        .is_err()
    {
        return Nvml::DriverNotLoaded;
    }
    let Some(loaded) = containers::loaded(files) else {
        return Nvml::DriverNotLoaded;
    };
    match state.faults.nvml.as_deref() {
        None => {}
        Some("hung") => return Nvml::Hung { after_seconds: 30 },
        Some("no-devices") => return Nvml::NoDevices,
        Some("failed") => {
            return Nvml::Failed {
                code: Some(999),
                why: "Unknown Error".to_owned(),
            };
        }
        Some(other) => panic!("unknown NVML fault `{other}`"),
    }
    if library != loaded {
        return Nvml::VersionMismatch;
    }
    let addresses = kernel::usable(files);
    let up = addresses.len() - state.faults.lost_gpus;
    let devices = addresses[..up]
        .iter()
        .enumerate()
        .map(|(index, address)| {
            let index = u32::try_from(index).expect("few GPUs");
            let (mode, mig_devices, support) = match mig::nvml(files, address) {
                Some((mode, devices, support)) => (Some(mode), devices, Some(support)),
                None => (None, Vec::new(), None),
            };
            NvmlDevice {
                index,
                uuid: Some(format!("GPU-00000000-0000-0000-0000-{index:012}")),
                name: Some("NVIDIA simulated".to_owned()),
                pci_address: address.parse().ok(),
                pci_id: None,
                minor: Some(index),
                memory_bytes: Some(80 << 30),
                compute_capability: mig::compute_capability(files, address),
                persistence: Some(crate::units::persistence(files)),
                compute_mode: Some(crate::mps::compute_mode(files)),
                mig: mode,
                mig_devices,
                mig_support: support,
                fabric: crate::fabric::of_gpus(files, state),
                health: state.faults.health.clone(),
                error: None,
            }
        })
        .collect();
    Nvml::Ready(NvmlView {
        driver_version: loaded,
        cuda_version: None,
        devices,
    })
}

/// The network of the machine.
pub struct MachineHttp {
    pub pages: FakeHttp,
    pub state: Shared,
}

impl MachineHttp {
    fn fault(&self, url: &str) -> Result<(), HttpError> {
        let faults = lock(&self.state).faults.clone();
        if let Some(why) = faults.network {
            return Err(HttpError::Transport {
                url: url.to_owned(),
                why,
            });
        }
        if faults.gone.iter().any(|gone| url.contains(gone)) {
            return Err(HttpError::Status {
                url: url.to_owned(),
                status: 404,
            });
        }
        Ok(())
    }
}

#[async_trait]
impl Http for MachineHttp {
    async fn get(&self, url: &str, limit: u64) -> Result<Vec<u8>, HttpError> {
        self.fault(url)?;
        self.pages.get(url, limit).await
    }

    async fn ask(&self, request: &HttpRequest) -> Result<HttpResponse, HttpError> {
        self.pages.ask(request).await
    }
}

/// The clock. Another package manager exits when its time is over.
pub struct MachineClock {
    pub clock: FakeClock,
    pub files: FakeFiles,
    pub state: Shared,
}

#[async_trait]
impl Clock for MachineClock {
    fn now(&self) -> jiff::Timestamp {
        self.clock.now()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    async fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration).await;
        let mut state = lock(&self.state);
        let Some(other) = &mut state.faults.package_lock else {
            return;
        };
        let Some(left) = other.seconds else {
            return;
        };
        let left = left.saturating_sub(duration.as_secs());
        other.seconds = Some(left);
        if left == 0 {
            let pid = other.pid;
            state.faults.package_lock = None;
            self.files.put("/proc/locks", "");
            self.files.take(&format!("/proc/{pid}"));
        }
    }
}

/// Makes another package manager visible in the kernel's lock table.
pub fn show_lock(files: &FakeFiles, pid: u32, program: &str) {
    const PATH: &str = "/var/lib/dpkg/lock-frontend";
    let inode = files
        .stat(PATH.into())
        .expect("the lock can be inspected")
        .expect("the lock exists")
        .inode;
    files.put(
        "/proc/locks",
        format!("1: POSIX  ADVISORY  WRITE {pid} 103:00:{inode} 0 EOF\n"),
    );
    files.put(&format!("/proc/{pid}/comm"), format!("{program}\n"));
    files.put(&format!("/proc/{pid}/status"), "Uid:\t0\t0\t0\t0\n");
    files.put(
        &format!("/proc/{pid}/cmdline"),
        format!("/usr/bin/{program}\0"),
    );
}
