//! `cdi`: the Container Device Interface specification names the current GPUs and libraries. It
//! becomes stale with every driver change, because library file names contain the version, and
//! after a boot that assigns another number to nvidia-uvm, whose major number is dynamic.

use async_trait::async_trait;
use camino::Utf8Path;

use super::{
    DRIVER_MODULE, DRIVER_NODES, TOOLKIT_PACKAGES, VALIDATION_DEVICES,
    cdi_rules::{self, Conflict, Machine, Seen},
    nodes::{self, USERS},
    words,
};
use crate::{
    change::{Change, Lock},
    config::desired::{Cdi as Wish, Desired},
    facts::Facts,
    model::{id::StepId, version::DriverVersion},
    step::{Assessment, Cx, Step, StepError},
    tools::packages::HEADER,
};

/// The unit that makes the specification again at each boot.
const UNIT: &str = "gpu-bootstrap-cdi.service";

/// Where it is.
const UNIT_PATH: &str = "/etc/systemd/system/gpu-bootstrap-cdi.service";

/// The unit of NVIDIA's toolkit, from version 1.18 on, which writes a specification of its own at each boot and
/// after changes of the driver. It starts after `multi-user.target`, so after the runtimes, and it knows nothing
/// of MIG: so the file of this step stays beside it. Runtimes prefer the file of the unit, so this step also
/// compares that one with the machine, and starts the unit again where it is not right. Source:
/// NVIDIA/nvidia-container-toolkit, `deployments/systemd/nvidia-cdi-refresh.service`.
const REFRESH: &str = "nvidia-cdi-refresh.service";

/// Where packages install it.
const REFRESH_PATHS: [&str; 2] = [
    "/usr/lib/systemd/system/nvidia-cdi-refresh.service",
    "/etc/systemd/system/nvidia-cdi-refresh.service",
];

/// The toolkit's program that writes specifications.
const PROGRAM: &str = "/usr/bin/nvidia-ctk";

/// What the toolkit's unit writes.
const REFRESHED: &str = "/var/run/cdi/nvidia.yaml";

/// See the module.
pub struct Cdi;

#[derive(Debug, Clone, Default)]
struct CdiState {
    /// The unit's file.
    unit: Option<String>,
    enabled: bool,
    loaded: Option<DriverVersion>,
    machine: Machine,
    /// The files with specifications, the own one first if it is there.
    seen: Vec<Seen>,
    /// The toolkit's own unit, which writes a file of its own, is there.
    refreshes: bool,
    /// The toolkit is there.
    has_toolkit: bool,
}

impl CdiState {
    fn own(&self, path: &Utf8Path) -> Option<&Seen> {
        self.seen.iter().find(|seen| seen.path == path)
    }
}

/// The numbers of device nodes can be others at another boot, and when a module is loaded again: then the
/// unit of the nodes is restarted, and this one with it. Where the specification was not made yet, it is
/// not this unit's work: `install` makes it, and can undo it.
fn unit(path: &Utf8Path) -> String {
    format!(
        "{HEADER}[Unit]\n\
         Description=Describe the GPUs for container runtimes (CDI) as they are at this boot\n\
         ConditionPathExists={path}\n\
         ConditionPathExists={PROGRAM}\n\
         ConditionPathExists=/proc/driver/nvidia/version\n\
         After={nodes} nvidia-persistenced.service\n\
         PartOf={nodes}\n\
         Before={USERS}\n\
         \n\
         [Service]\n\
         Type=oneshot\n\
         RemainAfterExit=yes\n\
         ExecStart=/usr/bin/nvidia-ctk cdi generate --output={path}\n\
         TimeoutStartSec=300\n\
         StandardInput=null\n\
         NoNewPrivileges=yes\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        nodes = nodes::UNIT,
    )
}

async fn detect(cx: &Cx<'_>, wish: &Wish) -> Result<CdiState, StepError> {
    let files = cx.host.files();
    let loaded = cx.state.loaded_driver()?.cloned();
    let mut refreshes = false;
    for path in REFRESH_PATHS {
        refreshes |= files.exists(Utf8Path::new(path))?;
    }
    Ok(CdiState {
        unit: files.read_text(Utf8Path::new(UNIT_PATH))?,
        enabled: nodes::is_enabled(cx, UNIT)?,
        machine: cdi_rules::machine(cx, loaded.is_some()).await?,
        seen: cdi_rules::seen(cx, &wish.path)?,
        loaded,
        refreshes,
        has_toolkit: files.exists(Utf8Path::new(PROGRAM))?,
    })
}

/// What the specification names, for people.
fn named(state: &CdiState) -> String {
    let visible = state.machine.visible.as_deref().unwrap_or_default();
    let parts = visible.iter().filter(|one| one.index.contains(':')).count();
    match (visible.len() - parts, parts) {
        (0, 0) => words::count(state.machine.gpus),
        (gpus, 0) => words::count(gpus),
        (0, parts) => format!("{parts} MIG devices"),
        (gpus, parts) => format!("{}, {parts} MIG devices", words::count(gpus)),
    }
}

fn decide(state: &CdiState, desired: &Desired, facts: &Facts) -> Assessment {
    let (Some(wish), Some(_), Some(_)) = (&desired.cdi, &desired.driver, &desired.toolkit) else {
        return Assessment::not_applicable("CDI is not wanted");
    };
    let generate = vec![Change::RunTool {
        purpose: "describe the GPUs for container runtimes (CDI)".into(),
        command: vec![
            "nvidia-ctk".into(),
            "cdi".into(),
            "generate".into(),
            format!("--output={}", wish.path),
        ],
        writes: vec![wish.path.clone()],
        repeated: true,
    }];
    let mut at_boot = Vec::new();
    let unit = unit(&wish.path);
    if state.unit.as_ref() != Some(&unit) {
        at_boot.push(Change::write(UNIT_PATH, unit));
    }
    if !state.enabled {
        // The specification is of now; the unit is for later boots.
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
    if let Some(blocked) = obstacle(state, wish, loaded) {
        return blocked;
    }
    let own = state.own(&wish.path);
    let stale = match own {
        None => Some("is missing".to_owned()),
        Some(seen) => cdi_rules::stale(seen, &state.machine, loaded),
    };
    let (mut whys, mut changes) = (Vec::new(), Vec::new());
    if let Some(why) = stale {
        let right = cdi_rules::hiding(&wish.path, &state.seen)
            .find(|seen| cdi_rules::stale(seen, &state.machine, loaded).is_none());
        let but = right.map_or_else(String::new, |seen| {
            format!(
                "; runtimes prefer `{}`, which is right, so containers get the GPUs",
                seen.path
            )
        });
        whys.push(format!("`{}` {why}{but}", wish.path));
        changes.extend(generate);
    }
    if whys.is_empty() && !at_boot.is_empty() {
        whys.push(format!(
            "`{UNIT}` does not make `{}` again at boot",
            wish.path
        ));
    }
    changes.extend(at_boot);
    let theirs = cdi_rules::hiding(&wish.path, &state.seen)
        .find_map(|seen| Some((seen, cdi_rules::stale(seen, &state.machine, loaded)?)));
    if let Some((seen, why)) = theirs {
        whys.push(format!("`{}`, which runtimes prefer, {why}", seen.path));
        changes.push(Change::RestartUnit {
            unit: REFRESH.to_owned(),
        });
    }
    if !whys.is_empty() {
        return Assessment::needs(whys.join("; "), changes);
    }
    let mut why = format!("`{}` names {} and driver {loaded}", wish.path, named(state));
    for seen in cdi_rules::hiding(&wish.path, &state.seen) {
        why.push_str(&format!("; `{}` does, too", seen.path));
    }
    Assessment::satisfied(why)
}

/// What only a person can put right: nothing of others is deleted.
fn obstacle(state: &CdiState, wish: &Wish, loaded: &DriverVersion) -> Option<Assessment> {
    if let Some(conflict) = cdi_rules::conflict(&state.seen) {
        let Conflict { one, other, names } = conflict;
        return Some(Assessment::blocked(
            format!(
                "`{one}` and `{other}` both name {}: runtimes give to nobody what two files of one folder \
                 name",
                names.join(", ")
            ),
            format!(
                "take these devices out of `{other}`, or move it away; this program deletes no file of others"
            ),
        ));
    }
    let dead = (state.seen.iter()).find_map(|seen| cdi_rules::dead_node(seen, &state.machine));
    if let Some(why) = dead {
        return Some(Assessment::blocked(
            why,
            "remove the node, and run `nvidia-modprobe -u -c 0` (or reboot), which makes it anew",
        ));
    }
    let stranger = cdi_rules::hiding(&wish.path, &state.seen)
        .filter(|seen| !(state.refreshes && seen.path == REFRESHED))
        .find_map(|seen| Some((seen, cdi_rules::stale(seen, &state.machine, loaded)?)));
    let (seen, why) = stranger?;
    let why = format!(
        "`{}` {why}, and runtimes prefer it to `{}`",
        seen.path, wish.path
    );
    let hint = format!(
        "correct `{}`, or remove it; this program deletes no file of others",
        seen.path
    );
    Some(match seen.path == REFRESHED && !state.has_toolkit {
        // A toolkit that was removed has left it, and the unit of the one that comes writes it anew.
        true => Assessment::BlockedNow {
            why,
            hint,
            passes: None,
        },
        false => Assessment::blocked(why, hint),
    })
}

#[async_trait]
impl Step for Cdi {
    fn id(&self) -> StepId {
        super::CDI
    }

    /// `nvidia-ctk` asks every GPU: where one does not start, it takes minutes to fail, in words
    /// about the specification.
    fn after(&self) -> &[StepId] {
        const {
            &[
                DRIVER_MODULE,
                DRIVER_NODES,
                TOOLKIT_PACKAGES,
                VALIDATION_DEVICES,
            ]
        }
    }

    fn locks(&self) -> &[Lock] {
        &[Lock::Containers]
    }

    fn wants(&self, change: &Change, desired: &Desired) -> bool {
        let Some(wish) = &desired.cdi else {
            return desired.driver.is_none();
        };
        // A unit with another text would do nothing.
        match change {
            Change::WriteFile { content, .. } => *content == unit(&wish.path),
            _ => true,
        }
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        let state = match &cx.desired.cdi {
            Some(wish) => detect(cx, wish).await?,
            None => CdiState::default(),
        };
        Ok(decide(&state, cx.desired, cx.facts))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        CdiState, REFRESH, REFRESHED,
        cdi_rules::{Machine, Seen, Visible},
        decide, unit,
    };
    use crate::{
        change::Change,
        step::Assessment,
        steps::fixtures::{desired, facts},
        tools::cdi::parse,
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

    fn seen(path: &str, text: &str) -> Seen {
        Seen {
            path: path.into(),
            spec: parse(text),
            missing: vec![],
            nodes: vec![],
        }
    }

    fn state(loaded: &str) -> CdiState {
        let path = desired().cdi.map(|wish| wish.path).unwrap_or_default();
        CdiState {
            unit: Some(unit(&path)),
            enabled: true,
            loaded: loaded.parse().ok(),
            machine: Machine {
                gpus: 1,
                ..Machine::default()
            },
            seen: vec![seen(path.as_str(), SPEC)],
            refreshes: true,
            has_toolkit: true,
        }
    }

    /// Why it would be made again, or what a person has to do.
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
    fn what_is_missing_broken_or_stale_is_made_again() {
        let good = state("535.261.03");
        assert!(said(&good).ends_with("names 1 GPU and driver 535.261.03"));
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
        assert!(said(&state("535.309.01")).contains("is not of the loaded driver 535.309.01"));
    }

    #[test]
    fn what_two_files_of_one_folder_name_needs_a_person() {
        let mut state = state("535.261.03");
        let team = "kind: nvidia.com/gpu\ndevices:\n    - name: all\n    - name: team\n";
        state.seen.push(seen("/etc/cdi/team.yaml", team));
        let why = said(&state);
        assert!(
            why.starts_with(
                "blocked: `/etc/cdi/nvidia.yaml` and `/etc/cdi/team.yaml` both name all:"
            ) && why.contains("take these devices out of `/etc/cdi/team.yaml`"),
            "{why}"
        );
        // Names of its own are no business of this program.
        let own = team.replace("    - name: all\n", "");
        state.seen[1] = seen("/etc/cdi/team.yaml", &own);
        assert!(said(&state).ends_with("driver 535.261.03"));
        state.seen[1] = seen("/var/run/cdi/team.yaml", &own);
        assert!(said(&state).ends_with("driver 535.261.03"));
        state.seen[1] = seen("/var/run/cdi/team.yaml", team);
        assert!(said(&state).contains("runtimes prefer it"));
    }

    #[test]
    fn the_file_of_the_toolkit_is_preferred_so_it_has_to_be_right() {
        let mut state = state("535.261.03");
        state.seen.push(seen(REFRESHED, SPEC));
        assert!(said(&state).ends_with("`/var/run/cdi/nvidia.yaml` does, too"));
        state.seen[1] = seen(REFRESHED, &SPEC.replace("535.261.03", "525.1.1"));
        let (why, changes) = decide(&state, &desired(), &facts()).expect_needs();
        assert!(
            why.starts_with("`/var/run/cdi/nvidia.yaml`, which runtimes prefer, "),
            "{why}"
        );
        assert_eq!(
            changes,
            [Change::RestartUnit {
                unit: REFRESH.to_owned()
            }]
        );
        // Without the unit it is the file of somebody, unless the toolkit brings the unit.
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
    fn names_are_told_of_the_machine() {
        let mut state = state("535.261.03");
        state.machine.visible = Some(vec![Visible {
            index: "0".into(),
            uuid: Some("GPU-2".into()),
        }]);
        assert!(said(&state).ends_with("names 1 GPU and driver 535.261.03"));
    }

    #[test]
    fn a_unit_makes_it_again_at_each_boot() {
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
    fn without_a_loaded_driver_it_waits() {
        let (mut want, facts) = (desired(), facts());
        decide(&state(""), &want, &facts).expect_after();
        want.image = true;
        decide(&state(""), &want, &facts).expect_awaiting_boot();
    }
}
