//! `status --wait`: waits for the end of the current run and reports its result. cloud-init runs this
//! command to report the state of the machine, so the command must not wait for anything that waits
//! for the end of cloud-init.

use std::time::Duration;

use super::{EngineError, StatusSummary, resume::UNIT, status, statusfile};
use crate::{
    change::ChangeError,
    engine::{RunState, RunStatus},
    exit::Exit,
    host::{ExecError, FilesError, Host},
    joins::joins_after_cloud_init,
    steps,
    tools::{
        cloud_init,
        systemctl::{self, OneshotState},
    },
};

/// The unit of `install --unattended`.
pub(super) const OF_USER_DATA: &str = "gpu-bootstrap.service";

/// The polling interval.
const POLL: Duration = Duration::from_secs(1);

/// The state of all runs at one point in time.
struct Seen {
    status: StatusSummary,
    /// The last run of this boot.
    run: Option<RunStatus>,
    units: [OneshotState; 2],
    /// The current run joins the cluster with `nodeadm`, which starts after cloud-init has
    /// finished.
    joins_after_cloud_init: bool,
}

/// Waits until no run is in progress, or until the current run only waits for the end of cloud-init
/// (to reboot the machine or to join with `nodeadm`). Returns the exit status of the last run, or 0
/// if it continues automatically.
///
/// # Errors
/// If the journal or the status of the run cannot be read, or if the run takes longer than `limit`.
pub async fn wait(
    host: &Host,
    boot_id: Option<&str>,
    limit: Duration,
) -> Result<Exit, EngineError> {
    let began = host.clock.monotonic();
    loop {
        if let Some(exit) = verdict(&look(host, boot_id).await?) {
            return Ok(exit);
        }
        let waited = host.clock.monotonic().saturating_sub(began);
        if waited >= limit {
            let seconds = limit.as_secs();
            let what = format!("wait for the run: not finished after {seconds} s");
            let late = ChangeError::new("run-not-ended", what)
                .exiting(Exit::Busy)
                .advice(
                    "the run continues; see `gpu-bootstrap status` and `journalctl -u \
                     gpu-bootstrap -u gpu-bootstrap-resume`",
                );
            return Err(late.into());
        }
        host.clock.sleep(POLL.min(limit - waited)).await;
    }
}

async fn look(host: &Host, boot_id: Option<&str>) -> Result<Seen, EngineError> {
    let unreadable = |error: FilesError| {
        let problem = ChangeError::new("status-unreadable", "read the status of the run");
        problem.exiting(Exit::Internal).caused_by(error)
    };
    // Read the units first: if a unit has finished, its run has already written its complete results.
    let ended = once(host, OF_USER_DATA).await.map_err(unreadable)?;
    let units = [ended, once(host, UNIT).await.map_err(unreadable)?];
    let run = statusfile::read(&*host.files).map_err(unreadable)?;
    let status = status(host, boot_id)?;
    // The file that lets `nodeadm` join is not sufficient evidence, because it is not removed after the join.
    let joins_after_cloud_init = joins(&status)
        && (joins_after_cloud_init(&*host.files)).map_err(unreadable)?
        && cloud_init::is_running(&*host.files).map_err(unreadable)?;
    Ok(Seen {
        status,
        run,
        units,
        joins_after_cloud_init,
    })
}

/// Whether the current run is joining the cluster.
fn joins(status: &StatusSummary) -> bool {
    let steps = status.current.iter().flat_map(|run| &run.progress.steps);
    let mut active = steps.filter(|step| step.active);
    active.any(|step| step.id == steps::CLUSTER_JOIN)
}

/// Returns the state of a unit. If systemd does not respond, the unit counts as busy, because systemd
/// may be restarting, for example during an upgrade of its package. Without systemd, no unit is active.
pub(super) async fn once(host: &Host, unit: &str) -> Result<OneshotState, FilesError> {
    if !host.files.exists(systemctl::BOOTED.into())? {
        return Ok(OneshotState::Idle);
    }
    Ok(match host.reader().query(&systemctl::once(unit)).await {
        Ok(output) => systemctl::parse_once(&output.stdout).unwrap_or(OneshotState::Busy),
        Err(ExecError::NotFound { .. }) => OneshotState::Idle,
        Err(_) => OneshotState::Busy,
    })
}

/// Returns the result of the last run, or `None` if a run must be waited for.
fn verdict(seen: &Seen) -> Option<Exit> {
    let Seen { status, run, .. } = seen;
    let state = run.as_ref().map(|run| run.state);
    let by_itself = (status.awaited_reboot.as_ref()).is_some_and(|awaited| awaited.automatic);
    if status.reboot_due && by_itself && state != Some(RunState::Running) {
        return Some(Exit::Ok);
    }
    let alive = status.current.as_ref().is_some_and(|current| current.alive);
    if alive || seen.units.contains(&OneshotState::Busy) {
        return seen.joins_after_cloud_init.then_some(Exit::Ok);
    }
    // A unit that failed before its run started, for example because of an invalid setting, has no
    // status file or only the file of an earlier run.
    let failures = seen.units.iter().filter_map(|unit| match unit {
        OneshotState::Failed { code, at } => Some((at, code.map_or(Exit::Internal, Exit::of))),
        _ => None,
    });
    let failed = failures.max_by_key(|(at, _)| **at);
    let ended = run.as_ref().and_then(|run| {
        let is_older = |at: &Duration| run.uptime.is_some_and(|end| end < at.as_secs_f64());
        run.exit
            .filter(|_| !failed.is_some_and(|(at, _)| is_older(at)))
    });
    let last = || match &status.last {
        None => Exit::Ok,
        Some(last) => (last.ended.as_ref()).map_or(Exit::StepFailed, |ended| Exit::of(ended.exit)),
    };
    Some(match (ended, failed, state) {
        (Some(code), _, _) => Exit::of(code),
        (None, Some((_, failed)), _) => failed,
        (None, None, Some(_)) => Exit::StepFailed,
        (None, None, None) if status.gave_up.is_some() => Exit::StepFailed,
        (None, None, None) => last(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::{
        engine::{Current, Progress, StepProgress},
        error::Report,
        host::fake,
        journal::{Awaited, Ended, Run},
        model::id::StepId,
    };

    fn nothing() -> Seen {
        let (host, _) = fake::host();
        Seen {
            status: status(&host, Some("boot-1")).unwrap(),
            run: None,
            units: [OneshotState::Idle; 2],
            joins_after_cloud_init: false,
        }
    }

    fn at() -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }

    fn run(state: RunState, exit: Option<u8>) -> Option<RunStatus> {
        Some(RunStatus {
            schema: statusfile::SCHEMA,
            run: "1".to_owned(),
            mode: "install".to_owned(),
            state,
            since: at(),
            at: at(),
            seconds: 0.0,
            uptime: Some(100.0),
            steps_ended: 0,
            steps: 1,
            last_step: None,
            fault: None,
            reboot: None,
            exit,
        })
    }

    fn failed(code: Option<u8>, seconds: u64) -> OneshotState {
        let at = Duration::from_secs(seconds);
        OneshotState::Failed { code, at }
    }

    fn last(exit: Option<u8>) -> Option<Run> {
        Some(Run {
            id: "1".to_owned(),
            tool: "1".to_owned(),
            mode: "install".to_owned(),
            started: at(),
            ended: exit.map(|exit| Ended {
                at: at(),
                exit,
                summary: crate::event::Summary::default(),
                node: None,
                upgrade_failed: None,
                why: None,
            }),
        })
    }

    fn awaiting(automatic: bool, due: bool) -> Seen {
        let mut seen = nothing();
        seen.run = due.then(|| run(RunState::RebootAwaited, Some(8))).flatten();
        seen.status.last = last(Some(8));
        seen.status.reboot_due = due;
        seen.status.awaited_reboot = Some(Awaited {
            boot_id: Some("boot-1".to_owned()),
            why: "nouveau holds the GPU".to_owned(),
            automatic,
            since: at(),
        });
        seen
    }

    #[test]
    fn machine_without_a_run_is_not_waited_for() {
        assert_eq!(verdict(&nothing()), Some(Exit::Ok));
    }

    #[test]
    fn run_is_waited_for_from_unit_start_to_end() {
        let mut seen = nothing();
        seen.units[0] = OneshotState::Busy;
        assert_eq!(verdict(&seen), None);
        seen.run = run(RunState::Running, None);
        assert_eq!(verdict(&seen), None);
        // After an internal error, the unit restarts.
        seen.run = run(RunState::Failed, Some(1));
        assert_eq!(verdict(&seen), None);
        for (state, exit, ends) in [
            (RunState::Done, 0, Exit::Ok),
            (RunState::Failed, 5, Exit::Blocked),
            (RunState::Failed, 6, Exit::StepFailed),
        ] {
            seen.run = run(state, Some(exit));
            seen.units[0] = match exit {
                0 => OneshotState::Idle,
                code => failed(Some(code), 101),
            };
            assert_eq!(verdict(&seen), Some(ends));
        }
    }

    fn current(active: &[StepId]) -> Current {
        let step = |id: &StepId| StepProgress {
            id: id.clone(),
            title: String::new(),
            outcome: None,
            active: true,
        };
        Current {
            alive: true,
            progress: Progress {
                schema: 1,
                run: "1".to_owned(),
                mode: "install".to_owned(),
                pid: 1,
                pid_started: None,
                command: "gpu-bootstrap install".to_owned(),
                since: at(),
                at: at(),
                steps: active.iter().map(step).collect(),
                changes: Vec::new(),
                detail: None,
            },
        }
    }

    #[test]
    fn interactive_run_is_waited_for() {
        let mut seen = nothing();
        seen.status.current = Some(current(&[]));
        seen.run = run(RunState::Running, None);
        assert_eq!(verdict(&seen), None);
    }

    #[test]
    fn failure_before_the_run_is_reported() {
        let mut seen = nothing();
        seen.units[0] = failed(Some(3), 7);
        assert_eq!(verdict(&seen), Some(Exit::Config));
        seen.units[0] = failed(None, 7);
        seen.run = run(RunState::Running, None);
        assert_eq!(verdict(&seen), Some(Exit::Internal));
        // The run was interrupted and is not continued.
        seen.units[0] = OneshotState::Idle;
        assert_eq!(verdict(&seen), Some(Exit::StepFailed));
    }

    /// A unit may fail after an earlier run has finished, before its own run starts. Conversely, the
    /// administrator may fix the problem and repeat the run after the unit failed.
    #[test]
    fn later_result_of_unit_and_run_counts() {
        let mut seen = nothing();
        seen.run = run(RunState::Done, Some(0));
        seen.units[0] = failed(Some(3), 101);
        assert_eq!(verdict(&seen), Some(Exit::Config));
        seen.units[0] = failed(Some(3), 99);
        assert_eq!(verdict(&seen), Some(Exit::Ok));
        seen.units = [failed(Some(3), 102), failed(Some(5), 103)];
        assert_eq!(verdict(&seen), Some(Exit::Blocked));
    }

    /// The reboot waits for the end of cloud-init, which waits for `status --wait`.
    #[test]
    fn reboot_is_not_waited_for() {
        let mut seen = awaiting(true, true);
        seen.units[0] = OneshotState::Busy;
        assert_eq!(verdict(&seen), Some(Exit::Ok));
        // The reboot is not automatic.
        assert_eq!(verdict(&awaiting(false, true)), Some(Exit::RebootRequired));
        // The run after the reboot, before and after its start.
        let mut seen = awaiting(true, false);
        seen.units[1] = OneshotState::Busy;
        assert_eq!(verdict(&seen), None);
        seen.run = run(RunState::Running, None);
        assert_eq!(verdict(&seen), None);
        seen.units[1] = OneshotState::Idle;
        seen.run = run(RunState::Done, Some(0));
        assert_eq!(verdict(&seen), Some(Exit::Ok));
        // The resume unit was removed, so no run followed the reboot.
        assert_eq!(verdict(&awaiting(true, false)), Some(Exit::RebootRequired));
    }

    /// `nodeadm-run` starts after cloud-init, which waits for `status --wait`.
    #[test]
    fn join_by_nodeadm_is_not_waited_for() {
        let mut seen = nothing();
        seen.units[0] = OneshotState::Busy;
        seen.run = run(RunState::Running, None);
        seen.joins_after_cloud_init = true;
        assert_eq!(verdict(&seen), Some(Exit::Ok));
        seen.units[0] = failed(Some(6), 101);
        seen.run = run(RunState::Failed, Some(6));
        assert_eq!(verdict(&seen), Some(Exit::StepFailed));
    }

    /// The file that lets `nodeadm` join is not removed after the join, so the active step decides.
    #[test]
    fn later_run_is_waited_for_until_join() {
        let mut status = nothing().status;
        assert!(!joins(&status));
        for (active, expected) in [(steps::DRIVER_PACKAGES, false), (steps::CLUSTER_JOIN, true)] {
            status.current = Some(current(&[active]));
            assert_eq!(joins(&status), expected);
        }
    }

    #[test]
    fn last_result_is_reported_after_later_boot() {
        let mut seen = nothing();
        for (exit, said) in [
            (Some(0), Exit::Ok),
            (Some(6), Exit::StepFailed),
            (None, Exit::StepFailed),
        ] {
            seen.status.last = last(exit);
            assert_eq!(verdict(&seen), Some(said));
        }
        seen.status.last = last(Some(0));
        seen.status.gave_up = Some("3 consecutive boots ended before the run finished".to_owned());
        assert_eq!(verdict(&seen), Some(Exit::StepFailed));
    }

    #[tokio::test]
    async fn wait_ends_with_the_unit_or_at_the_limit() {
        const BUSY: &str = "ActiveState=active\nResult=success\nExecMainStatus=0\n";
        let (host, fakes) = fake::host();
        fakes.files.put_directory(systemctl::BOOTED, 0o755);
        let looks = Arc::new(Mutex::new(0));
        fakes.exec.on("systemctl", move |_, _| {
            let mut looks = looks.lock().unwrap();
            *looks += 1;
            // Each poll queries two units.
            fake::ok(match *looks {
                0..5 => BUSY,
                _ => {
                    "ActiveState=failed\nResult=exit-code\nExecMainStatus=5\n\
                     InactiveEnterTimestampMonotonic=1\n"
                }
            })
        });
        let minute = Duration::from_secs(60);
        let ended = wait(&host, Some("boot-1"), minute).await;
        assert_eq!(ended.unwrap(), Exit::Blocked);
        assert_eq!(fakes.clock.slept(), [POLL; 2]);

        let (host, fakes) = fake::host();
        fakes.files.put_directory(systemctl::BOOTED, 0o755);
        fakes.exec.on("systemctl", |_, _| fake::ok(BUSY));
        let late = wait(&host, Some("boot-1"), minute).await.unwrap_err();
        assert_eq!(late.exit(), Exit::Busy);
        assert_eq!(
            late.to_string(),
            "wait for the run: not finished after 60 s"
        );

        // Without systemd, as in an application container, no unit is active.
        let (host, _) = fake::host();
        let ended = wait(&host, Some("boot-1"), minute).await;
        assert_eq!(ended.unwrap(), Exit::Ok);
    }
}
