use insta::assert_snapshot;

use super::{html, junit, markdown, nagios, npd, prometheus, tap};
use crate::{
    check::{Finding, Verdict},
    engine::{Mode, RunReport},
    exit::Exit,
    facts::SecureBoot,
    model::id::Id,
    report::document::{MachineSummary, NodeStatus},
    state::{Inventory, LockStatus},
};

/// A finding with characters that the formats must escape.
fn finding(id: &'static str, status: Verdict) -> Finding {
    Finding {
        observed: Some("7 | \"a\" <b> #1".to_owned()),
        expected: Some("8".to_owned()),
        remedy: Some("run `reset --gpu *`\nthen look again".to_owned()),
        links: vec!["https://docs.nvidia.com/deploy/xid-errors/".to_owned()],
        ..Finding::new(
            Id::new(id),
            status,
            "of 8 | 7: \u{1b}[31m<0000:18:00.0>\n\"off\" the `bus`",
        )
    }
}

fn report(exit: Exit, findings: Vec<Finding>) -> RunReport {
    RunReport {
        findings,
        seconds: 0.25,
        ..RunReport::new(Mode::Check, "20260101T000000Z-1".to_owned(), exit)
    }
}

fn broken() -> RunReport {
    let caused = Finding {
        because: Some(Id::new("pci.gpu.present")),
        ..finding("driver.module", Verdict::Fail)
    };
    report(
        Exit::Drift,
        vec![
            finding("pci.gpu.present", Verdict::Fail),
            caused,
            finding("driver.options", Verdict::Warn),
            finding("nvl.fabric.state", Verdict::Unknown),
            finding("runtime.docker", Verdict::Skip),
            Finding::new(Id::new("kernel.release"), Verdict::Pass, "it runs"),
        ],
    )
}

fn machine() -> MachineSummary {
    MachineSummary {
        os: Some("ubuntu 24.04".to_owned()),
        kernel: Some("6.8.0-1067-gcp".to_owned()),
        arch: Some("x86_64".to_owned()),
        cloud: Some("gcp".to_owned()),
        instance_type: Some("a3-highgpu-8g".to_owned()),
        instance_id: None,
        gpus: 8,
    }
}

/// A node whose state was read completely.
pub(in crate::report) fn node() -> NodeStatus {
    let inventory = Inventory {
        name: Some("gpu-1".to_owned()),
        driver: Some("580.95.05".to_owned()),
        module_flavor: Some("open".to_owned()),
        toolkit: Some("1.18.0".to_owned()),
        runtimes: [
            ("containerd".to_owned(), None),
            ("docker".to_owned(), Some("28.5.1\\\"".to_owned())),
        ]
        .into(),
        gpus: [("H100 PCIe".to_owned(), 8)].into(),
        nvswitches: 4,
        secure_boot: SecureBoot::Disabled,
        next_kernel: Some("6.8.0-1067-gcp".to_owned()),
        lock: Some(LockStatus {
            digest: "0123456789abcdef".repeat(4),
            drift: 2,
        }),
    };
    NodeStatus {
        validated: Some("2026-11-28T22:00:00Z".parse().unwrap()),
        reboot_pending: Some(false),
        run_active: Some(true),
        maintenance: Some(true),
        upgrade_waiting: Some(false),
        time_to_ready_seconds: Some(212.5),
        ..NodeStatus::of(inventory)
    }
}

fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut written = Vec::new();
    write(&mut written);
    let text = String::from_utf8(written).unwrap();
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(text.ends_with('\n'), "{text}");
    text
}

#[test]
fn each_format_escapes_special_characters() {
    let broken = broken();
    assert_snapshot!("junit", text(|to| junit(to, &broken).unwrap()));
    assert_snapshot!("tap", text(|to| tap(to, &broken).unwrap()));
    assert_snapshot!("nagios", text(|to| _ = nagios(to, &broken).unwrap()));
    assert_snapshot!("npd", text(|to| _ = npd(to, &broken).unwrap()));
    assert_snapshot!(
        "prometheus",
        text(|to| prometheus(to, &broken, &machine(), &node()).unwrap())
    );
    assert_snapshot!(
        "markdown",
        text(|to| markdown(to, &broken, &machine()).unwrap())
    );
}

#[test]
fn consequence_of_an_ignored_finding_is_a_root_cause() {
    let mut broken = broken();
    broken.findings[0].status = Verdict::Skip;
    let metrics = text(|to| prometheus(to, &broken, &machine(), &node()).unwrap());
    let causes: Vec<&str> = (metrics.lines())
        .filter(|line| line.starts_with("gpu_bootstrap_root_cause{"))
        .collect();
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert!(causes[0].contains("id=\"driver.module\""), "{causes:?}");
}

#[test]
fn junit_document_can_be_parsed() {
    let written = text(|to| junit(to, &broken()).unwrap());
    let read = quick_junit::Report::deserialize_from_str(&written).unwrap();
    let names: Vec<&str> = (read.test_suites.iter().map(|suite| suite.name.as_str())).collect();
    assert_eq!(names, ["machine", "bus", "driver", "fabric", "runtime"]);
    let cases: usize = (read.test_suites.iter().map(|suite| suite.test_cases.len())).sum();
    assert_eq!(cases, 6);
}

#[test]
fn plugin_status_is_the_worst_verdict() {
    let one = |verdict, exit| report(exit, vec![finding("pci.gpu.present", verdict)]);
    for (report, of_nagios, of_npd) in [
        (one(Verdict::Pass, Exit::Ok), 0, 0),
        (one(Verdict::Skip, Exit::Ok), 0, 0),
        (one(Verdict::Warn, Exit::Ok), 1, 0),
        // With `--fail-on warn`.
        (one(Verdict::Warn, Exit::Drift), 1, 1),
        (one(Verdict::Fail, Exit::Drift), 2, 1),
        // An unknown finding counts only if it changes the exit status of `check`.
        (one(Verdict::Unknown, Exit::Ok), 0, 0),
        (one(Verdict::Unknown, Exit::Drift), 3, 2),
        (broken(), 2, 1),
    ] {
        let mut text = Vec::new();
        let nagios = nagios(&mut text, &report).unwrap();
        assert_eq!(nagios, Exit::Plugin(of_nagios), "{report:?}");
        assert_eq!(npd(&mut text, &report).unwrap(), Exit::Plugin(of_npd));
    }
}

#[test]
fn remedy_that_only_repeats_the_command_is_omitted() {
    let command = "systemctl restart containerd";
    let finding = Finding {
        command: Some(command.to_owned()),
        remedy: Some(format!("run `{command}`")),
        ..Finding::new(
            Id::new("rt.containerd.files"),
            Verdict::Fail,
            "a file is invalid",
        )
    };
    let report = report(Exit::Drift, vec![finding]);
    for text in [
        text(|to| junit(to, &report).unwrap()),
        text(|to| tap(to, &report).unwrap()),
        text(|to| markdown(to, &report, &machine()).unwrap()),
    ] {
        assert_eq!(text.matches(command).count(), 1, "{text}");
    }
}

#[test]
fn nagios_counts_one_finding() {
    let pass = Finding::new(Id::new("kernel.release"), Verdict::Pass, "it runs");
    let report = report(Exit::Ok, vec![pass]);
    let text = text(|to| _ = nagios(to, &report).unwrap());
    assert!(text.starts_with("GPU OK - 1 finding passes | "), "{text}");
}

#[test]
fn root_cause_precedes_its_consequences() {
    let caused = Finding {
        because: Some(Id::new("log.sxid")),
        ..Finding::new(Id::new("log.xid"), Verdict::Fail, "the consequence")
    };
    let root = Finding::new(Id::new("log.sxid"), Verdict::Fail, "the cause");
    let report = report(Exit::Drift, vec![caused, root]);
    let facts = crate::steps::fixtures::facts();
    for text in [
        text(|to| markdown(to, &report, &machine()).unwrap()),
        text(|to| html(to, &report, &facts).unwrap()),
    ] {
        let at = |words| text.rfind(words).unwrap();
        assert!(at("the cause") < at("the consequence"), "{text}");
    }
}
