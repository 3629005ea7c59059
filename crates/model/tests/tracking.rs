//! What counts as a change.
#![allow(clippy::unwrap_used)]

mod support;

use std::num::NonZeroU16;
use std::time::{Duration, SystemTime};

use kube_proxy_model::{
    Event, Family, Frontend, Kind, Policy, Service, ServiceType, Slice, Tracker, TrackerOptions,
};
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
fn every_change_of_a_slice_that_is_seen_tells_when_it_was_made_once() {
    let start = vec![Event::Service(service("s", 1)), Event::Service(service("t", 2))];
    let mut world = World::of(start);
    let without_ports = Slice { ports: vec![], ..slice("s-1", "s", vec![remote("198.51.100.1")]) };
    let states = [
        ("begins", slice("s-1", "s", vec![remote("198.51.100.1")])),
        ("one more", slice("s-1", "s", vec![remote("198.51.100.1"), remote("198.51.100.2")])),
        ("empty", slice("s-1", "s", vec![])),
        ("refilled", slice("s-1", "s", vec![remote("198.51.100.1")])),
        ("without ports", without_ports),
        ("with ports", slice("s-1", "s", vec![remote("198.51.100.1")])),
        ("another service's", slice("s-1", "t", vec![remote("198.51.100.1")])),
        ("nobody's", slice("s-1", "unknown", vec![remote("198.51.100.1")])),
    ];
    for (second, (what, state)) in (1..).zip(states) {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let event = || Event::Slice(Slice { triggered: Some(at), ..state.clone() });
        world.tell([event()]);
        assert_eq!(world.0.take_changes().triggers, [at], "{what}");
        world.tell([event()]);
        assert_eq!(world.0.take_changes().triggers, [], "{what}, told again");
    }
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
fn a_zone_that_was_hidden_by_another_shows_when_the_node_moves() {
    let hinted = |zone: &str| {
        let endpoints =
            vec![for_zones(remote("198.51.100.1"), &["a"]), for_zones(remote("198.51.100.2"), &[zone])];
        Event::Slice(slice("s-1", "s", endpoints))
    };
    let mut world = World::of([node_in("a"), Event::Service(service("s", 1)), hinted("b")]);
    let plain = Event::Slice(slice("p-1", "p", vec![remote("198.51.100.9")]));
    world.tell([Event::Service(service("p", 2)), plain]);
    world.dirty();
    world.tell([hinted("c")]);
    assert!(!world.0.has_changes(), "both are for others");
    world.tell([node_in("c")]);
    assert_eq!((world.dirty(), world.cluster("s")), (vec!["s".to_owned()], vec![2]));
}

#[test]
fn a_service_of_which_nothing_is_served_any_more_is_gone_but_its_slices_stay() {
    let endpoint = || vec![remote("198.51.100.1")];
    for nothing in [
        Service { ports: vec![], ..service("s", 1) },
        Service { cluster_ips: vec![ip("2001:db8:c::1")], ..service("s", 1) },
    ] {
        let mut world = World(Tracker::new(v4_only()));
        world.tell([Event::Service(service("s", 1)), Event::Slice(slice("s-1", "s", endpoint()))]);
        world.dirty();
        world.tell([Event::Service(nothing)]);
        assert_eq!(world.dirty(), ["s"]);
        assert!(world.service("s").is_none() && world.0.service_keys().next().is_none());
        world.tell([Event::Service(service("s", 1))]);
        assert_eq!(world.cluster("s"), [1]);
    }
}

#[test]
fn changes_are_counted_by_what_they_are_of() {
    let told = |host: u8| Event::Slice(slice("s-1", "s", vec![remote(&format!("198.51.100.{host}"))]));
    let mut world = World::of([
        Event::Service(service("s", 1)),
        Event::Service(node_port_service("s", 1, 30080)),
        told(1),
        told(2),
        told(2),
        Event::SliceDeleted(key("s-1")),
        node_in("a"),
    ]);
    let changes = world.0.take_changes();
    assert_eq!((changes.service_changes, changes.endpoint_changes), (2, 3));
    world.tell([Event::ServiceDeleted(key("s"))]);
    let changes = world.0.take_changes();
    assert_eq!((changes.service_changes, changes.endpoint_changes, changes.facts), (1, 0, false));
}

#[test]
fn a_node_that_is_not_told_again_is_gone() {
    let mut world = World::of([node_in("a")]);
    world.dirty();
    world.tell([Event::Begin(Kind::Node), node_in("a"), Event::End(Kind::Node)]);
    assert!(!world.0.has_changes() && world.0.node().is_some());
    world.tell([Event::Begin(Kind::Node), Event::End(Kind::Node)]);
    assert!(world.0.take_changes().facts && world.0.node().is_none());
}

#[test]
fn health_is_checked_at_load_balancers_with_external_policy_local() {
    let balancer = Service {
        kind: ServiceType::LoadBalancer,
        external_policy: Policy::Local,
        health_check_node_port: NonZeroU16::new(32534),
        ..service("s", 1)
    };
    let cases = [
        (balancer.clone(), Some(32534)),
        (Service { health_check_node_port: NonZeroU16::new(32600), ..balancer.clone() }, Some(32600)),
        (Service { external_policy: Policy::Cluster, ..balancer.clone() }, None),
        (Service { kind: ServiceType::NodePort, ..balancer.clone() }, None),
        (Service { health_check_node_port: None, ..balancer }, None),
    ];
    let mut world = World::of([]);
    for (service, port) in cases {
        world.tell([Event::Service(service.clone())]);
        assert_eq!(world.0.health_check_node_port(&service.key), port, "{service:?}");
        let resolved = world.0.resolve(&service.key, Family::V4).unwrap();
        assert_eq!(resolved.health_check_node_port, port, "{service:?}");
    }
}

#[test]
fn each_address_of_a_service_has_one_role() {
    use Frontend::{ClusterIp, ExternalIp, LoadBalancerIp};
    let service = Service {
        load_balancer_ips: vec![ip("203.0.113.200"), ip("203.0.113.1"), ip("203.0.113.200")],
        external_ips: vec![ip("203.0.113.200"), ip("203.0.113.1"), ip("203.0.113.150")],
        ..service("s", 1)
    };
    assert_eq!(
        World::of([Event::Service(service)]).frontends("s"),
        [
            ClusterIp(ip("203.0.113.1")),
            ExternalIp(ip("203.0.113.150")),
            LoadBalancerIp(ip("203.0.113.200")) // its source ranges must not be passed by
        ]
    );
}

// --- source ranges ---------------------------------------------------------------------------------------------------

/// A load balancer 203.0.113.200 and 2001:db8:d::200, with an external IP too, for clients in these ranges.
fn restricted(ranges: &[&str]) -> Service {
    Service {
        cluster_ips: vec![ip("203.0.113.1"), ip("2001:db8:c::1")],
        load_balancer_ips: vec![ip("203.0.113.200"), ip("2001:db8:d::200")],
        external_ips: vec![ip("203.0.113.150")],
        source_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        ..service("s", 1)
    }
}

fn sources(world: &World, family: Family) -> Vec<String> {
    let ranges = world.0.resolve(&key("s"), family).unwrap().source_ranges;
    ranges.iter().map(ToString::to_string).collect()
}

#[test]
fn source_ranges_are_those_of_the_family_and_everybody_is_no_restriction() {
    let cases: [(&[&str], &[&str]); 5] = [
        (&[], &[]),
        (&["198.51.100.7/24", "198.51.100.0/24"], &["198.51.100.0/24"]),
        (&["198.51.100.0/24", "2001:db8:b::/64"], &["198.51.100.0/24"]),
        (&["2001:db8:b::/64"], &[]),
        (&["198.51.100.0/24", "0.0.0.0/0"], &[]),
    ];
    for (given, v4) in cases {
        let world = World::of([node_in("a"), Event::Service(restricted(given))]);
        assert_eq!(sources(&world, Family::V4), v4, "{given:?}");
    }
}

#[test]
fn a_node_within_the_source_ranges_may_use_the_balancers_address_as_its_own_source() {
    let mut world = World::of([Event::Service(restricted(&["192.0.2.0/24", "2001:db8:b::/64"]))]);
    world.tell([Event::Service(service("open", 2))]);
    assert_eq!(sources(&world, Family::V4), ["192.0.2.0/24"]);
    world.dirty();
    world.tell([node_in("a")]);
    assert_eq!(world.dirty(), ["s"]);
    assert_eq!(sources(&world, Family::V4), ["192.0.2.0/24", "203.0.113.200/32"]);
    assert_eq!(sources(&world, Family::V6), ["2001:db8:b::/64"], "the node's IPv6 address is in no range");
    world.tell([Event::NodeDeleted]);
    assert_eq!(
        (world.dirty(), sources(&world, Family::V4)),
        (vec!["s".to_owned()], vec!["192.0.2.0/24".into()])
    );
}
