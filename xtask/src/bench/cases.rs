//! What is measured. `docs/benchmarks.md` defines each.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use netlink::conntrack::{Filter, Flow, Tuple, UDP, status};
use serde_json::{Value, json};

use super::monotonic;
use super::objects::Cluster;
use super::process::{Proxy, Usage, round};
use super::report::{distribution, median};
use super::scene::{self, CALM, Program, Scene, seconds_between};

/// A change is written within this time.
const CHANGE: Duration = Duration::from_secs(30);
/// What follows from one change comes without a longer gap.
const GAP: Duration = Duration::from_millis(20);
/// The same for a new service, which is two events.
const CREATE_GAP: Duration = Duration::from_millis(50);
/// The proxy leaves processors to others after it has looked through many flows; one removal does not wait for another.
const BETWEEN_REMOVALS: Duration = Duration::from_millis(250);

/// A quiet time: longer than the usual shortest time between syncs.
const QUIET: Duration = Duration::from_secs(2);
/// Memory and processor time are those of a proxy that has had so long to settle.
const SETTLED: Duration = Duration::from_secs(3);
const ANNOTATIONS_A_SECOND: u32 = 5;

/// Flows that are no affair of services, in `udp-removal`.
const FOREIGN_FLOWS: u32 = 200_000;
const FOREIGN_SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
const FOREIGN_PORT: u16 = 53;
/// Flows of each endpoint that is removed.
const STALE_FLOWS: u32 = 100;
/// Connections of the proxy itself that may be tracked beyond those when a removal began.
const OWN_FLOWS: usize = 10;

/// The names, in the order in which `all` runs them.
pub(super) const NAMES: [&str; 7] =
    ["cold-sync", "endpoint-change", "service-create", "udp-removal", "restart-warm", "memory", "idle"];

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Changes of `endpoint-change` and `service-create`.
    pub(super) changes: usize,
    /// Changes after a quiet time.
    pub(super) quiet_changes: usize,
    /// Length of the two parts of `idle`.
    pub(super) idle: Duration,
    pub(super) annotated: Duration,
}

impl Effort {
    pub(super) const FULL: Self = Self {
        changes: 500,
        quiet_changes: 10,
        idle: Duration::from_secs(20),
        annotated: Duration::from_secs(10),
    };
    pub(super) const SHORT: Self = Self {
        changes: 100,
        quiet_changes: 2,
        idle: Duration::from_secs(3),
        annotated: Duration::from_secs(3),
    };
}

/// One run of one benchmark: its results, and the number by which the median run is found.
pub(super) fn run(name: &str, cluster: Cluster, program: &Program, effort: Effort) -> Result<(f64, Value)> {
    let exact = matches!(name, "endpoint-change" | "service-create" | "udp-removal");
    let scene = Scene::new(cluster, program, exact)?;
    let run = match name {
        "cold-sync" => cold_sync(&scene),
        "endpoint-change" => endpoint_change(&scene, cluster, effort),
        "service-create" => service_create(&scene, cluster, effort),
        "udp-removal" => udp_removal(&scene, cluster, effort),
        "restart-warm" => restart_warm(&scene),
        "memory" => memory(&scene),
        _ => idle(&scene, cluster, effort),
    };
    run.with_context(|| format!("{name} with {} services x {}", cluster.services, cluster.endpoints))
}

fn with_usage(mut results: Value, proxy: &Proxy<'_>, before: Usage) -> Result<Value> {
    let usage = proxy.usage()?;
    let (rss, peak) = proxy.memory()?;
    results["cpu_user_s"] = round(usage.user - before.user).into();
    results["cpu_system_s"] = round(usage.system - before.system).into();
    results["rss_mib"] = rss.into();
    results["peak_rss_mib"] = peak.into();
    results["kernel_objects_written"] = proxy.objects_written();
    Ok(results)
}

/// Starts the proxy in an empty namespace.
fn cold_sync(scene: &Scene) -> Result<(f64, Value)> {
    scene.prepare()?;
    let mut proxy = scene.start(&[])?;
    let synced = scene.wait_for_sync(&mut proxy)?;
    let results = json!({
        "wall_s": round(synced.seconds),
        "transactions": synced.transactions,
        "events_lost": synced.lost,
    });
    Ok((synced.seconds, with_usage(results, &proxy, Usage::default())?))
}

/// Numbers in an order that looks like chance and is always the same: a step that shares no factor with the size.
fn scattered(count: usize, size: usize) -> impl Iterator<Item = usize> {
    let step = ((size * 618 / 1000).max(1)..=size).find(|step| gcd(*step, size) == 1).unwrap_or(1);
    (0..count).map(move |turn| turn * step % size)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// How changes are made, one after another.
#[derive(Clone, Copy)]
struct Pattern {
    command: &'static str,
    /// A change has had its effect when nothing is written for so long; then comes the next one.
    gap: Duration,
}

/// Milliseconds from each change's event to the last transaction that follows it.
fn lags(scene: &Scene, pattern: Pattern, numbers: impl Iterator<Item = usize>) -> Result<Vec<f64>> {
    let Pattern { command, gap } = pattern;
    let mut lags = Vec::new();
    for number in numbers {
        scene.forget();
        let sent = scene.tell(command, number)?;
        let last = scene.last_transaction(CHANGE, gap)?;
        let (at, _) =
            last.with_context(|| format!("{command} {number}: nothing was written within {CHANGE:?}"))?;
        lags.push(seconds_between(sent, at) * 1000.0);
    }
    Ok(lags)
}

/// Changes without a pause between syncs, then some after a quiet time with the usual pause.
fn measure_changes(
    scene: &Scene,
    pattern: Pattern,
    at_once: impl Iterator<Item = usize>,
    after_quiet: impl Iterator<Item = usize>,
) -> Result<(f64, Value)> {
    scene.prepare()?;
    let mut proxy = scene.start_prompt()?;
    scene.wait_for_sync(&mut proxy)?;
    let before = proxy.usage()?;
    let lags_at_once = lags(scene, pattern, at_once)?;
    let results = with_usage(json!({"lag_ms": distribution(&lags_at_once)}), &proxy, before)?;
    proxy.kill()?;

    scene.prepare()?;
    let mut proxy = scene.start_without_resets(&[])?;
    scene::wait_until_synced_again(&mut proxy)?;
    thread::sleep(QUIET);
    let quiet = Pattern { gap: QUIET, ..pattern };
    let lags_after_quiet = lags(scene, quiet, after_quiet)?;
    let mut results = results;
    results["lag_after_quiet_ms"] = distribution(&lags_after_quiet);
    Ok((median(&lags_at_once), results))
}

fn endpoint_change(scene: &Scene, cluster: Cluster, effort: Effort) -> Result<(f64, Value)> {
    let pattern = Pattern { command: "endpoint", gap: GAP };
    let services = scattered(cluster.services, cluster.services);
    let written: Vec<_> = services.filter(|number| cluster.is_written(*number)).collect();
    let changes = effort.changes + effort.quiet_changes;
    let numbers: Vec<_> = written.into_iter().cycle().take(changes).collect();
    let (at_once, after_quiet) = numbers.split_at(effort.changes);
    measure_changes(scene, pattern, at_once.iter().copied(), after_quiet.iter().copied())
}

fn service_create(scene: &Scene, cluster: Cluster, effort: Effort) -> Result<(f64, Value)> {
    let pattern = Pattern { command: "service", gap: CREATE_GAP };
    let first = cluster.services;
    let middle = first + effort.changes;
    measure_changes(scene, pattern, first..middle, middle..middle + effort.quiet_changes)
}

/// Removals of UDP endpoints that have flows: how long until the rules follow and until the flows are gone; in an almost
/// empty connection tracking table, then beside many flows of others.
fn udp_removal(scene: &Scene, cluster: Cluster, effort: Effort) -> Result<(f64, Value)> {
    scene.prepare()?;
    let mut proxy = scene.start_prompt()?;
    scene.wait_for_sync(&mut proxy)?;
    let services: Vec<_> = cluster.udp_services().take(2 * effort.changes).collect();
    let (first, second) = services.split_at(services.len() / 2);
    let (lags_alone, gone_alone) = removals(scene, cluster, first)?;
    let foreign: Vec<_> = (0..FOREIGN_FLOWS).map(foreign_flow).collect();
    scene.track(&foreign)?;
    let before = proxy.usage()?;
    let (lags, gone) = removals(scene, cluster, second)?;
    let left = scene.tracked(&Filter::To(UDP, None, FOREIGN_PORT))?;
    ensure!(left == foreign.len(), "{left} of {} flows of others are left", foreign.len());
    let results = json!({
        "foreign_flows": foreign.len(),
        "lag_alone_ms": distribution(&lags_alone),
        "lag_ms": distribution(&lags),
        "flows_gone_alone_ms": distribution(&gone_alone),
        "flows_gone_ms": distribution(&gone),
        "lag_ratio": round(median(&lags) / median(&lags_alone)),
    });
    Ok((median(&gone), with_usage(results, &proxy, before)?))
}

/// Milliseconds from each event to the transaction that follows it, and until the flows of the endpoint are gone.
fn removals(scene: &Scene, cluster: Cluster, services: &[usize]) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut lags, mut gone) = (Vec::new(), Vec::new());
    for number in services {
        let tracked = scene.tracked_in_all()?;
        let frontend = Cluster::frontend(*number);
        let server = cluster.first_endpoint(*number);
        let flows = (0..STALE_FLOWS).map(|client| udp_flow(client, frontend, server));
        scene.track(&flows.collect::<Vec<_>>())?;
        scene.forget();
        let sent = scene.tell("endpoint", *number)?;
        gone.push(seconds_between(sent, scene.wait_for_fewer_flows(tracked + OWN_FLOWS)?) * 1000.0);
        let last = scene.last_transaction(CHANGE, GAP)?;
        let (at, _) =
            last.with_context(|| format!("endpoint {number}: nothing was written within {CHANGE:?}"))?;
        lags.push(seconds_between(sent, at) * 1000.0);
        thread::sleep(BETWEEN_REMOVALS);
        let left = scene.tracked(&Filter::To(UDP, Some(frontend.ip()), frontend.port()))?;
        ensure!(left == 0, "endpoint {number}: {left} stale flows are left");
    }
    Ok((lags, gone))
}

/// A flow of a client that is told from others by its port and address.
fn udp_flow(client: u32, frontend: SocketAddr, server: SocketAddr) -> Flow {
    let address = Ipv4Addr::from(0xc633_6400 + client / 50_000); // 198.51.100.0/24
    let port = u16::try_from(1024 + client % 50_000).unwrap_or(u16::MAX);
    let client = SocketAddr::from((address, port));
    Flow {
        protocol: UDP,
        original: Tuple { source: client, destination: frontend },
        reply: Tuple { source: server, destination: client },
        status: status::SEEN_REPLY,
        state: 0,
        id: 0,
    }
}

fn foreign_flow(number: u32) -> Flow {
    let server = SocketAddr::from((FOREIGN_SERVER, FOREIGN_PORT));
    udp_flow(number, server, server)
}

/// Kills the proxy and starts it on the rules it left.
fn restart_warm(scene: &Scene) -> Result<(f64, Value)> {
    scene.prepare()?;
    let mut proxy = scene.start(&[])?;
    scene.wait_for_sync(&mut proxy)?;
    proxy.kill()?;
    scene.prepare()?;
    let before = scene.generation()?;
    let mut proxy = scene.start(&[])?;
    let seconds = scene::wait_until_synced_again(&mut proxy)?;
    thread::sleep(CALM);
    let transactions = scene.generation()?.wrapping_sub(before);
    let results = json!({"wall_s": round(seconds), "transactions": transactions});
    Ok((seconds, with_usage(results, &proxy, Usage::default())?))
}

/// Memory when all is written and quiet.
fn memory(scene: &Scene) -> Result<(f64, Value)> {
    scene.prepare()?;
    let mut proxy = scene.start(&[])?;
    scene.wait_for_sync(&mut proxy)?;
    thread::sleep(SETTLED);
    let results = with_usage(json!({}), &proxy, Usage::default())?;
    Ok((proxy.memory()?.0, results))
}

/// What the proxy does when there is nothing to do, and when there are only events that do not concern it.
fn idle(scene: &Scene, cluster: Cluster, effort: Effort) -> Result<(f64, Value)> {
    scene.prepare()?;
    let mut proxy = scene.start(&[])?;
    scene.wait_for_sync(&mut proxy)?;
    thread::sleep(SETTLED);
    let quiet = spent(scene, &proxy, || {
        thread::sleep(effort.idle);
        Ok(())
    })?;
    let annotated = spent(scene, &proxy, || {
        let pause = Duration::from_secs(1) / ANNOTATIONS_A_SECOND;
        #[allow(clippy::cast_possible_truncation)] // tens of events
        let events = (effort.annotated.as_millis() / pause.as_millis()) as usize;
        for number in scattered(events, cluster.services) {
            scene.tell("annotate", number)?;
            thread::sleep(pause);
        }
        Ok(())
    })?;
    let key = quiet["cpu_ms_per_s"].as_f64().unwrap_or_default();
    Ok((key, with_usage(json!({"quiet": quiet, "annotations": annotated}), &proxy, Usage::default())?))
}

/// What the proxy spends while `work` is done.
fn spent(scene: &Scene, proxy: &Proxy<'_>, work: impl FnOnce() -> Result<()>) -> Result<Value> {
    let (before, generation, began) = (proxy.usage()?, scene.generation()?, monotonic());
    work()?;
    let (after, seconds) = (proxy.usage()?, seconds_between(began, monotonic()));
    let busy = seconds_between(before.nanoseconds, after.nanoseconds);
    let waits = u32::try_from(after.waits.saturating_sub(before.waits)).unwrap_or(u32::MAX);
    Ok(json!({
        "seconds": round(seconds),
        "cpu_ms_per_s": round(busy * 1000.0 / seconds),
        "waits_per_s": round(f64::from(waits) / seconds),
        "transactions": scene.generation()?.wrapping_sub(generation),
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn scattered_numbers_do_not_repeat_before_all_have_come() {
        for size in [1, 2, 500, 618, 2000] {
            let seen: BTreeSet<_> = scattered(size, size).collect();
            assert_eq!(seen.len(), size);
            assert!(seen.iter().all(|number| *number < size));
        }
    }
}
