//! What is written for a change, counted in bytes: it must not depend on how many services there are.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;

use kube_proxy_backend_iptables::Ruleset;
use model::{Family, Policy};
use support::services::{PLAIN, Shape, facts, key, rebuild, service};
use support::untouched;

fn shape() -> Shape {
    Shape { endpoints: vec![1, 2, 3], remote_from: 2, load_balancer: true, node_port: true, ..PLAIN }
}

fn ruleset(services: u16) -> Ruleset {
    let world: BTreeMap<u16, Shape> = (1..=services).map(|number| (number, shape())).collect();
    rebuild(Family::V4, &world, &facts(1), &untouched()).0
}

/// The text for a change of one service, `None` for its end.
fn written(ruleset: &Ruleset, number: u16, shape: Option<&Shape>) -> String {
    let changed = shape.map(|shape| service(Family::V4, number, shape));
    ruleset.update(vec![(key(number), changed)], &facts(1)).1.to_string()
}

#[test]
fn a_change_is_as_long_among_many_services_as_among_few() {
    // both on the same side of what makes a cluster large
    let (few, many) = (ruleset(400), ruleset(5000));
    for (what, number, change) in [
        ("an endpoint goes", 7, Some(Shape { endpoints: vec![1, 2], ..shape() })),
        ("all endpoints go", 7, Some(Shape { endpoints: vec![], ..shape() })),
        ("source ranges come", 7, Some(Shape { source_ranges: true, ..shape() })),
        ("the policy changes", 7, Some(Shape { external: Policy::Local, ..shape() })),
        ("a service goes", 7, None),
        ("a service comes", 5001, Some(shape())),
    ] {
        let texts = [&few, &many].map(|ruleset| written(ruleset, number, change.as_ref()));
        assert!(!texts[0].is_empty(), "{what}: nothing is written");
        assert_eq!(texts[0], texts[1], "{what}");
    }
}

#[test]
fn what_does_not_change_is_not_written() {
    let ruleset = ruleset(10);
    assert_eq!(written(&ruleset, 7, Some(&shape())), "");
    let one_less = written(&ruleset, 7, Some(&Shape { endpoints: vec![1, 2], ..shape() }));
    // the endpoint's chain and the one that leads there
    let chains: Vec<_> = one_less.lines().filter(|line| line.starts_with(':')).collect();
    assert_eq!(chains.len(), 2, "{chains:?}");
    assert!(!one_less.contains("KUBE-SERVICES"), "{one_less}");
}
