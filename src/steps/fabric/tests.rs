use std::collections::BTreeMap;

use super::{FabricState, decide, detect, files};
use crate::{
    change::Change,
    compat::matrix::Fabric,
    config::desired::{Desired, Manager},
    fabric::{Gpus, Service},
    host::{FabricProgress, GpuFabric, fake},
    steps::{
        fixtures::{self, desired, in_fabric, unit},
        specs::{compare, fixtures::packages},
    },
};

fn service() -> Service {
    Service {
        exact: vec!["nvidia-fabricmanager".into(), "libnvidia-nscq".into()],
        unit: Some("nvidia-fabricmanager.service".into()),
        modules: vec!["mlx5_core".into(), "ib_umad".into()],
    }
}

/// The desired state of a machine with NVSwitches whose driver source has the fabric manager.
fn wanted() -> Desired {
    let mut wanted = desired();
    let driver = wanted.driver.as_mut().expect("a driver");
    driver.companions.needs = Fabric::FmNvlsm;
    driver.companions.service = Some(service());
    wanted
}

fn installed(version: &str) -> [String; 2] {
    [
        format!("nvidia-fabricmanager={version}"),
        format!("libnvidia-nscq={version}"),
    ]
}

/// Eight GPUs that have joined the fabric, except the specified ones.
fn gpus<const N: usize>(other: [(u32, GpuFabric); N]) -> Gpus {
    let other = BTreeMap::from(other);
    let joined = || in_fabric(FabricProgress::Completed, 0);
    (0..8)
        .map(|index| {
            (
                index,
                Some(other.get(&index).cloned().unwrap_or_else(joined)),
            )
        })
        .collect()
}

/// Driver 535.261.03 is loaded, the fabric manager of this version is running, all GPUs have joined.
fn state(version: &str) -> FabricState {
    let loaded = "535.261.03".parse().expect("a version");
    let names = installed(version);
    let installed = packages(&[&names[0], &names[1]]);
    FabricState {
        unit: Some(unit("enabled", "active")),
        version: version.split('-').next().and_then(|one| one.parse().ok()),
        packages: compare(Manager::Apt, &service().at(&loaded), &installed),
        packaged: Some(loaded.clone()),
        loaded: Some(loaded),
        gpus: gpus([]),
        ..FabricState::default()
    }
}

#[test]
fn joined_gpus_with_running_fabric_manager_are_ready() {
    assert_eq!(
        decide(&state("535.261.03-1"), &wanted()).expect_satisfied(),
        "the fabric manager 535.261.03 is running, and 8 GPUs have joined the fabric"
    );
    // Before Hopper, NVML reports no fabric, so only the unit counts.
    let mut older = state("535.261.03-1");
    older.gpus = Gpus::default();
    decide(&older, &wanted()).expect_satisfied();
}

#[test]
fn stopped_fabric_manager_starts_after_its_modules() {
    let mut stopped = state("535.261.03-1");
    stopped.unit = Some(unit("disabled", "inactive"));
    stopped.not_loaded = vec!["ib_umad".into()];
    stopped.files = files(&service());
    let (why, changes) = decide(&stopped, &wanted()).expect_needs();
    assert!(why.contains("ib_umad not loaded") && why.contains("disabled and inactive"));
    let [
        Change::WriteFile { content, .. },
        Change::WriteFile { path, .. },
        Change::LoadModule { .. },
        Change::EnableUnit { start: true, .. },
    ] = &changes[..]
    else {
        panic!("{changes:?}");
    };
    assert!(content.ends_with("\nmlx5_core\nib_umad\n"), "{content}");
    assert_eq!(
        path,
        "/etc/systemd/system/nvidia-fabricmanager.service.d/50-gpu-bootstrap.conf"
    );
}

#[test]
fn fabric_manager_without_modules_is_restarted() {
    let mut blind = state("535.261.03-1");
    blind.not_loaded = vec!["ib_umad".into()];
    let (_, changes) = decide(&blind, &wanted()).expect_needs();
    assert!(matches!(
        &changes[..],
        [Change::LoadModule { .. }, Change::RestartUnit { .. }]
    ));
}

#[test]
fn mismatched_fabric_manager_blocks() {
    // The driver transaction installs the matching version.
    let (why, hint, retryable) = decide(&state("535.247.01-1"), &wanted()).expect_blocked_now();
    assert_eq!(retryable, None);
    assert!(
        why.contains(
            "nvidia-fabricmanager 535.247.01-1 is installed, but 535.261.03-* is required"
        ),
        "{why}"
    );
    assert!(hint.contains("at version 535.261.03"), "{hint}");
    // After an upgrade of driver and fabric manager, a reboot is required first.
    let mut upgraded = state("535.300.01-1");
    upgraded.packaged = upgraded.version.clone();
    decide(&upgraded, &wanted()).expect_after();
}

#[test]
fn joining_gpus_are_awaited_and_failed_ones_reported() {
    let mut joining = state("535.261.03-1");
    let not_started = || (5, in_fabric(FabricProgress::NotStarted, 0));
    joining.gpus = gpus([(2, in_fabric(FabricProgress::InProgress, 0)), not_started()]);
    let (why, _, retryable) = decide(&joining, &wanted()).expect_blocked_now();
    assert!(retryable.is_some_and(|bound| !bound.is_zero()));
    assert!(why.contains("GPUs 2, 5 have not joined the fabric yet"));
    joining.gpus = gpus([
        (2, in_fabric(FabricProgress::Completed, 999)),
        not_started(),
    ]);
    let (why, _) = decide(&joining, &wanted()).expect_blocked();
    assert!(
        why.contains("GPU 2 failed to join the fabric (NVML code 999)"),
        "{why}"
    );
}

#[test]
fn silent_gpu_blocks_until_its_fabric_is_known() {
    let mut lost = state("535.261.03-1");
    lost.silent = Some("GPU 1 did not respond to NVML".to_owned());
    let (why, _, retryable) = decide(&lost, &wanted()).expect_blocked_now();
    assert!(
        retryable.is_some() && why.contains("it is unknown"),
        "{why}"
    );
}

#[test]
fn plan_lists_start_before_driver_is_loaded() {
    let mut bare = FabricState::default();
    let (_, expected) = decide(&bare, &wanted()).expect_after();
    assert!(matches!(
        expected.last(),
        Some(Change::EnableUnit { start: true, .. })
    ));
    let mut image = wanted();
    image.image = true;
    decide(&bare, &image).expect_awaiting_boot();
    bare.adopts = true;
    decide(&bare, &wanted()).expect_blocked();
}

#[test]
fn rack_needs_imex_installed_but_not_started() {
    let mut rack = wanted();
    let driver = rack.driver.as_mut().expect("a driver");
    driver.companions.needs = Fabric::Imex;
    driver.companions.service = Some(Service {
        unit: None,
        modules: vec![],
        ..service()
    });
    let of_version = |version: &str| {
        let mut state = state(version);
        (state.unit, state.version) = (None, None);
        state
    };
    decide(&of_version("535.261.03-1"), &rack).expect_satisfied();
    decide(&of_version("535.247.01-1"), &rack).expect_blocked_now();
}

#[test]
fn missing_fabric_packages_block_only_with_switches() {
    let mut wanted = desired();
    let none = FabricState::default();
    decide(&none, &wanted).expect_not_applicable();
    let driver = wanted.driver.as_mut().expect("a driver");
    driver.companions.needs = Fabric::Fm;
    let branch = driver.branch;
    let (why, hint) = decide(&none, &wanted).expect_blocked();
    assert!(why.contains("fabric manager") && why.contains("not installed"));
    assert!(hint.contains("driver.source"), "{hint}");
    let running = |version: String| FabricState {
        unit: Some(unit("enabled", "active")),
        version: version.parse().ok(),
        ..FabricState::default()
    };
    decide(&running(format!("{branch}.178.04")), &wanted).expect_satisfied();
    let (_, hint) = decide(&running("470.256.02".into()), &wanted).expect_blocked();
    assert_eq!(hint, "set `driver.branch = 470`");
    // With a loaded driver, the same branch does not suffice.
    let mut other = running(format!("{branch}.178.04"));
    other.loaded = format!("{branch}.261.03").parse().ok();
    decide(&other, &wanted).expect_blocked();
}

/// A manual upgrade installs a new fabric manager and new driver files, and the next boot loads that driver.
#[tokio::test]
async fn upgraded_driver_is_distinguished_from_loaded_one() {
    let (host, fakes) = fake::host();
    let package = |name: &str| {
        format!(
            "Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: \
             580.95.05-1\n\n"
        )
    };
    let status = ["nvidia-kernel-dkms", "nvidia-fabricmanager"].map(package);
    fakes.files.put("/var/lib/dpkg/status", status.concat());
    fakes.files.put("/usr/bin/dpkg", "");
    let (facts, want) = (fixtures::facts(), wanted());
    let state = fixtures::state(&host, facts.clone());
    let cx = fixtures::cx(&host, &facts, &state, &want);
    let found = detect(&cx).await.expect("readable");
    let upgraded = "580.95.05".parse().ok();
    assert_eq!((&found.version, &found.packaged), (&upgraded, &upgraded));
}
