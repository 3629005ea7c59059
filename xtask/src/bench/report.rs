//! Numbers for people and for programs.

use std::time::SystemTime;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::process::{machine, round};

/// Median and percentiles of measurements; the smallest value that so many are not above.
pub(super) fn distribution(values: &[f64]) -> Value {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |percent: usize| {
        let rank = (sorted.len() * percent).div_ceil(100);
        sorted.get(rank.saturating_sub(1)).map_or(Value::Null, |value| json!(round(*value)))
    };
    json!({"n": sorted.len(), "p50": at(50), "p90": at(90), "p99": at(99), "max": at(100)})
}

/// The median of an odd number of values, the upper one of an even number.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The object that is printed for one benchmark.
pub(super) fn object(name: &str, parameters: &Value, results: &Value) -> Value {
    let now = Timestamp::try_from(SystemTime::now()).unwrap_or_default();
    json!({
        "benchmark": name,
        "date": format!("{now:.0}"),
        "machine": machine(),
        "parameters": parameters,
        "results": results,
    })
}

/// The same as lines for people: a name and its value, one row for each distribution.
pub(super) fn table(object: &Value) -> String {
    let mut text = format!("{}\n", object["benchmark"].as_str().unwrap_or_default());
    let mut rows = Vec::new();
    flatten("", &object["results"], &mut rows);
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in rows {
        text.extend(["  ", &format!("{name:width$}"), "  ", &value, "\n"]);
    }
    text
}

fn flatten(prefix: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) if fields.contains_key("p50") => rows.push((prefix.to_owned(), row(fields))),
        Value::Object(fields) => {
            for (name, inner) in fields {
                let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                flatten(&name, inner, rows);
            }
        }
        other => rows.push((prefix.to_owned(), other.to_string())),
    }
}

fn row(fields: &Map<String, Value>) -> String {
    let parts = ["p50", "p90", "p99", "max", "n"].map(|name| format!("{name} {}", fields[name]));
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        let expected = json!({"n": 100, "p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0});
        assert_eq!(distribution(&hundred), expected);
        assert_eq!(distribution(&[7.0])["p99"], 7.0);
        assert_eq!(distribution(&[])["p50"], Value::Null);
    }

    #[test]
    fn people_see_one_row_for_each_distribution() {
        let object = object("x", &Value::Null, &json!({"ms": distribution(&[1.0]), "deep": {"count": 3}}));
        assert_eq!(
            table(&object),
            "x\n  deep.count  3\n  ms          p50 1.0  p90 1.0  p99 1.0  max 1.0  n 1\n"
        );
    }
}
