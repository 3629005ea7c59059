//! When to sync: not too often, at once after a quiet time, and again after a failure.

use std::time::{Duration, Instant};

/// How many syncs may follow each other without the minimum time between them, after a quiet time.
const BURST: u32 = 2;

/// Keeps the syncs apart. A bucket of [`BURST`] tokens, one more each `interval`.
#[derive(Debug)]
pub(crate) struct Limiter {
    interval: Duration,
    /// When the bucket would be full.
    full_at: Option<Instant>,
}

impl Limiter {
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, full_at: None }
    }

    /// The earliest time of the next sync.
    pub(crate) fn allowed_at(&self, now: Instant) -> Instant {
        let Some(full_at) = self.full_at else { return now };
        full_at.checked_sub(self.interval * (BURST - 1)).unwrap_or(now).max(now)
    }

    /// A sync has begun.
    pub(crate) fn ran(&mut self, now: Instant) {
        self.full_at = Some(self.full_at.map_or(now, |full_at| full_at.max(now)) + self.interval);
    }
}

/// The first pause after a failure; each further one is twice as long.
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// Pauses after failures.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    failures: u32,
    at: Option<Instant>,
}

impl Retry {
    /// The last sync failed: not before this time.
    pub(crate) fn at(&self) -> Option<Instant> {
        self.at
    }

    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn failed(&mut self, now: Instant, longest: Duration) {
        let pause = FIRST_RETRY.saturating_mul(1 << self.failures.min(16)).min(longest);
        self.failures += 1;
        self.at = Some(now + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_change_after_a_quiet_time_is_written_at_once() {
        let start = Instant::now();
        let mut limiter = Limiter::new(SECOND);
        limiter.ran(start);
        limiter.ran(start);
        let later = start + 5 * SECOND;
        assert_eq!(limiter.allowed_at(later), later);
    }

    #[test]
    fn syncs_beyond_the_burst_keep_their_distance() {
        let start = Instant::now();
        let mut limiter = Limiter::new(SECOND);
        let mut now = start;
        for _ in 0..10 {
            now = limiter.allowed_at(now);
            limiter.ran(now);
        }
        assert_eq!(now - start, 8 * SECOND);
    }

    #[test]
    fn without_a_minimum_time_nothing_waits() {
        let now = Instant::now();
        let mut limiter = Limiter::new(Duration::ZERO);
        for _ in 0..10 {
            assert_eq!(limiter.allowed_at(now), now);
            limiter.ran(now);
        }
    }

    #[test]
    fn pauses_after_failures_grow_up_to_a_limit_and_end_with_a_success() {
        let now = Instant::now();
        let mut retry = Retry::default();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            retry.failed(now, 30 * SECOND);
            pauses.push(retry.at().unwrap() - now);
        }
        assert_eq!(pauses[..3], [FIRST_RETRY, 2 * FIRST_RETRY, 4 * FIRST_RETRY]);
        assert_eq!(pauses[11], 30 * SECOND);
        retry.succeeded();
        assert_eq!(retry.at(), None);
    }
}
