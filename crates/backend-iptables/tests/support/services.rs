//! Services in few words.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::{Facts, LocalDetector};
use kube_proxy_backend_iptables::{Restore, Ruleset, Settings, Tables};
use model::{
    Backend, Endpoint, Family, Frontend, ObjectKey, Policy, Protocol, ResolvedPort, ResolvedService,
};

pub(crate) fn settings(family: Family) -> Settings {
    let pods = match family {
        Family::V4 => "198.51.100.0/24",
        Family::V6 => "2001:db8:b::/63",
    };
    Settings {
        family,
        masquerade_mark: 0x4000,
        masquerade_all: false,
        local_detector: LocalDetector::Cidr(pods.parse().unwrap()),
        all_node_port_addresses: false,
        localhost_node_ports: family == Family::V4,
        drop_invalid: true,
        counters: true,
        random_fully: true,
    }
}

/// The node has so many addresses that take node ports.
pub(crate) fn facts(node_addresses: u16) -> Facts {
    let addresses = |family| (1..=node_addresses).map(move |host| address(family, Network::Node, host));
    Facts {
        service_cidrs: vec![],
        node_port_addresses: addresses(Family::V4).chain(addresses(Family::V6)).collect(),
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Network {
    Node,
    Pods,
    ClusterIps,
    ExternalIps,
    LoadBalancerIps,
}

/// An address of the ranges for documentation and for benchmarks.
pub(crate) fn address(family: Family, network: Network, host: u16) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from(0xc612_0000 + network as u32 * 0x4000 + u32::from(host)).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, network as u16, 0, 0, 0, 0, host).into(),
    }
}

/// What varies between services.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape {
    /// Hosts, sorted.
    pub(crate) endpoints: Vec<u16>,
    /// Those below are on this node.
    pub(crate) remote_from: u16,
    pub(crate) affinity: Option<u32>,
    pub(crate) internal: Policy,
    pub(crate) external: Policy,
    pub(crate) external_ip: bool,
    pub(crate) load_balancer: bool,
    pub(crate) node_port: bool,
    pub(crate) source_ranges: bool,
    pub(crate) protocol: Protocol,
    pub(crate) second_port: bool,
}

pub(crate) const PLAIN: Shape = Shape {
    endpoints: vec![],
    remote_from: 0,
    affinity: None,
    internal: Policy::Cluster,
    external: Policy::Cluster,
    external_ip: false,
    load_balancer: false,
    node_port: false,
    source_ranges: false,
    protocol: Protocol::Tcp,
    second_port: false,
};

pub(crate) fn key(number: u16) -> ObjectKey {
    ObjectKey::new("web", &format!("s{number}"))
}

pub(crate) fn service(family: Family, number: u16, shape: &Shape) -> ResolvedService {
    let range = match family {
        Family::V4 => "192.0.2.0/24",
        Family::V6 => "2001:db8:a::/64",
    };
    let mut ports = vec![port(family, number, "", 80, shape)];
    if shape.second_port {
        ports.push(port(family, number, "more", 81, shape));
    }
    let is_checked = shape.load_balancer && shape.external == Policy::Local;
    ResolvedService {
        key: key(number),
        ports,
        affinity_seconds: shape.affinity,
        internal_policy: shape.internal,
        external_policy: shape.external,
        source_ranges: if shape.source_ranges { vec![range.parse().unwrap()] } else { vec![] },
        health_check_node_port: is_checked.then_some(32000 + number),
    }
}

fn port(family: Family, number: u16, name: &str, port: u16, shape: &Shape) -> ResolvedPort {
    let address = |network, host| address(family, network, host);
    let backend = |host: &u16| Backend {
        endpoint: Endpoint { address: address(Network::Pods, *host), port: 8080 },
        local: *host < shape.remote_from,
    };
    let mut frontends = vec![Frontend::ClusterIp(address(Network::ClusterIps, number))];
    if shape.external_ip {
        frontends.push(Frontend::ExternalIp(address(Network::ExternalIps, number)));
    }
    if shape.load_balancer {
        frontends.push(Frontend::LoadBalancerIp(address(Network::LoadBalancerIps, number)));
    }
    if shape.node_port {
        frontends.push(Frontend::NodePort(30000 + number * 2 + port % 2));
    }
    let is_external = frontends.len() > 1;
    let uses_cluster = is_external || shape.internal == Policy::Cluster;
    let uses_local = shape.internal == Policy::Local || (is_external && shape.external == Policy::Local);
    let all: Vec<_> = shape.endpoints.iter().map(backend).collect();
    ResolvedPort {
        name: name.into(),
        protocol: shape.protocol,
        port,
        frontends,
        local: all.iter().filter(|one| uses_local && one.local).copied().collect(),
        any_endpoint: !all.is_empty(),
        cluster: if uses_cluster { all } else { vec![] },
        departed: vec![],
    }
}

/// The rules of these services from what was found.
pub(crate) fn rebuild(
    family: Family,
    world: &BTreeMap<u16, Shape>,
    facts: &Facts,
    found: &Tables,
) -> (Ruleset, Restore) {
    let tell = |each: &mut dyn FnMut(ResolvedService)| {
        for (number, shape) in world {
            each(service(family, *number, shape));
        }
    };
    Ruleset::rebuild(&settings(family), &tell, facts, found)
}
