//! The loop with a backend that remembers instead of writing, and a clock that is told.

use std::net::Ipv4Addr;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use model::{
    Endpoint, Kind, Place, Policy, Protocol, Service, ServicePort, ServiceType, Slice, SliceEndpoint,
    SlicePort, TrackerOptions,
};

use super::*;
use crate::Services;

/// What a backend was asked to do.
#[derive(Clone, Debug, PartialEq)]
enum Call {
    Rebuild(Vec<String>),
    Update(Vec<String>),
}

#[derive(Default)]
struct Script {
    calls: Vec<Call>,
    /// A service that is refused.
    refuses: Option<ObjectKey>,
    /// How many calls fail for no service's fault.
    failures: usize,
    /// How many calls are not sure of what others did meanwhile.
    unsure: usize,
}

struct Fake(Family, Arc<Mutex<Script>>);

impl Fake {
    fn outcome(&self, call: Call, keys: &[ObjectKey]) -> Result<Report, SyncError> {
        let mut script = self.1.lock().unwrap();
        script.calls.push(call);
        let error = |service| SyncError { what: "writing".into(), cause: "refused".into(), service };
        if script.failures > 0 {
            script.failures -= 1;
            return Err(error(None));
        }
        if let Some(refused) = script.refuses.clone().filter(|refused| keys.contains(refused)) {
            return Err(error(Some(refused)));
        }
        let compare_again = script.unsure > 0;
        script.unsure = script.unsure.saturating_sub(1);
        Ok(Report { compare_again, ..Report::default() })
    }
}

fn names(keys: &[ObjectKey]) -> Vec<String> {
    let mut names: Vec<_> = keys.iter().map(|key| key.name().to_owned()).collect();
    names.sort();
    names
}

impl Backend for Fake {
    fn family(&self) -> Family {
        self.0
    }

    fn rebuild(&mut self, services: &Services<'_>, _: &Facts) -> Result<Report, SyncError> {
        let keys = Mutex::new(Vec::new());
        services(&mut |service| keys.lock().unwrap().push(service.key));
        let keys = keys.into_inner().unwrap();
        self.outcome(Call::Rebuild(names(&keys)), &keys)
    }

    fn update(
        &mut self,
        changes: Vec<(ObjectKey, Option<ResolvedService>)>,
        _: &Facts,
    ) -> Result<Report, SyncError> {
        let keys: Vec<_> = changes.into_iter().map(|(key, _)| key).collect();
        self.outcome(Call::Update(names(&keys)), &keys)
    }
}

#[derive(Default)]
struct Quiet {
    settled: usize,
}

impl Reporter for Quiet {
    fn changed(&mut self, _: &Changes) {}
    fn queued(&mut self, _: Family) {}
    fn synced(&mut self, _: Family, _: &Sync<'_>) {}
    fn failed(&mut self, _: Family, _: SyncKind, _: &SyncError) {}
    fn repairing(&mut self, _: Family) {}
    fn settled(&mut self, _: &Tracker, _: &Facts) {
        self.settled += 1;
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("web", name)
}

fn service(name: &str, host: u8) -> Event {
    Event::Service(Service {
        key: key(name),
        created: 0,
        kind: ServiceType::ClusterIp,
        cluster_ips: vec![Ipv4Addr::new(203, 0, 113, host).into()],
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None }],
        external_ips: vec![],
        load_balancer_ips: vec![],
        source_ranges: vec![],
        affinity_seconds: None,
        internal_policy: Policy::Cluster,
        external_policy: Policy::Cluster,
        health_check_node_port: None,
    })
}

/// The endpoints of service `a`, in the slice of this name.
fn slice(name: &str, hosts: &[u8]) -> Event {
    let endpoint = |host: &u8| SliceEndpoint {
        address: endpoint(*host).address,
        local: false,
        ready: true,
        serving: true,
        terminating: false,
        hints: None,
    };
    Event::Slice(Slice {
        key: key(name),
        service: key("a"),
        family: Family::V4,
        ports: vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: hosts.iter().map(endpoint).collect(),
        triggered: None,
    })
}

fn endpoint(host: u8) -> Endpoint {
    Endpoint { address: Ipv4Addr::new(198, 51, 100, host).into(), port: 8080 }
}

fn site(host: u8) -> Site {
    let address = Ipv4Addr::new(203, 0, 113, host).into();
    Site { place: Place::Address(address), protocol: Protocol::Tcp, port: 80 }
}

/// A loop under test at a given time.
struct Bench {
    sync: SyncLoop<Quiet>,
    script: Arc<Mutex<Script>>,
    script_v6: Arc<Mutex<Script>>,
    sweeps: Receiver<Sweep>,
    now: Instant,
}

const SECOND: Duration = Duration::from_secs(1);

impl Bench {
    fn new() -> Self {
        Self::with_pause(Duration::ZERO)
    }

    fn with_pause(min_sync_period: Duration) -> Self {
        let [script, script_v6] = [(); 2].map(|()| Arc::new(Mutex::new(Script::default())));
        let options = Options {
            min_sync_period,
            sync_period: 30 * SECOND,
            check_period: 3600 * SECOND,
            node_ports: NodePortSelection::default(),
            primary_addresses: vec![],
            interfaces_are_primary: false,
            reset_period: 60 * SECOND,
        };
        let (sender, sweeps) = channel();
        let fakes = [(Family::V4, &script), (Family::V6, &script_v6)];
        let backends = fakes
            .map(|(family, script)| Box::new(Fake(family, Arc::clone(script))) as Box<dyn Backend + Send>);
        let tracker = Tracker::new(TrackerOptions {
            node_name: "n1".into(),
            families: vec![Family::V4, Family::V6],
            allow_external_ips: true,
        });
        let sync = SyncLoop::new(tracker, backends.into(), options, Quiet::default(), sender);
        Self { now: Instant::now(), sync, script, script_v6, sweeps }
    }

    /// One that has two services, `a` and `b`, and has synced.
    fn synced() -> Self {
        let mut bench = Self::new();
        bench.tell([service("a", 1), service("b", 2)]);
        bench.tell_all_is_known();
        assert_eq!(bench.calls(), [Call::Rebuild(vec!["a".into(), "b".into()])]);
        bench
    }

    fn tell(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.sync.tell(Message::Event(event));
        }
    }

    fn tell_all_is_known(&mut self) {
        let node = model::Node { name: "n1".into(), ..model::Node::default() };
        self.tell([Event::Node(node)]);
        self.tell([Kind::Service, Kind::Slice, Kind::Node, Kind::ServiceCidr].map(Event::End));
    }

    /// What the backend of IPv4 is asked to do now.
    fn calls(&mut self) -> Vec<Call> {
        self.sync.step(self.now);
        std::mem::take(&mut self.script.lock().unwrap().calls)
    }

    /// What was ordered for IPv4 since the last call, beyond mere news.
    fn orders(&mut self) -> Vec<Sweep> {
        let ordered = self.sweeps.try_iter();
        ordered.filter(|sweep| sweep.family == Family::V4 && !sweep.suspects.are_none()).collect()
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }
}

fn update(names: &[&str]) -> Call {
    Call::Update(names.iter().map(|name| (*name).to_owned()).collect())
}

fn rebuild(names: &[&str]) -> Call {
    Call::Rebuild(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn nothing_is_written_before_everything_is_known() {
    let mut bench = Bench::new();
    bench.tell([service("a", 1)]);
    bench.tell([Kind::Service, Kind::Slice].map(Event::End));
    assert_eq!(bench.calls(), []);
    bench.tell_all_is_known();
    assert_eq!(bench.calls(), [rebuild(&["a"])]);
}

#[test]
fn a_change_writes_what_changed_and_nothing_else() {
    let mut bench = Bench::synced();
    bench.tell([service("a", 9)]);
    assert_eq!(bench.calls(), [update(&["a"])]);
    assert_eq!(bench.calls(), []);
}

#[test]
fn a_failed_sync_is_tried_again_later_with_everything() {
    let mut bench = Bench::synced();
    bench.script.lock().unwrap().failures = 1;
    bench.tell([service("a", 9)]);
    assert_eq!(bench.calls(), [update(&["a"])]);
    assert_eq!(bench.calls(), [], "not at once");
    bench.pass(SECOND);
    assert_eq!(bench.calls(), [rebuild(&["a", "b"])]);
}

#[test]
fn nothing_is_told_of_what_is_not_written() {
    let mut bench = Bench::synced();
    let before = bench.sync.reporter.settled;
    for script in [&bench.script, &bench.script_v6] {
        script.lock().unwrap().failures = 1;
    }
    bench.tell([service("a", 9)]);
    bench.calls();
    assert_eq!(bench.sync.reporter.settled, before);
    bench.pass(SECOND);
    bench.calls();
    assert_eq!(bench.sync.reporter.settled, before + 1);
}

#[test]
fn a_refused_service_is_left_out_until_it_changes() {
    let mut bench = Bench::synced();
    bench.script.lock().unwrap().refuses = Some(key("a"));
    bench.tell([service("a", 9), service("b", 8)]);
    assert_eq!(bench.calls(), [update(&["a", "b"]), rebuild(&["a", "b"]), rebuild(&["b"])]);
    bench.tell([service("b", 7)]);
    assert_eq!(bench.calls(), [update(&["b"])]);
    bench.script.lock().unwrap().refuses = None;
    bench.tell([service("a", 6)]);
    assert_eq!(bench.calls(), [update(&["a"])]);
}

#[test]
fn a_foreign_change_is_repaired_at_once() {
    let mut bench = Bench::synced();
    bench.sync.tell(Message::ForeignChange(Family::V4, Some("nft".into())));
    assert_eq!(bench.calls(), [rebuild(&["a", "b"])]);
    bench.sync.tell(Message::ForeignChange(Family::V6, None));
    assert_eq!(bench.calls(), [], "the other family's table is not touched");
}

#[test]
fn a_fight_with_another_program_is_repaired_less_and_less_often_while_services_go_on() {
    let mut bench = Bench::synced();
    let mut repairs = 0;
    for second in 0..600 {
        bench.sync.tell(Message::ForeignChange(Family::V4, Some("other".into())));
        if bench.calls().is_empty() {
            let wakes_at = bench.sync.step(bench.now).unwrap();
            assert!(wakes_at <= bench.now + 30 * SECOND, "at {second} s it would sleep through the repair");
        } else {
            repairs += 1;
        }
        bench.pass(SECOND);
    }
    assert!((20..40).contains(&repairs), "{repairs} repairs in ten minutes");
    bench.tell([service("a", 9)]);
    assert_eq!(bench.calls(), [update(&["a"])]);
    bench.pass(30 * SECOND);
    assert_eq!(bench.calls(), [rebuild(&["a", "b"])], "the last change is repaired, too");
    bench.pass(60 * SECOND);
    bench.sync.tell(Message::ForeignChange(Family::V4, None));
    assert_eq!(bench.calls(), [rebuild(&["a", "b"])], "at once after a time of peace");
}

#[test]
fn the_kernel_is_compared_now_and_then() {
    let mut bench = Bench::synced();
    bench.pass(3599 * SECOND);
    assert_eq!(bench.calls(), []);
    bench.pass(2 * SECOND);
    assert_eq!(bench.calls(), [rebuild(&["a", "b"])]);
}

#[test]
fn an_idle_loop_sleeps_until_the_next_check() {
    let mut bench = Bench::synced();
    let wakes_at = bench.sync.step(bench.now).unwrap();
    assert!(wakes_at - bench.now > 3598 * SECOND);
}

#[test]
fn the_same_objects_told_again_write_nothing() {
    let mut bench = Bench::synced();
    bench.tell([Event::Begin(Kind::Service), service("a", 1), service("b", 2), Event::End(Kind::Service)]);
    assert_eq!(bench.calls(), []);
    bench.tell([Event::Begin(Kind::Service), service("a", 1), Event::End(Kind::Service)]);
    assert_eq!(bench.calls(), [update(&["b"])]);
}

#[test]
fn a_sync_that_others_may_have_disturbed_makes_the_other_family_be_compared_too() {
    let mut bench = Bench::synced();
    bench.script_v6.lock().unwrap().unsure = 1;
    bench.tell([service("a", 9)]);
    assert_eq!(bench.calls(), [update(&["a"])]);
    assert_eq!(bench.calls(), [rebuild(&["a", "b"])]);
    assert_eq!(bench.calls(), []);
}

#[test]
fn a_sync_that_others_may_have_disturbed_is_followed_by_a_comparison() {
    let mut bench = Bench::synced();
    bench.script.lock().unwrap().unsure = 1;
    bench.tell([service("a", 9)]);
    assert_eq!(bench.calls(), [update(&["a"])]);
    assert_eq!(bench.calls(), [rebuild(&["a", "b"])]);
    assert_eq!(bench.calls(), []);
}

// --- stale flows -----------------------------------------------------------------------------------------------------

fn suspects(hosts: &[u8], sites: &[Site]) -> Suspects {
    let endpoints = hosts.iter().map(|host| (Protocol::Tcp, endpoint(*host))).collect();
    Suspects::Some { endpoints, sites: sites.iter().copied().collect() }
}

fn endpoints(hosts: &[u8]) -> Arc<[Endpoint]> {
    hosts.iter().map(|host| endpoint(*host)).collect()
}

/// Whose flows are looked at now.
fn suspected(bench: &mut Bench) -> Vec<Suspects> {
    bench.calls();
    bench.orders().into_iter().map(|sweep| sweep.suspects).collect()
}

#[test]
fn at_the_start_every_flow_is_looked_at_and_by_a_comparison_that_finds_nothing_none_is() {
    let mut bench = Bench::synced();
    assert_eq!(suspected(&mut bench), [Suspects::All]);
    bench.pass(3601 * SECOND);
    assert_eq!(suspected(&mut bench), []);
}

#[test]
fn flows_to_a_removed_endpoint_are_looked_at_once_the_kernel_does_not_lead_there_any_more() {
    let mut bench = Bench::synced();
    bench.tell([slice("x", &[1, 2])]);
    suspected(&mut bench);
    bench.tell([slice("x", &[2])]);
    bench.script.lock().unwrap().failures = 1;
    assert_eq!(suspected(&mut bench), []);
    bench.pass(SECOND / 10);
    bench.calls();
    let orders = bench.orders();
    assert_eq!(orders.len(), 1);
    assert_eq!(orders[0].suspects, suspects(&[1], &[]));
    assert_eq!(orders[0].servers[&site(1)], Some(endpoints(&[2])));
}

#[test]
fn new_endpoints_are_told_before_the_kernel_leads_there() {
    let mut bench = Bench::synced();
    bench.calls();
    bench.sweeps.try_iter().count();
    bench.tell([slice("x", &[1])]);
    bench.script.lock().unwrap().failures = 1;
    bench.calls();
    let news: Vec<_> = bench.sweeps.try_iter().filter(|sweep| sweep.family == Family::V4).collect();
    assert_eq!(news.len(), 1);
    assert!(news[0].suspects.are_none());
    assert_eq!(news[0].servers[&site(1)], Some(endpoints(&[1])));
}

#[test]
fn flows_to_sites_that_come_or_go_are_looked_at() {
    let mut bench = Bench::synced();
    suspected(&mut bench);
    bench.tell([service("a", 9), slice("x", &[1])]);
    bench.calls();
    let orders = bench.orders();
    assert_eq!(orders[0].suspects, suspects(&[], &[site(1), site(9)]));
    assert_eq!(orders[0].servers[&site(1)], None);
    assert_eq!(orders[0].servers[&site(9)], Some(endpoints(&[1])));
}

#[test]
fn flows_to_a_removed_endpoint_are_looked_at_again_and_its_service_is_written_when_resets_begin_and_end() {
    let mut bench = Bench::synced();
    bench.tell([slice("x", &[1, 2])]);
    bench.calls();
    bench.pass(SECOND / 2);
    bench.tell([slice("x", &[2])]);
    bench.calls();
    bench.orders();
    let (mut writes, mut visits) = (Vec::new(), Vec::new());
    for second in 0..100 {
        bench.pass(SECOND);
        writes.extend(bench.calls().iter().map(|_| second + 1));
        visits.extend(bench.orders().iter().map(|_| second + 1));
    }
    // together with others: at full seconds of the loop
    assert_eq!(writes, [1, 61]);
    assert_eq!(visits, [2, 5, 17]);
}

#[test]
fn flows_of_a_service_that_is_gone_are_not_looked_at_again() {
    let mut bench = Bench::synced();
    bench.tell([slice("x", &[1, 2])]);
    bench.calls();
    bench.tell([slice("x", &[2])]);
    bench.calls();
    bench.tell([Event::ServiceDeleted(key("a"))]);
    bench.calls();
    bench.orders();
    for _ in 0..100 {
        bench.pass(SECOND);
        bench.calls();
        assert_eq!(bench.orders(), []);
    }
}

#[test]
fn connections_to_an_endpoint_that_leaves_again_have_the_same_time_as_the_first_time() {
    let mut bench = Bench::synced();
    let resets_at = |bench: &Bench| {
        let service = bench.sync.tracker.resolve(&key("a"), Family::V4).unwrap();
        service.ports[0].departed.clone()
    };
    // in the first round and the last ones its connections are reset before it is back
    for (back_after, reset_for) in [
        (0, SECOND),
        (50, Duration::ZERO),
        (150, Duration::ZERO),
        (250, Duration::ZERO),
        (300, SECOND),
        (400, SECOND),
        (900, SECOND),
    ] {
        bench.tell([slice("x", &[1, 2])]);
        bench.calls();
        assert_eq!(resets_at(&bench), []);
        bench.pass(Duration::from_millis(back_after));
        bench.tell([slice("x", &[2])]);
        bench.calls();
        for _ in 0..10 {
            assert_eq!(resets_at(&bench), [], "it was there {back_after} ms");
            bench.pass(Duration::from_millis(19));
            bench.calls();
        }
        bench.pass(reset_for);
        bench.calls();
    }
}

#[test]
fn a_change_does_not_wait_because_resets_of_earlier_ones_began() {
    let mut bench = Bench::with_pause(SECOND);
    bench.tell([service("a", 1)]);
    bench.tell_all_is_known();
    bench.tell([slice("x", &[1, 2])]);
    bench.calls();
    for host in [3, 5, 7, 9] {
        bench.pass(2 * SECOND);
        bench.tell([slice("x", &[host])]);
        assert_eq!(bench.calls(), [update(&["a"])]);
        bench.tell([slice("x", &[host + 1])]);
        assert_eq!(bench.calls(), [update(&["a"])], "the second of a burst");
        bench.pass(SECOND / 2);
        assert_eq!(bench.calls(), [update(&["a"])], "the resets begin, though the burst is over");
    }
}

#[test]
fn an_endpoint_that_moves_to_another_slice_is_not_taken_for_one_that_left() {
    let mut bench = Bench::synced();
    bench.tell([slice("x", &[1, 2])]);
    bench.calls();
    bench.tell([slice("x", &[2])]);
    bench.calls();
    bench.pass(SECOND / 10);
    bench.tell([slice("y", &[1])]);
    bench.calls();
    bench.orders();
    for _ in 0..100 {
        bench.pass(SECOND);
        assert_eq!(bench.calls(), []);
        assert!(bench.orders().iter().all(|sweep| sweep.servers[&site(1)] == Some(endpoints(&[1, 2]))));
    }
}
