//! Reboots the machine after other programs have finished their work, and repeats the request if
//! the machine does not shut down.

use std::time::Duration;

use super::{
    Cancel, EngineError, Tools,
    install::{Reasons, end},
    ledger::Ledger,
    result::Mode,
    resume::{self, UNIT},
};
use crate::{
    change::ChangeError,
    error::{Report, one_line},
    exit::Exit,
    host::{Cmd, FilesError, Host},
    journal::{Ended, Journal, Run},
    tools::{cloud_init, packages::locks, systemctl},
};

/// The maximum time to wait for other programs. A `runcmd` of cloud-init may install software.
const OTHERS: Duration = Duration::from_secs(30 * 60);

/// The polling interval while other programs are working.
const POLL_OTHERS: Duration = Duration::from_secs(2);

/// The maximum number of reboot requests.
const REQUESTS: u32 = 3;

/// The maximum time for systemd to start the shutdown after a request.
const BEGINS: Duration = Duration::from_secs(60);

/// The polling interval for the start of the shutdown.
const POLL: Duration = Duration::from_secs(1);

/// The pause after a rejected request.
const AGAIN: Duration = Duration::from_secs(20);

/// The deadline of `systemctl reboot`.
const REQUEST_DEADLINE: Duration = Duration::from_secs(60);

/// The error reason if a stop was requested before the reboot.
pub(super) const REBOOT_STOPPED: &str = "reboot-stopped";

/// The error if a required reboot did not happen.
fn not_rebooted(reason: &'static str, why: &str) -> ChangeError {
    let problem = ChangeError::new(reason, format!("reboot the machine: {why}"));
    problem.exiting(Exit::RebootRequired).advice(
        "progress is saved; reboot the machine manually, and the run then continues automatically",
    )
}

/// The error if the run lock or the journal cannot be used, such as when another run has started in the meantime.
fn overtaken(error: EngineError) -> ChangeError {
    ChangeError {
        hint: error.hint(),
        ..ChangeError::new(error.reason(), "reboot the machine")
            .exiting(Exit::RebootRequired)
            .caused_by(error)
    }
}

/// Reboots the machine when cloud-init and package managers have finished, or after a time limit.
/// Returns while the machine shuts down, or when the resume unit has taken over.
///
/// # Errors
/// If the machine does not reboot.
pub(super) async fn reboot(
    tools: &Tools,
    locks: &[&str],
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), ChangeError> {
    let host = &tools.host;
    // If cloud-init has started this run, cloud-init waits for it, so this run must not wait for
    // cloud-init. The resume unit waits instead. The unit needs the run lock, so this run must not
    // hold the lock yet.
    match cloud_init::started_us(&*host.files) {
        Ok(false) => {}
        Ok(true) => match resume::hand_over(host).await {
            Ok(true) => {
                say(&format!(
                    "cloud-init waits for this command: `{UNIT}` reboots the machine after \
                     cloud-init has finished"
                ));
                return Ok(());
            }
            Ok(false) => {}
            Err(error) => say(&format!("failed to start `{UNIT}`: {}", one_line(&error))),
        },
        Err(error) => say(&format!("failed to {}", one_line(&error))),
    }
    // No other run may change the machine while it waits for the reboot. The lock was released at
    // the end of the run, so another run may have acquired it first.
    let _lock = tools.lock().map_err(|error| overtaken(error.into()))?;
    let (journal, _) = Journal::open(host, tools.events.run(), tools.events.secrets())
        .map_err(|error| overtaken(error.into()))?;
    let receipt = journal.receipt();
    let last_installs = (receipt.runs.last()).is_some_and(Run::installs);
    if receipt.awaited.is_none() || !last_installs {
        let why = "another run has changed it in the meantime";
        return Err(not_rebooted("reboot-not-awaited", why).advice("run `gpu-bootstrap status`"));
    }
    let ended = request(tools, locks, say).await;
    if let Err(error) = &ended
        && error.reason == REBOOT_STOPPED
    {
        let stopped = stopped(tools, journal, error.exit, say).await;
        stopped.map_err(overtaken)?;
    }
    ended
}

/// Records that a stop was requested before the reboot. After Ctrl-C, the next boot does not continue
/// the run, because the user has taken over.
async fn stopped(
    tools: &Tools,
    journal: Journal,
    by: Exit,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), EngineError> {
    let ledger = Ledger {
        journal,
        change_applier: tools.change_applier.clone(),
        events: tools.events.clone(),
    };
    if by == Exit::Interrupted {
        match resume::dismiss(&ledger).await? {
            Some(note) => say(&note),
            None => say(&format!(
                "stopped by Ctrl-C: the machine is not rebooted, and the next boot does not \
                 continue the run; run `systemctl reboot`, then `{}` with the same options to \
                 continue",
                Mode::of(&tools.options.request).command()
            )),
        }
    } else {
        say("stopped by a signal: the machine is not rebooted; the next boot continues the run");
    }
    // The journal already contains the end of this run with a pending reboot: replace the exit code.
    let runs = ledger.journal.receipt().runs;
    let ours = runs.iter().rfind(|run| run.id == tools.events.run());
    if let Some(Ended { summary, .. }) = ours.and_then(|run| run.ended.as_ref()) {
        end(
            tools,
            &ledger.journal,
            by,
            *summary,
            None,
            Reasons::default(),
        )?;
    }
    Ok(())
}

/// Waits for other programs, then requests the reboot.
async fn request(
    tools: &Tools,
    locks: &[&str],
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), ChangeError> {
    let (host, cancel) = (&tools.host, &tools.cancel);
    wait_for_others(host, locks, cancel, say).await?;
    let request = Cmd::new("systemctl", ["reboot"]).deadline(REQUEST_DEADLINE);
    let mut refused = None;
    for attempt in 1..=REQUESTS {
        if let Some(by) = cancel.exit() {
            return Err(reboot_stopped(by));
        }
        let asked = (host.exec.run(&request, &mut |_, _| {}).await)
            .and_then(|output| output.success(&request));
        match asked {
            Ok(_) if shuts_down(host, cancel).await => return Ok(()),
            Ok(_) => {
                refused = None;
                say("the machine accepted the reboot request, but does not shut down");
            }
            Err(error) => {
                say(&format!(
                    "the reboot request was rejected: {}",
                    one_line(&error)
                ));
                refused = Some(error);
                if attempt < REQUESTS {
                    pause(host, cancel, AGAIN).await?;
                }
            }
        }
    }
    Err(match refused {
        Some(error) => {
            let why = format!("{REQUESTS} requests were rejected");
            not_rebooted("reboot-refused", &why).caused_by(error)
        }
        None => {
            let why =
                format!("{REQUESTS} requests were accepted, but the machine does not shut down");
            not_rebooted("reboot-refused", &why)
        }
    })
}

async fn wait_for_others(
    host: &Host,
    locks: &[&str],
    cancel: &Cancel,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), ChangeError> {
    let began = host.clock.monotonic();
    let mut said: Option<String> = None;
    loop {
        let who = match at_work(host, locks) {
            Ok(Some(who)) => who,
            Ok(None) => return Ok(()),
            Err(error) => {
                say(&format!("failed to {}", one_line(&error)));
                return Ok(());
            }
        };
        let waited = host.clock.monotonic().saturating_sub(began);
        if waited >= OTHERS {
            say(&format!(
                "{who} is still running after {} min: rebooting anyway",
                OTHERS.as_secs() / 60
            ));
            return Ok(());
        }
        if said.as_ref() != Some(&who) {
            say(&format!(
                "waiting up to {} min for {who} before the reboot",
                (OTHERS - waited).as_secs().div_ceil(60)
            ));
            said = Some(who);
        }
        pause(host, cancel, POLL_OTHERS).await?;
    }
}

/// Returns the program that a reboot would interrupt.
fn at_work(host: &Host, locks: &[&str]) -> Result<Option<String>, FilesError> {
    if cloud_init::is_running(&*host.files)? {
        return Ok(Some("cloud-init".to_owned()));
    }
    let holder = locks::holder(&*host.files, &*host.system, locks)?;
    Ok(holder.map(|holder| holder.to_string()))
}

/// Whether systemd has started the shutdown. A stop request also counts, because systemd sends SIGTERM to this process
/// during the shutdown.
async fn shuts_down(host: &Host, cancel: &Cancel) -> bool {
    let began = host.clock.monotonic();
    while host.clock.monotonic().saturating_sub(began) < BEGINS {
        if cancel.exit().is_some() {
            return true;
        }
        // Ignore a failed query, because systemd may not respond during the shutdown.
        if let Ok(output) = host.reader().query(&systemctl::is_system_running()).await
            && output.stdout.trim() == "stopping"
        {
            return true;
        }
        if pause(host, cancel, POLL).await.is_err() {
            return true;
        }
    }
    false
}

fn reboot_stopped(by: Exit) -> ChangeError {
    not_rebooted(REBOOT_STOPPED, "stop requested").exiting(by)
}

async fn pause(host: &Host, cancel: &Cancel, pause: Duration) -> Result<(), ChangeError> {
    tokio::select! {
        biased;
        by = cancel.cancelled() => Err(reboot_stopped(by)),
        () = host.clock.sleep(pause) => Ok(()),
    }
}
