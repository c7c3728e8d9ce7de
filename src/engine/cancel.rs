//! Stops a run at a safe point: the running change finishes, no new work starts, and every wait for
//! other programs ends.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::Exit;

/// A request to stop. Clones share the same request.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    token: CancellationToken,
    by: Arc<OnceLock<Exit>>,
    hung_up: Arc<AtomicBool>,
}

impl Cancel {
    /// Creates an instance without a stop request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests a stop. The first exit status is kept.
    pub fn cancel(&self, by: Exit) {
        self.by.get_or_init(|| by);
        self.token.cancel();
    }

    /// Requests a stop because the terminal was closed. The machine keeps running, so the resume unit
    /// can continue the run.
    pub fn hang_up(&self) {
        if self.exit().is_none() {
            self.hung_up.store(true, Ordering::SeqCst);
        }
        self.cancel(Exit::Terminated);
    }

    /// Whether the run was stopped because the terminal was closed.
    pub fn hung_up(&self) -> bool {
        self.hung_up.load(Ordering::SeqCst)
    }

    /// The exit status, if a stop was requested.
    pub fn exit(&self) -> Option<Exit> {
        self.by.get().copied()
    }

    /// A token for code that waits for other programs. It is cancelled when a stop is requested.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Waits until a stop is requested. Returns the exit status.
    pub async fn cancelled(&self) -> Exit {
        self.token.cancelled().await;
        // The exit status is set before the token is cancelled.
        self.exit().unwrap_or(Exit::Terminated)
    }

    /// Stops at the first SIGINT, SIGTERM or SIGHUP. Further signals have no effect, because a
    /// running package manager must not be interrupted. SIGHUP stays ignored if the parent ignored
    /// it, as `nohup` does. The spawned task runs until the async runtime ends.
    ///
    /// # Errors
    /// If the operating system rejects the handlers.
    pub fn on_signals(&self) -> io::Result<()> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = match ignores_hang_up(&std::fs::read_to_string("/proc/self/status")?) {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        let cancel = self.clone();
        tokio::spawn(async move {
            loop {
                let got = tokio::select! {
                    got = interrupt.recv() => got.map(|()| cancel.cancel(Exit::Interrupted)),
                    got = terminate.recv() => got.map(|()| cancel.cancel(Exit::Terminated)),
                    got = next(&mut hang_up) => got.map(|()| cancel.hang_up()),
                };
                if got.is_none() {
                    return;
                }
            }
        });
        Ok(())
    }
}

async fn next(signal: &mut Option<Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Whether the process ignores SIGHUP, according to `SigIgn` in proc_pid_status(5): a hexadecimal
/// mask whose lowest bit is signal 1.
fn ignores_hang_up(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_respected() {
        for (mask, ignored) in [
            ("0000000000000001", true),
            ("0000000000001001", true),
            ("0000000000001000", false),
            ("", false),
        ] {
            let status = format!("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
            assert_eq!(ignores_hang_up(&status), ignored, "{mask}");
        }
    }

    #[test]
    fn hang_up_ends_a_run_like_sigterm() {
        let cancel = Cancel::new();
        cancel.hang_up();
        assert_eq!(
            (cancel.exit(), cancel.hung_up()),
            (Some(Exit::Terminated), true)
        );
        // At a shutdown, SIGTERM is followed by SIGHUP because the terminals are closed.
        let cancel = Cancel::new();
        cancel.cancel(Exit::Terminated);
        cancel.hang_up();
        assert!(!cancel.hung_up());
    }
}
