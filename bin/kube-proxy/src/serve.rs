//! What the proxy tells about itself: metrics, health, and the servers that show them.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use config::{Config, Gate, Mode};
use dataplane::{Facts, Reporter, Sync, SyncError, SyncKind};
use model::{Changes, Family, Node, ObjectKey, Tracker};
use observe::clock::Moment;
use observe::health::Health;
use observe::http::{self, Limits, Pages, Pings};
use observe::metrics::{Build, Feature, Metrics, TrafficPolicy};
use observe::service_health::{self, Check, Servers, ServiceHealth};
use source::api::{About, Notice, Notices, Severity};
use tokio::time::timeout;

/// How long the end of the process waits for the API server to take the event that tells why.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The handles that the rest of the program reports to.
pub(crate) struct Served {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Arc<Health>,
}

impl Served {
    /// Nothing has been reported yet; an update is late after twice the sync period, as with the original.
    pub(crate) fn new(config: &Config, mode: Mode, families: &[Family]) -> Self {
        let build = Build { version: config.version.clone(), ..Build::default() };
        let feature = |(name, stage, enabled): (&str, &str, bool)| Feature {
            name: name.to_owned(),
            stage: stage.to_owned(),
            enabled,
        };
        let features: Vec<_> = config.gates.iter().map(feature).collect();
        let health = Arc::new(Health::new(2 * config.sync(mode).period));
        Self { metrics: Arc::new(Metrics::new(families, &build, &features)), health }
    }

    /// Runs the health and the metrics server, and those of single services, for ever.
    pub(crate) async fn run(
        &self,
        config: &Config,
        mode: Mode,
        log: &observe::log::Handle,
        services: Servers,
        notices: &Notices,
    ) -> Result<Infallible> {
        let hard_fail = config.bind_address_hard_fail;
        let pages = Arc::new(Pages {
            metrics: Arc::clone(&self.metrics),
            proxy_mode: mode.as_str().to_owned(),
            configz: config.configz(mode),
            flagz: config.gates.enabled(Gate::ComponentFlagz).then(Vec::new),
            statusz: config.gates.enabled(Gate::ComponentStatusz).then(|| config.version.clone()),
            profiling: config.profiling.then(|| log.clone()),
            pings: Pings::default(),
        });
        let health = async {
            match config.healthz_bind_address {
                Some(address) => {
                    let (health, metrics) = (Arc::clone(&self.health), Arc::clone(&self.metrics));
                    let ended =
                        http::serve_health(address, hard_fail, Limits::default(), health, metrics).await;
                    if let Err(error) = &ended {
                        let note = format!("failed to start proxier healthz on {address}: {error}");
                        last_words(notices, config, "FailedToStartProxierHealthcheck", note).await;
                    }
                    ended.context("serving health (--healthz-bind-address)")
                }
                None => std::future::pending().await,
            }
        };
        let metrics = async {
            match config.metrics_bind_address {
                Some(address) => {
                    let ended = http::serve_metrics(address, hard_fail, Limits::default(), pages).await;
                    if let Err(error) = &ended {
                        let note = format!("failed to start metrics server on {address}: {error}");
                        last_words(notices, config, "FailedToStartMetricServer", note).await;
                    }
                    ended.context("serving metrics (--metrics-bind-address)")
                }
                None => std::future::pending().await,
            }
        };
        let services = async {
            services.run().await;
            std::future::pending::<Result<Infallible>>().await
        };
        tokio::select! {
            ended = health => ended,
            ended = metrics => ended,
            ended = services => ended,
        }
    }

    /// The handle for health check node ports, and their servers. What cannot be served is told to people, too.
    pub(crate) fn service_health(&self, node: &str, notices: Notices) -> (ServiceHealth, Servers) {
        let node = node.to_owned();
        let failed = move |service: &ObjectKey, address: SocketAddr, cause: &io::Error| {
            drop(notices.tell(Notice {
                about: About::Service(service.clone()),
                severity: Severity::Warning,
                reason: "FailedToStartServiceHealthcheck",
                action: "Listen",
                note: format!("node {node} failed to start healthcheck \"{service}\" on {address}: {cause}"),
            }));
        };
        service_health::service_health(Arc::clone(&self.health), Limits::default(), Box::new(failed))
    }

    /// Takes note of the own Node.
    pub(crate) fn set_node(&self, node: Option<&Node>) {
        self.health.set_node(node);
    }
}

/// What the original says when a server that has to be there cannot be, just before it ends.
async fn last_words(notices: &Notices, config: &Config, reason: &'static str, note: String) {
    let about = About::Node(config.hostname.clone());
    let notice = Notice { about, severity: Severity::Warning, reason, action: "StartKubeProxy", note };
    // the reason is in the log anyway
    let _ = timeout(LAST_WORDS, notices.tell(notice)).await;
}

/// Brings what the sync loop does into metrics, health and the servers of health check node ports.
pub(crate) struct SyncReporter {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Arc<Health>,
    pub(crate) services: ServiceHealth,
    /// The families in which node ports are on all addresses.
    pub(crate) all_addresses: Vec<Family>,
}

impl Reporter for SyncReporter {
    fn changed(&mut self, changes: &Changes) {
        let pending = |changes: u64| i64::try_from(changes).unwrap_or(i64::MAX);
        self.metrics.service_changes.inc_by(changes.service_changes);
        self.metrics.service_changes_pending.inc_by(pending(changes.service_changes));
        self.metrics.endpoint_changes.inc_by(changes.endpoint_changes);
        self.metrics.endpoint_changes_pending.inc_by(pending(changes.endpoint_changes));
    }

    fn queued(&mut self, family: Family) {
        let now = Moment::now();
        self.health.queued_update(family, now);
        self.metrics.last_queued.of(family).set(seconds(now));
    }

    fn synced(&mut self, family: Family, sync: &Sync<'_>) {
        let (now, duration) = (Moment::now(), sync.duration.as_secs_f64());
        self.health.updated(family, now);
        self.metrics.sync_duration.of(family).observe(duration);
        match sync.kind {
            SyncKind::Full => self.metrics.full_sync_duration.of(family).observe(duration),
            SyncKind::Partial => self.metrics.partial_sync_duration.of(family).observe(duration),
        }
        let written = u64::try_from(sync.report.written).unwrap_or(u64::MAX);
        self.metrics.kernel_objects_written.of(family).inc_by(written);
        let silent = [
            (TrafficPolicy::Internal, sync.report.internal_without_local_endpoints),
            (TrafficPolicy::External, sync.report.external_without_local_endpoints),
        ];
        for (policy, services) in silent {
            self.metrics.set_no_local_endpoints(family, policy, services);
        }
        for trigger in sync.triggers {
            let lag = now.wall.duration_since(*trigger).unwrap_or(Duration::ZERO);
            self.metrics.network_programming.of(family).observe(lag.as_secs_f64());
        }
        // last, so that who sees it sees the rest
        self.metrics.last_synced.of(family).set(seconds(now));
        tracing::debug!(v = 3, %family, kind = ?sync.kind, written, seconds = duration, "Synced");
    }

    fn failed(&mut self, family: Family, _: SyncKind, _: &SyncError) {
        self.metrics.nftables_sync_failures.of(family).inc();
    }

    fn repairing(&mut self, family: Family) {
        self.metrics.repairs.of(family).inc();
    }

    fn settled(&mut self, tracker: &Tracker, facts: &Facts) {
        self.metrics.service_changes_pending.set(0);
        self.metrics.endpoint_changes_pending.set(0);
        let check = |(key, port): (&ObjectKey, u16)| Check {
            service: key.clone(),
            port,
            local_endpoints: tracker.local_ready_endpoints(key),
        };
        let not_covered = |address: &&IpAddr| !self.all_addresses.contains(&Family::of(**address));
        let mut addresses: Vec<_> = facts.node_port_addresses.iter().filter(not_covered).copied().collect();
        addresses.extend(self.all_addresses.iter().map(|family| any_address(*family)));
        self.services.sync(tracker.health_check_node_ports().map(check).collect(), addresses);
    }
}

/// Counts the listeners for node ports on loopback addresses.
pub(crate) struct ListenerCounters(pub(crate) Arc<Metrics>);

impl relay::Counters for ListenerCounters {
    fn opened(&self, family: Family) {
        self.0.localhost_listeners.of(family).inc();
    }

    fn closed(&self, family: Family) {
        self.0.localhost_listeners.of(family).dec();
    }

    fn failed(&self, family: Family) {
        self.0.localhost_listener_failures.of(family).inc();
    }
}

fn any_address(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn seconds(moment: Moment) -> f64 {
    moment.wall.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use relay::Counters;

    use super::*;

    #[test]
    fn the_gauge_of_listeners_on_loopback_follows_them_and_failures_add_up() {
        let metrics = Arc::new(Metrics::new(&[Family::V4], &Build::default(), &[]));
        let counters = ListenerCounters(Arc::clone(&metrics));
        counters.opened(Family::V4);
        counters.opened(Family::V4);
        counters.closed(Family::V4);
        counters.failed(Family::V4);
        counters.failed(Family::V4);
        assert_eq!(metrics.localhost_listeners.of(Family::V4).get(), 1);
        assert_eq!(metrics.localhost_listener_failures.of(Family::V4).get(), 2);
    }
}
