//! The short form: whether cost grows with the cluster where it must not. It never judges an absolute time, so it holds
//! on any machine.

use std::fmt::Display;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::cases::{self, Effort};
use super::objects::Cluster;
use super::process::round;
use super::report;
use super::scene::Program;

/// Numbers of services where the cost of a further one is compared: large enough for it to show.
const SERIES: [usize; 3] = [2_000, 8_000, 16_000];
/// Numbers of services between which a change must not become dearer.
const PAIR: [usize; 2] = [500, 8_000];
/// Where nothing is compared.
const ONE: [usize; 1] = [2_000];
/// The best of so many cold syncs counts: what other programs do to a measurement only makes it longer.
const TRIES: usize = 3;
/// A change at the largest size may take so many times what it takes at the smallest.
const CHANGE_GROWTH: f64 = 2.5;
/// Time and memory of a further service may grow so many times from the smaller sizes to the larger.
const SERVICE_GROWTH: f64 = 2.0;

/// Measures and judges; prints all numbers either way.
pub(super) fn check(
    program: &Program,
    endpoints: usize,
    names: &[&str],
    show: &mut dyn FnMut(&Value),
) -> Result<()> {
    let mut broken = Vec::new();
    for name in names {
        let mut results = json!({});
        let mut keys = Vec::new();
        for services in sizes(name) {
            let cluster = Cluster { services: *services, endpoints };
            let (key, result) = best(name, cluster, program)?;
            broken.extend(standing_still(name, &result));
            broken.extend(held_up(name, &result));
            keys.push(key);
            results[format!("services_{services}")] = result;
        }
        broken.extend(growth(name, &keys));
        let parameters = json!({"services": sizes(name), "endpoints": endpoints, "short": true});
        show(&report::object(name, &parameters, &results));
    }
    if broken.is_empty() { Ok(()) } else { bail!("cost grows where it must not:\n  {}", broken.join("\n  ")) }
}

fn sizes(name: &str) -> &'static [usize] {
    match name {
        "cold-sync" | "memory" => &SERIES,
        "endpoint-change" | "service-create" => &PAIR,
        _ => &ONE,
    }
}

/// The run with the smallest key.
fn best(name: &str, cluster: Cluster, program: &Program) -> Result<(f64, Value)> {
    let mut best = cases::run(name, cluster, program, Effort::SHORT)?;
    for _ in 1..if name == "cold-sync" { TRIES } else { 1 } {
        let next = cases::run(name, cluster, program, Effort::SHORT)?;
        if next.0 < best.0 {
            best = next;
        }
    }
    Ok(best)
}

/// What must be zero at any size.
fn standing_still(name: &str, result: &Value) -> Option<String> {
    let wrong = |what: &str, count: &dyn Display| Some(format!("{name}: {what}: {count} instead of 0"));
    let counts = match name {
        // it may claim its tables, which is a transaction without an object
        "restart-warm" => vec![("objects written after a restart", &result["kernel_objects_written"])],
        "idle" => vec![
            ("transactions without an event", &result["quiet"]["transactions"]),
            ("transactions though only annotations changed", &result["annotations"]["transactions"]),
        ],
        _ => vec![],
    };
    // not every proxy counts what it writes
    let bad = counts.into_iter().find(|(_, count)| !count.is_null() && count.as_f64() != Some(0.0));
    bad.and_then(|(what, count)| wrong(what, count))
}

/// Flows of others may not hold up a sync.
fn held_up(name: &str, result: &Value) -> Option<String> {
    let ratio = result["lag_ratio"].as_f64()?;
    let flows = &result["foreign_flows"];
    (ratio > CHANGE_GROWTH || ratio.is_nan()).then(|| {
        format!("{name}: a change takes {ratio} times as long beside {flows} tracked flows, {CHANGE_GROWTH} at most")
    })
}

/// What may not grow with the number of services.
fn growth(name: &str, keys: &[f64]) -> Option<String> {
    let (what, ratio, limit) = match (name, keys) {
        ("endpoint-change" | "service-create", [small, large]) => ("a change", large / small, CHANGE_GROWTH),
        // what the first services cost includes what any start costs, so only further ones are compared
        ("cold-sync" | "memory", [small, middle, large]) => {
            let [from, between, to] = SERIES.map(|size| f64::from(u32::try_from(size).unwrap_or(u32::MAX)));
            let (early, late) = ((middle - small) / (between - from), (large - middle) / (to - between));
            ("a further service", late / early, SERVICE_GROWTH)
        }
        _ => return None,
    };
    (ratio > limit || ratio.is_nan()).then(|| {
        format!("{name}: {what} costs {} times as much in the larger cluster, {limit} at most", round(ratio))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_cost_passes_and_growing_cost_does_not() {
        assert_eq!(growth("endpoint-change", &[0.3, 0.4]), None);
        assert!(growth("endpoint-change", &[0.3, 0.9]).is_some());
        let linear = SERIES.map(|size| 50.0 + f64::from(u32::try_from(size).unwrap()));
        assert_eq!(growth("cold-sync", &linear), None);
        let quadratic = SERIES.map(|size| f64::from(u32::try_from(size).unwrap()).powi(2));
        assert!(growth("memory", &quadratic).is_some());
    }

    #[test]
    fn a_sync_that_waits_for_connection_tracking_is_told() {
        assert_eq!(held_up("udp-removal", &json!({"lag_ratio": 1.2})), None);
        assert!(held_up("udp-removal", &json!({"lag_ratio": 20.0, "foreign_flows": 9})).is_some());
    }

    #[test]
    fn a_restart_that_writes_and_annotations_that_write_are_told() {
        let quiet = json!({"transactions": 0, "kernel_objects_written": 0.0});
        assert_eq!(standing_still("restart-warm", &quiet), None);
        let written = json!({"transactions": 0, "kernel_objects_written": 7.0});
        assert!(standing_still("restart-warm", &written).unwrap().contains('7'));
        let annotated = json!({"quiet": {"transactions": 0}, "annotations": {"transactions": 2}});
        assert!(standing_still("idle", &annotated).unwrap().contains("annotations"));
    }
}
