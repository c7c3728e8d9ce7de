//! Retries transient failures (a mirror that returns 503, a slow network, a clock that is not
//! synchronized yet) with increasing pauses until the deadline of the run.
//!
//! The run itself retries, not systemd, because an exit code does not distinguish a slow network from
//! an unsuitable machine, but an error does (`Report::is_retryable`, `Assessment::BlockedNow`). The
//! deadline uses the monotonic clock, because the wall clock may be wrong.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use super::Options;

/// The default deadline of an unattended run.
pub const UNATTENDED_DEADLINE: Duration = Duration::from_secs(2 * 3600);

/// The maximum length of the first pause. Each pause is twice as long as the previous one.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// The first pause is at most the time limit of all attempts divided by this number. At boot, a
/// daemon that may take half a minute to start is usually ready some tenths of a second later.
const FIRST_PART: u32 = 150;

/// A pause is at most the time limit divided by this number, so that the last attempt is shortly before the limit.
const LONGEST_PART: u32 = 10;

/// The maximum pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// How long a run retries.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetryPolicy {
    deadline: Option<Duration>,
    seed: u64,
}

/// The attempts so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Retries {
    attempts: u32,
    /// End of the first attempt, since the start of the run.
    since: Option<Duration>,
}

impl RetryPolicy {
    pub(super) fn new(options: &Options) -> Self {
        // The jitter differs between nodes, because the nodes of a pool start at the same time.
        let mut hasher = DefaultHasher::new();
        (&options.boot_id, &options.instance_id).hash(&mut hasher);
        Self {
            deadline: options.deadline,
            seed: hasher.finish(),
        }
    }

    /// Extends the deadline by the time that the node needed to leave service, which may be hours.
    pub(super) fn extended(self, by: Duration) -> Self {
        Self {
            deadline: self.deadline.map(|deadline| deadline.saturating_add(by)),
            ..self
        }
    }

    /// Returns the deadline if it has passed.
    pub(super) fn passed(&self, elapsed: Duration) -> Option<Duration> {
        self.deadline.filter(|deadline| elapsed >= *deadline)
    }

    /// Returns the pause before the next attempt, or `None` if the run has no deadline, or if the attempt
    /// would start after the deadline or the limit.
    pub(super) fn pause(
        &self,
        retries: &mut Retries,
        elapsed: Duration,
        limit: Option<Duration>,
    ) -> Option<Duration> {
        let deadline = self.deadline?;
        let since = *retries.since.get_or_insert(elapsed);
        let pause = self.jitter(pause(retries.attempts, limit), retries.attempts);
        let end = limit.map_or(deadline, |limit| deadline.min(since.saturating_add(limit)));
        if elapsed + pause >= end {
            return None;
        }
        retries.attempts += 1;
        Some(pause)
    }

    /// Shortens a pause by up to a quarter.
    fn jitter(&self, pause: Duration, attempt: u32) -> Duration {
        let mut hasher = DefaultHasher::new();
        (self.seed, attempt).hash(&mut hasher);
        let part = u32::try_from(hasher.finish() % 256).unwrap_or_default();
        pause - pause / 4 * part / 256
    }
}

fn pause(attempts: u32, limit: Option<Duration>) -> Duration {
    let limit = limit.unwrap_or(Duration::MAX);
    (FIRST_PAUSE.min(limit / FIRST_PART))
        .saturating_mul(1 << attempts.min(10))
        .min(LONGEST_PAUSE)
        .min(limit / LONGEST_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn policy(deadline: Option<Duration>) -> RetryPolicy {
        RetryPolicy::new(&Options {
            deadline,
            ..Options::default()
        })
    }

    #[test]
    fn pauses_grow_up_to_a_maximum() {
        let policy = policy(Some(SECOND * 100_000));
        let mut retries = Retries::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            pauses.push(policy.pause(&mut retries, SECOND, None).unwrap());
        }
        for (pause, whole) in pauses.iter().zip([10, 20, 40, 80, 160, 300, 300, 300]) {
            let whole = SECOND * whole;
            assert!(*pause <= whole && *pause > whole * 3 / 4, "{pauses:?}");
        }
    }

    #[test]
    fn short_limits_are_retried_soon() {
        let policy = policy(Some(SECOND * 1000));
        let mut retries = Retries::default();
        let limit = Some(SECOND * 30);
        for whole in [200, 400, 800, 1600].map(Duration::from_millis) {
            let pause = policy.pause(&mut retries, SECOND, limit).unwrap();
            assert!(pause <= whole && pause > whole * 3 / 4);
        }
        let last = policy.pause(&mut retries, SECOND, limit).unwrap();
        assert!(last <= SECOND * 3 && last > SECOND * 9 / 4);
        let first = policy.pause(&mut Retries::default(), SECOND, Some(SECOND * 300));
        assert!(first.unwrap() <= SECOND * 2, "limit: 300 s");
    }

    #[test]
    fn no_attempt_starts_after_the_deadline_or_the_limit() {
        let mut retries = Retries::default();
        assert_eq!(policy(None).pause(&mut retries, SECOND, None), None);
        let policy = policy(Some(SECOND * 1000));
        assert_eq!(policy.pause(&mut retries, SECOND * 999, None), None);
        assert_eq!(policy.passed(SECOND * 999), None);
        assert_eq!(policy.passed(SECOND * 1000), Some(SECOND * 1000));
        let mut retries = Retries::default();
        let limit = Some(SECOND * 60);
        assert!(policy.pause(&mut retries, SECOND * 100, limit).is_some());
        assert_eq!(policy.pause(&mut retries, SECOND * 1599 / 10, limit), None);
        assert_eq!(
            policy
                .pause(&mut retries, SECOND * 1599 / 10, Some(Duration::MAX))
                .map(|_| ()),
            Some(())
        );
    }
}
