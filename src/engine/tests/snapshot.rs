//! State that steps and checks read is shared within a snapshot and read again in the next one.

use super::kit::{Rig, needs, outcomes, satisfied, write};
use crate::{
    checks,
    config::desired::Manager,
    engine::{Audit, Session},
    host::{Nvml, fake},
    model::id::Id,
    step::{Assessment, Cx, Step, StepError},
    steps::{self, fixtures},
};

/// A hung GPU must cost one deadline, no matter how many steps and checks query it.
#[tokio::test]
async fn check_reads_each_part_of_the_state_once() {
    let rig = Rig::new(vec![]);
    let fakes = &rig.fakes;
    fakes.gpu.set(Nvml::Hung { after_seconds: 30 });
    fakes
        .files
        .put("/sys/module/nvidia/version", "535.261.03\n");
    fakes.files.put_directory("/var/lib/rpm", 0o755);
    fakes.files.put(
        "/etc/cdi/nvidia.yaml",
        "devices:\n- name: GPU-5c0b4bb8-0000-0000-0000-000000000000\n",
    );
    fakes.exec.on("rpm", |_, _| fake::ok(""));
    fakes.exec.on("docker", |_, _| fake::ok("{}"));
    fakes.exec.on("systemctl", |_, _| {
        fake::ok("LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nResult=success\n")
    });
    let mut desired = fixtures::desired();
    desired.packages.manager = Manager::Dnf;

    let (tools, reporter) = rig.tools("check");
    let state = fixtures::state(&tools.host, fixtures::facts());
    let audit = Audit {
        validated: Vec::new(),
        failed_upgrade: None,
        checks: checks::ALL,
        matrix: fixtures::matrix(),
        desired: Ok(desired),
        back: None,
        prepared: true,
        compares: true,
    };
    let session = Session::audit(tools, steps::all(), state, audit).unwrap();
    let report = session.check().await;
    reporter.finish();
    session.state().snapshot().await;

    let devices = report
        .findings
        .iter()
        .find(|one| one.id == steps::VALIDATION_DEVICES);
    assert!(devices.is_some());
    assert_eq!(fakes.gpu.surveys(), 1);
    let mut lines = fakes.exec.lines();
    for once in ["docker info", "rpm -qa"] {
        assert!(lines.iter().any(|line| line.starts_with(once)), "{lines:?}");
    }
    lines.sort_unstable();
    let all = lines.clone();
    lines.dedup();
    assert_eq!(all, lines);
}

/// Requires a loaded module.
async fn assess_loaded(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    if cx.state.loaded_modules()?.is_empty() {
        return Ok(needs(vec![write(
            "/proc/modules",
            "nvidia 1 0 - Live 0x0\n",
        )]));
    }
    Ok(satisfied("loaded"))
}

#[tokio::test]
async fn each_change_starts_a_new_snapshot() {
    let rig = Rig::new(vec![]);
    let (tools, reporter) = rig.tools("install");
    let state = fixtures::state(&tools.host, fixtures::facts());
    let loaded = Step::new(Id::new("loaded"), |cx| Box::pin(assess_loaded(cx)));
    let session = Session::new(tools, vec![loaded], state, fixtures::desired()).unwrap();
    let report = session.install().await.unwrap();
    reporter.finish();
    assert_eq!(outcomes(&report), ["loaded changed"]);
}
