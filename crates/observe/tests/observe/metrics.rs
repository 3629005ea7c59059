//! The metrics page against what was recorded of the original.

use std::collections::{BTreeMap, BTreeSet};

use kube_proxy_observe::metrics::{Build, Feature, Metrics, TrafficPolicy};
use model::{Family, Kind};

/// What the page tells of one metric.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Described {
    pub(crate) kind: String,
    pub(crate) help: String,
    pub(crate) labels: BTreeSet<String>,
    pub(crate) buckets: Vec<String>,
}

/// Metrics in which everything has happened once.
pub(crate) fn busy() -> Metrics {
    let feature = Feature { name: "A".into(), stage: "BETA".into(), enabled: true };
    let metrics = Metrics::new(&[Family::V4], &Build::default(), &[feature]);
    metrics.last_queued.of(Family::V4).set(1.5);
    metrics.last_synced.of(Family::V4).set(1.5);
    metrics.count_request("200", "GET", "192.0.2.1:6443");
    metrics
}

/// All metrics of a page by name.
pub(crate) fn described(page: &str) -> BTreeMap<String, Described> {
    let mut all: BTreeMap<String, Described> = BTreeMap::new();
    let mut current = String::new();
    for line in page.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => all.entry(name.into()).or_default().help = help.into(),
            ["#", "TYPE", name, kind] => {
                current = name.into();
                all.entry(name.into()).or_default().kind = kind.into();
            }
            _ => sample(line, &current, all.get_mut(&current).expect("a TYPE line before")),
        }
    }
    all
}

fn sample(line: &str, metric: &str, described: &mut Described) {
    let (series, value) = line.rsplit_once(' ').expect("a value");
    assert!(value.parse::<f64>().is_ok(), "{line}");
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let suffix = name.strip_prefix(metric).expect("a sample of the metric above");
    let suffixes: &[&str] =
        if described.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
    assert!(suffixes.contains(&suffix), "{line}");
    let labels = labels.strip_suffix("\"}").unwrap_or_default();
    for label in labels.split("\",").filter(|label| !label.is_empty()) {
        let (name, value) = label.split_once("=\"").expect("name and value");
        if name != "le" {
            described.labels.insert(name.into());
        } else if !described.buckets.iter().any(|bucket| bucket == value) {
            described.buckets.push(value.into());
        }
    }
}

#[test]
fn every_recorded_metric_is_there_with_its_type_labels_and_buckets() {
    let ours = described(&busy().text());
    let recorded = include_str!("../data/metrics.txt").lines().filter(|line| !line.starts_with('#'));
    let mut seen = 0;
    for line in recorded {
        let [name, kind, labels, buckets] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let list = |text: &str| text.split(',').filter(|t| *t != "-").map(str::to_owned).collect::<Vec<_>>();
        let metric = ours.get(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(metric.kind, kind, "{name}");
        assert_eq!(metric.labels, list(labels).into_iter().collect(), "{name}");
        assert_eq!(metric.buckets, list(buckets), "{name}");
        seen += 1;
    }
    assert_eq!(seen, 27);
}

#[test]
fn the_page_is_prometheus_text_and_not_openmetrics() {
    let page = busy().text();
    assert!(!page.contains("# EOF") && !page.contains("# UNIT"));
    assert!(page.ends_with('\n'));
    for (name, metric) in described(&page) {
        assert!(!metric.help.is_empty(), "{name}");
        assert!(["counter", "gauge", "histogram"].contains(&&*metric.kind), "{name}");
        assert!(metric.kind != "counter" || name.ends_with("_total"), "{name}");
    }
}

#[test]
fn values_go_to_the_series_of_their_family() {
    let metrics = Metrics::new(&[Family::V4, Family::V6], &Build::default(), &[]);
    metrics.sync_duration.of(Family::V6).observe(0.003);
    metrics.repairs.of(Family::V4).inc();
    metrics.kernel_objects_written.of(Family::V6).inc_by(7);
    metrics.last_synced.of(Family::V4).set(1_796_079_592.057_512_8);
    metrics.set_no_local_endpoints(Family::V4, TrafficPolicy::External, 3);
    metrics.service_changes_pending.set(2);
    metrics.service_changes.inc_by(18);
    metrics.count_skipped(Kind::Slice);
    let page = metrics.text();
    for line in [
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv6\",le=\"0.002\"} 0",
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv6\",le=\"0.004\"} 1",
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"} 1",
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 0",
        "kubeproxy_repairs_total{ip_family=\"IPv4\"} 1",
        "kubeproxy_kernel_objects_written_total{ip_family=\"IPv6\"} 7",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1796079592.0575128",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=\"IPv4\",traffic_policy=\"external\"} 3",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=\"IPv6\",traffic_policy=\"internal\"} 0",
        "kubeproxy_sync_proxy_rules_service_changes_pending 2",
        "kubeproxy_sync_proxy_rules_service_changes_total 18",
        "kubeproxy_skipped_objects_total{kind=\"EndpointSlice\"} 1",
    ] {
        assert!(page.lines().any(|l| l == line), "{line}\nnot in\n{page}");
    }
}

#[test]
fn a_family_that_is_not_served_is_not_shown() {
    assert!(!busy().text().contains("IPv6"));
}

#[test]
fn what_runs_is_told() {
    let build = Build { version: "v1.37.2".into(), commit: "abc \"x\"".into(), ..Build::default() };
    let off = Feature { name: "Some".into(), stage: "ALPHA".into(), enabled: false };
    let page = Metrics::new(&[], &build, &[off]).text();
    assert!(page.contains("git_commit=\"abc \\\"x\\\"\""), "{page}");
    assert!(page.contains("git_version=\"v1.37.2\"") && page.contains("major=\"1\",minor=\"37\""), "{page}");
    assert!(page.contains("kubernetes_feature_enabled{name=\"Some\",stage=\"ALPHA\"} 0"), "{page}");
}

#[test]
fn the_process_tells_plausible_numbers() {
    let page = busy().text();
    let value = |name: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}")).parse().expect("a number")
    };
    assert!(value("process_resident_memory_bytes") > 100_000.0);
    assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"));
    assert!(value("process_open_fds") >= 3.0 && value("process_open_fds") < value("process_max_fds"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let age = now.as_secs_f64() - value("process_start_time_seconds");
    assert!((-2.0..86_400.0).contains(&age), "{age}");
}
