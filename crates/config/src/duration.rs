//! Durations as Go writes them: `1h0m0s`, `250ms`, `1.5h`. Flags and the configuration file use this form.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

const NANOS: u64 = 1;
const MICROS: u64 = 1_000;
const MILLIS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// A signed length of time in nanoseconds, read and written in the syntax of Go's `time.ParseDuration`.
///
/// Negative values can be written down and are refused later, by the validation that knows the field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(i64);

impl GoDuration {
    /// No time at all; in most fields this means "not set" or "leave as it is".
    pub const ZERO: Self = Self(0);

    /// This many nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// This many milliseconds.
    pub const fn from_millis(millis: i32) -> Self {
        Self(millis as i64 * 1_000_000)
    }

    /// This many seconds.
    pub const fn from_secs(seconds: i32) -> Self {
        Self(seconds as i64 * 1_000_000_000)
    }

    /// The value as a standard duration, or `None` when it is negative.
    pub fn to_std(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }
}

impl FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map(Self)
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.0.unsigned_abs();
        let sign = if self.0 < 0 { "-" } else { "" };
        if total == 0 {
            return f.write_str("0s");
        }
        if total < SECOND {
            let (unit, name) = match total {
                0..MICROS => (NANOS, "ns"),
                MICROS..MILLIS => (MICROS, "µs"),
                _ => (MILLIS, "ms"),
            };
            return write!(f, "{sign}{}{name}", decimal(total, unit));
        }
        let (hours, minutes) = (total / HOUR, total % HOUR / MINUTE);
        let seconds = decimal(total % MINUTE, SECOND);
        match (hours, minutes) {
            (0, 0) => write!(f, "{sign}{seconds}s"),
            (0, m) => write!(f, "{sign}{m}m{seconds}s"),
            (h, m) => write!(f, "{sign}{h}h{m}m{seconds}s"),
        }
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// `value / unit` with as many decimals as needed and no trailing zeros.
fn decimal(value: u64, unit: u64) -> String {
    let width = unit.ilog10() as usize;
    let fraction = value % unit;
    if fraction == 0 {
        return (value / unit).to_string();
    }
    format!("{}.{fraction:0width$}", value / unit).trim_end_matches('0').to_owned()
}

fn parse(text: &str) -> Result<i64, String> {
    let invalid = || format!("{text:?} is not a duration such as 250ms, 30s or 1h0m0s");
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    // One more than the largest positive value fits when the sign is negative.
    let limit = i128::from(i64::MAX) + i128::from(negative);
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit() || c == '.');
        let (unit, after) = split(after, |c| !c.is_ascii_digit() && c != '.');
        if unit.is_empty() {
            return Err(format!("{text:?} has no unit: write for example {number}s or {number}ms"));
        }
        let size = unit_size(unit).ok_or_else(|| {
            format!("{text:?} has the unknown unit {unit:?}: one of ns, us, ms, s, m, h is allowed")
        })?;
        total += part(number, size).ok_or_else(invalid)?;
        if total > limit {
            return Err(format!("{text:?} is longer than about 292 years"));
        }
        rest = after;
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| invalid())
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

fn unit_size(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => NANOS,
        "us" | "µs" | "μs" => MICROS,
        "ms" => MILLIS,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    })
}

/// Nanoseconds of one number with its unit. The fraction goes through floating point, as in Go, so that the
/// same text is the same duration; all that [`GoDuration`] writes comes back exactly.
fn part(number: &str, unit: u64) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let nanos = digits(whole)?.checked_mul(i128::from(unit))?;
    // Go stops where the digits no longer fit 63 bits; the rest is finer than any nanosecond.
    let fits = |digits: &&str| digits.is_empty() || digits.parse::<u64>().is_ok_and(|n| n <= 1 << 63);
    let longest = &fraction[..fraction.len().min(19)];
    let fraction = Some(longest).filter(fits).unwrap_or(&longest[..longest.len().min(18)]);
    let scale = 10_f64.powi(i32::try_from(fraction.len()).ok()?);
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // as described above
    let below = (digits(fraction)? as f64 * (unit as f64 / scale)) as i128;
    Some(nanos + below)
}

fn digits(text: &str) -> Option<i128> {
    if text.is_empty() { Some(0) } else { text.parse::<u64>().ok().map(i128::from) }
}
