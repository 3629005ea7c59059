//! The one place of this crate that reads the clock.

use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;

/// A moment: what the wall clock shows, to print, and a steady count, to measure with. Setting the wall clock
/// makes no proxy look stuck or well.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// What the wall clock shows.
    pub wall: SystemTime,
    /// Never goes back.
    pub steady: Instant,
}

impl Moment {
    /// Now.
    pub fn now() -> Self {
        Self { wall: SystemTime::now(), steady: Instant::now() }
    }

    /// How long after `earlier` this is; zero if it is before.
    pub fn since(&self, earlier: &Self) -> Duration {
        self.steady.saturating_duration_since(earlier.steady)
    }
}

/// RFC 3339 in UTC with as many digits of the second as are not zero, as Go prints times in JSON. `None` is Go's
/// zero time.
pub(crate) fn rfc3339(time: Option<SystemTime>) -> String {
    time.and_then(|time| Timestamp::try_from(time).ok())
        .map_or_else(|| "0001-01-01T00:00:00Z".to_owned(), |time| time.to_string())
}
