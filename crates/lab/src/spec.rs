//! What a lab consists of.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// One address of each family, with the prefix length of its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// IPv4.
    pub v4: Ipv4Net,
    /// IPv6; not used where the lab has no IPv6.
    pub v6: Ipv6Net,
}

impl Addresses {
    fn new(v4: [u8; 4], v4_length: u8, v6: [u16; 8], v6_length: u8) -> Self {
        let (v4, v6) = (Ipv4Addr::from(v4), Ipv6Addr::from(v6));
        Self { v4: Ipv4Net::new_assert(v4, v4_length), v6: Ipv6Net::new_assert(v6, v6_length) }
    }

    /// The IPv4 network, and with `ipv6` the IPv6 one.
    pub(crate) fn nets(&self, ipv6: bool) -> impl Iterator<Item = IpNet> + use<> {
        [Some(IpNet::V4(self.v4)), ipv6.then_some(IpNet::V6(self.v6))].into_iter().flatten()
    }

    /// The address of the family of `like`.
    pub fn like(&self, like: IpAddr) -> IpAddr {
        match like {
            IpAddr::V4(_) => self.v4.addr().into(),
            IpAddr::V6(_) => self.v6.addr().into(),
        }
    }

    /// Address number `host` of these networks: 11 is `.11` and `::11`, read alike.
    fn host(&self, host: u8) -> Self {
        let four = u32::from(self.v4.network()) | u32::from(host);
        let host = u16::from(host);
        let digits = host / 100 * 256 + host / 10 % 10 * 16 + host % 10;
        let six = u128::from(self.v6.network()) | u128::from(digits);
        Self {
            v4: Ipv4Net::new(four.into(), self.v4.prefix_len()).unwrap_or(self.v4),
            v6: Ipv6Net::new(six.into(), self.v6.prefix_len()).unwrap_or(self.v6),
        }
    }
}

/// A pod: one interface, all its traffic goes through its node.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Its name in the lab.
    pub name: String,
    /// Its addresses.
    pub addresses: Addresses,
}

/// A node: a router between its pods and the network all nodes share.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name in the lab.
    pub name: String,
    /// Its address on `eth0`, in the network the nodes share.
    pub addresses: Addresses,
    /// Its address on `cbr0`, the bridge of its pods; the networks are its pod ranges.
    pub bridge: Addresses,
    /// Its pods.
    pub pods: Vec<Pod>,
}

/// Who is in a lab.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The client outside of the cluster, in the network the nodes share; it forwards what the nodes send to it.
    pub outside: Pod,
    /// The nodes; the first one is where the outside sends service addresses to.
    pub nodes: Vec<Node>,
    /// Service addresses: `outside` routes them to the first node.
    pub services: Vec<IpNet>,
    /// Whether there is IPv6. Starts as what this machine has.
    pub ipv6: bool,
}

impl Spec {
    /// Outside client `ext`; node `n1` with pods `p1` and `p2`; node `n2` with pods `r1` and `r2`.
    ///
    /// | name | IPv4 | IPv6 |
    /// |---|---|---|
    /// | ext | 192.0.2.100 | `2001:db8:a::100` |
    /// | n1 | 192.0.2.10, pods' side 198.51.100.1 | `2001:db8:a::10`, `2001:db8:b::1` |
    /// | n2 | 192.0.2.20, pods' side 198.51.100.129 | `2001:db8:a::20`, `2001:db8:b:1::1` |
    /// | p1, p2 | 198.51.100.11, .12 | `2001:db8:b::11`, `::12` |
    /// | r1, r2 | 198.51.100.141, .142 | `2001:db8:b:1::141`, `::142` |
    ///
    /// Pods are in 198.51.100.0/24 and `2001:db8:b::/63`; services may have 203.0.113.0/24, `2001:db8:c::/112` and
    /// `2001:db8:d::/64`.
    pub fn standard() -> Self {
        let shared =
            |four, six| Addresses::new([192, 0, 2, four], 24, [0x2001, 0xdb8, 0xa, 0, 0, 0, 0, six], 64);
        let near =
            |four, six| Addresses::new([198, 51, 100, four], 25, [0x2001, 0xdb8, 0xb, 0, 0, 0, 0, six], 64);
        let far =
            |four, six| Addresses::new([198, 51, 100, four], 25, [0x2001, 0xdb8, 0xb, 1, 0, 0, 0, six], 64);
        let pod = |name: &str, addresses| Pod { name: name.to_owned(), addresses };
        let services = Addresses::new([203, 0, 113, 0], 24, [0x2001, 0xdb8, 0xc, 0, 0, 0, 0, 0], 112);
        let balancers = Addresses::new([203, 0, 113, 0], 24, [0x2001, 0xdb8, 0xd, 0, 0, 0, 0, 0], 64);
        Self {
            outside: pod("ext", shared(100, 0x100)),
            nodes: vec![
                Node {
                    name: "n1".to_owned(),
                    addresses: shared(10, 0x10),
                    bridge: near(1, 1),
                    pods: vec![pod("p1", near(11, 0x11)), pod("p2", near(12, 0x12))],
                },
                Node {
                    name: "n2".to_owned(),
                    addresses: shared(20, 0x20),
                    bridge: far(129, 1),
                    pods: vec![pod("r1", far(141, 0x141)), pod("r2", far(142, 0x142))],
                },
            ],
            services: vec![services.v4.into(), services.v6.into(), balancers.v6.into()],
            ipv6: Path::new("/proc/net/if_inet6").exists(),
        }
    }

    /// Only these pods, with their nodes, and nodes named themselves. The outside client and the first node stay.
    #[must_use]
    pub fn only(mut self, names: &[&str]) -> Self {
        for node in &mut self.nodes {
            node.pods.retain(|pod| names.contains(&pod.name.as_str()));
        }
        let mut first = true;
        self.nodes.retain(|node| {
            std::mem::take(&mut first) || !node.pods.is_empty() || names.contains(&node.name.as_str())
        });
        self
    }

    /// One more pod on the first node, with address number `host` of its pod range: 13 is 198.51.100.13 and
    /// `2001:db8:b::13` in the standard lab.
    #[must_use]
    pub fn with_pod(mut self, name: &str, host: u8) -> Self {
        if let Some(node) = self.nodes.first_mut() {
            let addresses = node.bridge.host(host);
            node.pods.push(Pod { name: name.to_owned(), addresses });
        }
        self
    }
}
