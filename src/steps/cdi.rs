//! `cdi`: the Container Device Interface specification describes the current GPUs and libraries. It becomes stale
//! with every driver change, because library file names contain the version, and after a boot that changes the
//! dynamic major number of nvidia-uvm.

use camino::Utf8Path;

use super::{
    CDI, DRIVER_MODULE, PROGRAM_DEVICES, TOOLKIT_PACKAGES, VALIDATION_DEVICES,
    cdi_rules::{self, Conflict, MachineDevices, SeenSpec},
    installed_runtimes,
    nodes::{self, users},
};
use crate::{
    change::{Change, Lock},
    config::desired::{Cdi, Desired},
    facts::Facts,
    model::version::DriverVersion,
    runtimes::Version,
    step::{Assessment, Cx, Step, StepError},
    tools::{packages::HEADER, probe, toolkit},
};

/// The unit that regenerates the specification at each boot.
pub(super) const UNIT: &str = "gpu-bootstrap-cdi.service";

/// A part of the reason if the specification is wrong, but runtimes use a correct one.
pub const SERVED: &str = "so containers get the GPUs";

/// The path of the unit.
const UNIT_PATH: &str = "/etc/systemd/system/gpu-bootstrap-cdi.service";

/// The toolkit binary that generates specifications.
const PROGRAM: &str = "/usr/bin/nvidia-ctk";

/// Omits the groups of device nodes, because a Podman before 5.1 rejects a whole file with them. Podman parses each
/// file separately (libpod, `container_internal_linux.go`), so one readable file suffices, and the file of the
/// toolkit's unit is not changed. Source: NVIDIA/nvidia-container-toolkit 1.19.0, `pkg/nvcdi/api.go` and
/// `cmd/nvidia-ctk/cdi/generate/generate.go`.
const NO_GROUPS: &str = "--feature-flag=no-additional-gids-for-device-nodes";

/// Output of the toolkit's unit.
const REFRESHED: &str = "/var/run/cdi/nvidia.yaml";

/// The `cdi` step.
pub(super) fn step() -> Step {
    Step::new(CDI, |cx| Box::pin(assess(cx)))
        // Runs after the GPU validation, because `nvidia-ctk` queries every GPU: if one does not start, it takes minutes
        // to fail with an error about the specification. Runs after the runtimes, because the Podman version determines
        // whether the specification may contain groups of device nodes.
        .after(installed_runtimes())
        .after([DRIVER_MODULE])
        .after(PROGRAM_DEVICES)
        .after([TOOLKIT_PACKAGES, VALIDATION_DEVICES])
        .locks([Lock::Containers])
        .wants(|change, desired| {
            let Some(spec) = &desired.cdi else {
                return desired.driver.is_none();
            };
            // A unit file with different content, e.g. for a different path, is obsolete.
            match change {
                Change::WriteFile { content, .. } => [true, false]
                    .map(|groups| unit(&spec.path, groups))
                    .contains(content),
                _ => true,
            }
        })
}

/// Title and version of a runtime that does not support groups of device nodes.
type OldReader = (&'static str, Version);

#[derive(Debug, Clone, Default)]
struct CdiState {
    /// Content of the unit file.
    unit: Option<String>,
    enabled: bool,
    loaded: Option<DriverVersion>,
    machine: MachineDevices,
    /// Specification files, ours first if it exists.
    seen: Vec<SeenSpec>,
    /// The toolkit's unit is installed, which writes a separate file.
    refreshes: bool,
    /// The toolkit's unit is failed although each GPU has a device to describe, and some are MIG devices.
    refresh_failed: bool,
    /// The toolkit is installed.
    has_toolkit: bool,
    /// A runtime that does not support groups of device nodes, if the toolkit adds them.
    old_reader: Option<OldReader>,
}

impl CdiState {
    fn own(&self, path: &Utf8Path) -> Option<&SeenSpec> {
        self.seen.iter().find(|seen| seen.path == path)
    }
}

/// The unit text. Device numbers can change at boot and when a module is reloaded. After a reload, a udev rule restarts
/// the unit of the device nodes, and systemd restarts this unit with it (`PartOf`). The unit does not create a missing
/// specification, because only `install` can record that change.
fn unit(path: &Utf8Path, names_groups: bool) -> String {
    let flag = match names_groups {
        true => String::new(),
        false => format!(" {NO_GROUPS}"),
    };
    format!(
        include_str!("cdi.service"),
        header = HEADER,
        program = PROGRAM,
        nodes = nodes::UNIT,
        users = users(),
        flag = flag,
        path = path,
    )
}

/// Returns the value of [`CdiState::old_reader`].
async fn old_reader(cx: &Cx<'_>) -> Option<OldReader> {
    for spec in &cx.desired.runtimes {
        let facts = spec.kind.runtime().facts();
        let Some(reads_groups) = facts.reads_groups else {
            continue;
        };
        let version = cx.state.runtime_version(spec.kind).await?;
        let can_leave_out = cx.state.toolkit_version().await? >= toolkit::LEAVES_GROUPS_OUT;
        return (version < reads_groups && can_leave_out).then_some((facts.title, version));
    }
    None
}

async fn detect(cx: &Cx<'_>, spec: &Cdi) -> Result<CdiState, StepError> {
    let files = cx.host.files();
    let loaded = cx.state.loaded_driver()?.cloned();
    let mut refreshes = false;
    for path in toolkit::REFRESH_PATHS {
        refreshes |= files.exists(Utf8Path::new(path))?;
    }
    let machine = cdi_rules::machine(cx, loaded.is_some()).await?;
    let refresh_failed = refreshes
        && machine.is_partitioned()
        && (cx.state.unit(toolkit::REFRESH).await?).is_some_and(|unit| unit.active == "failed");
    Ok(CdiState {
        unit: files.read_text(Utf8Path::new(UNIT_PATH))?,
        enabled: nodes::is_enabled(cx, UNIT)?,
        machine,
        seen: cdi_rules::seen(cx, &spec.path)?,
        loaded,
        refreshes,
        refresh_failed,
        has_toolkit: files.exists(Utf8Path::new(PROGRAM))?,
        old_reader: old_reader(cx).await,
    })
}

/// Describes the devices of the specification.
fn named(state: &CdiState) -> String {
    match state.machine.visible.as_deref() {
        None | Some([]) => probe::counted_devices(state.machine.gpus, 0),
        Some(visible) => {
            let parts = visible.iter().filter(|one| one.is_part()).count();
            probe::counted_devices(visible.len() - parts, parts)
        }
    }
}

fn decide(state: &CdiState, desired: &Desired, facts: &Facts) -> Assessment {
    let (Some(spec), Some(_), Some(_)) = (&desired.cdi, &desired.driver, &desired.toolkit) else {
        return Assessment::not_applicable("CDI is not configured");
    };
    let names_groups = state.old_reader.is_none();
    let mut command = ["nvidia-ctk", "cdi", "generate"]
        .map(str::to_owned)
        .to_vec();
    if !names_groups {
        command.push(NO_GROUPS.to_owned());
    }
    command.push(format!("--output={}", spec.path));
    let generate = vec![Change::RunTool {
        purpose: "describe the GPUs for container runtimes (CDI)".into(),
        command,
        writes: vec![spec.path.clone()],
        repeated: true,
    }];
    let mut at_boot = Vec::new();
    let unit = unit(&spec.path, names_groups);
    if state.unit.as_ref() != Some(&unit) {
        at_boot.push(Change::write(UNIT_PATH, unit));
    }
    if !state.enabled {
        // Not started now, because the specification already describes this boot. The unit regenerates it at later boots.
        at_boot.push(Change::EnableUnit {
            unit: UNIT.to_owned(),
            start: false,
        });
    }
    let Some(loaded) = &state.loaded else {
        if desired.image {
            return Assessment::awaits_boot(
                "the specification needs live GPUs; it is generated at the first boot",
            );
        }
        if facts.gpus.is_empty() {
            return Assessment::not_applicable("no NVIDIA GPU is on the PCI bus");
        }
        return Assessment::After {
            upstream: DRIVER_MODULE,
            why: "the specification needs live GPUs".into(),
            expected: generate.into_iter().chain(at_boot).collect(),
        };
    };
    if let Some(blocked) = preflight_issue(state, spec, loaded) {
        return blocked;
    }
    let issue = |seen: &SeenSpec| {
        cdi_rules::stale(seen, &state.machine, loaded).or_else(|| unread(seen, state.old_reader))
    };
    let stale = match state.own(&spec.path) {
        None => Some("is missing".to_owned()),
        Some(seen) => issue(seen),
    };
    let (mut whys, mut changes) = (Vec::new(), Vec::new());
    if let Some(why) = stale {
        let right = cdi_rules::hiding(&spec.path, &state.seen).find(|seen| issue(seen).is_none());
        whys.push(match right {
            Some(seen) => format!(
                "`{}` is hidden by `{}`, which is correct, {SERVED}; the hidden file {why}",
                spec.path, seen.path
            ),
            None => format!("`{}` {why}", spec.path),
        });
        changes.extend(generate);
    }
    if whys.is_empty() && !at_boot.is_empty() {
        whys.push(format!(
            "`{UNIT}` does not regenerate `{}` at boot",
            spec.path
        ));
    }
    changes.extend(at_boot);
    let theirs = cdi_rules::hiding(&spec.path, &state.seen)
        .find_map(|seen| Some((seen, cdi_rules::stale(seen, &state.machine, loaded)?)));
    // A failed unit may have written no file. On other machines, its failure has a cause that a restart does not remove.
    let fault = theirs
        .map(|(seen, why)| format!("`{}`, which runtimes prefer, {why}", seen.path))
        .or_else(|| {
            (state.refresh_failed).then(|| {
                format!(
                    "`{}` is failed, although the MIG devices exist",
                    toolkit::REFRESH
                )
            })
        });
    if let Some(fault) = fault {
        whys.push(fault);
        changes.push(Change::RestartUnit {
            unit: toolkit::REFRESH.to_owned(),
        });
    }
    if !whys.is_empty() {
        return Assessment::needs(whys.join("; "), changes);
    }
    let mut why = format!(
        "`{}` contains {} and driver {loaded}",
        spec.path,
        named(state)
    );
    for seen in cdi_rules::hiding(&spec.path, &state.seen) {
        why.push_str(&format!("; so does `{}`", seen.path));
    }
    Assessment::satisfied(why)
}

/// Returns the reason that a runtime cannot parse a specification. `None` if it can, or does not need to.
fn unread(seen: &SeenSpec, old_reader: Option<OldReader>) -> Option<String> {
    let ((title, version), spec) = (old_reader?, seen.spec.as_ref().ok()?);
    (spec.has_groups()).then(|| {
        format!("contains groups of device nodes, which {title} {version} does not support")
    })
}

/// Blocks if a problem can only be fixed by the administrator, because unmanaged files are not deleted.
fn preflight_issue(state: &CdiState, spec: &Cdi, loaded: &DriverVersion) -> Option<Assessment> {
    if let Some(conflict) = cdi_rules::conflict(&state.seen) {
        let Conflict { one, other, names } = conflict;
        return Some(Assessment::blocked(
            format!(
                "`{one}` and `{other}` both define {}: runtimes do not inject devices that two files of one directory \
                 define",
                names.join(", ")
            ),
            format!(
                "remove these devices from `{other}`, or move the file; unmanaged files are not deleted"
            ),
        ));
    }
    let dead = (state.seen.iter()).find_map(|seen| cdi_rules::dead_node(seen, &state.machine));
    if let Some(why) = dead {
        return Some(Assessment::blocked(
            why,
            "remove the node, then reboot, which recreates it",
        ));
    }
    let stranger = cdi_rules::hiding(&spec.path, &state.seen)
        .filter(|seen| !(state.refreshes && seen.path == REFRESHED))
        .find_map(|seen| Some((seen, cdi_rules::stale(seen, &state.machine, loaded)?)));
    let (seen, why) = stranger?;
    let why = format!(
        "`{}` {why}, and runtimes prefer it to `{}`",
        seen.path, spec.path
    );
    let hint = format!(
        "correct `{}` or remove it; unmanaged files are not deleted",
        seen.path
    );
    Some(match seen.path == REFRESHED && !state.has_toolkit {
        // A removed toolkit left the file. The unit of the new toolkit will regenerate it.
        true => Assessment::BlockedNow {
            why,
            hint,
            retryable: None,
        },
        false => Assessment::blocked(why, hint),
    })
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    let state = match &cx.desired.cdi {
        Some(spec) => detect(cx, spec).await?,
        None => CdiState::default(),
    };
    Ok(decide(&state, cx.desired, cx.facts))
}

#[cfg(test)]
mod tests {
    use super::{
        CdiState, REFRESHED, UNIT_PATH,
        cdi_rules::{MachineDevices, SeenSpec},
        decide, old_reader, step, toolkit, unit,
    };
    use crate::{
        change::Change,
        config::desired::RuntimeKind,
        host::fake,
        mig::Visible,
        runtimes::{Version, cdi::parse},
        step::Assessment,
        steps::fixtures::{self, desired, facts},
    };

    const SPEC: &str = r#"
kind: nvidia.com/gpu
containerEdits:
    mounts:
        - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03
devices:
    - name: "0"
    - name: all
"#;

    fn seen(path: &str, text: &str) -> SeenSpec {
        SeenSpec {
            path: path.into(),
            spec: parse(text),
            missing: vec![],
            nodes: vec![],
        }
    }

    fn state(loaded: &str) -> CdiState {
        let path = desired().cdi.map(|spec| spec.path).unwrap_or_default();
        CdiState {
            unit: Some(unit(&path, true)),
            enabled: true,
            loaded: loaded.parse().ok(),
            machine: MachineDevices {
                gpus: 1,
                ..MachineDevices::default()
            },
            seen: vec![seen(path.as_str(), SPEC)],
            refreshes: true,
            refresh_failed: false,
            has_toolkit: true,
            old_reader: None,
        }
    }

    /// Formats an assessment: its reason, and the hint if it blocks.
    fn said(state: &CdiState) -> String {
        match decide(state, &desired(), &facts()) {
            Assessment::Needs { why, .. } => format!("needs: {why}"),
            Assessment::Blocked { why, hint } => format!("blocked: {why}; {hint}"),
            Assessment::BlockedNow { why, hint, .. } => format!("blocked now: {why}; {hint}"),
            Assessment::Satisfied { why } => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn missing_broken_or_stale_specification_is_regenerated() {
        let good = state("535.261.03");
        assert!(said(&good).ends_with("contains 1 GPU and driver 535.261.03"));
        let none = CdiState {
            seen: vec![],
            ..good.clone()
        };
        assert!(said(&none).ends_with("is missing"));
        let torn = CdiState {
            seen: vec![seen("/etc/cdi/nvidia.yaml", &SPEC[..SPEC.len() - 4])],
            ..good
        };
        assert!(said(&torn).contains("cannot be read: "));
        assert!(
            said(&state("535.309.01")).contains("does not belong to the loaded driver 535.309.01")
        );
    }

    #[test]
    fn conflicting_files_of_one_directory_block() {
        let mut state = state("535.261.03");
        let team = "kind: nvidia.com/gpu\ndevices:\n    - name: all\n    - name: team\n";
        state.seen.push(seen("/etc/cdi/team.yaml", team));
        let why = said(&state);
        assert!(
            why.starts_with(
                "blocked: `/etc/cdi/nvidia.yaml` and `/etc/cdi/team.yaml` both define all:"
            ) && why.contains("remove these devices from `/etc/cdi/team.yaml`"),
            "{why}"
        );
        // Files of one directory may define different devices.
        let own = team.replace("    - name: all\n", "");
        state.seen[1] = seen("/etc/cdi/team.yaml", &own);
        assert!(said(&state).ends_with("driver 535.261.03"));
        state.seen[1] = seen("/var/run/cdi/team.yaml", &own);
        assert!(said(&state).ends_with("driver 535.261.03"));
        state.seen[1] = seen("/var/run/cdi/team.yaml", team);
        assert!(said(&state).contains("runtimes prefer it"));
    }

    #[test]
    fn preferred_toolkit_file_must_be_correct() {
        let mut state = state("535.261.03");
        state.seen.push(seen(REFRESHED, SPEC));
        assert!(said(&state).ends_with("; so does `/var/run/cdi/nvidia.yaml`"));
        state.seen[1] = seen(REFRESHED, &SPEC.replace("535.261.03", "525.1.1"));
        let (why, changes) = decide(&state, &desired(), &facts()).expect_needs();
        assert!(
            why.starts_with("`/var/run/cdi/nvidia.yaml`, which runtimes prefer, "),
            "{why}"
        );
        assert_eq!(
            changes,
            [Change::RestartUnit {
                unit: toolkit::REFRESH.to_owned()
            }]
        );
        // Without the toolkit's unit the file is unmanaged. If the toolkit is missing, its installation adds the unit.
        state.refreshes = false;
        state.has_toolkit = false;
        assert!(said(&state).starts_with("blocked now: "));
        state.has_toolkit = true;
        let why = said(&state);
        assert!(
            why.starts_with("blocked: ")
                && why.contains("runtimes prefer it to `/etc/cdi/nvidia.yaml`"),
            "{why}"
        );
    }

    #[test]
    fn message_contains_the_machine_devices() {
        let mut state = state("535.261.03");
        state.machine.visible = Some(vec![Visible {
            index: "0".into(),
            uuid: Some("GPU-2".into()),
        }]);
        assert!(said(&state).ends_with("contains 1 GPU and driver 535.261.03"));
    }

    #[test]
    fn unit_regenerates_the_specification_at_boot() {
        let (want, facts) = (desired(), facts());
        let bare = CdiState {
            unit: None,
            enabled: false,
            ..state("535.261.03")
        };
        let (_, changes) = decide(&bare, &want, &facts).expect_needs();
        assert!(matches!(
            &changes[..],
            [
                Change::WriteFile { .. },
                Change::EnableUnit { start: false, .. }
            ]
        ));
        let missing = CdiState {
            seen: vec![],
            ..bare
        };
        let (_, changes) = decide(&missing, &want, &facts).expect_needs();
        assert!(matches!(
            &changes[0],
            Change::RunTool { repeated: true, .. }
        ));
        assert_eq!(changes.len(), 3);
    }

    #[test]
    fn old_podman_gets_a_specification_without_groups() {
        let path = "/etc/cdi/nvidia.yaml";
        let (with_groups, without) = (unit(path.into(), true), unit(path.into(), false));
        let old = CdiState {
            unit: Some(without.clone()),
            seen: vec![seen(path, &format!("cdiVersion: 0.7.0{SPEC}"))],
            old_reader: Some(("Podman", Version(4, 9))),
            ..state("535.261.03")
        };
        let Assessment::Needs { why, changes } = decide(&old, &desired(), &facts()) else {
            panic!("Podman does not support groups");
        };
        assert!(why.ends_with("which Podman 4.9 does not support"), "{why}");
        let [Change::RunTool { command, .. }] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert_eq!(
            command.join(" "),
            format!(
                "nvidia-ctk cdi generate --feature-flag=no-additional-gids-for-device-nodes --output={path}"
            )
        );
        // The unit uses the same flag at each boot.
        let right = CdiState {
            seen: vec![seen(path, SPEC)],
            ..old.clone()
        };
        assert!(said(&right).ends_with("contains 1 GPU and driver 535.261.03"));
        let at_boot = CdiState {
            unit: Some(with_groups.clone()),
            ..right
        };
        assert!(said(&at_boot).contains("does not regenerate"));
        // Newer Podman versions and other runtimes support groups.
        let newer = CdiState {
            unit: Some(with_groups.clone()),
            old_reader: None,
            ..old
        };
        assert!(said(&newer).ends_with("contains 1 GPU and driver 535.261.03"));
        for content in [with_groups, without] {
            assert!((step().wants)(
                &Change::write(UNIT_PATH, content),
                &desired()
            ));
        }
        let other = Change::write(UNIT_PATH, String::new());
        assert!(!(step().wants)(&other, &desired()));
    }

    #[tokio::test]
    async fn groups_are_omitted_for_podman_before_5_1() {
        let (old, podman) = ("4.3.1+ds1-8+deb12u1", RuntimeKind::Podman);
        for (kind, version, toolkit, left_out) in [
            (podman, old, "1.20.0-1", true),
            (podman, old, "1.19.0-1", true),
            (podman, old, "1.18.2-1", false),
            (podman, "5.1.0+ds1-1", "1.20.0-1", false),
            (podman, "5.4.2+ds1-2+b1", "1.20.0-1", false),
            (RuntimeKind::Docker, old, "1.20.0-1", false),
        ] {
            let (host, fakes) = fake::host();
            let status = [
                ("dpkg", "1.21.22"),
                ("podman", version),
                ("nvidia-container-toolkit", toolkit),
            ]
            .map(|(name, version)| {
                format!(
                    "Package: {name}\nStatus: install ok installed\nArchitecture: amd64\n\
                     Version: {version}\n\n"
                )
            });
            fakes.files.put("/var/lib/dpkg/status", status.concat());
            fakes.files.put("/usr/bin/podman", "");
            let (facts, mut want) = (facts(), desired());
            want.runtimes[0].kind = kind;
            let state = fixtures::state(&host, facts.clone());
            let cx = fixtures::cx(&host, &facts, &state, &want);
            let found = old_reader(&cx).await;
            assert_eq!(
                found,
                left_out.then_some(("Podman", Version(4, 3))),
                "{version} {toolkit}"
            );
        }
    }

    #[test]
    fn step_waits_for_a_loaded_driver() {
        let (mut want, facts) = (desired(), facts());
        decide(&state(""), &want, &facts).expect_after();
        want.image = true;
        decide(&state(""), &want, &facts).expect_awaiting_boot();
    }
}
