//! Time and sleeping, replaceable in tests.

use std::time::Duration;

use async_trait::async_trait;

/// The wall clock, the monotonic clock, and sleeping.
#[async_trait]
pub trait Clock: Send + Sync {
    /// The current time.
    fn now(&self) -> jiff::Timestamp;
    /// The time since boot, without suspend. It never goes backwards. systemd uses the same clock.
    fn monotonic(&self) -> Duration;
    async fn sleep(&self, duration: Duration);
}
