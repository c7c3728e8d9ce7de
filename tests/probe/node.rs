//! A node with in-memory files and NVML, and a fake CUDA library, which child processes of the real program load.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use fake_inventory::inventory::Inventory;
use gpu_bootstrap::{
    cli::{self, Console, Env},
    host::{
        CudaView, Gpu, MigDevice, Nvml, NvmlDevice, NvmlView,
        fake::{self, FakeGpu, Fakes},
        real::{Ourselves, RealExec, RealGpu, TimeLimits},
    },
    model::secret::{Hiding, Secrets},
};

const DRIVER: &str = "535.261.03";

/// The deadline of a phase in tests. Long enough that a busy test machine does not look like a hang.
const PHASE: Duration = Duration::from_secs(6);

/// A node, and the directory of its library.
pub struct Node {
    pub fakes: Fakes,
    inventory: Inventory,
    directory: tempfile::TempDir,
}

/// The result of a command line.
#[derive(Debug)]
pub struct Ran {
    pub exit: u8,
    pub out: String,
    pub took: Duration,
}

impl Ran {
    pub fn first_line(&self) -> &str {
        self.out.lines().next().unwrap_or_default()
    }
}

/// The `[[gpu]]` tables of `count` H100, each followed by the lines of `more`.
pub fn gpus(count: usize, more: impl Fn(usize) -> &'static str) -> String {
    let gpu = |index| {
        format!(
            "[[gpu]]\npci-address = \"0000:{:02x}:00.0\"\npci-id = \"10de:2330\"\n{}\n",
            0x18 + index,
            more(index)
        )
    };
    (0..count).map(gpu).collect()
}

/// The library built with this test.
fn library() -> PathBuf {
    let mut directory = std::env::current_exe().expect("a test has a path");
    while directory.pop() {
        let library = directory.join("libfake_cuda.so");
        if library.exists() {
            return library;
        }
    }
    panic!("libfake_cuda.so is not in the directory of the test program");
}

impl Node {
    /// A node with this inventory, appended to the version lines.
    pub fn new(inventory: &str) -> Self {
        let text = format!("driver-version = \"{DRIVER}\"\ncuda-version = \"12.2\"\n{inventory}");
        let directory = tempfile::tempdir().expect("a temporary folder");
        fs::write(directory.path().join("fake-nvml.toml"), &text)
            .expect("the inventory is written");
        fs::copy(library(), directory.path().join("libcuda.so.1")).expect("the library is copied");
        let inventory = Inventory::parse(&text).expect("an inventory");
        let (_, fakes) = fake::host();
        let files = &fakes.files;
        files.put_directory("/run/systemd/system", 0o755);
        files.put_directory("/sys/bus/pci/devices", 0o755);
        files.put("/sys/module/nvidia/version", format!("{DRIVER}\n"));
        files.put("/sys/module/nvidia/initstate", "live\n");
        files.put(
            "/proc/driver/nvidia/version",
            format!("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  x\n"),
        );
        files.put_device("/dev/nvidiactl", 195, 255);
        for (index, gpu) in (0_u32..).zip(&inventory.gpus) {
            let directory = format!("/sys/bus/pci/devices/{}", gpu.pci_address);
            for (name, value) in [
                ("vendor", "0x10de"),
                ("device", "0x2330"),
                ("subsystem_vendor", "0x10de"),
                ("subsystem_device", "0x16c1"),
                ("class", "0x030200"),
            ] {
                files.put(&format!("{directory}/{name}"), format!("{value}\n"));
            }
            files.put_link(
                &format!("{directory}/driver"),
                "../../../bus/pci/drivers/nvidia",
            );
            files.put_device(&format!("/dev/nvidia{index}"), 195, index);
        }
        Self {
            fakes,
            inventory,
            directory,
        }
    }

    /// The directory of the library.
    pub fn libraries(&self) -> &Path {
        self.directory.path()
    }

    fn nvml(&self) -> Nvml {
        let device = |(index, gpu): (usize, &fake_inventory::gpu::Gpu)| {
            let index = u32::try_from(index).expect("few GPUs");
            let parts = (0_u32..).zip(&gpu.mig.devices);
            NvmlDevice {
                index,
                uuid: Some(gpu.uuid.clone()),
                name: Some(gpu.name.clone()),
                pci_address: gpu.pci_address.parse().ok(),
                pci_id: gpu.pci_id.parse().ok(),
                minor: Some(index),
                memory_bytes: Some(gpu.memory_mib << 20),
                compute_capability: Some(gpu.compute_capability.clone()),
                persistence: Some(true),
                compute_mode: None,
                mig: Some(gpu.mig.enabled),
                mig_devices: (parts.filter(|_| gpu.mig.enabled))
                    .map(|(index, part)| MigDevice {
                        index,
                        uuid: Some(part.uuid.clone()),
                        profile: Some(part.profile.clone()),
                        share: None,
                    })
                    .collect(),
                mig_support: None,
                fabric: None,
                health: None,
                error: None,
            }
        };
        Nvml::Ready(NvmlView {
            driver_version: DRIVER.to_owned(),
            cuda_version: Some("12.2".to_owned()),
            devices: self.inventory.gpus.iter().enumerate().map(device).collect(),
        })
    }

    /// Runs `probe` with these arguments.
    pub fn probe(&self, args: &[&str]) -> Ran {
        let nvml = FakeGpu::default();
        nvml.set(self.nvml());
        self.probe_with(nvml, args)
    }

    /// Runs `probe` with another fake NVML.
    pub fn probe_with(&self, nvml: FakeGpu, args: &[&str]) -> Ran {
        let mut host = self.fakes.host();
        let program = Ourselves {
            program: env!("CARGO_BIN_EXE_gpu-bootstrap").to_owned(),
            prefix: Vec::new(),
            env: vec![(
                "LD_LIBRARY_PATH".to_owned(),
                self.libraries().display().to_string(),
            )],
        };
        let limits = TimeLimits {
            starting: PHASE,
            phase: PHASE,
            whole: Duration::from_secs(50),
        };
        host.gpu = Arc::new(Both {
            nvml,
            cuda: RealGpu::of(Arc::new(RealExec::default()), program, limits),
        });
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let secrets = Secrets::default();
        let http = host.http.clone();
        let env = Env {
            root: false,
            vars: Default::default(),
            secrets: secrets.clone(),
            exe: "/usr/local/bin/gpu-bootstrap".into(),
            command: "probe".to_owned(),
            proxied: Arc::new(move |_, _| http.clone()),
        };
        let mut console = Console {
            out: Hiding::new(&mut out, &secrets),
            err: Hiding::new(&mut err, &secrets),
            out_terminal: false,
            err_terminal: false,
            colour: false,
            out_width: gpu_bootstrap::report::UNWRAPPED,
            err_width: gpu_bootstrap::report::UNWRAPPED,
            talk: Arc::new(|| Box::new(std::io::sink())),
            drawn: Default::default(),
        };
        let line = ["gpu-bootstrap", "probe"].iter().chain(args);
        let line: Vec<OsString> = line.map(OsString::from).collect();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let begin = Instant::now();
        let exit = runtime
            .block_on(cli::run(line, &host, &env, &mut console))
            .code();
        let took = begin.elapsed();
        drop(console);
        assert!(err.is_empty(), "{}", String::from_utf8_lossy(&err));
        Ran {
            exit,
            out: String::from_utf8(out).expect("text"),
            took,
        }
    }
}

/// In-memory NVML, and the loaded CUDA library.
struct Both {
    nvml: FakeGpu,
    cuda: RealGpu,
}

#[async_trait]
impl Gpu for Both {
    async fn survey(&self) -> Nvml {
        self.nvml.survey().await
    }

    async fn compute(&self, devices: &[String], within: Duration) -> CudaView {
        self.cuda.compute(devices, within).await
    }
}
