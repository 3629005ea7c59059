//! The metrics of the proxy, under the names, types, labels and buckets of the original, and some of its own.
//!
//! In: counts, times and states from any thread, through the fields of [`Metrics`]. Out: the page `/metrics` in
//! the Prometheus text format 0.0.4. `docs/metrics.md` lists them all; a test holds it to what is registered.

mod labels;
mod process;

use model::{Family, Kind};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::family::Family as ByLabel;
use prometheus_client::registry::{Metric, Registry};

use crate::log;
pub use labels::{Build, Feature, TrafficPolicy};
use labels::{CodeLabel, FamilyLabel, FeatureLabels, KindLabel, PolicyLabels, RequestLabels};
use process::Process;

/// A number that only grows.
pub type Counter = prometheus_client::metrics::counter::Counter;
/// A whole number that goes up and down.
pub type Gauge = prometheus_client::metrics::gauge::Gauge;
/// A number with fractions that goes up and down.
pub type FloatGauge = prometheus_client::metrics::gauge::Gauge<f64, std::sync::atomic::AtomicU64>;
/// A distribution of seconds.
pub type Histogram = prometheus_client::metrics::histogram::Histogram;

/// One metric for each address family, label `ip_family`.
#[derive(Debug)]
pub struct ByFamily<M>(ByLabel<FamilyLabel, M, fn() -> M>);

impl<M: Clone> ByFamily<M> {
    /// The metric of a family. It is shown from the first call on.
    pub fn of(&self, family: Family) -> M {
        self.0.get_or_create_owned(&family.into())
    }
}

/// All metrics. Share it in an `Arc`; every method takes `&self`, from any thread.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    started: f64,
    /// How long a sync took.
    pub sync_duration: ByFamily<Histogram>,
    /// How long a sync of everything took.
    pub full_sync_duration: ByFamily<Histogram>,
    /// How long a sync of what had changed took.
    pub partial_sync_duration: ByFamily<Histogram>,
    /// When a sync was last asked for, seconds since 1970.
    pub last_queued: ByFamily<FloatGauge>,
    /// When a sync last succeeded, seconds since 1970.
    pub last_synced: ByFamily<FloatGauge>,
    /// Time from the change of a service's pods, as its slices tell it, to the rules that follow it.
    pub network_programming: ByFamily<Histogram>,
    /// Changed slices not yet in the rules.
    pub endpoint_changes_pending: Gauge,
    /// Changed slices since the start.
    pub endpoint_changes: Counter,
    /// Changed services not yet in the rules.
    pub service_changes_pending: Gauge,
    /// Changed services since the start.
    pub service_changes: Counter,
    /// Syncs that the kernel refused.
    pub nftables_sync_failures: ByFamily<Counter>,
    /// Removals of outdated nftables objects that failed.
    pub nftables_cleanup_failures: ByFamily<Counter>,
    /// Open listeners for node ports on a loopback address.
    pub localhost_listeners: ByFamily<Gauge>,
    /// Such listeners that could not be opened.
    pub localhost_listener_failures: ByFamily<Counter>,
    /// How long a clean-up of connection tracking took.
    pub conntrack_duration: ByFamily<Histogram>,
    /// Connections that clean-ups removed.
    pub conntrack_deleted: ByFamily<Counter>,
    /// Objects added to or deleted from the kernel.
    pub kernel_objects_written: ByFamily<Counter>,
    /// Foreign changes that were undone.
    pub repairs: ByFamily<Counter>,
    no_local_endpoints: ByLabel<PolicyLabels, Gauge>,
    healthz: ByLabel<CodeLabel, Counter>,
    livez: ByLabel<CodeLabel, Counter>,
    skipped: ByLabel<KindLabel, Counter>,
    requests: ByLabel<RequestLabels, Counter>,
}

impl Metrics {
    /// All metrics. Those that can be zero are shown at once for the families the proxy serves.
    pub fn new(families: &[Family], build: &Build, features: &[Feature]) -> Self {
        let process = Process::new();
        let mut registry = Registry::default();
        let r = &mut registry;
        let mut metrics = Self {
            started: process.started(),
            sync_duration: family(r, "sync_proxy_rules_duration_seconds", "Time a sync took", latency),
            full_sync_duration: family(
                r,
                "sync_full_proxy_rules_duration_seconds",
                "Time a sync of all services took",
                latency,
            ),
            partial_sync_duration: family(
                r,
                "sync_partial_proxy_rules_duration_seconds",
                "Time a sync of the changed services took",
                latency,
            ),
            last_queued: family(
                r,
                "sync_proxy_rules_last_queued_timestamp_seconds",
                "When a sync was last asked for, seconds since 1970",
                FloatGauge::default,
            ),
            last_synced: family(
                r,
                "sync_proxy_rules_last_timestamp_seconds",
                "When a sync last succeeded, seconds since 1970",
                FloatGauge::default,
            ),
            network_programming: family(
                r,
                "network_programming_duration_seconds",
                "Time from a change of a service's pods to the rules that follow it",
                programming,
            ),
            endpoint_changes_pending: one(
                r,
                "sync_proxy_rules_endpoint_changes_pending",
                "Changed endpoint slices not yet in the rules",
            ),
            endpoint_changes: one(
                r,
                "sync_proxy_rules_endpoint_changes",
                "Changed endpoint slices since the start",
            ),
            service_changes_pending: one(
                r,
                "sync_proxy_rules_service_changes_pending",
                "Changed services not yet in the rules",
            ),
            service_changes: one(r, "sync_proxy_rules_service_changes", "Changed services since the start"),
            nftables_sync_failures: family(
                r,
                "sync_proxy_rules_nftables_sync_failures",
                "Syncs that the kernel refused",
                Counter::default,
            ),
            nftables_cleanup_failures: family(
                r,
                "sync_proxy_rules_nftables_cleanup_failures",
                "Failed removals of outdated nftables objects",
                Counter::default,
            ),
            localhost_listeners: family(
                r,
                "nftables_localhost_nodeport_listeners",
                "Open listeners for node ports on a loopback address",
                Gauge::default,
            ),
            localhost_listener_failures: family(
                r,
                "nftables_localhost_nodeport_listener_creation_failures",
                "Failed attempts to listen for a node port on a loopback address",
                Counter::default,
            ),
            conntrack_duration: family(
                r,
                "conntrack_reconciler_sync_duration_seconds",
                "Time a clean-up of connection tracking took",
                latency,
            ),
            conntrack_deleted: family(
                r,
                "conntrack_reconciler_deleted_entries",
                "Connections that clean-ups removed from connection tracking",
                Counter::default,
            ),
            kernel_objects_written: family(
                r,
                "kernel_objects_written",
                "Objects added to or deleted from the kernel",
                Counter::default,
            ),
            repairs: family(
                r,
                "repairs",
                "Times that rules changed by others were put right",
                Counter::default,
            ),
            // A gauge, though its name ends as a counter's.
            no_local_endpoints: one(
                r,
                "sync_proxy_rules_no_local_endpoints_total",
                "Services with a traffic policy Local whose endpoints are all on other nodes",
            ),
            healthz: one(r, "proxy_healthz", "Answers of /healthz by status code"),
            livez: one(r, "proxy_livez", "Answers of /livez by status code"),
            skipped: one(r, "skipped_objects", "Objects that could not be used; the log says why"),
            requests: registered(
                r,
                "rest_client_requests",
                "[ALPHA] Requests to the API server by status code, method and host",
                ByLabel::default(),
            ),
            registry: Registry::default(),
        };
        ours(
            r,
            "log_lines_lost",
            "Log lines that were dropped because nobody read them as fast as they were written",
            log::LOST.clone(),
        );
        let info = registered(
            r,
            "kubernetes_build_info",
            "[BETA] Always 1; the labels tell what is running",
            ByLabel::<_, Gauge>::default(),
        );
        info.get_or_create(&build.labels()).set(1);
        let enabled = registered(
            r,
            "kubernetes_feature_enabled",
            "[BETA] Whether a feature gate is on",
            ByLabel::<FeatureLabels, Gauge>::default(),
        );
        for feature in features {
            enabled.get_or_create(&feature.labels()).set(feature.enabled.into());
        }
        registry.register_collector(Box::new(process));
        metrics.registry = registry;
        metrics.show(families);
        metrics
    }

    /// Shows zeros instead of nothing where nothing has happened yet, so that rates and alerts work from the start.
    fn show(&self, families: &[Family]) {
        for &family in families {
            for histogram in [&self.sync_duration, &self.full_sync_duration, &self.partial_sync_duration] {
                histogram.of(family);
            }
            for histogram in [&self.network_programming, &self.conntrack_duration] {
                histogram.of(family);
            }
            for counter in [
                &self.nftables_sync_failures,
                &self.nftables_cleanup_failures,
                &self.localhost_listener_failures,
                &self.conntrack_deleted,
                &self.kernel_objects_written,
                &self.repairs,
            ] {
                counter.of(family);
            }
            self.localhost_listeners.of(family);
            for policy in [TrafficPolicy::Internal, TrafficPolicy::External] {
                self.set_no_local_endpoints(family, policy, 0);
            }
        }
        for code in [200, 503] {
            for counter in [&self.healthz, &self.livez] {
                counter.get_or_create(&CodeLabel { code }).inc_by(0);
            }
        }
        for kind in [Kind::Service, Kind::Slice, Kind::Node, Kind::ServiceCidr] {
            self.skipped.get_or_create(&kind.into()).inc_by(0);
        }
    }

    /// Sets the number of services of a family whose traffic policy is Local and whose endpoints are all elsewhere.
    pub fn set_no_local_endpoints(&self, family: Family, policy: TrafficPolicy, services: usize) {
        let labels = PolicyLabels { ip_family: family.into(), traffic_policy: policy };
        self.no_local_endpoints.get_or_create(&labels).set(i64::try_from(services).unwrap_or(i64::MAX));
    }

    /// Counts an object (or a part of one) that could not be used.
    pub fn count_skipped(&self, kind: Kind) {
        self.skipped.get_or_create(&kind.into()).inc();
    }

    /// Counts an answer of the API server: `code` is its status, or `<error>` if there was none.
    pub fn count_request(&self, code: &str, method: &str, host: &str) {
        let labels = RequestLabels { code: code.into(), host: host.into(), method: method.into() };
        self.requests.get_or_create(&labels).inc();
    }

    pub(crate) fn count_healthz(&self, code: u16) {
        self.healthz.get_or_create(&CodeLabel { code }).inc();
    }

    pub(crate) fn count_livez(&self, code: u16) {
        self.livez.get_or_create(&CodeLabel { code }).inc();
    }

    /// When the process was started, seconds since 1970.
    pub fn started(&self) -> f64 {
        self.started
    }

    /// The page `/metrics`, Prometheus text format 0.0.4.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(64 * 1024);
        // Writing to a string cannot fail, and what the process cannot tell about itself is left out.
        let _ = prometheus_text::encode(&mut text, &self.registry);
        text
    }
}

/// Registers a metric of this program's own namespace.
fn ours<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registered(registry, &format!("kubeproxy_{name}"), &format!("[ALPHA] {help}"), metric)
}

fn one<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    ours(registry, name, help, M::default())
}

fn family<M>(registry: &mut Registry, name: &str, help: &str, make: fn() -> M) -> ByFamily<M>
where
    ByLabel<FamilyLabel, M, fn() -> M>: Metric + Clone,
{
    ByFamily(ours(registry, name, help, ByLabel::new_with_constructor(make)))
}

fn registered<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// 1 ms, doubled fourteen times.
fn latency() -> Histogram {
    Histogram::new((0..15).map(|i| f64::from(1 << i) / 1000.0))
}

fn programming() -> Histogram {
    let fine = [0.0, 0.25, 0.5].into_iter().chain((1..60).map(f64::from));
    let coarse = (60..120).step_by(5).chain((120..=300).step_by(30)).map(f64::from);
    Histogram::new(fine.chain(coarse))
}
