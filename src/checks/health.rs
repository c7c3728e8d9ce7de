//! GPU health checks: memory, temperature, power and links as reported by NVML.
//!
//! The recovery action recommended by the driver comes first. The other rows show the reason. The sources of rules and
//! thresholds are in the registry (`model/findings.toml`).

use camino::Utf8Path;

use super::messages;
use crate::{
    check::{Family, Finding, Subject, Verdict},
    facts::switches::switches,
    host::{GpuHealth, Nvml, NvmlDevice, health::RemappedRows},
    model::{findings::Remedy, id::Id, pci::PciAddress, text::counted},
    state::{has_library, owner},
    step::StepError,
    tools::kernel_log::Recovery,
};

/// The GPU health checks.
pub(super) const FAMILY: Family = Family {
    ids: || ROWS.iter().map(|row| row.id.clone()).collect(),
    examine: |subject| Box::pin(examine(subject)),
};

/// Whether the machine has NVSwitches. If it does, all links of a GPU lead to them and must be active.
type HasSwitches = bool;

/// A finding and the rule that is applied to each GPU.
struct HealthRow {
    id: Id,
    /// Evaluates a GPU; `None` if NVML does not report the value.
    evaluate: fn(&GpuHealth, HasSwitches) -> Option<HealthEvaluation>,
    /// The possible reasons for a missing value.
    silent: &'static str,
}

/// The result of a row for one GPU.
#[derive(Debug, PartialEq, Eq)]
struct HealthEvaluation {
    status: Verdict,
    told: String,
    remedy: Option<(Remedy, &'static str)>,
}

fn pass(told: impl Into<String>) -> Option<HealthEvaluation> {
    Some(HealthEvaluation {
        status: Verdict::Pass,
        told: told.into(),
        remedy: None,
    })
}

fn warn(told: impl Into<String>, class: Remedy, remedy: &'static str) -> Option<HealthEvaluation> {
    Some(HealthEvaluation {
        status: Verdict::Warn,
        told: told.into(),
        remedy: Some((class, remedy)),
    })
}

fn fail(told: impl Into<String>, class: Remedy, remedy: &'static str) -> Option<HealthEvaluation> {
    Some(HealthEvaluation {
        status: Verdict::Fail,
        told: told.into(),
        remedy: Some((class, remedy)),
    })
}

const REPLACE: &str = "drain the node and replace the GPU";
const SUPPORT: &str =
    "drain the node, run `nvidia-bug-report.sh`, and ask the hardware vendor for a field diagnosis";
const REBOOT: &str = "reboot after draining the node, which stops all its workloads";
const AIRFLOW: &str = "check fans, filters and room temperature";
const SEAT: &str =
    "reseat the GPU and its riser, then reboot, because link training runs only at startup";
const LANES: &str = "compare with a healthy machine of this type; if it has more lanes, reseat the GPU and its riser, or \
                     replace the instance";

/// A GPU that has MIG devices does not report memory errors.
const NO_ECC: &str =
    "not reported by the GPUs (no ECC, ECC is off, MIG devices exist, or the driver is too old)";

/// The rules, in the order of the findings.
const ROWS: [HealthRow; 16] = [
    HealthRow {
        id: Id::new("gpu.recovery-action"),
        evaluate: recovery_action,
        silent: "reported only by driver branch 565 and newer, and not for vGPUs",
    },
    HealthRow {
        id: Id::new("mem.remap.failed"),
        evaluate: remap_failed,
        silent: NO_ECC,
    },
    HealthRow {
        id: Id::new("mem.sram.threshold"),
        evaluate: sram_threshold,
        silent: NO_ECC,
    },
    HealthRow {
        id: Id::new("mem.ecc.uncorr"),
        evaluate: uncorrected,
        silent: NO_ECC,
    },
    HealthRow {
        id: Id::new("mem.remap.pending"),
        evaluate: remap_pending,
        silent: NO_ECC,
    },
    HealthRow {
        id: Id::new("mem.remap.count"),
        evaluate: remap_count,
        silent: NO_ECC,
    },
    HealthRow {
        id: Id::new("mem.retired"),
        evaluate: retired,
        silent: "not reported by the GPUs (Ampere and newer remap rows instead; older GPUs may have no ECC)",
    },
    HealthRow {
        id: Id::new("mem.ecc.corr"),
        evaluate: corrected,
        silent: NO_ECC,
    },
    HealthRow {
        id: Id::new("mem.ecc.mode"),
        evaluate: ecc_mode,
        silent: "the GPUs have no ECC",
    },
    HealthRow {
        id: Id::new("gpu.inforom"),
        evaluate: inforom,
        silent: "not reported by the GPUs",
    },
    HealthRow {
        id: Id::new("gpu.temp"),
        evaluate: temperature,
        silent: "not reported by the GPUs",
    },
    HealthRow {
        id: Id::new("gpu.throttle"),
        evaluate: throttle,
        silent: "not reported by the GPUs",
    },
    HealthRow {
        id: Id::new("gpu.power"),
        evaluate: power,
        silent: "not reported by the GPUs",
    },
    HealthRow {
        id: Id::new("pci.link.width"),
        evaluate: width,
        silent: "not reported by the driver, as in some virtual machines",
    },
    HealthRow {
        id: Id::new("pci.link.gen"),
        evaluate: generation,
        silent: "only known while a GPU is busy, because an idle GPU reduces its link speed",
    },
    HealthRow {
        id: Id::new("nvl.links"),
        evaluate: nvlink,
        silent: "the GPUs have no NVLink, or are in MIG mode",
    },
];

fn recovery_action(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    let number = gpu.recovery_action?;
    let Some(action) = Recovery::of(number) else {
        return warn(
            format!("unknown action {number}"),
            Remedy::None,
            "run `nvidia-smi --query | grep 'Recovery Action'`, which shows the name of the action",
        );
    };
    match action {
        Recovery::None => pass("none"),
        Recovery::Reset => fail("GPU reset required", Remedy::ResetGpu, messages::RESET),
        Recovery::DrainAndReset => fail(
            "drain and GPU reset required",
            Remedy::ResetGpu,
            messages::RESET,
        ),
        Recovery::BusReset => fail("bus reset required", Remedy::Reboot, REBOOT),
        Recovery::Reboot => fail("reboot required", Remedy::Reboot, REBOOT),
        Recovery::DrainPeers => warn(
            "drain of multi-GPU programs required",
            Remedy::RestartApp,
            "restart the programs that use more than one GPU",
        ),
        Recovery::Imex => warn(
            "recovery of the IMEX domain required",
            Remedy::RestartService,
            "run `nvidia-imex-ctl -N` to see which node of the domain is missing",
        ),
    }
}

fn remap_failed(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    match gpu.remapped_rows? {
        RemappedRows { failed: true, .. } => {
            fail("row remapping failure", Remedy::Replace, REPLACE)
        }
        _ => pass("no row remapping failure"),
    }
}

fn sram_threshold(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    if gpu.sram_threshold_exceeded? {
        fail(
            "more uncorrected errors than NVIDIA's limit",
            Remedy::ContactSupport,
            SUPPORT,
        )
    } else {
        pass("fewer than NVIDIA's limit")
    }
}

fn uncorrected(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    let ecc = gpu.ecc?;
    let before = ecc.lifetime_uncorrected.saturating_sub(ecc.uncorrected);
    match (ecc.uncorrected, gpu.recovery_action) {
        (0, _) if before == 0 => pass("none"),
        (0, _) => pass(format!("none since the driver was loaded, {before} before")),
        // The hardware contained the error: it killed one program, and the GPU still works. The driver recommends no action.
        (count, Some(0)) => warn(
            format!("{count} since the driver was loaded, but no recovery action is required"),
            Remedy::RestartApp,
            "restart the application; if errors recur, reset the GPU",
        ),
        (count, _) => fail(
            format!("{count} since the driver was loaded"),
            Remedy::ResetGpu,
            messages::RESET,
        ),
    }
}

fn remap_pending(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    match gpu.remapped_rows? {
        // According to NVIDIA, running and new work is not affected.
        RemappedRows { pending: true, .. } => warn(
            "a row will be remapped at the next reset; the GPU remains usable until then",
            Remedy::ResetGpu,
            messages::RESET,
        ),
        _ => pass("none"),
    }
}

/// The number of rows that a GPU can remap.
const MOST_ROWS: u32 = 512;

fn remap_count(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    let rows = gpu.remapped_rows?;
    if rows.uncorrectable >= MOST_ROWS {
        return fail(
            format!(
                "{} rows were remapped after uncorrected errors, the maximum is {MOST_ROWS}",
                rows.uncorrectable
            ),
            Remedy::Replace,
            REPLACE,
        );
    }
    if let Some(banks @ 1..) = rows.exhausted_banks {
        return warn(
            format!("no spare rows left in {}", counted(banks, "memory bank")),
            Remedy::Replace,
            "schedule a replacement: another error in such a bank cannot be remapped",
        );
    }
    match rows.correctable.saturating_add(rows.uncorrectable) {
        0 => pass("none"),
        count => pass(format!("{count}, spare rows left")),
    }
}

/// The hard limit (failure) and the soft limit (warning) of the DCGM health watch. A GPU can retire 64 pages.
const MOST_PAGES: u32 = 63;
const MANY_PAGES: u32 = 15;

fn retired(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    let pages = gpu.retired_pages?;
    match pages.count {
        MOST_PAGES.. => fail(
            format!(
                "{} pages are retired, the maximum is {MOST_PAGES}",
                pages.count
            ),
            Remedy::Replace,
            REPLACE,
        ),
        _ if pages.pending => warn(
            "a page will be retired at the next reset",
            Remedy::ResetGpu,
            messages::RESET,
        ),
        MANY_PAGES.. => warn(
            format!("{} pages are retired", pages.count),
            Remedy::Replace,
            "replace the GPU if the number grows every week",
        ),
        0 => pass("none"),
        count => pass(format!("{count}, the maximum is {MOST_PAGES}")),
    }
}

/// The Azure node health checks fail a GPU with this number of errors. Here it is a warning, because corrected errors do not
/// affect programs.
const MANY_CORRECTED: u64 = 20_000_000;

fn corrected(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    match gpu.ecc?.corrected {
        count @ MANY_CORRECTED.. => warn(
            format!("{count} since the driver was loaded"),
            Remedy::None,
            "monitor the GPU: memory with so many corrected errors often fails later",
        ),
        0 => pass("none since the driver was loaded"),
        _ => pass("few since the driver was loaded"),
    }
}

fn ecc_mode(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    let mode = gpu.ecc_mode?;
    let word = |on| if on { "on" } else { "off" };
    if mode.current == mode.pending {
        pass(word(mode.current))
    } else {
        warn(
            format!(
                "{} now, {} after a reset",
                word(mode.current),
                word(mode.pending)
            ),
            Remedy::ResetGpu,
            messages::RESET,
        )
    }
}

fn inforom(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    if gpu.inforom_valid? {
        pass("valid")
    } else {
        // Only a warning, because the GPU still works. Its stored error history may be lost.
        warn(
            "corrupted",
            Remedy::ContactSupport,
            "contact the hardware vendor",
        )
    }
}

/// Minimum distance to the hardware slowdown threshold, in °C.
const MARGIN: i32 = 5;

fn temperature(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    let degrees = gpu.temperature?;
    if let (Some(memory), Some(max)) = (degrees.memory, degrees.memory_max)
        && memory > max
    {
        return fail(
            format!("memory temperature {memory} °C, maximum {max} °C"),
            Remedy::CheckMechanics,
            AIRFLOW,
        );
    }
    match degrees.margin? {
        ..=0 => fail(
            format!("{} °C: hardware slowdown", degrees.gpu),
            Remedy::CheckMechanics,
            AIRFLOW,
        ),
        margin @ ..MARGIN => warn(
            format!("{} °C, {margin} °C below hardware slowdown", degrees.gpu),
            Remedy::CheckMechanics,
            AIRFLOW,
        ),
        _ => pass("below the hardware slowdown threshold"),
    }
}

fn throttle(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    /// The bits of `nvmlClocksEventReason…` that are not set on a healthy machine. Not included are idle, user settings, the
    /// power cap, and the software thermal slowdown (0x20), which dense boards report at full load.
    const REASONS: [(u64, &str, &str); 3] = [
        (
            0x80,
            "throttled by the power supply (power brake)",
            "check the power supply and the power cables of the machine",
        ),
        (0x40, "hardware thermal slowdown", AIRFLOW),
        (
            0x08,
            "hardware slowdown",
            "check its temperature and power with `nvidia-smi --query --display=PERFORMANCE,TEMPERATURE,POWER`",
        ),
    ];
    let events = gpu.clock_events?;
    match REASONS.iter().find(|(bit, ..)| events & bit != 0) {
        // Only a warning, because the duration is unknown after a single reading.
        Some((_, told, remedy)) => warn(*told, Remedy::CheckMechanics, remedy),
        None => pass("none now"),
    }
}

fn power(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    let limit = gpu.power?;
    let watts = |milliwatts: u32| milliwatts / 1000;
    if limit.enforced < limit.default {
        warn(
            format!(
                "power limit {} W, board default {} W",
                watts(limit.enforced),
                watts(limit.default)
            ),
            Remedy::Reconfigure,
            "unless it was lowered on purpose, run `nvidia-smi --power-limit=` with the board default, and find the service \
             that lowers it at boot",
        )
    } else {
        pass(format!("{} W", watts(limit.enforced)))
    }
}

/// The bit of `nvmlClocksEventReason…` that is set on an idle GPU.
const IDLE: u64 = 0x1;

fn width(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    let link = gpu.pcie.filter(|link| link.width > 0)?;
    let told = format!("{} of {} lanes", link.width, link.max_width);
    if link.width < link.max_width {
        // Only a warning, because two boards may share the lanes of a slot, and a hypervisor may emulate the bus.
        warn(told, Remedy::CheckMechanics, LANES)
    } else {
        pass(told)
    }
}

fn generation(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthEvaluation> {
    let link = gpu.pcie.filter(|link| link.generation > 0)?;
    let told = format!("{} of {}", link.generation, link.max_generation);
    if link.generation >= link.max_generation {
        return pass(told);
    }
    let works = gpu.performance_state == Some(0) && gpu.clock_events? & IDLE == 0;
    works.then_some(())?;
    warn(told, Remedy::CheckMechanics, SEAT)
}

fn nvlink(gpu: &GpuHealth, switches: HasSwitches) -> Option<HealthEvaluation> {
    let links = gpu.nvlink?;
    let told = format!("{} of {} links active", links.active, links.count);
    // Without switches, unused links are valid, because bridges are optional and a host may withhold the links of a GPU that
    // is passed to a guest.
    if switches && links.active < links.count {
        return fail(told, Remedy::PowerCycle, messages::POWER);
    }
    match links.recovery_errors {
        Some(count @ 1..) => warn(
            format!(
                "{told}, {} since the driver was loaded",
                counted(count, "recovery error")
            ),
            Remedy::CheckMechanics,
            "monitor the number; if it grows, have the links inspected",
        ),
        _ => pass(told),
    }
}

/// Returns the GPUs for which the driver reports that no recovery action is required.
pub(super) fn recovered(nvml: &Nvml) -> Vec<PciAddress> {
    let Nvml::Ready(view) = nvml else {
        return Vec::new();
    };
    (view.devices.iter())
        .filter(|gpu| {
            gpu.health
                .as_ref()
                .is_some_and(|health| health.recovery_action == Some(0))
        })
        .filter_map(|gpu| gpu.pci_address)
        .collect()
}

/// Returns the finding of a row for all GPUs that respond.
fn finding(row: &HealthRow, gpus: &[&NvmlDevice], all: usize, switches: HasSwitches) -> Finding {
    let say = |status, why: String| Finding::new(row.id.clone(), status, why);
    let evaluated: Vec<(&NvmlDevice, HealthEvaluation)> = (gpus.iter())
        .filter_map(|gpu| Some((*gpu, (row.evaluate)(gpu.health.as_ref()?, switches)?)))
        .collect();
    // Rules return only `Pass`, `Warn` and `Fail`, which are ordered from good to bad.
    let worst = evaluated.iter().map(|(_, one)| one.status).max();
    let Some(worst) = worst else {
        return say(Verdict::Skip, row.silent.to_owned());
    };
    let of_them: Vec<&(&NvmlDevice, HealthEvaluation)> = (evaluated.iter())
        .filter(|(_, one)| worst == Verdict::Pass || one.status != Verdict::Pass)
        .collect();
    let mut texts: Vec<(&str, Vec<String>)> = Vec::new();
    for (gpu, one) in &of_them {
        match texts.iter_mut().find(|(told, _)| *told == one.told) {
            Some((_, places)) => places.push(place(gpu)),
            None => texts.push((&one.told, vec![place(gpu)])),
        }
    }
    let told: Vec<String> = (texts.iter())
        .map(|(told, places)| match places.len() == gpus.len() {
            true => (*told).to_owned(),
            false => format!("{}: {told}", places.join(", ")),
        })
        .collect();
    if worst == Verdict::Pass {
        let told = told.join("; ");
        return say(
            worst,
            match all - evaluated.len() {
                0 => told,
                silent => format!("{told}; not reported by {}", messages::gpus(silent)),
            },
        );
    }
    let remedy = of_them.iter().find(|(_, one)| one.status == worst);
    Finding {
        observed: Some(
            (texts.iter())
                .map(|(told, _)| *told)
                .collect::<Vec<_>>()
                .join("; "),
        ),
        remedy: remedy.and_then(|(_, one)| one.remedy.map(|(_, text)| text.to_owned())),
        remedy_class: remedy.and_then(|(_, one)| one.remedy.map(|(class, _)| class)),
        ..say(
            worst,
            match told.len() == 1 && of_them.len() == gpus.len() && gpus.len() > 1 {
                true => format!("all {}: {}", messages::gpus(gpus.len()), told.join("; ")),
                false => told.join("; "),
            },
        )
    }
}

/// Returns text such as `GPU at 0000:18:00.0`.
fn place(gpu: &NvmlDevice) -> String {
    gpu.pci_address
        .map_or_else(|| format!("GPU {}", gpu.index), |at| format!("GPU at {at}"))
}

fn findings(nvml: &Nvml, switches: HasSwitches) -> Vec<Finding> {
    let view = match nvml {
        Nvml::Ready(view) => view,
        Nvml::NotQueried { why } => return skipped(why),
        // `driver.libraries` and `validation.devices` report the reason.
        _ => return skipped("NVML does not respond"),
    };
    let gpus: Vec<&NvmlDevice> = (view.devices.iter())
        .filter(|gpu| gpu.health.is_some())
        .collect();
    if gpus.is_empty() {
        return skipped("no GPU responds");
    }
    ROWS.iter()
        .map(|row| finding(row, &gpus, view.devices.len(), switches))
        .collect()
}

/// The mount point of the root filesystem of the GPU Operator's driver container.
const DRIVER_CONTAINER: &str = "/run/nvidia/driver";

/// Returns unknown findings for a driver of `owner` whose library is found only by the owner's programs. The remedy runs
/// `nvidia-smi` in the root directory of the driver container, like the operator's validator (NVIDIA/gpu-operator,
/// `cmd/nvidia-validator`).
fn out_of_reach(owner: &str, in_container: bool) -> Vec<Finding> {
    let why = format!(
        "NVML cannot be loaded, because the library of the driver of {owner} is not on the library path"
    );
    let remedy = in_container.then(|| {
        format!(
            "run `chroot {DRIVER_CONTAINER} nvidia-smi --query`, which queries the driver there"
        )
    });
    let one = |row: &HealthRow| Finding {
        remedy: remedy.clone(),
        ..Finding::new(row.id.clone(), Verdict::Unknown, why.clone())
    };
    ROWS.iter().map(one).collect()
}

fn skipped(why: &str) -> Vec<Finding> {
    let one = |row: &HealthRow| Finding::new(row.id.clone(), Verdict::Skip, why);
    ROWS.iter().map(one).collect()
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    if subject.state.loaded_driver()?.is_none() {
        return Ok(skipped("no driver is loaded"));
    }
    let files = subject.host.files();
    let nvml = subject.state.nvml().await;
    let elsewhere = owner(files, subject.facts)?.filter(|owner| !owner.on_host);
    if let (Nvml::NotLoadable { .. }, Some(owner)) = (nvml, elsewhere) {
        let in_container = has_library(files, Utf8Path::new(DRIVER_CONTAINER))?;
        return Ok(out_of_reach(owner.name, in_container));
    }
    let switches = switches(subject.matrix, subject.facts).is_some();
    Ok(findings(nvml, switches))
}

#[cfg(test)]
mod tests {
    use super::{ROWS, findings, out_of_reach};
    use crate::{
        check::{Finding, Verdict},
        host::{
            GpuHealth, Nvml, NvmlDevice, NvmlView,
            health::{
                EccErrors, EccMode, NvLinks, PcieLink, PowerLimit, RemappedRows, RetiredPages,
                Temperature,
            },
        },
        steps::fixtures::nvml_device,
    };

    /// A healthy GPU that reports all values.
    fn well() -> GpuHealth {
        GpuHealth {
            recovery_action: Some(0),
            ecc: Some(EccErrors::default()),
            ecc_mode: Some(EccMode {
                current: true,
                pending: true,
            }),
            sram_threshold_exceeded: Some(false),
            remapped_rows: Some(RemappedRows {
                exhausted_banks: Some(0),
                ..RemappedRows::default()
            }),
            retired_pages: Some(RetiredPages::default()),
            inforom_valid: Some(true),
            temperature: Some(Temperature {
                gpu: 34,
                margin: Some(53),
                memory: Some(40),
                memory_max: Some(95),
            }),
            power: Some(PowerLimit {
                enforced: 700_000,
                default: 700_000,
            }),
            clock_events: Some(0),
            performance_state: Some(0),
            pcie: Some(PcieLink {
                width: 16,
                max_width: 16,
                generation: 5,
                max_generation: 5,
            }),
            nvlink: Some(NvLinks {
                count: 18,
                active: 18,
                recovery_errors: Some(0),
            }),
        }
    }

    fn device(index: u32, health: GpuHealth) -> NvmlDevice {
        NvmlDevice {
            health: Some(health),
            ..nvml_device(index)
        }
    }

    fn of(devices: Vec<NvmlDevice>, switches: bool) -> Vec<Finding> {
        let nvml = Nvml::Ready(NvmlView {
            driver_version: "580.95.05".to_owned(),
            cuda_version: None,
            devices,
        });
        findings(&nvml, switches)
    }

    fn named<'f>(findings: &'f [Finding], id: &str) -> &'f Finding {
        let found = findings.iter().find(|one| one.id.as_str() == id);
        found.unwrap_or_else(|| panic!("no finding {id}"))
    }

    #[test]
    fn healthy_gpus_pass() {
        for finding in of(vec![device(0, well()), device(1, well())], true) {
            assert_eq!(
                finding.status,
                Verdict::Pass,
                "{}: {}",
                finding.id.as_str(),
                finding.why
            );
            assert_eq!(finding.remedy, None);
        }
    }

    /// The NVML data of driver 580.159.04 on a machine with one H100, recorded with `gpu-bootstrap nvml-view`. The UUID was
    /// removed.
    #[test]
    fn recorded_healthy_gpu_passes() {
        let recorded = include_str!("../../tests/gpu/h100-580.159.04.json");
        let nvml: Nvml = serde_json::from_str(recorded).expect("a view");
        let found = findings(&nvml, false);
        for finding in &found {
            let silent = ["mem.retired", "nvl.links"].contains(&finding.id.as_str());
            let expected = if silent { Verdict::Skip } else { Verdict::Pass };
            assert_eq!(finding.status, expected, "{}", finding.id.as_str());
        }
    }

    #[test]
    fn unreported_values_are_skipped() {
        let silent = of(vec![device(0, GpuHealth::default())], true);
        assert_eq!(silent.len(), ROWS.len());
        // A GPU that does not respond is reported by other findings.
        let lost = NvmlDevice {
            error: Some("lost".to_owned()),
            ..nvml_device(0)
        };
        let not_queried = Nvml::NotQueried {
            why: "with `--root`".to_owned(),
        };
        for finding in silent
            .iter()
            .chain(&of(vec![lost], true))
            .chain(&findings(&not_queried, true))
            .chain(&findings(&Nvml::Hung { after_seconds: 30 }, true))
        {
            assert_eq!(finding.status, Verdict::Skip, "{}", finding.id.as_str());
            assert!(!finding.why.is_empty());
        }
    }

    #[test]
    fn gpus_of_an_unreachable_driver_are_unknown() {
        for (in_container, command) in [(true, Some("chroot /run/nvidia/driver")), (false, None)] {
            let found = out_of_reach("NVIDIA's GPU Operator", in_container);
            assert_eq!(found.len(), ROWS.len());
            for finding in &found {
                assert_eq!(finding.status, Verdict::Unknown);
                assert!(
                    finding.why.contains("NVIDIA's GPU Operator"),
                    "{}",
                    finding.why
                );
                let remedy = finding.remedy.as_deref();
                assert_eq!(remedy.is_some(), command.is_some());
                assert!(
                    command.is_none_or(|words| remedy.is_some_and(|said| said.contains(words)))
                );
            }
        }
    }

    #[test]
    fn each_error_affects_only_its_row() {
        use Verdict::{Fail, Warn};
        type Fault = fn(&mut GpuHealth);
        let faults: [(&str, Verdict, &str, Fault); 30] = rows! {
            "gpu.recovery-action", Fail, "GPU reset required",
                |gpu| { gpu.recovery_action = Some(1) };
            "gpu.recovery-action", Fail, "reboot", |gpu| { gpu.recovery_action = Some(2) };
            "gpu.recovery-action", Warn, "drain of multi-GPU programs",
                |gpu| gpu.recovery_action = Some(3);
            "gpu.recovery-action", Fail, "drain and GPU reset", |gpu| { gpu.recovery_action = Some(4) };
            "gpu.recovery-action", Warn, "IMEX", |gpu| { gpu.recovery_action = Some(5) };
            "gpu.recovery-action", Fail, "bus reset", |gpu| { gpu.recovery_action = Some(6) };
            "gpu.recovery-action", Fail, "reboot", |gpu| { gpu.recovery_action = Some(7) };
            "gpu.recovery-action", Warn, "action 99", |gpu| { gpu.recovery_action = Some(99) };
            "mem.remap.failed", Fail, "remapping failure", |gpu| { rows(gpu).failed = true };
            "mem.remap.pending", Warn, "next reset", |gpu| { rows(gpu).pending = true };
            "mem.remap.count", Fail, "512 rows", |gpu| { rows(gpu).uncorrectable = 512 };
            "mem.remap.count", Warn, "2 memory banks", |gpu| { rows(gpu).exhausted_banks = Some(2) };
            "mem.sram.threshold", Fail, "more", |gpu| { gpu.sram_threshold_exceeded = Some(true) };
            "mem.ecc.uncorr", Warn, "no recovery action", |gpu| { ecc(gpu).uncorrected = 1 };
            "mem.ecc.corr", Warn, "20000000", |gpu| { ecc(gpu).corrected = 20_000_000 };
            "mem.ecc.mode", Warn, "on now, off",
                |gpu| { gpu.ecc_mode = Some(EccMode { current: true, pending: false }); };
            "mem.retired", Fail, "63 pages", |gpu| pages(gpu).count = 63;
            "mem.retired", Warn, "15 pages", |gpu| pages(gpu).count = 15;
            "mem.retired", Warn, "next reset", |gpu| { pages(gpu).pending = true };
            "gpu.inforom", Warn, "corrupted", |gpu| { gpu.inforom_valid = Some(false) };
            "gpu.temp", Fail, "hardware slowdown", |gpu| { degrees(gpu).margin = Some(0) };
            "gpu.temp", Warn, "4 °C below", |gpu| { degrees(gpu).margin = Some(4) };
            "gpu.temp", Fail, "memory temperature 96", |gpu| { degrees(gpu).memory = Some(96) };
            "gpu.throttle", Warn, "power brake", |gpu| { gpu.clock_events = Some(0x88) };
            "gpu.throttle", Warn, "thermal slowdown", |gpu| { gpu.clock_events = Some(0x48) };
            "gpu.power", Warn, "500 W",
                |gpu| { gpu.power = Some(PowerLimit { enforced: 500_000, default: 700_000 }); };
            "pci.link.width", Warn, "8 of 16", |gpu| link(gpu).width = 8;
            "pci.link.gen", Warn, "3 of 5", |gpu| { link(gpu).generation = 3 };
            "nvl.links", Fail, "17 of 18", |gpu| links(gpu).active = 17;
            "nvl.links", Warn, "2 recovery errors", |gpu| { links(gpu).recovery_errors = Some(2) };
        };
        for (id, verdict, told, fault) in faults {
            let mut sick = well();
            fault(&mut sick);
            let found = of(vec![device(0, well()), device(1, sick)], true);
            let finding = named(&found, id);
            assert_eq!(finding.status, verdict, "{id}: {}", finding.why);
            assert!(finding.why.contains(told), "{id}: {}", finding.why);
            assert!(finding.why.starts_with("GPU 1: "), "{id}: {}", finding.why);
            assert!(finding.remedy.is_some(), "{id}");
            let others = found.iter().filter(|one| one.id.as_str() != id);
            for other in others {
                assert_eq!(other.status, Verdict::Pass, "{id}: {}", other.id.as_str());
            }
        }
    }

    fn rows(gpu: &mut GpuHealth) -> &mut RemappedRows {
        gpu.remapped_rows.as_mut().expect("a reported value")
    }

    fn ecc(gpu: &mut GpuHealth) -> &mut EccErrors {
        gpu.ecc.as_mut().expect("a reported value")
    }

    fn pages(gpu: &mut GpuHealth) -> &mut RetiredPages {
        gpu.retired_pages.as_mut().expect("a reported value")
    }

    fn degrees(gpu: &mut GpuHealth) -> &mut Temperature {
        gpu.temperature.as_mut().expect("a reported value")
    }

    fn link(gpu: &mut GpuHealth) -> &mut PcieLink {
        gpu.pcie.as_mut().expect("a reported value")
    }

    fn links(gpu: &mut GpuHealth) -> &mut NvLinks {
        gpu.nvlink.as_mut().expect("a reported value")
    }

    #[test]
    fn uncorrected_error_fails_unless_no_action_is_required() {
        for action in [None, Some(1)] {
            let mut sick = well();
            sick.recovery_action = action;
            ecc(&mut sick).uncorrected = 1;
            let found = of(vec![device(0, sick)], true);
            assert_eq!(named(&found, "mem.ecc.uncorr").status, Verdict::Fail);
        }
        let mut long_ago = well();
        ecc(&mut long_ago).lifetime_uncorrected = 3;
        let found = of(vec![device(0, long_ago)], true);
        assert_eq!(
            named(&found, "mem.ecc.uncorr").why,
            "none since the driver was loaded, 3 before"
        );
    }

    #[test]
    fn idle_gpu_may_reduce_its_link_speed() {
        let mut idle = well();
        link(&mut idle).generation = 1;
        idle.clock_events = Some(0x1);
        let found = of(vec![device(0, idle)], true);
        assert_eq!(named(&found, "pci.link.gen").status, Verdict::Skip);
    }

    #[test]
    fn unused_links_pass_without_switches() {
        let mut gpu = well();
        links(&mut gpu).active = 0;
        let found = of(vec![device(0, gpu)], false);
        assert_eq!(named(&found, "nvl.links").status, Verdict::Pass);
    }

    #[test]
    fn equal_results_are_merged() {
        let mut sick = well();
        sick.recovery_action = Some(2);
        let all = of(vec![device(0, sick.clone()), device(1, sick.clone())], true);
        assert_eq!(
            named(&all, "gpu.recovery-action").why,
            "all 2 GPUs: reboot required"
        );
        let two = of(
            vec![device(0, sick.clone()), device(1, well()), device(2, sick)],
            true,
        );
        assert_eq!(
            named(&two, "gpu.recovery-action").why,
            "GPU 0, GPU 2: reboot required"
        );
    }
}
