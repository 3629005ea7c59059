//! What the proxy tells about itself: metrics, health, and the servers that show them.

use std::collections::{BTreeMap, BTreeSet};
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
    pub(crate) checks: Checks,
}

/// What is asked for at health check node ports, brought up to date at the cost of what has changed.
#[derive(Default)]
pub(crate) struct Checks {
    of_services: BTreeMap<ObjectKey, Check>,
    addresses: Vec<IpAddr>,
    /// Services that have changed since the last update.
    changed: BTreeSet<ObjectKey>,
}

impl Checks {
    /// What is other than before; `None` when nothing is, the addresses neither.
    fn update(
        &mut self,
        tracker: &Tracker,
        addresses: Vec<IpAddr>,
    ) -> Option<Vec<(ObjectKey, Option<Check>)>> {
        let mut changes = Vec::new();
        for service in std::mem::take(&mut self.changed) {
            let check = tracker
                .health_check_node_port(&service)
                .map(|port| Check { port, local_endpoints: tracker.local_ready_endpoints(&service) });
            let before = match check {
                Some(check) => self.of_services.insert(service.clone(), check),
                None => self.of_services.remove(&service),
            };
            if before != check {
                changes.push((service, check));
            }
        }
        let moved = self.addresses != addresses;
        self.addresses = addresses;
        (moved || !changes.is_empty()).then_some(changes)
    }
}

impl Reporter for SyncReporter {
    fn changed(&mut self, changes: &Changes) {
        self.checks.changed.extend(changes.services.iter().cloned());
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
        let not_covered = |address: &&IpAddr| !self.all_addresses.contains(&Family::of(**address));
        let mut addresses: Vec<_> = facts.node_port_addresses.iter().filter(not_covered).copied().collect();
        addresses.extend(self.all_addresses.iter().map(|family| any_address(*family)));
        if let Some(changes) = self.checks.update(tracker, addresses) {
            self.services.sync(changes, self.checks.addresses.clone());
        }
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
    use std::num::NonZeroU16;

    use model::{
        Event, Kind, Policy, Protocol, Service, ServicePort, ServiceType, Slice, SliceEndpoint, SlicePort,
        TrackerOptions,
    };
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

    fn key(number: u8) -> ObjectKey {
        ObjectKey::new("web", &format!("s{number}"))
    }

    /// A load balancer with external policy Local; with no port, policy Cluster.
    fn balancer(number: u8, port: Option<u16>) -> Event {
        Event::Service(Service {
            key: key(number),
            created: 0,
            kind: ServiceType::LoadBalancer,
            cluster_ips: vec![Ipv4Addr::new(203, 0, 113, number).into()],
            external_ips: vec![],
            load_balancer_ips: vec![],
            ports: vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None }],
            internal_policy: Policy::Cluster,
            external_policy: if port.is_some() { Policy::Local } else { Policy::Cluster },
            affinity_seconds: None,
            source_ranges: vec![],
            health_check_node_port: port.and_then(NonZeroU16::new),
        })
    }

    fn slice(number: u8, local: &[bool]) -> Event {
        let endpoint = |(host, local): (u8, &bool)| SliceEndpoint {
            address: Ipv4Addr::new(198, 51, 100, host).into(),
            local: *local,
            ready: true,
            serving: true,
            terminating: false,
            hints: None,
        };
        Event::Slice(Slice {
            key: key(number),
            service: key(number),
            family: Family::V4,
            ports: vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }],
            endpoints: (1..).zip(local).map(endpoint).collect(),
            triggered: None,
        })
    }

    #[test]
    fn only_health_checks_that_changed_are_told_and_only_services_that_changed_are_looked_at() {
        let mut tracker = Tracker::new(TrackerOptions {
            node_name: "n1".to_owned(),
            families: vec![Family::V4],
            allow_external_ips: true,
        });
        for kind in [Kind::Service, Kind::Slice, Kind::Node, Kind::ServiceCidr] {
            tracker.apply(Event::Begin(kind));
            tracker.apply(Event::End(kind));
        }
        let mut checks = Checks::default();
        let anywhere = vec![any_address(Family::V4)];
        checks.update(&tracker, anywhere.clone());
        for (event, looked_at, told) in [
            (balancer(1, Some(32001)), 1, Some((1, Some((32001, 0))))),
            (slice(1, &[true, false]), 1, Some((1, Some((32001, 1))))),
            (balancer(2, Some(32002)), 1, Some((2, Some((32002, 0))))),
            (slice(1, &[true, false, false]), 1, None),
            (balancer(3, None), 1, None),
            (balancer(2, Some(32002)), 0, None),
            (balancer(2, Some(32003)), 1, Some((2, Some((32003, 0))))),
            (balancer(2, None), 1, Some((2, None))),
            (Event::ServiceDeleted(key(1)), 1, Some((1, None))),
        ] {
            tracker.apply(event.clone());
            checks.changed.extend(tracker.take_changes().services);
            assert_eq!(checks.changed.len(), looked_at, "{event:?}");
            let told = told.map(|(number, check): (u8, Option<(u16, usize)>)| {
                let check = check.map(|(port, local_endpoints)| Check { port, local_endpoints });
                vec![(key(number), check)]
            });
            assert_eq!(checks.update(&tracker, anywhere.clone()), told, "{event:?}");
        }
        assert_eq!(checks.update(&tracker, vec![]), Some(vec![]), "the addresses changed");
    }
}
