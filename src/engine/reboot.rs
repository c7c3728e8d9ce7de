//! The reboot itself: it waits until others have done their work, and is requested again if it does
//! not happen.

use std::time::Duration;

use super::{
    Cancel, EngineError, Tools,
    install::finish,
    ledger::Ledger,
    result::Mode,
    resume::{self, UNIT},
};
use crate::{
    change::Problem,
    error::{Report, one_line},
    exit::Exit,
    host::{Cmd, FilesError, Host},
    journal::{Ended, Journal},
    tools::{cloud_init, packages::locks, systemctl},
};

/// How long the work of others is waited for. A `runcmd` of cloud-init may install software.
const OTHERS: Duration = Duration::from_secs(30 * 60);

/// The pause between two looks at the work of others.
const POLL_OTHERS: Duration = Duration::from_secs(2);

/// How often the reboot is requested.
const REQUESTS: u32 = 3;

/// How long systemd may take to begin with the shutdown after a request.
const BEGINS: Duration = Duration::from_secs(60);

/// The pause between two looks whether it has begun.
const POLL: Duration = Duration::from_secs(1);

/// The pause after a request that was refused.
const AGAIN: Duration = Duration::from_secs(20);

/// How long `systemctl reboot` may take to send the request.
const REQUEST_DEADLINE: Duration = Duration::from_secs(60);

/// The reason where somebody asked to stop before the request.
pub(super) const REBOOT_STOPPED: &str = "reboot-stopped";

/// The error of a machine that did not reboot, although it had to.
fn not_rebooted(reason: &'static str, why: &str) -> Problem {
    let problem = Problem::new(reason, format!("reboot the machine: {why}"));
    problem.exiting(Exit::RebootRequired).advice(
        "progress is saved; reboot the machine yourself, then the run continues automatically",
    )
}

/// The error where another run has begun since the reboot was found to be needed.
fn overtaken(error: EngineError) -> Problem {
    Problem {
        hint: error.hint(),
        ..Problem::new(error.reason(), "reboot the machine")
            .exiting(Exit::RebootRequired)
            .caused_by(error)
    }
}

/// Reboots the machine as soon as cloud-init and package managers have done their work, or after a
/// bound. Returns while the machine shuts down, or when the resume unit has taken over.
///
/// # Errors
/// When it does not reboot.
pub(super) async fn reboot(
    tools: &Tools,
    locks: &[&str],
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), Problem> {
    let host = &tools.host;
    // cloud-init waits for this run, so this run must not wait for cloud-init. The unit takes the run
    // lock, so it must be free.
    match cloud_init::started_us(&*host.files) {
        Ok(false) => {}
        Ok(true) => match resume::hand_over(host).await {
            Ok(true) => {
                say(&format!(
                    "cloud-init waits for this command: `{UNIT}` reboots the machine when \
                     cloud-init has ended"
                ));
                return Ok(());
            }
            Ok(false) => {}
            Err(error) => say(&format!("failed to start `{UNIT}`: {}", one_line(&error))),
        },
        Err(error) => say(&format!("failed to {}", one_line(&error))),
    }
    // Nobody may change the machine while it waits to be rebooted. The end of the run has released
    // the lock, so another one may have been faster.
    let _lock = tools.lock().map_err(|error| overtaken(error.into()))?;
    let (journal, _) = Journal::open(host, tools.events.run(), tools.events.secrets())
        .map_err(|error| overtaken(error.into()))?;
    let receipt = journal.receipt();
    let last_installs = (receipt.runs.last()).is_some_and(|run| run.mode == Mode::Install.word());
    if receipt.awaited.is_none() || !last_installs {
        let why = "another run has changed it meanwhile";
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

/// A person who stops the reboot has to continue the run, so nothing does it at the next boot.
async fn stopped(
    tools: &Tools,
    journal: Journal,
    by: Exit,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), EngineError> {
    let ledger = Ledger {
        journal,
        verbs: tools.verbs.clone(),
        events: tools.events.clone(),
    };
    if by == Exit::Interrupted {
        match resume::dismiss(&ledger).await? {
            Some(note) => say(&note),
            None => say(
                "stopped by Ctrl-C: the machine is not rebooted, and the next boot does not \
                 continue the run; reboot it, then run `gpu-bootstrap install` to continue",
            ),
        }
    } else {
        say("stopped by a signal: the machine is not rebooted; the next boot continues the run");
    }
    // The run had ended with a reboot that was to come.
    let runs = ledger.journal.receipt().runs;
    let ours = runs.iter().rfind(|run| run.id == tools.events.run());
    if let Some(Ended { summary, .. }) = ours.and_then(|run| run.ended.as_ref()) {
        finish(&ledger.journal, by, *summary)?;
    }
    Ok(())
}

/// Waits for others, and requests the reboot.
async fn request(
    tools: &Tools,
    locks: &[&str],
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), Problem> {
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
                say("the machine was asked to reboot, but does not shut down");
            }
            Err(error) => {
                say(&format!("the reboot was refused: {}", one_line(&error)));
                refused = Some(error);
                if attempt < REQUESTS {
                    pause(host, cancel, AGAIN).await?;
                }
            }
        }
    }
    Err(match refused {
        Some(error) => {
            let why = format!("{REQUESTS} requests were refused");
            not_rebooted("reboot-refused", &why).caused_by(error)
        }
        None => {
            let why = format!("{REQUESTS} requests were accepted, but it does not shut down");
            not_rebooted("reboot-refused", &why)
        }
    })
}

async fn wait_for_others(
    host: &Host,
    locks: &[&str],
    cancel: &Cancel,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), Problem> {
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
                "{who} is still at work after {} min: rebooting all the same",
                OTHERS.as_secs() / 60
            ));
            return Ok(());
        }
        if said.as_ref() != Some(&who) {
            say(&format!(
                "the reboot waits until {who} has ended, for at most {} min",
                (OTHERS - waited).as_secs().div_ceil(60)
            ));
            said = Some(who);
        }
        pause(host, cancel, POLL_OTHERS).await?;
    }
}

/// Who would be cut off by a reboot.
fn at_work(host: &Host, locks: &[&str]) -> Result<Option<String>, FilesError> {
    if cloud_init::is_running(&*host.files)? {
        return Ok(Some("cloud-init".to_owned()));
    }
    let holder = locks::holder(&*host.files, &*host.system, locks)?;
    Ok(holder.map(|holder| holder.to_string()))
}

/// Whether systemd has begun to shut down. It sends SIGTERM to this process, too.
async fn shuts_down(host: &Host, cancel: &Cancel) -> bool {
    let began = host.clock.monotonic();
    while host.clock.monotonic().saturating_sub(began) < BEGINS {
        if cancel.exit().is_some() {
            return true;
        }
        // While systemd ends it may not answer any more; the bound ends the wait.
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

fn reboot_stopped(by: Exit) -> Problem {
    not_rebooted(REBOOT_STOPPED, "asked to stop").exiting(by)
}

async fn pause(host: &Host, cancel: &Cancel, pause: Duration) -> Result<(), Problem> {
    tokio::select! {
        biased;
        by = cancel.cancelled() => Err(reboot_stopped(by)),
        () = host.clock.sleep(pause) => Ok(()),
    }
}
