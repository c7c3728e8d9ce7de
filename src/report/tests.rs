//! Tests of the exact report texts.

use super::{
    Style, document, error, human,
    lines::JsonLines,
    plain::Plain,
    screen::{self, tests::Fake},
    terminal,
};
use crate::{
    check::{Finding, Verdict},
    engine::{ChangeReport, Mode, Reboot, RunReport, StepReport},
    error::Report,
    event::{Envelope, Event, Outcome, SCHEMA, StepTitle, Subscriber, Summary},
    exit::Exit,
    journal::JournalError,
    model::{
        findings::Remedy,
        id::Id,
        secret::{Hiding, Secret, Secrets},
    },
    steps::fixtures,
};

/// A complete check of the machine that runs the command.
const HERE: human::Examined = human::Examined {
    whole: true,
    here: true,
};

fn step(id: &'static str, outcome: Outcome, why: &str) -> StepReport {
    StepReport {
        id: Id::new(id),
        title: "A step".to_owned(),
        outcome,
        why: why.to_owned(),
        hint: None,
        causes: Vec::new(),
        reason: None,
        seconds: 1.25,
        changes: Vec::new(),
    }
}

fn report(mode: Mode, exit: Exit, steps: Vec<StepReport>) -> RunReport {
    RunReport {
        steps,
        seconds: 12.5,
        ..RunReport::new(mode, "20260101T000000Z-1".to_owned(), exit)
    }
}

fn text(write: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>) -> String {
    let mut text = Vec::new();
    let mut to = Hiding::new(&mut text, &Secrets::default());
    write(&mut to).unwrap();
    drop(to);
    String::from_utf8(text).unwrap()
}

fn finding(id: &'static str, status: Verdict, why: &str) -> Finding {
    Finding {
        title: "A look".to_owned(),
        ..Finding::new(Id::new(id), status, why)
    }
}

fn checked() -> RunReport {
    let mut checked = report(Mode::Check, Exit::Drift, Vec::new());
    checked.findings = vec![
        finding("preflight", Verdict::Pass, "Debian 12 on x86_64"),
        Finding {
            remedy: Some("run `gpu-bootstrap install`".to_owned()),
            command: Some("gpu-bootstrap install".to_owned()),
            observed: Some("535.247.01".to_owned()),
            expected: Some("535.261.03".to_owned()),
            ..finding("driver.module", Verdict::Fail, "another one is loaded")
        },
        finding("nvswitch", Verdict::Skip, "none on this machine"),
    ];
    checked
}

#[test]
fn fault_command_is_shown_below_the_fault_and_last() {
    let plain = text(|to| human::check(to, &checked(), HERE, Style::default()));
    assert_eq!(
        plain,
        "fault: another one is loaded\n\
         \n    \
         gpu-bootstrap install\n\
         \n  \
         A look (driver.module)\n  \
         observed: 535.247.01\n  \
         expected: 535.261.03\n\
         \n\
         1 fault, 1 pass; 2 of 3 examined (`-v` shows all)\n\
         \n\
         Next:\n\
         \n    \
         gpu-bootstrap install\n"
    );
    let coloured = text(|to| human::check(to, &checked(), HERE, Style::new(true)));
    assert!(coloured.starts_with("\u{1b}[31;1mfault: another one is loaded\u{1b}[0m"));
    assert_eq!(bare(&coloured), plain);
    let all = text(|to| human::check(to, &checked(), HERE, Style::default().verbose(true)));
    for line in [
        "pass     A look (preflight)",
        "skip     A look (nvswitch)",
        "fault    A look (driver.module)",
        "command: gpu-bootstrap install",
    ] {
        assert!(all.contains(line), "{all}");
    }
    let elsewhere = human::Examined {
        here: false,
        ..HERE
    };
    let there = text(|to| human::check(to, &checked(), elsewhere, Style::default()));
    assert!(there.ends_with("\n\nNext, on that machine:\n\n    gpu-bootstrap install\n"));
    // If the fault has no command, the page does not end with `Next:`.
    let mut without = checked();
    without.findings[1].command = None;
    without.findings[1].remedy = Some("replace the GPU".to_owned());
    let page = text(|to| human::check(to, &without, HERE, Style::default()));
    assert!(page.contains("\n  remedy: replace the GPU\n"), "{page}");
    assert!(page.ends_with("(`-v` shows all)\n"), "{page}");
}

#[test]
fn risks_and_unknown_findings_have_one_line_each() {
    let mut report = checked();
    report.findings.extend([
        finding("drv.version.security", Verdict::Warn, &"word ".repeat(40)),
        finding(
            "nvl.fabric.state",
            Verdict::Unknown,
            "NVML does not respond",
        ),
    ]);
    let page = text(|to| human::check(to, &report, HERE, Style::default()));
    let risk = page.lines().find(|line| line.starts_with("risk ")).unwrap();
    assert!(risk.ends_with("… (drv.version.security)"), "{risk}");
    assert!(risk.chars().count() <= 80, "{risk}");
    let unknown = "unknown  NVML does not respond (nvl.fabric.state)";
    assert!(page.lines().any(|line| line == unknown), "{page}");
    assert!(
        page.ends_with("Next:\n\n    gpu-bootstrap install\n"),
        "{page}"
    );
}

/// A machine with drift: one step needs changes, another one can be assessed only after it.
fn drifted() -> RunReport {
    let mut drifted = report(
        Mode::Check,
        Exit::Drift,
        vec![
            step("packages.hold", Outcome::WouldChange, ""),
            step("kernel.deny", Outcome::WouldChange, ""),
        ],
    );
    drifted.findings = vec![
        Finding {
            remedy: Some("run `gpu-bootstrap install`; it would install x".to_owned()),
            command: Some("gpu-bootstrap install".to_owned()),
            ..finding("packages.hold", Verdict::Fail, "x is not installed")
        },
        Finding {
            because: Some(Id::new("packages.hold")),
            ..finding(
                "kernel.deny",
                Verdict::Unknown,
                "depends on `packages.hold`",
            )
        },
    ];
    drifted
}

#[test]
fn drift_is_a_list_with_one_command() {
    assert_eq!(
        text(|to| human::check(to, &drifted(), HERE, Style::default())),
        "2 things would change: x is not installed\n\
         \n  \
         - A look (packages.hold)\n    \
         also affected: A look\n\
         \n\
         1 difference, 1 unknown; 1 of 2 examined (`-v` shows all)\n\
         \n\
         Next:\n\
         \n    \
         gpu-bootstrap install\n"
    );
    // If there are several differences, the list contains the reason of each.
    let mut two = drifted();
    two.findings[1] = Finding {
        command: Some("gpu-bootstrap install".to_owned()),
        ..finding("kernel.deny", Verdict::Fail, "y is not loaded")
    };
    let several = text(|to| human::check(to, &two, HERE, Style::default()));
    assert!(
        several.starts_with("2 things would change\n\n"),
        "{several}"
    );
    for why in ["\n    x is not installed\n", "\n    y is not loaded\n"] {
        assert!(several.contains(why), "{several}");
    }
}

#[test]
fn differences_without_settings_are_one_line() {
    let mut aside = drifted();
    aside.exit = Exit::Ok;
    for finding in &mut aside.findings {
        finding.set_aside();
    }
    aside
        .findings
        .insert(0, finding("driver.libraries", Verdict::Pass, "fine"));
    assert_eq!(
        text(|to| human::check(to, &aside, HERE, Style::default())),
        "healthy\n\
         \n\
         `install` would change 2 things: `gpu-bootstrap plan`\n\
         \n\
         1 pass; 1 of 3 examined (`-v` shows all)\n"
    );
}

#[test]
fn acute_risk_precedes_drift() {
    let mut warned = drifted();
    warned
        .findings
        .push(finding("log.gpu-init", Verdict::Warn, "the driver hung"));
    let page = text(|to| human::check(to, &warned, HERE, Style::default()));
    assert!(page.starts_with("risk: the driver hung\n\n"), "{page}");
    assert!(
        page.contains("\nDifferences from the settings:\n\n  - A look (packages.hold)\n"),
        "{page}"
    );
    // The risk has no command, and `install` does not fix it.
    assert!(page.ends_with("(`-v` shows all)\n"), "{page}");
}

#[test]
fn line_that_does_not_fit_has_the_short_reason() {
    let mut report = report(Mode::Check, Exit::Ok, Vec::new());
    let brief = "580.95.05 lacks security fixes of 580.178.04";
    let risk = Finding {
        brief: Some(brief.to_owned()),
        ..finding(
            "drv.version.security",
            Verdict::Warn,
            "driver 580.95.05 lacks security fixes of 580.178.04 (NVIDIA's bulletin 5861)",
        )
    };
    report.findings = vec![finding("driver.libraries", Verdict::Pass, "fine"), risk];
    for (columns, words) in [
        (80, format!("risk     {brief} (drv.version.security)\n")),
        (120, "(NVIDIA's bulletin 5861) (drv".to_owned()),
    ] {
        let style = Style::default().columns(columns);
        let page = text(|to| human::check(to, &report, HERE, style));
        assert!(page.contains(&words), "{page}");
    }
}

#[test]
fn selected_findings_give_no_node_verdict() {
    let mut report = report(Mode::Check, Exit::Ok, Vec::new());
    report.findings = vec![finding("a", Verdict::Pass, "fine")];
    let first = |report: &RunReport| {
        let text = text(|to| {
            human::check(
                to,
                report,
                human::Examined {
                    whole: false,
                    ..HERE
                },
                Style::default(),
            )
        });
        text.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(first(&report), "1 finding passes");
    report.findings.push(finding("b", Verdict::Pass, "fine"));
    report.findings.push(finding("c", Verdict::Warn, "odd"));
    assert_eq!(first(&report), "2 findings pass, with 1 risk");
    report.findings.drain(..2);
    assert_eq!(first(&report), "no finding passes, with 1 risk");
    report.findings = vec![finding("b", Verdict::Skip, "none")];
    let page = text(|to| human::check(to, &report, HERE, Style::default()));
    let last = "\n0 of 1 examined (`-v` shows all)\n";
    assert!(page.ends_with(last), "{page}");
}

#[test]
fn first_line_is_the_verdict() {
    let first = |exit, findings: Vec<Finding>| {
        let mut report = report(Mode::Check, exit, Vec::new());
        report.findings = findings;
        let text = text(|to| human::check(to, &report, HERE, Style::default()));
        text.lines().next().unwrap_or_default().to_owned()
    };
    let pass = || finding("driver.libraries", Verdict::Pass, "fine");
    for (expected, exit, findings) in rows! {
        "ready", Exit::Ok, vec![pass()];
        "ready, with 1 risk", Exit::Ok, vec![pass(), finding("b", Verdict::Warn, "odd")];
        "healthy", Exit::Ok,
            vec![pass(), finding("config.resolvable", Verdict::Skip, "not prepared")];
        "no fault found, but the driver could not be examined", Exit::Ok,
            vec![finding("pci.gpu.present", Verdict::Pass, "fine")];
        "unknown: NVML did not respond", Exit::Drift,
            vec![pass(), finding("b", Verdict::Unknown, "NVML did not respond")];
        "risk: CUDA fails", Exit::Drift,
            vec![
                pass(),
                finding("b", Verdict::Unknown, "NVML did not respond"),
                finding("c", Verdict::Warn, "CUDA fails"),
            ];
        "fault: no driver bound to 2 of 8 GPUs", Exit::Drift,
            vec![
                finding("b", Verdict::Fail, "no driver bound to 2 of 8 GPUs"),
                finding("c", Verdict::Fail, "another"),
            ];
        "risk: the driver hung", Exit::Drift,
            vec![
                finding("drv.version.security", Verdict::Warn, "it lacks fixes"),
                finding("log.gpu-init", Verdict::Warn, "the driver hung"),
                finding("driver.packages", Verdict::Fail, "another driver is installed"),
            ];
        "risk: the driver hung", Exit::Drift,
            vec![
                finding("log.gpu-init", Verdict::Warn, "the driver hung"),
                finding("config.resolvable", Verdict::Fail, "arch is not supported"),
            ];
        "fault: no driver bound to 2 of 8 GPUs", Exit::Drift,
            vec![
                finding("log.gpu-init", Verdict::Warn, "the driver hung"),
                finding("b", Verdict::Fail, "no driver bound to 2 of 8 GPUs"),
            ];
        // A warning about a version, and a warning that needs no action, are not the headline.
        "difference: another driver is installed", Exit::Drift,
            vec![
                finding("drv.version.security", Verdict::Warn, "it lacks fixes"),
                Finding {
                    remedy_class: Some(Remedy::None),
                    ..finding("log.xid", Verdict::Warn, "an error that is over")
                },
                finding("driver.packages", Verdict::Fail, "another driver is installed"),
            ];
        "ready, with 1 risk", Exit::Ok,
            vec![pass(), finding("log.gpu-init", Verdict::Warn, "the driver hung")];
        "no NVIDIA GPU is on the PCI bus", Exit::Ok,
            vec![
                finding("pci.gpu.present", Verdict::Pass, "fine"),
                finding(
                    "config.resolvable",
                    Verdict::Skip,
                    "no NVIDIA GPU is on the PCI bus",
                ),
            ];
        "nothing could be examined: the bus is missing", Exit::Ok,
            vec![finding("c", Verdict::Unknown, "the bus is missing")];
        "no fault found, but the driver could not be examined, with 1 risk and 1 unknown", Exit::Ok,
            vec![
                finding("b", Verdict::Warn, "odd"),
                finding("c", Verdict::Unknown, "the bus is missing"),
            ];
        "nothing to check on this machine", Exit::Ok,
            vec![finding("b", Verdict::Skip, "none")];
    } {
        assert_eq!(first(exit, findings), expected);
    }
}

/// Removes color codes.
fn bare(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut bare = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        bare.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
    }
    bare
}

#[test]
fn check_document_has_stable_keys() {
    let (report, node) = (checked(), super::formats::node());
    let now = "2026-11-29T05:00:00Z".parse().unwrap();
    let document = serde_json::to_value(document::check(
        &report,
        now,
        &fixtures::facts(),
        &node,
        &[],
    ))
    .unwrap();
    let keys: Vec<&String> = document.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "schema", "tool", "time", "exit", "host", "node", "summary", "warnings", "findings"
        ]
    );
    assert_eq!(document["time"], "2026-11-29T05:00:00Z");
    assert_eq!(document["exit"], 4);
    assert_eq!(document["node"]["gpus"]["H100 PCIe"], 8);
    assert_eq!(document["tool"]["name"], "gpu-bootstrap");
    assert_eq!(
        document["summary"],
        serde_json::json!({
            "pass": 1, "warn": 0, "fail": 1, "skip": 1, "unknown": 0,
            "faults": 1, "risks": 0, "differences": 0
        })
    );
    assert_eq!(document["findings"][1]["kind"], "fault");
    assert_eq!(document["findings"][1]["command"], "gpu-bootstrap install");
    let keys: Vec<&String> = document["findings"][0]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(
        keys,
        [
            "id", "title", "status", "why", "observed", "expected", "remedy", "command", "links",
            "layer"
        ]
    );
}

fn planned() -> RunReport {
    let mut needs = step("driver.packages", Outcome::WouldChange, "not installed");
    needs.changes = vec![ChangeReport {
        kind: "write-file",
        summary: "write `/etc/a`".to_owned(),
        diff: Some("@@ -1 +1 @@\n-old\n+new\n".to_owned()),
    }];
    let mut blocked = step("secure-boot", Outcome::Blocked, "Secure Boot is on");
    blocked.hint = Some("switch it off".to_owned());
    report(Mode::Plan, Exit::Drift, vec![needs, blocked])
}

#[test]
fn plan_shows_changes_and_blocked_steps() {
    let mut plan = planned();
    let shown = |plan: &RunReport, style| {
        text(|to| human::plan(to, plan, (None, &[]), "gpu-bootstrap install", style))
    };
    assert_eq!(
        shown(&plan, Style::default()),
        "blocked: Secure Boot is on\n\
         \n\
         A step (driver.packages)\n  \
         not installed\n  \
         - write `/etc/a`\n      \
         @@ -1 +1 @@\n      \
         -old\n      \
         +new\n\
         \n\
         blocked: A step (secure-boot)\n  \
         Secure Boot is on\n  \
         hint: switch it off\n\
         \n\
         1 would change, 1 blocked\n\
         \n\
         `install` changes nothing until this is resolved.\n"
    );
    plan.steps[1].outcome = Outcome::Satisfied;
    plan.exit = Exit::Drift;
    let lines: String = (0..20).map(|n| format!("+line {n}\n")).collect();
    plan.steps[0].changes[0].diff = Some(format!("--- /dev/null\n+++ b/etc/a\n{lines}"));
    let short = shown(&plan, Style::default());
    assert!(short.starts_with("1 thing would change\n"), "{short}");
    assert!(
        short.contains("      +line 11\n      … and 8 more lines\n"),
        "{short}"
    );
    assert!(!short.contains("+++"), "{short}");
    assert!(
        short.ends_with("\n\n    gpu-bootstrap install\n"),
        "{short}"
    );
    let all = shown(&plan, Style::default().verbose(true));
    assert!(all.contains("      +line 19\n"), "{all}");
    assert!(all.contains("satisfied: A step (secure-boot)\n"), "{all}");
}

#[test]
fn plan_document_contains_the_changes() {
    let document =
        serde_json::to_value(document::run(&planned(), Some(&fixtures::facts()))).unwrap();
    assert_eq!(document["schema"], 1);
    let step = &document["steps"][0];
    for key in ["id", "outcome", "why", "changes"] {
        assert!(!step[key].is_null(), "{key}");
    }
    assert_eq!(
        step["changes"][0],
        serde_json::json!({
            "kind": "write-file",
            "summary": "write `/etc/a`",
            "diff": "@@ -1 +1 @@\n-old\n+new\n"
        })
    );
}

#[test]
fn failed_install_shows_causes_and_hint() {
    let mut failed = step("driver.packages", Outcome::Failed, "failed to install x");
    failed.causes = vec!["`apt-get` exited with status 100:\nE: one\nE: two".to_owned()];
    failed.hint = Some("wait".to_owned());
    let mut report = report(
        Mode::Install,
        Exit::StepFailed,
        vec![
            step("preflight", Outcome::Satisfied, "fine"),
            failed,
            step("cdi", Outcome::NotRun, "`driver.packages` failed"),
        ],
    );
    report.notes = vec!["this is a clone".to_owned()];
    assert_eq!(
        text(|to| human::run(to, &report, Style::default())),
        "not ready: A step failed\n\
         \n\
         1 failed, 1 not run, 1 satisfied in 13 s (`-v` shows all)\n"
    );
    let all = text(|to| human::run(to, &report, Style::default().verbose(true)));
    assert!(
        all.contains("satisfied       A step (preflight) 1.2 s\n                fine\n"),
        "{all}"
    );
    assert_eq!(
        text(|to| human::troubles(to, &report, Style::default())),
        "\n\
         error: A step (driver.packages): failed to install x\n  \
         caused by: `apt-get` exited with status 100:\n             \
         E: one\n             \
         E: two\n\
         \n\
         hint: wait\n"
    );
    report.steps.clear();
    report.exit = Exit::RebootRequired;
    report.reboot = Some(Reboot {
        why: "nouveau is loaded".to_owned(),
        automatic: false,
    });
    for (mode, command) in [(Mode::Install, "install"), (Mode::Upgrade, "upgrade")] {
        report.mode = mode;
        assert_eq!(
            text(|to| human::troubles(to, &report, Style::default())),
            format!(
                "\n\
                 a reboot is needed: nouveau is loaded\n\
                 \n\
                 After the reboot, with the same options:\n\
                 \n    \
                 gpu-bootstrap {command}\n"
            )
        );
    }
}

#[derive(Debug, thiserror::Error)]
#[error("install NVIDIA driver packages")]
struct Outer(#[source] Inner);

#[derive(Debug, thiserror::Error)]
#[error("`apt-get` exited with status 100")]
struct Inner;

impl Report for Outer {
    fn exit(&self) -> Exit {
        Exit::StepFailed
    }

    fn reason(&self) -> &'static str {
        "apt"
    }

    fn hint(&self) -> Option<String> {
        Some("wait, or pass `--lock-timeout 10m`".to_owned())
    }
}

#[test]
fn error_has_causes_and_hint() {
    assert_eq!(
        text(|to| error::write(to, &Outer(Inner))),
        "error: failed to install NVIDIA driver packages\n  \
         caused by: `apt-get` exited with status 100\n\
         \n\
         hint: wait, or pass `--lock-timeout 10m`\n"
    );
}

/// A short run, as events.
fn events() -> Vec<Envelope> {
    let id = || Id::new("driver.packages");
    let events = [
        Event::RunStarted {
            version: "0.1.0".to_owned(),
            mode: "install".to_owned(),
            steps: vec![StepTitle {
                id: id(),
                title: "NVIDIA driver packages".to_owned(),
            }],
        },
        Event::StepStarted { step: id() },
        Event::StepAssessed {
            step: id(),
            why: "not installed".to_owned(),
            changes: 1,
        },
        Event::ChangeStarted {
            steps: vec![id()],
            summary: "install nvidia-driver".to_owned(),
        },
        Event::Output {
            steps: vec![id()],
            line: "Get:1 …\r\u{1b}[2K".to_owned(),
        },
        Event::Progress {
            steps: vec![id()],
            current: 3,
            total: Some(9),
            unit: "packages".to_owned(),
        },
        Event::AttemptFailed {
            steps: vec![id()],
            message: "the mirror returned 503".to_owned(),
            retry_in_seconds: 2.0,
        },
        Event::ChangeApplied {
            steps: vec![id()],
            summary: "install nvidia-driver".to_owned(),
            seconds: 160.0,
        },
        Event::StepFinished {
            step: id(),
            outcome: Outcome::Changed,
            why: "535.261.03 is installed".to_owned(),
            seconds: 161.0,
            causes: Vec::new(),
            hint: None,
        },
        Event::Note {
            message: "a word".to_owned(),
        },
        Event::RunFinished {
            summary: Summary {
                changed: 1,
                ..Summary::default()
            },
            exit: 0,
            seconds: 162.0,
            to_ready: Some(212.0),
        },
    ];
    events
        .into_iter()
        .enumerate()
        .map(|(seq, event)| Envelope {
            schema: SCHEMA,
            seq: seq as u64,
            at: jiff::Timestamp::UNIX_EPOCH,
            elapsed_ms: seq as u64 * 16_000,
            run: "r".to_owned(),
            event,
        })
        .collect()
}

#[test]
fn events_are_printed_as_plain_lines() {
    let mut to = Vec::new();
    let mut plain = Plain::new(&mut to, Style::default());
    for envelope in events() {
        plain.event(&envelope).unwrap();
    }
    assert_eq!(
        String::from_utf8(to).unwrap(),
        "[    0.0] gpu-bootstrap 0.1.0: install, 1 steps\n\
         [   48.0] NVIDIA driver packages: install nvidia-driver\n\
         [   80.0] NVIDIA driver packages: … 3 of 9 packages\n\
         [   96.0] NVIDIA driver packages: the mirror returned 503; again in 2.0 s\n\
         [  112.0] NVIDIA driver packages: done in 2 min 40 s\n\
         [  128.0] changed: NVIDIA driver packages (2 min 41 s): 535.261.03 is installed\n\
         [  144.0] note: a word\n\
         [  160.0] ended with status 0 after 2 min 42 s, ready 3 min 32 s after the start of the installation\n"
    );
}

#[test]
fn events_as_json_lines_can_be_parsed() {
    let mut to = Vec::new();
    let mut lines = JsonLines::new(&mut to);
    for envelope in events() {
        lines.event(&envelope).unwrap();
    }
    let read: Vec<Envelope> = String::from_utf8(to)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(read, events());
}

#[test]
fn escape_codes_in_external_text_are_removed() {
    const HOSTILE: &str = "x\u{1b}[0m\u{1b}[32mready\u{1b}[0m";
    let mut report = checked();
    report.findings[1].why = HOSTILE.to_owned();
    let shown = text(|to| human::check(to, &report, HERE, Style::new(true)));
    let clean = "\u{1b}[31;1mfault: x\u{fffd}[0m\u{fffd}[32mready\u{fffd}[0m\u{1b}[0m\n";
    assert!(shown.starts_with(clean), "{shown:?}");
    let fake = Fake::default();
    let mut view = terminal::Terminal::on(screen::target(fake.clone()), Style::new(true));
    let mut events = events();
    for envelope in &mut events {
        if let Event::Note { message } = &mut envelope.event {
            *message = HOSTILE.to_owned();
        }
        view.event(envelope).unwrap();
    }
    assert!(fake.shows("\u{1b}[33mnote:\u{1b}[0m x [0m [32mready [0m"));
}

#[test]
fn terminal_view_handles_every_event() {
    let mut view =
        terminal::Terminal::on(indicatif::ProgressDrawTarget::hidden(), Style::new(true));
    for envelope in events() {
        view.event(&envelope).unwrap();
    }
}

#[test]
fn secrets_are_hidden_in_all_output() {
    const TOKEN: &str = "abcdef.0123456789";
    let secrets = Secrets::default();
    secrets.learn(&Secret::new(TOKEN));
    let mut plan = planned();
    plan.notes = vec![format!("joined with {TOKEN}")];
    for step in &mut plan.steps {
        step.why = format!("no node accepted {TOKEN}");
        step.hint = Some(format!("request a token other than {TOKEN}"));
        step.causes = vec![format!("http://joe:{TOKEN}@proxy")];
        for change in &mut step.changes {
            change.diff = Some(format!("+token {TOKEN}\n"));
        }
    }
    let mut text = Vec::new();
    let mut to = Hiding::new(&mut text, &secrets);
    serde_json::to_writer_pretty(&mut to, &document::run(&plan, None)).unwrap();
    human::plan(
        &mut to,
        &plan,
        (None, &[]),
        "gpu-bootstrap install",
        Style::default(),
    )
    .unwrap();
    human::troubles(&mut to, &plan, Style::new(true)).unwrap();
    let damaged = JournalError::Garbage {
        path: "/x".into(),
        line: 1,
        why: format!("not {TOKEN}"),
    };
    error::write(&mut to, &damaged).unwrap();
    drop(to);
    let text = String::from_utf8(text).unwrap();
    // Join the wrapped lines.
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for shown in [
        "no node accepted ***",
        "+token ***",
        "record: not ***",
        "joined with ***",
    ] {
        assert!(flat.contains(shown), "{shown}: {text}");
    }
    assert!(!text.contains(TOKEN), "{text}");
}
