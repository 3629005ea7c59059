//! The constant part: which sets, maps and chains there are.

use std::collections::BTreeMap;
use std::iter;
use std::net::IpAddr;

use dataplane::LocalDetector;
use ipnet::IpNet;
use model::Family;
use netlink::nftables::{Chain, Data, DataType, SetSpec, set_flag};

use crate::entry::{Bytes, Entry};
use crate::rules::Rules;

/// What the rules depend on. Constant while the program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The address family.
    pub family: Family,
    /// The bit of the packet mark that says masquerade.
    pub masquerade_mark: u32,
    /// Masquerade everything sent to cluster IPs.
    pub masquerade_all: bool,
    /// How pods' traffic is recognised.
    pub local_detector: LocalDetector,
    /// Node ports on every local address but loopback; else on the addresses in [`dataplane::Facts`].
    pub all_node_port_addresses: bool,
    /// Keep the table from being changed by others, where the kernel can.
    pub own_table: bool,
}

/// The sets and maps. `docs/nftables.md` tells what each holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Set {
    ClusterIps,
    ServiceCidrs,
    NodePortIps,
    Frontends,
    NodePorts,
    ShortCircuit,
    NodePortShortCircuit,
    ExternalMasquerade,
    NodePortMasquerade,
    Lists,
    Endpoints,
    EndpointsBig,
    Draw,
    DrawLast,
    AffinityTimeouts,
    AffinitySlots,
    AffinitySlotsBig,
    AffinityEndpoints,
    Hairpin,
    FirewallFrontends,
    FirewallSources,
    RemovedEndpoints,
    RemovedEndpointsNodePorts,
    /// Written by packets only.
    Affinity,
    Refuse,
    AffinityBalance,
    AffinityBalanceNodePorts,
    AffinityBalanceShort,
    AffinityBalanceShortNodePorts,
}

use DataType::{InetProto, InetService, Ipv4Addr, Ipv6Addr, Mark};

const ADDRESS: [&[DataType]; 2] = [&[Ipv4Addr], &[Ipv6Addr]];
const VIP: [&[DataType]; 2] = [&[Ipv4Addr, InetProto, InetService], &[Ipv6Addr, InetProto, InetService]];
const NODE_PORT: [&[DataType]; 2] = [&[InetProto, InetService]; 2];
const MARK: [&[DataType]; 2] = [&[Mark]; 2];
const MARKS: [&[DataType]; 2] = [&[Mark, Mark]; 2];
const THREE_MARKS: [&[DataType]; 2] = [&[Mark, Mark, Mark]; 2];
const ENDPOINT: [&[DataType]; 2] = [&[Ipv4Addr, InetService], &[Ipv6Addr, InetService]];
const CLIENT_LIST: [&[DataType]; 2] = [&[Ipv4Addr, Mark], &[Ipv6Addr, Mark]];
const HAIRPIN: [&[DataType]; 2] =
    [&[Ipv4Addr, Ipv4Addr, InetProto, InetService], &[Ipv6Addr, Ipv6Addr, InetProto, InetService]];
const VIP_SOURCE: [&[DataType]; 2] =
    [&[Ipv4Addr, InetProto, InetService, Ipv4Addr], &[Ipv6Addr, InetProto, InetService, Ipv6Addr]];

const REMOVED: [&[DataType]; 2] =
    [&[Ipv4Addr, InetService, Ipv4Addr, InetService], &[Ipv6Addr, InetService, Ipv6Addr, InetService]];
const REMOVED_NODE_PORT: [&[DataType]; 2] =
    [&[Ipv4Addr, InetService, InetService], &[Ipv6Addr, InetService, InetService]];

/// What a map holds, for both families.
#[derive(Clone, Copy)]
enum Holds {
    Nothing,
    Values([&'static [DataType]; 2]),
    Verdicts,
}

impl Set {
    /// All of them; those whose elements a service or the node decides come first.
    pub(crate) const ALL: [Self; 29] = [
        Self::ClusterIps,
        Self::ServiceCidrs,
        Self::NodePortIps,
        Self::Frontends,
        Self::NodePorts,
        Self::ShortCircuit,
        Self::NodePortShortCircuit,
        Self::ExternalMasquerade,
        Self::NodePortMasquerade,
        Self::Lists,
        Self::Endpoints,
        Self::EndpointsBig,
        Self::Draw,
        Self::DrawLast,
        Self::AffinityTimeouts,
        Self::AffinitySlots,
        Self::AffinitySlotsBig,
        Self::AffinityEndpoints,
        Self::Hairpin,
        Self::FirewallFrontends,
        Self::FirewallSources,
        Self::RemovedEndpoints,
        Self::RemovedEndpointsNodePorts,
        Self::Affinity,
        Self::Refuse,
        Self::AffinityBalance,
        Self::AffinityBalanceNodePorts,
        Self::AffinityBalanceShort,
        Self::AffinityBalanceShortNodePorts,
    ];

    /// Its elements are written by us and are values, not verdicts: a difference to what is wanted can be mended.
    pub(crate) fn is_written(self) -> bool {
        self < Self::Affinity
    }

    /// Several services may want the same element; the kernel has it once.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Self::ClusterIps | Self::Hairpin)
    }

    fn row(self) -> (&'static str, [&'static [DataType]; 2], Holds, &'static str) {
        use Holds::{Nothing, Values, Verdicts};
        match self {
            Self::ClusterIps => ("cluster-ips", ADDRESS, Nothing, "active ClusterIPs"),
            Self::ServiceCidrs => ("service-cidrs", ADDRESS, Nothing, "unallocated ClusterIPs are dropped"),
            Self::NodePortIps => ("nodeport-ips", ADDRESS, Nothing, "IPs that accept NodePort traffic"),
            Self::Frontends => {
                ("frontends", VIP, Values(MARK), "ClusterIP, ExternalIP, LoadBalancer IP -> list")
            }
            Self::NodePorts => ("nodeports", NODE_PORT, Values(MARK), "NodePort -> list"),
            Self::ShortCircuit => (
                "short-circuit",
                VIP,
                Values(MARK),
                "external frontends with policy Local -> cluster-wide list",
            ),
            Self::NodePortShortCircuit => (
                "nodeport-short-circuit",
                NODE_PORT,
                Values(MARK),
                "NodePorts with policy Local -> cluster-wide list",
            ),
            Self::ExternalMasquerade => {
                ("external-masquerade", VIP, Nothing, "external frontends with policy Cluster")
            }
            Self::NodePortMasquerade => {
                ("nodeport-masquerade", NODE_PORT, Nothing, "NodePorts with policy Cluster")
            }
            Self::Lists => (
                "lists",
                MARK,
                Values(MARK),
                "list -> number of endpoints, above 64 0x100 + pages of 64; 0 reject, 0xffffffff drop",
            ),
            Self::Endpoints => ("endpoints", MARKS, Values(ENDPOINT), "list . index -> endpoint"),
            Self::EndpointsBig => {
                ("endpoints-big", THREE_MARKS, Values(ENDPOINT), "list . page . slot -> endpoint")
            }
            Self::Draw => {
                ("draw", MARKS, Values(MARK), "size . random -> index, constant; unusable draws are missing")
            }
            Self::DrawLast => {
                ("draw-last", MARKS, Values(MARK), "size . random -> index, constant; complete")
            }
            Self::AffinityTimeouts => ("affinity-timeouts", MARK, Values(MARK), "list -> seconds"),
            Self::AffinitySlots => {
                ("affinity-slots", MARKS, Values(MARK), "list . index -> endpoint id, with affinity")
            }
            Self::AffinitySlotsBig => (
                "affinity-slots-big",
                THREE_MARKS,
                Values(MARK),
                "list . page . slot -> endpoint id, with affinity",
            ),
            Self::AffinityEndpoints => {
                ("affinity-endpoints", MARK, Values(ENDPOINT), "endpoint id -> endpoint, with affinity")
            }
            Self::Hairpin => ("hairpin", HAIRPIN, Nothing, "local endpoints that reach themselves"),
            Self::FirewallFrontends => {
                ("firewall-frontends", VIP, Nothing, "frontends with loadBalancerSourceRanges")
            }
            Self::FirewallSources => ("firewall-sources", VIP_SOURCE, Nothing, "frontend . allowed source"),
            Self::RemovedEndpoints => {
                ("removed-endpoints", REMOVED, Nothing, "endpoint . frontend: connections are reset")
            }
            Self::RemovedEndpointsNodePorts => (
                "removed-endpoints-nodeports",
                REMOVED_NODE_PORT,
                Nothing,
                "endpoint . NodePort: connections are reset",
            ),
            Self::Affinity => ("affinity", CLIENT_LIST, Values(MARK), "client . list -> endpoint id"),
            Self::Refuse => ("refuse", MARK, Verdicts, "size -> reject or drop"),
            Self::AffinityBalance => ("affinity-balance", MARK, Verdicts, "seconds -> chain"),
            Self::AffinityBalanceNodePorts => {
                ("affinity-balance-nodeports", MARK, Verdicts, "seconds -> chain")
            }
            Self::AffinityBalanceShort => ("affinity-balance-short", MARK, Verdicts, "seconds -> chain"),
            Self::AffinityBalanceShortNodePorts => {
                ("affinity-balance-short-nodeports", MARK, Verdicts, "seconds -> chain")
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.row().0
    }

    pub(crate) fn spec(self, family: Family) -> SetSpec {
        let (name, keys, holds, comment) = self.row();
        let index = match family {
            Family::V4 => 0,
            Family::V6 => 1,
        };
        let (flags, size) = match self {
            Self::ServiceCidrs | Self::FirewallSources => (set_flag::INTERVAL, 0),
            Self::Affinity => (set_flag::EVAL | set_flag::TIMEOUT, 1 << 20),
            _ => (0, 0),
        };
        let data = match holds {
            Holds::Nothing => Data::None,
            Holds::Values(fields) => Data::Fields(fields[index]),
            Holds::Verdicts => Data::Verdict,
        };
        SetSpec { name, key: keys[index], data, flags, size, comment }
    }
}

/// The most endpoints a page of a list has, and the modulus of every draw.
pub(crate) const PAGE: u32 = 64;
/// The most endpoints a list has: as many pages.
pub(crate) const LONGEST_LIST: usize = (PAGE * PAGE) as usize;
/// Size of a list without any endpoint in the cluster: its frontends are refused.
pub(crate) const REFUSED: u32 = 0;
/// Size of a list without an endpoint on this node, though there are others: its frontends are silent.
pub(crate) const SILENT: u32 = u32::MAX;

/// The size as the kernel's maps have it: the number of endpoints, or above a page 0x100 and the number of pages.
pub(crate) fn size_code(endpoints: usize) -> u32 {
    let endpoints = u32::try_from(endpoints).unwrap_or(u32::MAX);
    if endpoints <= PAGE { endpoints } else { 0x100 | endpoints.div_ceil(PAGE) }
}

/// The elements of `draw` and `draw-last`. A random number below [`PAGE`] becomes an index below the size; numbers that
/// would favour some indexes are left out of `draw`, and drawn again.
pub(crate) fn draws() -> impl Iterator<Item = Entry> {
    let draw = |set, code: u32, random: u32, size: u32| {
        Entry::new(set, Bytes::EMPTY.mark(code).mark(random), Bytes::EMPTY.mark(random % size))
    };
    let small = (1..=PAGE).map(|size| (size, size));
    let pages = (2..=PAGE).map(|pages| (0x100 | pages, pages));
    let fair = small.clone().chain(pages);
    fair.flat_map(move |(code, size)| {
        (0..PAGE / size * size).map(move |random| draw(Set::Draw, code, random, size))
    })
    .chain(
        small.flat_map(move |(code, size)| {
            (0..PAGE).map(move |random| draw(Set::DrawLast, code, random, size))
        }),
    )
}

/// A verdict map's element: the key, a mark, and the chain to go to (`None` drops).
pub(crate) type VerdictElement = (Set, u32, Option<String>);

/// Everything constant about the table.
pub(crate) struct Layout {
    pub(crate) sets: Vec<SetSpec>,
    pub(crate) chains: Vec<Chain>,
    pub(crate) verdicts: Vec<VerdictElement>,
    rules: Rules,
}

impl Layout {
    pub(crate) fn new(settings: &Settings) -> Self {
        let rules = Rules::new(settings);
        let sets = Set::ALL.iter().map(|set| set.spec(settings.family)).collect();
        let verdicts =
            vec![(Set::Refuse, REFUSED, Some(Rules::REJECT.to_owned())), (Set::Refuse, SILENT, None)];
        Self { sets, chains: rules.chains(), verdicts, rules }
    }

    /// The chains for lists with this affinity time, and the elements that lead to them.
    pub(crate) fn affinity(&self, seconds: u32) -> (Vec<Chain>, Vec<VerdictElement>) {
        let chains = self.rules.affinity_chains(seconds);
        let sets = [
            Set::AffinityBalance,
            Set::AffinityBalanceNodePorts,
            Set::AffinityBalanceShort,
            Set::AffinityBalanceShortNodePorts,
        ];
        let verdicts =
            iter::zip(sets, &chains).map(|(set, chain)| (set, seconds, Some(chain.name.clone()))).collect();
        (chains, verdicts)
    }
}

/// The elements of `service-cidrs`: the first address of each interval and the first one behind it. Where a network begins
/// just behind another there is neither: the kernel does not take an end and a start at one address in any order.
pub(crate) fn intervals(nets: &[IpNet]) -> impl Iterator<Item = Entry> {
    let mut boundaries = BTreeMap::new();
    for entry in IpNet::aggregate(&nets.to_vec()).into_iter().flat_map(interval) {
        if boundaries.remove(&entry.key).is_none() {
            boundaries.insert(entry.key, entry);
        }
    }
    boundaries.into_values()
}

fn interval(net: IpNet) -> impl Iterator<Item = Entry> {
    let start = Entry::new(Set::ServiceCidrs, Bytes::EMPTY.address(net.network()), Bytes::EMPTY);
    let behind = match net.broadcast() {
        IpAddr::V4(last) => last.to_bits().checked_add(1).map(|next| IpAddr::V4(next.into())),
        IpAddr::V6(last) => last.to_bits().checked_add(1).map(|next| IpAddr::V6(next.into())),
    };
    let end = behind.map(|behind| {
        Entry::new(Set::ServiceCidrs, Bytes::EMPTY.address(behind), crate::entry::INTERVAL_END)
    });
    iter::once(start).chain(end)
}
