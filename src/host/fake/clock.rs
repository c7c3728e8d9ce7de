//! A clock that advances only on request or when sleeping.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::locked;
use crate::host::Clock;

/// A stopped clock. Sleeping advances it immediately.
#[derive(Clone)]
pub struct FakeClock {
    state: Arc<Mutex<State>>,
}

struct State {
    start: jiff::Timestamp,
    passed: Duration,
    slept: Vec<Duration>,
}

impl Default for FakeClock {
    /// Starts on 2026-01-01 at midnight UTC.
    fn default() -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                start: jiff::Timestamp::constant(1_767_225_600, 0),
                passed: Duration::ZERO,
                slept: Vec::new(),
            })),
        }
    }
}

impl FakeClock {
    /// Sets the wall clock. The monotonic time is not changed.
    pub fn set(&self, now: jiff::Timestamp) {
        let mut state = locked(&self.state);
        state.start = now - state.passed;
    }

    /// Advances the clock.
    pub fn advance(&self, duration: Duration) {
        locked(&self.state).passed += duration;
    }

    /// Returns all sleeps in order.
    pub fn slept(&self) -> Vec<Duration> {
        locked(&self.state).slept.clone()
    }
}

#[async_trait]
impl Clock for FakeClock {
    fn now(&self) -> jiff::Timestamp {
        let state = locked(&self.state);
        state.start + state.passed
    }

    fn monotonic(&self) -> Duration {
        locked(&self.state).passed
    }

    async fn sleep(&self, duration: Duration) {
        {
            let mut state = locked(&self.state);
            state.passed += duration;
            state.slept.push(duration);
        }
        // Let other tasks run, as in a real sleep.
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sleep_is_immediate_and_advances_the_clock() {
        let clock = FakeClock::default();
        assert_eq!(clock.now().to_string(), "2026-01-01T00:00:00Z");
        clock.sleep(Duration::from_secs(90)).await;
        assert_eq!(clock.now().to_string(), "2026-01-01T00:01:30Z");
        assert_eq!(clock.monotonic(), Duration::from_secs(90));
        clock.set(clock.now() + Duration::from_secs(10));
        assert_eq!(clock.now().to_string(), "2026-01-01T00:01:40Z");
        assert_eq!(clock.monotonic(), Duration::from_secs(90));
        assert_eq!(clock.slept(), [Duration::from_secs(90)]);
    }
}
