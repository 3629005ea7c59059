//! Building the namespaces and the wires between them.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netlink::namespace::{self, Namespace};
use netlink::route::{self, Handle};

use crate::spec::{Addresses, Node, Spec};

/// The bridge all nodes' `eth0` are plugged into; it is in the outside client's namespace.
const LAN: &str = "lan";
/// The bridge of a node's pods.
const POD_BRIDGE: &str = "cbr0";
/// The interface of a node or pod that leads away from it.
const UPLINK: &str = "eth0";

/// Why a lab cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Namespaces cannot be made or entered.
    #[error(transparent)]
    Namespace(#[from] namespace::Error),
    /// The netlink socket cannot be opened.
    #[error("opening a netlink socket in namespace {member}: {source}")]
    Socket {
        /// Whose namespace.
        member: String,
        /// What the system said.
        source: io::Error,
    },
    /// A link, address or route was refused.
    #[error("namespace {member}: {source}")]
    Route {
        /// Whose namespace.
        member: String,
        /// What was refused.
        source: route::Error,
    },
    /// A sysctl cannot be set.
    #[error(
        "namespace {member}: setting {sysctl} to {value}: {source}; /proc/sys must be writable (containers often \
         mount it read-only)"
    )]
    Sysctl {
        /// Whose namespace.
        member: String,
        /// Path below `/proc/sys`.
        sysctl: String,
        /// The value it should have.
        value: String,
        /// What the system said.
        source: io::Error,
    },
    /// A server's socket cannot be had.
    #[error("server {member}: listening on port {port}: {source}")]
    Listen {
        /// The server's name.
        member: String,
        /// TCP and UDP port.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
    /// The lab has no such member.
    #[error("the lab has no {name}; it has {members}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// All names there are.
        members: String,
    },
}

/// One of the lab: outside client, node or pod.
#[derive(Debug)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Where it lives.
    pub namespace: Namespace,
    /// Its addresses.
    pub addresses: Addresses,
    /// A pod's node.
    pub node: Option<String>,
}

/// Namespaces connected as their [`Spec`] says. Dropping it takes all of it away.
#[derive(Debug)]
pub struct Lab {
    spec: Spec,
    members: Vec<Member>,
}

impl Lab {
    /// Builds a lab. Needs root, or a user namespace ([`namespace::become_root_in_user_namespace`]).
    pub fn new(spec: Spec) -> Result<Self, Error> {
        let mut members = vec![member(&spec.outside.name, spec.outside.addresses, None)?];
        for node in &spec.nodes {
            members.push(member(&node.name, node.addresses, None)?);
            for pod in &node.pods {
                members.push(member(&pod.name, pod.addresses, Some(&node.name))?);
            }
        }
        let lab = Self { spec, members };
        lab.build_outside()?;
        for node in &lab.spec.nodes {
            lab.build_node(node)?;
        }
        lab.route_from_outside()?;
        Ok(lab)
    }

    /// What it was built from.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// All members: the outside client first, each node before its pods.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member called `name`.
    pub fn member(&self, name: &str) -> Result<&Member, Error> {
        self.members.iter().find(|member| member.name == name).ok_or_else(|| {
            let members: Vec<_> = self.members.iter().map(|member| member.name.as_str()).collect();
            Error::Unknown { name: name.to_owned(), members: members.join(", ") }
        })
    }

    /// The namespace of the member called `name`.
    pub fn ns(&self, name: &str) -> Result<&Namespace, Error> {
        Ok(&self.member(name)?.namespace)
    }

    /// The addresses of `node` a member sees as the source when the node sends to it or masquerades.
    pub fn facing(&self, node: &str, member: &str) -> Result<Addresses, Error> {
        let own = self.spec.nodes.iter().find(|candidate| candidate.name == node);
        let is_its_pod = self.member(member)?.node.as_deref() == Some(node);
        Ok(match own {
            Some(own) if is_its_pod => own.bridge,
            _ => self.member(node)?.addresses,
        })
    }

    /// Gives a member one more address on its `eth0`.
    pub fn add_address(&self, name: &str, net: IpNet) -> Result<(), Error> {
        self.inside(name, |handle| handle.add_address(UPLINK, net))
    }

    /// Takes an address from a member's `eth0`.
    pub fn delete_address(&self, name: &str, net: IpNet) -> Result<(), Error> {
        self.inside(name, |handle| handle.delete_address(UPLINK, net))
    }

    fn build_outside(&self) -> Result<(), Error> {
        let outside = &self.spec.outside;
        self.forward(&outside.name)?;
        self.inside(&outside.name, |handle| {
            handle.set_up("lo")?;
            handle.add_bridge(LAN)?;
            handle.set_up(LAN)?;
            outside.addresses.nets(self.spec.ipv6).try_for_each(|net| handle.add_address(LAN, net))
        })
    }

    fn build_node(&self, node: &Node) -> Result<(), Error> {
        let ipv6 = self.spec.ipv6;
        let outside = &self.spec.outside;
        let port = format!("v{}", node.name);
        self.plug(&outside.name, LAN, &port, &node.name)?;
        self.forward(&node.name)?;
        self.inside(&node.name, |handle| {
            handle.set_up("lo")?;
            handle.set_up(UPLINK)?;
            handle.add_bridge(POD_BRIDGE)?;
            handle.set_up(POD_BRIDGE)?;
            node.addresses.nets(ipv6).try_for_each(|net| handle.add_address(UPLINK, net))?;
            node.bridge.nets(ipv6).try_for_each(|net| handle.add_address(POD_BRIDGE, net))?;
            defaults(ipv6).try_for_each(|all| handle.add_route(all, outside.addresses.like(all.addr())))?;
            for other in self.spec.nodes.iter().filter(|other| other.name != node.name) {
                for range in other.bridge.nets(ipv6) {
                    handle.add_route(range.trunc(), other.addresses.like(range.addr()))?;
                }
            }
            Ok(())
        })?;
        for pod in &node.pods {
            self.plug(&node.name, POD_BRIDGE, &format!("v{}", pod.name), &pod.name)?;
            self.inside(&pod.name, |handle| {
                handle.set_up("lo")?;
                handle.set_up(UPLINK)?;
                for net in pod.addresses.nets(ipv6) {
                    // A pod knows no neighbours but its node. Otherwise the answer of a pod on the same bridge would
                    // pass by the node, and nobody would translate it back.
                    handle.add_address(UPLINK, host_net(net.addr()))?;
                    let gateway = node.bridge.like(net.addr());
                    handle.add_link_route(host_net(gateway), UPLINK)?;
                }
                defaults(ipv6).try_for_each(|all| handle.add_route(all, node.bridge.like(all.addr())))
            })?;
        }
        Ok(())
    }

    fn route_from_outside(&self) -> Result<(), Error> {
        let ipv6 = self.spec.ipv6;
        self.inside(&self.spec.outside.name, |handle| {
            for node in &self.spec.nodes {
                for range in node.bridge.nets(ipv6) {
                    handle.add_route(range.trunc(), node.addresses.like(range.addr()))?;
                }
            }
            let Some(first) = self.spec.nodes.first() else { return Ok(()) };
            let services = self.spec.services.iter().filter(|net| ipv6 || net.addr().is_ipv4());
            services.copied().try_for_each(|net| handle.add_route(net, first.addresses.like(net.addr())))
        })
    }

    /// A wire from a new port of the bridge `bridge` of `owner` to the `eth0` of `end`.
    fn plug(&self, owner: &str, bridge: &str, port: &str, end: &str) -> Result<(), Error> {
        let end = self.ns(end)?;
        self.inside(owner, |handle| {
            handle.add_veth(port, UPLINK, end.as_fd())?;
            handle.attach(port, bridge, true)?;
            handle.set_up(port)
        })
    }

    fn forward(&self, name: &str) -> Result<(), Error> {
        self.sysctl(name, "net/ipv4/ip_forward", "1")?;
        if self.spec.ipv6 {
            self.sysctl(name, "net/ipv6/conf/all/forwarding", "1")?;
        }
        Ok(())
    }

    /// Sets a sysctl in the namespace of a member; `path` is below `/proc/sys`.
    pub fn sysctl(&self, name: &str, path: &str, value: &str) -> Result<(), Error> {
        set_sysctl(self.member(name)?, path, value)
    }

    fn inside(
        &self,
        name: &str,
        work: impl FnOnce(&mut Handle) -> Result<(), route::Error> + Send,
    ) -> Result<(), Error> {
        self.ns(name)?.run(|| {
            let member = || name.to_owned();
            let mut handle = Handle::open().map_err(|source| Error::Socket { member: member(), source })?;
            work(&mut handle).map_err(|source| Error::Route { member: member(), source })
        })?
    }
}

fn member(name: &str, addresses: Addresses, node: Option<&str>) -> Result<Member, Error> {
    let name = name.to_owned();
    let member = Member { name, namespace: Namespace::new()?, addresses, node: node.map(str::to_owned) };
    // What new namespaces start with depends on the machine; these are the kernel's defaults for a router of pods.
    for (path, value) in [
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/default/rp_filter", "0"),
        // pods of one bridge talk through their node: it must not tell them a shorter way
        ("net/ipv4/conf/all/send_redirects", "0"),
        ("net/ipv4/conf/default/send_redirects", "0"),
        ("net/ipv4/conf/all/accept_redirects", "0"),
        ("net/ipv4/conf/default/accept_redirects", "0"),
        // Clients that are refused many times in a row shall be told each time: no kind of ICMP message is limited.
        // (Without a limit per client there would still be one for the whole machine.)
        ("net/ipv4/icmp_ratemask", "0"),
    ] {
        set_sysctl(&member, path, value)?;
    }
    for (path, value) in [
        ("net/ipv6/conf/all/accept_redirects", "0"),
        ("net/ipv6/conf/default/accept_redirects", "0"),
        ("net/ipv6/conf/default/accept_dad", "0"),
        ("net/ipv6/icmp/ratemask", "2"), // "packet too big" only: the list cannot be empty
    ] {
        match set_sysctl(&member, path, value) {
            Err(Error::Sysctl { source, .. }) if source.kind() == io::ErrorKind::NotFound => {} // no IPv6 here
            other => other?,
        }
    }
    Ok(member)
}

fn set_sysctl(member: &Member, path: &str, value: &str) -> Result<(), Error> {
    let written = member.namespace.run(|| fs::write(format!("/proc/sys/{path}"), value))?;
    written.map_err(|source| Error::Sysctl {
        member: member.name.clone(),
        sysctl: path.to_owned(),
        value: value.to_owned(),
        source,
    })
}

fn defaults(ipv6: bool) -> impl Iterator<Item = IpNet> {
    Addresses {
        v4: Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0),
        v6: Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0),
    }
    .nets(ipv6)
}

fn host_net(address: IpAddr) -> IpNet {
    IpNet::from(address)
}
