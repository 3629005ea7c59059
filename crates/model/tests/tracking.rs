//! What counts as a change, and that order makes no difference.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use kube_proxy_model::{
    Event, Family, Kind, ObjectKey, Policy, ResolvedService, Service, Slice, Tracker, TrackerOptions,
};
use proptest::prelude::*;
use support::*;

#[test]
fn what_no_data_plane_can_see_is_no_change() {
    let endpoints = || vec![remote("198.51.100.1"), not_ready(remote("198.51.100.2")), local("198.51.100.3")];
    let mut world =
        World::of([Event::Service(service("s", 1)), Event::Slice(slice("s-1", "s", endpoints()))]);
    assert_eq!(world.dirty(), ["s"]);
    let mut turned = endpoints();
    turned.reverse();
    let touched = Slice {
        triggered: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(9)),
        ..slice("s-1", "s", turned)
    };
    world.tell([Event::Slice(touched), Event::Service(service("s", 1))]);
    assert!(!world.0.has_changes());
}

#[test]
fn the_order_of_one_address_told_twice_is_no_change() {
    let twice = || vec![for_zones(remote("198.51.100.1"), &["a"]), for_zones(remote("198.51.100.1"), &["b"])];
    let mut world =
        World::of([node_in("a"), Event::Service(service("s", 1)), Event::Slice(slice("s-1", "s", twice()))]);
    world.dirty();
    let mut turned = twice();
    turned.reverse();
    world.tell([Event::Slice(slice("s-1", "s", turned))]);
    assert!(!world.0.has_changes());
}

#[test]
fn slices_that_no_served_service_shows_are_no_change() {
    let v6 = || Event::Slice(slice("s-6", "s", vec![remote("2001:db8::1")]));
    let mut world = World::of([Event::Service(service("s", 1))]);
    world.dirty();
    world.tell([v6(), Event::SliceDeleted(key("s-6"))]);
    world.tell([
        Event::Slice(slice("x", "headless", vec![remote("198.51.100.1")])),
        Event::SliceDeleted(key("x")),
    ]);
    assert!(!world.0.has_changes(), "neither of another family nor of no service");
    // but they are there when the service comes to show them
    let dual = Service { cluster_ips: vec![ip("203.0.113.1"), ip("2001:db8:c::1")], ..service("s", 1) };
    world.tell([v6(), Event::Service(dual)]);
    let resolved = world.0.resolve(&key("s"), Family::V6).unwrap();
    assert_eq!(resolved.ports[0].cluster.len(), 1);
}

#[test]
fn changes_tell_when_they_were_made_once() {
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(9);
    let mut world = World::of([Event::Service(service("s", 1))]);
    world.dirty();
    world.tell([Event::Slice(Slice {
        triggered: Some(at),
        ..slice("s-1", "s", vec![remote("198.51.100.1")])
    })]);
    assert_eq!(world.0.take_changes().triggers, [at]);
    assert_eq!(world.0.take_changes().triggers, []);
}

#[test]
fn slices_may_come_before_their_service_and_stay_when_it_is_made_anew() {
    let mut world = World::of([Event::Slice(slice("s-1", "s", vec![remote("198.51.100.1")]))]);
    assert!(world.service("s").is_none());
    world.tell([Event::Service(service("s", 1))]);
    assert_eq!(world.cluster("s"), [1]);
    world.tell([Event::ServiceDeleted(key("s"))]);
    assert!(world.service("s").is_none());
    world.tell([Event::Service(service("s", 1))]);
    assert_eq!(world.cluster("s"), [1]);
}

#[test]
fn a_slice_that_changes_hands_leaves_its_old_service() {
    let mut world = World::of([
        Event::Service(service("a", 1)),
        Event::Service(service("b", 2)),
        Event::Slice(slice("x", "a", vec![remote("198.51.100.1")])),
    ]);
    world.dirty();
    world.tell([Event::Slice(slice("x", "b", vec![remote("198.51.100.1")]))]);
    assert_eq!(world.dirty(), ["a", "b"]);
    assert_eq!((world.cluster("a"), world.cluster("b")), (vec![], vec![1]));
}

#[test]
fn deletions_of_what_is_not_known_change_nothing() {
    let mut world = World::of([Event::Service(service("s", 1))]);
    world.dirty();
    world.tell([
        Event::ServiceDeleted(key("other")),
        Event::SliceDeleted(key("other")),
        Event::NodeDeleted,
        Event::ServiceCidrDeleted("other".into()),
    ]);
    assert!(!world.0.has_changes());
}

#[test]
fn telling_everything_again_removes_what_is_not_told() {
    let mut world = World::of([
        Event::Service(service("a", 1)),
        Event::Service(service("b", 2)),
        Event::Slice(slice("a-1", "a", vec![remote("198.51.100.1")])),
        Event::Slice(slice("a-2", "a", vec![remote("198.51.100.2")])),
    ]);
    world.tell(all_known());
    world.dirty();
    world.tell([Event::Begin(Kind::Service), Event::Service(service("a", 1))]);
    // the connection broke: it begins again
    world.tell([Event::Begin(Kind::Service), Event::Service(service("b", 2)), Event::End(Kind::Service)]);
    assert_eq!(world.dirty(), ["a"]);
    let first = Event::Slice(slice("a-1", "a", vec![remote("198.51.100.1")]));
    world.tell([Event::Begin(Kind::Slice), first, Event::End(Kind::Slice), Event::Service(service("a", 1))]);
    assert_eq!(world.cluster("a"), [1]);
}

#[test]
fn it_is_ready_when_every_kind_has_been_told() {
    let mut world = World::of([]);
    for event in all_known() {
        assert!(!world.0.ready());
        world.tell([event]);
    }
    assert!(world.0.ready());
}

#[test]
fn service_cidrs_are_facts_and_the_same_ones_again_are_no_change() {
    let told = |name: &str, net: &str| Event::ServiceCidr(name.into(), vec![net.parse().unwrap()]);
    let mut world = World::of([told("a", "203.0.113.0/25")]);
    assert!(world.0.take_changes().facts);
    world.tell([told("a", "203.0.113.0/25")]);
    assert!(!world.0.has_changes());
    world.tell([told("b", "203.0.113.128/25")]);
    assert!(world.0.take_changes().facts);
    assert_eq!(world.0.service_cidrs().len(), 2);
    world.tell([
        Event::Begin(Kind::ServiceCidr),
        told("b", "203.0.113.128/25"),
        Event::End(Kind::ServiceCidr),
    ]);
    assert_eq!(world.0.service_cidrs().len(), 1);
}

fn v4_only() -> TrackerOptions {
    TrackerOptions { node_name: NODE.into(), families: vec![Family::V4], allow_external_ips: true }
}

#[test]
fn what_is_of_a_family_that_is_not_served_is_no_change() {
    let dual = Service { cluster_ips: vec![ip("203.0.113.1"), ip("2001:db8:c::1")], ..service("s", 1) };
    let mut world = World(Tracker::new(v4_only()));
    world.tell([Event::Service(dual)]);
    world.dirty();
    world.tell([
        Event::Slice(slice("s-6", "s", vec![remote("2001:db8::1")])),
        Event::SliceDeleted(key("s-6")),
    ]);
    assert!(!world.0.has_changes());
}

#[test]
fn external_ips_can_be_switched_off() {
    let mut tracker = Tracker::new(TrackerOptions { allow_external_ips: false, ..v4_only() });
    tracker.apply(Event::Service(Service { external_ips: vec![ip("203.0.113.150")], ..service("s", 1) }));
    assert_eq!(tracker.resolve(&key("s"), Family::V4).unwrap().ports[0].frontends.len(), 1);
}

#[test]
fn addresses_of_a_family_without_cluster_ip_or_that_is_not_served_are_left_out() {
    let service = Service { external_ips: vec![ip("2001:db8:d::2"), ip("203.0.113.150")], ..service("s", 1) };
    let world = World::of([Event::Service(service)]);
    assert_eq!(world.frontends("s").len(), 2);
    assert!(world.0.resolve(&key("s"), Family::V6).is_none());
}

#[test]
fn a_node_within_the_source_ranges_may_use_the_address_as_its_own_source() {
    let service = Service {
        load_balancer_ips: vec![ip("203.0.113.200")],
        source_ranges: vec!["192.0.2.0/24".parse().unwrap(), "2001:db8:a::/64".parse().unwrap()],
        ..service("s", 1)
    };
    let mut world = World::of([Event::Service(service)]);
    let ranges = |world: &World| {
        let ranges = world.service("s").unwrap().source_ranges;
        ranges.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(ranges(&world), ["192.0.2.0/24"]);
    world.dirty();
    world.tell([node_in("a")]);
    assert_eq!(world.dirty(), ["s"]);
    assert_eq!(ranges(&world), ["192.0.2.0/24", "203.0.113.200/32"]);
}

// --- order makes no difference ---------------------------------------------------------------------------------------

/// The final state of a small cluster.
#[derive(Clone, Debug)]
struct Cluster {
    services: Vec<Service>,
    slices: Vec<Slice>,
}

fn any_service() -> impl Strategy<Value = Service> {
    (0_u8..6, 0_i64..3, 0_u8..4, proptest::option::of(30000_u16..30003), any::<[bool; 3]>()).prop_map(
        |(number, created, external, node_port, [internal_local, external_local, dual])| {
            let mut service = match node_port {
                Some(port) => node_port_service(&format!("s{number}"), number, port),
                None => service(&format!("s{number}"), number),
            };
            let policy = |local| if local { Policy::Local } else { Policy::Cluster };
            service.created = created;
            service.internal_policy = policy(internal_local);
            service.external_policy = policy(external_local);
            if external > 0 {
                service.external_ips = vec![std::net::IpAddr::from([203, 0, 113, 200 + external])];
            }
            if dual {
                service.cluster_ips.push(format!("2001:db8:c::{number}").parse().unwrap());
            }
            service
        },
    )
}

fn any_slice() -> impl Strategy<Value = Slice> {
    let endpoint = (1_u8..9, 0_u8..4, any::<bool>(), proptest::option::of(prop_oneof![Just("a"), Just("b")]));
    let v6 = prop::bool::weighted(0.3);
    (0_u8..6, 0_u8..8, v6, proptest::collection::vec(endpoint, 0..5)).prop_map(
        |(service, number, v6, endpoints)| {
            let endpoints = endpoints.into_iter().map(|(host, state, is_local, zone)| {
                let address = if v6 { format!("2001:db8::{host}") } else { format!("198.51.100.{host}") };
                let endpoint = if is_local { local(&address) } else { remote(&address) };
                let endpoint = zone.map_or(endpoint.clone(), |zone| for_zones(endpoint, &[zone]));
                match state {
                    0 | 1 => endpoint,
                    2 => draining(endpoint),
                    _ => not_ready(endpoint),
                }
            });
            slice(&format!("x{number}"), &format!("s{service}"), endpoints.collect())
        },
    )
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => any_service().prop_map(Event::Service),
        2 => (0_u8..6).prop_map(|number| Event::ServiceDeleted(key(&format!("s{number}")))),
        5 => any_slice().prop_map(Event::Slice),
        2 => (0_u8..8).prop_map(|number| Event::SliceDeleted(key(&format!("x{number}")))),
        1 => prop_oneof![Just("a"), Just("b")].prop_map(node_in),
    ]
}

/// What is there after these events.
fn outcome(events: &[Event]) -> (Cluster, Event) {
    let mut services = BTreeMap::new();
    let mut slices = BTreeMap::new();
    let mut node = Event::NodeDeleted;
    for event in events.iter().cloned() {
        match event {
            Event::Service(service) => drop(services.insert(service.key.clone(), service)),
            Event::ServiceDeleted(key) => drop(services.remove(&key)),
            Event::Slice(slice) => drop(slices.insert(slice.key.clone(), slice)),
            Event::SliceDeleted(key) => drop(slices.remove(&key)),
            event => node = event,
        }
    }
    (Cluster { services: services.into_values().collect(), slices: slices.into_values().collect() }, node)
}

fn everything(world: &World) -> BTreeMap<(ObjectKey, Family), ResolvedService> {
    let mut all = BTreeMap::new();
    for number in 0..6 {
        for family in [Family::V4, Family::V6] {
            let key = key(&format!("s{number}"));
            if let Some(service) = world.0.resolve(&key, family) {
                all.insert((key, family), service);
            }
        }
    }
    all
}

proptest! {
    #[test]
    fn any_way_to_a_state_means_the_same_as_being_told_that_state(
        events in proptest::collection::vec(any_event(), 0..60),
        order in any::<proptest::sample::Index>(),
    ) {
        let history = World::of(events.clone());
        let (cluster, node) = outcome(&events);
        let mut told: Vec<_> = cluster.services.into_iter().map(Event::Service).collect();
        told.extend(cluster.slices.into_iter().map(Event::Slice));
        if !told.is_empty() {
            let turn = order.index(told.len());
            told.rotate_left(turn);
        }
        told.push(node);
        prop_assert_eq!(everything(&history), everything(&World::of(told)));
    }

    #[test]
    fn every_service_that_means_something_else_is_told_of(
        events in proptest::collection::vec(any_event(), 0..40),
    ) {
        let mut world = World::of([]);
        for event in events {
            let before = everything(&world);
            world.tell([event.clone()]);
            let after = everything(&world);
            let dirty = world.0.take_changes().services;
            for key in before.keys().chain(after.keys()) {
                let changed = before.get(key) != after.get(key);
                prop_assert!(!changed || dirty.contains(&key.0), "{:?} changed {:?} and was not told of", event, key);
            }
        }
    }

    #[test]
    fn telling_the_same_again_changes_nothing(events in proptest::collection::vec(any_event(), 0..40)) {
        let mut world = World::of(events.clone());
        world.tell(all_known());
        world.0.take_changes();
        let (cluster, _) = outcome(&events);
        world.tell([Event::Begin(Kind::Service), Event::Begin(Kind::Slice)]);
        world.tell(cluster.slices.into_iter().map(Event::Slice));
        world.tell(cluster.services.into_iter().map(Event::Service));
        world.tell([Event::End(Kind::Service), Event::End(Kind::Slice)]);
        prop_assert!(!world.0.has_changes());
    }
}
