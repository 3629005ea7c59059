//! Links, addresses and routes over rtnetlink (`include/uapi/linux/rtnetlink.h`, `if_link.h`, `if_addr.h`).
//!
//! A [`Handle`] works in the network namespace of the thread that opened it. It lists links and addresses, and makes
//! what a lab of namespaces needs: veth pairs, bridges, addresses and routes. [`AddressMonitor`] tells when an address
//! comes or goes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use ipnet::IpNet;

use crate::message::{self, Message, Writer};
use crate::socket::{self, Socket};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;

const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV6_IFADDR: u32 = 9;

const IFLA_IFNAME: u16 = 3;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_BRPORT_MODE: u16 = 4; // "hairpin mode"
const VETH_INFO_PEER: u16 = 1;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 2;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RT_TABLE_LOCAL: u8 = 255;
const RTPROT_STATIC: u8 = 4;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_SITE: u8 = 200;
const RT_SCOPE_LINK: u8 = 253;
const RT_SCOPE_HOST: u8 = 254;

const IFF_UP: u32 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// The first pause before a listing that was disturbed by a change is asked for again; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

/// A request the kernel refused, with what was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {source}")]
pub struct Error {
    doing: String,
    source: socket::Error,
}

impl Error {
    /// The error number, where there is one.
    pub fn errno(&self) -> Option<i32> {
        self.source.errno()
    }
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Interface index, unique in its namespace.
    pub index: u32,
    /// Its name, such as `eth0`.
    pub name: String,
    /// Set up by the administrator (`IFF_UP`); says nothing of the carrier.
    pub up: bool,
    /// Index of the bridge it is a port of.
    pub bridge: Option<u32>,
}

/// How far an address is valid (`enum rt_scope_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everywhere.
    Global,
    /// IPv6 site-local, deprecated by RFC 3879.
    Site,
    /// On its link only, such as `fe80::/10`.
    Link,
    /// Inside this host only, such as loopback.
    Host,
    /// A value of the administrator's own.
    Other(u8),
}

impl From<u8> for Scope {
    fn from(value: u8) -> Self {
        match value {
            RT_SCOPE_UNIVERSE => Self::Global,
            RT_SCOPE_SITE => Self::Site,
            RT_SCOPE_LINK => Self::Link,
            RT_SCOPE_HOST => Self::Host,
            other => Self::Other(other),
        }
    }
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address with the prefix length of its network.
    pub net: IpNet,
    /// Index of its interface.
    pub index: u32,
    /// Name of its interface.
    pub interface: String,
    /// How far it is valid.
    pub scope: Scope,
}

/// Makes and lists links, addresses and routes of one network namespace.
#[derive(Debug)]
pub struct Handle {
    socket: Socket,
}

impl Handle {
    /// Works in the calling thread's network namespace.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(socket::ROUTE)? })
    }

    /// All links.
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        self.list("listing links", RTM_GETLINK, &link_header(0, 0, 0), read_link)
    }

    /// The link called `name`.
    pub fn link(&mut self, name: &str) -> Result<Link, Error> {
        let mut found = None;
        self.socket
            .dump(
                RTM_GETLINK,
                0,
                &link_header(0, 0, 0),
                |w| w.string(IFLA_IFNAME, name),
                |m| found = read_link(m.payload),
            )
            .and_then(|()| found.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData).into()))
            .map_err(|source| Error { doing: format!("looking up link {name}"), source })
    }

    /// All addresses of all links, both families.
    pub fn addresses(&mut self) -> Result<Vec<Address>, Error> {
        let links = self.links()?;
        let header = address_header(0, 0, 0, 0);
        let mut addresses = self.list("listing addresses", RTM_GETADDR, &header, read_address)?;
        for address in &mut addresses {
            if let Some(link) = links.iter().find(|link| link.index == address.index) {
                address.interface.clone_from(&link.name);
            }
        }
        Ok(addresses)
    }

    /// Makes a pair of links that carry what goes into one out of the other: `name` here, `peer` in the network
    /// namespace `namespace`. Both are down.
    pub fn add_veth(&mut self, name: &str, peer: &str, namespace: BorrowedFd<'_>) -> Result<(), Error> {
        let mut inside = Writer::default();
        inside.string(IFLA_IFNAME, peer);
        inside.attribute(IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes());
        let peer_message = [&link_header(0, 0, 0)[..], inside.bytes()].concat();
        self.add_link(name, "veth", |w| {
            w.nested(IFLA_INFO_DATA, |w| w.attribute(VETH_INFO_PEER, &peer_message));
        })
    }

    /// Makes a bridge. It is down.
    pub fn add_bridge(&mut self, name: &str) -> Result<(), Error> {
        self.add_link(name, "bridge", |_| ())
    }

    fn add_link(&mut self, name: &str, kind: &str, data: impl FnOnce(&mut Writer)) -> Result<(), Error> {
        let flags = message::CREATE | message::EXCL;
        self.ask(format!("adding {kind} link {name}"), RTM_NEWLINK, flags, &link_header(0, 0, 0), |w| {
            w.string(IFLA_IFNAME, name);
            w.nested(IFLA_LINKINFO, |w| {
                w.string(IFLA_INFO_KIND, kind);
                data(w);
            });
        })
    }

    /// Makes `name` a port of the bridge `bridge`. With `hairpin` a frame may leave through the port it came in by,
    /// which a pod needs to reach itself through a service.
    pub fn attach(&mut self, name: &str, bridge: &str, hairpin: bool) -> Result<(), Error> {
        let port = self.link(name)?.index;
        let master = self.link(bridge)?.index;
        let doing = format!("attaching link {name} to bridge {bridge}");
        self.ask(doing.clone(), RTM_NEWLINK, 0, &link_header(port, 0, 0), |w| w.u32(IFLA_MASTER, master))?;
        self.ask(doing, RTM_NEWLINK, 0, &link_header(port, 0, 0), |w| {
            w.nested(IFLA_LINKINFO, |w| {
                w.string(IFLA_INFO_SLAVE_KIND, "bridge");
                w.nested(IFLA_INFO_SLAVE_DATA, |w| w.attribute(IFLA_BRPORT_MODE, &[u8::from(hairpin)]));
            });
        })
    }

    /// Sets a link up.
    pub fn set_up(&mut self, name: &str) -> Result<(), Error> {
        let index = self.link(name)?.index;
        let header = link_header(index, IFF_UP, IFF_UP);
        self.ask(format!("setting link {name} up"), RTM_NEWLINK, 0, &header, |_| ())
    }

    /// Deletes a link; with one end of a veth pair the other goes too.
    pub fn delete_link(&mut self, name: &str) -> Result<(), Error> {
        let index = self.link(name)?.index;
        self.ask(format!("deleting link {name}"), RTM_DELLINK, 0, &link_header(index, 0, 0), |_| ())
    }

    /// Gives `link` an address, and a route to the network the prefix length tells. IPv6 addresses are usable at once,
    /// without duplicate address detection.
    pub fn add_address(&mut self, link: &str, net: IpNet) -> Result<(), Error> {
        let flags = message::CREATE | message::EXCL;
        self.address(format!("adding address {net} to link {link}"), RTM_NEWADDR, flags, link, net)
    }

    /// Takes an address from `link`.
    pub fn delete_address(&mut self, link: &str, net: IpNet) -> Result<(), Error> {
        self.address(format!("deleting address {net} from link {link}"), RTM_DELADDR, 0, link, net)
    }

    fn address(&mut self, doing: String, kind: u16, flags: u16, link: &str, net: IpNet) -> Result<(), Error> {
        let index = self.link(link)?.index;
        let (family, bytes) = family_and_bytes(net.addr());
        let no_detection = if family == AF_INET6 { IFA_F_NODAD } else { 0 };
        let header = address_header(family, net.prefix_len(), no_detection, index);
        self.ask(doing, kind, flags, &header, |w| {
            w.attribute(IFA_LOCAL, &bytes);
            w.attribute(IFA_ADDRESS, &bytes);
        })
    }

    /// Sends what goes to `to` through the router `gateway`; `0.0.0.0/0` and `::/0` are the default routes.
    pub fn add_route(&mut self, to: IpNet, gateway: IpAddr) -> Result<(), Error> {
        let header = route_header(to, RT_TABLE_MAIN, RT_SCOPE_UNIVERSE, RTN_UNICAST);
        self.route(format!("adding route to {to} via {gateway}"), &header, to, |w| {
            w.attribute(RTA_GATEWAY, &family_and_bytes(gateway).1);
        })
    }

    /// Looks for `to` on `link` itself, without a router.
    pub fn add_link_route(&mut self, to: IpNet, link: &str) -> Result<(), Error> {
        let index = self.link(link)?.index;
        let header = route_header(to, RT_TABLE_MAIN, RT_SCOPE_LINK, RTN_UNICAST);
        self.route(format!("adding route to {to} on link {link}"), &header, to, |w| w.u32(RTA_OIF, index))
    }

    /// Makes every address of `to` one of this host's own, as if `link` had them all.
    pub fn add_local_route(&mut self, to: IpNet, link: &str) -> Result<(), Error> {
        let index = self.link(link)?.index;
        let header = route_header(to, RT_TABLE_LOCAL, RT_SCOPE_HOST, RTN_LOCAL);
        self.route(format!("adding local route to {to} on link {link}"), &header, to, |w| {
            w.u32(RTA_OIF, index);
        })
    }

    fn route(
        &mut self,
        doing: String,
        header: &[u8],
        to: IpNet,
        hop: impl FnOnce(&mut Writer),
    ) -> Result<(), Error> {
        self.ask(doing, RTM_NEWROUTE, message::CREATE | message::EXCL, header, |w| {
            if to.prefix_len() > 0 {
                w.attribute(RTA_DST, &family_and_bytes(to.network()).1);
            }
            hop(w);
        })
    }

    fn ask(
        &mut self,
        doing: String,
        kind: u16,
        flags: u16,
        header: &[u8],
        body: impl FnOnce(&mut Writer),
    ) -> Result<(), Error> {
        self.socket.request(kind, flags, header, body).map_err(|source| Error { doing, source })
    }

    /// Lists until no change disturbs it: changes as fast as that end before long.
    fn list<T>(
        &mut self,
        doing: &str,
        kind: u16,
        header: &[u8],
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let mut pause = FIRST_PAUSE;
        loop {
            let mut found = Vec::new();
            let each = |message: Message<'_>| found.extend(read(message.payload));
            match self.socket.dump(kind, message::DUMP, header, |_| (), each) {
                Ok(()) => return Ok(found),
                Err(socket::Error::Interrupted) => {
                    thread::sleep(pause);
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
                Err(source) => return Err(Error { doing: doing.to_owned(), source }),
            }
        }
    }
}

/// An address came, went, or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressEvent {
    /// The address is there now (also told when only its lifetime or flags changed).
    Added(IpAddr),
    /// The address is gone from one interface.
    Removed(IpAddr),
    /// The kernel dropped events because they were not read in time: list the addresses again.
    Missed,
}

/// Tells of addresses that come and go in one network namespace.
#[derive(Debug)]
pub struct AddressMonitor {
    socket: Socket,
}

impl AddressMonitor {
    /// Watches the calling thread's network namespace. Every change after this call is told.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::open(socket::ROUTE)?;
        socket.join(RTNLGRP_IPV4_IFADDR)?;
        socket.join(RTNLGRP_IPV6_IFADDR)?;
        Ok(Self { socket })
    }

    /// Receiving gives up after this time with [`io::ErrorKind::WouldBlock`]; `None` waits for ever.
    pub fn set_receive_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.set_receive_timeout(timeout)
    }

    /// Waits for the next changes.
    pub fn receive(&mut self) -> io::Result<Vec<AddressEvent>> {
        let missed = rustix::io::Errno::NOBUFS.raw_os_error();
        match self.socket.receive() {
            Ok(datagram) => Ok(message::messages(datagram).filter_map(|m| read_event(&m)).collect()),
            Err(error) if error.raw_os_error() == Some(missed) => Ok(vec![AddressEvent::Missed]),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for AddressMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn read_event(message: &Message<'_>) -> Option<AddressEvent> {
    let address = read_address(message.payload)?.net.addr();
    match message.kind {
        RTM_NEWADDR => Some(AddressEvent::Added(address)),
        RTM_DELADDR => Some(AddressEvent::Removed(address)),
        _ => None,
    }
}

/// `struct ifinfomsg`.
fn link_header(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

/// `struct ifaddrmsg`.
fn address_header(family: u8, prefix_length: u8, flags: u8, index: u32) -> [u8; 8] {
    let [a, b, c, d] = index.to_ne_bytes();
    [family, prefix_length, flags, RT_SCOPE_UNIVERSE, a, b, c, d]
}

/// `struct rtmsg`.
fn route_header(to: IpNet, table: u8, scope: u8, kind: u8) -> [u8; 12] {
    let (family, _) = family_and_bytes(to.addr());
    [family, to.prefix_len(), 0, 0, table, RTPROT_STATIC, scope, kind, 0, 0, 0, 0]
}

fn family_and_bytes(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, address.octets().to_vec()),
    }
}

fn read_link(payload: &[u8]) -> Option<Link> {
    let attributes = payload.get(16..)?;
    Some(Link {
        index: message::read_u32(payload.get(4..8)?)?,
        name: message::read_string(message::find(attributes, IFLA_IFNAME)?),
        up: message::read_u32(payload.get(8..12)?)? & IFF_UP != 0,
        bridge: message::find(attributes, IFLA_MASTER).and_then(message::read_u32),
    })
}

/// The interface's name is not in the message and stays empty.
fn read_address(payload: &[u8]) -> Option<Address> {
    let (head, attributes) = payload.split_at_checked(8)?;
    // on a point-to-point link IFA_ADDRESS is the other end
    let bytes = message::find(attributes, IFA_LOCAL).or_else(|| message::find(attributes, IFA_ADDRESS))?;
    let address = match head[0] {
        AF_INET => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        AF_INET6 => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => return None,
    };
    Some(Address {
        net: IpNet::new(address, head[1]).ok()?,
        index: message::read_u32(&head[4..8])?,
        interface: String::new(),
        scope: Scope::from(head[3]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_message_is_no_link_and_no_address() {
        let mut writer = Writer::default();
        writer.attribute(IFA_ADDRESS, &[192, 0, 2, 1]);
        let whole = [&address_header(AF_INET, 24, 0, 7)[..], writer.bytes()].concat();
        let address = read_address(&whole).unwrap();
        assert_eq!((address.net.to_string().as_str(), address.index), ("192.0.2.1/24", 7));
        for cut in 0..whole.len() {
            assert_eq!(read_address(&whole[..cut]), None);
            assert_eq!(read_link(&whole[..cut]), None);
        }
    }

    #[test]
    fn the_local_end_of_a_point_to_point_link_is_the_address() {
        let mut writer = Writer::default();
        writer.attribute(IFA_ADDRESS, &[192, 0, 2, 2]);
        writer.attribute(IFA_LOCAL, &[192, 0, 2, 1]);
        let message = [&address_header(AF_INET, 32, 0, 1)[..], writer.bytes()].concat();
        assert_eq!(read_address(&message).unwrap().net.to_string(), "192.0.2.1/32");
    }

    #[test]
    fn scopes_have_their_kernel_numbers() {
        assert_eq!(Scope::from(253), Scope::Link);
        assert_eq!(Scope::from(254), Scope::Host);
        assert_eq!(Scope::from(0), Scope::Global);
        assert_eq!(Scope::from(17), Scope::Other(17));
    }
}
