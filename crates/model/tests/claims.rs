//! Two services that want the same address and port.
#![allow(clippy::unwrap_used)]

mod support;

use std::num::NonZeroU16;

use kube_proxy_model::{Event, Family, Frontend, Policy, Service};
use support::*;

fn created(service: Service, seconds: i64) -> Service {
    Service { created: seconds, ..service }
}

fn node_ports(world: &World, name: &str) -> bool {
    world.frontends(name).iter().any(|frontend| matches!(frontend, Frontend::NodePort(_)))
}

#[test]
fn the_older_service_has_a_node_port_whatever_the_order_of_events() {
    let (old, new) =
        (created(node_port_service("z", 1, 30080), 5), created(node_port_service("a", 2, 30080), 6));
    for events in [[old.clone(), new.clone()], [new, old]] {
        let world = World::of(events.map(Event::Service));
        assert!(node_ports(&world, "z") && !node_ports(&world, "a"));
        assert_eq!(world.frontends("a").len(), 1, "its cluster IP still works");
    }
}

#[test]
fn of_two_services_as_old_the_name_decides() {
    let world =
        World::of(["b", "a"].map(|name| Event::Service(node_port_service(name, name.as_bytes()[0], 30080))));
    assert!(node_ports(&world, "a") && !node_ports(&world, "b"));
}

#[test]
fn when_the_winner_goes_the_other_takes_over_and_is_told_of() {
    let mut world = World::of([
        Event::Service(created(node_port_service("a", 1, 30080), 5)),
        Event::Service(created(node_port_service("b", 2, 30080), 6)),
    ]);
    let sentences: Vec<_> = world.0.take_conflicts().iter().map(ToString::to_string).collect();
    assert_eq!(
        sentences,
        ["service web/b: node port 30080/tcp is already taken by web/a (created earlier); skipped"]
    );
    assert!(world.0.take_conflicts().is_empty(), "told once");
    world.dirty();
    world.tell([Event::ServiceDeleted(key("a"))]);
    assert_eq!(world.dirty(), ["a", "b"]);
    assert!(node_ports(&world, "b"));
}

#[test]
fn an_older_service_that_comes_late_takes_the_address_away() {
    let external = |name, host, seconds| {
        let service = Service { external_ips: vec![ip("203.0.113.150")], ..service(name, host) };
        Event::Service(created(service, seconds))
    };
    let mut world = World::of([external("new", 1, 9)]);
    world.dirty();
    world.tell([external("old", 2, 1)]);
    assert_eq!(world.dirty(), ["new", "old"]);
    assert_eq!((world.frontends("new").len(), world.frontends("old").len()), (1, 2));
}

#[test]
fn a_cluster_ip_is_that_services_however_old_the_others_are() {
    let thief = Service { external_ips: vec![ip("203.0.113.1")], ..service("thief", 2) };
    let mut world =
        World::of([Event::Service(created(thief, 1)), Event::Service(created(service("owner", 1), 9))]);
    assert_eq!(world.frontends("owner"), [Frontend::ClusterIp(ip("203.0.113.1"))]);
    assert_eq!(world.frontends("thief"), [Frontend::ClusterIp(ip("203.0.113.2"))]);
    let sentences: Vec<_> = world.0.take_conflicts().iter().map(ToString::to_string).collect();
    let sentence = "service web/thief: external IP 203.0.113.1 port 80/tcp is already taken by web/owner (its cluster IP); skipped";
    assert_eq!(sentences, [sentence]);
}

#[test]
fn other_protocols_ports_and_families_are_no_conflict() {
    let mut udp = node_port_service("udp", 1, 30080);
    udp.ports[0].protocol = kube_proxy_model::Protocol::Udp;
    let six = Service { cluster_ips: vec![ip("2001:db8:c::1")], ..node_port_service("six", 2, 30080) };
    let world = World::of([udp, six, node_port_service("tcp", 3, 30080)].map(Event::Service));
    assert!(node_ports(&world, "udp") && node_ports(&world, "tcp"));
    let six = world.0.resolve(&key("six"), Family::V6).unwrap();
    assert!(six.ports[0].frontends.contains(&Frontend::NodePort(30080)));
}

#[test]
fn a_service_that_loses_everything_has_no_ports_left() {
    let mut world =
        World::of([Event::Service(created(service("a", 1), 1)), Event::Service(created(service("b", 1), 2))]);
    assert!(world.service("b").is_none());
    world.tell([Event::Service(Service { internal_policy: Policy::Local, ..created(service("a", 7), 1) })]);
    assert_eq!(world.frontends("b"), [Frontend::ClusterIp(ip("203.0.113.1"))]);
}

#[test]
fn each_conflict_names_what_is_lost_to_whom_and_why() {
    let rich = |name: &str, seconds| {
        let service = Service {
            external_ips: vec![ip("203.0.113.150")],
            load_balancer_ips: vec![ip("203.0.113.200")],
            ..node_port_service(name, 1, 30080)
        };
        created(service, seconds)
    };
    let mut twice = service("twice", 7);
    twice.ports = vec![port("x", 80), port("y", 80)];
    twice.ports.iter_mut().for_each(|port| port.node_port = NonZeroU16::new(30081));
    let mut world = World::of([rich("b", 1), rich("c", 1), rich("a", 2), twice].map(Event::Service));
    let sentences: Vec<_> = world.0.take_conflicts().iter().map(ToString::to_string).collect();
    assert_eq!(
        sentences,
        [
            "service web/a: cluster IP 203.0.113.1 port 80/tcp is already taken by web/b (created earlier); skipped",
            "service web/a: external IP 203.0.113.150 port 80/tcp is already taken by web/b (created earlier); skipped",
            "service web/a: load balancer IP 203.0.113.200 port 80/tcp is already taken by web/b (created earlier); skipped",
            "service web/a: node port 30080/tcp is already taken by web/b (created earlier); skipped",
            "service web/c: cluster IP 203.0.113.1 port 80/tcp is already taken by web/b (as old, and its name sorts first); skipped",
            "service web/c: external IP 203.0.113.150 port 80/tcp is already taken by web/b (as old, and its name sorts first); skipped",
            "service web/c: load balancer IP 203.0.113.200 port 80/tcp is already taken by web/b (as old, and its name sorts first); skipped",
            "service web/c: node port 30080/tcp is already taken by web/b (as old, and its name sorts first); skipped",
            "service web/twice port y: cluster IP 203.0.113.7 port 80/tcp is already taken by an earlier port of the same service; skipped",
            "service web/twice port y: node port 30081/tcp is already taken by an earlier port of the same service; skipped",
        ]
    );
}

#[test]
fn a_node_port_that_is_lost_in_both_families_is_one_conflict() {
    let dual = |name: &str, host: u8| {
        let mut service = node_port_service(name, host, 30090);
        service.cluster_ips.push(ip(&format!("2001:db8:c::{host}")));
        Event::Service(service)
    };
    let mut world = World::of([dual("a", 1), dual("b", 2)]);
    assert_eq!(world.0.take_conflicts().len(), 1);
}
