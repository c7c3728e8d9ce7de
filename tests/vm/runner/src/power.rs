//! Waits for a machine that reboots by itself, and cuts its power at a chosen moment.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::machine::{End, Ended, Machine};
use crate::out;

/// The exit code of ssh if the connection ends before the command does.
const CONNECTION_LOST: i32 = 255;

/// The exit codes of a script in a container that goes down.
const ENDED: i32 = 128 + 15;
const KILLED: i32 = 128 + 9;

/// The interval between two polls of something on this host.
const LOOK: Duration = Duration::from_millis(20);

/// Seconds between two polls inside the machine. Each starts some programs, which takes a tenth of
/// a second on an emulated processor. Three polls per second took a fifth of a machine's processor
/// time.
const WITHIN: &str = "3";

/// The same for a moment that soon passes.
const MOMENT: &str = "0.5";

/// Waits until `script` succeeds in the machine, which must have rebooted by itself `reboots` times
/// by then.
pub fn until(machine: &mut Machine, script: &str, reboots: u32, limit: Duration) -> Result<String> {
    ride(machine, script, WITHIN, reboots, limit)?;
    Ok(match reboots {
        0 => "it holds".into(),
        count => format!("it holds, after {count} reboots of its own"),
    })
}

/// Waits in the same way, then cuts the power.
pub fn cut_when(
    machine: &mut Machine,
    script: &str,
    reboots: u32,
    limit: Duration,
) -> Result<String> {
    ride(machine, script, MOMENT, reboots, limit)?;
    machine.cut()?;
    Ok("cut".into())
}

/// Cuts the power when the console prints `text` during the next boot. If the machine is on, that
/// is the boot after the reboot that it makes by itself.
pub fn cut_at_console(machine: &mut Machine, text: &str, limit: Duration) -> Result<String> {
    let end = Instant::now() + limit;
    if machine.is_on() && machine.wait_for_end(limit)? != End::Reboot {
        bail!("it turned itself off instead of rebooting");
    }
    machine.power_on()?;
    while !machine.console()?.contains(text) {
        if let Some(how) = machine.ended()? {
            bail!("it ended before its console said `{text}` ({how:?})");
        }
        if Instant::now() > end {
            bail!(
                "its console does not say `{text}`:\n{}",
                out::tail(&machine.console()?, 20)
            );
        }
        thread::sleep(LOOK);
    }
    machine.cut()?;
    Ok("cut".into())
}

/// Waits until `script` succeeds, polling every `pause` seconds. It turns the machine on whenever
/// it is off or has rebooted, and the machine must have rebooted by itself `reboots` times.
fn ride(
    machine: &mut Machine,
    script: &str,
    pause: &str,
    reboots: u32,
    limit: Duration,
) -> Result<()> {
    let end = Instant::now() + limit;
    let mut seen = 0;
    // The loop runs inside the machine: each new ssh connection takes longer than a step of the
    // product may.
    let script = format!("holds() {{\n{script}\n}}\nuntil holds; do sleep {pause}; done");
    loop {
        if !machine.is_on() {
            machine.choose_kernel()?;
            machine.power_on()?;
            if let Err(error) = machine.wait_for_entry() {
                // A kernel may panic before anybody can enter.
                if let Some(Ended(End::Reboot)) = error.downcast_ref()
                    && seen < reboots
                {
                    seen += 1;
                    continue;
                }
                return Err(error);
            }
        }
        let left = end.saturating_duration_since(Instant::now());
        let done = machine.exec(&script).deadline(left).run()?;
        match done.code {
            0 if seen == reboots => return Ok(()),
            0 => bail!("it rebooted {seen} times by itself, not {reboots} times"),
            _ if done.late || Instant::now() > end => {
                bail!("it does not hold in time\n{}", done.output_tail(40));
            }
            CONNECTION_LOST | ENDED | KILLED => {}
            _ => bail!("it gave up: {}\n{}", done.verdict(), done.output_tail(40)),
        }
        let left = end.saturating_duration_since(Instant::now());
        match machine.wait_for_end(left).context("the way in is closed")? {
            End::Reboot if seen == reboots => {
                bail!("it rebooted once more by itself than {reboots} times")
            }
            End::Reboot => seen += 1,
            End::Off => bail!("it turned itself off"),
        }
    }
}
