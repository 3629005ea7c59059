//! What the rules depend on, beside services and facts.

use dataplane::LocalDetector;
use ipnet::IpNet;
use model::Family;

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
    /// Node ports on every local address; else on the addresses in [`dataplane::Facts`].
    pub all_node_port_addresses: bool,
    /// Node ports on the loopback addresses too. IPv4 only, and only with the sysctl `route_localnet`.
    pub localhost_node_ports: bool,
    /// Drop packets that connection tracking finds invalid: right unless the sysctl `nf_conntrack_tcp_be_liberal` is set.
    pub drop_invalid: bool,
    /// Count in the [counters](crate::COUNTERS), which then have to exist: `xt_nfacct` and nfnetlink_acct.
    pub counters: bool,
    /// Masquerading picks source ports at random, which needs iptables 1.6.2.
    pub random_fully: bool,
}

impl Settings {
    /// The condition that a packet comes from a pod of this node, or does not, beside that on its destination (with a blank
    /// at its end, or empty); in the order of `iptables-save`. `None` where pods are not told apart.
    pub(crate) fn source_is_pod(&self, is: bool, destination: &str) -> Option<String> {
        let not = if is { "" } else { "! " };
        match &self.local_detector {
            LocalDetector::None => None,
            LocalDetector::Cidr(net) => Some(format!("{}{destination}", source(not, *net))),
            LocalDetector::Interface(name) => Some(format!("{destination}{not}-i {name} ")),
            LocalDetector::InterfacePrefix(prefix) => Some(format!("{destination}{not}-i {prefix}+ ")),
        }
    }
}

/// A condition on the source address. `iptables-save` does not print one that all meet.
fn source(not: &str, net: IpNet) -> String {
    if net.prefix_len() == 0 && not.is_empty() { String::new() } else { format!("{not}-s {} ", net.trunc()) }
}
