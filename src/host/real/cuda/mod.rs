//! Calls the CUDA driver API in child processes, because a call can hang forever on a faulty GPU, and
//! a process sees at most one MIG device.
//!
//! A child prints each phase before it starts, so that the parent knows which phase hangs and kills
//! the child when the time limit of the phase is exceeded.

mod ffi;
mod work;

use std::io::Write;
use std::time::Duration;

use futures_util::future::join_all;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::ourselves::Ourselves;
use crate::host::exec::{Stream, tail};
use crate::host::{CudaDevice, CudaFault, CudaStart, CudaView, Exec, ExecError};

/// The hidden subcommand of the child processes. With a UUID it computes on that device, otherwise
/// it lists all devices.
const CUDA_WORK: &str = "cuda-work";

/// The prefix of a phase line.
const PHASE: &str = "phase: ";
/// The prefix of a result line.
const ANSWER: &str = "answer: ";

/// The time limits of phases.
#[derive(Debug, Clone, Copy)]
pub struct TimeLimits {
    /// For phases that may start GPUs. Without persistence mode, this takes seconds per GPU.
    pub starting: Duration,
    /// For any other phase.
    pub phase: Duration,
    /// For all phases together.
    pub whole: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self {
            starting: Duration::from_secs(30),
            phase: Duration::from_secs(10),
            whole: Duration::from_secs(50),
        }
    }
}

/// Does the work of a child in this process, and prints the phases and the result. It may hang or
/// crash, so only the child processes of [`super::RealGpu`] call it.
///
/// # Errors
/// If a line cannot be printed.
pub fn cuda_work(device: Option<&str>, out: &mut dyn Write) -> std::io::Result<()> {
    let mut printed = Ok(());
    let mut phase = |name: &str| {
        if printed.is_ok() {
            printed = writeln!(out, "{PHASE}{name}").and_then(|()| out.flush());
        }
    };
    let answer = match device {
        None => serde_json::to_string(&work::start(&mut phase)),
        Some(uuid) => serde_json::to_string(&work::compute(uuid, &mut phase)),
    }?;
    // Exiting closes the devices. Without persistence mode, the driver then stops the GPUs.
    phase(work::END);
    printed?;
    writeln!(out, "{ANSWER}{answer}")?;
    out.flush()
}

/// Starts child processes and waits for their results.
pub(super) struct Asking<'a> {
    pub(super) exec: &'a dyn Exec,
    pub(super) program: &'a Ourselves,
    pub(super) limits: TimeLimits,
    /// The overall deadline.
    pub(super) until: Instant,
}

impl Asking<'_> {
    /// Returns the results for all devices, or for none if CUDA does not start.
    pub(super) async fn view(&self, devices: &[String]) -> CudaView {
        let start = self.ask::<CudaStart>(None).await;
        if start.is_err() {
            return CudaView {
                start,
                devices: Vec::new(),
            };
        }
        let devices = devices.iter().map(|uuid| async move {
            CudaDevice {
                uuid: uuid.clone(),
                result: self.ask(Some(uuid)).await,
            }
        });
        CudaView {
            start,
            devices: join_all(devices).await,
        }
    }

    /// Runs one child process.
    async fn ask<T: DeserializeOwned>(&self, device: Option<&str>) -> Result<T, CudaFault> {
        let failed = |why: String| Err(CudaFault::Failed { why });
        let args = [CUDA_WORK].into_iter().chain(device).map(str::to_owned);
        let left = self.until.saturating_duration_since(Instant::now());
        let mut cmd = (self.program.command(args))
            // Longer than the limits of the phases, so that these apply first.
            .deadline(left + Duration::from_secs(5))
            // Do not leave compiled kernels in the cache.
            .env("CUDA_CACHE_DISABLE", "1")
            .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        if let Some(uuid) = device {
            cmd = cmd.env("CUDA_VISIBLE_DEVICES", uuid);
        }
        let first = "starting a process for CUDA".to_owned();
        let (phase, seen) = watch::channel((first, Instant::now()));
        let mut note = |stream, line: &str| {
            if let (Stream::Out, Some(name)) = (stream, line.strip_prefix(PHASE)) {
                phase.send_replace((name.to_owned(), Instant::now()));
            }
        };
        let ran = tokio::select! {
            // Poll the child first, so that a phase line that arrived in time is not ignored.
            biased;
            ran = self.exec.run(&cmd, &mut note) => ran,
            // Dropping the other future kills the child.
            hung = overdue(self.limits, self.until, seen) => return Err(hung),
        };
        let output = match ran {
            Ok(output) => output,
            Err(ExecError::NotQueried { why, .. }) => return Err(CudaFault::NotQueried { why }),
            Err(error) => return failed(format!("CUDA could not be queried: {error}")),
        };
        if !output.ok() {
            let said = tail(&output.stderr);
            return Err(CudaFault::Crashed {
                phase: phase.borrow().0.clone(),
                why: match said.is_empty() {
                    true => output.status.to_string(),
                    false => format!("{}: {said}", output.status),
                },
            });
        }
        let answer = (output.stdout.lines()).find_map(|line| line.strip_prefix(ANSWER));
        serde_json::from_str(answer.unwrap_or_default())
            .unwrap_or_else(|error| failed(format!("the CUDA process printed no result: {error}")))
    }
}

/// Waits until a phase exceeds its time limit, or until the overall deadline. The receiver provides
/// the current phase and its start.
async fn overdue(
    limits: TimeLimits,
    until: Instant,
    mut seen: watch::Receiver<(String, Instant)>,
) -> CudaFault {
    loop {
        let (phase, since) = seen.borrow_and_update().clone();
        let bound = match work::STARTING.contains(&phase.as_str()) {
            true => limits.starting,
            false => limits.phase,
        };
        let next = timeout_at(until.min(since + bound), seen.changed()).await;
        if !matches!(next, Ok(Ok(()))) {
            return CudaFault::Hung {
                phase,
                after_seconds: since.elapsed().as_secs(),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: TimeLimits = TimeLimits {
        starting: Duration::from_millis(400),
        phase: Duration::from_millis(100),
        whole: Duration::from_secs(60),
    };

    /// Returns the hung phase of a child that runs `work`, and the time until it was detected.
    async fn hung(whole: Duration, work: impl AsyncFnOnce(&dyn Fn(&str))) -> (String, Duration) {
        let begin = Instant::now();
        let (phase, seen) = watch::channel(("before".to_owned(), begin));
        let child = async {
            work(&|name| {
                phase.send_replace((name.to_owned(), Instant::now()));
            })
            .await;
            std::future::pending::<CudaFault>().await
        };
        let fault = tokio::select! {
            biased;
            fault = child => fault,
            fault = overdue(SHORT, begin + whole, seen) => fault,
        };
        match fault {
            CudaFault::Hung { phase, .. } => (phase, begin.elapsed()),
            other => panic!("{other}"),
        }
    }

    #[tokio::test]
    async fn hung_phase_is_reported() {
        let (phase, took) = hung(SHORT.whole, async |_| {}).await;
        assert!(phase == "before" && took >= SHORT.phase, "{phase}");
        let (phase, took) = hung(SHORT.whole, async |phase| phase("copying")).await;
        assert!(phase == "copying" && took >= SHORT.phase, "{phase}");
    }

    #[tokio::test]
    async fn gpu_start_has_a_longer_limit() {
        for starting in work::STARTING {
            let (phase, took) = hung(SHORT.whole, async |phase| phase(starting)).await;
            assert!(phase == starting && took >= SHORT.starting, "{took:?}");
        }
        let whole = Duration::from_millis(50);
        let (phase, took) = hung(whole, async |phase| phase("copying")).await;
        assert!(phase == "copying" && took >= whole, "{phase} {took:?}");
    }

    #[tokio::test]
    async fn each_phase_has_a_separate_time_limit() {
        let (phase, took) = hung(SHORT.whole, async |phase| {
            for name in ["a", "b", "c", "d", "e"] {
                tokio::time::sleep(SHORT.phase / 2).await;
                phase(name);
            }
        })
        .await;
        assert!(phase == "e" && took >= SHORT.phase * 3, "{phase} {took:?}");
    }
}
