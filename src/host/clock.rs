//! Time: read and waited for, so that tests need not wait.

use std::time::Duration;

use async_trait::async_trait;

/// Wall clock and waiting.
#[async_trait]
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> jiff::Timestamp;
    /// Time since the machine booted, without that of its suspensions; never goes back. systemd notes the same.
    fn monotonic(&self) -> Duration;
    /// Waits.
    async fn sleep(&self, duration: Duration);
}
