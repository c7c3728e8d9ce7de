//! The kernel clock.

use std::time::Duration;

use async_trait::async_trait;
use nix::time::ClockId;

use crate::host::Clock;

/// The wall clock, and the monotonic clock, which starts at boot.
#[derive(Debug, Clone, Default)]
pub struct RealClock;

#[async_trait]
impl Clock for RealClock {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }

    fn monotonic(&self) -> Duration {
        #[expect(clippy::expect_used, reason = "available on every supported kernel")]
        let now = ClockId::CLOCK_MONOTONIC.now().expect("a monotonic clock");
        now.into()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
