//! How fast the API server is asked: delays after failures, and the rate of requests.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// A number from `range`. Good enough to spread nodes in time, not for secrets.
pub(super) fn spread(range: std::ops::Range<u64>) -> u64 {
    // each RandomState is keyed anew
    range.start + RandomState::new().hash_one(0) % (range.end - range.start).max(1)
}

/// Delays that double from failure to failure, each between half and all of its nominal length.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The delay after one more failure.
    pub(super) fn next(&mut self) -> Duration {
        let nominal = (FIRST * 2u32.saturating_pow(self.failures.min(10))).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let nominal = u64::try_from(nominal.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(spread(nominal / 2..nominal))
    }

    /// Something worked.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// `--kube-api-qps` and `--kube-api-burst`: at most `burst` requests at once, and `qps` a second in the long run.
#[derive(Debug)]
pub(super) struct RateLimit {
    interval: Duration,
    burst: u32,
    /// When the bucket will be full.
    full_at: Mutex<Instant>,
}

impl RateLimit {
    /// `None` for a negative rate, which means no limit. 0 is the default of 5 a second, burst 10, as in client-go.
    pub(super) fn new(qps: f32, burst: u32) -> Option<Self> {
        let qps = if qps == 0.0 { 5.0 } else { qps };
        let burst = if burst == 0 { 10 } else { burst };
        let interval = Duration::try_from_secs_f32(qps.recip()).ok()?.min(Duration::from_secs(3600));
        Some(Self { interval, burst, full_at: Mutex::new(Instant::now()) })
    }

    /// Waits for its turn.
    pub(super) async fn turn(&self) {
        let at = {
            let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
            *full_at = (*full_at).max(Instant::now()) + self.interval;
            full_at.checked_sub(self.interval.saturating_mul(self.burst))
        };
        if let Some(at) = at {
            tokio::time::sleep_until(at).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_ten_seconds_and_start_anew_after_success() {
        let mut backoff = Backoff::default();
        let delays: Vec<Duration> = (0..12).map(|_| backoff.next()).collect();
        for (delay, nominal) in
            delays.iter().zip([100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000])
        {
            let nominal = Duration::from_millis(nominal);
            assert!(*delay >= nominal / 2 && *delay <= nominal, "{delay:?} of {nominal:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
        let limit = RateLimit::new(5.0, 3).unwrap();
        let start = Instant::now();
        for _ in 0..3 {
            limit.turn().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..5 {
            limit.turn().await;
        }
        // tokio's timer counts in whole milliseconds
        let elapsed = start.elapsed().as_millis();
        assert!((1000..=1005).contains(&elapsed), "{elapsed} ms for five turns at five a second");
    }

    #[test]
    fn a_negative_rate_is_no_limit() {
        assert!(RateLimit::new(-1.0, 10).is_none());
    }
}
