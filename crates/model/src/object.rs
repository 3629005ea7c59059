//! The objects the proxy acts on, cut down to what a data plane can see, and the events that carry them.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::SystemTime;

use ipnet::IpNet;

/// Namespace and name of an object, `namespace/name`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// The key of `name` in `namespace`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}").into())
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&*self.0, |(_, name)| name)
    }

    /// `namespace/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An address family. Each has its own kernel state and its own sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The family of a network.
    pub fn of_net(net: &IpNet) -> Self {
        Self::of(net.addr())
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A transport protocol of a service port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP, the default of the API.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

/// `internalTrafficPolicy` and `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Any endpoint.
    #[default]
    Cluster,
    /// Endpoints on this node only.
    Local,
}

/// `spec.type`, without `ExternalName`: such a service never becomes a [`Service`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceType {
    /// Reachable through its cluster IP.
    #[default]
    ClusterIp,
    /// And through a port of each node.
    NodePort,
    /// And through addresses of a load balancer.
    LoadBalancer,
}

/// A Service that a proxy serves: it has a cluster IP and is no `ExternalName`.
///
/// Addresses are parsed; what could not be parsed has been left out, with a warning, by whoever decoded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.creationTimestamp`, seconds since 1970; of two services that claim one address the older has it.
    pub created: i64,
    /// `spec.type`.
    pub kind: ServiceType,
    /// `spec.clusterIPs` (or `spec.clusterIP`), at most one a family.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` with `ipMode` unset or `VIP` (KEP-1860).
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`; empty means everybody.
    pub source_ranges: Vec<IpNet>,
    /// Seconds of ClientIP session affinity, 1 to 86,400; `None` without affinity.
    pub affinity_seconds: Option<u32>,
    /// `spec.internalTrafficPolicy`.
    pub internal_policy: Policy,
    /// `spec.externalTrafficPolicy`.
    pub external_policy: Policy,
    /// `spec.healthCheckNodePort`.
    pub health_check_node_port: Option<NonZeroU16>,
}

/// One entry of `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Name, empty when the service has one unnamed port.
    pub name: Box<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// The port of the service's addresses, not 0.
    pub port: u16,
    /// The port of the nodes' addresses.
    pub node_port: Option<NonZeroU16>,
}

/// An EndpointSlice with addresses (not FQDN) that belongs to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Namespace and name of the slice.
    pub key: ObjectKey,
    /// The owner: label `kubernetes.io/service-name`, same namespace.
    pub service: ObjectKey,
    /// `addressType`.
    pub family: Family,
    /// `ports`, without those that have no number.
    pub ports: Vec<SlicePort>,
    /// `endpoints`, without those that have no valid address of the family.
    pub endpoints: Vec<SliceEndpoint>,
    /// Annotation `endpoints.kubernetes.io/last-change-trigger-time`. Not part of what a data plane sees.
    pub triggered: Option<SystemTime>,
}

/// One entry of a slice's `ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Name, matches [`ServicePort::name`].
    pub name: Box<str>,
    /// Protocol, matches [`ServicePort::protocol`].
    pub protocol: Protocol,
    /// The endpoints' port, not 0.
    pub port: u16,
}

/// One entry of a slice's `endpoints`. Small: a node holds hundreds of thousands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// `addresses[0]`.
    pub address: IpAddr,
    /// `nodeName` is the name of this node.
    pub local: bool,
    /// `conditions.ready`, true when unset.
    pub ready: bool,
    /// `conditions.serving`, true when unset.
    pub serving: bool,
    /// `conditions.terminating`, false when unset.
    pub terminating: bool,
    /// `hints`; `None` when there are none.
    pub hints: Option<Box<Hints>>,
}

/// Topology hints of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// `hints.forZones[].name`.
    pub zones: Vec<Box<str>>,
    /// `hints.forNodes[].name`.
    pub nodes: Vec<Box<str>>,
}

/// The own Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `status.addresses` of type `InternalIP`, then those of type `ExternalIP`, in the order given.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs` (or `spec.podCIDR`).
    pub pod_cidrs: Vec<IpNet>,
    /// Label `topology.kubernetes.io/zone`.
    pub zone: Option<Box<str>>,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Has a taint `ToBeDeletedByClusterAutoscaler`.
    pub to_be_deleted_by_autoscaler: bool,
}

/// An endpoint of one service port, merged from all slices: what connections are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
}

/// The kinds of objects that events are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Services.
    Service,
    /// EndpointSlices.
    Slice,
    /// The own Node.
    Node,
    /// ServiceCIDRs (`networking.k8s.io/v1`).
    ServiceCidr,
}

/// What a source of objects tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A service is new or has changed. One that stopped being served (became headless, say) is told as deleted.
    Service(Service),
    /// A service is gone.
    ServiceDeleted(ObjectKey),
    /// A slice is new or has changed. One that lost its owner is told as deleted.
    Slice(Slice),
    /// A slice is gone.
    SliceDeleted(ObjectKey),
    /// The own Node is new or has changed.
    Node(Node),
    /// The own Node is gone.
    NodeDeleted,
    /// A ServiceCIDR, by name, and its networks.
    ServiceCidr(Box<str>, Vec<IpNet>),
    /// A ServiceCIDR is gone.
    ServiceCidrDeleted(Box<str>),
    /// From here to the matching [`Event::End`] every object of the kind is told.
    Begin(Kind),
    /// All objects of the kind have been told since [`Event::Begin`]; those that were not are gone.
    End(Kind),
}
