//! What passes by itself (a mirror that answers 503, a network or a clock that is late) is tried
//! again with growing pauses, until the deadline of the run.
//!
//! The run does this, and not systemd: an exit code does not tell a late network from a wrong machine,
//! an error does (`Report::passes`, `Assessment::BlockedNow`). The deadline counts by the monotonic
//! clock, because the wall clock may be what is late.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use super::Options;

/// The deadline of a run that nobody watches, if none was given.
pub const UNATTENDED_DEADLINE: Duration = Duration::from_secs(2 * 3600);

/// The first pause is at most so long; each following one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// The part of its limit that the first pause for something takes: a daemon that may take half a minute to start is mostly there
/// after a second.
const FIRST_PART: u32 = 30;

/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// How long a run tries again.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetryPolicy {
    deadline: Option<Duration>,
    seed: u64,
}

/// The attempts so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Retries {
    attempts: u32,
    /// When the first of them ended, since the start of the run.
    since: Option<Duration>,
}

impl RetryPolicy {
    pub(super) fn new(options: &Options) -> Self {
        // Nodes of one pool start at the same moment, and have the same image.
        let mut hasher = DefaultHasher::new();
        (&options.boot_id, &options.instance_id).hash(&mut hasher);
        Self {
            deadline: options.deadline,
            seed: hasher.finish(),
        }
    }

    /// The deadline, if it has passed.
    pub(super) fn passed(&self, elapsed: Duration) -> Option<Duration> {
        self.deadline.filter(|deadline| elapsed >= *deadline)
    }

    /// The pause before another attempt; `None` if it would start after the deadline, or after the
    /// limit of what passes.
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

    /// Up to a quarter shorter.
    fn jitter(&self, pause: Duration, attempt: u32) -> Duration {
        let mut hasher = DefaultHasher::new();
        (self.seed, attempt).hash(&mut hasher);
        let part = u32::try_from(hasher.finish() % 256).unwrap_or_default();
        pause - pause / 4 * part / 256
    }
}

fn pause(attempts: u32, limit: Option<Duration>) -> Duration {
    limit
        .map_or(FIRST_PAUSE, |limit| FIRST_PAUSE.min(limit / FIRST_PART))
        .saturating_mul(1 << attempts.min(10))
        .min(LONGEST_PAUSE)
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
    fn pauses_grow_up_to_a_bound() {
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
    fn what_passes_soon_is_tried_again_soon() {
        let policy = policy(Some(SECOND * 1000));
        let mut retries = Retries::default();
        let limit = Some(SECOND * 30);
        for whole in [1, 2, 4, 8] {
            let pause = policy.pause(&mut retries, SECOND, limit).unwrap();
            assert!(pause <= SECOND * whole && pause > SECOND * whole * 3 / 4);
        }
        let first = policy.pause(&mut Retries::default(), SECOND, Some(SECOND * 300));
        assert!(first.unwrap() > SECOND * 7, "a fabric forms in minutes");
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
        assert_eq!(policy.pause(&mut retries, SECOND * 157, limit), None);
        assert_eq!(
            policy
                .pause(&mut retries, SECOND * 155, Some(Duration::MAX))
                .map(|_| ()),
            Some(())
        );
    }
}
