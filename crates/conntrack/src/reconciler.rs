//! The thread that looks and deletes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use dataplane::{Suspects, Sweep};
use model::{Family, Place, Protocol};
use netlink::conntrack::{self, Filter, Flow, SCTP, TCP, UDP};
use netlink::nftables::{IPV4, IPV6};
use netlink::route;
use netlink::socket::{self, Socket};

use crate::judge::{is_stale, protocol_number};

/// Of more suspects than this all flows are listed at once: the kernel walks its whole table for each, and a processor can do
/// nothing else for the network meanwhile.
const SINGLE_LISTINGS: usize = 2;
/// Changes come in groups, and a walk that began with the first would hold a processor while the others are written.
const GATHERING: Duration = Duration::from_millis(5);
/// The pause after a sweep is as long as the sweep, so that many removals in a row leave half of a processor to others; but no longer
/// than this, as a client whose port meets a stale flow is refused until that flow is gone.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// What failed is tried again after this time, or with the next order.
const RETRY: Duration = Duration::from_secs(1);

/// A sweep that is done.
#[derive(Clone, Copy, Debug)]
pub struct Swept {
    /// The family.
    pub family: Family,
    /// How long it took.
    pub duration: Duration,
    /// How many flows it deleted.
    pub deleted: usize,
}

/// Carries out sweeps.
#[derive(Debug)]
pub struct Reconciler {
    flows: Socket,
    addresses: route::Handle,
    /// The last sweep failed, and that was said.
    fails: bool,
}

impl Reconciler {
    /// Opens its sockets in the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Ok(Self { flows: Socket::open(socket::NETFILTER)?, addresses: route::Handle::open()?, fails: false })
    }

    /// Carries out what is ordered until nobody can order any more. Orders that wait are carried out together.
    pub fn run(mut self, orders: &Receiver<Sweep>, mut done: impl FnMut(Swept)) {
        let mut waiting = Waiting::default();
        loop {
            let patience = if waiting.has_suspects() { RETRY } else { Duration::MAX };
            match orders.recv_timeout(patience) {
                Ok(order) => {
                    waiting.add(order);
                    thread::sleep(GATHERING);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.carry_out(&mut waiting, orders, &mut done);
            waiting.forget_news();
        }
    }

    /// Until nothing waits, or something fails, which is left waiting.
    fn carry_out(&mut self, waiting: &mut Waiting, orders: &Receiver<Sweep>, done: &mut impl FnMut(Swept)) {
        waiting.add_all(orders);
        while let Some(mut sweep) = waiting.take() {
            let (family, start) = (sweep.family, Instant::now());
            match self.sweep(&mut sweep, orders, waiting) {
                Ok(deleted) => {
                    let duration = start.elapsed();
                    tracing::debug!(v = 4, %family, deleted, "Looked for stale flows");
                    done(Swept { family, duration, deleted });
                    self.fails = false;
                    thread::sleep(duration.min(LONGEST_PAUSE));
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.fails, true) {
                        tracing::error!(%family, "Stale flows may be left in connection tracking; they are looked for again: {error}");
                    }
                    waiting.put_back(sweep);
                    return;
                }
            }
            waiting.add_all(orders);
        }
    }

    /// What one filter lets through is collected first and deleted then, so that what was told meanwhile counts: connections
    /// to an endpoint that is new since the sweep was ordered are not stale.
    fn sweep(
        &mut self,
        sweep: &mut Sweep,
        orders: &Receiver<Sweep>,
        waiting: &mut Waiting,
    ) -> Result<usize, Failure> {
        let node_addresses = self.node_addresses(sweep)?;
        let number = match sweep.family {
            Family::V4 => IPV4,
            Family::V6 => IPV6,
        };
        let (mut deleted, mut outcome) = (0, Ok(()));
        for filter in filters(&sweep.suspects) {
            let mut stale = Flows::default();
            let collect = |flow: &Flow| {
                if is_stale(flow, sweep, &node_addresses) {
                    stale.add(flow);
                }
            };
            conntrack::list(&mut self.flows, number, &filter, collect).map_err(Failure::Listing)?;
            waiting.add_all(orders);
            if let Some(news) = waiting.of(sweep.family) {
                sweep.servers.extend(news.servers.iter().map(|(site, servers)| (*site, servers.clone())));
            }
            let is_stale = |flow: &Flow| is_stale(flow, sweep, &node_addresses);
            for flow in stale.0.values().filter(|flow| is_stale(flow)) {
                match self.delete(flow, is_stale) {
                    Ok(was_there) => deleted += usize::from(was_there),
                    Err(failure) => outcome = Err(failure),
                }
            }
        }
        outcome.map(|()| deleted)
    }

    /// Whether there was something to delete. A connection that was being made when it was listed may have come about
    /// meanwhile.
    fn delete(&mut self, flow: &Flow, is_stale: impl Fn(&Flow) -> bool) -> Result<bool, Failure> {
        if flow.protocol != UDP {
            let now = conntrack::look_again(&mut self.flows, flow)
                .map_err(|error| Failure::Single("looking again at", Box::new(*flow), error))?;
            if !now.is_some_and(|now| is_stale(&now)) {
                return Ok(false);
            }
        }
        conntrack::delete(&mut self.flows, flow)
            .map_err(|error| Failure::Single("deleting", Box::new(*flow), error))
    }

    fn node_addresses(&mut self, sweep: &Sweep) -> Result<HashSet<IpAddr>, Failure> {
        let has_node_ports = sweep.servers.keys().any(|site| matches!(site.place, Place::Node(_)));
        match &sweep.node_port_addresses {
            Some(addresses) => Ok(addresses.iter().copied().collect()),
            None if !has_node_ports => Ok(HashSet::new()),
            None => {
                let addresses = self.addresses.addresses().map_err(Failure::Addresses)?;
                Ok(addresses.iter().map(|address| address.net.addr()).collect())
            }
        }
    }
}

/// Flows, each once. The kernel's ids are hashes: of 200,000 flows some have the id of another (seen on 6.18).
#[derive(Default)]
struct Flows(BTreeMap<(u8, SocketAddr, SocketAddr), Flow>);

impl Flows {
    fn add(&mut self, flow: &Flow) {
        self.0.insert((flow.protocol, flow.original.source, flow.original.destination), *flow);
    }
}

/// What the kernel is asked for to see every suspect.
fn filters(suspects: &Suspects) -> Vec<Filter> {
    let (endpoints, sites) = match suspects {
        Suspects::Some { endpoints, sites } => (endpoints, sites),
        // unanswered ones first: few, soon found, and their clients wait
        Suspects::All => {
            let kinds = [Filter::Unreplied, Filter::Protocol];
            return kinds.iter().flat_map(|of| [TCP, UDP, SCTP].map(of)).collect();
        }
    };
    let mut filters: Vec<_> = endpoints
        .iter()
        .map(|(protocol, endpoint)| {
            let server = SocketAddr::new(endpoint.address, endpoint.port);
            Filter::From(protocol_number(*protocol), server)
        })
        .collect();
    if filters.len() > SINGLE_LISTINGS {
        let protocols: BTreeSet<Protocol> = endpoints.iter().map(|(protocol, _)| *protocol).collect();
        filters =
            protocols.into_iter().map(|protocol| Filter::Translated(protocol_number(protocol))).collect();
    }
    if sites.len() > SINGLE_LISTINGS {
        let protocols: BTreeSet<Protocol> = sites.iter().map(|site| site.protocol).collect();
        return protocols
            .into_iter()
            .map(|protocol| Filter::Protocol(protocol_number(protocol)))
            .chain(filters)
            .collect();
    }
    filters.extend(sites.iter().map(|site| {
        let address = match site.place {
            Place::Address(address) => Some(address),
            Place::Node(_) => None,
        };
        Filter::To(protocol_number(site.protocol), address, site.port)
    }));
    filters
}

/// Orders that are not carried out yet, those of a family taken together.
#[derive(Debug, Default)]
struct Waiting {
    orders: BTreeMap<Family, Sweep>,
    /// Whose turn it was.
    last: Option<Family>,
}

impl Waiting {
    fn add(&mut self, order: Sweep) {
        match self.orders.get_mut(&order.family) {
            Some(earlier) => earlier.extend(order),
            None => {
                self.orders.insert(order.family, order);
            }
        }
    }

    fn add_all(&mut self, orders: &Receiver<Sweep>) {
        for order in orders.try_iter() {
            self.add(order);
        }
    }

    fn of(&self, family: Family) -> Option<&Sweep> {
        self.orders.get(&family)
    }

    /// One that has something to look at. However many are ordered for one family, the other has its turn.
    fn take(&mut self) -> Option<Sweep> {
        let ordered = self.orders.values().filter(|sweep| !sweep.suspects.are_none());
        let family = ordered.map(|sweep| sweep.family).min_by_key(|family| self.last == Some(*family))?;
        self.last = Some(family);
        self.orders.remove(&family)
    }

    /// What could not be done now.
    fn put_back(&mut self, mut sweep: Sweep) {
        if let Some(later) = self.orders.remove(&sweep.family) {
            sweep.extend(later);
        }
        self.orders.insert(sweep.family, sweep);
    }

    fn has_suspects(&self) -> bool {
        self.orders.values().any(|sweep| !sweep.suspects.are_none())
    }

    /// What was told without an order matters to sweeps that were going on.
    fn forget_news(&mut self) {
        self.orders.retain(|_, sweep| !sweep.suspects.are_none());
    }
}

/// Why a sweep was not done.
enum Failure {
    Addresses(route::Error),
    Listing(socket::Error),
    Single(&'static str, Box<Flow>, socket::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addresses(error) => write!(f, "listing the node's addresses: {error}"),
            Self::Listing(error) => write!(f, "listing flows: {error}{}", advice(error)),
            Self::Single(doing, flow, error) => write!(
                f,
                "{doing} the flow of {} to {}, protocol {}: {error}{}",
                flow.original.source,
                flow.original.destination,
                flow.protocol,
                advice(error)
            ),
        }
    }
}

fn advice(error: &socket::Error) -> &'static str {
    const EPERM: i32 = 1;
    const EINVAL: i32 = 22;
    const EOPNOTSUPP: i32 = 95;
    match error.errno() {
        Some(EPERM) => "; the process needs CAP_NET_ADMIN",
        Some(EINVAL | EOPNOTSUPP) => "; the kernel module nf_conntrack_netlink may be missing",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::mpsc::channel;

    use model::{Endpoint, Site};
    use netlink::conntrack::{Tuple, status};
    use netlink::namespace::Namespace;

    use super::*;

    fn datagrams_to(service: SocketAddr, client_port: u16) -> Flow {
        let client = SocketAddr::from(([192, 0, 2, 1], client_port));
        let server = SocketAddr::from(([198, 51, 100, 1], 5353));
        let original = Tuple { source: client, destination: service };
        let reply = Tuple { source: server, destination: client };
        Flow { protocol: UDP, original, reply, status: status::SEEN_REPLY, state: 0, id: 0 }
    }

    /// The endpoint of those datagrams left.
    fn departure(service: SocketAddr) -> Sweep {
        let site =
            Site { place: Place::Address(service.ip()), protocol: Protocol::Udp, port: service.port() };
        let endpoint = Endpoint { address: [198, 51, 100, 1].into(), port: 5353 };
        Sweep {
            family: Family::V4,
            suspects: Suspects::Some {
                endpoints: [(Protocol::Udp, endpoint)].into(),
                sites: BTreeSet::new(),
            },
            servers: [(site, Some([].into()))].into(),
            node_port_addresses: None,
            service_cidrs: [].into(),
        }
    }

    #[test]
    fn what_failed_is_done_later_together_with_what_was_ordered_meanwhile() {
        let services = ["203.0.113.1:53", "203.0.113.2:53"].map(|service| service.parse().unwrap());
        let namespace = Namespace::new().expect("namespace tests need root");
        let run = namespace.run(|| {
            let (sender, orders) = channel();
            let mut flows = Socket::open(socket::NETFILTER).unwrap();
            for (service, client_port) in services.into_iter().zip(1..) {
                let flow = datagrams_to(service, client_port);
                conntrack::insert(&mut flows, &flow, Duration::from_secs(600)).unwrap();
            }
            let mut reconciler = Reconciler::open().unwrap();
            reconciler.flows = Socket::open(socket::ROUTE).unwrap(); // which refuses what it does not know
            let (mut waiting, mut deleted) = (Waiting::default(), Vec::new());
            for service in services {
                sender.send(departure(service)).unwrap();
                reconciler.carry_out(&mut waiting, &orders, &mut |swept| deleted.push(swept.deleted));
                waiting.forget_news();
            }
            assert_eq!(deleted, []);
            assert!(waiting.has_suspects());
            reconciler.flows = flows;
            reconciler.carry_out(&mut waiting, &orders, &mut |swept| deleted.push(swept.deleted));
            assert_eq!(deleted, [2]);
            assert!(!waiting.has_suspects());
        });
        run.unwrap();
    }

    #[test]
    fn families_take_turns_however_many_orders_there_are_for_one() {
        let order = |family, suspects| Sweep {
            family,
            suspects,
            servers: HashMap::new(),
            node_port_addresses: None,
            service_cidrs: [].into(),
        };
        for (busy, other) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
            let mut waiting = Waiting::default();
            waiting.add(order(other, Suspects::All));
            let mut turns = Vec::new();
            for _ in 0..3 {
                waiting.add(order(busy, Suspects::All));
                turns.extend(waiting.take().map(|sweep| sweep.family));
            }
            assert!(turns[..2].contains(&other), "{turns:?}");
            waiting.add(order(other, Suspects::none()));
            waiting.add(order(busy, Suspects::All));
            assert_eq!(waiting.take().map(|sweep| sweep.family), Some(busy), "news is no order");
        }
    }

    #[test]
    fn two_flows_with_one_id_are_two_and_one_that_is_listed_twice_is_one() {
        let flow = |client_port| datagrams_to(SocketAddr::from(([203, 0, 113, 1], 53)), client_port);
        let mut flows = Flows::default();
        for client_port in [1, 2, 1] {
            flows.add(&flow(client_port));
        }
        assert_eq!(flows.0.into_values().collect::<Vec<_>>(), [flow(1), flow(2)]);
    }
}
