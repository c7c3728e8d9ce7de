//! `validation.devices`: checks that the PCI bus, the driver, NVML and `/dev` agree on the GPUs, and that the machine
//! has at least as many GPUs as its instance type.

use std::time::Duration;

use super::{
    DRIVER_MODULE, DRIVER_RUNS, VALIDATION_DEVICES,
    expected::{self, ExpectedGpus},
    messages,
};
use crate::{
    config::desired::Desired,
    facts::Facts,
    host::{Nvml, ReadFiles},
    model::{fault::Fault, version::DriverVersion},
    state::State,
    step::{Assessment, Cx, Step, StepError},
    tools::{
        device_nodes,
        probe::{LayerFault, ProbeLayer},
    },
};

/// How long to retry an NVML query that timed out. Without persistence mode, initializing many GPUs can take longer than
/// one query may take. The retries are limited, because a faulty GPU never responds.
const SLOW_NVML: Duration = Duration::from_secs(180);

/// The `validation.devices` step.
pub(super) fn step() -> Step {
    Step::new(VALIDATION_DEVICES, |cx| Box::pin(assess(cx))).after(DRIVER_RUNS)
}

/// The GPUs as seen by the PCI bus, the driver, NVML and `/dev`.
#[derive(Debug, Clone)]
pub struct DevicesState {
    loaded: Option<DriverVersion>,
    /// PCI address and bound driver of each GPU that this machine uses.
    bound: Vec<(String, Option<String>)>,
    /// PCI addresses of the GPUs that are reserved for virtual machines.
    reserved: Vec<String>,
    nvml: Nvml,
    /// Minor numbers of `/dev/nvidiaN`.
    nodes: Vec<u32>,
    /// An existing device node that is not usable.
    node_fault: Option<Fault>,
    /// The place where the GPUs were counted, for messages.
    place: &'static str,
}

impl DevicesState {
    /// Reads the state of the machine. NVML runs in a child process, because it can hang on a faulty GPU. NVML is not
    /// queried if no driver is loaded or if `ask_nvml` is `false`.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    pub async fn read(
        files: &dyn ReadFiles,
        state: &State,
        ask_nvml: bool,
    ) -> Result<Self, StepError> {
        let (mut bound, mut reserved) = (Vec::new(), Vec::new());
        for gpu in &state.facts().gpus {
            let address = gpu.pci_address.to_string();
            if state.is_reserved(gpu.pci_address)? {
                reserved.push(address);
            } else {
                let driver = state.bound_driver(gpu.pci_address)?.map(str::to_owned);
                bound.push((address, driver));
            }
        }
        let nodes = nodes(files)?;
        let loaded = state.loaded_driver()?.cloned();
        // Device nodes of another tree (`--root`) do not belong to the loaded driver.
        let node_fault = match state.is_of_this_machine() && loaded.is_some() {
            true => device_nodes::fault(files)?,
            false => None,
        };
        let nvml = if loaded.is_some() && ask_nvml {
            state.nvml().await.clone()
        } else {
            Nvml::DriverNotLoaded
        };
        Ok(Self {
            loaded,
            bound,
            reserved,
            nvml,
            nodes,
            node_fault,
            place: "on the bus",
        })
    }

    /// Reads the state in a container. Only GPUs with a device node are expected there, because sysfs and `/proc`
    /// show all GPUs of the host.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    pub async fn of_container(files: &dyn ReadFiles, state: &State) -> Result<Self, StepError> {
        let nodes = nodes(files)?;
        let nvml = match nodes[..] {
            [] => Nvml::NoDevices,
            _ => state.nvml().await.clone(),
        };
        let loaded = match &nvml {
            Nvml::Ready(view) => view.driver_version.parse().ok(),
            _ => None,
        };
        let bound = nodes.iter().map(|minor| {
            let node = format!("/dev/nvidia{minor}");
            (node, Some("nvidia".to_owned()))
        });
        Ok(Self {
            loaded,
            bound: bound.collect(),
            reserved: Vec::new(),
            nvml,
            nodes,
            node_fault: device_nodes::fault(files)?,
            place: "in `/dev`",
        })
    }

    /// The version of the loaded module.
    pub fn loaded(&self) -> Option<&DriverVersion> {
        self.loaded.as_ref()
    }

    /// The NVML result.
    pub fn nvml(&self) -> &Nvml {
        &self.nvml
    }

    /// The number of GPUs that this machine uses.
    pub fn gpus(&self) -> usize {
        self.bound.len()
    }

    /// The number of GPUs with a device node.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }
}

/// Returns the minor numbers of `/dev/nvidiaN` in ascending order.
fn nodes(files: &dyn ReadFiles) -> Result<Vec<u32>, StepError> {
    let mut nodes: Vec<u32> = (files.list("/dev".into())?.iter())
        .filter_map(|name| name.strip_prefix("nvidia")?.parse().ok())
        .collect();
    nodes.sort_unstable();
    Ok(nodes)
}

/// A mismatch between two views of the GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// The lowest affected layer, and the values that differ.
    pub fault: LayerFault,
    pub recovery: DeviceRecovery,
}

/// How a mismatch can be resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceRecovery {
    /// By the administrator only.
    Administrator,
    /// By a package change, by loading the module, or by a reboot.
    Run,
    /// As for `Run`, or by waiting for up to this duration.
    Time(Duration),
}

/// Compares the views of the GPUs while a driver is loaded. `reinstall` is the reinstall command of the package
/// manager, if known.
///
/// # Errors
/// The first mismatch.
pub fn agree(
    state: &DevicesState,
    loaded: &DriverVersion,
    reinstall: Option<&str>,
) -> Result<(), Disagreement> {
    let gpus = state.bound.len();
    let differ = |layer, why: String, remedy: &str| Disagreement {
        fault: LayerFault::new(layer, why, remedy),
        recovery: DeviceRecovery::Run,
    };
    let nvml = |why: String, remedy: &str| Err(differ(ProbeLayer::Nvml, why, remedy));
    for (address, driver) in &state.bound {
        match driver.as_deref() {
            Some("nvidia") => {}
            Some(other) => {
                return Err(Disagreement {
                    recovery: DeviceRecovery::Administrator,
                    ..differ(
                        ProbeLayer::Driver,
                        format!("GPU {address} is bound to `{other}`, not to `nvidia`"),
                        "reboot: `nvidia` can only claim the GPU at boot",
                    )
                });
            }
            None => {
                return Err(differ(
                    ProbeLayer::Driver,
                    format!("no driver is bound to GPU {address}"),
                    "run `dmesg | grep NVRM`: the GPU may need another driver branch or flavor, or may be \
                     faulty",
                ));
            }
        }
    }
    // Reported before NVML errors, because a faulty node can be the cause of one.
    if let Some(Fault { why, remedy }) = &state.node_fault {
        return Err(differ(ProbeLayer::DeviceNodes, why.clone(), remedy));
    }
    let view = match &state.nvml {
        Nvml::Ready(view) => view,
        unready => return Err(unready_nvml(unready, state, reinstall)),
    };
    if view.driver_version != loaded.as_str() {
        return nvml(
            format!(
                "driver/library version mismatch: NVML {}, loaded module {loaded}",
                view.driver_version
            ),
            "reboot: the libraries were upgraded while the old module was loaded",
        );
    }
    if let Some(device) = view.devices.iter().find(|device| device.error.is_some()) {
        return nvml(
            format!(
                "GPU {} does not respond: {}",
                device.index,
                device.error.as_deref().unwrap_or_default()
            ),
            "reset or power-cycle the machine; replace it if that does not help",
        );
    }
    if view.devices.len() != gpus {
        return nvml(
            format!(
                "{} {}, but NVML lists {}",
                messages::gpus(gpus),
                state.place,
                view.devices.len()
            ),
            "run `dmesg | grep -i -e xid -e NVRM`: a GPU fell off the bus or failed to initialize. Reboot, and \
                 replace the machine if that does not help",
        );
    }
    let missing: Vec<u32> = (view.devices.iter())
        .map(|device| device.minor.unwrap_or(device.index))
        .filter(|minor| !state.nodes.contains(minor))
        .collect();
    if !missing.is_empty() {
        let nodes: Vec<String> = (missing.iter())
            .map(|minor| format!("`/dev/nvidia{minor}`"))
            .collect();
        let minors: String = missing.iter().map(|minor| format!(" -c {minor}")).collect();
        return Err(differ(
            ProbeLayer::DeviceNodes,
            format!("{} missing", nodes.join(", ")),
            &format!(
                "run `nvidia-modprobe{minors}` to create the device nodes; a udev rule of the driver package normally \
                 does this"
            ),
        ));
    }
    Ok(())
}

/// Explains why NVML reports no GPUs although a driver is loaded. See [`agree`] for `reinstall`.
pub fn unready(state: &DevicesState, reinstall: Option<&str>) -> Disagreement {
    unready_nvml(&state.nvml, state, reinstall)
}

fn unready_nvml(nvml: &Nvml, state: &DevicesState, reinstall: Option<&str>) -> Disagreement {
    // In a container the version is unknown if NVML fails.
    let module = match &state.loaded {
        Some(loaded) => format!("module {loaded}"),
        None => "module".to_owned(),
    };
    let gpus = state.bound.len();
    let mut recovery = DeviceRecovery::Run;
    let (why, remedy) = match nvml {
        Nvml::NotLoadable { why } => {
            let command = reinstall.map_or_else(String::new, |command| format!(" (`{command}`)"));
            (
                format!("failed to load `libnvidia-ml.so.1`: {why}"),
                format!("reinstall the driver library package{command}, then run `ldconfig`"),
            )
        }
        Nvml::VersionMismatch => (
            format!("driver/library version mismatch: NVML does not match the loaded {module}"),
            "reboot: the libraries were upgraded while the old module was loaded".to_owned(),
        ),
        Nvml::DriverNotLoaded => (
            format!("{module} is loaded, but NVML reports that no driver is loaded"),
            "run `ls -l /dev/nvidiactl` to check that it exists and is accessible".to_owned(),
        ),
        Nvml::NoDevices | Nvml::Ready(_) => (
            format!(
                "{} {}, but the driver initialized none",
                messages::gpus(gpus),
                state.place
            ),
            "run `dmesg | grep NVRM`: the firmware or the GPU failed to start. Reboot, and replace the machine \
             if that does not help"
                .to_owned(),
        ),
        Nvml::Hung { after_seconds } => {
            recovery = DeviceRecovery::Time(SLOW_NVML);
            (
                format!("NVML timed out after {after_seconds} s"),
                "a GPU or its firmware hangs: run `dmesg | grep -i xid`, then reboot. Replace the \
                 machine if it happens again"
                    .to_owned(),
            )
        }
        Nvml::NotQueried { why } => (
            format!("NVML was not queried: {why}"),
            "run this on the machine itself".to_owned(),
        ),
        Nvml::Failed { code, why } => {
            let code = code.map_or_else(String::new, |code| format!(" (code {code})"));
            (
                format!("NVML failed{code}: {why}"),
                "run `dmesg | grep NVRM` for driver messages".to_owned(),
            )
        }
    };
    Disagreement {
        fault: LayerFault::new(ProbeLayer::Nvml, why, remedy),
        recovery,
    }
}

async fn detect(cx: &Cx<'_>) -> Result<DevicesState, StepError> {
    DevicesState::read(cx.host.files(), cx.state, cx.desired.driver.is_some()).await
}

fn decide(
    state: &DevicesState,
    desired: &Desired,
    facts: &Facts,
    expected_gpus: Option<ExpectedGpus<'_>>,
) -> Assessment {
    // Checked before the driver is installed, and even if no GPU is on the bus and none is required. Images are
    // excluded, because they are built on a different machine.
    if let (Some(why), false) = (expected_gpus.and_then(|one| one.broken()), desired.image) {
        return Assessment::blocked(why, expected::REMEDY);
    }
    if desired.driver.is_none() {
        return messages::no_driver();
    }
    let Some(loaded) = &state.loaded else {
        if desired.image {
            return Assessment::awaits_boot("GPUs are checked at the first boot");
        }
        if facts.gpus.is_empty() {
            return Assessment::not_applicable("no NVIDIA GPU is on the PCI bus");
        }
        return Assessment::After {
            upstream: DRIVER_MODULE,
            why: "GPUs are checked after the driver is loaded".into(),
            expected: Vec::new(),
        };
    };
    if state.bound.is_empty() && !state.reserved.is_empty() {
        return Assessment::not_applicable("all GPUs are reserved for virtual machines");
    }
    let reinstall = desired.packages.manager.backend().commands().reinstall;
    if let Err(differ) = agree(state, loaded, Some(reinstall)) {
        let asked = !matches!(state.nvml, Nvml::NotQueried { .. });
        let LayerFault {
            layer,
            why,
            remedy: hint,
        } = differ.fault;
        return match differ.recovery {
            _ if layer == ProbeLayer::Nvml && !asked => Assessment::not_applicable(why),
            DeviceRecovery::Administrator => Assessment::blocked(why, hint),
            DeviceRecovery::Run => Assessment::BlockedNow {
                why,
                hint,
                retryable: None,
            },
            DeviceRecovery::Time(retryable) => Assessment::BlockedNow {
                why,
                hint,
                retryable: Some(retryable),
            },
        };
    }
    Assessment::satisfied(format!(
        "{} on the bus{}, bound to nvidia {loaded}, listed by NVML, with device nodes{}",
        messages::gpus(state.bound.len()),
        expected_gpus.map_or_else(String::new, |one| format!(
            ", as expected for {}",
            one.instance_type
        )),
        match state.reserved.as_slice() {
            [] => String::new(),
            some => format!("; reserved for virtual machines: {}", some.join(", ")),
        }
    ))
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    let expected_gpus = cx
        .matrix
        .and_then(|matrix| ExpectedGpus::of(cx.facts, matrix).ok());
    Ok(decide(
        &detect(cx).await?,
        cx.desired,
        cx.facts,
        expected_gpus,
    ))
}

#[cfg(test)]
mod tests {
    use super::{DevicesState, decide};
    use crate::{
        host::{Nvml, NvmlView, fake},
        step::Assessment,
        steps::{
            expected::ExpectedGpus,
            fixtures::{self as machine, desired, facts, nvml_device},
        },
    };

    fn good() -> DevicesState {
        let facts = facts();
        DevicesState {
            loaded: "535.261.03".parse().ok(),
            bound: facts
                .gpus
                .iter()
                .map(|gpu| (gpu.pci_address.to_string(), Some("nvidia".into())))
                .collect(),
            reserved: vec![],
            nvml: Nvml::Ready(NvmlView {
                driver_version: "535.261.03".into(),
                cuda_version: Some("12.2".into()),
                devices: (0..facts.gpus.len() as u32).map(nvml_device).collect(),
            }),
            nodes: (0..facts.gpus.len() as u32).collect(),
            node_fault: None,
            place: "on the bus",
        }
    }

    fn why(state: &DevicesState) -> String {
        match decide(state, &desired(), &facts(), None) {
            Assessment::Blocked { why, .. } | Assessment::BlockedNow { why, .. } => why,
            other => panic!("must be refused: {other:?}"),
        }
    }

    #[test]
    fn matching_views_are_satisfied() {
        decide(&good(), &desired(), &facts(), None).expect_satisfied();
    }

    #[test]
    fn each_mismatch_is_reported() {
        let mut state = good();
        state.bound[0].1 = Some("nouveau".into());
        assert!(why(&state).contains("bound to `nouveau`"));
        state.bound[0].1 = None;
        assert!(why(&state).contains("no driver is bound to GPU"));

        for (nvml, words) in rows! {
            Nvml::NotLoadable { why: "no such file".into() }, "failed to load `libnvidia-ml.so.1`: no such file";
            Nvml::VersionMismatch, "version mismatch";
            Nvml::NoDevices, "initialized none";
            Nvml::Hung { after_seconds: 30 }, "after 30 s";
            Nvml::Failed { code: Some(999), why: "unknown".into() }, "(code 999): unknown";
            Nvml::DriverNotLoaded, "NVML reports that no driver is loaded";
        } {
            let state = DevicesState { nvml, ..good() };
            assert!(why(&state).contains(words), "{}", why(&state));
        }

        let mut fewer = good();
        if let Nvml::Ready(view) = &mut fewer.nvml {
            view.devices.pop();
        }
        assert!(why(&fewer).contains("NVML lists"), "{}", why(&fewer));
        let nodes = DevicesState {
            nodes: vec![],
            ..good()
        };
        assert!(
            why(&nodes).contains("`/dev/nvidia1` missing"),
            "{}",
            why(&nodes)
        );
    }

    #[tokio::test]
    async fn directory_instead_of_node_is_reported() {
        let (host, fakes) = fake::host();
        fakes.gpu.set(good().nvml);
        let facts = facts();
        fakes.files.put(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  x\n",
        );
        for gpu in &facts.gpus {
            let link = format!("/sys/bus/pci/devices/{}/driver", gpu.pci_address);
            fakes
                .files
                .put_link(&link, "../../../../bus/pci/drivers/nvidia");
        }
        fakes.files.put_device("/dev/nvidia1", 195, 1);
        fakes.files.put_directory("/dev/nvidia0", 0o755);
        let of = async |state: crate::state::State| {
            let state = DevicesState::read(host.reader().files(), &state, true).await;
            decide(&state.expect("readable"), &desired(), &facts, None)
        };
        let Assessment::BlockedNow { why, hint, .. } =
            of(machine::state(&host, facts.clone())).await
        else {
            panic!("must be blocked");
        };
        assert_eq!(why, "`/dev/nvidia0` is a directory, not a character device");
        assert!(hint.contains("rmdir"), "{hint}");
        fakes.files.take("/dev/nvidia0");
        fakes.files.put_device("/dev/nvidia0", 195, 0);
        of(machine::state(&host, facts.clone()))
            .await
            .expect_satisfied();
    }

    /// NVML may list GPUs that are not assigned to the container.
    #[tokio::test]
    async fn container_expects_only_gpus_with_a_device_node() {
        let (host, fakes) = fake::host();
        let look = async || {
            fakes.gpu.set(good().nvml);
            let state = machine::state(&host, facts());
            let found = DevicesState::of_container(host.reader().files(), &state).await;
            let found = found.expect("readable");
            (found.gpus(), found.nvml().clone())
        };
        assert_eq!(look().await, (0, Nvml::NoDevices));
        fakes.files.put_device("/dev/nvidia1", 195, 1);
        fakes.files.put_device("/dev/nvidiactl", 195, 255);
        assert_eq!(look().await, (1, good().nvml));
    }

    #[test]
    fn reserved_gpus_are_not_expected() {
        let mut state = good();
        let (address, _) = state.bound.pop().expect("two GPUs");
        state.reserved.push(address);
        assert!(why(&state).contains("1 GPU is on the bus, but NVML lists 2"));
        if let Nvml::Ready(view) = &mut state.nvml {
            view.devices.pop();
        }
        let why = decide(&state, &desired(), &facts(), None).expect_satisfied();
        let words = "reserved for virtual machines: 0000:2a:00.0";
        assert!(why.contains(words), "{why}");
        state.reserved.push(state.bound.remove(0).0);
        decide(&state, &desired(), &facts(), None).expect_not_applicable();
    }

    #[test]
    fn missing_gpus_block_before_driver_install() {
        let expected_gpus = |promised| {
            Some(ExpectedGpus {
                instance_type: "p5.48xlarge",
                promised,
                found: 2,
            })
        };
        let bare = DevicesState {
            loaded: None,
            ..good()
        };
        for state in [&bare, &good()] {
            let (why, hint) =
                decide(state, &desired(), &facts(), expected_gpus(8)).expect_blocked();
            assert_eq!(
                why,
                "p5.48xlarge has 8 GPUs, but only 2 GPUs are on the PCI bus"
            );
            assert!(hint.contains("stop the instance"), "{hint}");
        }
        for fewer in [1, 2] {
            let answer = decide(&good(), &desired(), &facts(), expected_gpus(fewer));
            answer.expect_satisfied();
        }
        let mut image = desired();
        image.image = true;
        decide(&bare, &image, &facts(), expected_gpus(8)).expect_awaiting_boot();
    }

    #[test]
    fn nothing_is_compared_without_a_loaded_driver() {
        let state = DevicesState {
            loaded: None,
            ..good()
        };
        decide(&state, &desired(), &facts(), None).expect_after();
        let mut image = desired();
        image.image = true;
        decide(&state, &image, &facts(), None).expect_awaiting_boot();
    }
}
