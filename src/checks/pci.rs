//! PCI checks: the GPUs on the bus, their architecture, and their drivers. They work without a driver, so read them first if a
//! GPU is missing.

use super::{
    log,
    messages::{self, INSTALL, INSTALL_IT, gpus, names, places},
    module_build::{has_module_of, has_unconfigured_module, without_module},
    virt,
};
use crate::{
    check::{Family, Finding, Subject, Verdict},
    facts::{Facts, GpuFact, PciFact},
    model::{
        fault::Fault, gpu::ArchitectureEvidence, id::Id, pci::PciAddress, text::shell_word,
        version::Branch,
    },
    state::{DriverPart, KernelLog, is_nova, is_reserved, owner},
    step::StepError,
    steps::expected::{self, ExpectedGpus},
    tools::kmod,
};

const PRESENT: Id = Id::new("pci.gpu.present");
const IDENTITY: Id = Id::new("pci.gpu.identity");
const BOUND: Id = Id::new("pci.driver-bound");
const FELL: Id = Id::new("log.fell-off-bus");
const CONSISTENCY: Id = Id::new("os.pkg.consistency");

/// The first branch whose `cuda-drivers` does not depend on a driver.
const HOLLOW: Branch = Branch(615);

/// The driver that containers need.
const DRIVER: &str = "nvidia";

/// The driver of the GPU in a Jetson (Tegra), which JetPack ships.
const TEGRA: &str = "nvgpu";

/// Other vendors of GPUs and accelerators. Devices of other vendors are shown without a vendor name.
const VENDORS: [(u16, &str); 3] = [(0x1002, "AMD"), (0x8086, "Intel"), (0x1da3, "Habana")];

/// The PCI checks.
pub(super) const FAMILY: Family = Family {
    ids: || vec![PRESENT, IDENTITY, BOUND],
    examine: |subject| Box::pin(examine(subject)),
};

/// Whether missing GPUs are allowed.
#[derive(Debug, Clone, Copy, Default)]
struct Wanted {
    /// No GPU is required.
    allow_none: bool,
    /// An image is built on this machine.
    image: bool,
}

fn label(gpu: &GpuFact) -> String {
    let name = gpu.name.as_deref().unwrap_or("unknown GPU");
    format!("{name} [{}] at {}", gpu.pci_id, gpu.pci_address)
}

fn foreign(gpu: &PciFact) -> String {
    let vendor = VENDORS.iter().find(|(id, _)| *id == gpu.pci_id.vendor);
    let vendor = vendor.map_or(String::new(), |(_, name)| format!("{name} "));
    let name = gpu.name.as_deref().unwrap_or("display adapter");
    format!("{vendor}{name} [{}] at {}", gpu.pci_id, gpu.pci_address)
}

/// The number of NVSwitches on a baseboard with 8 GPUs, by architecture (NVIDIA fabric manager user guide: HGX-2 and HGX A100
/// have six, HGX H100 and H200 have four).
const BASEBOARDS: [(&str, usize); 3] = [("volta", 6), ("ampere", 6), ("hopper", 4)];

/// Returns a message if a baseboard has fewer GPUs than its NVSwitches connect. Only bare metal is checked, because a virtual
/// machine may have all switches but only some of the GPUs.
fn incomplete(facts: &Facts) -> Option<String> {
    let architecture = facts.gpus.first()?.architecture.as_ref()?;
    let (_, each) = (BASEBOARDS.iter()).find(|(name, _)| *name == architecture.as_str())?;
    let switches = facts.nvswitches.len();
    let whole = switches / each * 8;
    let on_metal = facts.virtualization.as_deref() == Some("none");
    (on_metal && switches.is_multiple_of(*each) && facts.gpus.len() < whole).then(|| {
        format!(
            "the {switches} NVSwitches of the baseboard connect {}, but only {} on the PCI bus",
            gpus(whole),
            match facts.gpus.len() {
                1 => "1 GPU is".to_owned(),
                count => format!("{count} GPUs are"),
            }
        )
    })
}

fn present(facts: &Facts, wanted: Wanted, expected_gpus: Option<ExpectedGpus<'_>>) -> Finding {
    let count = facts.gpus.len();
    let is_wsl = facts.virtualization.as_deref() == Some("wsl");
    let others: Vec<String> = facts.foreign_gpus.iter().map(foreign).collect();
    let none = if others.is_empty() {
        messages::NO_GPU.to_owned()
    } else {
        format!(
            "{}; other adapters: {}",
            messages::NO_GPU,
            others.join("; ")
        )
    };
    // An image runs on other machines, so the GPU count of this instance type is irrelevant.
    let expected_gpus = expected_gpus.filter(|_| !wanted.image);
    let least = expected_gpus.map_or(1, |expected_gpus| expected_gpus.promised);
    let (status, why, remedy) = if count > 0 {
        let names: Vec<String> = facts.gpus.iter().map(label).collect();
        let names = names.join("; ");
        match (
            expected_gpus.and_then(|expected_gpus| expected_gpus.broken()),
            incomplete(facts),
        ) {
            (None, None) => (Verdict::Pass, names, None),
            (Some(broken), _) => (
                Verdict::Fail,
                format!("{broken}: {names}"),
                Some(expected::REMEDY.to_owned()),
            ),
            (None, Some(broken)) => (
                Verdict::Fail,
                format!("{broken}: {names}"),
                Some(format!(
                    "{}; if the GPU is still missing, check its power and seat, and contact the hardware vendor",
                    messages::POWER
                )),
            ),
        }
    } else if is_wsl {
        (
            Verdict::Skip,
            "Windows manages the GPUs, so the PCI bus of WSL has none".to_owned(),
            None,
        )
    } else if wanted.image {
        (
            Verdict::Skip,
            "an image has no GPUs, only its instances have".to_owned(),
            None,
        )
    } else if let Some(unread) = facts.unknown.iter().find(|one| one.fact == "gpus") {
        let why = format!("the PCI bus cannot be read: {}", unread.why);
        (Verdict::Unknown, why, None)
    } else if let Some(why) = expected_gpus.and_then(|one| one.broken()) {
        (Verdict::Fail, why, Some(expected::REMEDY.to_owned()))
    } else if wanted.allow_none {
        (
            Verdict::Skip,
            format!("{none}, and no GPU is required"),
            None,
        )
    } else {
        (
            Verdict::Fail,
            none,
            Some(
                "compare the instance type with your provider's list; on bare metal, check power, \
                 seating and the BIOS (`lspci -d 10de:`)"
                    .to_owned(),
            ),
        )
    };
    Finding {
        observed: Some(count.to_string()),
        expected: (expected_gpus.is_some() || !wanted.allow_none && !wanted.image && !is_wsl)
            .then(|| format!("at least {least}")),
        remedy,
        ..Finding::new(PRESENT, status, why)
    }
}

fn identity(gpus_found: &[GpuFact]) -> Finding {
    let finding = |status, why: String| Finding::new(IDENTITY, status, why);
    if gpus_found.is_empty() {
        return finding(Verdict::Skip, messages::NO_GPU.to_owned());
    }
    let unknown: Vec<String> = (gpus_found.iter())
        .filter(|gpu| gpu.architecture.is_none())
        .map(label)
        .collect();
    if unknown.is_empty() {
        let mut names: Vec<String> = (gpus_found.iter())
            .filter_map(|gpu| {
                let name = gpu.architecture.as_ref()?;
                Some(match gpu.architecture_evidence {
                    Some(evidence) if evidence != ArchitectureEvidence::Listed => {
                        format!("{name} (according to {evidence})")
                    }
                    _ => name.to_string(),
                })
            })
            .collect();
        names.sort_unstable();
        names.dedup();
        return finding(Verdict::Pass, names.join(", "));
    }
    Finding {
        observed: Some("unknown architecture".to_owned()),
        expected: Some("an architecture in the matrix".to_owned()),
        remedy: Some(
            "run `update-pciids`, because the architecture can be derived from the chip name"
                .to_owned(),
        ),
        ..finding(
            Verdict::Warn,
            format!(
                "not in the matrix and `pci.ids`: {} of {}: {}",
                unknown.len(),
                gpus(gpus_found.len()),
                unknown.join("; ")
            ),
        )
    }
}

/// GPUs with the driver that is bound to them.
type Bound<'f> = (&'f GpuFact, Option<&'f str>);

fn detect<'f>(subject: &Subject<'f>) -> Result<Vec<Bound<'f>>, StepError> {
    let mut found = Vec::new();
    for gpu in &subject.facts.gpus {
        found.push((gpu, subject.state.bound_driver(gpu.pci_address)?));
    }
    Ok(found)
}

/// Returns text such as `nvidia (6 GPUs), no driver (2 GPUs)`, or only the driver name if all GPUs have the same driver.
fn counts(found: &[Bound<'_>]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for (_, driver) in found {
        let driver = driver.unwrap_or("no driver");
        match counts.iter_mut().find(|(name, _)| *name == driver) {
            Some((_, count)) => *count += 1,
            None => counts.push((driver, 1)),
        }
    }
    if let [(driver, _)] = counts[..] {
        return driver.to_owned();
    }
    let counts: Vec<String> = counts
        .into_iter()
        .map(|(driver, count)| format!("{driver} ({})", gpus(count)))
        .collect();
    counts.join(", ")
}

/// Evidence for the reason why GPUs have no driver, and for the remedy.
#[derive(Debug, Clone)]
struct DriverEvidence {
    /// The reason why the driver rejected the GPU, if known.
    refusal: Option<Fault>,
    /// The reason why the NVIDIA module is not loaded, so that an in-tree driver is bound to the GPU.
    absent: Option<Fault>,
    /// The NVIDIA module exists for the running kernel, but is not loaded.
    on_disk: bool,
    /// Driver packages are unpacked but not configured, so no module was built.
    unconfigured: bool,
    /// The NVIDIA driver is loaded, so it has rejected the GPU.
    loaded: bool,
    /// gpu-bootstrap can install a driver on this machine.
    installs: bool,
    /// The machine uses vGPUs, such as the fractional GPUs of an instance type.
    sliced: bool,
    /// The owner of the driver, and how to install a driver with this owner.
    theirs: Option<String>,
    /// GPUs that have fallen off the bus and do not respond to any driver.
    fell: Vec<PciAddress>,
}

fn bound(found: &[Bound<'_>], evidence: &DriverEvidence) -> Finding {
    let finding = |status, why: String| Finding {
        expected: Some(DRIVER.into()),
        ..Finding::new(BOUND, status, why)
    };
    if found.is_empty() {
        return finding(Verdict::Skip, messages::NO_GPU.to_owned());
    }
    let all = found.len();
    let with = |is: &dyn Fn(Option<&str>) -> bool| -> Vec<&GpuFact> {
        (found.iter().filter(|(_, driver)| is(*driver)))
            .map(|(gpu, _)| *gpu)
            .collect()
    };
    let reserved = with(&|driver| driver.is_some_and(is_reserved));
    let none = with(&|driver| driver.is_none());
    let mut others: Vec<&str> = (found.iter())
        .filter_map(|(_, driver)| *driver)
        .filter(|driver| ![DRIVER, TEGRA].contains(driver) && !is_reserved(driver))
        .collect();
    others.sort_unstable();
    others.dedup();
    let observed = Some(counts(found));
    if none.is_empty() && others.is_empty() && reserved.is_empty() {
        return Finding {
            observed,
            ..finding(Verdict::Pass, format!("{all} of {}", gpus(all)))
        };
    }
    let mut whys = Vec::new();
    let refusal = evidence.refusal.as_ref().filter(|_| !none.is_empty());
    // The first reason without the addresses, for the headline.
    let mut brief = None;
    let mut add = |text: String, of_it: &[&GpuFact], whys: &mut Vec<String>| {
        whys.push(format!("{text}: {}", places(of_it.iter().copied())));
        brief.get_or_insert(format!("{text} ({})", names(of_it.iter().copied())));
    };
    if !none.is_empty() {
        let text = format!("no driver is bound to {} of {}", none.len(), gpus(all));
        add(text, &none, &mut whys);
    }
    whys.extend(refusal.map(|refusal| refusal.why.clone()));
    let in_tree = |driver: &&str| *driver == "nouveau" || is_nova(driver);
    let cause = evidence.refusal.as_ref().or(evidence.absent.as_ref());
    let absent = (evidence.absent.as_ref())
        .filter(|_| none.is_empty() && !others.is_empty() && others.iter().all(in_tree));
    for other in &others {
        let of_it = with(&|driver| driver == Some(*other));
        let is = if of_it.len() == 1 { "is" } else { "are" };
        let text = format!("{} of {} {is} bound to `{other}`", of_it.len(), gpus(all));
        add(text, &of_it, &mut whys);
    }
    whys.extend(absent.map(|absent| absent.why.clone()));
    if !reserved.is_empty() {
        let is = if reserved.len() == 1 { "is" } else { "are" };
        let text = format!(
            "{} of {} {is} reserved for virtual machines",
            reserved.len(),
            gpus(all)
        );
        add(text, &reserved, &mut whys);
    }
    // Reserved GPUs are only a warning, because the host may be intended for virtual machines.
    let all_reserved = reserved.len() == all;
    let status = if !none.is_empty() || !others.is_empty() {
        Verdict::Fail
    } else {
        Verdict::Warn
    };
    let is_vgpu = none.iter().any(|gpu| gpu.vgpu);
    let other = others.iter().find(|&driver| !in_tree(driver));
    // A GPU that fell off the bus does not need another driver.
    let because = if none.is_empty() || !others.is_empty() {
        None
    } else if (none.iter()).all(|gpu| evidence.fell.contains(&gpu.pci_address)) {
        Some(FELL)
    } else {
        (evidence.unconfigured && refusal.is_none()).then_some(CONSISTENCY)
    };
    let remedy = if all_reserved {
        Some(
            "prepare the virtual machines that use them; if this machine should use them, run `grep -r vfio /etc/modprobe.d \
             /proc/cmdline` to find the setting that reserves them, and remove it"
                .to_owned(),
        )
    } else if let Some(other) = other {
        Some(format!(
            "run `rmmod {}`, then install the NVIDIA driver (`gpu-bootstrap install`), which cannot use a GPU that \
             is bound to another driver",
            shell_word(other)
        ))
    } else if let Some(absent) = absent {
        Some(format!(
            "{}; then deny the kernel's own driver in `/etc/modprobe.d`, regenerate the initramfs, and reboot",
            absent.remedy
        ))
    } else if !others.is_empty() && evidence.installs {
        Some(format!("{INSTALL}, which denies the kernel's own drivers"))
    } else if let Some(other) = others.first() {
        let module = if is_nova(other) { "nova_core" } else { other };
        Some(format!(
            "deny it (`echo blacklist {module} >/etc/modprobe.d/deny-{module}.conf`), regenerate the initramfs, and reboot, so \
             that the NVIDIA driver can use the GPU{}",
            fits(found).map_or(String::new(), |fits| format!("; {fits}"))
        ))
    } else if is_vgpu {
        Some(virt::GRID_DRIVER.to_owned())
    } else if let Some(refusal) = refusal {
        Some(refusal.remedy.clone())
    } else if !none.is_empty() && evidence.loaded {
        Some("run `dmesg | grep NVRM` to see why the loaded driver rejected the GPU".to_owned())
    } else if status == Verdict::Warn {
        None
    } else if evidence.installs {
        Some(INSTALL.to_owned())
    } else if evidence.on_disk {
        Some(
            "run `modprobe nvidia`, because the module for this kernel is installed; if it cannot be loaded, \
             `dmesg | grep -i nvidia` shows the reason"
                .to_owned(),
        )
    } else if evidence.sliced {
        Some(virt::GRID_DRIVER.to_owned())
    } else {
        match (fits(found), &evidence.theirs) {
            (Some(fits), Some(theirs)) => Some(format!("{fits}; {theirs}")),
            (fits, _) => fits,
        }
    };
    Finding {
        observed,
        remedy,
        because,
        brief: (cause.filter(|_| whys.len() > 1))
            .map(|cause| cause.why.clone())
            .or(brief),
        ..finding(status, whys.join("; "))
    }
}

/// Returns the remedy for a machine on which gpu-bootstrap does not install a driver.
fn fits(found: &[Bound<'_>]) -> Option<String> {
    let (gpu, _) = found.iter().find(|(_, driver)| *driver != Some(DRIVER))?;
    Some(format!(
        "run `gpu-bootstrap compat --gpu {}` to find a compatible driver, and {INSTALL_IT}",
        gpu.pci_id
    ))
}

/// Returns a diagnosis if `cuda-drivers` is the only installed driver package. Up to branch 610 it depended on the driver, but
/// since branch 615 it has no dependencies (cupy/cupy pull request 10295).
fn hollow(parts: &[DriverPart]) -> Option<Fault> {
    let part = parts.first()?;
    let is_hollow = |part: &DriverPart| {
        part.name.starts_with("cuda-drivers") && part.version.branch() >= HOLLOW
    };
    parts.iter().all(is_hollow).then(|| {
        Fault::new(
            format!(
                "the only installed NVIDIA driver package is {} {}, which no longer contains a driver",
                part.name, part.version
            ),
            "remove this package, then run `gpu-bootstrap install`, or install `nvidia-open` instead (for GPUs before Turing, \
             a driver of branch 580)",
        )
    })
}

/// Returns the configuration line that prevents the installed NVIDIA module from being loaded.
fn denied(subject: &Subject<'_>) -> Result<Option<Fault>, StepError> {
    // In Debian, the module has another name than the driver.
    let modules = [DRIVER, "nvidia-current"].map(str::to_owned);
    let lines = kmod::denials(subject.host.files(), &modules)?;
    Ok(lines.into_iter().next().map(|line| {
        Fault::new(
            format!("the NVIDIA module is denied: {line}"),
            "remove this line (if nvidia-prime wrote it, run `prime-select nvidia`), regenerate the initramfs, and reboot",
        )
    }))
}

/// Whether an NVIDIA module exists for the running kernel.
fn has_module(subject: &Subject<'_>) -> Result<bool, StepError> {
    let Some(running) = &subject.facts.kernel.running else {
        return Ok(false);
    };
    let found = has_module_of(subject.host.files(), &running.to_string())?;
    Ok(found == Some(true))
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let wanted = Wanted {
        // Without a GPU there is no desired state. In this case a GPU is required only if gpu-bootstrap has prepared the
        // machine before.
        allow_none: subject.desired.map_or(!subject.prepared, |desired| {
            desired.settings.is_gpu_optional()
        }),
        image: subject.desired.is_some_and(|desired| desired.image),
    };
    let version = subject.state.loaded_driver();
    let loaded = match &version {
        Ok(version) => version.is_some(),
        // A driver with an unreadable version is loaded. The output of `lspci` does not show the loaded drivers.
        Err(error) => error.not_queried().is_none(),
    };
    let theirs = match owner(subject.host.files(), subject.facts).map_err(StepError::from) {
        Ok(owner) => {
            owner.map(|owner| format!("{} manages the driver here: {}", owner.name, owner.remedy))
        }
        Err(error) if error.not_queried().is_some() => None,
        Err(error) => return Err(error),
    };
    let mut evidence = DriverEvidence {
        loaded,
        installs: (subject.desired).is_some_and(|desired| desired.driver.is_some()),
        refusal: None,
        absent: None,
        on_disk: false,
        unconfigured: false,
        sliced: virt::is_guest(subject)?,
        theirs,
        fell: Vec::new(),
    };
    if let KernelLog::Known { messages, .. } = subject.state.kernel_log().await {
        let context = log::LogContext::of(subject).await?;
        evidence.refusal = (log::refusal(messages, &context).map(|refusal| refusal.fault))
            .or_else(|| log::reason(messages, &context));
        evidence.absent = log::not_loaded(messages, &context);
        evidence.fell = log::off_the_bus(messages).into_iter().flatten().collect();
    }
    if version.is_ok() && !loaded {
        evidence.on_disk = has_module(subject)?;
        let without = match evidence.on_disk {
            true => denied(subject)?,
            false => {
                let is_bound = detect(subject)
                    .is_ok_and(|found| found.iter().any(|(_, driver)| driver.is_some()));
                without_module(subject, is_bound).await?
            }
        };
        let without = match without {
            // An unreadable database is reported by the package checks.
            None if !evidence.on_disk => {
                hollow(&subject.state.driver_parts().await.unwrap_or_default())
            }
            without => without,
        };
        evidence.absent = evidence.absent.or_else(|| without.clone());
        evidence.refusal = evidence.refusal.or(without);
        // An unreadable database is reported by the package checks.
        evidence.unconfigured =
            !evidence.on_disk && (has_unconfigured_module(subject).await).unwrap_or_default();
    }
    let of_drivers = match detect(subject) {
        Ok(found) => bound(&found, &evidence),
        Err(error) => match error.not_queried() {
            Some(why) => Finding::new(BOUND, Verdict::Skip, why.to_owned()),
            None => return Err(error),
        },
    };
    Ok(vec![
        present(
            subject.facts,
            wanted,
            ExpectedGpus::of(subject.facts, subject.matrix).ok(),
        ),
        identity(&subject.facts.gpus),
        of_drivers,
    ])
}

#[cfg(test)]
mod tests {
    use super::{
        Bound, CONSISTENCY, DriverEvidence, FELL, Wanted, bound, hollow, identity, incomplete,
        present,
    };
    use crate::{
        check::Verdict,
        facts::{Facts, PciFact},
        model::fault::Fault,
        state::DriverPart,
        steps::{expected::ExpectedGpus, fixtures::facts},
    };

    fn evidence(loaded: bool) -> DriverEvidence {
        DriverEvidence {
            refusal: None,
            absent: None,
            on_disk: false,
            unconfigured: false,
            loaded,
            installs: true,
            sliced: false,
            theirs: None,
            fell: Vec::new(),
        }
    }

    #[test]
    fn jetson_driver_passes() {
        let facts = facts();
        let found = bound(&[(&facts.gpus[0], Some("nvgpu"))], &evidence(true));
        assert_eq!(found.status, Verdict::Pass, "{}", found.why);
    }

    #[test]
    fn remedy_does_not_install_without_a_desired_driver() {
        let facts = facts();
        let nowhere = DriverEvidence {
            installs: false,
            ..evidence(false)
        };
        for (driver, words) in [
            (None, "gpu-bootstrap compat"),
            (Some("nouveau"), "echo blacklist nouveau"),
            (Some("NovaCore"), "echo blacklist nova_core"),
        ] {
            let remedy = bound(&[(&facts.gpus[0], driver)], &nowhere).remedy;
            assert!(remedy.is_some_and(|text| text.contains(words)), "{words}");
        }
    }

    #[test]
    fn remedy_mentions_the_owner_of_the_driver() {
        // NVIDIA/gpu-operator issue 1623.
        let facts = facts();
        let image = DriverEvidence {
            installs: false,
            theirs: Some("Container-Optimized OS manages the driver here".to_owned()),
            ..evidence(false)
        };
        let remedy = bound(&[(&facts.gpus[0], None)], &image).remedy;
        let remedy = remedy.unwrap();
        assert!(remedy.contains("gpu-bootstrap compat"), "{remedy}");
        assert!(remedy.ends_with("; Container-Optimized OS manages the driver here"));
    }

    #[test]
    fn installed_module_is_loaded_instead_of_reinstalled() {
        let facts = facts();
        let on_disk = DriverEvidence {
            installs: false,
            on_disk: true,
            ..evidence(false)
        };
        let remedy = bound(&[(&facts.gpus[0], None)], &on_disk).remedy;
        assert!(remedy.is_some_and(|text| text.starts_with("run `modprobe nvidia`")));
    }

    #[test]
    fn cuda_drivers_without_a_driver_is_reported() {
        let of = |version: &str, names: &[&str]| {
            let part = |name: &&str| DriverPart {
                name: (*name).to_owned(),
                version: version.parse().unwrap(),
                by_vendor: Some(true),
            };
            hollow(&names.iter().map(part).collect::<Vec<_>>()).map(|told| told.why)
        };
        let told = |names| of("615.71.09", names);
        assert_eq!(of("610.57.04", &["cuda-drivers"]), None);
        let why = told(&["cuda-drivers"]).unwrap();
        assert!(
            why.contains("driver package is cuda-drivers 615.71.09"),
            "{why}"
        );
        assert_eq!(told(&["cuda-drivers", "nvidia-driver"]), None);
        assert_eq!(told(&[]), None);
    }

    #[test]
    fn unconfigured_packages_cause_a_missing_driver() {
        // aws-samples/aws-deep-learning-ami-ubuntu-dcv-desktop issue 18.
        let facts = facts();
        let half = DriverEvidence {
            unconfigured: true,
            ..evidence(false)
        };
        let because =
            |evidence: &DriverEvidence| bound(&[(&facts.gpus[0], None)], evidence).because;
        assert_eq!(because(&half), Some(CONSISTENCY));
        // A known reason takes precedence.
        let known = DriverEvidence {
            refusal: Some(Fault::new("DKMS did not build it", "read its log")),
            ..half
        };
        assert_eq!(because(&known), None);
    }

    #[test]
    fn nouveau_finding_contains_the_module_error() {
        let facts = facts();
        let rejected = DriverEvidence {
            absent: Some(Fault::new(
                "the kernel refuses the module",
                "enroll the key",
            )),
            ..evidence(false)
        };
        let finding = bound(&[(&facts.gpus[0], Some("nouveau"))], &rejected);
        assert!(
            finding.why.ends_with("; the kernel refuses the module"),
            "{}",
            finding.why
        );
        assert!(
            finding
                .remedy
                .unwrap_or_default()
                .starts_with("enroll the key; then deny")
        );
        // Any other driver must be unloaded first.
        let remedy = bound(&[(&facts.gpus[0], Some("odd"))], &rejected).remedy;
        assert!(remedy.is_some_and(|text| text.contains("rmmod odd")));
    }

    #[test]
    fn missing_gpu_of_a_baseboard_is_reported() {
        let whole = facts();
        let gpus = |count| whole.gpus.iter().cycle().take(count).cloned().collect();
        let switch = PciFact {
            pci_address: whole.gpus[0].pci_address,
            pci_id: "10de:22a3".parse().unwrap(),
            name: None,
        };
        let machine = |count, switches, virtualization: &str| Facts {
            gpus: gpus(count),
            nvswitches: vec![switch.clone(); switches],
            virtualization: Some(virtualization.to_owned()),
            ..facts()
        };
        let words =
            "4 NVSwitches of the baseboard connect 8 GPUs, but only 7 GPUs are on the PCI bus";
        let told = incomplete(&machine(7, 4, "none"));
        assert!(told.is_some_and(|told| told.contains(words)));
        for complete in [
            machine(8, 4, "none"),
            machine(2, 0, "none"),
            machine(2, 1, "none"),
            machine(4, 4, "kvm"),
        ] {
            assert_eq!(incomplete(&complete), None);
        }
    }

    #[test]
    fn gpu_off_the_bus_needs_no_driver() {
        let facts = facts();
        let [first, second] = [&facts.gpus[0], &facts.gpus[1]];
        let off = DriverEvidence {
            fell: vec![first.pci_address],
            ..evidence(true)
        };
        let because = |found: &[Bound<'_>]| bound(found, &off).because;
        assert_eq!(
            because(&[(first, None), (second, Some("nvidia"))]),
            Some(FELL)
        );
        assert_eq!(because(&[(first, None), (second, None)]), None);
        assert_eq!(because(&[(first, None), (second, Some("nouveau"))]), None);
    }

    #[test]
    fn gpu_without_a_driver_fails_with_a_remedy() {
        let facts = facts();
        let (first, second) = (&facts.gpus[0], &facts.gpus[1]);
        for (one, other, loaded, verdict, words, remedy) in rows! {
            Some("nvidia"), Some("nvidia"), true, Verdict::Pass, "2 of 2 GPUs", None;
            Some("nvidia"), None, true, Verdict::Fail,
                "no driver is bound to 1 of 2 GPUs: H100 SXM5 80GB at 0000:2a:00.0", Some("dmesg");
            None, None, false, Verdict::Fail,
                "no driver is bound to 2 of 2 GPUs: H100 SXM5 80GB at 0000:18:00.0, 0000:2a:00.0",
                Some("gpu-bootstrap install");
            Some("nouveau"), Some("nouveau"), false, Verdict::Fail,
                "2 of 2 GPUs are bound to `nouveau`", Some("gpu-bootstrap install");
            Some("NovaCore"), Some("nvidia"), true, Verdict::Fail,
                "1 of 2 GPUs is bound to `NovaCore`", Some("gpu-bootstrap install");
            Some("odd"), Some("nvidia"), true, Verdict::Fail, "is bound to `odd`",
                Some("rmmod odd");
            Some("vfio-pci"), Some("nvidia"), true, Verdict::Warn,
                "1 of 2 GPUs is reserved for virtual machines: H100 SXM5 80GB at 0000:18:00.0",
                None;
            Some("vfio-pci"), Some("vfio-pci"), false, Verdict::Warn,
                "2 of 2 GPUs are reserved for virtual machines", Some("vfio");
        } {
            let found: [Bound<'_>; 2] = [(first, one), (second, other)];
            let finding = bound(&found, &evidence(loaded));
            assert_eq!(finding.status, verdict, "{one:?} {other:?}");
            assert!(finding.why.contains(words), "{}", finding.why);
            match remedy {
                Some(words) => {
                    let said = finding.remedy.unwrap_or_default();
                    assert!(said.contains(words), "{said}");
                }
                None => assert_eq!(finding.remedy, None),
            }
        }
        assert_eq!(bound(&[], &evidence(false)).status, Verdict::Skip);
        let mixed = bound(&[(first, Some("nvidia")), (second, None)], &evidence(true));
        assert_eq!(
            mixed.observed.as_deref(),
            Some("nvidia (1 GPU), no driver (1 GPU)")
        );
    }

    #[test]
    fn vgpu_needs_the_grid_driver() {
        let mut facts = facts();
        facts.gpus.truncate(1);
        facts.gpus[0].vgpu = true;
        let finding = bound(&[(&facts.gpus[0], None)], &evidence(false));
        let remedy = finding.remedy.unwrap_or_default();
        assert!(remedy.contains("GRID guest driver"), "{remedy}");
        // A fractional GPU of a cloud may have the ID of the whole GPU: awslabs/amazon-eks-ami issue 2443.
        facts.gpus[0].vgpu = false;
        let sliced = DriverEvidence {
            installs: false,
            sliced: true,
            ..evidence(false)
        };
        let remedy = bound(&[(&facts.gpus[0], None)], &sliced).remedy;
        assert!(remedy.is_some_and(|text| text.contains("GRID guest driver")));
    }

    #[test]
    fn missing_gpu_fails_if_required() {
        let mut none = facts();
        let must = Wanted::default();
        let may = Wanted {
            allow_none: true,
            image: false,
        };
        assert_eq!(present(&none, must, None).status, Verdict::Pass);
        none.gpus.clear();
        assert_eq!(present(&none, must, None).status, Verdict::Fail);
        assert_eq!(present(&none, may, None).status, Verdict::Skip);
    }

    #[test]
    fn fewer_gpus_than_the_instance_type_fails() {
        let expected_gpus = |promised| {
            Some(ExpectedGpus {
                instance_type: "p5.48xlarge",
                promised,
                found: 2,
            })
        };
        let finding = present(&facts(), Wanted::default(), expected_gpus(8));
        assert_eq!(finding.status, Verdict::Fail);
        assert_eq!(finding.observed.as_deref(), Some("2"));
        assert_eq!(finding.expected.as_deref(), Some("at least 8"));
        let words = "p5.48xlarge has 8 GPUs, but only 2 GPUs are on the PCI bus: H100 SXM5 80GB";
        assert!(finding.why.starts_with(words), "{}", finding.why);
        assert!(
            finding
                .remedy
                .is_some_and(|text| text.contains("stop the instance"))
        );
        let kept = present(&facts(), Wanted::default(), expected_gpus(2));
        assert_eq!(kept.status, Verdict::Pass);
        let image = Wanted {
            image: true,
            ..Wanted::default()
        };
        let finding = present(&facts(), image, expected_gpus(8));
        assert_eq!((finding.status, finding.expected), (Verdict::Pass, None));
    }

    #[test]
    fn gpus_of_other_vendors_are_listed() {
        let mut none = facts();
        none.gpus.clear();
        none.foreign_gpus.push(PciFact {
            pci_address: "0000:05:00.0".parse().unwrap(),
            pci_id: "1002:74a1".parse().unwrap(),
            name: Some("Aqua Vanjaram [Instinct MI300X]".to_owned()),
        });
        let finding = present(&none, Wanted::default(), None);
        let named = "AMD Aqua Vanjaram [Instinct MI300X] [1002:74a1] at 0000:05:00.0";
        assert!(finding.why.contains(named), "{}", finding.why);
    }

    #[test]
    fn wsl_without_a_gpu_is_skipped() {
        let mut wsl = facts();
        wsl.gpus.clear();
        wsl.virtualization = Some("wsl".to_owned());
        let finding = present(&wsl, Wanted::default(), None);
        assert_eq!((finding.status, finding.expected), (Verdict::Skip, None));
    }

    #[test]
    fn unknown_gpu_id_warns() {
        let mut facts = facts();
        assert_eq!(identity(&facts.gpus).status, Verdict::Pass);
        facts.gpus[1].architecture = None;
        let finding = identity(&facts.gpus);
        assert_eq!(finding.status, Verdict::Warn);
        assert!(
            finding
                .why
                .contains("1 of 2 GPUs: H100 SXM5 80GB [10de:2330] at 0000:2a:00.0")
        );
        assert_eq!(identity(&[]).status, Verdict::Skip);
    }

    #[test]
    fn image_without_a_gpu_is_skipped() {
        let mut none = facts();
        none.gpus.clear();
        let image = Wanted {
            allow_none: false,
            image: true,
        };
        let finding = present(&none, image, None);
        assert_eq!(finding.status, Verdict::Skip);
        assert!(finding.why.contains("an image"), "{}", finding.why);
        assert_eq!((finding.expected, finding.remedy), (None, None));
        // GPUs of the build machine are reported.
        assert_eq!(present(&facts(), image, None).status, Verdict::Pass);
    }
}
