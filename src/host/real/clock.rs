//! The time of the kernel.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use crate::host::Clock;

/// The wall clock, and a monotonic time that starts with this value.
#[derive(Debug, Clone)]
pub struct RealClock {
    start: Instant,
}

impl Default for RealClock {
    fn default() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

#[async_trait]
impl Clock for RealClock {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
