//! Log checks: the messages of the NVIDIA driver in the kernel log since boot.

use std::collections::BTreeMap;

use camino::Utf8Path;

use super::{health, messages, virt};
use crate::{
    check::{Family, Finding, Subject, Verdict},
    compat::{kernel, matrix::Shows, rule_result::Candidate},
    facts::GpuFact,
    host::Nvml,
    model::{
        fault::Fault,
        findings::Remedy,
        gpu::{Flavor, SupportedFlavors},
        id::Id,
        pci::PciAddress,
    },
    state::{GPU_OPERATOR, KernelLog, Owner, owner},
    step::StepError,
    tools::{
        kernel_log::{self, Kind, Line, Message, Recovery},
        xid::{self, XidAction},
    },
};

const XID: Id = Id::new("log.xid");
const FELL: Id = Id::new("log.fell-off-bus");
const INIT: Id = Id::new("log.gpu-init");
const SXID: Id = Id::new("log.sxid");

/// A directory that the GPU Operator creates on every node, even if its driver was not loaded (NVIDIA/gpu-operator issue
/// 1726).
const OPERATOR: &str = "/run/nvidia/validations";

const CATALOGUE: &str = "https://docs.nvidia.com/deploy/xid-errors/index.html";

/// The log checks.
pub(super) const FAMILY: Family = Family {
    ids: || vec![XID, SXID, FELL, INIT],
    examine: |subject| Box::pin(examine(subject)),
};

/// Data about the machine that is used to evaluate log lines.
#[derive(Debug, Clone)]
pub(super) struct LogContext<'f> {
    /// The GPUs on the bus.
    gpus: &'f [GpuFact],
    /// gpu-bootstrap can install a driver on this machine.
    installs: bool,
    /// The machine is a virtual machine.
    guest: bool,
    /// A driver is installed or managed by another program, but no driver is loaded.
    idle: bool,
    /// Who manages the driver, if another program does.
    owner: Option<Owner>,
    /// The GPUs that are bound to the driver.
    driven: Vec<PciAddress>,
    /// GPUs that no longer require a recovery action according to the driver (`gpu.recovery-action`).
    recovered: Vec<PciAddress>,
    /// `false` if NVML hangs, `true` if it responds or no driver is loaded. `None` if this is unknown.
    answers: Option<bool>,
    /// Errors caused by known bugs of the loaded driver on this kernel, each with a description of the bug.
    known: Vec<(&'f Shows, String)>,
}

fn decide(log: &KernelLog, context: &LogContext<'_>) -> Vec<Finding> {
    let all = |status, why: &str| {
        let one = |id: Id| Finding::new(id.clone(), status, why);
        [XID, SXID, FELL, INIT].map(one).to_vec()
    };
    match log {
        KernelLog::NotQueried { why } => all(Verdict::Skip, why),
        KernelLog::Unreadable { why } => all(
            Verdict::Unknown,
            &format!("the kernel log cannot be read: {why}"),
        ),
        KernelLog::Known {
            messages,
            source,
            cut,
        } => {
            let mut findings = vec![
                Finding {
                    because: follows_sxid(messages).then_some(SXID),
                    ..xids(messages, source, context)
                },
                sxids(messages, source),
                fallen(messages, source, context),
                init(messages, source, context),
            ];
            // A user must not be able to hide an error by flooding the log.
            for finding in findings.iter_mut().filter(|_| *cut) {
                if finding.status == Verdict::Pass {
                    let why = format!(
                        "{source} is too long to be read completely: messages in the middle were skipped"
                    );
                    *finding = Finding::new(finding.id.clone(), Verdict::Unknown, why);
                }
            }
            findings
        }
    }
}

/// Returns text such as ` of the GPU at 0000:18:00.0`, or an empty string if the line does not contain a GPU.
fn of_gpu(gpu: Option<PciAddress>) -> String {
    gpu.map_or(String::new(), |gpu| format!(" of the GPU at {gpu}"))
}

/// Returns the action requested by the driver (Xid 154).
fn action_of(action: Recovery) -> XidAction {
    match action {
        Recovery::None | Recovery::Imex => XidAction::None,
        Recovery::DrainPeers => XidAction::RestartApp,
        Recovery::Reset | Recovery::DrainAndReset | Recovery::BusReset => XidAction::ResetGpu,
        Recovery::Reboot => XidAction::Reboot,
    }
}

/// The errors with the same Xid on one GPU.
#[derive(Debug)]
struct Error {
    code: u32,
    gpu: Option<PciAddress>,
    count: usize,
    action: XidAction,
    /// The driver no longer requests an action for this GPU.
    over: bool,
    /// A later Xid 154 reports that this GPU no longer needs an action, but NVML does not confirm that.
    unconfirmed: bool,
}

/// Returns the errors, sorted by Xid. The Xid table contains the action of each error, except for Xid 154, whose message
/// contains the recovery action that the driver recommends. If this action is "None" and NVML confirms it for the GPU
/// (`recovered`), earlier errors of this GPU need no action either.
fn errors(messages: &[Message], recovered: &[PciAddress]) -> Vec<Error> {
    let mut errors: BTreeMap<(u32, Option<PciAddress>), Error> = BTreeMap::new();
    let add =
        |code, gpu: Option<PciAddress>, action: XidAction, errors: &mut BTreeMap<_, Error>| {
            let error = errors.entry((code, gpu)).or_insert(Error {
                code,
                gpu,
                count: 0,
                action: XidAction::None,
                over: false,
                unconfirmed: false,
            });
            error.count += 1;
            error.action = error.action.max(action);
            error.unconfirmed = false;
        };
    for message in messages {
        match message {
            Message::Xid {
                gpu,
                code,
                nonfatal,
            } => {
                let action = xid::of(*code).map_or(XidAction::None, |xid| xid.action);
                let action = if *nonfatal { XidAction::None } else { action };
                add(*code, *gpu, action, &mut errors);
            }
            Message::Cause { gpu, code } => {
                errors.entry((*code, *gpu)).or_insert_with(|| Error {
                    code: *code,
                    gpu: *gpu,
                    count: 1,
                    action: xid::of(*code).map_or(XidAction::None, |xid| xid.action),
                    over: false,
                    unconfirmed: false,
                });
            }
            Message::Recovery { gpu, action } => {
                let action = action_of(*action);
                let before = errors.values_mut().filter(|error| error.gpu == *gpu);
                if action == XidAction::None {
                    let asks = before.filter(|error| error.action != XidAction::None);
                    if gpu.is_some_and(|gpu| recovered.contains(&gpu)) {
                        asks.for_each(|error| error.action = XidAction::None);
                    } else {
                        asks.for_each(|error| error.unconfirmed = true);
                    }
                    // An earlier Xid 154 remains valid until NVML confirms this one.
                    if (errors.get(&(RECOVERY, *gpu))).is_some_and(|error| error.unconfirmed) {
                        continue;
                    }
                }
                errors.remove(&(RECOVERY, *gpu));
                add(RECOVERY, *gpu, action, &mut errors);
            }
            _ => {}
        }
    }
    errors.into_values().collect()
}

/// The Xid that contains the recovery action recommended by the driver.
const RECOVERY: u32 = 154;
/// The Xid of a row remapping failure.
const NO_SPARE_ROW: u32 = 64;
/// The architectures whose GPUs retire pages instead of remapping rows.
const BEFORE_AMPERE: [&str; 5] = ["kepler", "maxwell", "pascal", "volta", "turing"];

/// Returns the text for the action that the driver requests.
fn asks(action: XidAction) -> &'static str {
    match action {
        XidAction::None => "no action",
        XidAction::RestartApp => "stopping the programs that use the GPU",
        XidAction::Reboot => "a reboot",
        _ => "a GPU reset",
    }
}

fn told(error: &Error) -> String {
    let Error {
        code, gpu, count, ..
    } = error;
    let later = match error.unconfirmed {
        true => {
            "; a later Xid 154 reports that no action is required, but NVML does not confirm it"
        }
        false => "",
    };
    if *code == RECOVERY {
        return format!(
            "the driver recommends {} (Xid 154{}){later}",
            asks(error.action),
            of_gpu(*gpu)
        );
    }
    let what = xid::of(*code).map_or("unknown number", |xid| &xid.what);
    let times = match count {
        1 => String::new(),
        count => format!(", {count} times"),
    };
    format!("Xid {code}{} ({what}{times}){later}", of_gpu(*gpu))
}

fn xids(messages: &[Message], source: &str, context: &LogContext<'_>) -> Finding {
    let mut errors = errors(messages, &context.recovered);
    // The current report of the driver overrides older log messages. But a row that could not be remapped remains faulty.
    for error in &mut errors {
        let is_reset = matches!(error.action, XidAction::ResetGpu | XidAction::Reboot)
            && error.code != NO_SPARE_ROW;
        if is_reset
            && error
                .gpu
                .is_some_and(|gpu| context.recovered.contains(&gpu))
        {
            error.action = XidAction::None;
            error.over = true;
            error.unconfirmed = false;
        }
    }
    // GPUs and NVSwitches must be reset together.
    let resets_all = messages.iter().any(is_fatal_sxid);
    for error in errors.iter_mut().filter(|_| resets_all) {
        if error.action == XidAction::ResetGpu && error.code != NO_SPARE_ROW {
            error.action = XidAction::ResetAllGpus;
        }
    }
    let over = errors.iter().any(|error| error.over);
    let demand = if context.all_recovered() {
        None
    } else if messages.contains(&Message::RebootRequired) {
        Some(XidAction::Reboot)
    } else if messages.contains(&Message::ResetRequired) {
        Some(match resets_all {
            true => XidAction::ResetAllGpus,
            false => XidAction::ResetGpu,
        })
    } else {
        None
    };
    let finding = |status, why: String| Finding {
        links: vec![CATALOGUE.to_owned()],
        ..Finding::new(XID, status, why)
    };
    if errors.is_empty() && demand.is_none() {
        return Finding::new(
            XID,
            Verdict::Pass,
            format!("no errors since boot ({source})"),
        );
    }
    let mut codes: Vec<u32> = errors.iter().map(|error| error.code).collect();
    codes.dedup();
    let codes: Vec<String> = codes.iter().map(ToString::to_string).collect();
    let asked = errors
        .iter()
        .map(|error| error.action)
        .max()
        .unwrap_or(XidAction::None);
    // A line that requires a reset or reboot without an Xid is omitted if an Xid requires at least the same action, because
    // the Xid is more specific.
    let demand = demand.filter(|action| asked < *action);
    let worst = demand.unwrap_or(asked);
    let unknown = |error: &Error| xid::of(error.code).is_none();
    let any_unknown = errors.iter().any(unknown);
    // The most severe error comes first. If any error requires an action, known errors that require no action are omitted.
    // Among errors with the same action, faulty memory comes before errors that an application may cause.
    errors.sort_by_key(|error| {
        let memory = xid::of(error.code).is_some_and(|xid| xid.memory);
        std::cmp::Reverse((error.action, error.code == RECOVERY, memory))
    });
    let mut told: Vec<String> = (errors.iter())
        .filter(|error| {
            worst == XidAction::None
                || error.action != XidAction::None
                || error.over
                || unknown(error)
        })
        .map(told)
        .collect();
    let (demanded, line) = match demand {
        Some(XidAction::Reboot) => (
            "CUDA does not start on any GPU until a reboot, because the unified memory driver (UVM) had a fatal error",
            "`uvm encountered global fatal error`",
        ),
        _ => (
            "the driver rejects work on a GPU until it is reset (`NV_ERR_RESET_REQUIRED`)",
            "`NV_ERR_RESET_REQUIRED`",
        ),
    };
    if demand.is_some() {
        told.insert(0, demanded.to_owned());
    }
    let (status, remedy) = match worst {
        XidAction::None if any_unknown => (
            Verdict::Warn,
            "look up the number in the NVIDIA Xid catalog",
        ),
        XidAction::None if over => (
            Verdict::Warn,
            "no action is required now (`gpu.recovery-action`); if the error recurs, contact the hardware vendor",
        ),
        XidAction::None => return finding(Verdict::Pass, told.join("; ")),
        XidAction::RestartApp | XidAction::ContactSupport => (Verdict::Warn, worst.remedy()),
        // Only Xid 78 requires an update: the guest driver of a vGPU is incompatible with its host.
        XidAction::Update => (Verdict::Warn, virt::GRID_DRIVER),
        XidAction::ResetGpu
        | XidAction::ResetAllGpus
        | XidAction::Reboot
        | XidAction::CheckMechanics
        | XidAction::RestartMachine => (Verdict::Fail, worst.remedy()),
    };
    // The first error that requires the action can have its own remedy.
    let first = errors.iter().find(|error| error.action == worst);
    let own = first.and_then(|error| xid::of(error.code)?.remedy.as_deref());
    // If the driver has a known bug on this kernel, the bug is a better explanation than the affected program.
    let is_worst =
        |code: u32| (errors.iter()).any(|error| error.code == code && error.action == worst);
    let known = (context.known.iter())
        .find(|(shows, _)| worst == XidAction::RestartApp && is_worst(shows.xid));
    let (class, remedy) = match known {
        Some((shows, report)) => {
            told.push(report.clone());
            (Remedy::Update, shows.remedy.as_str())
        }
        None if worst == XidAction::ResetGpu && is_worst(NO_SPARE_ROW) => {
            let at =
                (errors.iter()).find_map(|error| (error.code == NO_SPARE_ROW).then_some(error.gpu));
            let is_old = |gpu: &GpuFact| {
                (gpu.architecture.as_ref())
                    .is_some_and(|name| BEFORE_AMPERE.contains(&name.as_str()))
            };
            let old = (context.gpus.iter())
                .filter(|gpu| at.flatten().is_none_or(|at| gpu.pci_address == at))
                .any(is_old);
            let row = xid::of(NO_SPARE_ROW);
            let before_ampere = row.and_then(|row| row.before_ampere.as_deref());
            let since = row.and_then(|row| row.remedy.as_deref());
            let remedy = before_ampere.filter(|_| old).or(since).unwrap_or(remedy);
            (class(worst), remedy)
        }
        None => (class(worst), own.unwrap_or(remedy)),
    };
    Finding {
        remedy_class: Some(class),
        observed: Some(match codes.is_empty() {
            true => line.to_owned(),
            false => format!("Xid {}", codes.join(", ")),
        }),
        remedy: Some(remedy.to_owned()),
        ..finding(status, told.join("; "))
    }
}

const fn is_fatal_sxid(message: &Message) -> bool {
    matches!(
        message,
        Message::SXid {
            fatal: Some(true),
            ..
        }
    )
}

/// Whether a fatal NVSwitch error precedes the first Xid, and so is regarded as its cause.
fn follows_sxid(messages: &[Message]) -> bool {
    let first = |is: &dyn Fn(&Message) -> bool| messages.iter().position(is);
    let switch = first(&is_fatal_sxid);
    let gpu = first(&|message| matches!(message, Message::Xid { .. }));
    matches!((switch, gpu), (Some(switch), Some(gpu)) if switch < gpu)
}

/// Returns the remedy class of an action.
fn class(action: XidAction) -> Remedy {
    match action {
        XidAction::None => Remedy::None,
        XidAction::RestartApp => Remedy::RestartApp,
        XidAction::Update => Remedy::Update,
        XidAction::ContactSupport => Remedy::ContactSupport,
        XidAction::ResetGpu => Remedy::ResetGpu,
        XidAction::ResetAllGpus | XidAction::Reboot => Remedy::Reboot,
        XidAction::CheckMechanics => Remedy::CheckMechanics,
        XidAction::RestartMachine => Remedy::PowerCycle,
    }
}

/// The severity of an NVSwitch error, the most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    Fatal,
    /// Only lines with details are in the log, because it is rate-limited or was cut.
    Unknown,
    NonFatal,
}

/// Returns the finding for NVSwitch errors (SXid). The first log line of an error contains whether it is fatal.
fn sxids(messages: &[Message], source: &str) -> Finding {
    let finding = |status, why: String| Finding::new(SXID, status, why);
    let mut counts: BTreeMap<(Severity, u32, Option<PciAddress>), usize> = BTreeMap::new();
    let mut details = Vec::new();
    for message in messages {
        if let Message::SXid {
            switch,
            code,
            fatal,
        } = message
        {
            let severity = match fatal {
                Some(true) => Severity::Fatal,
                Some(false) => Severity::NonFatal,
                None => {
                    details.push((*code, *switch));
                    continue;
                }
            };
            *counts.entry((severity, *code, *switch)).or_default() += 1;
        }
    }
    for (code, switch) in details {
        let has = |severity| counts.contains_key(&(severity, code, switch));
        if !has(Severity::Fatal) && !has(Severity::NonFatal) {
            counts.insert((Severity::Unknown, code, switch), 1);
        }
    }
    let Some(((worst, ..), _)) = counts.first_key_value() else {
        return finding(Verdict::Pass, format!("no errors since boot ({source})"));
    };
    let told: Vec<String> = (counts.iter())
        .filter(|((severity, ..), _)| *worst != Severity::Fatal || *severity == Severity::Fatal)
        .map(|((severity, code, switch), count)| {
            let kind = match severity {
                Severity::Fatal => "fatal",
                Severity::Unknown => "severity unknown",
                Severity::NonFatal => "non-fatal",
            };
            let place = switch.map_or(String::new(), |at| format!(" of the NVSwitch at {at}"));
            let times = match count {
                1 => String::new(),
                count => format!(", {count} times"),
            };
            format!("SXid {code}{place} ({kind}{times})")
        })
        .collect();
    let (status, remedy) = match worst {
        Severity::NonFatal => (
            Verdict::Warn,
            "no action is required now; if the errors keep recurring, contact the hardware vendor",
        ),
        Severity::Unknown => (
            Verdict::Warn,
            "the line with `Fatal` or `Non-fatal` is not in the log: if GPUs or NVLink no longer work, reboot after \
             draining the node, which stops all its workloads (GPUs and NVSwitches must be reset together); if the error \
             recurs, contact the hardware vendor",
        ),
        Severity::Fatal => (
            Verdict::Fail,
            "reboot after draining the node, which stops all its workloads (GPUs and NVSwitches must be reset together); if \
             the error recurs, contact the hardware vendor",
        ),
    };
    finding(status, told.join("; ")).with_remedy(remedy)
}

/// Returns text such as `the GPU at 0000:18:00.0`, with each address once.
fn named(gpus: impl Iterator<Item = Option<PciAddress>>) -> String {
    let mut gpus: Vec<PciAddress> = gpus.flatten().collect();
    gpus.sort_unstable();
    gpus.dedup();
    if gpus.is_empty() {
        return "a GPU".to_owned();
    }
    let gpus: Vec<String> = gpus.iter().map(ToString::to_string).collect();
    format!("the GPU at {}", gpus.join(", "))
}

/// Returns the GPUs that fell off the bus according to the log; `None` for a line without a GPU address.
pub(super) fn off_the_bus(messages: &[Message]) -> Vec<Option<PciAddress>> {
    (messages.iter())
        .filter_map(|message| match message {
            Message::FellOffBus { gpu } | Message::Xid { gpu, code: 79, .. } => Some(*gpu),
            _ => None,
        })
        .collect()
}

fn fallen(messages: &[Message], source: &str, context: &LogContext<'_>) -> Finding {
    let finding = |status, why: String| Finding::new(FELL, status, why);
    let fallen = off_the_bus(messages);
    if !fallen.is_empty() {
        return Finding {
            observed: Some("`fallen off the bus` in the kernel log".to_owned()),
            expected: Some("no such line".to_owned()),
            remedy: Some(messages::POWER.to_owned()),
            ..finding(
                Verdict::Fail,
                format!("{} fell off the bus since boot", named(fallen.into_iter())),
            )
        };
    }
    if messages.contains(&Message::Lost) && !context.all_recovered() {
        return Finding {
            observed: Some("`NV_ERR_GPU_IS_LOST` in the kernel log".to_owned()),
            expected: Some("no such line".to_owned()),
            remedy: Some(format!(
                "run `nvidia-smi`; if a GPU is missing there: {}",
                messages::POWER
            )),
            ..finding(
                Verdict::Warn,
                "a GPU did not respond on the bus (the driver did not log its address)".to_owned(),
            )
        };
    }
    let of_gpus = kernel_log::rows(messages).find_map(|(row, places)| {
        // This is only a warning, because another device on the same bus may cause the line. A lost GPU also causes
        // Xid 79, and its configuration space is unreadable.
        let (Kind::Bus | Kind::Iommu) = row.kind else {
            return None;
        };
        // Lines about other devices are ignored.
        let of_ours: Vec<_> = (places.into_iter()).filter(|at| context.has(*at)).collect();
        (!of_ours.is_empty()).then_some((row, of_ours))
    });
    if let Some((row, places)) = of_gpus {
        let gpus = named(places.into_iter().map(Some));
        return Finding {
            expected: Some("no such line".to_owned()),
            remedy: Some(row.remedy.clone()),
            ..finding(Verdict::Warn, row.why.replace("{}", &gpus))
        };
    }
    finding(Verdict::Pass, format!("no errors since boot ({source})"))
}

/// The reason in the log why the driver rejects a GPU.
pub(super) struct Diagnosis {
    /// The text of the log line.
    observed: &'static str,
    pub(super) fault: Fault,
}

impl Diagnosis {
    fn new(observed: &'static str, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            observed,
            fault: Fault::new(why, remedy),
        }
    }
}

/// The remedy for a GPU that did not start in a virtual machine.
const GUEST: &str = "stop and start the virtual machine so that its host resets the GPU (a cloud instance loses its local \
                     disks); if the GPU still does not start, check passthrough, 64-bit MMIO space and confidential \
                     computing on the host; `dmesg | grep NVRM` shows the error code for NVIDIA";

/// Returns the remedy that installs the modules of the other flavor.
fn other_modules(flavor: Flavor, context: &LogContext<'_>) -> String {
    match context.installs {
        true => format!(
            "install the {flavor} kernel modules: `gpu-bootstrap install --set driver.flavor={flavor}`"
        ),
        false => format!("install the {flavor} kernel modules of a driver for this GPU"),
    }
}

/// Returns the reason in the log why the driver rejects a GPU. If there are several, the deepest cause is returned. A message
/// about the module flavor that contradicts the board is reported as unreadable registers, because the driver logs it when it
/// cannot read the registers of the GPU.
pub(super) fn refusal(messages: &[Message], context: &LogContext<'_>) -> Option<Diagnosis> {
    let windows: Vec<(Option<PciAddress>, u32)> = (messages.iter())
        .filter_map(|message| match message {
            Message::NoWindow { gpu, bar } => Some((*gpu, *bar)),
            _ => None,
        })
        // The kernel logs this for every device, so other devices are ignored.
        .filter(|(at, _)| at.is_none_or(|at| context.has(at)))
        .collect();
    if let Some((_, bar)) = windows.first() {
        return Some(Diagnosis::new(
            "an unassigned BAR",
            format!(
                "BAR{bar} of {} is unassigned (firmware or hypervisor), so the driver rejects the GPU",
                named(windows.iter().map(|(gpu, _)| *gpu))
            ),
            "on the hypervisor, give the virtual machine enough 64-bit MMIO space (VMware: \
             `pciPassthru.use64bitMMIO` and `pciPassthru.64bitMMIOSizeGB`; QEMU with OVMF: `-fw_cfg \
             name=opt/ovmf/X-PciMmio64Mb,string=SIZE`, in MiB); on bare metal, enable \
             \"Above 4G decoding\" in the firmware",
        ));
    }
    let flavors = |at: &Option<PciAddress>| {
        let gpu = (context.gpus.iter()).filter(|gpu| at.is_none_or(|at| gpu.pci_address == at));
        gpu.filter_map(|gpu| gpu.module_flavor).collect::<Vec<_>>()
    };
    for message in messages {
        let (at, flavor, observed) = match message {
            Message::NeedsOpen { gpu } => (
                gpu,
                Flavor::Open,
                "`requires use of the NVIDIA open kernel modules`",
            ),
            Message::NeedsProprietary { gpu } => (
                gpu,
                Flavor::Proprietary,
                "`does not include the required GPU System Processor`",
            ),
            _ => continue,
        };
        let known = flavors(at);
        let contradicts = |flavors: &SupportedFlavors| match flavor {
            Flavor::Open => *flavors == SupportedFlavors::Proprietary,
            Flavor::Proprietary => *flavors != SupportedFlavors::Proprietary,
        };
        if !known.is_empty() && known.iter().all(contradicts) {
            let gpus =
                (context.gpus.iter()).filter(|gpu| at.is_none_or(|at| gpu.pci_address == at));
            return Some(Diagnosis::new(
                observed,
                format!(
                    "the driver could not read the registers of {}: its log message contradicts the board, which supports the \
                     loaded modules",
                    super::messages::places(gpus)
                ),
                match context.guest {
                    true => GUEST,
                    false => messages::POWER,
                },
            ));
        }
        return Some(Diagnosis::new(
            observed,
            match flavor {
                Flavor::Open => {
                    "a GPU requires the open kernel modules, but the proprietary ones are loaded"
                }
                Flavor::Proprietary => {
                    "a GPU has no GPU System Processor (GSP), but the loaded open kernel modules \
                     require it"
                }
            },
            other_modules(flavor, context),
        ));
    }
    messages.iter().find_map(|message| {
        Some(match message {
            // A driver is bound to this GPU, so an earlier driver logged the message.
            Message::Unsupported { gpu: Some(at) } if context.driven.contains(at) => return None,
            Message::Unsupported { gpu: Some(at) } if context.drives_sibling(*at) => Diagnosis::new(
                "`is not supported by the NVIDIA … driver release`",
                format!(
                    "the GPU is broken or in a bad state: the driver cannot read {at}, but supports another GPU of the same \
                     board"
                ),
                format!(
                    "{}; if it recurs, replace the GPU or use another instance",
                    messages::POWER
                ),
            ),
            Message::Legacy { branch, .. } => Diagnosis::new(
                "`supported through the NVIDIA … Legacy drivers`",
                format!("the driver ignores a GPU that only branch {branch} supports"),
                format!("install a driver of branch {branch}"),
            ),
            Message::Unsupported { gpu } if context.guest => Diagnosis::new(
                "`is not supported by the NVIDIA … driver release`",
                format!(
                    "the driver does not support {}, which may be a vGPU (a part of a GPU, assigned by the hypervisor)",
                    named([*gpu].into_iter())
                ),
                format!(
                    "check on the hypervisor whether this is a vGPU. A vGPU needs the NVIDIA guest driver (GRID) of the \
                     hypervisor's release; a whole GPU needs a driver that supports it{}. If the installed driver should \
                     support it, the GPU is in a bad state; reset it on the host",
                    (context.gpus.iter())
                        .find(|one| gpu.is_none_or(|at| one.pci_address == at))
                        .map_or(String::new(), |gpu| format!(
                            " (`gpu-bootstrap compat --gpu {}`)",
                            gpu.pci_id
                        ))
                ),
            ),
            Message::Unsupported { gpu } => Diagnosis::new(
                "`is not supported by the NVIDIA … driver release`",
                format!("the driver does not support {}", named([*gpu].into_iter())),
                (context.gpus.iter())
                    .find(|one| gpu.is_none_or(|at| one.pci_address == at))
                    .map_or_else(
                        || "run `gpu-bootstrap compat` to find a driver that supports it".to_owned(),
                        |gpu| {
                            format!(
                                "run `gpu-bootstrap compat --gpu {}` to find a driver that supports it; if the \
                                 installed driver should support it, the GPU is in a bad state: power-cycle the machine",
                                gpu.pci_id
                            )
                        },
                    ),
            ),
            Message::NoFirmware { file, code } => firmware(file.as_deref(), *code, context),
            _ => return None,
        })
    })
}

/// Returns the reason why the GPU firmware was not loaded.
fn firmware(file: Option<&str>, code: Option<u32>, context: &LogContext<'_>) -> Diagnosis {
    let path = file.map_or(String::new(), |file| format!(" (`/lib/firmware/{file}`)"));
    let observed = "GPU firmware could not be loaded";
    match (code, &context.owner) {
        (Some(code), _) => Diagnosis::new(
            observed,
            format!("the GPU firmware of the driver{path} could not be read (error {code})"),
            "run `nvidia-smi`, which starts the GPU again; if this also fails, reboot and reinstall the driver's \
             firmware package",
        ),
        (None, Some(owner)) => Diagnosis::new(
            observed,
            format!(
                "the GPU firmware of the driver{path} is not in the kernel's firmware search path"
            ),
            format!(
                "{} provides the driver and its firmware: restart the service or pod that loads the driver, and check its \
                 log; `/sys/module/firmware_class/parameters/path` contains the directory that the kernel searches",
                owner.name
            ),
        ),
        (None, None) => Diagnosis::new(
            observed,
            format!("the GPU firmware of the driver{path} does not exist"),
            "install the driver's firmware package in the version of the loaded module",
        ),
    }
}

/// Returns the reason why the kernel rejected the driver module, if a driver is installed but not loaded.
pub(super) fn not_loaded(messages: &[Message], context: &LogContext<'_>) -> Option<Fault> {
    let (row, _) = kernel_log::rows(messages).find(|(row, _)| row.kind == Kind::Load)?;
    context
        .idle
        .then(|| Fault::new(&row.why, remedy_of(row, context)))
}

/// Returns the remedy of a row for the owner of the driver.
fn remedy_of(row: &Line, context: &LogContext<'_>) -> String {
    let is_of_operator = (context.owner.as_ref()).is_some_and(|owner| owner.name == GPU_OPERATOR);
    match (&row.operator, is_of_operator) {
        (Some(remedy), true) => remedy.clone(),
        _ => row.remedy.clone(),
    }
}

/// Returns the reason in the log why GPUs have no driver: the module was not loaded, or it failed to start a GPU. The cause
/// is the matching row that comes first in the table; the other matching rows are appended to the text.
pub(super) fn reason(messages: &[Message], context: &LogContext<'_>) -> Option<Fault> {
    let believed = kernel_log::rows(messages).filter(|(row, places)| match row.kind {
        Kind::Load => context.idle,
        Kind::Start => places.is_empty() || places.iter().any(|at| context.has(*at)),
        Kind::Bus | Kind::Iommu | Kind::Beside => false,
    });
    let rows: Vec<&Line> = believed.map(|(row, _)| row).collect();
    let (first, others) = rows.split_first()?;
    Some(Fault::new(
        with(&first.why, others),
        remedy_of(first, context),
    ))
}

/// Returns a reason, followed by the reasons of the other rows.
fn with(why: &str, others: &[&Line]) -> String {
    match others {
        [] => why.to_owned(),
        others => {
            let whys: Vec<&str> = others.iter().map(|row| row.why.as_str()).collect();
            format!("{why}; also: {}", whys.join("; "))
        }
    }
}

/// Returns the evidence that the hang of this row is still in progress, or `None`. A hang with a single log line may be over.
/// It is over if NVML responds.
fn still_hangs(row: &Line, messages: &[Message], context: &LogContext<'_>) -> Option<String> {
    match (context.answers, kernel_log::count(messages, row)) {
        _ if !row.hang => None,
        (Some(false), _) => Some("NVML also hangs now".to_owned()),
        (None, lines @ 2..) => Some(format!("{lines} such lines in the log")),
        (Some(true), _) | (None, _) => None,
    }
}

fn init(messages: &[Message], source: &str, context: &LogContext<'_>) -> Finding {
    let finding = |status, why: String| Finding::new(INIT, status, why);
    let failed = |observed: &str, why: String, remedy: &str| Finding {
        observed: Some(observed.to_owned()),
        expected: Some("no such line".to_owned()),
        remedy: Some(remedy.to_owned()),
        ..finding(Verdict::Fail, why)
    };
    // The reason comes before the failure that it causes.
    if let Some(Diagnosis { observed, fault }) = refusal(messages, context) {
        return failed(observed, fault.why, &fault.remedy);
    }
    let down: Vec<Option<PciAddress>> = messages
        .iter()
        .filter_map(|message| match message {
            Message::NotStarted { gpu } => Some(*gpu),
            _ => None,
        })
        .collect();
    let refused: Vec<Option<PciAddress>> = (messages.iter())
        .filter_map(|message| match message {
            Message::ProbeFailed { gpu } => Some(*gpu),
            _ => None,
        })
        .filter(|at| at.is_none_or(|at| context.has(at)))
        .collect();
    let (observed, what, remedy) = if !down.is_empty() {
        (
            "`RmInitAdapter failed`",
            format!("the driver failed to start {}", named(down.into_iter())),
            match context.guest {
                true => GUEST,
                false => {
                    "reboot; if the GPU still does not start, power-cycle the machine and check the power cables, seat and \
                     slot of the GPU; `dmesg | grep NVRM` shows the error code for the vendor"
                }
            },
        )
    } else if !refused.is_empty() {
        (
            "`probe … failed with error`",
            format!("the driver rejected {}", named(refused.into_iter())),
            "run `dmesg | grep -i nvidia`; the preceding lines contain the reason",
        )
    } else {
        ("", String::new(), "")
    };
    if !what.is_empty() {
        return match reason(messages, context) {
            Some(reason) => failed(observed, format!("{what}: {}", reason.why), &reason.remedy),
            None => failed(observed, what, remedy),
        };
    }
    let crashed = messages.iter().find_map(|message| match message {
        Message::Crashed { module } => Some(module),
        _ => None,
    });
    if let Some(module) = crashed {
        return failed(
            "a kernel oops in the driver",
            format!(
                "the driver crashed in the kernel (module `{module}`), and its locks are not released until a reboot"
            ),
            "reboot after draining the node, which stops all its workloads; if the crash recurs, install another driver \
             version",
        );
    }
    let mut mismatches = messages.iter().filter_map(|message| match message {
        Message::OtherVersion { libraries } => Some(libraries.as_deref()),
        _ => None,
    });
    if let Some(first) = mismatches.next() {
        let version = (first.or_else(|| mismatches.flatten().next()))
            .map_or(String::new(), |version| format!(" ({version})"));
        // A program that was started before an upgrade also causes this line. A restart of the program fixes it.
        return Finding {
            status: Verdict::Warn,
            ..failed(
                "`API mismatch`",
                format!(
                    "a program uses libraries{version} of a different version than the loaded module"
                ),
                "reboot if `driver.libraries` fails; otherwise restart the program; a container that ships driver \
                 libraries needs the version of the loaded module",
            )
        };
    }
    let companions = kernel_log::rows(messages).filter(|(row, _)| row.kind == Kind::Beside);
    let mut companions: Vec<&Line> = companions.map(|(row, _)| row).collect();
    companions.sort_by_key(|row| still_hangs(row, messages, context).is_none());
    if let Some((first, others)) = companions.split_first() {
        let why = with(&first.why, others);
        let (status, why) = match still_hangs(first, messages, context) {
            Some(sign) => (Verdict::Fail, format!("{why}; {sign}")),
            None => (Verdict::Warn, why),
        };
        return Finding {
            status,
            remedy_class: (!first.hang).then_some(Remedy::Reconfigure),
            // A cause in the finding takes precedence over the table in `causes`. As no finding is its own cause, the warning
            // stays a root cause, also if a GPU has no driver.
            because: (status == Verdict::Warn).then_some(INIT),
            ..failed("a line in the kernel log", why, &first.remedy)
        };
    }
    finding(Verdict::Pass, format!("no failure since boot ({source})"))
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let log = subject.state.kernel_log().await;
    let context = match log {
        KernelLog::Known { .. } => LogContext::of(subject).await?,
        // There are no messages to evaluate.
        KernelLog::Unreadable { .. } | KernelLog::NotQueried { .. } => LogContext {
            gpus: &subject.facts.gpus,
            installs: false,
            guest: false,
            idle: false,
            owner: None,
            driven: Vec::new(),
            recovered: Vec::new(),
            answers: None,
            known: Vec::new(),
        },
    };
    Ok(decide(log, &context))
}

impl<'f> LogContext<'f> {
    pub(super) async fn of(subject: &Subject<'f>) -> Result<Self, StepError> {
        let files = subject.host.files();
        let owner = owner(files, subject.facts)?;
        let found = subject.state.driver().await;
        let there = owner.is_some()
            || files.exists(Utf8Path::new(OPERATOR))?
            || found.module_version.is_some()
            || found.package_version.is_some()
            || found.library_version.is_some();
        let nvml = match subject.state.loaded_driver() {
            Ok(Some(_)) => Some(subject.state.nvml().await),
            _ => None,
        };
        Ok(Self {
            gpus: &subject.facts.gpus,
            installs: (subject.desired).is_some_and(|desired| desired.driver.is_some()),
            guest: (subject.facts.virtualization.as_deref()).is_some_and(|word| word != "none")
                && subject.facts.container().is_none(),
            idle: there && matches!(subject.state.loaded_driver(), Ok(None)),
            owner,
            driven: (subject.facts.gpus.iter())
                .map(|gpu| gpu.pci_address)
                // A GPU whose driver cannot be read is omitted.
                .filter(|at| matches!(subject.state.bound_driver(*at), Ok(Some("nvidia"))))
                .collect(),
            recovered: nvml.map_or_else(Vec::new, health::recovered),
            answers: match nvml {
                Some(Nvml::Ready(_)) => Some(true),
                Some(Nvml::Hung { .. }) => Some(false),
                // A driver that is no longer loaded does not hang.
                None if subject.state.is_of_this_machine()
                    && matches!(subject.state.loaded_driver(), Ok(None)) =>
                {
                    Some(true)
                }
                _ => None,
            },
            known: match (
                &subject.facts.kernel.running,
                subject.state.loaded_driver(),
                subject.state.loaded_flavor(),
            ) {
                (Some(kernel), Ok(Some(version)), Ok(Some(flavor))) => kernel::shown_by_errors(
                    subject.matrix,
                    kernel,
                    &Candidate {
                        version: version.clone(),
                        flavor,
                    },
                ),
                _ => Vec::new(),
            },
        })
    }

    /// Whether the driver reports for each GPU that no recovery action is required.
    fn all_recovered(&self) -> bool {
        !self.gpus.is_empty()
            && (self.gpus.iter()).all(|gpu| self.recovered.contains(&gpu.pci_address))
    }

    /// Whether the driver is bound to another GPU with the same board type.
    fn drives_sibling(&self, at: PciAddress) -> bool {
        let board = |gpu: &GpuFact| (gpu.pci_id, gpu.subsystem_id);
        let Some(own) = self.gpus.iter().find(|gpu| gpu.pci_address == at) else {
            return false;
        };
        (self.gpus.iter()).any(|gpu| {
            gpu.pci_address != at
                && board(gpu) == board(own)
                && self.driven.contains(&gpu.pci_address)
        })
    }

    /// Whether a GPU is at this address.
    fn has(&self, at: PciAddress) -> bool {
        self.gpus.iter().any(|gpu| gpu.pci_address == at)
    }
}

#[cfg(test)]
mod tests {
    use super::{LogContext, decide, reason};
    use crate::{
        check::{Finding, Verdict},
        compat::matrix::Shows,
        facts::{GpuFact, detection::Provides},
        model::findings::Remedy,
        state::KernelLog,
        steps::fixtures,
        tools::kernel_log::{self, Message},
    };

    #[test]
    fn error_warns_if_recovery_action_is_none() {
        let line =
            "NVRM: Xid (PCI:0000:18:00): 48, pid=1, name=python, DBE (double bit error) ECC Error";
        let facts = fixtures::facts();
        let with = |recovered| {
            let context = LogContext {
                recovered,
                ..context(&facts.gpus)
            };
            said_on(&context, line).swap_remove(0)
        };
        assert_eq!(with(Vec::new()).status, Verdict::Fail);
        let neighbour = facts.gpus[1].pci_address;
        assert_eq!(with(vec![neighbour]).status, Verdict::Fail);
        let over = with(vec![facts.gpus[0].pci_address]);
        assert_eq!(over.status, Verdict::Warn);
        assert!(over.why.contains("Xid 48"), "{}", over.why);
    }

    /// Returns the context of a machine without other data than the GPUs.
    fn context(gpus: &[GpuFact]) -> LogContext<'_> {
        LogContext {
            gpus,
            installs: true,
            guest: false,
            idle: false,
            owner: None,
            driven: Vec::new(),
            recovered: Vec::new(),
            answers: None,
            known: Vec::new(),
        }
    }

    fn on(context: &LogContext<'_>, messages: Vec<Message>) -> Vec<Finding> {
        let log = KernelLog::Known {
            messages,
            source: "`journalctl`".to_owned(),
            cut: false,
        };
        decide(&log, context)
    }

    fn of(messages: &[Message]) -> Vec<Finding> {
        on(&context(&[]), messages.to_vec())
    }

    fn said_on(context: &LogContext<'_>, text: &str) -> Vec<Finding> {
        on(context, kernel_log::read(text.lines()))
    }

    fn said(text: &str) -> Vec<Finding> {
        said_on(&context(&fixtures::facts().gpus), text)
    }

    fn xid(code: u32) -> Message {
        Message::Xid {
            gpu: "0000:18:00.0".parse().ok(),
            code,
            nonfatal: false,
        }
    }

    #[test]
    fn verdict_depends_on_the_xid_action() {
        for (messages, verdict, words) in [
            (vec![], Verdict::Pass, "no errors since boot"),
            (vec![xid(43), xid(45)], Verdict::Pass, "Xid 43"),
            (
                vec![xid(31), xid(31)],
                Verdict::Warn,
                "page fault in GPU memory, 2 times",
            ),
            (vec![xid(4711)], Verdict::Warn, "unknown number"),
            (
                vec![xid(31), xid(119)],
                Verdict::Fail,
                "Xid 119 of the GPU at 0000:18:00.0",
            ),
            (vec![xid(79)], Verdict::Fail, "fell off the bus"),
        ] {
            let finding = &of(&messages)[0];
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
            assert_eq!(finding.remedy.is_some(), verdict != Verdict::Pass);
        }
    }

    #[test]
    fn known_driver_bug_replaces_the_application_remedy() {
        let shows = Shows {
            xid: 31,
            remedy: "install another driver".to_owned(),
        };
        let with = |codes: &[u32]| {
            let context = LogContext {
                known: vec![(&shows, "reported of 595.84".to_owned())],
                ..context(&[])
            };
            on(&context, codes.iter().map(|code| xid(*code)).collect()).remove(0)
        };
        let fault = with(&[31, 43]);
        assert_eq!(fault.status, Verdict::Warn);
        assert_eq!(fault.class(), Some(Remedy::Update));
        assert_eq!(fault.remedy.as_deref(), Some("install another driver"));
        assert!(fault.why.ends_with("; reported of 595.84"), "{}", fault.why);
        // Other errors are not explained by this bug.
        for codes in [&[119][..], &[31, 119]] {
            let other = with(codes);
            assert_eq!(other.status, Verdict::Fail);
            assert_ne!(other.remedy.as_deref(), Some("install another driver"));
        }
    }

    #[test]
    fn strongest_action_determines_the_remedy() {
        let advice = |to: &str| {
            format!(
                "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to {to}\n"
            )
        };
        let fault = "NVRM: Xid (PCI:0000:18:00): 31, pid=1\n";
        let memory = "NVRM: Xid (PCI:0000:18:00): 95, pid=1\n";
        for (text, verdict, why, remedy) in [
            (
                format!("{fault}{}", advice("0x2 (Node Reboot Required)")),
                Verdict::Fail,
                "the driver recommends a reboot (Xid 154 of the GPU at 0000:18:00.0); Xid 31",
                "reboot after draining the node",
            ),
            (
                format!("{fault}{}", advice("0x1 (GPU Reset Required)")),
                Verdict::Fail,
                "the driver recommends a GPU reset",
                "--gpu-reset",
            ),
            (
                advice("0x3 (Drain P2P)"),
                Verdict::Warn,
                "stopping the programs",
                "restart the application",
            ),
            (
                format!("{}{memory}", advice("0x0 (None)")),
                Verdict::Fail,
                "Xid 95",
                "--gpu-reset",
            ),
        ] {
            let finding = said(&text).remove(0);
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(why), "{}", finding.why);
            assert!(finding.remedy.unwrap_or_default().contains(remedy));
        }
    }

    #[test]
    fn recovery_action_none_requires_confirmation_by_nvml() {
        let facts = fixtures::facts();
        let advice = |to: &str| {
            format!(
                "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to {to}\n"
            )
        };
        let memory = "NVRM: Xid (PCI:0000:18:00): 95, pid=1\n";
        let fault = "NVRM: Xid (PCI:0000:18:00): 31, pid=1\n";
        let (reset, nothing) = (advice("0x1 (GPU Reset Required)"), advice("0x0 (None)"));
        let own = vec![facts.gpus[0].pci_address];
        let neighbour = vec![facts.gpus[1].pci_address];
        let unconfirmed =
            "a later Xid 154 reports that no action is required, but NVML does not confirm it";
        for (text, recovered, verdict, words) in rows! {
            format!("{memory}{reset}{nothing}"), own.clone(), Verdict::Pass, "Xid 95";
            format!("{fault}{nothing}"), own, Verdict::Pass, "Xid 31";
            format!("{memory}{nothing}"), vec![], Verdict::Fail, unconfirmed;
            format!("{memory}{nothing}"), neighbour, Verdict::Fail, unconfirmed;
            format!("{fault}{nothing}"), vec![], Verdict::Warn, unconfirmed;
            // The earlier recommendation remains valid.
            format!("{reset}{nothing}"), vec![], Verdict::Fail, "recommends a GPU reset";
            nothing.clone(), vec![], Verdict::Pass, "recommends no action";
        } {
            let context = LogContext {
                recovered,
                ..context(&facts.gpus)
            };
            let finding = said_on(&context, &text).remove(0);
            assert_eq!(finding.status, verdict, "{text}: {}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
        }
        // The recommendation does not apply to a later error.
        let again = said(&format!("{memory}{nothing}{memory}")).remove(0);
        assert!(!again.why.contains(unconfirmed), "{}", again.why);
    }

    #[test]
    fn user_text_cannot_forge_or_hide_errors() {
        let forged = "overlayfs: failed to resolve '/x NVRM: Xid (PCI:0000:18:00): 79 GPU has fallen off the bus.': -2\n";
        let hiding = "overlayfs: failed to resolve '/x NVRM: Xid (PCI:0000:18:00): 154 GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)': -2\n";
        let none = said("");
        assert_eq!(said(&format!("{forged}{hiding}")), none);
        let real =
            "NVRM: Xid (PCI:0000:18:00): 48, pid=1, name=x, DBE (double bit error) ECC Error\n";
        let with = said(&format!("{real}{hiding}"));
        assert_eq!(with, said(real));
        assert_eq!(with[0].status, Verdict::Fail);
    }

    #[test]
    fn truncated_log_is_unknown() {
        let facts = fixtures::facts();
        let of = |messages: &str| {
            let log = KernelLog::Known {
                messages: kernel_log::read(messages.lines()),
                source: "`journalctl`".to_owned(),
                cut: true,
            };
            decide(&log, &context(&facts.gpus))
        };
        let findings = of("");
        assert_eq!(findings.len(), 4);
        assert!((findings.iter()).all(|finding| finding.status == Verdict::Unknown));
        let failed = of("NVRM: Xid (PCI:0000:18:00): 79, pid=1\n").remove(0);
        assert_eq!(failed.status, Verdict::Fail);
    }

    #[test]
    fn fatal_nvlink_5_errors_reset_all_gpus() {
        let line = |word: &str| {
            format!("NVRM: Xid (PCI:0000:18:00): 149, NETIR_LINK_EVT {word} XC0 i0 Link 08\n")
        };
        let fatal = said(&line("Fatal")).remove(0);
        assert_eq!(fatal.status, Verdict::Fail);
        assert!(fatal.remedy.unwrap().contains("all its GPUs at once"));
        assert_eq!(said(&line("Nonfatal")).remove(0).status, Verdict::Pass);
    }

    #[test]
    fn cause_without_its_own_line_counts() {
        // NVIDIA/open-gpu-kernel-modules issue 1150.
        let line = "NVRM: Xid (PCI:0000:18:00): 45, pid=7, name=python3, Ch 00000001 caused by previous Xid 149\n";
        let finding = said(&line.repeat(2)).remove(0);
        assert_eq!(finding.status, Verdict::Fail);
        assert!(
            finding
                .why
                .starts_with("Xid 149 of the GPU at 0000:18:00.0 (NVLink error, NETIR)"),
            "{}",
            finding.why
        );
        // If the error has its own line, only this line determines the severity.
        let own = "NVRM: Xid (PCI:0000:18:00): 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 08\n";
        assert_eq!(
            said(&format!("{own}{line}")).remove(0).status,
            Verdict::Pass
        );
    }

    #[test]
    fn required_reset_without_xid_fails() {
        // kubernetes-sigs/dra-driver-nvidia-gpu issue 982.
        let line = "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned\n";
        let finding = said(line).remove(0);
        assert_eq!(finding.status, Verdict::Fail);
        assert!(finding.why.contains("until it is reset"), "{}", finding.why);
        assert!(finding.remedy.unwrap().contains("--gpu-reset"));
        // An error that requires a stronger action comes first.
        let lost = format!("{line}NVRM: Xid (PCI:0000:18:00): 79, pid=1\n");
        assert!(said(&lost).remove(0).why.starts_with("Xid 79"));
        let facts = fixtures::facts();
        let context = LogContext {
            recovered: facts.gpus.iter().map(|gpu| gpu.pci_address).collect(),
            ..context(&facts.gpus)
        };
        assert_eq!(said_on(&context, line).remove(0).status, Verdict::Pass);
    }

    #[test]
    fn remedy_in_a_guest_is_on_the_host() {
        let facts = fixtures::facts();
        let said = |text: &str| {
            let context = LogContext {
                guest: true,
                ..context(&facts.gpus)
            };
            said_on(&context, text).remove(3)
        };
        let down = said("NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x22:0x56:763)\n");
        let remedy = down.remedy.unwrap();
        assert!(
            remedy.contains("on the host") && !remedy.contains("seat"),
            "{remedy}"
        );
        let unknown = said(
            "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2330)\nNVRM: installed in this system is not supported by the\n",
        );
        assert!(unknown.why.contains("vGPU"), "{}", unknown.why);
        assert!(unknown.remedy.unwrap().contains("GRID"));
    }

    #[test]
    fn unsupported_gpu_with_supported_sibling_is_broken() {
        // NVIDIA/aicr issue 1858.
        let facts = fixtures::facts();
        let text = "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2330)\nNVRM: installed in this system is not supported by the\n";
        let with = |driven| {
            let context = LogContext {
                guest: true,
                driven,
                ..context(&facts.gpus)
            };
            said_on(&context, text).remove(3)
        };
        let broken = with(vec![facts.gpus[1].pci_address]);
        assert!(broken.why.contains("GPU is broken"), "{}", broken.why);
        let remedy = broken.remedy.unwrap();
        assert!(
            remedy.contains("replace the GPU") && !remedy.contains("GRID"),
            "{remedy}"
        );
        assert!(with(Vec::new()).why.contains("vGPU"));
        // The GPU is now bound to the driver, so an earlier driver logged the line.
        let all = facts.gpus.iter().map(|gpu| gpu.pci_address).collect();
        assert_eq!(with(all).status, Verdict::Pass);
    }

    #[test]
    fn row_remapping_failure_may_require_another_gpu() {
        // awslabs/awsome-distributed-ai pull request 1190.
        let remedy = |codes: &[u32]| {
            let messages: Vec<Message> = codes.iter().map(|code| xid(*code)).collect();
            of(&messages).remove(0).remedy.unwrap()
        };
        assert!(remedy(&[48, 64]).contains("replace the GPU"));
        assert!(!remedy(&[48, 63]).contains("replace the GPU"));
        assert!(!remedy(&[64, 79]).contains("replace the GPU"));
    }

    #[test]
    fn api_mismatch_contains_the_library_version() {
        for text in [
            "NVRM: API mismatch: the client has the version 570.148.08, but\n",
            "NVRM: API mismatch: the client 'python' (pid 7)\nNVRM: has the version 570.148.08, but this kernel module has\n",
        ] {
            let finding = said(text).remove(3);
            assert_eq!(finding.status, Verdict::Warn);
            assert!(finding.why.contains("(570.148.08)"), "{}", finding.why);
        }
    }

    #[test]
    fn fatal_uvm_error_without_xid_fails() {
        // NVIDIA/open-gpu-kernel-modules issue 1342.
        let line = "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.\n";
        let finding = said(line).remove(0);
        assert_eq!(finding.status, Verdict::Fail);
        assert!(finding.why.starts_with("CUDA does not start on any GPU"));
        assert!(finding.remedy.unwrap().starts_with("reboot after draining"));
        // An error that requires a weaker action is listed after it.
        let fault = format!("{line}NVRM: Xid (PCI:0000:18:00): 31, pid=1\n");
        assert!(
            said(&fault)
                .remove(0)
                .why
                .starts_with("CUDA does not start on any GPU")
        );
        let lost = format!("{line}NVRM: Xid (PCI:0000:18:00): 79, pid=1\n");
        assert!(said(&lost).remove(0).why.starts_with("Xid 79"));
    }

    #[test]
    fn driver_crash_requires_a_reboot() {
        // NVIDIA/k8s-device-plugin issue 941.
        let line = "general protection fault: 0000 [#1] SMP NOPTI\nRIP: 0010:uvm_thread_context_remove+0x39/0x50 [nvidia_uvm]\n";
        let finding = said(line).remove(3);
        assert_eq!(finding.status, Verdict::Fail);
        assert!(
            finding.why.contains("module `nvidia_uvm`"),
            "{}",
            finding.why
        );
        assert!(finding.remedy.unwrap().starts_with("reboot after draining"));
    }

    #[test]
    fn lost_gpu_without_address_warns() {
        // NVIDIA/open-gpu-kernel-modules issue 688.
        let line = "NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned from rmStatus @ kernel_ce_gv100.c:106\n";
        let finding = said(line).remove(2);
        assert_eq!(finding.status, Verdict::Warn);
        assert!(finding.remedy.unwrap().contains("nvidia-smi"));
        let fell = format!("{line}NVRM: Xid (PCI:0000:18:00): 79, pid=1\n");
        assert_eq!(said(&fell).remove(2).status, Verdict::Fail);
    }

    #[test]
    fn errors_outside_the_gpus_warn() {
        let hung = "INFO: task nvidia-smi:4711 blocked for more than 122 seconds.\n";
        assert_eq!(said(hung).remove(3).status, Verdict::Warn);
        let line = "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)\n";
        let finding = said(line).remove(3);
        assert_eq!(finding.status, Verdict::Warn);
        assert!(finding.why.contains("GPUDirect RDMA"), "{}", finding.why);
        let failed = "NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x24:0x1c:1436)\n";
        assert_eq!(
            said(&format!("{line}{failed}")).remove(3).status,
            Verdict::Fail
        );
    }

    #[test]
    fn faulty_memory_comes_before_errors_of_applications() {
        for (codes, first, remedy) in rows! {
            [31, 94], "Xid 94", "restart the application";
            [13, 31], "Xid 13", "restart the application";
            [46, 95], "Xid 95", "run `nvidia-smi --gpu-reset`";
            [31, 43], "Xid 31", "restart the application and look for an invalid memory access";
        } {
            let finding = of(&codes.map(xid)).remove(0);
            assert!(finding.why.starts_with(first), "{}", finding.why);
            let told = finding.remedy.unwrap();
            assert!(told.starts_with(remedy), "{told}");
        }
    }

    #[test]
    fn fatal_sxid_requires_a_reset_of_all_gpus() {
        let sxid = |fatal| Message::SXid {
            switch: None,
            code: 24007,
            fatal: Some(fatal),
        };
        for (fatal, remedy, class) in rows! {
            true, "reboot after draining the node", Remedy::Reboot;
            false, "run `nvidia-smi --gpu-reset`", Remedy::ResetGpu;
        } {
            // The NVSwitch error is not regarded as the cause, because the Xid precedes it.
            let finding = of(&[xid(119), sxid(fatal)]).remove(0);
            let told = finding.remedy.expect("a remedy");
            assert!(told.starts_with(remedy), "{told}");
            assert_eq!(finding.remedy_class, Some(class));
        }
    }

    #[test]
    fn sxid_line_determines_the_severity() {
        let line = |code: u32, word: &str| {
            format!("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {code}, {word}, Link 30 LTSSM\n")
        };
        for (text, verdict, words) in [
            (String::new(), Verdict::Pass, "no errors since boot"),
            (
                line(12028, "Non-fatal"),
                Verdict::Warn,
                "SXid 12028 of the NVSwitch at 0000:c1:00.0 (non-fatal)",
            ),
            // The first line of the error is not in the log: leptonai/gpud pull request 338.
            (
                line(12028, "Data {0x00000001, 0x10000c10}"),
                Verdict::Warn,
                "SXid 12028 of the NVSwitch at 0000:c1:00.0 (severity unknown)",
            ),
            (
                format!(
                    "{}{}",
                    line(12028, "Data {0x00000001"),
                    line(20034, "Fatal")
                ),
                Verdict::Fail,
                "SXid 20034 of the NVSwitch at 0000:c1:00.0 (fatal)",
            ),
            // Detail lines are not counted as errors: NVIDIA/nvtrust issue 124.
            (
                format!(
                    "{}{}{}",
                    line(22013, "Non-fatal"),
                    line(22013, "Severity 0 Engine instance 44"),
                    line(22013, "Data {0x0000002c")
                ),
                Verdict::Warn,
                "SXid 22013 of the NVSwitch at 0000:c1:00.0 (non-fatal)",
            ),
            (
                format!("{}{}", line(12028, "Non-fatal"), line(20034, "Fatal")),
                Verdict::Fail,
                "SXid 20034 of the NVSwitch at 0000:c1:00.0 (fatal)",
            ),
        ] {
            let finding = said(&text).remove(1);
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
        }
    }

    #[test]
    fn finding_contains_gpus_that_fell_off_the_bus() {
        assert_eq!(of(&[xid(31)])[2].status, Verdict::Pass);
        for message in [
            xid(79),
            Message::FellOffBus {
                gpu: "0000:18:00.0".parse().ok(),
            },
        ] {
            let finding = of(&[message]).remove(2);
            assert_eq!(finding.status, Verdict::Fail);
            assert_eq!(
                finding.why,
                "the GPU at 0000:18:00.0 fell off the bus since boot"
            );
        }
    }

    #[test]
    fn failed_start_has_a_reason() {
        let failed = Message::NotStarted { gpu: None };
        for (messages, verdict, words) in [
            (vec![], Verdict::Pass, "no failure"),
            (vec![failed.clone()], Verdict::Fail, "failed to start a GPU"),
            (
                vec![failed.clone(), Message::NeedsOpen { gpu: None }],
                Verdict::Fail,
                "requires the open kernel modules",
            ),
            (
                vec![Message::NeedsProprietary { gpu: None }],
                Verdict::Fail,
                "no GPU System Processor",
            ),
            (
                vec![
                    Message::ProbeFailed { gpu: None },
                    Message::Legacy {
                        gpu: None,
                        branch: 470,
                    },
                ],
                Verdict::Fail,
                "only branch 470 supports",
            ),
            (
                vec![
                    failed.clone(),
                    Message::NoFirmware {
                        file: None,
                        code: None,
                    },
                ],
                Verdict::Fail,
                "firmware",
            ),
            (
                vec![Message::ProbeFailed { gpu: None }],
                Verdict::Fail,
                "the driver rejected a GPU",
            ),
            (
                vec![Message::OtherVersion { libraries: None }],
                Verdict::Warn,
                "different version",
            ),
        ] {
            let finding = of(&messages).remove(3);
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
        }
    }

    #[test]
    fn log_table_explains_a_failed_start() {
        let failed = "NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x24:0x1c:1436)\n";
        for (line, why, remedy) in [
            (
                "NVRM: GPU 0000:18:00.0: GPU does not have the necessary power cables connected.\n",
                "failed to start the GPU at 0000:18:00.0: power cables are not connected",
                "connect all power cables",
            ),
            (
                "NVRM: Xid (PCI:0000:18:00): 78, pid=7, name=nvidia-smi, Guest driver is incompatible with host driver\n",
                "the vGPU guest driver is incompatible with the vGPU software of the host",
                "GRID",
            ),
            (
                "NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP\n",
                "a state that requires a reset",
                "systemctl poweroff",
            ),
            (
                "NVRM: kgspBootstrap_GH100: GSP-FMC reported an error while attempting to boot GSP: 0xb\n",
                "the GPU system processor (GSP) did not start",
                "systemctl poweroff",
            ),
            (
                "pci 0000:18:00.0: Unable to change power state from D3cold to D0, device inaccessible\n",
                "the GPU does not respond after it was powered down to save power",
                "systemctl poweroff",
            ),
            (
                "nvidia 0000:18:00.0: swiotlb buffer is full (sz: 524288 bytes)\n",
                "too small (swiotlb)",
                "larger `swiotlb=`",
            ),
            ("", "failed to start the GPU at 0000:18:00.0", "reboot"),
            // A line about another device is ignored.
            (
                "pci 0000:99:00.0: Unable to change power state from D3cold to D0, device inaccessible\n",
                "failed to start the GPU at 0000:18:00.0",
                "reboot",
            ),
        ] {
            let finding = said(&format!("{line}{failed}")).remove(3);
            assert_eq!(finding.status, Verdict::Fail, "{line}");
            assert!(finding.why.ends_with(why), "{}", finding.why);
            assert!(
                finding.remedy.is_some_and(|text| text.contains(remedy)),
                "{line}"
            );
            // Without a failed start, the line is ignored.
            assert_eq!(said(line).remove(3).status, Verdict::Pass, "{line}");
        }
    }

    #[test]
    fn hang_fails_if_repeated_or_confirmed_by_nvml() {
        let facts = fixtures::facts();
        let task = "INFO: task nvidia-smi:4711 blocked for more than 122 seconds.\n";
        let lockup = "watchdog: BUG: soft lockup - CPU#20 stuck for 26s! [UVM GPU1 BH:6142]\n";
        let peers = "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)\n";
        for (text, answers, verdict, words) in rows! {
            task.to_owned(), None, Verdict::Warn, "hung, or still hangs";
            task.to_owned(), Some(false), Verdict::Fail, "NVML also hangs now";
            task.repeat(2), None, Verdict::Fail, "2 such lines in the log";
            task.repeat(2), Some(true), Verdict::Warn, "hung, or still hangs";
            lockup.to_owned(), None, Verdict::Warn, "it hung, or the hypervisor";
            lockup.repeat(3), None, Verdict::Fail, "3 such lines in the log";
            // Other rows never fail, and come after a row that fails.
            peers.repeat(2), None, Verdict::Warn, "GPUDirect RDMA";
            peers.to_owned(), Some(false), Verdict::Warn, "GPUDirect RDMA";
            format!("{peers}{lockup}"), Some(false), Verdict::Fail, "it hung, or the hypervisor paused this machine; also: ";
        } {
            let context = LogContext {
                answers,
                ..context(&facts.gpus)
            };
            let finding = said_on(&context, &text).remove(3);
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
        }
    }

    #[test]
    fn first_matching_row_is_the_cause() {
        let started = said(
            "NVRM: kgspBootstrap_GH100: GSP-FMC reported an error while attempting to boot GSP: 0xb\n\
             NVRM: GPU 0000:18:00.0: GPU does not have the necessary power cables connected.\n\
             NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x24:0x1c:1436)\n",
        )
        .remove(3);
        assert_eq!(
            started.why,
            "the driver failed to start the GPU at 0000:18:00.0: power cables are not connected; also: the GPU \
             system processor (GSP) did not start"
        );
        assert!(started.remedy.unwrap().contains("power cables"));
        let companions = said(
            "INFO: task nvidia-smi:4711 blocked for more than 122 seconds.\n\
             nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)\n",
        )
        .remove(3);
        assert_eq!(companions.status, Verdict::Warn);
        let (first, second) = companions.why.split_once("; also: ").unwrap();
        assert!(first.contains("GPUDirect RDMA"), "{first}");
        assert!(second.contains("blocked in the kernel"), "{second}");
    }

    #[test]
    fn rejected_module_counts_if_none_is_loaded() {
        let facts = fixtures::facts();
        let rejected = kernel_log::read(["Loading of module with unavailable key is rejected"]);
        let context = |idle| LogContext {
            idle,
            ..context(&facts.gpus)
        };
        let reason = reason(&rejected, &context(true)).unwrap();
        assert!(reason.why.contains("Secure Boot"), "{}", reason.why);
        assert!(reason.remedy.contains("mokutil"), "{}", reason.remedy);
        assert_eq!(super::reason(&rejected, &context(false)), None);
        // The driver of the GPU Operator is not built on the host. Both lines have the same cause.
        let lines = kernel_log::read([
            "nvidia: disagrees about version of symbol sme_me_mask",
            "nvidia: Unknown symbol sme_me_mask (err -22)",
        ]);
        let owned = LogContext {
            owner: Some(crate::state::Owner {
                name: crate::state::GPU_OPERATOR,
                evidence: String::new(),
                provides: Provides {
                    fabric_manager: true,
                    container_runtime: false,
                },
                on_host: false,
                why: "",
                remedy: "",
            }),
            ..context(true)
        };
        for (context, words) in [(context(true), "dkms autoinstall"), (owned, "driver image")] {
            let reason = super::reason(&lines, &context).unwrap();
            assert!(!reason.why.contains("also: "), "{}", reason.why);
            assert!(reason.remedy.contains(words), "{}", reason.remedy);
        }
    }

    #[test]
    fn bus_errors_of_other_devices_are_ignored() {
        for (line, verdict, words) in [
            (
                "nvidia 0000:18:00.0: AER: can't recover (no error_detected callback)",
                Verdict::Warn,
                "an error at or above the GPU at 0000:18:00.0",
            ),
            (
                "nvidia 0000:18:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x8]",
                Verdict::Warn,
                "the IOMMU denied accesses by the GPU at 0000:18:00.0",
            ),
            (
                "snd_hda_intel 0000:18:00.1: AER: can't recover (no error_detected callback)",
                Verdict::Pass,
                "no errors since boot",
            ),
        ] {
            let finding = said(line).remove(2);
            assert_eq!(finding.status, verdict, "{line}");
            assert!(finding.why.contains(words), "{}", finding.why);
            assert_eq!(finding.remedy.is_some(), verdict != Verdict::Pass);
        }
    }

    #[test]
    fn unreadable_firmware_is_not_reported_as_missing() {
        let line = |code| {
            format!(
                "nvidia 0000:18:00.0: Direct firmware load for nvidia/570.172.08/gsp_ga10x.bin failed with error -{code}"
            )
        };
        let why = |code| said(&line(code)).remove(3).why;
        assert!(why(2).contains("does not exist"), "{}", why(2));
        assert!(why(4).contains("could not be read (error 4)"), "{}", why(4));
        let owner = crate::state::Owner {
            name: "NVIDIA's GPU Operator",
            evidence: String::new(),
            provides: Provides::default(),
            on_host: false,
            why: "",
            remedy: "",
        };
        let context = LogContext {
            installs: false,
            owner: Some(owner),
            ..context(&[])
        };
        let messages = kernel_log::read([line(2).as_str()]);
        let refusal = super::refusal(&messages, &context).unwrap().fault;
        assert!(
            refusal.remedy.contains("GPU Operator"),
            "{}",
            refusal.remedy
        );
        assert!(!refusal.remedy.contains("package"), "{}", refusal.remedy);
    }

    #[test]
    fn flavor_message_contradicting_the_board_means_unreadable_registers() {
        // The GPUs of the fixture are H100, which have a GSP.
        let text = "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2330)\nNVRM: nvidia.ko because it does \
                    not include the required GPU\n";
        let finding = said(text).remove(3);
        assert_eq!(finding.status, Verdict::Fail);
        assert!(
            finding.why.contains("contradicts the board"),
            "{}",
            finding.why
        );
        assert!(!finding.remedy.unwrap().contains("driver.flavor"));
        // BARs of other devices are ignored.
        let text = "pci 0000:99:00.0: BAR 1: no space for [mem size 0x10]\n";
        assert_eq!(said(text).remove(3).status, Verdict::Pass);
        let text = "pci 0000:18:00.0: BAR 1: no space for [mem size 0x10]\n";
        let finding = said(text).remove(3);
        assert!(
            finding
                .why
                .contains("BAR1 of the GPU at 0000:18:00.0 is unassigned"),
            "{}",
            finding.why
        );
    }

    #[test]
    fn unreadable_log_does_not_pass() {
        for (log, verdict) in [
            (
                KernelLog::NotQueried {
                    why: "a tree".to_owned(),
                },
                Verdict::Skip,
            ),
            (
                KernelLog::Unreadable {
                    why: "not permitted".to_owned(),
                },
                Verdict::Unknown,
            ),
        ] {
            let findings = decide(&log, &context(&[]));
            assert_eq!(findings.len(), 4);
            assert!(findings.iter().all(|finding| finding.status == verdict));
        }
    }
}
