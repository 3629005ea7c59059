//! Which endpoints a service leads to.
#![allow(clippy::unwrap_used)]

mod support;

use kube_proxy_model::{Event, Family, Policy, Service, SliceEndpoint};
use support::*;

/// A load balancer service `s` with these policies, and these endpoints.
fn world(internal: Policy, external: Policy, endpoints: Vec<SliceEndpoint>) -> World {
    let service = Service {
        kind: kube_proxy_model::ServiceType::LoadBalancer,
        load_balancer_ips: vec![ip("203.0.113.200")],
        internal_policy: internal,
        external_policy: external,
        ..service("s", 1)
    };
    World::of([node_in("a"), Event::Service(service), Event::Slice(slice("s-1", "s", endpoints))])
}

fn plain(endpoints: Vec<SliceEndpoint>) -> World {
    world(Policy::Cluster, Policy::Cluster, endpoints)
}

#[test]
fn ready_endpoints_are_used_and_others_are_not() {
    let world = plain(vec![
        remote("198.51.100.1"),
        not_ready(remote("198.51.100.2")),
        draining(remote("198.51.100.3")),
    ]);
    assert_eq!(world.cluster("s"), [1]);
}

#[test]
fn endpoints_that_shut_down_are_used_when_no_ready_one_is_left() {
    let world = plain(vec![
        draining(remote("198.51.100.1")),
        gone(remote("198.51.100.2")),
        draining(local("198.51.100.3")),
    ]);
    assert_eq!(world.cluster("s"), [1, 3]);
}

#[test]
fn endpoints_published_before_they_are_ready_count_as_ready_while_they_shut_down() {
    let published = SliceEndpoint { terminating: true, ..remote("198.51.100.1") };
    assert_eq!(plain(vec![published, draining(remote("198.51.100.2"))]).cluster("s"), [1]);
}

#[test]
fn no_usable_endpoint_is_told_apart_from_none_on_this_node() {
    let nowhere = world(Policy::Local, Policy::Local, vec![not_ready(remote("198.51.100.1"))]);
    assert!(!nowhere.port("s").any_endpoint);
    let elsewhere = world(Policy::Local, Policy::Local, vec![remote("198.51.100.1")]);
    assert!(elsewhere.port("s").any_endpoint && elsewhere.local("s").is_empty());
}

#[test]
fn policy_local_uses_this_nodes_endpoints_and_those_that_shut_down_as_a_last_resort() {
    // the states of a rolling update on a node, and what external clients reach
    let (ready, other) = (local("198.51.100.1"), remote("198.51.100.9"));
    let states = [
        (vec![ready.clone(), other.clone()], vec![1]),
        (vec![draining(ready.clone()), other.clone()], vec![1]),
        (vec![gone(ready.clone()), other.clone()], vec![]),
        (vec![draining(ready.clone()), draining(other.clone())], vec![1]),
        (vec![draining(ready), local("198.51.100.2"), other], vec![2]),
    ];
    for (endpoints, reached) in states {
        assert_eq!(
            world(Policy::Cluster, Policy::Local, endpoints.clone()).local("s"),
            reached,
            "{endpoints:?}"
        );
    }
}

#[test]
fn lists_that_no_frontend_needs_are_left_out() {
    let endpoints = || vec![local("198.51.100.1"), remote("198.51.100.2")];
    assert!(plain(endpoints()).local("s").is_empty());
    let inner = Service { internal_policy: Policy::Local, ..service("i", 2) };
    let inside = World::of([Event::Service(inner), Event::Slice(slice("i-1", "i", endpoints()))]);
    assert_eq!((inside.cluster("i"), inside.local("i")), (vec![], vec![1]));
    // its cluster IP went to an older service
    let robbed = Service { created: 1, internal_policy: Policy::Local, ..node_port_service("r", 2, 30080) };
    let outside = World::of([
        Event::Service(service("i", 2)),
        Event::Service(robbed),
        Event::Slice(slice("r-1", "r", endpoints())),
    ]);
    assert_eq!((outside.cluster("r"), outside.local("r")), (vec![1, 2], vec![]));
}

#[test]
fn external_policy_counts_only_where_somebody_outside_can_come() {
    let closed = Service { external_policy: Policy::Local, ..service("s", 1) };
    let world =
        World::of([Event::Service(closed), Event::Slice(slice("s-1", "s", vec![local("198.51.100.1")]))]);
    assert_eq!(world.service("s").unwrap().external_policy, Policy::Cluster);
}

#[test]
fn zone_hints_keep_traffic_in_the_zone() {
    let hinted = |other: &[&str]| {
        vec![for_zones(remote("198.51.100.1"), &["a"]), for_zones(remote("198.51.100.2"), other)]
    };
    assert_eq!(plain(hinted(&["b"])).cluster("s"), [1]);
    assert_eq!(plain(hinted(&["a", "b"])).cluster("s"), [1, 2]);
    let mut world = plain(hinted(&["b"]));
    world.dirty();
    world.tell([node_in("b")]);
    assert_eq!((world.dirty(), world.cluster("s")), (vec!["s".to_owned()], vec![2]));
}

#[test]
fn one_missing_hint_or_no_endpoint_for_this_zone_means_hints_do_not_count() {
    let half = plain(vec![for_zones(remote("198.51.100.1"), &["a"]), remote("198.51.100.2")]);
    assert_eq!(half.cluster("s"), [1, 2]);
    let others =
        plain(vec![for_zones(remote("198.51.100.1"), &["b"]), for_zones(remote("198.51.100.2"), &["c"])]);
    assert_eq!(others.cluster("s"), [1, 2]);
}

#[test]
fn node_hints_go_before_zone_hints() {
    let world =
        plain(vec![for_nodes(remote("198.51.100.1"), &["n2"]), for_nodes(local("198.51.100.2"), &[NODE])]);
    assert_eq!(world.cluster("s"), [2]);
}

#[test]
fn hints_of_endpoints_that_are_not_ready_do_not_matter() {
    let world = plain(vec![for_zones(remote("198.51.100.1"), &["a"]), not_ready(remote("198.51.100.2"))]);
    assert_eq!(world.cluster("s"), [1]);
}

#[test]
fn an_endpoint_in_two_slices_is_one_and_the_one_that_does_not_shut_down_counts() {
    let mut world = plain(vec![draining(local("198.51.100.1")), remote("198.51.100.2")]);
    world.tell([Event::Slice(slice("s-2", "s", vec![remote("198.51.100.1")]))]);
    assert_eq!(world.cluster("s"), [1, 2]);
    assert!(!world.port("s").cluster[0].local);
}

#[test]
fn slices_are_matched_by_port_name_and_protocol_and_family() {
    let mut two = service("two", 3);
    two.cluster_ips.push(ip("2001:db8:c::3"));
    two.ports = vec![port("http", 80), port("admin", 81)];
    let mut admin = slice("two-1", "two", vec![remote("198.51.100.1")]);
    admin.ports[0].name = "admin".into();
    let mut v6 = slice("two-2", "two", vec![remote("2001:db8:b::7")]);
    v6.ports[0].name = "http".into();
    let world = World::of([Event::Service(two), Event::Slice(admin), Event::Slice(v6)]);
    let lists = |family| {
        let ports = world.0.resolve(&key("two"), family).unwrap().ports;
        ports.iter().map(|port| (port.name.to_string(), port.cluster.len())).collect::<Vec<_>>()
    };
    assert_eq!(lists(Family::V4), [("http".to_owned(), 0), ("admin".to_owned(), 1)]);
    assert_eq!(lists(Family::V6), [("http".to_owned(), 1), ("admin".to_owned(), 0)]);
}

#[test]
fn health_checks_count_ready_addresses_of_this_node() {
    let mut world = world(
        Policy::Cluster,
        Policy::Local,
        vec![local("198.51.100.1"), draining(local("198.51.100.2")), remote("198.51.100.3")],
    );
    let mut second = slice("s-2", "s", vec![local("198.51.100.1")]);
    second.ports[0].name = "other".into();
    world.tell([Event::Slice(second)]);
    assert_eq!(world.0.local_ready_endpoints(&key("s")), 1);
    world.tell([Event::SliceDeleted(key("s-1")), Event::SliceDeleted(key("s-2"))]);
    assert_eq!(world.0.local_ready_endpoints(&key("s")), 0);
}

#[test]
fn a_pod_with_an_address_of_each_family_is_one_to_health_checks() {
    let dual = Service { cluster_ips: vec![ip("203.0.113.1"), ip("2001:db8:c::1")], ..service("s", 1) };
    let world = World::of([
        Event::Service(dual),
        Event::Slice(slice("s-4", "s", vec![local("198.51.100.1")])),
        Event::Slice(slice("s-6", "s", vec![local("2001:db8::1")])),
    ]);
    assert_eq!(world.0.local_ready_endpoints(&key("s")), 1);
}

#[test]
fn health_checks_count_what_the_local_list_holds_as_ready() {
    let published = SliceEndpoint { terminating: true, ..local("198.51.100.1") };
    let world = |new: Vec<SliceEndpoint>| {
        let service = Service { internal_policy: Policy::Local, ..service("s", 1) };
        World::of([
            Event::Service(service),
            Event::Slice(slice("old", "s", vec![published.clone()])),
            Event::Slice(slice("new", "s", new)),
        ])
    };
    let seen = |world: &World| (world.local("s"), world.0.local_ready_endpoints(&key("s")));
    assert_eq!(seen(&world(vec![])), (vec![1], 1));
    // its address went to a new pod, which is not ready yet
    assert_eq!(seen(&world(vec![not_ready(local("198.51.100.1"))])), (vec![], 0));
}
