//! Stopping at a safe point: the running change finishes, nothing new starts, and every wait for
//! other programs ends.

use std::sync::{Arc, OnceLock};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::Exit;

/// A request to stop. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    token: CancellationToken,
    by: Arc<OnceLock<Exit>>,
}

impl Cancel {
    /// A request that nobody has made yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks to stop; the first reason is kept.
    pub fn cancel(&self, by: Exit) {
        self.by.get_or_init(|| by);
        self.token.cancel();
    }

    /// The exit status, once somebody has asked to stop.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        self.by.get().copied()
    }

    /// A token for code that waits for other programs. It is cancelled when somebody asks to stop.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Waits until somebody asks to stop. Returns the exit status.
    pub async fn cancelled(&self) -> Exit {
        self.token.cancelled().await;
        // The reason is set before the token.
        self.exit().unwrap_or(Exit::Terminated)
    }

    /// Stops at the first SIGINT or SIGTERM. Further signals have no effect: a running package manager
    /// is never interrupted. The task lives as long as the runtime.
    ///
    /// # Errors
    /// When the operating system refuses the handlers.
    pub fn on_signals(&self) -> std::io::Result<()> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let cancel = self.clone();
        tokio::spawn(async move {
            loop {
                let by = tokio::select! {
                    got = interrupt.recv() => got.map(|()| Exit::Interrupted),
                    got = terminate.recv() => got.map(|()| Exit::Terminated),
                };
                match by {
                    Some(by) => cancel.cancel(by),
                    None => return,
                }
            }
        });
        Ok(())
    }
}
