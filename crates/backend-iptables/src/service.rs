//! The rules of one service: its own chains in table nat, and its lines in the chains that all services share.
//!
//! Chains, order, comments and probabilities are the original kube-proxy's; the text is that of `iptables-save`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::{Backend, Endpoint, Family, Frontend, Policy, ResolvedPort, ResolvedService};

use crate::names::{ChainName, Role};
use crate::settings::Settings;
use crate::shared::{LOCALHOST_COUNTER, MARK_MASQUERADE, SharedChain};

/// One rule as `iptables-save` prints it, without `-A` and its chain.
pub(crate) type Rule = String;

/// The rules of one service.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ServiceRules {
    /// Its chains in table nat.
    pub(crate) chains: BTreeMap<ChainName, Vec<Rule>>,
    /// Its lines in the shared chains; within one chain in this order.
    pub(crate) lines: Vec<(SharedChain, Rule)>,
}

impl ServiceRules {
    /// Plans a service. In a large cluster the rules of endpoints go without comments.
    pub(crate) fn new(service: &ResolvedService, settings: &Settings, is_large: bool) -> Self {
        let mut rules = Self::default();
        for port in &service.ports {
            Planner::new(service, port, settings, is_large).plan(&mut rules);
        }
        rules
    }
}

/// Plans one port.
struct Planner<'a> {
    service: &'a ResolvedService,
    port: &'a ResolvedPort,
    settings: &'a Settings,
    is_large: bool,
    /// `namespace/name:port`.
    name: String,
    /// Sorted as text, which is the original's order.
    targets: Vec<Target>,
    internal: Reach,
    external: Reach,
}

/// An endpoint that some list has.
struct Target {
    text: String,
    endpoint: Endpoint,
    chain: ChainName,
    chain_text: String,
    in_cluster: bool,
    in_local: bool,
}

/// What becomes of connections to one kind of frontends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// They are served.
    Endpoints,
    /// There is an endpoint, but none on this node.
    NoLocalEndpoint,
    /// There is none at all.
    NoEndpoint,
}

impl Reach {
    fn of(port: &ResolvedPort, policy: Policy) -> Self {
        match policy {
            _ if !port.any_endpoint => Self::NoEndpoint,
            Policy::Local if port.local.is_empty() => Self::NoLocalEndpoint,
            _ => Self::Endpoints,
        }
    }
}

/// How many ports of the service are silent, for want of a local endpoint: for the cluster IP, and for other frontends.
pub(crate) fn without_local_endpoint(service: &ResolvedService) -> [usize; 2] {
    let count = |policy, wanted: fn(&Frontend) -> bool| {
        let silent = |port: &&ResolvedPort| {
            Reach::of(port, policy) == Reach::NoLocalEndpoint && port.frontends.iter().any(wanted)
        };
        service.ports.iter().filter(silent).count()
    };
    [
        count(service.internal_policy, |one| !one.is_external()),
        count(service.external_policy, Frontend::is_external),
    ]
}

/// How many endpoints connections to the service may reach.
pub(crate) fn endpoints(service: &ResolvedService) -> usize {
    service.ports.iter().map(|port| union(&port.cluster, &port.local).count()).sum()
}

/// The endpoints of both lists, each once. Both are sorted.
fn union<'a>(cluster: &'a [Backend], local: &'a [Backend]) -> impl Iterator<Item = &'a Backend> {
    let beyond = local.iter().filter(|one| cluster.binary_search(one).is_err());
    cluster.iter().chain(beyond)
}

impl<'a> Planner<'a> {
    fn new(
        service: &'a ResolvedService,
        port: &'a ResolvedPort,
        settings: &'a Settings,
        is_large: bool,
    ) -> Self {
        let name = service.port_name(port);
        let target = |backend: &Backend| {
            let text = backend.endpoint.to_string();
            let chain = ChainName::of_endpoint(&name, port.protocol, &text);
            let is_in = |list: &[Backend]| list.binary_search(backend).is_ok();
            Target {
                text,
                endpoint: backend.endpoint,
                chain,
                chain_text: chain.to_string(),
                in_cluster: is_in(&port.cluster),
                in_local: is_in(&port.local),
            }
        };
        let mut targets: Vec<_> = union(&port.cluster, &port.local).map(target).collect();
        targets.sort_unstable_by(|one, other| one.text.cmp(&other.text));
        let internal = Reach::of(port, service.internal_policy);
        let external = Reach::of(port, service.external_policy);
        Self { service, port, settings, is_large, name, targets, internal, external }
    }

    fn plan(&self, rules: &mut ServiceRules) {
        for frontend in &self.port.frontends {
            match frontend {
                Frontend::ClusterIp(address) => self.cluster_ip(*address, rules),
                Frontend::ExternalIp(address) => self.external_ip(*address, rules),
                Frontend::LoadBalancerIp(address) => self.load_balancer_ip(*address, rules),
                Frontend::NodePort(number) => self.node_port(*number, rules),
            }
        }
        if let Some(port) = self.service.health_check_node_port {
            let comment = comment(&format!("{} health check node port", self.name));
            rules.lines.push((
                SharedChain::HealthCheckNodePorts,
                format!("-p tcp {comment}-m tcp --dport {port} -j ACCEPT"),
            ));
        }
        if self.is_served_outside() {
            rules.chains.insert(self.chain(Role::External), self.external_rules());
        }
        if self.has_firewall() {
            rules.chains.insert(self.chain(Role::Firewall), self.firewall_rules());
        }
        self.pick(Role::Cluster, |target| target.in_cluster, rules);
        self.pick(Role::Local, |target| target.in_local, rules);
        for target in &self.targets {
            rules.chains.insert(target.chain, self.endpoint_rules(target));
        }
    }

    fn chain(&self, role: Role) -> ChainName {
        ChainName::of_port(role, &self.name, self.port.protocol)
    }

    /// The chain of the endpoints that a policy allows.
    fn list(&self, policy: Policy) -> ChainName {
        self.chain(match policy {
            Policy::Cluster => Role::Cluster,
            Policy::Local => Role::Local,
        })
    }

    fn is_served_outside(&self) -> bool {
        self.port.any_endpoint && self.port.frontends.iter().any(Frontend::is_external)
    }

    fn has_firewall(&self) -> bool {
        let balances = |frontend: &Frontend| matches!(frontend, Frontend::LoadBalancerIp(_));
        self.port.any_endpoint
            && !self.service.source_ranges.is_empty()
            && self.port.frontends.iter().any(balances)
    }

    // --- lines in shared chains -----------------------------------------------------------------------------------

    fn cluster_ip(&self, address: IpAddr, rules: &mut ServiceRules) {
        let list = self.list(self.service.internal_policy);
        let line = match self.refusal(self.internal) {
            None => (SharedChain::Services, self.to_address(address, "cluster IP", &list.to_string())),
            Some((why, target)) => (SharedChain::RefusedServices, self.to_address(address, why, target)),
        };
        rules.lines.push(line);
        if self.internal == Reach::Endpoints {
            rules.chains.entry(list).or_default().extend(self.masquerade_cluster_ip(address));
        }
    }

    fn external_ip(&self, address: IpAddr, rules: &mut ServiceRules) {
        if self.port.any_endpoint {
            let external = self.chain(Role::External).to_string();
            rules.lines.push((SharedChain::Services, self.to_address(address, "external IP", &external)));
        }
        self.refuse_outside(address, rules);
    }

    fn load_balancer_ip(&self, address: IpAddr, rules: &mut ServiceRules) {
        if self.port.any_endpoint {
            let role = if self.has_firewall() { Role::Firewall } else { Role::External };
            let chain = self.chain(role).to_string();
            rules.lines.push((SharedChain::Services, self.to_address(address, "loadbalancer IP", &chain)));
        }
        if self.has_firewall() {
            let why = format!("traffic not accepted by {}", self.chain(Role::Firewall));
            rules.lines.push((SharedChain::Firewall, self.to_address(address, &why, "DROP")));
        }
        self.refuse_outside(address, rules);
    }

    fn refuse_outside(&self, address: IpAddr, rules: &mut ServiceRules) {
        if let Some((why, target)) = self.refusal(self.external) {
            rules.lines.push((SharedChain::RefusedExternalServices, self.to_address(address, why, target)));
        }
    }

    fn node_port(&self, number: u16, rules: &mut ServiceRules) {
        let protocol = self.port.protocol;
        if self.port.any_endpoint {
            let comment = comment(&self.name);
            let external = self.chain(Role::External);
            let matches = format!("-p {protocol} {comment}-m {protocol} --dport {number} ");
            if self.settings.localhost_node_ports && self.settings.counters {
                rules.lines.push((
                    SharedChain::NodePorts,
                    format!(
                        "-d 127.0.0.0/8 {matches}-m nfacct --nfacct-name {LOCALHOST_COUNTER} -j {external}"
                    ),
                ));
            }
            rules.lines.push((SharedChain::NodePorts, format!("{matches}-j {external}")));
        }
        if let Some((why, target)) = self.refusal(self.external) {
            let comment = comment(&format!("{} {why}", self.name));
            rules.lines.push((
                SharedChain::RefusedExternalServices,
                format!(
                    "-p {protocol} {comment}-m addrtype --dst-type LOCAL -m {protocol} --dport {number} -j {target}"
                ),
            ));
        }
    }

    /// Why connections are refused, and how.
    fn refusal(&self, reach: Reach) -> Option<(&'static str, &'static str)> {
        let reject = match self.settings.family {
            Family::V4 => "REJECT --reject-with icmp-port-unreachable",
            Family::V6 => "REJECT --reject-with icmp6-port-unreachable",
        };
        match reach {
            Reach::Endpoints => None,
            Reach::NoLocalEndpoint => Some(("has no local endpoints", "DROP")),
            Reach::NoEndpoint => Some(("has no endpoints", reject)),
        }
    }

    /// A rule for what goes to the port of an address.
    fn to_address(&self, address: IpAddr, why: &str, target: &str) -> Rule {
        let matches = self.at_port(why);
        format!("-d {} {matches}-j {target}", host(address))
    }

    /// Matches the service port, beside an address.
    fn at_port(&self, why: &str) -> String {
        let (protocol, port) = (self.port.protocol, self.port.port);
        let comment = comment(&format!("{} {why}", self.name));
        format!("-p {protocol} {comment}-m {protocol} --dport {port} ")
    }

    // --- own chains -----------------------------------------------------------------------------------------------

    /// What comes from elsewhere must come back through this node.
    fn masquerade_cluster_ip(&self, address: IpAddr) -> Option<Rule> {
        let destination = format!("-d {} ", host(address));
        let ends = if self.settings.masquerade_all {
            destination
        } else {
            self.settings.source_is_pod(false, &destination)?
        };
        Some(format!("{ends}{}-j {MARK_MASQUERADE}", self.at_port("cluster IP")))
    }

    fn external_rules(&self) -> Vec<Rule> {
        let traffic = |what: &str| comment(&format!("{what} {} external destinations", self.name));
        let cluster = self.chain(Role::Cluster);
        let mut rules = Vec::new();
        match self.service.external_policy {
            Policy::Cluster => {
                rules.push(format!("{}-j {MARK_MASQUERADE}", traffic("masquerade traffic for")));
            }
            Policy::Local => {
                let from_pod = self.settings.source_is_pod(true, "");
                rules.extend(
                    from_pod.map(|from_pod| format!("{from_pod}{}-j {cluster}", traffic("pod traffic for"))),
                );
                let local = "-m addrtype --src-type LOCAL ";
                rules.push(format!("{}{local}-j {MARK_MASQUERADE}", traffic("masquerade LOCAL traffic for")));
                rules.push(format!("{}{local}-j {cluster}", traffic("route LOCAL traffic for")));
            }
        }
        if self.external == Reach::Endpoints {
            rules.push(format!("-j {}", self.list(self.service.external_policy)));
        }
        rules
    }

    fn firewall_rules(&self) -> Vec<Rule> {
        let accepted = comment(&format!("{} loadbalancer IP", self.name));
        let external = self.chain(Role::External);
        let ranges = self.service.source_ranges.iter();
        let mut rules: Vec<_> =
            ranges.map(|range| format!("-s {} {accepted}-j {external}", range.trunc())).collect();
        let rest = comment(&format!("other traffic to {} will be dropped by KUBE-PROXY-FIREWALL", self.name));
        rules.push(rest.trim_end().to_owned());
        rules
    }

    /// The chain that picks one of these endpoints.
    fn pick(&self, role: Role, is_in: fn(&Target) -> bool, rules: &mut ServiceRules) {
        let list: Vec<_> = self.targets.iter().filter(|target| is_in(target)).collect();
        if list.is_empty() {
            return;
        }
        let chain = rules.chains.entry(self.chain(role)).or_default();
        if let Some(seconds) = self.service.affinity_seconds {
            chain.extend(list.iter().map(|target| self.stay(target, seconds)));
        }
        // the first of five takes a fifth, the next a fourth of the rest
        let shares = (1..=u32::try_from(list.len()).unwrap_or(u32::MAX)).rev();
        chain.extend(list.iter().zip(shares).map(|(target, one_of)| self.choose(target, one_of)));
    }

    /// Who was sent to the endpoint lately goes there again.
    fn stay(&self, target: &Target, seconds: u32) -> Rule {
        let (comment, chain) = (self.list_comment(target), &target.chain_text);
        let mask = self.affinity_mask();
        format!(
            "{comment}-m recent --rcheck --seconds {seconds} --reap --name {chain} --mask {mask} --rsource -j {chain}"
        )
    }

    fn choose(&self, target: &Target, one_of: u32) -> Rule {
        let (comment, chain) = (self.list_comment(target), &target.chain_text);
        let share = match one_of {
            1 => String::new(),
            _ => format!("-m statistic --mode random --probability {} ", probability(one_of)),
        };
        format!("{comment}{share}-j {chain}")
    }

    fn list_comment(&self, target: &Target) -> String {
        self.unless_large(|| format!("{} -> {}", self.name, target.text))
    }

    fn endpoint_rules(&self, target: &Target) -> Vec<Rule> {
        let protocol = self.port.protocol;
        let comment = self.unless_large(|| self.name.clone());
        let Target { text, chain_text, .. } = target;
        let remember = match self.service.affinity_seconds {
            None => String::new(),
            Some(_) => {
                format!("-m recent --set --name {chain_text} --mask {} --rsource ", self.affinity_mask())
            }
        };
        vec![
            format!("-s {} {comment}-j {MARK_MASQUERADE}", host(target.endpoint.address)),
            format!("-p {protocol} {comment}{remember}-m {protocol} -j DNAT --to-destination {text}"),
        ]
    }

    fn unless_large(&self, text: impl FnOnce() -> String) -> String {
        if self.is_large { String::new() } else { comment(&text()) }
    }

    fn affinity_mask(&self) -> &'static str {
        match self.settings.family {
            Family::V4 => "255.255.255.255",
            Family::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        }
    }
}

/// A comment match, with a blank at its end. No name has anything in it that would have to be escaped.
pub(crate) fn comment(text: &str) -> String {
    format!("-m comment --comment \"{text}\" ")
}

/// The address as a network of its own.
pub(crate) fn host(address: IpAddr) -> ipnet::IpNet {
    address.into()
}

/// The probability of one in `of`: the original's 10 decimals as they come back from the kernel, which has 31 bits for them.
fn probability(of: u32) -> String {
    const ALWAYS: f64 = 2_147_483_648.0;
    let written: f64 = format!("{:.10}", 1.0 / f64::from(of)).parse().unwrap_or_default();
    format!("{:.11}", (written * ALWAYS).round() / ALWAYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_printed_as_the_kernel_gives_them_back() {
        for (one_of, printed) in
            [(2, "0.50000000000"), (3, "0.33333333349"), (7, "0.14285714272"), (150, "0.00666666683")]
        {
            assert_eq!(probability(one_of), printed, "1 of {one_of}");
        }
    }
}
