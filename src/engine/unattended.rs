//! `install --unattended`: runs the installation in a systemd unit, so that it outlives cloud-init
//! and the user's terminal.

use super::{
    resume,
    wait::{self, OF_USER_DATA},
};
use crate::{
    change::ChangeError,
    exit::Exit,
    host::{FilesError, Host},
    steps::AFTER_MODULES,
    tools::systemctl::{self, OneshotState},
};

/// At shutdown, systemd sends SIGTERM only to the main process, and waits as long as a package
/// manager may need to finish. The unit is restarted after a crash, but not after an exit status of a
/// permanent failure, because the run has already retried transient ones. The output goes to the
/// journal and the console.
const PROPERTIES: [&str; 11] = [
    AFTER_MODULES,
    "KillMode=mixed",
    "TimeoutStopSec=30min",
    "Restart=on-failure",
    "RestartSec=30",
    "SuccessExitStatus=8",
    "RestartPreventExitStatus=2 3 5 6 7 9 10",
    "StartLimitIntervalSec=1h",
    "StartLimitBurst=3",
    "StandardOutput=journal+console",
    "StandardError=journal+console",
];

/// Starts the unit with this command (program first). Returns `false` without starting it if a run
/// is in progress, including a run that continues after a reboot.
///
/// # Errors
/// If running units cannot be detected, or if the unit was not started.
pub async fn start(host: &Host, command: &[String]) -> Result<bool, ChangeError> {
    if !(host.files.exists(systemctl::BOOTED.into())).map_err(unseen)? {
        let what = "start the installation as a unit: systemd is not running";
        return Err(ChangeError::blocked("no-systemd", what)
            .advice("omit `--unattended`, or build an image with `--image`"));
    }
    if wait::once(host, resume::UNIT).await.map_err(unseen)? == OneshotState::Busy {
        return Ok(false);
    }
    match wait::once(host, OF_USER_DATA).await.map_err(unseen)? {
        OneshotState::Busy => return Ok(false),
        // systemd cannot reuse the name of a failed unit.
        OneshotState::Failed { .. } => {
            act(host, &systemctl::act("reset-failed", OF_USER_DATA)).await?
        }
        OneshotState::Idle => {}
    }
    act(host, &systemctl::run(OF_USER_DATA, &PROPERTIES, command)).await?;
    Ok(true)
}

fn unseen(error: FilesError) -> ChangeError {
    let problem = ChangeError::new("status-unreadable", "check for a run in progress");
    problem.exiting(Exit::Internal).caused_by(error)
}

async fn act(host: &Host, cmd: &crate::host::Cmd) -> Result<(), ChangeError> {
    let ran = host.exec.run(cmd, &mut |_, _| {}).await;
    (ran.and_then(|output| output.success(cmd)).map(drop)).map_err(|error| {
        let problem = ChangeError::new("unit-not-started", format!("start `{OF_USER_DATA}`"));
        problem.exiting(Exit::Internal).caused_by(error)
    })
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;

    use super::*;
    use crate::{engine::UNATTENDED_DEADLINE, host::fake};

    const BUSY: &str = "ActiveState=active\nResult=success\nExecMainStatus=0\n";
    const IDLE: &str = "ActiveState=inactive\nResult=success\nExecMainStatus=0\n";
    const FAILED: &str = "ActiveState=failed\nResult=exit-code\nExecMainStatus=6\n\
                          InactiveEnterTimestampMonotonic=1\n";

    /// Either of the two units may be active during a shutdown, so both have the same properties.
    #[test]
    fn unit_is_stopped_and_restarted_like_the_resume_unit() {
        let resumes = resume::unit(
            Utf8Path::new("/usr/local/bin/gpu-bootstrap"),
            UNATTENDED_DEADLINE,
            true,
        );
        for property in PROPERTIES {
            assert!(resumes.contains(&format!("\n{property}\n")), "{property}");
        }
    }

    #[tokio::test]
    async fn unit_starts_unless_a_run_is_in_progress() {
        for (of_user_data, of_resume, starts, resets) in [
            (IDLE, IDLE, true, false),
            (FAILED, IDLE, true, true),
            (FAILED, FAILED, true, true),
            (BUSY, IDLE, false, false),
            (IDLE, BUSY, false, false),
        ] {
            let (host, fakes) = fake::host();
            fakes.files.put_directory(systemctl::BOOTED, 0o755);
            fakes.exec.on("systemctl", move |cmd, _| {
                let resume = cmd.args.iter().any(|word| word == resume::UNIT);
                fake::ok(if resume { of_resume } else { of_user_data })
            });
            fakes.exec.on("systemd-run", |_, _| fake::ok(""));
            let command =
                ["/usr/local/bin/gpu-bootstrap", "install", "--reboot"].map(str::to_owned);
            assert_eq!(start(&host, &command).await.unwrap(), starts);
            let ran = fakes.exec.lines();
            let of = |words: &str| ran.iter().filter(|line| line.starts_with(words)).count();
            assert_eq!(of("systemctl reset-failed"), usize::from(resets), "{ran:?}");
            let runs: Vec<&String> = ran
                .iter()
                .filter(|line| line.starts_with("systemd-run "))
                .collect();
            assert_eq!(runs.len(), usize::from(starts), "{ran:?}");
            if let [run] = runs[..] {
                assert!(
                    run.starts_with("systemd-run --no-block --unit=gpu-bootstrap.service "),
                    "{run}"
                );
                assert!(
                    run.ends_with(" -- /usr/local/bin/gpu-bootstrap install --reboot"),
                    "{run}"
                );
            }
        }
        let (host, _) = fake::host();
        let error = start(&host, &[]).await.unwrap_err();
        assert_eq!(error.exit, Exit::Blocked);
    }
}
