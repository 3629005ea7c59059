//! Durations in Go's form.

use std::time::Duration;

use kube_proxy_config::GoDuration;
use proptest::prelude::*;

#[test]
fn durations_are_read_as_in_go() {
    for (text, nanos) in [
        ("0", 0),
        ("-0", 0),
        ("0s", 0),
        ("5ns", 5),
        ("2us", 2_000),
        ("2µs", 2_000),
        ("2μs", 2_000),
        ("250ms", 250_000_000),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("-1s", -1_000_000_000),
        ("+1s", 1_000_000_000),
        ("1h0m0s", 3_600_000_000_000),
        ("1.5h", 5_400_000_000_000),
        ("1m1h", 3_660_000_000_000),
        ("0.3333333333333333333h", 1_200_000_000_000),
        ("9223372036854775807ns", i64::MAX),
        ("-9223372036854775808ns", i64::MIN),
        ("-9223372036.854775808s", i64::MIN),
    ] {
        assert_eq!(text.parse(), Ok(GoDuration::from_nanos(nanos)), "{text}");
    }
}

#[test]
fn what_is_no_duration_is_refused_with_the_value() {
    for text in [
        "",
        "90",
        "-",
        "+",
        "s",
        ".s",
        "1",
        "1d",
        "1S",
        "1 s",
        " 1s",
        "1s ",
        "1..5s",
        "1.5.s",
        "five",
        "0x1s",
        "--1s",
        "1s-1s",
        "9223372036854775808ns",
        "-9223372036854775809ns",
        "99999999999999999999h",
        "1e3s",
    ] {
        let error = text.parse::<GoDuration>().expect_err(text);
        assert!(error.contains(&format!("{text:?}")), "{text:?}: {error}");
    }
}

#[test]
fn durations_are_written_as_in_go() {
    for (nanos, text) in [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1µs"),
        (2_200_000, "2.2ms"),
        (250_000_000, "250ms"),
        (999_999_999, "999.999999ms"),
        (1_000_000_000, "1s"),
        (3_300_000_000, "3.3s"),
        (245_000_000_000, "4m5s"),
        (245_001_000_000, "4m5.001s"),
        (3_600_000_000_000, "1h0m0s"),
        (86_400_000_000_000, "24h0m0s"),
        (-1_000_000_000, "-1s"),
        (i64::MAX, "2562047h47m16.854775807s"),
        (i64::MIN, "-2562047h47m16.854775808s"),
    ] {
        assert_eq!(GoDuration::from_nanos(nanos).to_string(), text);
    }
}

#[test]
fn only_durations_that_are_not_negative_become_standard_ones() {
    assert_eq!(GoDuration::from_millis(5).to_std(), Some(Duration::from_millis(5)));
    assert_eq!(GoDuration::from_secs(-1).to_std(), None);
}

proptest! {
    #[test]
    fn a_written_duration_reads_as_itself(nanos: i64) {
        let duration = GoDuration::from_nanos(nanos);
        prop_assert_eq!(duration.to_string().parse(), Ok(duration));
    }

    #[test]
    fn reading_never_panics(text in "[-+0-9.a-zµ ]{0,40}|.{0,20}") {
        let _ = text.parse::<GoDuration>();
    }
}
