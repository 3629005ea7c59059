//! Tracked flows in network namespaces of their own. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::SocketAddr;
use std::time::Duration;

use kube_proxy_netlink::conntrack::{self, Filter, Flow, SCTP, TCP, Tuple, UDP, status, tcp_state};
use kube_proxy_netlink::namespace::Namespace;
use kube_proxy_netlink::nftables::{IPV4, IPV6};
use kube_proxy_netlink::socket::{self, Socket};

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A flow of `client` to `frontend` that was translated to `server`.
fn flow(protocol: u8, client: &str, frontend: &str, server: &str) -> Flow {
    let (client, frontend, server) = (at(client), at(frontend), at(server));
    Flow {
        protocol,
        original: Tuple { source: client, destination: frontend },
        reply: Tuple { source: server, destination: client },
        status: status::SEEN_REPLY | if server == frontend { 0 } else { status::DST_NAT },
        state: if protocol == TCP { tcp_state::SYN_SENT } else { 0 },
        id: 0,
    }
}

fn flows() -> Vec<Flow> {
    vec![
        flow(UDP, "192.0.2.1:1000", "203.0.113.1:53", "198.51.100.1:5353"),
        flow(UDP, "192.0.2.1:1001", "203.0.113.1:53", "198.51.100.2:5353"),
        flow(UDP, "192.0.2.1:1002", "203.0.113.2:53", "198.51.100.1:5353"),
        flow(TCP, "192.0.2.1:1000", "203.0.113.1:53", "198.51.100.1:5353"),
        flow(UDP, "192.0.2.1:1003", "192.0.2.53:53", "192.0.2.53:53"),
        flow(UDP, "[2001:db8::1]:1000", "[2001:db8:c::1]:53", "[2001:db8:b::1]:5353"),
    ]
}

/// Runs `work` where exactly [`flows`] are tracked.
fn with_flows<T: Send>(work: impl FnOnce(&mut Socket) -> T + Send) -> T {
    let namespace = Namespace::new().expect("namespace tests need root");
    let run = namespace.run(|| {
        let mut socket = Socket::open(socket::NETFILTER).unwrap();
        for flow in flows() {
            conntrack::insert(&mut socket, &flow, Duration::from_secs(600)).unwrap();
        }
        work(&mut socket)
    });
    run.unwrap()
}

fn listed(socket: &mut Socket, family: u8, filter: &Filter) -> Vec<Flow> {
    let mut found = Vec::new();
    conntrack::list(socket, family, filter, |flow| found.push(*flow)).unwrap();
    found
}

fn udp(socket: &mut Socket, family: u8) -> Vec<Flow> {
    listed(socket, family, &Filter::Protocol(UDP))
}

/// Without what the kernel decides.
fn comparable(mut flows: Vec<Flow>) -> Vec<(u8, SocketAddr, SocketAddr, SocketAddr, u8)> {
    flows.sort_by_key(|flow| (flow.protocol, flow.original.source));
    let parts = |flow: &Flow| {
        (flow.protocol, flow.original.source, flow.original.destination, flow.reply.source, flow.state)
    };
    flows.iter().map(parts).collect()
}

#[test]
fn flows_are_listed_as_they_were_inserted_each_family_for_itself() {
    let (v4, v6) = with_flows(|socket| (udp(socket, IPV4), udp(socket, IPV6)));
    let udp = flows().into_iter().filter(|flow| flow.protocol == UDP);
    let (want_v4, want_v6) = udp.partition(|flow| flow.original.source.is_ipv4());
    assert_eq!(comparable(v4), comparable(want_v4));
    assert_eq!(comparable(v6), comparable(want_v6));
}

#[test]
fn the_kernel_filters_as_the_filter_says() {
    let filters = [
        Filter::Protocol(UDP),
        Filter::Protocol(TCP),
        Filter::Protocol(SCTP),
        Filter::Translated(UDP),
        Filter::Translated(TCP),
        Filter::Unreplied(UDP),
        Filter::Unreplied(TCP),
        Filter::To(UDP, Some(at("203.0.113.1:0").ip()), 53),
        Filter::To(UDP, None, 53),
        Filter::To(UDP, None, 54),
        Filter::To(UDP, Some(at("[2001:db8:c::1]:0").ip()), 53),
        Filter::From(UDP, at("198.51.100.1:5353")),
        Filter::From(TCP, at("198.51.100.1:5353")),
        Filter::From(UDP, at("198.51.100.1:53")),
        Filter::From(UDP, at("[2001:db8:b::1]:5353")),
    ];
    for filter in filters {
        let of_v6 = matches!(filter, Filter::To(_, Some(address), _) if address.is_ipv6())
            || matches!(filter, Filter::From(_, server) if server.is_ipv6());
        let family = if of_v6 { IPV6 } else { IPV4 };
        let found = with_flows(|socket| listed(socket, family, &filter));
        let want = flows()
            .into_iter()
            .filter(|flow| flow.original.source.is_ipv6() == of_v6 && filter.matches(flow));
        assert_eq!(comparable(found), comparable(want.collect()), "{filter:?}");
    }
}

#[test]
fn one_flow_is_deleted_and_only_once() {
    with_flows(|socket| {
        let all = udp(socket, IPV4);
        assert!(conntrack::delete(socket, &all[0]).unwrap());
        assert!(!conntrack::delete(socket, &all[0]).unwrap());
        assert_eq!(comparable(udp(socket, IPV4)), comparable(all[1..].to_vec()));
    });
}

#[test]
fn a_flow_is_found_again_as_it_is_now_and_another_in_its_place_is_not() {
    with_flows(|socket| {
        let Some(flow) = udp(socket, IPV4).first().copied() else { panic!("no flow") };
        let look = |socket: &mut Socket, flow: &Flow| conntrack::look_again(socket, flow).unwrap();
        assert_eq!(look(socket, &Flow { state: 7, ..flow }), Some(flow));
        assert_eq!(look(socket, &Flow { id: flow.id ^ 1, ..flow }), None);
        assert!(conntrack::delete(socket, &flow).unwrap());
        assert_eq!(look(socket, &flow), None);
    });
}

#[test]
fn a_flow_that_came_into_the_place_of_another_is_not_deleted() {
    with_flows(|socket| {
        let all = udp(socket, IPV4);
        let successor = Flow { id: all[0].id.wrapping_add(1), ..all[0] };
        assert!(!conntrack::delete(socket, &successor).unwrap());
        assert_eq!(udp(socket, IPV4), all);
    });
}
