//! Objects in few words.
#![allow(dead_code, clippy::unwrap_used, clippy::needless_pass_by_value)] // each test program uses a part

use std::net::IpAddr;
use std::num::NonZeroU16;

use kube_proxy_model::{
    Backend, Event, Family, Frontend, Hints, Kind, Node, ObjectKey, Policy, Protocol, ResolvedPort,
    ResolvedService, Service, ServicePort, ServiceType, Slice, SliceEndpoint, SlicePort, Tracker,
    TrackerOptions,
};

pub(crate) const NODE: &str = "n1";

pub(crate) fn tracker() -> Tracker {
    Tracker::new(TrackerOptions {
        node_name: NODE.to_owned(),
        families: vec![Family::V4, Family::V6],
        allow_external_ips: true,
    })
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn key(name: &str) -> ObjectKey {
    ObjectKey::new("web", name)
}

/// A service with cluster IP 203.0.113.`host` and one port, 80/tcp.
pub(crate) fn service(name: &str, host: u8) -> Service {
    Service {
        key: key(name),
        created: 0,
        kind: ServiceType::ClusterIp,
        cluster_ips: vec![IpAddr::from([203, 0, 113, host])],
        ports: vec![port("", 80)],
        external_ips: vec![],
        load_balancer_ips: vec![],
        source_ranges: vec![],
        affinity_seconds: None,
        internal_policy: Policy::Cluster,
        external_policy: Policy::Cluster,
        health_check_node_port: None,
    }
}

pub(crate) fn port(name: &str, port: u16) -> ServicePort {
    ServicePort { name: name.into(), protocol: Protocol::Tcp, port, node_port: None }
}

/// The same, reachable at a node port.
pub(crate) fn node_port_service(name: &str, host: u8, node_port: u16) -> Service {
    let mut service = Service { kind: ServiceType::NodePort, ..service(name, host) };
    service.ports[0].node_port = NonZeroU16::new(node_port);
    service
}

/// A slice `name` of `service`, with the unnamed port 8080/tcp.
pub(crate) fn slice(name: &str, service: &str, endpoints: Vec<SliceEndpoint>) -> Slice {
    Slice {
        key: key(name),
        service: key(service),
        family: endpoints.first().map_or(Family::V4, |endpoint| Family::of(endpoint.address)),
        ports: vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints,
        triggered: None,
    }
}

/// A ready endpoint elsewhere.
pub(crate) fn remote(address: &str) -> SliceEndpoint {
    SliceEndpoint {
        address: ip(address),
        local: false,
        ready: true,
        serving: true,
        terminating: false,
        hints: None,
    }
}

/// A ready endpoint on this node.
pub(crate) fn local(address: &str) -> SliceEndpoint {
    SliceEndpoint { local: true, ..remote(address) }
}

pub(crate) fn not_ready(endpoint: SliceEndpoint) -> SliceEndpoint {
    SliceEndpoint { ready: false, serving: false, ..endpoint }
}

/// Shutting down, and still serving.
pub(crate) fn draining(endpoint: SliceEndpoint) -> SliceEndpoint {
    SliceEndpoint { ready: false, serving: true, terminating: true, ..endpoint }
}

/// Shutting down, and no longer serving.
pub(crate) fn gone(endpoint: SliceEndpoint) -> SliceEndpoint {
    SliceEndpoint { serving: false, ..draining(endpoint) }
}

pub(crate) fn for_zones(endpoint: SliceEndpoint, zones: &[&str]) -> SliceEndpoint {
    let hints = Hints { zones: zones.iter().map(|zone| (*zone).into()).collect(), nodes: vec![] };
    SliceEndpoint { hints: Some(Box::new(hints)), ..endpoint }
}

pub(crate) fn for_nodes(endpoint: SliceEndpoint, nodes: &[&str]) -> SliceEndpoint {
    let hints = Hints { zones: vec![], nodes: nodes.iter().map(|node| (*node).into()).collect() };
    SliceEndpoint { hints: Some(Box::new(hints)), ..endpoint }
}

pub(crate) fn node_in(zone: &str) -> Event {
    Event::Node(Node {
        name: NODE.to_owned(),
        addresses: vec![ip("192.0.2.10"), ip("2001:db8:a::10")],
        zone: Some(zone.into()),
        ..Node::default()
    })
}

pub(crate) fn all_known() -> [Event; 4] {
    [Kind::Service, Kind::Slice, Kind::Node, Kind::ServiceCidr].map(Event::End)
}

/// What was told so far, and what it means.
pub(crate) struct World(pub(crate) Tracker);

impl World {
    pub(crate) fn of(events: impl IntoIterator<Item = Event>) -> Self {
        let mut world = Self(tracker());
        world.tell(events);
        world
    }

    pub(crate) fn tell(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.0.apply(event);
        }
    }

    /// The names of the services that are to be looked at again.
    pub(crate) fn dirty(&mut self) -> Vec<String> {
        self.0.take_changes().services.iter().map(|key| key.name().to_owned()).collect()
    }

    pub(crate) fn service(&self, name: &str) -> Option<ResolvedService> {
        self.0.resolve(&key(name), Family::V4)
    }

    pub(crate) fn port(&self, name: &str) -> ResolvedPort {
        self.service(name).unwrap().ports.remove(0)
    }

    /// The last number of each address in the list for policy Cluster.
    pub(crate) fn cluster(&self, name: &str) -> Vec<u8> {
        last_numbers(&self.port(name).cluster)
    }

    /// The same for policy Local.
    pub(crate) fn local(&self, name: &str) -> Vec<u8> {
        last_numbers(&self.port(name).local)
    }

    pub(crate) fn frontends(&self, name: &str) -> Vec<Frontend> {
        self.service(name).map(|mut service| service.ports.remove(0).frontends).unwrap_or_default()
    }
}

fn last_numbers(backends: &[Backend]) -> Vec<u8> {
    let last = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    };
    backends.iter().map(|backend| last(backend.endpoint.address)).collect()
}
