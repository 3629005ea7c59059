//! Which flows are stale.

use std::collections::HashSet;
use std::net::IpAddr;

use dataplane::{Suspects, Sweep};
use model::{Endpoint, Place, Protocol, Site};
use netlink::conntrack::{Flow, SCTP, TCP, UDP, sctp_state, status, tcp_state};

pub(crate) fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => TCP,
        Protocol::Udp => UDP,
        Protocol::Sctp => SCTP,
    }
}

fn protocol_of(flow: &Flow) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|protocol| protocol_number(*protocol) == flow.protocol)
}

/// Deleting it loses nothing: there is no connection, or none any more. One that is established is the ends' own affair.
fn is_expendable(flow: &Flow, protocol: Protocol) -> bool {
    let unreplied = flow.status & status::SEEN_REPLY == 0;
    match protocol {
        Protocol::Udp => true,
        Protocol::Tcp => {
            unreplied || [tcp_state::SYN_SENT, tcp_state::SYN_SENT2, tcp_state::CLOSE].contains(&flow.state)
        }
        Protocol::Sctp => {
            let states = [sctp_state::CLOSED, sctp_state::COOKIE_WAIT, sctp_state::COOKIE_ECHOED];
            unreplied || states.contains(&flow.state)
        }
    }
}

/// The client would get no answer by it, or one from an endpoint that it should not be sent to. `node_addresses` are
/// those at which node ports are.
pub(crate) fn is_stale(flow: &Flow, sweep: &Sweep, node_addresses: &HashSet<IpAddr>) -> bool {
    let Some(protocol) = protocol_of(flow).filter(|protocol| is_expendable(flow, *protocol)) else {
        return false;
    };
    let (address, port) = (flow.original.destination.ip(), flow.original.destination.port());
    let at = |place| sweep.servers.get(&Site { place, protocol, port });
    let servers = at(Place::Address(address))
        .or_else(|| at(Place::Node(sweep.family)).filter(|_| node_addresses.contains(&address)));
    let is_translated = flow.reply.source != flow.original.destination;
    match servers {
        Some(Some(endpoints)) => {
            let server = flow.reply.source;
            let server = Endpoint { address: server.ip(), port: server.port() };
            endpoints.binary_search(&server).is_err()
        }
        // what is not translated is no affair of services
        Some(None) => is_translated,
        None => {
            let in_cidrs = || sweep.service_cidrs.iter().any(|net| net.contains(&address));
            is_translated && sweep.suspects == Suspects::All && in_cidrs()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use model::Family;
    use netlink::conntrack::Tuple;

    use super::*;

    const SERVICE: &str = "203.0.113.1:53";
    const NODE: &str = "192.0.2.10:30053";
    const SERVING: &str = "198.51.100.1:5353";
    const GONE: &str = "198.51.100.2:5353";

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn flow(protocol: u8, frontend: &str, server: &str) -> Flow {
        let (client, destination, source) = (at("192.0.2.1:1000"), at(frontend), at(server));
        Flow {
            protocol,
            original: Tuple { source: client, destination },
            reply: Tuple { source, destination: client },
            status: status::SEEN_REPLY,
            state: if protocol == TCP { tcp_state::ESTABLISHED } else { 0 },
            id: 1,
        }
    }

    fn address_site(protocol: Protocol, address: &str) -> Site {
        let address = at(address);
        Site { place: Place::Address(address.ip()), protocol, port: address.port() }
    }

    /// One endpoint serves at a cluster IP and at a node port, with each protocol.
    fn sweep() -> Sweep {
        let endpoint = Endpoint { address: at(SERVING).ip(), port: at(SERVING).port() };
        let mut sweep = Sweep {
            family: Family::V4,
            suspects: Suspects::none(),
            servers: [].into(),
            node_port_addresses: None,
            service_cidrs: ["203.0.113.0/24".parse().unwrap()].into(),
        };
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let node_port = Site { place: Place::Node(Family::V4), protocol, port: 30053 };
            sweep.servers.insert(node_port, Some([endpoint].into()));
            sweep.servers.insert(address_site(protocol, SERVICE), Some([endpoint].into()));
        }
        sweep
    }

    fn stale(flow: &Flow, sweep: &Sweep) -> bool {
        is_stale(flow, sweep, &[at(NODE).ip()].into())
    }

    #[test]
    fn a_datagram_flow_is_stale_unless_its_server_serves_there() {
        for frontend in [SERVICE, NODE] {
            assert!(!stale(&flow(UDP, frontend, SERVING), &sweep()));
            assert!(stale(&flow(UDP, frontend, GONE), &sweep()));
            assert!(stale(&flow(UDP, frontend, frontend), &sweep()), "from before there were rules");
        }
    }

    #[test]
    fn an_established_connection_is_never_stale() {
        for (protocol, state) in [(TCP, tcp_state::ESTABLISHED), (SCTP, sctp_state::ESTABLISHED)] {
            let established = Flow { state, ..flow(protocol, SERVICE, GONE) };
            assert!(!stale(&established, &sweep()));
        }
    }

    #[test]
    fn a_connection_that_was_not_made_or_is_over_is_stale() {
        for state in [tcp_state::SYN_SENT, tcp_state::SYN_SENT2, tcp_state::CLOSE] {
            let tcp = Flow { state, ..flow(TCP, SERVICE, GONE) };
            assert!(stale(&tcp, &sweep()), "state {state}");
            assert!(!stale(&Flow { state, ..flow(TCP, SERVICE, SERVING) }, &sweep()));
        }
        for (protocol, state) in [(TCP, tcp_state::ESTABLISHED), (SCTP, sctp_state::ESTABLISHED)] {
            assert!(stale(&Flow { status: 0, state, ..flow(protocol, SERVICE, GONE) }, &sweep()));
        }
        for state in [sctp_state::CLOSED, sctp_state::COOKIE_WAIT, sctp_state::COOKIE_ECHOED] {
            assert!(stale(&Flow { state, ..flow(SCTP, SERVICE, GONE) }, &sweep()), "state {state}");
            assert!(!stale(&Flow { state, ..flow(SCTP, SERVICE, SERVING) }, &sweep()));
        }
    }

    #[test]
    fn a_node_port_is_one_at_the_nodes_addresses_only() {
        let elsewhere = "192.0.2.99:30053";
        assert!(!stale(&flow(UDP, elsewhere, elsewhere), &sweep()));
        assert!(!stale(&flow(UDP, elsewhere, GONE), &sweep()));
    }

    #[test]
    fn flows_to_other_places_are_not_stale() {
        for destination in ["203.0.113.1:54", "203.0.113.2:53", "192.0.2.10:53"] {
            assert!(!stale(&flow(UDP, destination, GONE), &sweep()));
        }
        assert!(!stale(&flow(1, SERVICE, GONE), &sweep()), "another protocol");
    }

    #[test]
    fn where_a_site_has_no_service_any_more_only_translated_flows_are_stale() {
        let mut sweep = sweep();
        sweep.servers.insert(address_site(Protocol::Udp, SERVICE), None);
        assert!(stale(&flow(UDP, SERVICE, SERVING), &sweep));
        assert!(!stale(&flow(UDP, SERVICE, SERVICE), &sweep));
    }

    #[test]
    fn of_all_flows_those_of_unknown_cluster_ips_are_stale() {
        let mut sweep = sweep();
        sweep.suspects = Suspects::All;
        assert!(stale(&flow(UDP, "203.0.113.9:53", GONE), &sweep));
        assert!(!stale(&flow(UDP, "203.0.113.9:53", "203.0.113.9:53"), &sweep));
        assert!(!stale(&flow(UDP, "192.0.2.77:53", GONE), &sweep), "not in the ServiceCIDRs");
    }
}
