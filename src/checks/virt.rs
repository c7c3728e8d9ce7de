//! Checks of vGPU guests, vGPU hosts and WSL. They report why gpu-bootstrap does not install a driver there, and problems of
//! the vGPU license.

use camino::Utf8PathBuf;

use super::messages::places;
use crate::{
    check::{Family, Finding, Subject, Verdict},
    compat::matrix::{InstanceDriver, Matrix},
    facts::{Facts, GpuFact},
    host::{ExecError, Output},
    model::{fault::Fault, id::Id, pci::DEVICES, text::counted, version::DriverVersion},
    step::StepError,
    tools::{
        gridd::{self, Attempt},
        systemctl,
    },
};

const GUEST: Id = Id::new("virt.vgpu-guest");
const HOST: Id = Id::new("virt.vgpu-host");
const WSL: Id = Id::new("virt.wsl");

/// The kernel module of the vGPU host driver.
const HOST_MODULE: &str = "nvidia_vgpu_vfio";
/// The device that provides the GPUs of Windows in WSL.
const DXG: &str = "/dev/dxg";
/// The driver library that Windows mounts in WSL.
const WSL_LIBRARY: &str = "/usr/lib/wsl/lib/libcuda.so.1";

/// The remedy for a vGPU without a driver.
pub(super) const GRID_DRIVER: &str =
    "install the GRID guest driver that matches the hypervisor's vGPU release";

/// The remedy for a vGPU whose driver branch is end-of-life.
pub(super) const GRID_BRANCH: &str = "install the GRID guest driver of a supported branch that matches the hypervisor's vGPU release";

/// The effect of a missing license.
const UNLICENSED: &str = "CUDA is slow or fails on a vGPU without license";

/// The virtualization checks.
pub(super) const FAMILY: Family = Family {
    ids: || vec![GUEST, HOST, WSL],
    examine: |subject| Box::pin(examine(subject)),
};

#[derive(Debug, Clone, Default)]
struct VirtState {
    /// The version of the loaded driver.
    loaded: Option<DriverVersion>,
    /// The driver version of the installed packages.
    packaged: Option<DriverVersion>,
    /// Whether the license client of a vGPU guest driver is installed and configured on a virtual machine.
    has_client: bool,
    /// The reason why the vGPU has no license, and the remedy. `None` if no problem is known.
    unlicensed: Option<Fault>,
    /// Whether the vGPU host driver is loaded.
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
    let loaded = state.loaded_driver()?.cloned();
    let has_program = files.exists(gridd::PROGRAM.into())?;
    let examines = has_program && loaded.is_some() && is_guest(subject)?;
    Ok(VirtState {
        loaded,
        has_client: has_client(subject)?,
        unlicensed: match examines {
            true => unlicensed(subject).await?,
            false => None,
        },
        packaged: state.driver().await.package_version.clone(),
        host_module: (state.loaded_modules()?.iter()).any(|module| module == HOST_MODULE),
        mediated,
        dxg: files.exists(DXG.into())?,
        library: files.exists(WSL_LIBRARY.into())?,
    })
}

/// Whether this is a virtual machine on which the license client of a vGPU guest driver is installed and configured. The data
/// center driver does not contain this client.
fn has_client(subject: &Subject<'_>) -> Result<bool, StepError> {
    let files = subject.host.files();
    let is_virtual = (subject.facts.virtualization.as_deref()).is_some_and(|word| word != "none");
    Ok(is_virtual && files.exists(gridd::PROGRAM.into())? && files.exists(gridd::CONFIG.into())?)
}

/// Whether the machine uses a vGPU.
pub(super) fn is_guest(subject: &Subject<'_>) -> Result<bool, StepError> {
    Ok(subject.facts.gpus.iter().any(|gpu| gpu.vgpu)
        || sliced(subject.facts, subject.matrix).is_some()
        || has_client(subject)?)
}

/// Returns the output of a query, or `None` if the query cannot be executed or fails.
fn printed(output: Result<Output, ExecError>) -> Option<String> {
    output.ok().filter(Output::ok).map(|output| output.stdout)
}

/// Returns the reason why the vGPU has no license, and the remedy. `None` if no problem is known.
async fn unlicensed(subject: &Subject<'_>) -> Result<Option<Fault>, StepError> {
    let (host, state, unit) = (subject.host, subject.state, gridd::UNIT);
    let absent = Fault::new(
        format!("{UNLICENSED}: its license client does not run, because `{unit}` does not exist"),
        format!(
            "install a GRID guest driver that contains `{unit}`, or use another version of the image, then run \
             `systemctl enable --now {unit}`"
        ),
    );
    match state.unit(unit).await {
        Ok(None) => return Ok(Some(absent)),
        Ok(Some(unit)) if unit.is_active() => {}
        Ok(Some(one)) => {
            return Ok(Some(Fault::new(
                format!("{UNLICENSED}: its license client does not run, because `{unit}` is {one}"),
                format!(
                    "run `systemctl enable --now {unit}`; `journalctl --unit {unit}` shows the reason of a failure"
                ),
            )));
        }
        Err(error) if error.not_queried().is_some() => {
            let mut has_units = false;
            for directory in systemctl::OF_PACKAGES {
                has_units |= !host.files().list(directory.into())?.is_empty();
            }
            if has_units && systemctl::files_of(host.files(), unit)?.is_empty() {
                return Ok(Some(absent));
            }
        }
        Err(error) => return Err(error.into()),
    }
    // If neither a log nor `nvidia-smi` can be read, the license status is unknown, which is not reported as a problem.
    let log = printed(host.query(&gridd::journal()).await);
    let attempt = match &log {
        Some(log) => gridd::last_attempt(log),
        None => gridd::in_files(host.files())?,
    };
    let check = format!(
        "check that the license server has free licenses for this product and is reachable, and that the token in \
         `/etc/nvidia/ClientConfigToken` or the server in `{}` is right; then run `systemctl restart {unit}`",
        gridd::CONFIG
    );
    if let Some(Attempt::Failed { server }) = attempt {
        let server = server.map_or(String::new(), |server| format!(" from {server}"));
        let why = format!("{UNLICENSED}: `nvidia-gridd` failed to acquire a license{server}");
        return Ok(Some(Fault::new(why, check)));
    }
    let status = printed(host.query(&gridd::status()).await);
    Ok(status.as_deref().and_then(gridd::unlicensed).map(|status| {
        let why = format!("{UNLICENSED}: the license status is `{status}`");
        Fault::new(why, check)
    }))
}

/// Returns the cloud instance type if it requires the vGPU guest driver, because its GPU is a vGPU.
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
        (true, None) if state.has_client => {
            format!("`{}` and `{}` exist", gridd::PROGRAM, gridd::CONFIG)
        }
        (true, None) => return finding(Verdict::Skip, "no vGPU detected".to_owned()),
    };
    match (&state.loaded, &state.unlicensed) {
        (Some(_), Some(Fault { why, remedy })) => Finding {
            observed: Some(what),
            expected: Some("a license".to_owned()),
            remedy: Some(remedy.clone()),
            ..finding(Verdict::Warn, why.clone())
        },
        (Some(driver), None) => finding(
            Verdict::Pass,
            format!("a vGPU: {what}, with driver {driver}; no problem with its license is known"),
        ),
        (None, _) => Finding {
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
        count => marks.push(counted(count, "virtual function")),
    }
    match state.mediated {
        0 => {}
        1 => marks.push("1 GPU offers mediated devices".to_owned()),
        count => marks.push(format!("{count} GPUs offer mediated devices")),
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

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let state = detect(subject).await?;
    Ok(vec![
        guest(subject.facts, subject.matrix, &state),
        host(subject.facts, &state),
        wsl(subject.facts, &state),
    ])
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::{VirtState, examine, guest, host, wsl};
    use crate::{
        check::{Finding, Subject, Verdict},
        compat::matrix::Matrix,
        facts::PciFact,
        host::fake,
        steps::fixtures::{facts, state},
    };

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

    /// Returns the finding for a guest with a license client, from the outputs of `systemctl`, `journalctl` and `nvidia-smi`.
    async fn licensed(unit: &'static str, log: &'static str, status: &'static str) -> Finding {
        let (host, fakes) = fake::host();
        for path in ["/usr/bin/nvidia-gridd", "/etc/nvidia/gridd.conf"] {
            fakes.files.put(path, "");
        }
        fakes.files.put(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  x\n",
        );
        fakes.exec.on("systemctl", move |_, _| fake::ok(unit));
        fakes.exec.on("journalctl", move |_, _| fake::ok(log));
        fakes.exec.on("nvidia-smi", move |_, _| fake::ok(status));
        let mut facts = facts();
        facts.virtualization = Some("kvm".to_owned());
        let state = state(&host, facts.clone());
        let subject = Subject {
            host: host.reader(),
            facts: &facts,
            state: &state,
            matrix: &MATRIX,
            desired: None,
            prepared: false,
        };
        examine(&subject).await.unwrap().remove(0)
    }

    #[tokio::test]
    async fn vgpu_without_license_warns() {
        const RUNS: &str = "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\n";
        const FAILED: &str = "LoadState=loaded\nActiveState=failed\nUnitFileState=enabled\n";
        const ABSENT: &str = "LoadState=not-found\nActiveState=inactive\nUnitFileState=\n";
        const GOOD: &str = "License acquired successfully. (Info: x)\n";
        for (unit, log, status, verdict, words) in rows! {
            RUNS, GOOD, "License Status : Licensed (Expiry: N/A)\n", Verdict::Pass, "no problem";
            RUNS, "", "", Verdict::Pass, "no problem";
            ABSENT, "", "", Verdict::Warn, "`nvidia-gridd.service` does not exist";
            FAILED, "", "", Verdict::Warn, "failed";
            RUNS, "Failed to acquire license from 192.0.2.10\n", "", Verdict::Warn, "from 192.0.2.10";
            RUNS, "", "License Status : Unlicensed (Restricted)\n", Verdict::Warn, "`Unlicensed (Restricted)`";
        } {
            let found = licensed(unit, log, status).await;
            assert_eq!(found.status, verdict, "{}", found.why);
            assert!(found.why.contains(words), "{}", found.why);
        }
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
        for (host_module, mediated, words) in [
            (true, 0, "module `nvidia_vgpu_vfio` is loaded"),
            (false, 1, "1 GPU offers mediated devices"),
            (false, 2, "2 GPUs offer mediated devices"),
        ] {
            let state = VirtState {
                host_module,
                mediated,
                ..VirtState::default()
            };
            let finding = host(&facts(), &state);
            assert_eq!(finding.status, Verdict::Warn);
            assert!(finding.why.contains(words), "{}", finding.why);
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
