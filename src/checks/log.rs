//! The family of the kernel's log: what NVIDIA's driver wrote there since the machine booted.

use std::collections::BTreeMap;

use async_trait::async_trait;
use camino::Utf8Path;

use super::{health, virt, words};
use crate::{
    check::{Check, Finding, Subject, Verdict},
    compat::{kernel, matrix::Shows, ruling::Offer},
    facts::GpuFact,
    host::Nvml,
    model::{
        findings::Remedy,
        gpu::{Flavour, SupportedFlavours},
        id::Id,
        pci::PciAddress,
    },
    state::{KernelLog, Owner, owner},
    step::StepError,
    tools::{
        kernel_log::{self, Kind, Line, Message, Recovery},
        xid::{self, XidAction},
    },
};

const XID: Id = Id::new("log.xid");
const FELL: Id = Id::new("log.fell-off-bus");
const INIT: Id = Id::new("log.rm-init");
const SXID: Id = Id::new("log.sxid");

/// A folder that the GPU Operator makes on every node, also where its driver was not loaded (NVIDIA/gpu-operator issue 1726).
const OPERATOR: &str = "/run/nvidia/validations";

const CATALOGUE: &str = "https://docs.nvidia.com/deploy/xid-errors/index.html";

/// See the module.
pub struct LogCheck;

/// What is known about the machine, for judging lines of the log.
#[derive(Debug, Clone)]
pub(super) struct LogContext<'f> {
    /// The GPUs on the bus.
    gpus: &'f [GpuFact],
    /// This program can install a driver here.
    installs: bool,
    /// It is a virtual machine.
    guest: bool,
    /// A driver is installed, or somebody brings one, but none is loaded.
    idle: bool,
    /// Who manages the driver, if another program does.
    owner: Option<Owner>,
    /// The GPUs that the driver has.
    driven: Vec<PciAddress>,
    /// GPUs for which the driver now reports that it asks for nothing (`gpu.recovery-action`).
    recovered: Vec<PciAddress>,
    /// Whether NVML answers now, or hangs; `None` if it cannot be asked.
    answers: Option<bool>,
    /// Errors by which known faults of the loaded driver on this kernel show, each with what was reported.
    known: Vec<(&'f Shows, String)>,
}

fn decide(log: &KernelLog, context: &LogContext<'_>) -> Vec<Finding> {
    let all = |status, why: &str| {
        let one = |id: Id| Finding::new(id.clone(), status, why);
        [XID, SXID, FELL, INIT].map(one).to_vec()
    };
    match log {
        KernelLog::NotAsked { why } => all(Verdict::Skip, why),
        KernelLog::Unreadable { why } => all(
            Verdict::Unknown,
            &format!("the kernel's log cannot be read: {why}"),
        ),
        KernelLog::Known {
            messages,
            source,
            cut,
        } => {
            let mut findings = vec![
                xids(messages, source, context),
                sxids(messages, source),
                fallen(messages, source, context),
                init(messages, source, context),
            ];
            // A user who floods the log hides no error.
            for finding in findings.iter_mut().filter(|_| *cut) {
                if finding.status == Verdict::Pass {
                    let why =
                        format!("{source} has more messages than are read: its middle is unknown");
                    *finding = Finding::new(finding.id.clone(), Verdict::Unknown, why);
                }
            }
            findings
        }
    }
}

/// Returns text such as ` of the GPU at 0000:18:00.0`; empty if the line names no GPU.
fn of_gpu(gpu: Option<PciAddress>) -> String {
    gpu.map_or(String::new(), |gpu| format!(" of the GPU at {gpu}"))
}

/// Returns the action that the driver's own advice (Xid 154) asks for.
fn action_of(action: Recovery) -> XidAction {
    match action {
        Recovery::None | Recovery::Imex => XidAction::None,
        Recovery::DrainPeers => XidAction::RestartApp,
        Recovery::Reset | Recovery::DrainAndReset | Recovery::BusReset => XidAction::ResetGpu,
        Recovery::Reboot => XidAction::Reboot,
    }
}

/// The errors of one number on one GPU.
#[derive(Debug)]
struct Error {
    code: u32,
    gpu: Option<PciAddress>,
    count: usize,
    action: XidAction,
    /// The driver now reports that it asks for nothing more on this GPU.
    over: bool,
    /// A later Xid 154 asks for nothing more on this GPU, but NVML does not confirm that.
    unconfirmed: bool,
}

/// Returns the errors, sorted by number. Xid 154 is the driver's own advice and overrides the table: if it asks for
/// nothing, and NVML confirms that for this GPU (`recovered`), the errors before it on that GPU ask for nothing either.
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
                    // An earlier advice counts, too, until NVML confirms this one.
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

/// The Xid with which the driver itself says what the GPU needs.
const RECOVERY: u32 = 154;
/// The Xid of a row of memory that could not be replaced by a spare one.
const NO_SPARE_ROW: u32 = 64;
const ROW_NOT_REPLACED: &str = "drain the node and reset the GPU; if `nvidia-smi -q -d ROW_REMAPPER` then says that a remapping \
                                failed, have the GPU replaced";

/// Returns in words what the driver asks for.
fn asks(action: XidAction) -> &'static str {
    match action {
        XidAction::None => "nothing more",
        XidAction::RestartApp => "a stop of the programs that use it",
        XidAction::Reboot => "a reboot of the machine",
        _ => "a reset of the GPU",
    }
}

fn told(error: &Error) -> String {
    let Error {
        code, gpu, count, ..
    } = error;
    let later = match error.unconfirmed {
        true => "; a later Xid 154 asks for nothing more, which NVML does not confirm",
        false => "",
    };
    if *code == RECOVERY {
        return format!(
            "the driver asks for {} (Xid 154{}){later}",
            asks(error.action),
            of_gpu(*gpu)
        );
    }
    let what = xid::of(*code).map_or("not in our table", |xid| &xid.what);
    let times = match count {
        1 => String::new(),
        count => format!(", {count} times"),
    };
    format!("Xid {code}{} ({what}{times}){later}", of_gpu(*gpu))
}

fn xids(messages: &[Message], source: &str, context: &LogContext<'_>) -> Finding {
    let mut errors = errors(messages, &context.recovered);
    // The log is history: what the driver reports now overrides it. But a row that could not be replaced stays
    // broken.
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
    let over = errors.iter().any(|error| error.over);
    let demand = if context.all_recovered() {
        None
    } else if messages.contains(&Message::RebootRequired) {
        Some(XidAction::Reboot)
    } else if messages.contains(&Message::ResetRequired) {
        Some(XidAction::ResetGpu)
    } else {
        None
    };
    let say = |status, why: String| Finding {
        links: vec![CATALOGUE.to_owned()],
        ..Finding::new(XID, status, why)
    };
    if errors.is_empty() && demand.is_none() {
        return Finding::new(
            XID,
            Verdict::Pass,
            format!("none since boot, says {source}"),
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
    // A demand without a number is left out if an error with a number asks for as much: that one says more.
    let demand = demand.filter(|action| asked < *action);
    let worst = demand.unwrap_or(asked);
    let unknown = |error: &Error| xid::of(error.code).is_none();
    let any_unknown = errors.iter().any(unknown);
    // The most severe error comes first. If any error asks for an action, known errors that ask for none are left
    // out.
    errors.sort_by_key(|error| std::cmp::Reverse((error.action, error.code == RECOVERY)));
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
            "CUDA starts on no GPU until a reboot: the driver's manager of memory (UVM) met a fatal error",
            "`uvm encountered global fatal error`",
        ),
        _ => (
            "the driver refuses work on a GPU until it is reset (`NV_ERR_RESET_REQUIRED`)",
            "`NV_ERR_RESET_REQUIRED`",
        ),
    };
    if demand.is_some() {
        told.insert(0, demanded.to_owned());
    }
    let (status, remedy) = match worst {
        XidAction::None if any_unknown => (
            Verdict::Warn,
            "look up the number in NVIDIA's catalogue of Xid errors",
        ),
        XidAction::None if over => (
            Verdict::Warn,
            "nothing now: the driver asks for nothing more (`gpu.recovery-action`); if the error comes again, ask the \
             vendor of the hardware",
        ),
        XidAction::None => return say(Verdict::Pass, told.join("; ")),
        XidAction::RestartApp => (Verdict::Warn, "start the application again"),
        // Only Xid 78 asks for an update: the guest driver of a vGPU does not fit its host.
        XidAction::Update => (Verdict::Warn, virt::GRID_DRIVER),
        XidAction::ContactSupport => (Verdict::Warn, "run `nvidia-bug-report.sh` and ask NVIDIA"),
        XidAction::ResetGpu => (Verdict::Fail, words::RESET),
        XidAction::ResetFabric => (
            Verdict::Fail,
            "drain the node, then reboot it, or reset all its GPUs at once with `nvidia-smi \
             --gpu-reset`; if the error comes again, ask the vendor of the hardware",
        ),
        XidAction::Reboot => (
            Verdict::Fail,
            "drain the node, then reboot it; if the error comes again, ask the vendor of the \
             hardware",
        ),
        XidAction::CheckMechanics => (
            Verdict::Fail,
            "check the power cables and the seat of the GPU",
        ),
        XidAction::RestartMachine => (Verdict::Fail, words::POWER),
    };
    // A fault of this driver on this kernel explains the error better than the program does that met it.
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
            (class(worst), ROW_NOT_REPLACED)
        }
        None => (class(worst), remedy),
    };
    Finding {
        remedy_class: Some(class),
        observed: Some(match codes.is_empty() {
            true => line.to_owned(),
            false => format!("Xid {}", codes.join(", ")),
        }),
        expected: Some("none".to_owned()),
        remedy: Some(remedy.to_owned()),
        ..say(status, told.join("; "))
    }
}

/// Returns the remedy class of an action.
fn class(action: XidAction) -> Remedy {
    match action {
        XidAction::None => Remedy::None,
        XidAction::RestartApp => Remedy::RestartApp,
        XidAction::Update => Remedy::Update,
        XidAction::ContactSupport => Remedy::ContactSupport,
        XidAction::ResetGpu => Remedy::ResetGpu,
        XidAction::ResetFabric | XidAction::Reboot => Remedy::Reboot,
        XidAction::CheckMechanics => Remedy::CheckMechanics,
        XidAction::RestartMachine => Remedy::PowerCycle,
    }
}

/// Returns the finding about errors of `NVSwitches` (SXid). Each line says whether its error is fatal.
fn sxids(messages: &[Message], source: &str) -> Finding {
    let say = |status, why: String| Finding::new(SXID, status, why);
    let mut counts: BTreeMap<(bool, u32, Option<PciAddress>), usize> = BTreeMap::new();
    for message in messages {
        if let Message::SXid {
            switch,
            code,
            fatal,
        } = message
        {
            *counts.entry((!*fatal, *code, *switch)).or_default() += 1;
        }
    }
    let Some(((mild, ..), _)) = counts.first_key_value() else {
        return say(Verdict::Pass, format!("none since boot, says {source}"));
    };
    let told: Vec<String> = (counts.iter())
        .filter(|((nonfatal, ..), _)| *mild || !nonfatal)
        .map(|((nonfatal, code, switch), count)| {
            let kind = if *nonfatal { "non-fatal" } else { "fatal" };
            let place = switch.map_or(String::new(), |at| format!(" of the NVSwitch at {at}"));
            let times = match count {
                1 => String::new(),
                count => format!(", {count} times"),
            };
            format!("SXid {code}{place} ({kind}{times})")
        })
        .collect();
    let (status, remedy) = if *mild {
        (
            Verdict::Warn,
            "nothing now; if they come again and again, ask the vendor of the hardware",
        )
    } else {
        (
            Verdict::Fail,
            "drain the node, then reboot it: GPUs and NVSwitches must be reset together; if the error comes \
             again, ask the vendor of the hardware",
        )
    };
    Finding {
        expected: Some("none".to_owned()),
        remedy: Some(remedy.to_owned()),
        ..say(status, told.join("; "))
    }
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

/// Returns the GPUs that fell off the bus, by the log; `None` for a line that names no GPU.
pub(super) fn off_the_bus(messages: &[Message]) -> Vec<Option<PciAddress>> {
    (messages.iter())
        .filter_map(|message| match message {
            Message::FellOffBus { gpu } | Message::Xid { gpu, code: 79, .. } => Some(*gpu),
            _ => None,
        })
        .collect()
}

fn fallen(messages: &[Message], source: &str, context: &LogContext<'_>) -> Finding {
    let say = |status, why: String| Finding::new(FELL, status, why);
    let fallen = off_the_bus(messages);
    if !fallen.is_empty() {
        return Finding {
            observed: Some("`fallen off the bus` in the kernel's log".to_owned()),
            expected: Some("no such line".to_owned()),
            remedy: Some(words::POWER.to_owned()),
            ..say(
                Verdict::Fail,
                format!("{} fell off the bus since boot", named(fallen.into_iter())),
            )
        };
    }
    if messages.contains(&Message::Lost) && !context.all_recovered() {
        return Finding {
            observed: Some("`NV_ERR_GPU_IS_LOST` in the kernel's log".to_owned()),
            expected: Some("no such line".to_owned()),
            remedy: Some(format!(
                "run `nvidia-smi`; if a GPU is missing there: {}",
                words::POWER
            )),
            ..say(
                Verdict::Warn,
                "a GPU, which the driver does not name, did not answer on the bus".to_owned(),
            )
        };
    }
    let of_gpus = kernel_log::rows(messages).find_map(|(row, places)| {
        // Such a line is only a warning: it may come from a device beside the GPU. A GPU that was lost shows Xid 79
        // and a configuration space that cannot be read.
        let (Kind::Bus | Kind::Iommu) = row.kind else {
            return None;
        };
        // Lines about other devices on the bus do not count.
        let of_ours: Vec<_> = (places.into_iter()).filter(|at| context.has(*at)).collect();
        (!of_ours.is_empty()).then_some((row, of_ours))
    });
    if let Some((row, places)) = of_gpus {
        let gpus = named(places.into_iter().map(Some));
        return Finding {
            expected: Some("no such line".to_owned()),
            remedy: Some(row.remedy.clone()),
            ..say(Verdict::Warn, row.why.replace("{}", &gpus))
        };
    }
    say(Verdict::Pass, format!("none since boot, says {source}"))
}

/// Why a GPU has no driver, and what helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Diagnosis {
    /// The words of the log.
    observed: &'static str,
    /// The reason.
    pub(super) why: String,
    /// What helps.
    pub(super) remedy: String,
}

impl Diagnosis {
    /// Makes one from what files tell, without a line of the log.
    pub(super) fn new(why: String, remedy: String) -> Self {
        Self {
            observed: "",
            why,
            remedy,
        }
    }
}

/// The remedy for a GPU that did not start in a virtual machine.
const GUEST: &str = "stop the virtual machine and start it again, so that its host resets the GPU (a cloud's instance loses its local \
                     disks); if the GPU does not start then, look on the host at passthrough, 64-bit MMIO space and \
                     confidential computing; `dmesg | grep NVRM` has the code for NVIDIA";

/// Returns the remedy that installs modules of another flavour.
fn other_modules(flavour: Flavour, context: &LogContext<'_>) -> String {
    match context.installs {
        true => format!(
            "install the {flavour} kernel modules: `gpu-bootstrap install --set driver.flavour={flavour}`"
        ),
        false => format!("install the {flavour} kernel modules of a driver for this GPU"),
    }
}

/// Returns why the driver does not drive a GPU, by the log; the deepest cause wins. A message about the flavour of
/// the modules is believed only if the board can need it: the driver writes the same message when it cannot read the
/// GPU's registers.
pub(super) fn refusal(messages: &[Message], context: &LogContext<'_>) -> Option<Diagnosis> {
    let windows: Vec<(Option<PciAddress>, u32)> = (messages.iter())
        .filter_map(|message| match message {
            Message::NoWindow { gpu, bar } => Some((*gpu, *bar)),
            _ => None,
        })
        // The kernel logs this for every device.
        .filter(|(at, _)| at.is_none_or(|at| context.has(at)))
        .collect();
    if let Some((_, bar)) = windows.first() {
        return Some(Diagnosis {
            observed: "a window without addresses",
            why: format!(
                "firmware or hypervisor gave {} no addresses (BAR{bar}), so the driver refuses it",
                named(windows.iter().map(|(gpu, _)| *gpu))
            ),
            remedy: "on the hypervisor give the machine 64-bit MMIO space that is large enough (VMware: \
                     `pciPassthru.use64bitMMIO` and `pciPassthru.64bitMMIOSizeGB`; QEMU with OVMF: `-fw_cfg \
                     name=opt/ovmf/X-PciMmio64Mb,string=SIZE`, in MiB); on bare metal switch on \
                     \"Above 4G decoding\" in the firmware"
                .to_owned(),
        });
    }
    let flavours = |at: &Option<PciAddress>| {
        let gpu = (context.gpus.iter()).filter(|gpu| at.is_none_or(|at| gpu.pci_address == at));
        gpu.filter_map(|gpu| gpu.module_flavour).collect::<Vec<_>>()
    };
    for message in messages {
        let (at, flavour, observed) = match message {
            Message::NeedsOpen { gpu } => (
                gpu,
                Flavour::Open,
                "`requires use of the NVIDIA open kernel modules`",
            ),
            Message::NeedsProprietary { gpu } => (
                gpu,
                Flavour::Proprietary,
                "`does not include the required GPU System Processor`",
            ),
            _ => continue,
        };
        let known = flavours(at);
        let contradicts = |flavours: &SupportedFlavours| match flavour {
            Flavour::Open => *flavours == SupportedFlavours::Proprietary,
            Flavour::Proprietary => *flavours != SupportedFlavours::Proprietary,
        };
        if !known.is_empty() && known.iter().all(contradicts) {
            let gpus =
                (context.gpus.iter()).filter(|gpu| at.is_none_or(|at| gpu.pci_address == at));
            return Some(Diagnosis {
                observed,
                why: format!(
                    "the driver's message about {} contradicts the board, which runs with the loaded \
                     modules: the driver could not read its registers",
                    super::words::places(gpus)
                ),
                remedy: "switch the machine off and on, which resets the GPU; in a virtual machine look on its \
                         host at the passthrough, the mode of confidential computing and the reset of the \
                         GPU"
                    .to_owned(),
            });
        }
        return Some(Diagnosis {
            observed,
            why: match flavour {
                Flavour::Open => {
                    "a GPU needs the open kernel modules, and the proprietary ones are loaded"
                }
                Flavour::Proprietary => {
                    "a GPU has no system processor, and the open kernel modules that need it are \
                     loaded"
                }
            }
            .to_owned(),
            remedy: other_modules(flavour, context),
        });
    }
    messages.iter().find_map(|message| {
        Some(match message {
            // An earlier driver did not know it.
            Message::Unsupported { gpu: Some(at) } if context.driven.contains(at) => return None,
            Message::Unsupported { gpu: Some(at) } if context.drives_sibling(*at) => Diagnosis {
                observed: "`is not supported by the NVIDIA … driver release`",
                why: format!(
                    "the driver says that it does not know the GPU at {at}, but it drives another of the same board, \
                     so it could not read this one: it is broken, or in a bad state"
                ),
                remedy: format!(
                    "{}; if the line comes again, have the GPU replaced, or take another instance",
                    words::POWER
                ),
            },
            Message::Legacy { branch, .. } => Diagnosis {
                observed: "`supported through the NVIDIA … Legacy drivers`",
                why: format!("the driver ignores a GPU that only branch {branch} drives"),
                remedy: format!("install a driver of branch {branch}"),
            },
            Message::Unsupported { gpu } if context.guest => Diagnosis {
                observed: "`is not supported by the NVIDIA … driver release`",
                why: format!(
                    "the driver does not know {}, which may be a vGPU: a part of a GPU that the hypervisor assigns",
                    named([*gpu].into_iter())
                ),
                remedy: format!(
                    "check on the hypervisor whether this is a vGPU: a vGPU needs NVIDIA's guest driver (GRID) of the \
                     hypervisor's release, and a whole GPU needs a driver that knows it{}; a whole GPU that the \
                     installed one should know is in a bad state: let its host reset it",
                    (context.gpus.iter())
                        .find(|one| gpu.is_none_or(|at| one.pci_address == at))
                        .map_or(String::new(), |gpu| format!(
                            " (`gpu-bootstrap compat --gpu {}`)",
                            gpu.pci_id
                        ))
                ),
            },
            Message::Unsupported { gpu } => Diagnosis {
                observed: "`is not supported by the NVIDIA … driver release`",
                why: format!("the driver does not know {}", named([*gpu].into_iter())),
                remedy: (context.gpus.iter())
                    .find(|one| gpu.is_none_or(|at| one.pci_address == at))
                    .map_or_else(
                        || "run `gpu-bootstrap compat` to see which driver knows it".to_owned(),
                        |gpu| {
                            format!(
                                "run `gpu-bootstrap compat --gpu {}` to see which driver knows it; a GPU that \
                                 the installed one should know is in a bad state: switch the machine off and on",
                                gpu.pci_id
                            )
                        },
                    ),
            },
            Message::NoFirmware { file, code } => firmware(file.as_deref(), *code, context),
            _ => return None,
        })
    })
}

/// Returns why the firmware that the driver loads into GPUs was not loaded.
fn firmware(file: Option<&str>, code: Option<u32>, context: &LogContext<'_>) -> Diagnosis {
    let path = file.map_or(String::new(), |file| format!(" (`/lib/firmware/{file}`)"));
    let observed = "firmware that could not be loaded";
    match (code, &context.owner) {
        (Some(code), _) => Diagnosis {
            observed,
            why: format!(
                "the firmware that the driver loads into the GPU{path} could not be read (error {code})"
            ),
            remedy: "run `nvidia-smi`, which starts the GPU again; if that fails, too, reboot, and install the \
                     package of the driver's firmware anew"
                .to_owned(),
        },
        (None, Some(owner)) => Diagnosis {
            observed,
            why: format!(
                "the firmware that the driver loads into the GPU{path} is not where the kernel looks for it"
            ),
            remedy: format!(
                "the driver is that of {}, which brings its firmware: start what loads its driver again, and look \
                 at its log; `/sys/module/firmware_class/parameters/path` names the folder that the kernel reads",
                owner.name
            ),
        },
        (None, None) => Diagnosis {
            observed,
            why: format!("the firmware that the driver loads into the GPU{path} is not on disk"),
            remedy: "install the package of the driver's firmware at the version of the loaded module"
                .to_owned(),
        },
    }
}

/// Returns why the kernel refused the driver's module, if a driver is installed but not loaded.
pub(super) fn not_loaded(messages: &[Message], context: &LogContext<'_>) -> Option<Diagnosis> {
    let (row, _) = kernel_log::rows(messages).find(|(row, _)| row.kind == Kind::Load)?;
    context
        .idle
        .then(|| Diagnosis::new(row.why.clone(), row.remedy.clone()))
}

/// Returns why GPUs have no driver, by the table of log lines: the module was not loaded, or it did not start a GPU. The
/// first row of the table is the cause; the others are named.
pub(super) fn reason(messages: &[Message], context: &LogContext<'_>) -> Option<Diagnosis> {
    let believed = kernel_log::rows(messages).filter(|(row, places)| match row.kind {
        Kind::Load => context.idle,
        Kind::Start => places.is_empty() || places.iter().any(|at| context.has(*at)),
        Kind::Bus | Kind::Iommu | Kind::Beside => false,
    });
    let rows: Vec<&Line> = believed.map(|(row, _)| row).collect();
    let (first, others) = rows.split_first()?;
    Some(Diagnosis {
        observed: "a line that says why",
        why: with(&first.why, others),
        remedy: first.remedy.clone(),
    })
}

/// Returns a reason, and behind it those of other rows.
fn with(why: &str, others: &[&Line]) -> String {
    match others {
        [] => why.to_owned(),
        others => {
            let whys: Vec<&str> = others.iter().map(|row| row.why.as_str()).collect();
            format!("{why}; also: {}", whys.join("; "))
        }
    }
}

/// Returns what shows that the driver, which hung by a row of the table, still does; `None` if nothing does. A hang of
/// which the log has one line may have ended; so has one after which NVML answers.
fn still_hangs(row: &Line, messages: &[Message], context: &LogContext<'_>) -> Option<String> {
    match (context.answers, kernel_log::count(messages, row)) {
        _ if !row.hang => None,
        (Some(false), _) => Some("NVML hangs now, too".to_owned()),
        (None, lines @ 2..) => Some(format!("the log says so {lines} times")),
        (Some(true), _) | (None, _) => None,
    }
}

fn init(messages: &[Message], source: &str, context: &LogContext<'_>) -> Finding {
    let say = |status, why: String| Finding::new(INIT, status, why);
    let failed = |observed: &str, why: String, remedy: &str| Finding {
        observed: Some(observed.to_owned()),
        expected: Some("no such line".to_owned()),
        remedy: Some(remedy.to_owned()),
        ..say(Verdict::Fail, why)
    };
    // The reason comes before the failure that it causes.
    if let Some(refusal) = refusal(messages, context) {
        return failed(refusal.observed, refusal.why, &refusal.remedy);
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
            format!("the driver could not start {}", named(down.into_iter())),
            match context.guest {
                true => GUEST,
                false => {
                    "reboot; if the GPU does not start then, switch the machine off and on, and check its power, seat \
                     and slot; `dmesg | grep NVRM` has the code for its vendor"
                }
            },
        )
    } else if !refused.is_empty() {
        (
            "`probe … failed with error`",
            format!("the driver refused {}", named(refused.into_iter())),
            "run `dmesg | grep -i nvidia` to see the lines before it, which say why",
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
            "an oops of the kernel in the driver",
            format!(
                "the driver crashed in the kernel (module `{module}`): what it had locked stays locked until a reboot"
            ),
            "drain the node, then reboot it; if it comes again, install another version of the driver",
        );
    }
    let mut mismatches = messages.iter().filter_map(|message| match message {
        Message::OtherVersion { libraries } => Some(libraries.as_deref()),
        _ => None,
    });
    if let Some(first) = mismatches.next() {
        let version = (first.or_else(|| mismatches.flatten().next()))
            .map_or(String::new(), |version| format!(" ({version})"));
        // A program that was started before an upgrade causes this line, too; the problem ends with that program.
        return Finding {
            status: Verdict::Warn,
            ..failed(
                "`API mismatch`",
                format!(
                    "the libraries of a program{version} are of another version than the loaded module"
                ),
                "reboot if `driver.libraries` fails; otherwise start the program again; a container that brings its \
                 own libraries needs those of the loaded module",
            )
        };
    }
    let beside = kernel_log::rows(messages).filter(|(row, _)| row.kind == Kind::Beside);
    let mut beside: Vec<&Line> = beside.map(|(row, _)| row).collect();
    beside.sort_by_key(|row| still_hangs(row, messages, context).is_none());
    if let Some((first, others)) = beside.split_first() {
        let why = with(&first.why, others);
        let (status, why) = match still_hangs(first, messages, context) {
            Some(sign) => (Verdict::Fail, format!("{why}; {sign}")),
            None => (Verdict::Warn, why),
        };
        return Finding {
            status,
            remedy_class: (!first.hang).then_some(Remedy::Reconfigure),
            ..failed("a line that says so", why, &first.remedy)
        };
    }
    say(
        Verdict::Pass,
        format!("no failure since boot, says {source}"),
    )
}

#[async_trait]
impl Check for LogCheck {
    fn ids(&self) -> &[Id] {
        const { &[XID, SXID, FELL, INIT] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        let log = subject.state.kernel_log().await;
        let context = match log {
            KernelLog::Known { .. } => LogContext::of(subject).await?,
            // There are no messages to judge.
            KernelLog::Unreadable { .. } | KernelLog::NotAsked { .. } => LogContext {
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
                // A GPU whose driver cannot be read is left out.
                .filter(|at| matches!(subject.state.bound_driver(*at), Ok(Some("nvidia"))))
                .collect(),
            recovered: nvml.map_or_else(Vec::new, health::recovered),
            answers: match nvml {
                Some(Nvml::Ready(_)) => Some(true),
                Some(Nvml::Hung { .. }) => Some(false),
                // A driver that is not loaded any more hangs no more.
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
                subject.state.loaded_flavour(),
            ) {
                (Some(kernel), Ok(Some(version)), Ok(Some(flavour))) => kernel::shown_by_errors(
                    subject.matrix,
                    kernel,
                    &Offer {
                        version: version.clone(),
                        flavour,
                    },
                ),
                _ => Vec::new(),
            },
        })
    }

    /// Whether the driver asks for nothing on any GPU now.
    fn all_recovered(&self) -> bool {
        !self.gpus.is_empty()
            && (self.gpus.iter()).all(|gpu| self.recovered.contains(&gpu.pci_address))
    }

    /// Whether the driver has another GPU of the same board as this one.
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
        facts::GpuFact,
        model::findings::Remedy,
        state::KernelLog,
        steps::fixtures,
        tools::kernel_log::{self, Message},
    };

    #[test]
    fn an_error_is_over_when_the_driver_asks_for_nothing_more() {
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

    /// Returns what is known about a machine of which only the GPUs are known.
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
    fn errors_are_judged_by_what_they_ask_for() {
        for (messages, verdict, words) in [
            (vec![], Verdict::Pass, "none since boot"),
            (vec![xid(43), xid(45)], Verdict::Pass, "Xid 43"),
            (
                vec![xid(31), xid(31)],
                Verdict::Warn,
                "page fault in GPU memory, 2 times",
            ),
            (vec![xid(4711)], Verdict::Warn, "not in our table"),
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
    fn a_known_fault_of_the_driver_on_this_kernel_goes_before_the_application() {
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
        // It explains no other error.
        for codes in [&[119][..], &[31, 119]] {
            let other = with(codes);
            assert_eq!(other.status, Verdict::Fail);
            assert_ne!(other.remedy.as_deref(), Some("install another driver"));
        }
    }

    #[test]
    fn the_driver_s_own_advice_goes_before_the_table() {
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
                "the driver asks for a reboot of the machine (Xid 154 of the GPU at 0000:18:00.0); Xid 31",
                "drain the node, then reboot",
            ),
            (
                format!("{fault}{}", advice("0x1 (GPU Reset Required)")),
                Verdict::Fail,
                "the driver asks for a reset of the GPU",
                "--gpu-reset",
            ),
            (
                advice("0x3 (Drain P2P)"),
                Verdict::Warn,
                "a stop of the programs",
                "start the application again",
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
    fn the_advice_that_nothing_is_needed_counts_only_if_nvml_confirms_it() {
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
        let unconfirmed = "a later Xid 154 asks for nothing more, which NVML does not confirm";
        for (text, recovered, verdict, words) in rows! {
            format!("{memory}{reset}{nothing}"), own.clone(), Verdict::Pass, "Xid 95";
            format!("{fault}{nothing}"), own, Verdict::Pass, "Xid 31";
            format!("{memory}{nothing}"), vec![], Verdict::Fail, unconfirmed;
            format!("{memory}{nothing}"), neighbour, Verdict::Fail, unconfirmed;
            format!("{fault}{nothing}"), vec![], Verdict::Warn, unconfirmed;
            // The earlier advice.
            format!("{reset}{nothing}"), vec![], Verdict::Fail, "asks for a reset of the GPU";
            nothing.clone(), vec![], Verdict::Pass, "asks for nothing more";
        } {
            let context = LogContext {
                recovered,
                ..context(&facts.gpus)
            };
            let finding = said_on(&context, &text).remove(0);
            assert_eq!(finding.status, verdict, "{text}: {}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
        }
        // A new error is not the one that the advice is about.
        let again = said(&format!("{memory}{nothing}{memory}")).remove(0);
        assert!(!again.why.contains(unconfirmed), "{}", again.why);
    }

    #[test]
    fn text_of_a_user_forges_no_error_and_hides_none() {
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
    fn a_part_of_a_log_is_no_pass() {
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
    fn errors_of_nvlink_5_ask_for_all_gpus_unless_the_line_calls_them_nonfatal() {
        let line = |word: &str| {
            format!("NVRM: Xid (PCI:0000:18:00): 149, NETIR_LINK_EVT {word} XC0 i0 Link 08\n")
        };
        let fatal = said(&line("Fatal")).remove(0);
        assert_eq!(fatal.status, Verdict::Fail);
        assert!(fatal.remedy.unwrap().contains("all its GPUs at once"));
        assert_eq!(said(&line("Nonfatal")).remove(0).status, Verdict::Pass);
    }

    #[test]
    fn a_cause_whose_own_line_is_gone_counts() {
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
        // If the error has a line of its own, that line alone says how bad it was.
        let own = "NVRM: Xid (PCI:0000:18:00): 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 08\n";
        assert_eq!(
            said(&format!("{own}{line}")).remove(0).status,
            Verdict::Pass
        );
    }

    #[test]
    fn a_gpu_that_must_be_reset_is_told_without_a_number() {
        // kubernetes-sigs/dra-driver-nvidia-gpu issue 982.
        let line = "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned\n";
        let finding = said(line).remove(0);
        assert_eq!(finding.status, Verdict::Fail);
        assert!(finding.why.contains("until it is reset"), "{}", finding.why);
        assert!(finding.remedy.unwrap().contains("--gpu-reset"));
        // An error that asks for more leads.
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
    fn what_mends_a_guest_is_on_its_host() {
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
    fn a_gpu_that_the_driver_refuses_beside_its_sibling_is_no_vgpu() {
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
        assert!(broken.why.contains("it is broken"), "{}", broken.why);
        let remedy = broken.remedy.unwrap();
        assert!(
            remedy.contains("replaced") && !remedy.contains("GRID"),
            "{remedy}"
        );
        assert!(with(Vec::new()).why.contains("vGPU"));
        // The driver has it now: an earlier one did not know it.
        let all = facts.gpus.iter().map(|gpu| gpu.pci_address).collect();
        assert_eq!(with(all).status, Verdict::Pass);
    }

    #[test]
    fn a_row_that_could_not_be_replaced_may_need_another_gpu() {
        // awslabs/awsome-distributed-ai pull request 1190.
        let remedy = |codes: &[u32]| {
            let messages: Vec<Message> = codes.iter().map(|code| xid(*code)).collect();
            of(&messages).remove(0).remedy.unwrap()
        };
        assert!(remedy(&[48, 64]).contains("have the GPU replaced"));
        assert!(!remedy(&[48, 63]).contains("replaced"));
        assert!(!remedy(&[64, 79]).contains("replaced"));
    }

    #[test]
    fn the_version_of_a_program_s_libraries_is_named() {
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
    fn an_end_of_cuda_until_a_reboot_is_told_without_a_number() {
        // NVIDIA/open-gpu-kernel-modules issue 1342.
        let line = "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.\n";
        let finding = said(line).remove(0);
        assert_eq!(finding.status, Verdict::Fail);
        assert!(finding.why.starts_with("CUDA starts on no GPU"));
        assert!(finding.remedy.unwrap().contains("reboot it"));
        // An error that asks for less only stands beside it.
        let fault = format!("{line}NVRM: Xid (PCI:0000:18:00): 31, pid=1\n");
        assert!(
            said(&fault)
                .remove(0)
                .why
                .starts_with("CUDA starts on no GPU")
        );
        let lost = format!("{line}NVRM: Xid (PCI:0000:18:00): 79, pid=1\n");
        assert!(said(&lost).remove(0).why.starts_with("Xid 79"));
    }

    #[test]
    fn a_crash_of_the_driver_in_the_kernel_asks_for_a_reboot() {
        // NVIDIA/k8s-device-plugin issue 941.
        let line = "general protection fault: 0000 [#1] SMP NOPTI\nRIP: 0010:uvm_thread_context_remove+0x39/0x50 [nvidia_uvm]\n";
        let finding = said(line).remove(3);
        assert_eq!(finding.status, Verdict::Fail);
        assert!(
            finding.why.contains("module `nvidia_uvm`"),
            "{}",
            finding.why
        );
        assert!(finding.remedy.unwrap().contains("reboot it"));
    }

    #[test]
    fn a_gpu_that_the_driver_lost_and_does_not_name_is_a_warning() {
        // NVIDIA/open-gpu-kernel-modules issue 688.
        let line = "NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned from rmStatus @ kernel_ce_gv100.c:106\n";
        let finding = said(line).remove(2);
        assert_eq!(finding.status, Verdict::Warn);
        assert!(finding.remedy.unwrap().contains("nvidia-smi"));
        let fell = format!("{line}NVRM: Xid (PCI:0000:18:00): 79, pid=1\n");
        assert_eq!(said(&fell).remove(2).status, Verdict::Fail);
    }

    #[test]
    fn what_is_beside_the_gpus_is_a_warning() {
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
    fn errors_of_switches_are_as_bad_as_their_lines_say() {
        let line = |code: u32, word: &str| {
            format!("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {code}, {word}, Link 30 LTSSM\n")
        };
        for (text, verdict, words) in [
            (String::new(), Verdict::Pass, "none since boot"),
            (
                line(12028, "Non-fatal"),
                Verdict::Warn,
                "SXid 12028 of the NVSwitch at 0000:c1:00.0 (non-fatal)",
            ),
            // The lines of details are no more errors: NVIDIA/nvtrust issue 124.
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
    fn a_gpu_that_fell_off_the_bus_is_named() {
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
    fn the_reason_of_a_failed_start_comes_first() {
        let failed = Message::NotStarted { gpu: None };
        for (messages, verdict, words) in [
            (vec![], Verdict::Pass, "no failure"),
            (vec![failed.clone()], Verdict::Fail, "could not start a GPU"),
            (
                vec![failed.clone(), Message::NeedsOpen { gpu: None }],
                Verdict::Fail,
                "needs the open kernel modules",
            ),
            (
                vec![Message::NeedsProprietary { gpu: None }],
                Verdict::Fail,
                "no system processor",
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
                "only branch 470 drives",
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
                "the driver refused a GPU",
            ),
            (
                vec![Message::OtherVersion { libraries: None }],
                Verdict::Warn,
                "another version",
            ),
        ] {
            let finding = of(&messages).remove(3);
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
        }
    }

    #[test]
    fn the_table_says_why_a_gpu_did_not_start() {
        let failed = "NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x24:0x1c:1436)\n";
        for (line, why, remedy) in [
            (
                "NVRM: GPU 0000:18:00.0: GPU does not have the necessary power cables connected.\n",
                "could not start the GPU at 0000:18:00.0: power cables are not connected",
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
                "power-cycle",
            ),
            (
                "NVRM: kgspBootstrap_GH100: GSP-FMC reported an error while attempting to boot GSP: 0xb\n",
                "the GPU system processor (GSP) did not start",
                "power-cycle",
            ),
            (
                "pci 0000:18:00.0: Unable to change power state from D3cold to D0, device inaccessible\n",
                "the GPU does not respond after it was powered down to save power",
                "power-cycle",
            ),
            (
                "nvidia 0000:18:00.0: swiotlb buffer is full (sz: 524288 bytes)\n",
                "too small (swiotlb)",
                "larger `swiotlb=`",
            ),
            ("", "could not start the GPU at 0000:18:00.0", "reboot"),
            // A line about another device explains nothing.
            (
                "pci 0000:99:00.0: Unable to change power state from D3cold to D0, device inaccessible\n",
                "could not start the GPU at 0000:18:00.0",
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
            // A GPU that works is not judged by what was before.
            assert_eq!(said(line).remove(3).status, Verdict::Pass, "{line}");
        }
    }

    #[test]
    fn a_hang_fails_where_nvml_hangs_too_or_where_the_log_repeats_it() {
        let facts = fixtures::facts();
        let task = "INFO: task nvidia-smi:4711 blocked for more than 122 seconds.\n";
        let lockup = "watchdog: BUG: soft lockup - CPU#20 stuck for 26s! [UVM GPU1 BH:6142]\n";
        let peers = "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)\n";
        for (text, answers, verdict, words) in rows! {
            task.to_owned(), None, Verdict::Warn, "hung, or still hangs";
            task.to_owned(), Some(false), Verdict::Fail, "NVML hangs now, too";
            task.repeat(2), None, Verdict::Fail, "the log says so 2 times";
            task.repeat(2), Some(true), Verdict::Warn, "hung, or still hangs";
            lockup.to_owned(), None, Verdict::Warn, "it hung, or the hypervisor";
            lockup.repeat(3), None, Verdict::Fail, "the log says so 3 times";
            // What is no hang fails neither way, and comes behind one that fails.
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
    fn of_two_lines_of_the_table_the_first_row_is_the_cause_and_the_other_is_named() {
        let started = said(
            "NVRM: kgspBootstrap_GH100: GSP-FMC reported an error while attempting to boot GSP: 0xb\n\
             NVRM: GPU 0000:18:00.0: GPU does not have the necessary power cables connected.\n\
             NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x24:0x1c:1436)\n",
        )
        .remove(3);
        assert_eq!(
            started.why,
            "the driver could not start the GPU at 0000:18:00.0: power cables are not connected; also: the GPU \
             system processor (GSP) did not start"
        );
        assert!(started.remedy.unwrap().contains("power cables"));
        let beside = said(
            "INFO: task nvidia-smi:4711 blocked for more than 122 seconds.\n\
             nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)\n",
        )
        .remove(3);
        assert_eq!(beside.status, Verdict::Warn);
        let (first, second) = beside.why.split_once("; also: ").unwrap();
        assert!(first.contains("GPUDirect RDMA"), "{first}");
        assert!(second.contains("blocked in the kernel"), "{second}");
    }

    #[test]
    fn modules_that_the_kernel_refused_count_where_none_is_loaded() {
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
    }

    #[test]
    fn errors_of_the_bus_are_those_of_the_gpus() {
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
                "none since boot",
            ),
        ] {
            let finding = said(line).remove(2);
            assert_eq!(finding.status, verdict, "{line}");
            assert!(finding.why.contains(words), "{}", finding.why);
            assert_eq!(finding.remedy.is_some(), verdict != Verdict::Pass);
        }
    }

    #[test]
    fn firmware_that_is_there_is_not_said_to_be_missing() {
        let line = |code| {
            format!(
                "nvidia 0000:18:00.0: Direct firmware load for nvidia/570.172.08/gsp_ga10x.bin failed with error -{code}"
            )
        };
        let why = |code| said(&line(code)).remove(3).why;
        assert!(why(2).contains("is not on disk"), "{}", why(2));
        assert!(why(4).contains("could not be read (error 4)"), "{}", why(4));
        let owner = crate::state::Owner {
            name: "NVIDIA's GPU Operator",
            evidence: String::new(),
            fabric_manager: false,
            container_runtime: false,
            why: "",
            remedy: "",
        };
        let context = LogContext {
            installs: false,
            owner: Some(owner),
            ..context(&[])
        };
        let messages = kernel_log::read([line(2).as_str()]);
        let refusal = super::refusal(&messages, &context).unwrap();
        assert!(
            refusal.remedy.contains("GPU Operator"),
            "{}",
            refusal.remedy
        );
        assert!(!refusal.remedy.contains("package"), "{}", refusal.remedy);
    }

    #[test]
    fn a_line_that_contradicts_the_board_is_not_believed() {
        // The GPUs of the fixture are H100, which have a system processor.
        let text = "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2330)\nNVRM: nvidia.ko because it does \
                    not include the required GPU\n";
        let finding = said(text).remove(3);
        assert_eq!(finding.status, Verdict::Fail);
        assert!(
            finding.why.contains("contradicts the board"),
            "{}",
            finding.why
        );
        assert!(!finding.remedy.unwrap().contains("driver.flavour"));
        // Windows of other devices are nobody's business.
        let text = "pci 0000:99:00.0: BAR 1: no space for [mem size 0x10]\n";
        assert_eq!(said(text).remove(3).status, Verdict::Pass);
        let text = "pci 0000:18:00.0: BAR 1: no space for [mem size 0x10]\n";
        let finding = said(text).remove(3);
        assert!(
            finding.why.contains("no addresses (BAR1)"),
            "{}",
            finding.why
        );
    }

    #[test]
    fn a_log_that_nobody_can_read_is_no_pass() {
        for (log, verdict) in [
            (
                KernelLog::NotAsked {
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
