//! The chains that all services share, and how packets come to them.

use std::net::{IpAddr, Ipv4Addr};

use dataplane::Facts;
use model::Family;

use crate::service::{Rule, comment, host};
use crate::settings::Settings;
use crate::tables::Table;

/// Marks what is to be masqueraded.
pub(crate) const MARK_MASQUERADE: &str = "KUBE-MARK-MASQ";
/// Counts packets that connection tracking found invalid.
const INVALID_COUNTER: &str = "ct_state_invalid_dropped_pkts";
/// Counts connections to node ports on loopback addresses.
pub(crate) const LOCALHOST_COUNTER: &str = "localhost_nps_accepted_pkts";
/// The accounting objects (nfnetlink_acct) that the rules count in.
pub const COUNTERS: [&str; 2] = [INVALID_COUNTER, LOCALHOST_COUNTER];

/// A chain that has lines of many services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum SharedChain {
    /// Refuses connections to cluster IPs.
    RefusedServices,
    /// Refuses connections to other frontends.
    RefusedExternalServices,
    /// Lets health checks of load balancers in.
    HealthCheckNodePorts,
    /// Drops what no source range covers.
    Firewall,
    /// Dispatches by address.
    Services,
    /// Dispatches by node port.
    NodePorts,
}

impl SharedChain {
    pub(crate) const ALL: [Self; 6] = [
        Self::RefusedServices,
        Self::RefusedExternalServices,
        Self::HealthCheckNodePorts,
        Self::Firewall,
        Self::Services,
        Self::NodePorts,
    ];

    pub(crate) fn table(self) -> Table {
        match self {
            Self::Services | Self::NodePorts => Table::Nat,
            _ => Table::Filter,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RefusedServices | Self::Services => "KUBE-SERVICES",
            Self::RefusedExternalServices => "KUBE-EXTERNAL-SERVICES",
            Self::HealthCheckNodePorts | Self::NodePorts => "KUBE-NODEPORTS",
            Self::Firewall => "KUBE-PROXY-FIREWALL",
        }
    }
}

/// A chain that does not depend on services.
pub(crate) struct FixedChain {
    pub(crate) table: Table,
    pub(crate) name: &'static str,
    pub(crate) rules: Vec<Rule>,
}

/// A rule in a chain that others own as well: it is added where it is missing, and nothing else there is touched.
pub(crate) struct Guest {
    pub(crate) table: Table,
    pub(crate) chain: &'static str,
    pub(crate) rule: Rule,
}

/// A chain that the kubelet makes too, with this rule.
pub(crate) const KUBELET_FIREWALL: &str = "KUBE-FIREWALL";

/// The chains that do not depend on services.
pub(crate) fn fixed_chains(settings: &Settings) -> Vec<FixedChain> {
    let canary = |table| FixedChain { table, name: "KUBE-PROXY-CANARY", rules: vec![] };
    let mut chains: Vec<_> = [Table::Mangle, Table::Filter, Table::Nat].map(canary).into();
    let mark = format!("{0:#x}/{0:#x}", settings.masquerade_mark);
    chains.push(FixedChain { table: Table::Filter, name: "KUBE-FORWARD", rules: forward(settings, &mark) });
    chains.push(FixedChain {
        table: Table::Nat,
        name: MARK_MASQUERADE,
        rules: vec![format!("-j MARK --set-xmark {mark}")],
    });
    let random = if settings.random_fully { " --random-fully" } else { "" };
    let masquerade = comment("kubernetes service traffic requiring SNAT");
    chains.push(FixedChain {
        table: Table::Nat,
        name: "KUBE-POSTROUTING",
        rules: vec![
            format!("-m mark ! --mark {mark} -j RETURN"),
            // the mark goes, as the packet may come through here again
            format!("-j MARK --set-xmark {:#x}/0x0", settings.masquerade_mark),
            format!("{masquerade}-j MASQUERADE{random}"),
        ],
    });
    chains
}

fn forward(settings: &Settings, mark: &str) -> Vec<Rule> {
    let count =
        if settings.counters { format!("-m nfacct --nfacct-name {INVALID_COUNTER} ") } else { String::new() };
    // an invalid packet would leave with the endpoint's address as its source, and end the connection (kubernetes #74839)
    let invalid = format!("-m conntrack --ctstate INVALID {count}-j DROP");
    let marked = comment("kubernetes forwarding rules");
    let known = comment("kubernetes forwarding conntrack rule");
    let mut rules = vec![
        format!("{marked}-m mark --mark {mark} -j ACCEPT"),
        format!("{known}-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
    ];
    if settings.drop_invalid {
        rules.insert(0, invalid);
    }
    rules
}

/// The rules in chains of others, in the order in which they are put at the head of their chain.
pub(crate) fn guests(settings: &Settings) -> Vec<Guest> {
    let jump = |table, chain, condition: &str, text: &str, target: &str| Guest {
        table,
        chain,
        rule: format!("{condition}{}-j {target}", comment(text)),
    };
    let new = "-m conntrack --ctstate NEW ";
    let portals = "kubernetes service portals";
    let visible = "kubernetes externally-visible service portals";
    let firewall = "kubernetes load balancer firewall";
    let [refused, external, health, proxy_firewall] = [
        SharedChain::RefusedServices,
        SharedChain::RefusedExternalServices,
        SharedChain::HealthCheckNodePorts,
        SharedChain::Firewall,
    ]
    .map(SharedChain::name);
    let services = SharedChain::Services.name();
    let mut guests = vec![
        jump(Table::Filter, "INPUT", new, visible, external),
        jump(Table::Filter, "FORWARD", new, visible, external),
        jump(Table::Filter, "INPUT", "", "kubernetes health check service ports", health),
        jump(Table::Filter, "FORWARD", new, portals, refused),
        jump(Table::Filter, "OUTPUT", new, portals, refused),
        jump(Table::Filter, "FORWARD", "", "kubernetes forwarding rules", "KUBE-FORWARD"),
        jump(Table::Filter, "INPUT", new, firewall, proxy_firewall),
        jump(Table::Filter, "OUTPUT", new, firewall, proxy_firewall),
        jump(Table::Filter, "FORWARD", new, firewall, proxy_firewall),
        jump(Table::Nat, "OUTPUT", "", portals, services),
        jump(Table::Nat, "PREROUTING", "", portals, services),
        jump(Table::Nat, "POSTROUTING", "", "kubernetes postrouting rules", "KUBE-POSTROUTING"),
    ];
    for chain in ["INPUT", "OUTPUT"] {
        guests.push(Guest { table: Table::Filter, chain, rule: format!("-j {KUBELET_FIREWALL}") });
    }
    if settings.localhost_node_ports {
        // with route_localnet, others could reach what listens on 127.0.0.1 only
        let text = comment("block incoming localnet connections");
        let rule = format!(
            "! -s 127.0.0.0/8 -d 127.0.0.0/8 {text}-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
        );
        guests.push(Guest { table: Table::Filter, chain: KUBELET_FIREWALL, rule });
    }
    guests
}

/// The last rules of [`SharedChain::Services`]: what goes to node ports.
pub(crate) fn to_node_ports(settings: &Settings, facts: &Facts) -> Vec<Rule> {
    let text = comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain");
    let node_ports = SharedChain::NodePorts.name();
    if settings.all_node_port_addresses {
        let but = match settings.family {
            Family::V4 if settings.localhost_node_ports => "",
            Family::V4 => "! -d 127.0.0.0/8 ",
            Family::V6 => "! -d ::1/128 ",
        };
        return vec![format!("{but}{text}-m addrtype --dst-type LOCAL -j {node_ports}")];
    }
    let localhost = settings.localhost_node_ports.then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let own = facts.node_port_addresses.iter().copied();
    let own = own.filter(|address| Family::of(*address) == settings.family);
    localhost
        .into_iter()
        .chain(own)
        .map(|address| format!("-d {} {text}-j {node_ports}", host(address)))
        .collect()
}
