//! The reboot itself: it waits until others have done their work, and is requested again if it does
//! not happen.

use std::time::Duration;

use super::{
    Cancel,
    resume::{self, UNIT},
};
use crate::{
    error::{Report, one_line},
    exit::Exit,
    host::{Cmd, ExecError, FilesError, Host},
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

/// Why the machine did not reboot.
#[derive(Debug, thiserror::Error)]
pub enum RebootError {
    /// The request was refused each time.
    #[error("reboot the machine: {REQUESTS} requests were refused")]
    Refused(#[source] ExecError),
    /// The request was accepted, and nothing happened.
    #[error("reboot the machine: {REQUESTS} requests were accepted, but it does not shut down")]
    StillUp,
    /// Somebody asked to stop before the request.
    #[error("reboot the machine: asked to stop")]
    Stopped,
}

impl Report for RebootError {
    fn exit(&self) -> Exit {
        Exit::RebootRequired
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Refused(_) | Self::StillUp => "reboot-refused",
            Self::Stopped => "reboot-stopped",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(
            "progress is saved; reboot the machine yourself, then the run continues automatically"
                .to_owned(),
        )
    }
}

/// Reboots the machine as soon as cloud-init and package managers have done their work, or after a
/// bound. Returns while the machine shuts down, or when the resume unit has taken over.
///
/// # Errors
/// See [`RebootError`].
pub async fn reboot(
    host: &Host,
    locks: &[&str],
    cancel: &Cancel,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), RebootError> {
    // cloud-init waits for this run, so this run must not wait for cloud-init.
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
    wait_for_others(host, locks, cancel, say).await?;
    let request = Cmd::new("systemctl", ["reboot"]).deadline(REQUEST_DEADLINE);
    let mut refused = None;
    for attempt in 1..=REQUESTS {
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
    Err(refused.map_or(RebootError::StillUp, RebootError::Refused))
}

async fn wait_for_others(
    host: &Host,
    locks: &[&str],
    cancel: &Cancel,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), RebootError> {
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

async fn pause(host: &Host, cancel: &Cancel, pause: Duration) -> Result<(), RebootError> {
    tokio::select! {
        biased;
        _ = cancel.cancelled() => Err(RebootError::Stopped),
        () = host.clock.sleep(pause) => Ok(()),
    }
}
