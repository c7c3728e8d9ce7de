//! Simulates NVSwitches, the fabric manager, and the query of IMEX.

use gpu_bootstrap::host::{
    Cmd, FabricProgress, GpuFabric, Output,
    fake::{FakeFiles, failed, ok},
};

use crate::{
    containers, dpkg, kernel,
    state::{State, exists, list, text},
    units,
};

const DEVICES: &str = "/sys/bus/pci/devices";

/// Whether NVSwitches are on the PCI bus.
fn on_pci(files: &FakeFiles) -> bool {
    list(files, DEVICES).iter().any(|address| {
        let value =
            |name: &str| text(files, &format!("{DEVICES}/{address}/{name}")).unwrap_or_default();
        value("vendor").trim() == "0x10de" && value("class").starts_with("0x0680")
    })
}

/// Whether a network device manages the NVSwitches (`SW_MNG` in its VPD).
fn managed(files: &FakeFiles) -> bool {
    list(files, DEVICES).iter().any(|address| {
        text(files, &format!("{DEVICES}/{address}/vpd")).is_some_and(|vpd| vpd.contains("SW_MNG"))
    })
}

/// Starts the fabric manager, which rejects the same conditions as NVIDIA's, and returns its version.
pub fn start(files: &FakeFiles) -> Result<String, String> {
    if !on_pci(files) && !managed(files) {
        return Err("NV_WARN_NOTHING_TO_DO".to_owned());
    }
    let loaded = containers::loaded(files).ok_or("no driver is loaded")?;
    let package = dpkg::installed(files, "nvidia-fabricmanager").ok_or("it is not installed")?;
    let own = kernel::driver_version(&package);
    if own != loaded {
        return Err(format!(
            "fabric manager NVIDIA GPU driver interface version {own} don't match with driver \
             version {loaded}"
        ));
    }
    let names = ["mlx5_core", "ib_umad"];
    if managed(files) {
        let loaded = kernel::loaded(files);
        if dpkg::installed(files, "nvlsm").is_none() {
            return Err("the NVLink subnet manager is not installed".to_owned());
        }
        if let Some(missing) = names
            .iter()
            .find(|name| !loaded.iter().any(|one| one == *name))
        {
            return Err(format!("NV_WARN_NOTHING_TO_DO: {missing} is not loaded"));
        }
    }
    Ok(own)
}

/// The NVML fabric state of each GPU, or `None` without NVSwitches.
pub fn of_gpus(files: &FakeFiles, state: &State) -> Option<GpuFabric> {
    if !on_pci(files) && !managed(files) {
        return None;
    }
    let progress = match units::active(files, units::FABRIC_MANAGER) {
        true if state.faults.fabric => FabricProgress::InProgress,
        true => FabricProgress::Completed,
        false => FabricProgress::NotStarted,
    };
    Some(GpuFabric {
        state: progress,
        status: 0,
        cluster: None,
        clique: 0,
        health: None,
    })
}

/// Loads a module of the network device that manages the NVSwitches.
pub fn load(files: &FakeFiles, module: &str) -> bool {
    let known = matches!(module, "mlx5_core" | "ib_umad");
    let path = format!("/sys/module/{module}");
    if known && !exists(files, &path) {
        files.put(&format!("{path}/refcnt"), "0\n");
    }
    known
}

/// If a test writes this file, it contains the state of the IMEX daemon. If it is empty, the daemon has no command service.
const IMEX: &str = "/run/simulated/imex";

/// `nvidia-imex-ctl -q`.
pub fn imex_ctl(cmd: &Cmd, files: &FakeFiles) -> Output {
    assert_eq!(cmd.args, ["-q"], "{}", cmd.line());
    match text(files, IMEX).as_deref() {
        _ if !units::active(files, "nvidia-imex.service") => failed(1, "no daemon\n"),
        Some("") => failed(1, "the command service is not enabled\n"),
        state => ok(state.unwrap_or("READY\n")),
    }
}
