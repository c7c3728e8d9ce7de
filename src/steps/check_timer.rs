//! `check.timer`: a timer that runs `check` every minute and publishes the result: metrics for the textfile collector
//! of node_exporter, and a node condition. The timer exists only if at least one of them is configured.
//!
//! The changes are reverted before the changes of all other steps, because a running `check` queries the GPUs and keeps the
//! driver modules in use.

use camino::Utf8Path;

use super::{
    CHECK_TIMER, MIG_UNIT, messages, program,
    timer::{Needed, TimerUnits},
};
use crate::{
    change::Change,
    config::desired::{Desired, ReportsSpec},
    error::one_line,
    host::{FilesError, trusted::refuse_foreign},
    step::{Assessment, Cx, Step, StepError},
    tools::{
        packages::HEADER,
        systemctl::{UnitState, own_file, quoted},
    },
};

/// The service that runs `check`.
pub const SERVICE: &str = "gpu-bootstrap-check.service";
const TIMER: &str = "gpu-bootstrap-check.timer";

/// The `check.timer` step.
pub(super) fn step() -> Step {
    Step::new(CHECK_TIMER, |cx| Box::pin(assess(cx))).wants(|change, desired| {
        match (&desired.reports, change) {
            (None, _) => false,
            (Some(spec), Change::RunTool { writes, .. }) => {
                spec.metrics.iter().any(|path| writes.contains(path))
            }
            (Some(_), _) => true,
        }
    })
}

/// The default is the state of a machine that was not inspected.
#[derive(Debug, Clone, Default)]
struct TimerState {
    units: TimerUnits,
    /// The metrics file exists.
    has_metrics: bool,
    /// The reason that root must not write to the directory of the metrics file.
    foreign: Option<String>,
}

async fn detect(cx: &Cx<'_>, spec: &ReportsSpec) -> Result<TimerState, StepError> {
    let files = cx.host.files();
    Ok(TimerState {
        units: TimerUnits::detect(cx, SERVICE, TIMER).await?,
        has_metrics: match &spec.metrics {
            Some(path) => files.exists(path)?,
            None => false,
        },
        foreign: match spec.metrics.as_ref().and_then(|path| path.parent()) {
            Some(directory) if cx.state.is_of_this_machine() => {
                match refuse_foreign(files, directory) {
                    Ok(()) => None,
                    Err(error @ FilesError::Foreign { .. }) => Some(one_line(&error)),
                    Err(error) => return Err(error.into()),
                }
            }
            _ => None,
        },
    })
}

/// The service text. Failed checks (exit code 4) and an unreachable cluster (6) do not fail the unit: the metrics or the
/// condition report failed checks, and without a cluster the heartbeat of the condition becomes stale. A `check` that
/// hangs, e.g. in NVML, is killed. Stopping the timer also stops a running `check`.
///
/// The unit ends with its sandbox, and the reason for each common option of `systemd-analyze security` that is missing. A mount
/// namespace would make the kubelet look like a process of a container, and `/etc` and `/usr` would be reported as read-only. A
/// system call that is not in the filter returns `ENOSYS`, as on a kernel without this call, so that programs fall back to an
/// older call. The filter of an old systemd does not contain new calls such as `openat2`.
fn service(program: &Utf8Path, spec: &ReportsSpec) -> String {
    let mut command = format!("{} check --as-installed", quoted(program));
    if let Some(path) = &spec.metrics {
        command.push_str(&format!(" --format prometheus --output {}", quoted(path)));
    }
    if spec.node_condition {
        command.push_str(" --node-condition");
    }
    format!(
        include_str!("check_timer.service"),
        header = HEADER,
        timer = TIMER,
        mig = MIG_UNIT,
        command = command,
    )
}

/// The timer text. A random delay spreads the API requests of a node pool.
fn timer() -> String {
    format!(include_str!("check_timer.timer"), header = HEADER)
}

/// Returns the change that makes the service write metrics. Its undo removes them.
fn write_metrics(path: &Utf8Path) -> Change {
    Change::RunTool {
        purpose: format!("write metrics into `{path}`"),
        command: ["systemctl", "start", "--", SERVICE]
            .map(str::to_owned)
            .into(),
        writes: vec![path.to_owned()],
        repeated: true,
    }
}

fn decide(state: &TimerState, desired: &Desired) -> Assessment {
    let Some(spec) = &desired.reports else {
        return Assessment::not_applicable(
            "neither `check.textfile` nor `check.node-condition` is set",
        );
    };
    let units = &state.units;
    let no_systemd = (units.unit.as_ref()).is_some_and(UnitState::is_not_booted);
    if desired.image || no_systemd {
        return Assessment::awaits_boot("the timer is created at the first boot");
    }
    let program = match &units.program {
        Ok(program) => program,
        Err(why) => return program::not_persistent(why, own_file(SERVICE).as_str()),
    };
    // The directory owner could have placed a symlink there, which an undo would follow.
    if let Some(why) = &state.foreign {
        return Assessment::blocked(
            format!("the metrics directory is not safe for root: {why}"),
            "make root the owner of the `check.textfile` directory (`chown root:root`, `chmod 755`); the collector \
             only reads it",
        );
    }
    let unit = units.unit.as_ref();
    let otherwise = "set neither `check.textfile` nor `check.node-condition`";
    if let Some(refusal) = messages::masked(TIMER, unit, otherwise) {
        return refusal;
    }
    let mut needed = Needed::default();
    let is_new = needed.write(SERVICE, units.service.as_deref(), service(program, spec));
    needed.write(TIMER, units.timer.as_deref(), timer());
    if is_new && units.service.is_some() {
        // The service does not start at boot. This change only makes systemd reload its changed file.
        needed.changes.push(Change::EnableUnit {
            unit: SERVICE.to_owned(),
            start: false,
        });
    }
    if let Some(path) = &spec.metrics
        && (is_new || !state.has_metrics)
    {
        if !state.has_metrics {
            needed.whys.push(format!("`{path}` is missing"));
        }
        needed.changes.push(write_metrics(path));
    }
    needed.start(TIMER, unit);
    if needed.changes.is_empty() {
        let metrics = (spec.metrics.iter()).map(|path| format!("`{path}`"));
        let condition = spec.node_condition.then(|| "the node condition".to_owned());
        let all: Vec<String> = metrics.chain(condition).collect();
        return Assessment::satisfied(format!("`{TIMER}` runs and writes {}", all.join(" and ")));
    }
    Assessment::needs(needed.whys.join("; "), needed.changes)
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    let state = match &cx.desired.reports {
        Some(spec) if !cx.desired.image => detect(cx, spec).await?,
        _ => TimerState::default(),
    };
    Ok(decide(&state, cx.desired))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::fixtures::{desired, unit};

    const FILE: &str = "/var/lib/node_exporter/gpu_bootstrap.prom";

    fn spec(metrics: bool, node_condition: bool) -> Desired {
        Desired {
            reports: Some(ReportsSpec {
                metrics: metrics.then(|| FILE.into()),
                node_condition,
            }),
            ..desired()
        }
    }

    fn bare() -> TimerState {
        TimerState {
            units: TimerUnits {
                program: Ok("/usr/local/bin/gpu-bootstrap".into()),
                ..TimerUnits::default()
            },
            ..TimerState::default()
        }
    }

    /// The state after these changes.
    fn after(mut state: TimerState, changes: &[Change]) -> TimerState {
        for change in changes {
            match change {
                Change::WriteFile { path, content, .. } if path.as_str().ends_with(".timer") => {
                    state.units.timer = Some(content.clone());
                }
                Change::WriteFile { content, .. } => state.units.service = Some(content.clone()),
                Change::RunTool { .. } => state.has_metrics = true,
                Change::EnableUnit { unit, start } if unit == TIMER => {
                    assert!(start);
                    state.units.unit = Some(super::super::fixtures::unit("enabled", "active"));
                }
                Change::EnableUnit { unit, start } => assert!(unit == SERVICE && !start),
                other => panic!("{other:?}"),
            }
        }
        state
    }

    #[test]
    fn not_applicable_without_a_setting() {
        let want = desired();
        assert_eq!(want.reports, None);
        decide(&bare(), &want).expect_not_applicable();
        let (_, changes) = decide(&bare(), &spec(true, false)).expect_needs();
        assert!(changes.iter().all(|change| !(step().wants)(change, &want)));
    }

    #[test]
    fn changes_satisfy_each_output() {
        for (metrics, condition, command) in rows! {
            true, false,
                "check --as-installed --format prometheus --output /var/lib/node_exporter/gpu_bootstrap.prom";
            false, true, "check --as-installed --node-condition";
            true, true,
                "check --as-installed --format prometheus --output /var/lib/node_exporter/gpu_bootstrap.prom --node-condition";
        } {
            let want = spec(metrics, condition);
            let (why, changes) = decide(&bare(), &want).expect_needs();
            assert!(
                why.contains("`gpu-bootstrap-check.service` is missing"),
                "{why}"
            );
            let made = after(bare(), &changes);
            let service = made.units.service.as_deref().unwrap_or_default();
            for option in ["NoNewPrivileges=yes", "SystemCallFilter=@system-service"] {
                assert!(service.contains(&format!("\n{option}\n")), "{service}");
            }
            for option in ["\nProtect", "\nPrivate", "Paths="] {
                assert!(
                    !service.contains(option),
                    "{option} creates a mount namespace"
                );
            }
            let line = format!("ExecStart=/usr/local/bin/gpu-bootstrap {command}\n");
            assert!(service.contains(&line), "{service}");
            decide(&made, &want).expect_satisfied();
            assert!(changes.iter().all(|change| (step().wants)(change, &want)));
        }
    }

    #[test]
    fn removed_output_is_cleaned_up() {
        let both = spec(true, true);
        let (_, changes) = decide(&bare(), &both).expect_needs();
        let made = after(bare(), &changes);
        let only_condition = spec(false, true);
        let unwanted: Vec<&Change> = (changes.iter())
            .filter(|change| !(step().wants)(change, &only_condition))
            .collect();
        assert!(
            matches!(&unwanted[..], [Change::RunTool { writes, .. }] if writes == &[FILE]),
            "{unwanted:?}"
        );
        let (why, changes) = decide(&made, &only_condition).expect_needs();
        assert_eq!(why, "`gpu-bootstrap-check.service` has different content");
        let made = after(made, &changes);
        decide(&made, &only_condition).expect_satisfied();
    }

    #[test]
    fn stopped_or_masked_timer_is_reported() {
        let want = spec(true, false);
        let made = after(bare(), &decide(&bare(), &want).expect_needs().1);
        let stopped = TimerState {
            units: TimerUnits {
                unit: Some(unit("disabled", "inactive")),
                ..made.units.clone()
            },
            ..made.clone()
        };
        let (why, changes) = decide(&stopped, &want).expect_needs();
        assert!(
            why.contains("`gpu-bootstrap-check.timer` is disabled"),
            "{why}"
        );
        assert_eq!(changes.len(), 1);
        let masked = TimerState {
            units: TimerUnits {
                unit: Some(UnitState {
                    load: "masked".into(),
                    ..unit("masked", "inactive")
                }),
                ..made.units.clone()
            },
            ..made
        };
        decide(&masked, &want).expect_blocked();
    }

    #[test]
    fn temporary_executable_blocks() {
        let mut want = spec(true, false);
        let passing = TimerState {
            units: TimerUnits {
                program: Err("`/tmp/gpu-bootstrap` may be emptied".to_owned()),
                ..TimerUnits::default()
            },
            ..bare()
        };
        decide(&passing, &want).expect_blocked();
        want.image = true;
        decide(&TimerState::default(), &want).expect_awaiting_boot();
    }

    /// The owner of the directory could place a symlink there, and an undo would write to its target.
    #[test]
    fn metrics_directory_must_belong_to_root() {
        let others = TimerState {
            foreign: Some("it is writable by non-root users".to_owned()),
            ..bare()
        };
        let refused = decide(&others, &spec(true, false));
        assert!(
            matches!(&refused, Assessment::Blocked { why, .. } if why.contains("not safe for root")),
            "{refused:?}"
        );
    }

    #[test]
    fn unit_executable_is_parsed() {
        let spec = spec(true, true).reports.expect("a spec");
        for (program, expected) in rows! {
            "/usr/local/bin/gpu-bootstrap", Some("/usr/local/bin/gpu-bootstrap");
            "/opt/a program", None;
            "/opt/100%", None;
        } {
            let text = service(program.into(), &spec);
            let found = program::program_in(&text, program::START);
            assert_eq!(found.as_deref().map(Utf8Path::as_str), expected, "{text}");
        }
        assert_eq!(
            program::program_in("[Service]\nExecStart=true\n", program::START),
            None
        );
    }
}
