//! Sweeps of the flows in a network namespace. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use dataplane::{Suspects, Sweep};
use kube_proxy_conntrack::Reconciler;
use model::{Endpoint, Family, Place, Protocol, Site};
use netlink::conntrack::{self, Filter, Flow, TCP, Tuple, UDP, status, tcp_state};
use netlink::namespace::Namespace;
use netlink::nftables::{IPV4, IPV6};
use netlink::socket::{self, Socket};

/// One address of each family.
#[derive(Clone, Copy)]
struct World {
    family: Family,
    client: &'static str,
    service: &'static str,
    pod: fn(u8) -> IpAddr,
}

const WORLDS: [World; 2] = [
    World {
        family: Family::V4,
        client: "192.0.2.1",
        service: "203.0.113.1",
        pod: |host| IpAddr::from([198, 51, 100, host]),
    },
    World {
        family: Family::V6,
        client: "2001:db8::1",
        service: "2001:db8:c::1",
        pod: |host| IpAddr::from([0x2001, 0xdb8, 0xb, 0, 0, 0, 0, host.into()]),
    },
];

impl World {
    fn endpoint(self, host: u8) -> Endpoint {
        Endpoint { address: (self.pod)(host), port: 5353 }
    }

    fn site(self, protocol: Protocol) -> Site {
        Site { place: Place::Address(self.service.parse().unwrap()), protocol, port: 53 }
    }

    fn node_port(self) -> Site {
        Site { place: Place::Node(self.family), protocol: Protocol::Udp, port: 30053 }
    }

    fn flow(self, protocol: u8, client_port: u16, to: (&str, u16), host: u8) -> Flow {
        let client = SocketAddr::new(self.client.parse().unwrap(), client_port);
        let destination = SocketAddr::new(to.0.parse().unwrap(), to.1);
        Flow {
            protocol,
            original: Tuple { source: client, destination },
            reply: Tuple { source: SocketAddr::new((self.pod)(host), 5353), destination: client },
            status: status::SEEN_REPLY,
            state: if protocol == TCP { tcp_state::SYN_SENT } else { 0 },
            id: 0,
        }
    }

    fn to_service(self, protocol: u8, client_port: u16, host: u8) -> Flow {
        self.flow(protocol, client_port, (self.service, 53), host)
    }

    fn order(self, suspects: Suspects, servers: &[(Site, Option<&[u8]>)]) -> Sweep {
        let endpoints = |hosts: &[u8]| hosts.iter().map(|host| self.endpoint(*host)).collect::<Arc<[_]>>();
        Sweep {
            family: self.family,
            suspects,
            servers: servers.iter().map(|(site, hosts)| (*site, hosts.map(endpoints))).collect(),
            node_port_addresses: None,
            service_cidrs: [].into(),
        }
    }

    fn endpoints(self, protocol: Protocol, hosts: &[u8]) -> Suspects {
        let endpoints = hosts.iter().map(|host| (protocol, self.endpoint(*host))).collect();
        Suspects::Some { endpoints, sites: BTreeSet::new() }
    }
}

fn sites(sites: &[Site]) -> Suspects {
    Suspects::Some { endpoints: BTreeSet::new(), sites: sites.iter().copied().collect() }
}

/// The client ports of the flows that are left when `orders` have been carried out, TCP and UDP; and how many were told to
/// be deleted.
fn left(world: World, flows: &[Flow], orders: Vec<Sweep>) -> (BTreeSet<u16>, usize) {
    let namespace = Namespace::new().expect("namespace tests need root");
    let run = namespace.run(|| {
        let mut socket = Socket::open(socket::NETFILTER).unwrap();
        for flow in flows {
            conntrack::insert(&mut socket, flow, Duration::from_secs(600)).unwrap();
        }
        let (sender, receiver) = channel();
        for order in orders {
            sender.send(order).unwrap();
        }
        drop(sender);
        let mut deleted = 0;
        Reconciler::open().unwrap().run(&receiver, |swept| {
            assert_eq!(swept.family, world.family);
            deleted += swept.deleted;
        });
        let mut left = BTreeSet::new();
        for filter in [Filter::Protocol(UDP), Filter::Protocol(TCP)] {
            let family = if world.family == Family::V4 { IPV4 } else { IPV6 };
            let note = |flow: &Flow| {
                left.insert(flow.original.source.port());
            };
            conntrack::list(&mut socket, family, &filter, note).unwrap();
        }
        (left, deleted)
    });
    run.unwrap()
}

#[test]
fn exactly_the_flows_of_a_removed_endpoint_go() {
    for world in WORLDS {
        let flows = [
            world.to_service(UDP, 1, 1),
            world.to_service(UDP, 2, 2),
            world.to_service(TCP, 3, 1),
            world.to_service(TCP, 4, 2),
            Flow { state: tcp_state::ESTABLISHED, ..world.to_service(TCP, 5, 1) },
            world.flow(UDP, 6, (world.client, 53), 1),
        ];
        let servers =
            [(world.site(Protocol::Udp), Some(&[2][..])), (world.site(Protocol::Tcp), Some(&[2][..]))];
        let orders = [Protocol::Udp, Protocol::Tcp]
            .map(|protocol| world.order(world.endpoints(protocol, &[1]), &servers));
        assert_eq!(left(world, &flows, orders.into()), ([2, 4, 5, 6].into(), 2));
    }
}

#[test]
fn many_suspects_are_told_apart_as_few_are() {
    for world in WORLDS {
        let flows: Vec<_> = (1..60).map(|host| world.to_service(UDP, host.into(), host)).collect();
        let gone: Vec<u8> = (1..60).filter(|host| host % 2 == 0).collect();
        let serving: Vec<u8> = (1..60).filter(|host| host % 2 == 1).collect();
        let servers = [(world.site(Protocol::Udp), Some(&serving[..]))];
        let order = world.order(world.endpoints(Protocol::Udp, &gone), &servers);
        assert_eq!(
            left(world, &flows, vec![order]),
            (serving.into_iter().map(u16::from).collect(), gone.len())
        );
    }
}

#[test]
fn when_all_are_suspected_those_that_are_right_stay() {
    for world in WORLDS {
        let flows = [world.to_service(UDP, 1, 1), world.to_service(UDP, 2, 2), world.to_service(TCP, 3, 2)];
        let servers =
            [(world.site(Protocol::Udp), Some(&[1][..])), (world.site(Protocol::Tcp), Some(&[1, 2][..]))];
        assert_eq!(left(world, &flows, vec![world.order(Suspects::All, &servers)]), ([1, 3].into(), 1));
    }
}

#[test]
fn the_flows_of_a_site_that_no_service_has_go() {
    for world in WORLDS {
        let flows = [world.to_service(UDP, 1, 1), world.flow(UDP, 2, (world.service, 54), 1)];
        let site = world.site(Protocol::Udp);
        assert_eq!(left(world, &flows, vec![world.order(sites(&[site]), &[(site, None)])]), ([2].into(), 1));
    }
}

#[test]
fn node_ports_are_those_at_the_addresses_that_take_them() {
    for world in WORLDS {
        let flows =
            [world.flow(UDP, 1, (world.client, 30053), 1), world.flow(UDP, 2, (world.service, 30053), 1)];
        let site = world.node_port();
        let mut order = world.order(sites(&[site]), &[(site, Some(&[2][..]))]);
        assert_eq!(
            left(world, &flows, vec![order.clone()]),
            ([1, 2].into(), 0),
            "the namespace has no address"
        );
        order.node_port_addresses = Some([world.client.parse().unwrap()].into());
        assert_eq!(left(world, &flows, vec![order]), ([2].into(), 1));
    }
}

#[test]
fn what_was_told_later_counts() {
    for world in WORLDS {
        let flows = [world.to_service(UDP, 1, 1), world.to_service(UDP, 2, 2)];
        let site = world.site(Protocol::Udp);
        let orders = vec![
            world.order(Suspects::All, &[(site, Some(&[1][..]))]),
            world.order(Suspects::none(), &[(site, Some(&[1, 2][..]))]),
        ];
        assert_eq!(left(world, &flows, orders), ([1, 2].into(), 0));
    }
}
