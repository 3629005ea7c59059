//! A service as the tracker keeps it: no larger than needed, and such that two equal ones look the same to a data plane.

use std::net::IpAddr;
use std::num::NonZeroU16;

use ipnet::IpNet;

use crate::claims::{Claim, Place, Site};
use crate::tracker::TrackerOptions;
use crate::{Family, Frontend, ObjectKey, Policy, Service, ServicePort, ServiceType};

/// What a data plane can see of a [`Service`] on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    created: i64,
    pub(crate) ports: Box<[ServicePort]>,
    /// Every frontend that is no node port: of the served families in which the service has a cluster IP, each
    /// address once.
    addresses: Box<[Frontend]>,
    source_ranges: Box<[IpNet]>,
    pub(crate) affinity_seconds: Option<u32>,
    pub(crate) internal_policy: Policy,
    /// Local only where somebody outside can reach the service.
    pub(crate) external_policy: Policy,
    /// Set for a load balancer with external policy Local only.
    pub(crate) health_check_node_port: Option<NonZeroU16>,
}

impl Spec {
    /// `None` when nothing of the service is served on this node: it has no port, or no cluster IP of a family that
    /// is served.
    pub(crate) fn new(service: Service, options: &TrackerOptions) -> Option<Self> {
        let externally_reachable = service.kind != ServiceType::ClusterIp || !service.external_ips.is_empty();
        let external_policy = if externally_reachable { service.external_policy } else { Policy::Cluster };
        let has_health_port = service.kind == ServiceType::LoadBalancer && external_policy == Policy::Local;
        let addresses = addresses(&service, options);
        (!addresses.is_empty() && !service.ports.is_empty()).then(|| Self {
            created: service.created,
            ports: service.ports.into(),
            addresses,
            source_ranges: networks(service.source_ranges),
            affinity_seconds: service.affinity_seconds,
            internal_policy: service.internal_policy,
            external_policy,
            health_check_node_port: service.health_check_node_port.filter(|_| has_health_port),
        })
    }

    /// Whether the service exists in this family.
    pub(crate) fn serves(&self, family: Family) -> bool {
        self.addresses.iter().any(
            |frontend| matches!(frontend, Frontend::ClusterIp(address) if Family::of(*address) == family),
        )
    }

    /// The source ranges of the family. A range that holds every address is no restriction at all. Where the node itself
    /// may use the load balancer, so may a packet that the node sends from the load balancer's address to that address,
    /// as it does when the address is routed to itself.
    pub(crate) fn source_ranges(&self, family: Family, node: &[IpAddr]) -> Vec<IpNet> {
        let mut ranges: Vec<_> =
            self.source_ranges.iter().filter(|net| Family::of_net(net) == family).copied().collect();
        if ranges.iter().any(|net| net.prefix_len() == 0) {
            return Vec::new();
        }
        if node.iter().any(|address| ranges.iter().any(|net| net.contains(address))) {
            let own = self.addresses.iter().filter_map(|frontend| match frontend {
                Frontend::LoadBalancerIp(address) if Family::of(*address) == family => {
                    Some(IpNet::from(*address))
                }
                _ => None,
            });
            ranges.extend(own);
        }
        ranges
    }

    /// Whether the node's addresses matter to it.
    pub(crate) fn has_source_ranges(&self) -> bool {
        !self.source_ranges.is_empty()
    }

    /// The ports with their place in the list.
    pub(crate) fn numbered_ports(&self) -> impl Iterator<Item = (u16, &ServicePort)> {
        (0..=u16::MAX).zip(&self.ports)
    }

    /// Every frontend that a port asks for in a family, and the site that it occupies.
    pub(crate) fn frontends(
        &self,
        port: &ServicePort,
        family: Family,
    ) -> impl Iterator<Item = (Frontend, Site)> {
        let protocol = port.protocol;
        let by_address = self.addresses.iter().filter_map(move |frontend| {
            let address = frontend.address().filter(|address| Family::of(*address) == family)?;
            Some((*frontend, Site { place: Place::Address(address), protocol, port: port.port }))
        });
        let node_port = port.node_port.filter(|_| self.serves(family)).map(|number| {
            let place = Place::Node(family);
            (Frontend::NodePort(number.get()), Site { place, protocol, port: number.get() })
        });
        by_address.chain(node_port)
    }

    /// The claim of one of its ports, the `index`th, to a site.
    pub(crate) fn claim(&self, key: &ObjectKey, index: u16, frontend: Frontend, site: Site) -> Claim {
        let external = frontend.is_external();
        Claim { site, external, created: self.created, service: key.clone(), index }
    }

    /// All its claims, sorted.
    pub(crate) fn claims(&self, key: &ObjectKey) -> Vec<Claim> {
        let mut claims = Vec::new();
        for (index, port) in self.numbered_ports() {
            for family in [Family::V4, Family::V6] {
                let sites = self.frontends(port, family);
                claims.extend(sites.map(|(frontend, site)| self.claim(key, index, frontend, site)));
            }
        }
        claims.sort_unstable();
        claims
    }
}

/// One role for each address: a cluster IP is nothing else, and a load balancer's address stays under its source
/// ranges when it is an external IP too.
fn addresses(service: &Service, options: &TrackerOptions) -> Box<[Frontend]> {
    let families: Vec<Family> = options
        .families
        .iter()
        .copied()
        .filter(|family| service.cluster_ips.iter().any(|address| Family::of(*address) == *family))
        .collect();
    let external_ips = if options.allow_external_ips { &service.external_ips[..] } else { &[] };
    let mut roles: Vec<Frontend> = service
        .cluster_ips
        .iter()
        .copied()
        .map(Frontend::ClusterIp)
        .chain(service.load_balancer_ips.iter().copied().map(Frontend::LoadBalancerIp))
        .chain(external_ips.iter().copied().map(Frontend::ExternalIp))
        .filter(|frontend| frontend.address().is_some_and(|address| families.contains(&Family::of(address))))
        .collect();
    roles.sort_by_key(|frontend| (frontend.address(), role(frontend)));
    roles.dedup_by_key(|frontend| frontend.address());
    roles.sort_unstable_by_key(|frontend| (role(frontend), frontend.address()));
    roles.into()
}

fn role(frontend: &Frontend) -> u8 {
    match frontend {
        Frontend::ClusterIp(_) => 0,
        Frontend::LoadBalancerIp(_) => 1,
        Frontend::ExternalIp(_) => 2,
        Frontend::NodePort(_) => 3,
    }
}

/// Sorted, each once, without host bits.
pub(crate) fn networks(networks: impl IntoIterator<Item = IpNet>) -> Box<[IpNet]> {
    let mut networks: Vec<IpNet> = networks.into_iter().map(|net| net.trunc()).collect();
    networks.sort_unstable();
    networks.dedup();
    networks.into()
}

impl Frontend {
    /// Its address; `None` for a node port.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::ClusterIp(address) | Self::ExternalIp(address) | Self::LoadBalancerIp(address) => {
                Some(*address)
            }
            Self::NodePort(_) => None,
        }
    }

    /// Not the cluster IP: the external policy rules it.
    pub fn is_external(&self) -> bool {
        !matches!(self, Self::ClusterIp(_))
    }
}
