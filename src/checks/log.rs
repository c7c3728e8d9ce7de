//! The family of the kernel's log: what NVIDIA's driver wrote there since the machine booted.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::{
    check::{Check, Finding, Subject, Verdict},
    model::{id::Id, pci::PciAddress},
    state::KernelLog,
    step::StepError,
    tools::{
        kernel_log::Message,
        xid::{self, Act},
    },
};

const XID: Id = Id::new("log.xid");
const FELL: Id = Id::new("log.fell-off-bus");
const INIT: Id = Id::new("log.rm-init");

const CATALOGUE: &str = "https://docs.nvidia.com/deploy/xid-errors/index.html";

/// See the module.
pub struct Log;

fn title(id: &Id) -> &'static str {
    match id.as_str() {
        "log.xid" => "Errors of the driver (Xid)",
        "log.fell-off-bus" => "GPUs that fell off the bus",
        _ => "GPUs that the driver started",
    }
}

fn decide(log: &KernelLog) -> Vec<Finding> {
    let all = |status, why: &str| {
        let one = |id: Id| Finding::new(id.clone(), title(&id), status, why);
        [XID, FELL, INIT].map(one).to_vec()
    };
    match log {
        KernelLog::NotAsked { why } => all(Verdict::Skip, why),
        KernelLog::Unreadable { why } => all(
            Verdict::Unknown,
            &format!("the kernel's log cannot be read: {why}"),
        ),
        KernelLog::Known { messages, source } => vec![
            xids(messages, source),
            fallen(messages, source),
            init(messages, source),
        ],
    }
}

/// ` of the GPU at 0000:18:00.0`, where the line names it.
fn of_gpu(gpu: Option<PciAddress>) -> String {
    gpu.map_or(String::new(), |gpu| format!(" of the GPU at {gpu}"))
}

fn xids(messages: &[Message], source: &str) -> Finding {
    let mut counts: BTreeMap<(u32, Option<PciAddress>), usize> = BTreeMap::new();
    for message in messages {
        if let Message::Xid { gpu, code } = message {
            *counts.entry((*code, *gpu)).or_default() += 1;
        }
    }
    let say = |status, why: String| Finding {
        links: vec![CATALOGUE.to_owned()],
        ..Finding::new(XID, title(&XID), status, why)
    };
    if counts.is_empty() {
        return Finding::new(
            XID,
            title(&XID),
            Verdict::Pass,
            format!("none since boot, says {source}"),
        );
    }
    let worst = (counts.keys())
        .filter_map(|(code, _)| xid::of(*code))
        .map(|xid| xid.act)
        .max()
        .unwrap_or(Act::None);
    let has_row = |code: &u32| xid::of(*code).is_some();
    let unknown = counts.keys().any(|(code, _)| !has_row(code));
    let told: Vec<String> = counts
        .iter()
        // Where one asks for more, those that ask for nothing only distract.
        .filter(|((code, _), _)| {
            worst == Act::None || xid::of(*code).is_none_or(|xid| xid.act != Act::None)
        })
        .map(|((code, gpu), count)| {
            let what = xid::of(*code).map_or("not in our table", |xid| &xid.what);
            let times = if *count == 1 {
                String::new()
            } else {
                format!(", {count} times")
            };
            format!("Xid {code}{} ({what}{times})", of_gpu(*gpu))
        })
        .collect();
    let (status, remedy) = match worst {
        Act::None if unknown => (
            Verdict::Warn,
            "look up the number in NVIDIA's catalogue of Xid errors",
        ),
        Act::None => return say(Verdict::Pass, told.join("; ")),
        Act::RestartApp => (Verdict::Warn, "start the application again"),
        Act::Update => (Verdict::Warn, "update the driver"),
        Act::ContactSupport => (Verdict::Warn, "run `nvidia-bug-report.sh` and ask NVIDIA"),
        Act::ResetGpu => (
            Verdict::Fail,
            "reboot, or run `nvidia-smi --gpu-reset` when nothing uses the GPU",
        ),
        Act::CheckMechanics => (
            Verdict::Fail,
            "check the power cables and the seat of the GPU",
        ),
        Act::RestartMachine => (
            Verdict::Fail,
            "switch the machine off and on; a cloud's instance: stop and start it",
        ),
    };
    let mut codes: Vec<u32> = counts.keys().map(|(code, _)| *code).collect();
    codes.dedup();
    let codes: Vec<String> = codes.iter().map(ToString::to_string).collect();
    Finding {
        observed: Some(format!("Xid {}", codes.join(", "))),
        expected: Some("none".to_owned()),
        remedy: Some(remedy.to_owned()),
        ..say(status, told.join("; "))
    }
}

/// The GPUs that messages name, each once.
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

fn fallen(messages: &[Message], source: &str) -> Finding {
    let say = |status, why: String| Finding::new(FELL, title(&FELL), status, why);
    let fallen: Vec<Option<PciAddress>> = messages
        .iter()
        .filter_map(|message| match message {
            Message::FellOffBus { gpu } | Message::Xid { gpu, code: 79 } => Some(*gpu),
            _ => None,
        })
        .collect();
    if fallen.is_empty() {
        return say(Verdict::Pass, format!("none since boot, says {source}"));
    }
    Finding {
        observed: Some("`fallen off the bus` in the kernel's log".to_owned()),
        expected: Some("no such line".to_owned()),
        remedy: Some(
            "switch the machine off and on; a cloud's instance: stop and start it".to_owned(),
        ),
        ..say(
            Verdict::Fail,
            format!("{} fell off the bus since boot", named(fallen.into_iter())),
        )
    }
}

fn init(messages: &[Message], source: &str) -> Finding {
    let say = |status, why: String| Finding::new(INIT, title(&INIT), status, why);
    let has = |wanted: &Message| messages.contains(wanted);
    let failed = |observed: &str, why: String, remedy: &str| Finding {
        observed: Some(observed.to_owned()),
        expected: Some("no such line".to_owned()),
        remedy: Some(remedy.to_owned()),
        ..say(Verdict::Fail, why)
    };
    // The reason comes before the failure that it causes.
    if has(&Message::NeedsOpen) {
        return failed(
            "`requires use of the NVIDIA open kernel modules`",
            "a GPU needs the open kernel modules, and the proprietary ones are loaded".to_owned(),
            "install the open kernel modules: `gpu-bootstrap install --set driver.flavour=open`",
        );
    }
    if has(&Message::NeedsProprietary) {
        return failed(
            "`does not include the required GPU System Processor`",
            "a GPU has no system processor, and the open kernel modules that need it are loaded"
                .to_owned(),
            "install the proprietary kernel modules: `gpu-bootstrap install --set \
             driver.flavour=proprietary`",
        );
    }
    let down: Vec<Option<PciAddress>> = messages
        .iter()
        .filter_map(|message| match message {
            Message::NotStarted { gpu } => Some(*gpu),
            _ => None,
        })
        .collect();
    if !down.is_empty() {
        return failed(
            "`RmInitAdapter failed`",
            format!("the driver could not start {}", named(down.into_iter())),
            "run `dmesg | grep NVRM` to see the code; after a change of the driver, reboot",
        );
    }
    if has(&Message::OtherVersion) {
        // A program from before an upgrade says so, too, and is gone with its end.
        return Finding {
            status: Verdict::Warn,
            ..failed(
                "`API mismatch`",
                "a program met a module of another version than its libraries".to_owned(),
                "reboot if `driver.libraries` fails; otherwise start the program again",
            )
        };
    }
    say(
        Verdict::Pass,
        format!("no failure since boot, says {source}"),
    )
}

#[async_trait]
impl Check for Log {
    fn ids(&self) -> &[Id] {
        const { &[XID, FELL, INIT] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        Ok(decide(subject.state.kernel_log().await))
    }
}

#[cfg(test)]
mod tests {
    use super::decide;
    use crate::{
        check::{Finding, Verdict},
        state::KernelLog,
        tools::kernel_log::Message,
    };

    fn of(messages: &[Message]) -> Vec<Finding> {
        decide(&KernelLog::Known {
            messages: messages.to_vec(),
            source: "`journalctl`".to_owned(),
        })
    }

    fn xid(code: u32) -> Message {
        Message::Xid {
            gpu: "0000:18:00.0".parse().ok(),
            code,
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
    fn a_gpu_that_fell_off_the_bus_is_named() {
        assert_eq!(of(&[xid(31)])[1].status, Verdict::Pass);
        for message in [
            xid(79),
            Message::FellOffBus {
                gpu: "0000:18:00.0".parse().ok(),
            },
        ] {
            let finding = of(&[message]).remove(1);
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
                vec![failed.clone(), Message::NeedsOpen],
                Verdict::Fail,
                "needs the open kernel modules",
            ),
            (
                vec![Message::NeedsProprietary],
                Verdict::Fail,
                "no system processor",
            ),
            (
                vec![Message::OtherVersion],
                Verdict::Warn,
                "another version",
            ),
        ] {
            let finding = of(&messages).remove(2);
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
        }
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
            let findings = decide(&log);
            assert_eq!(findings.len(), 3);
            assert!(findings.iter().all(|finding| finding.status == verdict));
        }
    }
}
