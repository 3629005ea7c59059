//! Whatever was told, in whatever order: only what is there in the end counts, and every change is told of.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kube_proxy_model::{
    Endpoint, Event, Family, Frontend, Hints, Kind, Node, ObjectKey, Policy, Protocol, ResolvedService,
    Service, ServiceType, Slice, SliceEndpoint, SlicePort,
};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use support::*;

// --- what can happen -------------------------------------------------------------------------------------------------

const SERVICES: u8 = 6;
const SLICES: u8 = 8;

fn any_policy() -> impl Strategy<Value = Policy> {
    select(&[Policy::Cluster, Policy::Local][..])
}

/// Services that often want the same addresses and node ports, and now and then have no port at all.
fn any_service() -> impl Strategy<Value = Service> {
    let shape = (0..SERVICES, 0_i64..3, any::<bool>(), vec(30000_u16..30003, 0..3));
    let outside = (0_u8..4, 0_u8..4, 0_usize..4, of(32000_u16..32002));
    let kind = select(&[ServiceType::ClusterIp, ServiceType::NodePort, ServiceType::LoadBalancer][..]);
    (shape, outside, kind, any_policy(), any_policy()).prop_map(
        |(
            (number, created, dual, node_ports),
            (external, balancer, ranges, health),
            kind,
            internal,
            policy,
        )| {
            let address = |host: u8| (host > 0).then(|| IpAddr::from([203, 0, 113, 200 + host]));
            let ports =
                ["http", "admin"].iter().zip(80..).zip(node_ports).map(|((name, number), node_port)| {
                    kube_proxy_model::ServicePort {
                        node_port: NonZeroU16::new(node_port),
                        ..port(name, number)
                    }
                });
            let all_ranges = ["192.0.2.10/32", "198.51.100.0/24", "2001:db8:a::/64"];
            let mut service = service(&format!("s{number}"), number);
            service.cluster_ips.extend(dual.then(|| ip(&format!("2001:db8:c::{number}"))));
            Service {
                kind,
                created,
                ports: ports.collect(),
                // the last one is the cluster IP of a service
                external_ips: if external == 3 {
                    vec![ip("203.0.113.1")]
                } else {
                    address(external).into_iter().collect()
                },
                load_balancer_ips: address(balancer).into_iter().collect(),
                source_ranges: all_ranges[..ranges].iter().map(|range| range.parse().unwrap()).collect(),
                internal_policy: internal,
                external_policy: policy,
                health_check_node_port: health.and_then(NonZeroU16::new),
                ..service
            }
        },
    )
}

fn any_endpoint(v6: bool) -> impl Strategy<Value = SliceEndpoint> {
    let zones = select(vec![vec!["a"], vec!["b"], vec!["c"], vec!["b", "c"], vec![]]);
    let nodes = select(vec![vec![NODE], vec!["n2"], vec![], vec![], vec![]]);
    (1_u8..9, any::<[bool; 4]>(), zones, nodes).prop_map(
        move |(host, [local, ready, serving, terminating], zones, nodes)| {
            let address = if v6 { format!("2001:db8::{host}") } else { format!("198.51.100.{host}") };
            let names = |names: Vec<&str>| names.into_iter().map(Into::into).collect();
            let hints = Hints { zones: names(zones), nodes: names(nodes) };
            let hints = (hints != Hints::default()).then(|| Box::new(hints));
            SliceEndpoint { address: ip(&address), local, ready, serving, terminating, hints }
        },
    )
}

fn any_slice() -> impl Strategy<Value = Slice> {
    let endpoints = prop::bool::weighted(0.3).prop_flat_map(|v6| vec(any_endpoint(v6), 0..5));
    let ports = prop::sample::subsequence(vec!["http", "admin"], 0..=2);
    (0..SERVICES, 0..SLICES, endpoints, ports).prop_map(|(service, number, endpoints, ports)| {
        let port = |name: &str| SlicePort { name: name.into(), protocol: Protocol::Tcp, port: 8080 };
        Slice {
            ports: ports.into_iter().map(port).collect(),
            ..slice(&format!("x{number}"), &format!("s{service}"), endpoints)
        }
    })
}

fn any_node() -> impl Strategy<Value = Node> {
    let addresses = prop::sample::subsequence(vec!["192.0.2.10", "192.0.2.11", "2001:db8:a::10"], 0..=3);
    (of(select(&["a", "b", "c"][..])), addresses).prop_map(|(zone, addresses)| Node {
        name: NODE.to_owned(),
        addresses: addresses.into_iter().map(ip).collect(),
        zone: zone.map(Into::into),
        ..Node::default()
    })
}

fn any_cidr() -> impl Strategy<Value = Event> {
    let nets = prop::sample::subsequence(vec!["203.0.113.0/25", "203.0.113.128/25"], 1..=2);
    (select(&["c1", "c2"][..]), nets).prop_map(|(name, nets)| {
        Event::ServiceCidr(name.into(), nets.into_iter().map(|net| net.parse().unwrap()).collect())
    })
}

#[derive(Clone, Debug)]
enum Step {
    Tell(Event),
    /// Everything of a kind is told again; the nth object of it is still there if `kept[n]`. With `interrupted`, the
    /// others were told too, but the connection broke before the end.
    Relist {
        kind: Kind,
        kept: [bool; SLICES as usize],
        interrupted: bool,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let event = prop_oneof![
        10 => any_service().prop_map(Event::Service),
        3 => (0..SERVICES).prop_map(|number| Event::ServiceDeleted(key(&format!("s{number}")))),
        10 => any_slice().prop_map(Event::Slice),
        3 => (0..SLICES).prop_map(|number| Event::SliceDeleted(key(&format!("x{number}")))),
        3 => any_node().prop_map(Event::Node),
        1 => Just(Event::NodeDeleted),
        1 => any_cidr(),
        1 => select(&["c1", "c2"][..]).prop_map(|name| Event::ServiceCidrDeleted(name.into())),
    ];
    let kind = select(&[Kind::Service, Kind::Slice, Kind::Node, Kind::ServiceCidr][..]);
    prop_oneof![
        10 => event.prop_map(Step::Tell),
        1 => (kind, any::<[bool; SLICES as usize]>(), any::<bool>())
            .prop_map(|(kind, kept, interrupted)| Step::Relist { kind, kept, interrupted }),
    ]
}

// --- what is there after it ------------------------------------------------------------------------------------------

/// The objects of a small cluster, each as the event that tells of it.
#[derive(Clone, Debug, Default)]
struct Cluster(BTreeMap<(Option<usize>, String), Event>);

fn order_of(kind: Kind) -> Option<usize> {
    [Kind::Service, Kind::Slice, Kind::Node, Kind::ServiceCidr].iter().position(|one| *one == kind)
}

impl Cluster {
    fn take(&mut self, event: &Event) {
        let (kind, name, there) = match event {
            Event::Service(service) => (Kind::Service, service.key.to_string(), true),
            Event::ServiceDeleted(key) => (Kind::Service, key.to_string(), false),
            Event::Slice(slice) => (Kind::Slice, slice.key.to_string(), true),
            Event::SliceDeleted(key) => (Kind::Slice, key.to_string(), false),
            Event::Node(_) => (Kind::Node, String::new(), true),
            Event::NodeDeleted => (Kind::Node, String::new(), false),
            Event::ServiceCidr(name, _) => (Kind::ServiceCidr, name.to_string(), true),
            Event::ServiceCidrDeleted(name) => (Kind::ServiceCidr, name.to_string(), false),
            Event::Begin(_) | Event::End(_) => return,
        };
        let id = (order_of(kind), name);
        if there { drop(self.0.insert(id, event.clone())) } else { drop(self.0.remove(&id)) }
    }

    fn of_kind(&self, kind: Kind) -> Vec<Event> {
        let of_kind = self.0.iter().filter(|((order, _), _)| *order == order_of(kind));
        of_kind.map(|(_, event)| event.clone()).collect()
    }

    /// Everything told again, complete.
    fn relisted(&self) -> Vec<Event> {
        let kinds = [Kind::ServiceCidr, Kind::Slice, Kind::Node, Kind::Service];
        kinds.into_iter().flat_map(|kind| framed(kind, self.of_kind(kind))).collect()
    }

    /// Whether a slice has the endpoint for this port of the service.
    fn lists(&self, service: &ObjectKey, port_name: &str, endpoint: Endpoint) -> bool {
        self.0.values().any(|event| match event {
            Event::Slice(slice) => {
                slice.service == *service
                    && slice.ports.iter().any(|port| *port.name == *port_name && port.port == endpoint.port)
                    && slice.endpoints.iter().any(|one| one.address == endpoint.address)
            }
            _ => false,
        })
    }

    /// Takes a step, and says what is told of it.
    fn play(&mut self, step: Step) -> Vec<Event> {
        match step {
            Step::Tell(event) => {
                self.take(&event);
                vec![event]
            }
            Step::Relist { kind, kept, interrupted } => {
                let objects = self.of_kind(kind).into_iter().zip(kept);
                let (kept, gone): (Vec<_>, Vec<_>) = objects.partition(|(_, kept)| *kept);
                let kept: Vec<_> = kept.into_iter().map(|(event, _)| event).collect();
                let mut events = Vec::new();
                if interrupted {
                    events.push(Event::Begin(kind));
                    events.extend(gone.into_iter().map(|(event, _)| event));
                }
                self.0.retain(|(order, _), _| *order != order_of(kind));
                for event in &kept {
                    self.take(event);
                }
                events.extend(framed(kind, kept));
                events
            }
        }
    }

    fn services(&self) -> impl Iterator<Item = &Service> {
        self.0.values().filter_map(|event| match event {
            Event::Service(service) => Some(service),
            _ => None,
        })
    }
}

/// Which endpoints serve at each site, and for whom.
fn servers(world: &World) -> BTreeMap<kube_proxy_model::Site, (ObjectKey, Arc<[Endpoint]>)> {
    let mut servers = BTreeMap::new();
    for number in 0..SERVICES {
        let key = key(&format!("s{number}"));
        for family in [Family::V4, Family::V6] {
            world.0.served_sites(&key, family, &mut |site, endpoints| {
                assert_eq!(world.0.holder(site), Some(&key));
                servers.insert(site, (key.clone(), Arc::clone(endpoints)));
            });
        }
    }
    servers
}

fn framed(kind: Kind, events: Vec<Event>) -> Vec<Event> {
    [vec![Event::Begin(kind)], events, vec![Event::End(kind)]].concat()
}

/// The events of these steps, and what is there after them.
fn play(steps: Vec<Step>) -> (Vec<Event>, Cluster) {
    let mut cluster = Cluster::default();
    (steps.into_iter().flat_map(|step| cluster.play(step)).collect(), cluster)
}

// --- what it means ---------------------------------------------------------------------------------------------------

/// What a data plane and the health checks make of a service.
#[derive(Debug, Default, PartialEq)]
struct Meaning {
    v4: Option<ResolvedService>,
    v6: Option<ResolvedService>,
    health: Option<(u16, usize)>,
}

fn meanings(world: &World) -> BTreeMap<ObjectKey, Meaning> {
    let meaning = |number| {
        let key = key(&format!("s{number}"));
        let port = world.0.health_check_node_port(&key);
        let health = port.map(|port| (port, world.0.local_ready_endpoints(&key)));
        let (v4, v6) = (world.0.resolve(&key, Family::V4), world.0.resolve(&key, Family::V6));
        (key, Meaning { v4, v6, health })
    };
    (0..SERVICES).map(meaning).collect()
}

/// What a service port can be reached at: an address or (none) the nodes', and a port.
type Site = (Option<IpAddr>, Family, u16);

/// What decides between those who want a site, the smallest first: not as a cluster IP, age, service, place of the port. Then
/// the port.
type Rank = (bool, i64, ObjectKey, usize, u16);

/// Every site in use, and who has it by the rule: that of a cluster IP, then the oldest, then the first by name, then the first port.
fn rightful_holders(cluster: &Cluster) -> BTreeMap<Site, (ObjectKey, u16)> {
    let mut claims: BTreeMap<Site, BTreeSet<Rank>> = BTreeMap::new();
    for service in cluster.services() {
        let families: Vec<_> = service.cluster_ips.iter().map(|address| Family::of(*address)).collect();
        let addresses = [
            (false, &service.cluster_ips),
            (true, &service.external_ips),
            (true, &service.load_balancer_ips),
        ];
        for (index, port) in service.ports.iter().enumerate() {
            let at_addresses =
                addresses.into_iter().flat_map(|(external, all)| all.iter().map(move |one| (external, *one)));
            let at_addresses =
                at_addresses.map(|(external, one)| (external, (Some(one), Family::of(one), port.port)));
            let at_nodes = port
                .node_port
                .into_iter()
                .flat_map(|number| families.iter().map(move |family| (true, (None, *family, number.get()))));
            for (external, site) in at_addresses.chain(at_nodes) {
                let claim = (external, service.created, service.key.clone(), index, port.port);
                claims.entry(site).or_default().insert(claim);
            }
        }
    }
    let first = |claims: BTreeSet<Rank>| {
        claims.into_iter().next().map(|(_, _, service, _, port)| (service, port)).unwrap()
    };
    claims.into_iter().map(|(site, claims)| (site, first(claims))).collect()
}

fn holders(world: &World) -> BTreeMap<Site, (ObjectKey, u16)> {
    let mut holders = BTreeMap::new();
    for (key, meaning) in meanings(world) {
        for (family, service) in [(Family::V4, meaning.v4), (Family::V6, meaning.v6)] {
            for port in service.iter().flat_map(|service| &service.ports) {
                for frontend in &port.frontends {
                    let number = if let Frontend::NodePort(number) = frontend { *number } else { port.port };
                    let site = (frontend.address(), family, number);
                    let other = holders.insert(site, (key.clone(), port.port));
                    assert_eq!(other, None, "{site:?} is given to two");
                }
            }
        }
    }
    holders
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    vec(any_step(), 0..60)
}

/// Shuffled, by keys that the test chose.
fn shuffled(events: Vec<Event>, order: &[u32]) -> Vec<Event> {
    let mut keyed: Vec<_> = order.iter().zip(events).collect();
    keyed.sort_by_key(|(key, _)| **key);
    keyed.into_iter().map(|(_, event)| event).collect()
}

proptest! {
    #[test]
    fn any_way_to_a_state_means_the_same_as_being_told_that_state(steps in steps(), order in vec(any::<u32>(), 32)) {
        let (events, cluster) = play(steps);
        let (history, fresh) = (World::of(events), World::of(shuffled(cluster.0.into_values().collect(), &order)));
        prop_assert_eq!(meanings(&history), meanings(&fresh));
        prop_assert_eq!(history.0.node(), fresh.0.node());
        prop_assert_eq!(history.0.service_cidrs(), fresh.0.service_cidrs());
        prop_assert!(history.0.service_keys().collect::<BTreeSet<_>>() == fresh.0.service_keys().collect());
    }

    #[test]
    fn an_address_is_given_to_the_one_with_the_best_claim_and_to_no_other(steps in steps()) {
        let (events, cluster) = play(steps);
        prop_assert_eq!(holders(&World::of(events)), rightful_holders(&cluster));
    }

    #[test]
    fn everything_that_means_something_else_is_told_of(steps in steps()) {
        let mut world = World::of([]);
        for event in play(steps).0 {
            let (before, node, cidrs) = (meanings(&world), world.0.node().cloned(), world.0.service_cidrs());
            world.tell([event.clone()]);
            let changes = world.0.take_changes();
            for (key, meaning) in meanings(&world) {
                let changed = before[&key] != meaning;
                prop_assert!(!changed || changes.services.contains(&key), "{key} by {event:?}");
            }
            let facts = node.as_ref() != world.0.node() || cidrs != world.0.service_cidrs();
            prop_assert!(!facts || changes.facts, "facts by {event:?}");
        }
    }

    #[test]
    fn every_endpoint_that_ceases_to_serve_is_told_of_unless_its_service_left_the_site(steps in steps()) {
        let mut world = World::of(all_known());
        for event in play(steps).0 {
            let before = servers(&world);
            world.tell([event.clone()]);
            let (after, changes) = (servers(&world), world.0.take_changes());
            for (site, (service, endpoints)) in before {
                let Some((_, still)) = after.get(&site).filter(|(holder, _)| *holder == service) else {
                    prop_assert!(changes.sites.contains(&site), "{site:?} by {event:?}");
                    continue;
                };
                for endpoint in endpoints.iter().filter(|endpoint| !still.contains(endpoint)) {
                    let told = changes.departures.iter().any(|one| one.service == service && one.endpoint == *endpoint);
                    prop_assert!(told || changes.sites.contains(&site), "{endpoint} of {service} by {event:?}");
                }
            }
        }
    }

    #[test]
    fn departed_are_those_that_are_remembered_and_in_no_slice_of_the_port(steps in steps(), chances in vec(any::<bool>(), 32)) {
        let mut world = World::of(all_known());
        let (mut cluster, mut remembered) = (Cluster::default(), BTreeSet::new());
        let mut chances = chances.into_iter().cycle();
        for step in steps {
            world.tell(cluster.play(step));
            let departures = world.0.take_changes().departures;
            remembered.retain(|departure| !departures.contains(departure));
            for departure in departures.into_iter().filter(|_| chances.next() == Some(true)) {
                world.0.remember(&departure);
                if !cluster.lists(&departure.service, &departure.port_name, departure.endpoint) {
                    remembered.insert(departure);
                }
            }
            if let Some(departure) = remembered.iter().next().filter(|_| chances.next() == Some(true)).cloned() {
                world.0.forget(&departure);
                remembered.remove(&departure);
            }
            // one without ports is no service
            let is_there = |key: &ObjectKey| cluster.services().any(|service| service.key == *key && !service.ports.is_empty());
            remembered.retain(|departure| is_there(&departure.service));
            for (service, meaning) in meanings(&world) {
                for (family, meaning) in [(Family::V4, meaning.v4), (Family::V6, meaning.v6)] {
                    for port in meaning.into_iter().flat_map(|service| service.ports) {
                        let expected = remembered.iter().filter(|one| {
                            one.service == service && one.port_name == port.name && Family::of(one.endpoint.address) == family
                        });
                        let expected = expected.filter(|one| !cluster.lists(&service, &port.name, one.endpoint));
                        let expected: Vec<_> = expected.map(|one| one.endpoint).collect();
                        prop_assert_eq!(port.departed, expected);
                    }
                }
            }
        }
    }

    #[test]
    fn telling_the_same_again_with_other_annotations_and_in_another_order_changes_nothing(steps in steps()) {
        let (events, cluster) = play(steps);
        let mut world = World::of(events);
        world.0.take_changes();
        world.0.take_conflicts();
        let again = cluster.relisted().into_iter().map(|event| match event {
            Event::Slice(mut slice) => {
                slice.triggered = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(9));
                slice.endpoints.reverse();
                slice.ports.reverse();
                Event::Slice(slice)
            }
            event => event,
        });
        world.tell(again);
        prop_assert!(!world.0.has_changes());
        prop_assert_eq!(world.0.take_conflicts(), []);
    }

    #[test]
    fn nothing_is_remembered_of_what_is_gone(steps in steps(), at_once in any::<bool>()) {
        let (events, cluster) = play(steps);
        let mut world = World::of(events);
        let shown = format!("{:?}", world.0).contains("web/");
        prop_assert!(shown || cluster.services().all(|service| service.ports.is_empty()), "or this cannot fail");
        if at_once {
            world.tell(Cluster::default().relisted());
        } else {
            for (_, event) in cluster.0 {
                world.tell([match event {
                    Event::Service(service) => Event::ServiceDeleted(service.key),
                    Event::Slice(slice) => Event::SliceDeleted(slice.key),
                    Event::ServiceCidr(name, _) => Event::ServiceCidrDeleted(name),
                    _ => Event::NodeDeleted,
                }]);
            }
        }
        prop_assert!(meanings(&world).values().all(|meaning| *meaning == Meaning::default()));
        world.0.take_changes();
        world.0.take_conflicts();
        let rest = format!("{:?}", world.0);
        for trace in ["web/", "203.0.113", "198.51.100", "192.0.2"] {
            prop_assert!(!rest.contains(trace), "{trace} in {rest}");
        }
    }
}
