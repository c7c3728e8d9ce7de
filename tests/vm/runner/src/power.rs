//! Waiting for a machine that reboots by itself, and taking its power away at a chosen moment.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::machine::{End, Machine};
use crate::out;

/// What ssh exits with when the connection ends before the command does.
const CONNECTION_LOST: i32 = 255;

/// Between two looks at something that this host can see for itself.
const LOOK: Duration = Duration::from_millis(20);

/// Seconds between two looks from within the machine, each of which is some programs: where the processor
/// is emulated a tenth of a second. Three in a second took a fifth of all that a machine worked.
const WITHIN: &str = "3";

/// The same where a moment is looked for that passes.
const MOMENT: &str = "0.5";

/// Waits until `script` holds in the machine, which must have rebooted by itself `reboots` times
/// by then.
pub fn until(machine: &mut Machine, script: &str, reboots: u32, limit: Duration) -> Result<String> {
    ride(machine, script, WITHIN, reboots, limit)?;
    Ok(match reboots {
        0 => "it holds".into(),
        count => format!("it holds, after {count} reboots of its own"),
    })
}

/// Waits likewise, and takes its power away.
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

/// Takes the power away when the console says `text` at the next boot: the one that the machine
/// makes by itself where it is on.
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

/// Waits until `script` holds, with `pause` seconds between two looks, turning the machine on wherever it
/// is off or has rebooted, which it must have done `reboots` times by itself.
fn ride(
    machine: &mut Machine,
    script: &str,
    pause: &str,
    reboots: u32,
    limit: Duration,
) -> Result<()> {
    let end = Instant::now() + limit;
    let mut seen = 0;
    // Asked from within: each way in takes longer than a step of the product may.
    let script = format!("holds() {{\n{script}\n}}\nuntil holds; do sleep {pause}; done");
    loop {
        if !machine.is_on() {
            machine.power_on()?;
            machine.wait_for_entry()?;
        }
        let left = end.saturating_duration_since(Instant::now());
        let done = machine.exec(&script).deadline(left).run()?;
        match done.code {
            0 if seen == reboots => return Ok(()),
            0 => bail!("it rebooted {seen} times by itself, not {reboots} times"),
            _ if done.late || Instant::now() > end => {
                bail!("it does not hold in time\n{}", done.output_tail(40));
            }
            CONNECTION_LOST => {}
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
