//! The family of the GPUs' health: what NVML says of memory, temperature, power and links.
//!
//! What the driver itself asks for comes first; the other rows tell why. The sources of rules and thresholds are in the
//! registry (`model/findings.toml`).

use std::sync::LazyLock;

use async_trait::async_trait;
use camino::Utf8Path;

use super::words;
use crate::{
    check::{Check, Finding, Subject, Verdict},
    facts::switches::switches,
    host::{GpuHealth, Nvml, NvmlDevice, health::RemappedRows},
    model::{findings::Remedy, id::Id, pci::PciAddress},
    state::{has_library, owner},
    step::StepError,
    tools::kernel_log::Recovery,
};

/// See the module.
pub struct HealthCheck;

/// Whether the machine has NVSwitches. Then all links of a GPU lead to them, and all must work.
type HasSwitches = bool;

/// A finding: what is judged of each GPU.
struct HealthRow {
    id: Id,
    /// Judges a GPU; `None` if NVML does not tell.
    judge: fn(&GpuHealth, HasSwitches) -> Option<HealthJudgement>,
    /// Why NVML may give no value.
    silent: &'static str,
}

/// What a row says of one GPU.
#[derive(Debug, PartialEq, Eq)]
struct HealthJudgement {
    status: Verdict,
    told: String,
    remedy: Option<(Remedy, &'static str)>,
}

fn pass(told: impl Into<String>) -> Option<HealthJudgement> {
    Some(HealthJudgement {
        status: Verdict::Pass,
        told: told.into(),
        remedy: None,
    })
}

fn warn(told: impl Into<String>, class: Remedy, remedy: &'static str) -> Option<HealthJudgement> {
    Some(HealthJudgement {
        status: Verdict::Warn,
        told: told.into(),
        remedy: Some((class, remedy)),
    })
}

fn fail(told: impl Into<String>, class: Remedy, remedy: &'static str) -> Option<HealthJudgement> {
    Some(HealthJudgement {
        status: Verdict::Fail,
        told: told.into(),
        remedy: Some((class, remedy)),
    })
}

const REPLACE: &str = "drain the node and have the GPU replaced";
const SUPPORT: &str = "drain the node, run `nvidia-bug-report.sh`, and ask the vendor of the hardware for a field diagnosis";
const REBOOT: &str = "reboot after draining the node, which stops all its workloads";
const AIRFLOW: &str = "check fans, filters and the temperature of the room";
const SEAT: &str =
    "check the seat of the GPU and its riser, then reboot: the link is agreed at the start";
const LANES: &str = "compare with a sound machine of this type: if that has more lanes, check the seat of the GPU and its \
                     riser, or replace the instance";

/// A GPU that has MIG devices hides the errors of its memory.
const NO_ECC: &str = "the GPUs do not tell: they have no ECC, it is off, they have MIG devices, or the driver is too old";

/// What is judged, the deepest cause first.
const ROWS: [HealthRow; 16] = [
    HealthRow {
        id: Id::new("gpu.recovery-action"),
        judge: recovery_action,
        silent: "the driver tells it from branch 565 on, and not to virtual GPUs",
    },
    HealthRow {
        id: Id::new("mem.remap.failed"),
        judge: remap_failed,
        silent: NO_ECC,
    },
    HealthRow {
        id: Id::new("mem.sram.threshold"),
        judge: sram_threshold,
        silent: NO_ECC,
    },
    HealthRow {
        id: Id::new("mem.ecc.uncorr"),
        judge: uncorrected,
        silent: NO_ECC,
    },
    HealthRow {
        id: Id::new("mem.remap.pending"),
        judge: remap_pending,
        silent: NO_ECC,
    },
    HealthRow {
        id: Id::new("mem.remap.count"),
        judge: remap_count,
        silent: NO_ECC,
    },
    HealthRow {
        id: Id::new("mem.retired"),
        judge: retired,
        silent: "the GPUs do not tell: from Ampere on they remap rows in place, and others may have no ECC",
    },
    HealthRow {
        id: Id::new("mem.ecc.corr"),
        judge: corrected,
        silent: NO_ECC,
    },
    HealthRow {
        id: Id::new("mem.ecc.mode"),
        judge: ecc_mode,
        silent: "the GPUs have no ECC",
    },
    HealthRow {
        id: Id::new("gpu.inforom"),
        judge: inforom,
        silent: "the GPUs do not tell",
    },
    HealthRow {
        id: Id::new("gpu.temp"),
        judge: temperature,
        silent: "the GPUs do not tell",
    },
    HealthRow {
        id: Id::new("gpu.throttle"),
        judge: throttle,
        silent: "the GPUs do not tell",
    },
    HealthRow {
        id: Id::new("gpu.power"),
        judge: power,
        silent: "the GPUs do not tell",
    },
    HealthRow {
        id: Id::new("pci.link.width"),
        judge: width,
        silent: "the driver does not tell, as in some virtual machines",
    },
    HealthRow {
        id: Id::new("pci.link.gen"),
        judge: generation,
        silent: "it is known only while a GPU works: an idle one slows its link down",
    },
    HealthRow {
        id: Id::new("nvl.links"),
        judge: nvlink,
        silent: "the GPUs have no NVLink, or are in MIG mode",
    },
];

fn recovery_action(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    let number = gpu.recovery_action?;
    let Some(action) = Recovery::of(number) else {
        return warn(
            format!("action {number}, which is not in our table"),
            Remedy::None,
            "run `nvidia-smi --query | grep 'Recovery Action'`: the driver's own program names it",
        );
    };
    match action {
        Recovery::None => pass("nothing"),
        Recovery::Reset => fail("a reset of the GPU", Remedy::ResetGpu, words::RESET),
        Recovery::DrainAndReset => fail(
            "a stop of its programs, then a reset of the GPU",
            Remedy::ResetGpu,
            words::RESET,
        ),
        Recovery::BusReset => fail("a reset of the bus", Remedy::Reboot, REBOOT),
        Recovery::Reboot => fail("a reboot of the machine", Remedy::Reboot, REBOOT),
        Recovery::DrainPeers => warn(
            "a stop of the programs that use it together with other GPUs",
            Remedy::RestartApp,
            "stop the programs that use more than one GPU, then start them again",
        ),
        Recovery::Imex => warn(
            "a recovery of the IMEX domain",
            Remedy::RestartService,
            "run `nvidia-imex-ctl -N` to see which node of the domain is missing",
        ),
    }
}

fn remap_failed(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    match gpu.remapped_rows? {
        RemappedRows { failed: true, .. } => fail(
            "a row of memory could not be replaced by a spare one",
            Remedy::Replace,
            REPLACE,
        ),
        _ => pass("no replacement of a row has failed"),
    }
}

fn sram_threshold(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    if gpu.sram_threshold_exceeded? {
        fail(
            "more uncorrected errors than NVIDIA allows",
            Remedy::ContactSupport,
            SUPPORT,
        )
    } else {
        pass("fewer than NVIDIA's limit")
    }
}

fn uncorrected(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    let ecc = gpu.ecc?;
    let before = ecc.lifetime_uncorrected.saturating_sub(ecc.uncorrected);
    match (ecc.uncorrected, gpu.recovery_action) {
        (0, _) if before == 0 => pass("none"),
        (0, _) => pass(format!("none since the driver was loaded, {before} before")),
        // The hardware contained the error: it ended one program, and the GPU goes on. The driver knows, and asks
        // for nothing.
        (count, Some(0)) => warn(
            format!("{count} since the driver was loaded, and the driver asks for nothing"),
            Remedy::RestartApp,
            "start the application again; if errors come again, reset the GPU",
        ),
        (count, _) => fail(
            format!("{count} since the driver was loaded"),
            Remedy::ResetGpu,
            words::RESET,
        ),
    }
}

fn remap_pending(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    match gpu.remapped_rows? {
        // By NVIDIA, running and new work is not affected.
        RemappedRows { pending: true, .. } => warn(
            "a row of memory is replaced at the next reset; work may go on until then",
            Remedy::ResetGpu,
            words::RESET,
        ),
        _ => pass("none"),
    }
}

/// The number of rows that a GPU can replace.
const MOST_ROWS: u32 = 512;

fn remap_count(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    let rows = gpu.remapped_rows?;
    if rows.uncorrectable >= MOST_ROWS {
        return fail(
            format!(
                "{} rows, of at most {MOST_ROWS}, were replaced after uncorrected errors",
                rows.uncorrectable
            ),
            Remedy::Replace,
            REPLACE,
        );
    }
    if let Some(banks @ 1..) = rows.exhausted_banks {
        return warn(
            format!("no spare row is left in {banks} banks of memory"),
            Remedy::Replace,
            "plan a replacement: the next error in such a bank cannot be repaired",
        );
    }
    match rows.correctable.saturating_add(rows.uncorrectable) {
        0 => pass("none"),
        count => pass(format!("{count}, and spare ones are left")),
    }
}

/// The hard and the soft limit of DCGM's health watch; a GPU can retire 64 pages.
const MOST_PAGES: u32 = 63;
const MANY_PAGES: u32 = 15;

fn retired(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    let pages = gpu.retired_pages?;
    match pages.count {
        MOST_PAGES.. => fail(
            format!(
                "{} pages, of at most {MOST_PAGES}, are retired",
                pages.count
            ),
            Remedy::Replace,
            REPLACE,
        ),
        _ if pages.pending => warn(
            "a page is retired at the next reset",
            Remedy::ResetGpu,
            words::RESET,
        ),
        MANY_PAGES.. => warn(
            format!("{} pages are retired", pages.count),
            Remedy::Replace,
            "have the GPU replaced if their number grows from week to week",
        ),
        0 => pass("none"),
        count => pass(format!("{count}, of at most {MOST_PAGES}")),
    }
}

/// Azure's node health checks fail a GPU from this number on. Here it is a warning, because corrected errors alone
/// are no fault.
const MANY_CORRECTED: u64 = 20_000_000;

fn corrected(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    match gpu.ecc?.corrected {
        count @ MANY_CORRECTED.. => warn(
            format!("{count} since the driver was loaded"),
            Remedy::None,
            "watch it: memory with so many corrected errors often fails later",
        ),
        0 => pass("none since the driver was loaded"),
        _ => pass("few since the driver was loaded"),
    }
}

fn ecc_mode(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    let mode = gpu.ecc_mode?;
    let word = |on| if on { "on" } else { "off" };
    if mode.current == mode.pending {
        pass(word(mode.current))
    } else {
        warn(
            format!(
                "{} now, and {} after a reset",
                word(mode.current),
                word(mode.pending)
            ),
            Remedy::ResetGpu,
            words::RESET,
        )
    }
}

fn inforom(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    if gpu.inforom_valid? {
        pass("valid")
    } else {
        // Only a warning: the GPU computes, but the data that it keeps about itself may be lost.
        warn(
            "corrupted",
            Remedy::ContactSupport,
            "ask the vendor of the hardware",
        )
    }
}

/// A GPU is too hot if it is fewer degrees than this below the slowdown by the hardware.
const MARGIN: i32 = 5;

fn temperature(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    let degrees = gpu.temperature?;
    if let (Some(memory), Some(max)) = (degrees.memory, degrees.memory_max)
        && memory > max
    {
        return fail(
            format!("the memory has {memory} °C, of at most {max} °C"),
            Remedy::CheckMechanics,
            AIRFLOW,
        );
    }
    match degrees.margin? {
        ..=0 => fail(
            format!("{} °C: the hardware slows down", degrees.gpu),
            Remedy::CheckMechanics,
            AIRFLOW,
        ),
        margin @ ..MARGIN => warn(
            format!(
                "{} °C, {margin} °C below the slowdown by the hardware",
                degrees.gpu
            ),
            Remedy::CheckMechanics,
            AIRFLOW,
        ),
        _ => pass("far enough below the slowdown by the hardware"),
    }
}

fn throttle(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    /// The bits of `nvmlClocksEventReason…` that a healthy machine does not show. Left out are idleness, settings,
    /// the power cap, and the driver's own slowdown near its limits (0x20), which dense boards show at full load.
    const REASONS: [(u64, &str, &str); 3] = [
        (
            0x80,
            "the power supply asks it to slow down (power brake)",
            "check the power supply and the power cables of the machine",
        ),
        (0x40, "the hardware slows it down for its heat", AIRFLOW),
        (
            0x08,
            "the hardware slows it down",
            "look at its temperature and power with `nvidia-smi --query --display=PERFORMANCE,TEMPERATURE,POWER`",
        ),
    ];
    let events = gpu.clock_events?;
    match REASONS.iter().find(|(bit, ..)| events & bit != 0) {
        // Only a warning: one reading does not tell how long it lasts.
        Some((_, told, remedy)) => warn(*told, Remedy::CheckMechanics, remedy),
        None => pass("none now"),
    }
}

fn power(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    let limit = gpu.power?;
    let watts = |milliwatts: u32| milliwatts / 1000;
    if limit.enforced < limit.default {
        warn(
            format!(
                "the limit is {} W, and the board's default is {} W",
                watts(limit.enforced),
                watts(limit.default)
            ),
            Remedy::Reconfigure,
            "if nobody lowered it on purpose, run `nvidia-smi --power-limit=` with the board's default, and look for what \
             lowers it at each boot",
        )
    } else {
        pass(format!("{} W", watts(limit.enforced)))
    }
}

/// The bit of `nvmlClocksEventReason…` that an idle GPU shows.
const IDLE: u64 = 0x1;

fn width(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    let link = gpu.pcie.filter(|link| link.width > 0)?;
    let told = format!("{} of {} lanes", link.width, link.max_width);
    if link.width < link.max_width {
        // Only a warning: two boards may share the lanes of a slot, and a hypervisor may show a bus of its own.
        warn(told, Remedy::CheckMechanics, LANES)
    } else {
        pass(told)
    }
}

fn generation(gpu: &GpuHealth, _: HasSwitches) -> Option<HealthJudgement> {
    let link = gpu.pcie.filter(|link| link.generation > 0)?;
    let told = format!("{} of {}", link.generation, link.max_generation);
    if link.generation >= link.max_generation {
        return pass(told);
    }
    let works = gpu.performance_state == Some(0) && gpu.clock_events? & IDLE == 0;
    works.then_some(())?;
    warn(told, Remedy::CheckMechanics, SEAT)
}

fn nvlink(gpu: &GpuHealth, switches: HasSwitches) -> Option<HealthJudgement> {
    let links = gpu.nvlink?;
    let told = format!("{} of {} links work", links.active, links.count);
    // Without switches, unused links are no fault: bridges are optional, and a host may keep the links of a GPU that
    // it hands to one guest.
    if switches && links.active < links.count {
        return fail(told, Remedy::PowerCycle, words::POWER);
    }
    match links.recovery_errors {
        Some(count @ 1..) => warn(
            format!("{told}, {count} recovery errors since the driver was loaded"),
            Remedy::CheckMechanics,
            "watch it, and have the links looked at if the number grows",
        ),
        _ => pass(told),
    }
}

/// Returns the GPUs for which the driver reports that it asks for nothing.
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

/// Returns the finding of a row, over all GPUs that answer.
fn finding(row: &HealthRow, gpus: &[&NvmlDevice], all: usize, switches: HasSwitches) -> Finding {
    let say = |status, why: String| Finding::new(row.id.clone(), status, why);
    let judged: Vec<(&NvmlDevice, HealthJudgement)> = (gpus.iter())
        .filter_map(|gpu| Some((*gpu, (row.judge)(gpu.health.as_ref()?, switches)?)))
        .collect();
    // `Verdict` is ordered from good to bad.
    let worst = judged.iter().map(|(_, one)| one.status).max();
    let Some(worst) = worst else {
        return say(Verdict::Skip, row.silent.to_owned());
    };
    let of_them: Vec<&(&NvmlDevice, HealthJudgement)> = (judged.iter())
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
            match all - judged.len() {
                0 => told,
                silent => format!("{told}; {} do not tell", words::gpus(silent)),
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
                true => format!("all {}: {}", words::gpus(gpus.len()), told.join("; ")),
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
        Nvml::NotAsked { why } => return skipped(why),
        // `driver.libraries` and `validation.devices` say what is wrong with it.
        _ => return skipped("NVML does not answer"),
    };
    let gpus: Vec<&NvmlDevice> = (view.devices.iter())
        .filter(|gpu| gpu.health.is_some())
        .collect();
    if gpus.is_empty() {
        return skipped("no GPU answers");
    }
    ROWS.iter()
        .map(|row| finding(row, &gpus, view.devices.len(), switches))
        .collect()
}

/// Where the root filesystem of the GPU Operator's driver container is mounted.
const DRIVER_CONTAINER: &str = "/run/nvidia/driver";

/// Returns the findings for a driver of `owner`, whose library only the owner's programs find: all are unknown. The
/// operator's validator runs `nvidia-smi` in the container's root, too (NVIDIA/gpu-operator,
/// `cmd/nvidia-validator`).
fn out_of_reach(owner: &str, in_container: bool) -> Vec<Finding> {
    let why = format!(
        "NVML cannot be asked: the driver is that of {owner}, and its library is not on the library path"
    );
    let remedy = in_container.then(|| {
        format!("run `chroot {DRIVER_CONTAINER} nvidia-smi --query`, which asks it there")
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

#[async_trait]
impl Check for HealthCheck {
    fn ids(&self) -> &[Id] {
        static IDS: LazyLock<Vec<Id>> =
            LazyLock::new(|| ROWS.iter().map(|row| row.id.clone()).collect());
        &IDS
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        if subject.state.loaded_driver()?.is_none() {
            return Ok(skipped("no driver is loaded"));
        }
        let files = subject.host.files();
        let nvml = subject.state.nvml().await;
        if let (Nvml::NotLoadable { .. }, Some(owner)) = (nvml, owner(files, subject.facts)?) {
            let in_container = has_library(files, Utf8Path::new(DRIVER_CONTAINER))?;
            return Ok(out_of_reach(owner.name, in_container));
        }
        let switches = switches(subject.matrix, subject.facts).is_some();
        Ok(findings(nvml, switches))
    }
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

    /// A GPU that tells everything, and is well.
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
    fn gpus_that_are_well_pass_everything() {
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

    /// What NVML of driver 580.159.04 said on a machine with one H100, by `gpu-bootstrap nvml-view`, without its UUID.
    #[test]
    fn a_real_gpu_that_is_well_passes() {
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
    fn what_nobody_tells_is_skipped_and_never_passed() {
        let silent = of(vec![device(0, GpuHealth::default())], true);
        assert_eq!(silent.len(), ROWS.len());
        // A GPU that does not answer is told elsewhere.
        let lost = NvmlDevice {
            error: Some("lost".to_owned()),
            ..nvml_device(0)
        };
        let not_asked = Nvml::NotAsked {
            why: "with `--root`".to_owned(),
        };
        for finding in silent
            .iter()
            .chain(&of(vec![lost], true))
            .chain(&findings(&not_asked, true))
            .chain(&findings(&Nvml::Hung { after_seconds: 30 }, true))
        {
            assert_eq!(finding.status, Verdict::Skip, "{}", finding.id.as_str());
            assert!(!finding.why.is_empty());
        }
    }

    #[test]
    fn gpus_of_a_driver_out_of_reach_are_unknown_and_the_command_that_asks_it_is_named() {
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
    fn each_fault_is_judged_by_its_own_row_alone() {
        use Verdict::{Fail, Warn};
        type Fault = fn(&mut GpuHealth);
        let faults: [(&str, Verdict, &str, Fault); 30] = rows! {
            "gpu.recovery-action", Fail, "a reset of the GPU",
                |gpu| { gpu.recovery_action = Some(1) };
            "gpu.recovery-action", Fail, "a reboot", |gpu| { gpu.recovery_action = Some(2) };
            "gpu.recovery-action", Warn, "a stop of the programs",
                |gpu| gpu.recovery_action = Some(3);
            "gpu.recovery-action", Fail, "then a reset", |gpu| { gpu.recovery_action = Some(4) };
            "gpu.recovery-action", Warn, "IMEX", |gpu| { gpu.recovery_action = Some(5) };
            "gpu.recovery-action", Fail, "the bus", |gpu| { gpu.recovery_action = Some(6) };
            "gpu.recovery-action", Fail, "a reboot", |gpu| { gpu.recovery_action = Some(7) };
            "gpu.recovery-action", Warn, "action 99", |gpu| { gpu.recovery_action = Some(99) };
            "mem.remap.failed", Fail, "could not be replaced", |gpu| { rows(gpu).failed = true };
            "mem.remap.pending", Warn, "next reset", |gpu| { rows(gpu).pending = true };
            "mem.remap.count", Fail, "512 rows", |gpu| { rows(gpu).uncorrectable = 512 };
            "mem.remap.count", Warn, "2 banks", |gpu| { rows(gpu).exhausted_banks = Some(2) };
            "mem.sram.threshold", Fail, "more", |gpu| { gpu.sram_threshold_exceeded = Some(true) };
            "mem.ecc.uncorr", Warn, "asks for nothing", |gpu| { ecc(gpu).uncorrected = 1 };
            "mem.ecc.corr", Warn, "20000000", |gpu| { ecc(gpu).corrected = 20_000_000 };
            "mem.ecc.mode", Warn, "on now, and off",
                |gpu| { gpu.ecc_mode = Some(EccMode { current: true, pending: false }); };
            "mem.retired", Fail, "63 pages", |gpu| pages(gpu).count = 63;
            "mem.retired", Warn, "15 pages", |gpu| pages(gpu).count = 15;
            "mem.retired", Warn, "next reset", |gpu| { pages(gpu).pending = true };
            "gpu.inforom", Warn, "corrupted", |gpu| { gpu.inforom_valid = Some(false) };
            "gpu.temp", Fail, "slows down", |gpu| { degrees(gpu).margin = Some(0) };
            "gpu.temp", Warn, "4 °C below", |gpu| { degrees(gpu).margin = Some(4) };
            "gpu.temp", Fail, "memory has 96", |gpu| { degrees(gpu).memory = Some(96) };
            "gpu.throttle", Warn, "power brake", |gpu| { gpu.clock_events = Some(0x88) };
            "gpu.throttle", Warn, "for its heat", |gpu| { gpu.clock_events = Some(0x48) };
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
        gpu.remapped_rows.as_mut().expect("it tells")
    }

    fn ecc(gpu: &mut GpuHealth) -> &mut EccErrors {
        gpu.ecc.as_mut().expect("it tells")
    }

    fn pages(gpu: &mut GpuHealth) -> &mut RetiredPages {
        gpu.retired_pages.as_mut().expect("it tells")
    }

    fn degrees(gpu: &mut GpuHealth) -> &mut Temperature {
        gpu.temperature.as_mut().expect("it tells")
    }

    fn link(gpu: &mut GpuHealth) -> &mut PcieLink {
        gpu.pcie.as_mut().expect("it tells")
    }

    fn links(gpu: &mut GpuHealth) -> &mut NvLinks {
        gpu.nvlink.as_mut().expect("it tells")
    }

    #[test]
    fn an_uncorrected_error_fails_where_the_driver_does_not_say_that_it_is_over() {
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
    fn an_idle_gpu_may_slow_its_link_down() {
        let mut idle = well();
        link(&mut idle).generation = 1;
        idle.clock_events = Some(0x1);
        let found = of(vec![device(0, idle)], true);
        assert_eq!(named(&found, "pci.link.gen").status, Verdict::Skip);
    }

    #[test]
    fn a_board_without_switches_may_leave_its_links_unused() {
        let mut gpu = well();
        links(&mut gpu).active = 0;
        let found = of(vec![device(0, gpu)], false);
        assert_eq!(named(&found, "nvl.links").status, Verdict::Pass);
    }

    #[test]
    fn equal_faults_are_told_once() {
        let mut sick = well();
        sick.recovery_action = Some(2);
        let all = of(vec![device(0, sick.clone()), device(1, sick.clone())], true);
        assert_eq!(
            named(&all, "gpu.recovery-action").why,
            "all 2 GPUs: a reboot of the machine"
        );
        let two = of(
            vec![device(0, sick.clone()), device(1, well()), device(2, sick)],
            true,
        );
        assert_eq!(
            named(&two, "gpu.recovery-action").why,
            "GPU 0, GPU 2: a reboot of the machine"
        );
    }
}
