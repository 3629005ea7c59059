//! The constant chains and rules.
//!
//! Every rule that chooses an endpoint is complete in itself, from the packet's destination to the translation: register
//! contents do not last from one rule to the next. What a map lookup gives reaches the next lookup by way of the packet
//! mark, which is put back at once: `nft list` cannot print a register that is loaded by one lookup and read by another
//! (it aborts; seen with 1.0.6 and 1.1.3), but it can print a mark. Nothing can fail between setting the mark and putting
//! it back.

use dataplane::LocalDetector;
use model::Family;
use netlink::nftables::{
    Chain, ChainBase, Compare, Expression, FibSelect, Hook, IPV4, IPV6, Rule, Verdict, ct, dynset, meta,
    payload,
};

use crate::layout::{PAGE, Set, Settings};

/// Holds the packet's own mark while the mark carries something else.
const KEEP: u8 = 15;
/// How often a draw is repeated: a draw of `draw` fails with a chance below one half.
const DRAWS: usize = 6;
const BIG_DRAWS: usize = 10;

type Expressions = Vec<Expression>;

/// What a chain that chooses endpoints looks frontends up in, and by what.
#[derive(Clone, Copy)]
struct Balancer {
    chain: &'static str,
    frontends: Set,
    node_ports: bool,
}

const BALANCERS: [(Balancer, Set); 4] = [
    (Balancer { chain: "balance", frontends: Set::Frontends, node_ports: false }, Set::AffinityBalance),
    (
        Balancer { chain: "balance-nodeports", frontends: Set::NodePorts, node_ports: true },
        Set::AffinityBalanceNodePorts,
    ),
    (
        Balancer { chain: "balance-short", frontends: Set::ShortCircuit, node_ports: false },
        Set::AffinityBalanceShort,
    ),
    (
        Balancer { chain: "balance-short-nodeports", frontends: Set::NodePortShortCircuit, node_ports: true },
        Set::AffinityBalanceShortNodePorts,
    ),
];

/// How an index is drawn.
#[derive(Clone, Copy)]
enum Draw {
    /// Of a list of one page; fails for numbers that would not be fair.
    Small,
    /// Of a list of one page; never fails.
    SmallLast,
    /// Of a list of several pages.
    Big,
    /// On the first page of such a list: always full.
    BigLast,
}

pub(crate) struct Rules {
    settings: Settings,
    /// Registers an address takes.
    n: u8,
    family: u8,
}

fn rule(parts: impl IntoIterator<Item = Expressions>, comment: &'static str) -> Rule {
    Rule { expressions: parts.into_iter().flatten().collect(), comment }
}

fn jump(chain: &str) -> Expressions {
    vec![Expression::Verdict(Verdict::Jump(chain.to_owned()))]
}

fn goto(chain: &str) -> Expressions {
    vec![Expression::Verdict(Verdict::Goto(chain.to_owned()))]
}

fn chain(name: &str, rules: Vec<Rule>) -> Chain {
    Chain { name: name.to_owned(), base: None, rules }
}

fn base(name: &str, kind: &'static str, hook: Hook, priority: i32, rules: Vec<Rule>) -> Chain {
    Chain { name: name.to_owned(), base: Some(ChainBase { kind, hook, priority }), rules }
}

fn mask(reg: u8, mask: u32, xor: u32) -> Expression {
    Expression::Bitwise { reg, mask: mask.to_ne_bytes().to_vec(), xor: xor.to_ne_bytes().to_vec() }
}

fn equal(sreg: u8, value: u32) -> Expression {
    Expression::Compare { sreg, op: Compare::Equal, data: value.to_ne_bytes().to_vec() }
}

fn some_bit_of(reg: u8, bits: u32) -> [Expression; 2] {
    [mask(reg, bits, 0), Expression::Compare { sreg: reg, op: Compare::NotEqual, data: vec![0; 4] }]
}

fn map(set: Set, sreg: u8, dreg: u8) -> Expression {
    Expression::LookupMap { map: set.name(), sreg, dreg }
}

fn within(set: Set, sreg: u8) -> Expression {
    Expression::Lookup { set: set.name(), sreg, invert: false }
}

fn load_mark(dreg: u8) -> Expression {
    Expression::MetaLoad { key: meta::MARK, dreg }
}

fn set_mark(sreg: u8) -> Expression {
    Expression::MetaSet { key: meta::MARK, sreg }
}

fn random(modulus: u32, dreg: u8) -> Expression {
    Expression::Random { modulus, dreg }
}

/// `dst := src` by way of the mark, which has its old value afterwards.
fn through_mark(src: u8, dst: u8) -> [Expression; 3] {
    [set_mark(src), load_mark(dst), set_mark(KEEP)]
}

fn new_connection() -> Expressions {
    let mut match_new = vec![Expression::Ct { key: ct::STATE, dreg: 0 }];
    match_new.extend(some_bit_of(0, ct::STATE_NEW));
    match_new
}

/// Part of a connection to a frontend that is open, on its way to the endpoint.
fn open_connection() -> Expressions {
    let mut open = vec![Expression::Ct { key: ct::STATE, dreg: 0 }];
    open.extend(some_bit_of(0, ct::STATE_ESTABLISHED));
    open.push(Expression::Ct { key: ct::STATUS, dreg: 0 });
    open.extend(some_bit_of(0, ct::STATUS_DNAT));
    open.push(Expression::Ct { key: ct::DIRECTION, dreg: 0 });
    open.push(Expression::Compare { sreg: 0, op: Compare::Equal, data: vec![0] });
    open
}

fn tcp() -> [Expression; 2] {
    [
        Expression::MetaLoad { key: meta::L4PROTO, dreg: 0 },
        Expression::Compare { sreg: 0, op: Compare::Equal, data: vec![6] },
    ]
}

const LOCAL: u32 = 2; // RTN_LOCAL

impl Rules {
    /// The chain that refuses.
    pub(crate) const REJECT: &str = "reject-chain";
    /// The chain that ends connections.
    const RESET: &str = "reset-chain";

    pub(crate) fn new(settings: &Settings) -> Self {
        let (n, family) = match settings.family {
            Family::V4 => (1, IPV4),
            Family::V6 => (4, IPV6),
        };
        Self { settings: settings.clone(), n, family }
    }

    // --- what a packet is -----------------------------------------------------------------------------------------

    fn address(&self, v4_offset: u32, v6_offset: u32, dreg: u8) -> Expression {
        let (offset, length) = match self.settings.family {
            Family::V4 => (v4_offset, 4),
            Family::V6 => (v6_offset, 16),
        };
        Expression::Payload { base: payload::NETWORK, offset, length, dreg }
    }

    fn source(&self, dreg: u8) -> Expression {
        self.address(12, 8, dreg)
    }

    fn destination(&self, dreg: u8) -> Expression {
        self.address(16, 24, dreg)
    }

    /// Protocol and destination port.
    fn node_port(dreg: u8) -> [Expression; 2] {
        [
            Expression::MetaLoad { key: meta::L4PROTO, dreg },
            Expression::Payload { base: payload::TRANSPORT, offset: 2, length: 2, dreg: dreg + 1 },
        ]
    }

    /// Destination address, protocol and port.
    fn vip(&self, dreg: u8) -> Expressions {
        let mut key = vec![self.destination(dreg)];
        key.extend(Self::node_port(dreg + self.n));
        key
    }

    fn key(&self, balancer: Balancer, dreg: u8) -> Expressions {
        if balancer.node_ports { Self::node_port(dreg).to_vec() } else { self.vip(dreg) }
    }

    /// The packet comes from a pod of this node (or, inverted, does not); `None` when that is not known.
    fn pod_source(&self, invert: bool) -> Option<Expressions> {
        let op = if invert { Compare::NotEqual } else { Compare::Equal };
        let interface = Expression::MetaLoad { key: meta::INPUT_INTERFACE_NAME, dreg: 0 };
        match &self.settings.local_detector {
            LocalDetector::None => None,
            LocalDetector::Cidr(net) => {
                let (netmask, network) = (octets(net.netmask()), octets(net.network()));
                let zero = vec![0; netmask.len()];
                Some(vec![
                    self.source(0),
                    Expression::Bitwise { reg: 0, mask: netmask, xor: zero },
                    Expression::Compare { sreg: 0, op, data: network },
                ])
            }
            LocalDetector::Interface(name) => {
                let mut data = name.as_bytes().to_vec();
                data.resize(16, 0); // IFNAMSIZ
                Some(vec![interface, Expression::Compare { sreg: 0, op, data }])
            }
            LocalDetector::InterfacePrefix(prefix) => {
                Some(vec![interface, Expression::Compare { sreg: 0, op, data: prefix.as_bytes().to_vec() }])
            }
        }
    }

    fn node_source() -> Expressions {
        vec![Expression::FibType { select: FibSelect::Source, dreg: 0 }, equal(0, LOCAL)]
    }

    /// The destination takes node port traffic.
    fn to_node_port_address(&self) -> Expressions {
        if !self.settings.all_node_port_addresses {
            return vec![self.destination(0), within(Set::NodePortIps, 0)];
        }
        let mut local = vec![
            Expression::FibType { select: FibSelect::Destination, dreg: 0 },
            equal(0, LOCAL),
            self.destination(0),
        ];
        let loopback = match self.settings.family {
            Family::V4 => {
                local.push(Expression::Bitwise { reg: 0, mask: vec![255, 0, 0, 0], xor: vec![0; 4] });
                vec![127, 0, 0, 0]
            }
            Family::V6 => octets(std::net::Ipv6Addr::LOCALHOST.into()),
        };
        local.push(Expression::Compare { sreg: 0, op: Compare::NotEqual, data: loopback });
        local
    }

    // --- what is done ---------------------------------------------------------------------------------------------

    fn mark_for_masquerade(&self, scratch: u8) -> Expressions {
        let bit = self.settings.masquerade_mark;
        vec![load_mark(scratch), mask(scratch, !bit, bit), set_mark(scratch)]
    }

    /// `dreg` := the list of the packet's frontend; KEEP := its mark.
    fn list(&self, balancer: Balancer, dreg: u8) -> Expressions {
        let key = if self.n == 1 { 8 } else { 9 };
        let mut list = self.key(balancer, key);
        list.push(map(balancer.frontends, key, key));
        list.push(load_mark(KEEP));
        list.extend(through_mark(key, dreg));
        list
    }

    /// Loads what `slots` holds for a random slot of the packet's list into `first + 3` and following. `first` becomes the
    /// list, `first + 1` the index or page, `first + 2` the slot of the page.
    fn choose(&self, balancer: Balancer, first: u8, small: Set, big: Set, draw: Draw) -> Expressions {
        let mut choice = self.list(balancer, first);
        if let Draw::BigLast = draw {
            choice.extend([random(1, first + 1), random(PAGE, first + 2), map(big, first, first + 3)]);
            return choice;
        }
        choice.push(map(Set::Lists, first, first + 2));
        choice.extend(through_mark(first + 2, first + 2));
        choice.push(random(PAGE, first + 3));
        let draws = if let Draw::SmallLast = draw { Set::DrawLast } else { Set::Draw };
        choice.push(map(draws, first + 2, first + 2));
        choice.extend(through_mark(first + 2, first + 1));
        if let Draw::Big = draw {
            choice.extend([random(PAGE, first + 2), map(big, first, first + 3)]);
        } else {
            choice.push(map(small, first, first + 3));
        }
        choice
    }

    fn dnat(&self, address: u8) -> Expression {
        Expression::Dnat { family: self.family, address, port: address + self.n }
    }

    fn balance_chain(&self, balancer: Balancer, affinity: Set) -> Chain {
        let pick = |draw| {
            let mut expressions = self.choose(balancer, 0, Set::Endpoints, Set::EndpointsBig, draw);
            expressions.push(self.dnat(3));
            Rule { expressions, comment: "" }
        };
        let mut sticky = self.list(balancer, 0);
        sticky.push(map(Set::AffinityTimeouts, 0, 0));
        sticky.extend(through_mark(0, 0));
        sticky.push(Expression::LookupVerdict { map: affinity.name(), sreg: 0 });

        let mut rules = vec![pick(Draw::Small), Rule { expressions: sticky, comment: "" }, pick(Draw::Big)];
        rules.extend((1..DRAWS).map(|_| pick(Draw::Small)));
        rules.push(pick(Draw::SmallLast));
        rules.extend((1..BIG_DRAWS).map(|_| pick(Draw::Big)));
        rules.push(pick(Draw::BigLast));
        chain(balancer.chain, rules)
    }

    /// Client and list give the endpoint it went to before. A removed endpoint has no address any more, so the rule ends.
    fn sticky(&self, balancer: Balancer, timeout: u64) -> Rule {
        let n = self.n;
        let mut expressions = self.list(balancer, n);
        expressions.extend([self.source(0), map(Set::Affinity, 0, n + 2)]);
        expressions.extend(through_mark(n + 2, n + 1));
        expressions.extend([
            map(Set::AffinityEndpoints, n + 1, n + 2),
            Expression::Dynset {
                map: Set::Affinity.name(),
                op: dynset::UPDATE,
                key: 0,
                data: n + 1,
                timeout,
            },
            self.dnat(n + 2),
        ]);
        Rule { expressions, comment: "" }
    }

    /// A new choice, remembered unless `timeout` is `None`: the map of clients may be full.
    fn stick(&self, balancer: Balancer, draw: Draw, timeout: Option<u64>) -> Rule {
        let n = self.n;
        let mut expressions = self.choose(balancer, n, Set::AffinitySlots, Set::AffinitySlotsBig, draw);
        expressions.push(self.source(0));
        expressions.extend(through_mark(n + 3, n + 1));
        expressions.push(map(Set::AffinityEndpoints, n + 1, n + 2));
        if let Some(timeout) = timeout {
            // an update alone would renew the time and keep the old endpoint
            let change = |op, timeout| Expression::Dynset {
                map: Set::Affinity.name(),
                op,
                key: 0,
                data: n + 1,
                timeout,
            };
            expressions.extend([change(dynset::DELETE, 0), change(dynset::UPDATE, timeout)]);
        }
        expressions.push(self.dnat(n + 2));
        Rule { expressions, comment: if timeout.is_none() { "affinity map full" } else { "" } }
    }

    /// The chains for one affinity time, in the order of the balancing chains.
    pub(crate) fn affinity_chains(&self, seconds: u32) -> Vec<Chain> {
        let timeout = u64::from(seconds) * 1000;
        let chains = BALANCERS.map(|(balancer, _)| {
            let mut rules = vec![self.sticky(balancer, timeout)];
            rules.extend((0..DRAWS).map(|_| self.stick(balancer, Draw::Small, Some(timeout))));
            rules.push(self.stick(balancer, Draw::SmallLast, Some(timeout)));
            rules.extend((0..BIG_DRAWS).map(|_| self.stick(balancer, Draw::Big, Some(timeout))));
            rules.push(self.stick(balancer, Draw::BigLast, Some(timeout)));
            rules.extend([Draw::SmallLast, Draw::BigLast].map(|draw| self.stick(balancer, draw, None)));
            chain(&balancer.chain.replace("balance", &affinity_prefix(seconds)), rules)
        });
        chains.into()
    }

    // --- the chains -----------------------------------------------------------------------------------------------

    pub(crate) fn chains(&self) -> Vec<Chain> {
        let mut chains = self.hooked_chains();
        chains.extend([
            self.services_chain(),
            self.cluster_ip_chain(),
            self.node_ports_chain(),
            self.masquerading_chain(),
            self.firewall_chain(),
            self.refusal_chain("no-endpoints", BALANCERS[0].0),
            self.refusal_chain("no-endpoint-nodeports", BALANCERS[1].0),
            self.cluster_ips_check_chain(),
            self.reject_chain(),
            self.removed_endpoints_chain(),
            self.reset_chain(),
        ]);
        chains.extend(BALANCERS.map(|(balancer, affinity)| self.balance_chain(balancer, affinity)));
        chains
    }

    fn hooked_chains(&self) -> Vec<Chain> {
        let new = |then: &str| rule([new_connection(), jump(then)], "");
        // in output too: what is refused on its way in is tracked by then
        let refused_node_port =
            || rule([new_connection(), self.to_node_port_address(), jump("no-endpoint-nodeports")], "");
        let before = || vec![new("firewall"), rule([open_connection(), jump("removed-endpoints")], "")];
        let refused = || new("no-endpoints");
        let checked = || new("cluster-ips-check");
        let always = |then: &str| vec![rule([jump(then)], "")];
        vec![
            base("filter-prerouting-pre-dnat", "filter", Hook::Prerouting, -110, before()),
            base("filter-output-pre-dnat", "filter", Hook::Output, -110, before()),
            base("filter-input", "filter", Hook::Input, 0, vec![refused(), refused_node_port()]),
            base("filter-forward", "filter", Hook::Forward, 0, vec![refused(), checked()]),
            base("filter-output", "filter", Hook::Output, 0, vec![refused(), refused_node_port(), checked()]),
            base("nat-prerouting", "nat", Hook::Prerouting, -100, always("services")),
            base("nat-output", "nat", Hook::Output, -100, always("services")),
            base("nat-postrouting", "nat", Hook::Postrouting, 100, always("masquerading")),
        ]
    }

    /// Frontends of policy Local, from a pod or the node itself: any endpoint will do.
    fn short_circuits(&self, balancer: Balancer) -> Vec<Rule> {
        let pods = self.pod_source(false).map(|pods| {
            rule([pods, self.list(balancer, 0), jump(balancer.chain)], "short-circuit pod traffic")
        });
        let node = rule(
            [Self::node_source(), self.list(balancer, 0), self.mark_for_masquerade(2), jump(balancer.chain)],
            "short-circuit and masquerade node traffic",
        );
        pods.into_iter().chain([node]).collect()
    }

    fn services_chain(&self) -> Chain {
        let mut rules = vec![
            rule([vec![self.destination(0), within(Set::ClusterIps, 0)], goto("cluster-ip")], ""),
            rule(
                [self.vip(0), vec![within(Set::ExternalMasquerade, 0)], self.mark_for_masquerade(8)],
                "masquerade, policy Cluster",
            ),
        ];
        rules.extend(self.short_circuits(BALANCERS[2].0));
        rules.push(rule([jump("balance")], ""));
        rules.push(rule([self.to_node_port_address(), goto("nodeports")], ""));
        chain("services", rules)
    }

    fn cluster_ip_chain(&self) -> Chain {
        let masquerade = if self.settings.masquerade_all {
            Some(rule([self.mark_for_masquerade(0)], "masquerade all"))
        } else {
            self.pod_source(true).map(|elsewhere| {
                rule([elsewhere, self.mark_for_masquerade(0)], "masquerade off-cluster traffic")
            })
        };
        chain("cluster-ip", masquerade.into_iter().chain([rule([goto("balance")], "")]).collect())
    }

    fn node_ports_chain(&self) -> Chain {
        let key = Self::node_port(0).to_vec();
        let mut rules = vec![rule(
            [key, vec![within(Set::NodePortMasquerade, 0)], self.mark_for_masquerade(8)],
            "masquerade, policy Cluster",
        )];
        rules.extend(self.short_circuits(BALANCERS[3].0));
        rules.push(rule([goto("balance-nodeports")], ""));
        chain("nodeports", rules)
    }

    fn masquerading_chain(&self) -> Chain {
        let bit = self.settings.masquerade_mark;
        let mut marked = vec![load_mark(0)];
        marked.extend(some_bit_of(0, bit));
        marked.extend([load_mark(0), mask(0, u32::MAX, bit), set_mark(0), Expression::Masquerade]);

        let mut hairpin = vec![Expression::Ct { key: ct::STATUS, dreg: 0 }];
        hairpin.extend(some_bit_of(0, ct::STATUS_DNAT));
        hairpin.push(self.source(0));
        hairpin.extend(self.vip(self.n));
        hairpin.extend([within(Set::Hairpin, 0), Expression::Masquerade]);
        chain("masquerading", vec![rule([marked], ""), rule([hairpin], "hairpin")])
    }

    fn firewall_chain(&self) -> Chain {
        let mut refused = self.vip(0);
        refused.push(within(Set::FirewallFrontends, 0));
        refused.extend(self.vip(0));
        refused.extend([
            self.source(self.n + 2),
            Expression::Lookup { set: Set::FirewallSources.name(), sreg: 0, invert: true },
            Expression::Verdict(Verdict::Drop),
        ]);
        chain("firewall", vec![rule([refused], "")])
    }

    fn refusal_chain(&self, name: &str, balancer: Balancer) -> Chain {
        let mut expressions = self.list(balancer, 0);
        expressions.push(map(Set::Lists, 0, 0));
        expressions.extend(through_mark(0, 0));
        expressions.push(Expression::LookupVerdict { map: Set::Refuse.name(), sreg: 0 });
        chain(name, vec![rule([expressions], "")])
    }

    fn cluster_ips_check_chain(&self) -> Chain {
        let to = |set| vec![self.destination(0), within(set, 0)];
        let drop = vec![Expression::Verdict(Verdict::Drop)];
        chain(
            "cluster-ips-check",
            vec![
                rule([to(Set::ClusterIps), goto(Self::REJECT)], "invalid ports of ClusterIPs"),
                rule([to(Set::ServiceCidrs), drop], "unallocated ClusterIPs"),
            ],
        )
    }

    /// TCP by a reset: a client knows at once, in IPv6 too, where Linux acts on port unreachable only after a second
    /// (seen on 6.18), and resets are not rate limited as ICMP is.
    fn reject_chain(&self) -> Chain {
        let reset = vec![Expression::Reject { family: self.family, tcp_reset: true }];
        let other = vec![Expression::Reject { family: self.family, tcp_reset: false }];
        chain(Self::REJECT, vec![rule([tcp().to_vec(), reset], ""), rule([other], "")])
    }

    /// Looks at packets before their destination is translated: a reset made from a translated one would need a way back
    /// through the translation, and with bridge netfilter it has none.
    fn removed_endpoints_chain(&self) -> Chain {
        let address = match self.settings.family {
            Family::V4 => ct::SRC_IP,
            Family::V6 => ct::SRC_IP6,
        };
        let endpoint = vec![
            Expression::CtReply { key: address, dreg: 0 },
            Expression::CtReply { key: ct::PROTO_SRC, dreg: self.n },
        ];
        let port = |dreg| Expression::Payload { base: payload::TRANSPORT, offset: 2, length: 2, dreg };
        let by_address =
            vec![self.destination(self.n + 1), port(2 * self.n + 1), within(Set::RemovedEndpoints, 0)];
        let mut by_node_port = vec![port(self.n + 1), within(Set::RemovedEndpointsNodePorts, 0)];
        by_node_port.extend(self.to_node_port_address());
        let reset = |by| rule([tcp().to_vec(), endpoint.clone(), by, goto(Self::RESET)], "");
        chain("removed-endpoints", vec![reset(by_address), reset(by_node_port)])
    }

    /// A reset as an answer to a SYN would free the client's port, which is then the first to be used again and meets
    /// the old entry again. Without an answer it is tried again, by then without the entry.
    fn reset_chain(&self) -> Chain {
        const FLAGS: u8 = 0b1_0111; // FIN, SYN, RST, ACK
        const SYN: u8 = 0b10;
        let syn = vec![
            Expression::Payload { base: payload::TRANSPORT, offset: 13, length: 1, dreg: 0 },
            Expression::Bitwise { reg: 0, mask: vec![FLAGS], xor: vec![0] },
            Expression::Compare { sreg: 0, op: Compare::Equal, data: vec![SYN] },
            Expression::Verdict(Verdict::Drop),
        ];
        let reset = vec![Expression::Reject { family: self.family, tcp_reset: true }];
        chain(
            Self::RESET,
            vec![
                rule([tcp().to_vec(), syn], "new connection on an old entry"),
                rule([tcp().to_vec(), reset], ""),
            ],
        )
    }
}

/// The first part of the names of the chains for one affinity time.
fn affinity_prefix(seconds: u32) -> String {
    format!("affinity-{seconds}s")
}

/// The affinity time that a chain is for, from its name.
pub(crate) fn affinity_seconds(chain: &str) -> Option<u32> {
    chain.strip_prefix("affinity-")?.split_once('s')?.0.parse().ok()
}

fn octets(address: std::net::IpAddr) -> Vec<u8> {
    match address {
        std::net::IpAddr::V4(address) => address.octets().to_vec(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    }
}
