//! Waits for a machine that reboots automatically, and simulates a power loss at a chosen moment.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::machine::{End, Ended, Machine};
use crate::out;

/// The exit code of ssh if the connection closes before the command finishes.
const CONNECTION_LOST: i32 = 255;

/// The exit codes of a script in a container that shuts down.
const ENDED: i32 = 128 + 15;
const KILLED: i32 = 128 + 9;

/// The interval between two polls of something on this host.
const LOOK: Duration = Duration::from_millis(20);

/// Seconds between two polls inside the machine. Each starts some programs, which takes a tenth of a second on an
/// emulated CPU. Three polls per second took a fifth of a machine's CPU time.
const WITHIN: &str = "3";

/// The same for a short-lived state.
const MOMENT: &str = "0.5";

/// The same in a container, where a poll is cheap.
const NATIVE_MOMENT: &str = "0.02";

/// The exit code of `cut-at-record` after it has shut down the filesystem.
const CUT: i32 = 42;

/// More power losses mean that the command makes no progress.
const MOST_CUTS: usize = 250;

/// Environment variable with the random seed, to repeat a run.
const SEED: &str = "TESTBED_SEED";

/// Waits until `script` succeeds in the machine, which must have rebooted automatically `reboots` times by then.
pub fn until(machine: &mut Machine, script: &str, reboots: u32, limit: Duration) -> Result<String> {
    ride(machine, script, WITHIN, reboots, limit)?;
    Ok(match reboots {
        0 => "it holds".into(),
        count => format!("it holds, after {count} automatic reboots"),
    })
}

/// Waits in the same way, then simulates a power loss.
pub fn cut_when(
    machine: &mut Machine,
    script: &str,
    reboots: u32,
    limit: Duration,
) -> Result<String> {
    let pause = match machine.spec().kind.is_emulated() {
        true => MOMENT,
        false => NATIVE_MOMENT,
    };
    ride(machine, script, pause, reboots, limit)?;
    machine.cut()?;
    Ok("cut".into())
}

/// Simulates a power loss when the console prints `text` during the next boot. If the machine is on, this is the boot
/// after its automatic reboot.
pub fn cut_at_console(machine: &mut Machine, text: &str, limit: Duration) -> Result<String> {
    let end = Instant::now() + limit;
    if machine.is_on() && machine.wait_for_end(limit)? != End::Reboot {
        bail!("it turned itself off instead of rebooting");
    }
    machine.choose_kernel()?;
    machine.power_on()?;
    while !machine.console()?.contains(text) {
        if let Some(how) = machine.ended()? {
            bail!("it stopped before its console printed `{text}` ({how:?})");
        }
        if Instant::now() > end {
            bail!(
                "its console does not contain `{text}`:\n{}",
                out::tail(&machine.console()?, 20)
            );
        }
        thread::sleep(LOOK);
    }
    machine.cut()?;
    Ok("cut".into())
}

/// Turns a machine on after a power loss, and waits until it has started its units.
pub fn wake(machine: &mut Machine, limit: Duration) -> Result<()> {
    if machine.is_on() {
        return Ok(());
    }
    machine.choose_kernel()?;
    machine.boot()?;
    machine.settle(limit)
}

/// Runs `command` repeatedly, and simulates a power loss while it runs, each time after a new journal record: about
/// each `every`th. It stops when a run exits with status 0.
pub fn cut_at_records(
    machine: &mut Machine,
    command: &str,
    every: u32,
    limit: Duration,
) -> Result<String> {
    let end = Instant::now() + limit;
    let seed = Random::seed()?;
    let mut random = Random(seed);
    let mut names: Vec<String> = Vec::new();
    loop {
        wake(machine, limit)?;
        let mut pass = random.below(2 * every - 1);
        let mut delay = match random.below(4) {
            0 | 1 => 0,
            2 => random.below(300),
            _ => random.below(4000),
        };
        // A short run must also be interrupted.
        if names.is_empty() {
            (pass, delay) = (pass % every.min(3), 0);
        }
        let script = format!("exec /usr/lib/testbed/cut-at-record {pass} {delay} {command}");
        let left = end.saturating_duration_since(Instant::now());
        let done = (machine.exec(&script))
            .stdin(names.join("\n") + "\n")
            .deadline(left)
            .run()?;
        let told = || format!("{} cuts, seed {seed}", names.len());
        match done.code {
            _ if done.late => bail!(
                "no run finishes in time ({})\n{}",
                told(),
                done.output_tail(40)
            ),
            0 if names.is_empty() => bail!("no power loss at a record ({})", told()),
            0 => return Ok(told()),
            CUT if names.len() < MOST_CUTS => {}
            CUT => bail!("no run finishes ({})", told()),
            _ => bail!(
                "an uninterrupted run {} ({})\n{}",
                done.verdict(),
                told(),
                done.output_tail(60)
            ),
        }
        machine.cut()?;
        let name = done.stdout.trim_end();
        out::say(format!(
            "  cut {:>3}, {delay:>4} ms after {}",
            names.len() + 1,
            name.chars().take(100).collect::<String>()
        ));
        names.push(name.to_string());
    }
}

/// Pseudo-random numbers from a seed (Marsaglia's xorshift64*): a repeated run draws the same numbers, at moments that
/// differ a little.
struct Random(u64);

impl Random {
    /// The seed from the environment, or a new one.
    fn seed() -> Result<u64> {
        match std::env::var(SEED) {
            Ok(text) => text
                .parse()
                .with_context(|| format!("{SEED} is not a number")),
            Err(_) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                Ok(u64::from(now.context("the clock is wrong")?.subsec_nanos()))
            }
        }
    }

    /// A number below `limit`, which is at least 1.
    fn below(&mut self, limit: u32) -> u32 {
        // 0 would stay 0.
        self.0 |= 1;
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        u32::try_from(drawn % u64::from(limit)).unwrap_or_default()
    }
}

/// Waits until `script` succeeds, polling every `pause` seconds. It turns the machine on whenever it is off or has
/// rebooted, and the machine must have rebooted automatically `reboots` times.
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
                // A kernel may panic before a command can enter.
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
            0 => bail!("it rebooted {seen} times automatically, not {reboots} times"),
            _ if done.late || Instant::now() > end => {
                bail!("it does not hold in time\n{}", done.output_tail(40));
            }
            CONNECTION_LOST | ENDED | KILLED => {}
            // It shuts down, so there is nothing left to enter.
            _ if done.stderr.starts_with("nsenter: ") => {}
            _ => bail!("it gave up: {}\n{}", done.verdict(), done.output_tail(40)),
        }
        let left = end.saturating_duration_since(Instant::now());
        match machine
            .wait_for_end(left)
            .context("cannot enter the machine")?
        {
            End::Reboot if seen == reboots => {
                bail!("it rebooted automatically more than {reboots} times")
            }
            End::Reboot => seen += 1,
            End::Off => bail!("it turned itself off"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_determines_moments() {
        let drawn = |seed: u64| -> Vec<u32> {
            let mut random = Random(seed);
            (0..20).map(|_| random.below(7)).collect()
        };
        assert_eq!(drawn(5), drawn(5));
        assert_ne!(drawn(5), drawn(7));
        assert!(drawn(0).iter().all(|number| *number < 7));
        assert!((0..7).all(|number| drawn(9).contains(&number)));
    }
}
