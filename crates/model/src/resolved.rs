//! What one service means on this node for one address family, after endpoint choice and settled claims.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::{Endpoint, ObjectKey, Policy, Protocol};

/// One service, one family, as a data plane has to serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedService {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its ports; those without any frontend of the family are left out.
    pub ports: Vec<ResolvedPort>,
    /// Seconds of ClientIP affinity.
    pub affinity_seconds: Option<u32>,
    /// Policy for the cluster IP.
    pub internal_policy: Policy,
    /// Policy for all other frontends.
    pub external_policy: Policy,
    /// Who may use the load balancer's addresses: `loadBalancerSourceRanges` of the family, and those addresses themselves
    /// where the node is in a range; empty means everybody.
    pub source_ranges: Vec<IpNet>,
    /// The port of the node at which its health is checked: that of a load balancer with external policy Local.
    pub health_check_node_port: Option<u16>,
}

/// One port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedPort {
    /// Name of the port, may be empty.
    pub name: Box<str>,
    /// Protocol of the frontends and the endpoints.
    pub protocol: Protocol,
    /// Port of all frontends but node ports.
    pub port: u16,
    /// Where clients connect to. Only those this service has the claim to.
    pub frontends: Vec<Frontend>,
    /// The endpoints for policy Cluster, sorted, empty when no frontend needs them.
    pub cluster: Vec<Backend>,
    /// The endpoints for policy Local, sorted, empty when no frontend needs them.
    pub local: Vec<Backend>,
    /// Some endpoint could be used, here or elsewhere: tells "none at all" from "none on this node".
    pub any_endpoint: bool,
    /// Endpoints that are remembered ([`crate::Tracker::remember`]) and in none of its slices, sorted.
    pub departed: Vec<Endpoint>,
}

/// Where clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Frontend {
    /// The cluster IP.
    ClusterIp(IpAddr),
    /// One of `externalIPs`.
    ExternalIp(IpAddr),
    /// An ingress address of the load balancer.
    LoadBalancerIp(IpAddr),
    /// A port of the node's addresses.
    NodePort(u16),
}

/// An endpoint, and whether it runs on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    /// Address and port.
    pub endpoint: Endpoint,
    /// Runs on this node.
    pub local: bool,
}

impl ResolvedService {
    /// The printable name of one of its ports: `namespace/name:port`, or `namespace/name` when the port has no name.
    pub fn port_name(&self, port: &ResolvedPort) -> String {
        if port.name.is_empty() { self.key.to_string() } else { format!("{}:{}", self.key, port.name) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            IpAddr::V4(address) => write!(f, "{address}:{}", self.port),
            IpAddr::V6(address) => write!(f, "[{address}]:{}", self.port),
        }
    }
}
