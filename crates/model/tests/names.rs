//! How things are named to people.
#![allow(clippy::unwrap_used)]

mod support;

use kube_proxy_model::{Endpoint, Event, Family, ObjectKey, Protocol};
use support::*;

#[test]
fn a_key_has_a_namespace_and_a_name() {
    let key = ObjectKey::new("web", "shop");
    assert_eq!((key.namespace(), key.name(), key.as_str()), ("web", "shop", "web/shop"));
    assert_eq!((key.to_string(), format!("{key:?}")), ("web/shop".to_owned(), "web/shop".to_owned()));
}

#[test]
fn a_service_port_is_named_after_its_service_and_its_name_if_it_has_one() {
    let mut shop = service("shop", 1);
    shop.ports = vec![port("", 80), port("admin", 81)];
    let shop = World::of([Event::Service(shop)]).service("shop").unwrap();
    let names: Vec<_> = shop.ports.iter().map(|port| shop.port_name(port)).collect();
    assert_eq!(names, ["web/shop", "web/shop:admin"]);
}

#[test]
fn addresses_families_and_protocols_read_as_usual() {
    let endpoint = |address| Endpoint { address: ip(address), port: 80 }.to_string();
    assert_eq!(endpoint("192.0.2.1"), "192.0.2.1:80");
    assert_eq!(endpoint("2001:db8::1"), "[2001:db8::1]:80");
    assert_eq!([Family::V4, Family::V6].map(|family| family.to_string()), ["IPv4", "IPv6"]);
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    assert_eq!(protocols.map(|protocol| protocol.to_string()), ["tcp", "udp", "sctp"]);
}
