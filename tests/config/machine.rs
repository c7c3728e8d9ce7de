//! Machines for the resolution tests.

use std::sync::LazyLock;

use gpu_bootstrap::{
    compat::matrix::Matrix,
    config::{
        error::ResolveError,
        load::{SettingsRequest, load},
        resolve::Resolution,
    },
    facts::{Cloud, Facts, GpuFact, Kernel, Os, SCHEMA, SecureBoot},
    host::fake::FakeFiles,
    model::pci::PciId,
};

pub const T4: &str = "10de:1eb8";
pub const V100: &str = "10de:1db1";
pub const H100: &str = "10de:2330";
pub const B200: &str = "10de:2901";

/// The sources of a Debian installation, with a mirror.
pub const DEBIAN_SOURCES: &str = "\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
";

pub const UBUNTU_SOURCES: &str = "\
Types: deb
URIs: http://mirror.example/ubuntu
Suites: jammy jammy-updates noble noble-updates resolute resolute-updates
Components: main universe restricted multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
";

pub static MATRIX: LazyLock<Matrix> =
    LazyLock::new(|| Matrix::builtin().expect("the matrix is sound"));

/// A machine: facts, files and options.
pub struct Machine {
    pub facts: Facts,
    pub files: FakeFiles,
    pub ask: SettingsRequest,
}

impl Machine {
    /// A bare machine with this distribution and one GPU per id.
    pub fn new(id: &str, version: &str, arch: &str, gpus: &[&str]) -> Self {
        let kernel = match id {
            "ubuntu" => "6.8.0-149-generic".to_owned(),
            "almalinux" => format!("5.14.0-570.12.1.el9_6.{arch}"),
            _ if arch == "aarch64" => "6.1.0-44-arm64".to_owned(),
            _ => "6.1.0-44-amd64".to_owned(),
        };
        let files = FakeFiles::new();
        match id {
            "debian" => files.put("/etc/apt/sources.list.d/debian.sources", DEBIAN_SOURCES),
            "ubuntu" => files.put("/etc/apt/sources.list.d/ubuntu.sources", UBUNTU_SOURCES),
            _ => {}
        }
        Self {
            facts: facts(id, version, arch, &kernel, gpus),
            files,
            ask: SettingsRequest::default(),
        }
    }

    pub fn debian() -> Self {
        Self::new("debian", "12", "x86_64", &[H100])
    }

    pub fn config(self, text: &str) -> Self {
        self.file("/etc/gpu-bootstrap/config.toml", text)
    }

    pub fn file(self, path: &str, text: &str) -> Self {
        self.files.put(path, text);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.ask.env.insert(name.into(), value.into());
        self
    }

    pub fn set(mut self, assignment: &str) -> Self {
        self.ask.set.push(assignment.into());
        self
    }

    pub fn load(&self) -> Result<Resolution, ResolveError> {
        load(&self.files, &self.files, &self.ask, &self.facts, &MATRIX)
    }

    pub fn resolution(&self) -> Resolution {
        match self.load() {
            Ok(resolution) => resolution,
            Err(error) => panic!("refused: {error}"),
        }
    }
}

pub fn facts(id: &str, version: &str, arch: &str, kernel: &str, gpus: &[&str]) -> Facts {
    let kernel = Some(kernel.parse().expect("a kernel"));
    let gpu = |(index, id): (usize, &&str)| GpuFact {
        pci_address: format!("0000:{index:02x}:00.0")
            .parse()
            .expect("an address"),
        pci_id: id.parse::<PciId>().expect("an id"),
        subsystem_id: None,
        name: None,
        chip_name: None,
        architecture: None,
        architecture_evidence: None,
        compute_capability: None,
        module_flavor: None,
        vgpu: false,
        numa_node: None,
        class: None,
    };
    Facts {
        schema: SCHEMA,
        os: Some(Os {
            id: id.into(),
            version_id: Some(version.into()),
            id_like: Vec::new(),
            version_codename: None,
            pretty_name: None,
        }),
        kernel: Kernel {
            running: kernel.clone(),
            next_boot: kernel.clone(),
            installed: kernel.into_iter().collect(),
            arch: Some(arch.into()),
            compiler: Some("gcc-12".into()),
            cgroup_v1: false,
        },
        secure_boot: SecureBoot::Disabled,
        lockdown: None,
        virtualization: None,
        product: None,
        cloud: Cloud::default(),
        init: None,
        boot_id: None,
        instance_id: None,
        memory_bytes: None,
        disks: Vec::new(),
        gpus: gpus.iter().enumerate().map(gpu).collect(),
        virtual_functions: Vec::new(),
        foreign_gpus: Vec::new(),
        nvswitches: Vec::new(),
        nvlink_management: None,
        network_devices: Vec::new(),
        unknown: Vec::new(),
    }
}
