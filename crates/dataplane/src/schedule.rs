//! When to sync: not too often, at once after a quiet time, and again after a failure or when others meddle.

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

/// The longest pause between two repairs.
const LONGEST_REPAIR_PAUSE: Duration = Duration::from_secs(30);

/// After so long without a foreign change, beyond the pause, whoever makes one is no adversary.
const PEACE: Duration = Duration::from_secs(10);

/// Keeps repairs apart: two programs that undo each other's work would otherwise do nothing else.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    /// Something is to be repaired.
    pub(crate) due: bool,
    pauses: Retry,
}

impl Repairs {
    /// When the repair that is due may begin.
    pub(crate) fn at(&self, now: Instant) -> Option<Instant> {
        self.due.then(|| self.pauses.at().unwrap_or(now))
    }

    /// There have been so many close to each other that they are being kept apart.
    pub(crate) fn are_many(&self) -> bool {
        self.pauses.failures > 5
    }

    /// Whether a repair begins now.
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        if self.at(now).is_none_or(|at| at > now) {
            return false;
        }
        self.due = false;
        if self.pauses.at().is_some_and(|at| now >= at + PEACE) {
            self.pauses.succeeded();
        }
        self.pauses.failed(now, LONGEST_REPAIR_PAUSE);
        true
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

    /// The times between repairs within ten minutes, if somebody meddles each time `after` so long.
    fn pauses(after: Duration) -> Vec<Duration> {
        let start = Instant::now();
        let (mut repairs, mut now, mut begun) = (Repairs::default(), start, Vec::new());
        while now - start < 600 * SECOND {
            repairs.due = true;
            now = now.max(repairs.at(now).unwrap());
            assert!(repairs.begin(now) && !repairs.begin(now));
            begun.push(now);
            now += after;
        }
        assert_eq!(begun[0], start, "the first is at once");
        begun.windows(2).map(|two| two[1] - two[0]).collect()
    }

    #[test]
    fn the_first_repair_is_at_once_and_those_of_a_fight_come_half_a_minute_apart() {
        for after in [Duration::ZERO, SECOND, 9 * SECOND] {
            let pauses = pauses(after);
            assert!(pauses.is_sorted(), "{pauses:?}");
            assert_eq!(pauses.last(), Some(&LONGEST_REPAIR_PAUSE));
        }
    }

    #[test]
    fn a_change_after_a_time_of_peace_is_repaired_at_once() {
        let pauses = pauses(11 * SECOND);
        assert!(pauses.iter().all(|pause| *pause == 11 * SECOND), "{pauses:?}");
    }
}
