//! Virtualization checks: vGPU guests, vGPU hosts and WSL. They explain why such machines differ from others.

use async_trait::async_trait;
use camino::Utf8PathBuf;

use super::messages::places;
use crate::{
    check::{Check, Finding, Subject, Verdict},
    compat::matrix::{InstanceDriver, Matrix},
    facts::{Facts, GpuFact},
    model::{id::Id, pci::DEVICES, version::DriverVersion},
    step::StepError,
};

const GUEST: Id = Id::new("virt.vgpu-guest");
const HOST: Id = Id::new("virt.vgpu-host");
const WSL: Id = Id::new("virt.wsl");

/// The module of a vGPU host.
const HOST_MODULE: &str = "nvidia_vgpu_vfio";
/// The device that provides the GPUs of Windows in WSL.
const DXG: &str = "/dev/dxg";
/// The driver library that Windows mounts in WSL.
const WSL_LIBRARY: &str = "/usr/lib/wsl/lib/libcuda.so.1";

/// The remedy for a vGPU without a driver.
pub(super) const GRID_DRIVER: &str =
    "install the GRID guest driver that matches the hypervisor's vGPU release";

/// The virtualization checks.
pub struct VirtCheck;

#[derive(Debug, Clone, Default)]
struct VirtState {
    /// The loaded driver.
    loaded: Option<DriverVersion>,
    /// The driver in packages.
    packaged: Option<DriverVersion>,
    /// The module of a vGPU host is loaded.
    host_module: bool,
    /// The number of GPUs that offer mediated devices.
    mediated: usize,
    dxg: bool,
    library: bool,
}

async fn detect(subject: &Subject<'_>) -> Result<VirtState, StepError> {
    let (files, state) = (subject.host.files(), subject.state);
    let mut mediated = 0;
    for gpu in &subject.facts.gpus {
        let types = format!("{DEVICES}/{}/mdev_supported_types", gpu.pci_address);
        mediated += usize::from(files.exists(&Utf8PathBuf::from(types))?);
    }
    Ok(VirtState {
        loaded: state.loaded_driver()?.cloned(),
        packaged: state.driver().await.package_version.clone(),
        host_module: (state.loaded_modules()?.iter()).any(|module| module == HOST_MODULE),
        mediated,
        dxg: files.exists(DXG.into())?,
        library: files.exists(WSL_LIBRARY.into())?,
    })
}

/// Returns the instance type if it has fractional GPUs.
pub(super) fn sliced<'f>(facts: &'f Facts, matrix: &Matrix) -> Option<&'f str> {
    let provider = facts.cloud.provider.as_deref()?;
    let name = facts.cloud.instance_type.as_deref()?;
    let row = matrix.instance_type(provider, name)?;
    (row.driver == InstanceDriver::Grid).then_some(name)
}

fn guest(facts: &Facts, matrix: &Matrix, state: &VirtState) -> Finding {
    let finding = |status, why: String| Finding::new(GUEST, status, why);
    let slices: Vec<&GpuFact> = facts.gpus.iter().filter(|gpu| gpu.vgpu).collect();
    let what = match (slices.is_empty(), sliced(facts, matrix)) {
        (false, _) => places(slices),
        (true, Some(instance)) => format!("instance type {instance}"),
        (true, None) => return finding(Verdict::Skip, "no vGPU detected".to_owned()),
    };
    match &state.loaded {
        Some(driver) => finding(
            Verdict::Pass,
            format!("a vGPU: {what}, with driver {driver}; the license is not checked"),
        ),
        None => Finding {
            observed: Some("no driver".to_owned()),
            expected: Some("the GRID guest driver".to_owned()),
            remedy: Some(GRID_DRIVER.to_owned()),
            ..finding(
                Verdict::Warn,
                format!(
                    "a vGPU: {what}; no public driver supports it, so gpu-bootstrap does not install one"
                ),
            )
        },
    }
}

fn host(facts: &Facts, state: &VirtState) -> Finding {
    let finding = |status, why: String| Finding::new(HOST, status, why);
    let mut marks = Vec::new();
    if state.host_module {
        marks.push(format!("module `{HOST_MODULE}` is loaded"));
    }
    match facts.virtual_functions.len() {
        0 => {}
        1 => marks.push("1 virtual function".to_owned()),
        count => marks.push(format!("{count} virtual functions")),
    }
    if state.mediated > 0 {
        marks.push(format!("{} GPUs offer mediated devices", state.mediated));
    }
    if marks.is_empty() {
        return finding(Verdict::Skip, "not a vGPU host".to_owned());
    }
    Finding {
        observed: Some(marks.join(", ")),
        expected: Some("whole GPUs for containers".to_owned()),
        remedy: Some("prepare the virtual machines instead of this host".to_owned()),
        ..finding(
            Verdict::Warn,
            format!(
                "the GPUs are assigned to virtual machines ({}); the vGPU host driver does not support \
                 containers",
                marks.join(", ")
            ),
        )
    }
}

fn wsl(facts: &Facts, state: &VirtState) -> Finding {
    let finding = |status, why: &str| Finding::new(WSL, status, why);
    if facts.virtualization.as_deref() != Some("wsl") {
        return finding(Verdict::Skip, "not a WSL kernel");
    }
    if state.packaged.is_some() {
        return Finding {
            observed: state.packaged.as_ref().map(ToString::to_string),
            expected: Some("no Linux driver".to_owned()),
            remedy: Some("remove the Linux driver packages".to_owned()),
            links: vec!["https://docs.nvidia.com/cuda/wsl-user-guide/index.html".to_owned()],
            ..finding(
                Verdict::Warn,
                "the libraries of the Linux driver shadow the Windows driver, which WSL uses",
            )
        };
    }
    if !state.dxg || !state.library {
        return Finding {
            observed: Some(
                if state.dxg {
                    "no driver libraries"
                } else {
                    "no `/dev/dxg`"
                }
                .to_owned(),
            ),
            expected: Some("`/dev/dxg` and the libraries in `/usr/lib/wsl/lib`".to_owned()),
            remedy: Some(
                "install the NVIDIA driver in Windows, then run `wsl --update`".to_owned(),
            ),
            ..finding(
                Verdict::Warn,
                "Windows does not provide an NVIDIA GPU to WSL",
            )
        };
    }
    finding(
        Verdict::Pass,
        "Windows manages the GPUs and the driver, so gpu-bootstrap does not install one",
    )
}

#[async_trait]
impl Check for VirtCheck {
    fn ids(&self) -> &[Id] {
        const { &[GUEST, HOST, WSL] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        let state = detect(subject).await?;
        Ok(vec![
            guest(subject.facts, subject.matrix, &state),
            host(subject.facts, &state),
            wsl(subject.facts, &state),
        ])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::{VirtState, guest, host, wsl};
    use crate::{check::Verdict, compat::matrix::Matrix, facts::PciFact, steps::fixtures::facts};

    static MATRIX: LazyLock<Matrix> = LazyLock::new(|| Matrix::builtin().expect("a valid matrix"));

    #[test]
    fn vgpu_is_detected_by_board_or_instance_type() {
        let none = VirtState::default();
        let loaded = VirtState {
            loaded: "535.161.08".parse().ok(),
            ..VirtState::default()
        };
        let mut slice = facts();
        assert_eq!(guest(&slice, &MATRIX, &none).status, Verdict::Skip);
        slice.gpus[0].vgpu = true;
        assert_eq!(guest(&slice, &MATRIX, &none).status, Verdict::Warn);
        assert_eq!(guest(&slice, &MATRIX, &loaded).status, Verdict::Pass);
        let mut instance = facts();
        instance.cloud.provider = Some("azure".to_owned());
        instance.cloud.instance_type = Some("Standard_NV36ads_A10_v5".to_owned());
        let finding = guest(&instance, &MATRIX, &none);
        assert_eq!(finding.status, Verdict::Warn);
        assert!(
            finding.why.contains("Standard_NV36ads_A10_v5"),
            "{}",
            finding.why
        );
    }

    #[test]
    fn vgpu_host_is_detected_by_each_marker() {
        let mut with_functions = facts();
        assert_eq!(
            host(&with_functions, &VirtState::default()).status,
            Verdict::Skip
        );
        with_functions.virtual_functions.push(PciFact {
            pci_address: "0000:41:00.4".parse().unwrap(),
            pci_id: "10de:2330".parse().unwrap(),
            name: None,
        });
        let finding = host(&with_functions, &VirtState::default());
        assert_eq!(finding.status, Verdict::Warn);
        assert!(
            finding.why.contains("1 virtual function"),
            "{}",
            finding.why
        );
        for state in [
            VirtState {
                host_module: true,
                ..VirtState::default()
            },
            VirtState {
                mediated: 2,
                ..VirtState::default()
            },
        ] {
            assert_eq!(host(&facts(), &state).status, Verdict::Warn);
        }
    }

    #[test]
    fn wsl_passes_only_with_the_windows_driver() {
        let mut inside = facts();
        let whole = VirtState {
            dxg: true,
            library: true,
            ..VirtState::default()
        };
        assert_eq!(wsl(&inside, &whole).status, Verdict::Skip);
        inside.virtualization = Some("wsl".to_owned());
        assert_eq!(wsl(&inside, &whole).status, Verdict::Pass);
        let second = VirtState {
            packaged: "580.178.04".parse().ok(),
            ..whole.clone()
        };
        assert_eq!(wsl(&inside, &second).status, Verdict::Warn);
        assert_eq!(wsl(&inside, &VirtState::default()).status, Verdict::Warn);
    }
}
