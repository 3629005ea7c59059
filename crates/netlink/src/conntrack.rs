//! Connection tracking over netlink (`include/uapi/linux/netfilter/nfnetlink_conntrack.h`): listing flows, filtered by the
//! kernel where it can, looking at single ones again, and deleting them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::message::{self, Writer, find, read_be32};
use crate::socket::{Error, Socket};

/// `IPPROTO_TCP`.
pub const TCP: u8 = 6;
/// `IPPROTO_UDP`.
pub const UDP: u8 = 17;
/// `IPPROTO_SCTP`.
pub const SCTP: u8 = 132;

/// The states of a tracked TCP connection (`include/uapi/linux/netfilter/nf_conntrack_tcp.h`).
pub mod tcp_state {
    /// A SYN was seen, no answer to it.
    pub const SYN_SENT: u8 = 1;
    /// Both ends agreed.
    pub const ESTABLISHED: u8 = 3;
    /// A reset was seen.
    pub const CLOSE: u8 = 8;
    /// Both ends sent a SYN.
    pub const SYN_SENT2: u8 = 9;
}

/// The states of a tracked SCTP association (`include/uapi/linux/netfilter/nf_conntrack_sctp.h`).
pub mod sctp_state {
    /// It was aborted, or has ended.
    pub const CLOSED: u8 = 1;
    /// It was asked for.
    pub const COOKIE_WAIT: u8 = 2;
    /// The last packet but one of its making was seen.
    pub const COOKIE_ECHOED: u8 = 3;
    /// Both ends agreed.
    pub const ESTABLISHED: u8 = 4;
}

/// `enum ip_conntrack_status`: bits of [`Flow::status`].
pub mod status {
    /// Packets were seen in both directions.
    pub const SEEN_REPLY: u32 = 1 << 1;
    /// The entry stays when the table is full.
    pub const ASSURED: u32 = 1 << 2;
    /// Its destination is translated.
    pub const DST_NAT: u32 = 1 << 5;
    /// The entry is in the table.
    pub const CONFIRMED: u32 = 1 << 3;
}

const SUBSYSTEM: u16 = 1; // NFNL_SUBSYS_CTNETLINK

const fn message_type(message: u16) -> u16 {
    SUBSYSTEM << 8 | message
}

const NEW: u16 = message_type(0);
const GET: u16 = message_type(1);
const DELETE: u16 = message_type(2);

/// `enum ctattr_type` and those nested in it.
mod attr {
    pub(super) const TUPLE_ORIGINAL: u16 = 1;
    pub(super) const TUPLE_REPLY: u16 = 2;
    pub(super) const STATUS: u16 = 3;
    pub(super) const PROTOCOL_INFO: u16 = 4;
    pub(super) const TIMEOUT: u16 = 7;
    pub(super) const ID: u16 = 12;
    pub(super) const NAT_DESTINATION: u16 = 13;
    pub(super) const ZONE: u16 = 18;
    pub(super) const FILTER: u16 = 25;
    pub(super) const STATUS_MASK: u16 = 26;

    pub(super) const TUPLE_IP: u16 = 1;
    pub(super) const TUPLE_PROTOCOL: u16 = 2;

    pub(super) const V4_SOURCE: u16 = 1;
    pub(super) const V4_DESTINATION: u16 = 2;
    pub(super) const V6_SOURCE: u16 = 3;
    pub(super) const V6_DESTINATION: u16 = 4;

    pub(super) const PROTOCOL_NUMBER: u16 = 1;
    pub(super) const SOURCE_PORT: u16 = 2;
    pub(super) const DESTINATION_PORT: u16 = 3;

    pub(super) const INFO_TCP: u16 = 1;
    pub(super) const INFO_SCTP: u16 = 3;
    pub(super) const INFO_STATE: u16 = 1;

    pub(super) const NAT_V4_LOWEST: u16 = 1;
    pub(super) const NAT_PROTOCOL: u16 = 3;
    pub(super) const NAT_V6_LOWEST: u16 = 4;
    pub(super) const NAT_LOWEST_PORT: u16 = 1;

    pub(super) const FILTER_ORIGINAL: u16 = 1;
    pub(super) const FILTER_REPLY: u16 = 2;
}

/// Which parts of a tuple a filter compares (`CTA_FILTER_F_…`, `net/netfilter/nf_internals.h`).
mod compare {
    pub(super) const SOURCE: u32 = 1;
    pub(super) const DESTINATION: u32 = 1 << 1;
    pub(super) const PROTOCOL: u32 = 1 << 3;
    pub(super) const SOURCE_PORT: u32 = 1 << 4;
    pub(super) const DESTINATION_PORT: u32 = 1 << 5;
}

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Where its packets come from.
    pub source: SocketAddr,
    /// Where they go.
    pub destination: SocketAddr,
}

/// A tracked flow of a protocol that has ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// `IPPROTO_…`.
    pub protocol: u8,
    /// As the client sent its first packet.
    pub original: Tuple,
    /// As answers are expected: its source is the server, after any translation.
    pub reply: Tuple,
    /// Bits of [`status`].
    pub status: u32,
    /// [`tcp_state`] or [`sctp_state`]; 0 for other protocols.
    pub state: u8,
    /// The kernel's name for the entry.
    pub id: u32,
}

/// Which flows to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Filter {
    /// Those of a protocol.
    Protocol(u8),
    /// Those of a protocol whose destination is translated.
    Translated(u8),
    /// Those of a protocol that have not been answered.
    Unreplied(u8),
    /// Those that clients sent to a port, of this address if one is given.
    To(u8, Option<IpAddr>, u16),
    /// Those whose answers come from this server.
    From(u8, SocketAddr),
}

impl Filter {
    /// Whether it lists the flow.
    pub fn matches(&self, flow: &Flow) -> bool {
        match *self {
            Self::Protocol(protocol) => flow.protocol == protocol,
            Self::Translated(protocol) => flow.protocol == protocol && flow.status & status::DST_NAT != 0,
            Self::Unreplied(protocol) => flow.protocol == protocol && flow.status & status::SEEN_REPLY == 0,
            Self::To(protocol, address, port) => {
                let to = flow.original.destination;
                flow.protocol == protocol && to.port() == port && address.is_none_or(|own| own == to.ip())
            }
            Self::From(protocol, server) => flow.protocol == protocol && flow.reply.source == server,
        }
    }

    /// IPv6 addresses are left out: the kernel takes equal ones for different (`ipv6_addr_cmp` negated in
    /// `ctnetlink_filter_match_tuple`; seen on 6.18) and would tell all flows but the wanted ones.
    fn write(&self, writer: &mut Writer) {
        let (protocol, original, reply) = match *self {
            Self::Protocol(protocol) | Self::Translated(protocol) | Self::Unreplied(protocol) => {
                (protocol, compare::PROTOCOL, 0)
            }
            Self::To(protocol, address, _) => {
                let address =
                    if address.is_some_and(|address| address.is_ipv4()) { compare::DESTINATION } else { 0 };
                (protocol, address | compare::PROTOCOL | compare::DESTINATION_PORT, 0)
            }
            Self::From(protocol, server) => {
                let address = if server.is_ipv4() { compare::SOURCE } else { 0 };
                (protocol, 0, address | compare::PROTOCOL | compare::SOURCE_PORT)
            }
        };
        let tuple = if reply == 0 { attr::TUPLE_ORIGINAL } else { attr::TUPLE_REPLY };
        writer.nested(tuple, |w| match *self {
            Self::Protocol(_) | Self::Translated(_) | Self::Unreplied(_) => {
                write_protocol(w, protocol, None, None);
            }
            Self::To(_, address, port) => {
                if let Some(address @ IpAddr::V4(_)) = address {
                    w.nested(attr::TUPLE_IP, |w| write_address(w, address, Side::Destination));
                }
                write_protocol(w, protocol, None, Some(port));
            }
            Self::From(_, server) => {
                if let address @ IpAddr::V4(_) = server.ip() {
                    w.nested(attr::TUPLE_IP, |w| write_address(w, address, Side::Source));
                }
                write_protocol(w, protocol, Some(server.port()), None);
            }
        });
        writer.nested(attr::FILTER, |w| {
            w.u32(attr::FILTER_ORIGINAL, original);
            w.u32(attr::FILTER_REPLY, reply);
        });
        let (status, mask) = match self {
            Self::Translated(_) => (status::DST_NAT, status::DST_NAT),
            Self::Unreplied(_) => (0, status::SEEN_REPLY),
            _ => return,
        };
        writer.be32(attr::STATUS, status);
        writer.be32(attr::STATUS_MASK, mask);
    }
}

/// Lists the flows of a family (`NFPROTO_…`) in the default zone that `filter` wants, one after the other as the kernel
/// tells them. A kernel older than 5.8 does not filter and tells all of them, which takes longer and is sorted out here.
pub fn list(
    socket: &mut Socket,
    family: u8,
    filter: &Filter,
    mut each: impl FnMut(&Flow),
) -> Result<(), Error> {
    socket.dump(
        GET,
        message::DUMP,
        &header(family),
        |writer| filter.write(writer),
        |message| {
            let attributes = message.payload.get(4..).unwrap_or_default();
            if find(attributes, attr::ZONE).is_none()
                && let Some(flow) = read(attributes).filter(|flow| filter.matches(flow))
            {
                each(&flow);
            }
        },
    )
}

/// The flow as it is now, unless it is gone.
pub fn look_again(socket: &mut Socket, flow: &Flow) -> Result<Option<Flow>, Error> {
    let mut found = None;
    let outcome = socket.dump(
        GET,
        message::ACK,
        &header(family_of(flow)),
        |writer| write_tuple(writer, attr::TUPLE_ORIGINAL, flow.protocol, &flow.original),
        |message| found = message.payload.get(4..).and_then(read),
    );
    was_there(outcome)?;
    Ok(found.filter(|found| found.id == flow.id))
}

/// Deletes the flow, and no other that came into its place. Returns whether it was still there.
pub fn delete(socket: &mut Socket, flow: &Flow) -> Result<bool, Error> {
    let outcome = socket.request(DELETE, 0, &header(family_of(flow)), |writer| {
        write_tuple(writer, attr::TUPLE_ORIGINAL, flow.protocol, &flow.original);
        writer.be32(attr::ID, flow.id);
    });
    was_there(outcome)
}

fn was_there(outcome: Result<(), Error>) -> Result<bool, Error> {
    const ENOENT: i32 = 2;
    match outcome {
        Ok(()) => Ok(true),
        Err(Error::Kernel(error)) if error.errno == ENOENT => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts a flow into the table, as if its packets had been seen; for tests and benchmarks. Its source is not translated, and the
/// kernel chooses its id.
pub fn insert(socket: &mut Socket, flow: &Flow, timeout: Duration) -> Result<(), Error> {
    socket.request(NEW, message::CREATE | message::EXCL, &header(family_of(flow)), |writer| {
        write_tuple(writer, attr::TUPLE_ORIGINAL, flow.protocol, &flow.original);
        // the kernel itself puts the translation in
        let untranslated = Tuple { source: flow.original.destination, destination: flow.original.source };
        write_tuple(writer, attr::TUPLE_REPLY, flow.protocol, &untranslated);
        if flow.reply.source != flow.original.destination {
            writer.nested(attr::NAT_DESTINATION, |w| write_translation(w, flow.reply.source));
        }
        writer.be32(attr::STATUS, flow.status | status::CONFIRMED);
        writer.be32(attr::TIMEOUT, u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX));
        if flow.protocol == TCP {
            writer.nested(attr::PROTOCOL_INFO, |w| {
                w.nested(attr::INFO_TCP, |w| w.attribute(attr::INFO_STATE, &[flow.state]));
            });
        }
    })
}

fn family_of(flow: &Flow) -> u8 {
    if flow.original.source.is_ipv4() { crate::nftables::IPV4 } else { crate::nftables::IPV6 }
}

/// `struct nfgenmsg`.
const fn header(family: u8) -> [u8; 4] {
    [family, 0, 0, 0]
}

#[derive(Clone, Copy)]
enum Side {
    Source,
    Destination,
}

fn write_address(writer: &mut Writer, address: IpAddr, side: Side) {
    match (address, side) {
        (IpAddr::V4(address), Side::Source) => writer.attribute(attr::V4_SOURCE, &address.octets()),
        (IpAddr::V4(address), Side::Destination) => writer.attribute(attr::V4_DESTINATION, &address.octets()),
        (IpAddr::V6(address), Side::Source) => writer.attribute(attr::V6_SOURCE, &address.octets()),
        (IpAddr::V6(address), Side::Destination) => writer.attribute(attr::V6_DESTINATION, &address.octets()),
    }
}

fn write_protocol(writer: &mut Writer, protocol: u8, source: Option<u16>, destination: Option<u16>) {
    writer.nested(attr::TUPLE_PROTOCOL, |w| {
        w.attribute(attr::PROTOCOL_NUMBER, &[protocol]);
        for (kind, port) in [(attr::SOURCE_PORT, source), (attr::DESTINATION_PORT, destination)] {
            if let Some(port) = port {
                w.attribute(kind, &port.to_be_bytes());
            }
        }
    });
}

fn write_translation(writer: &mut Writer, to: SocketAddr) {
    match to.ip() {
        IpAddr::V4(address) => writer.attribute(attr::NAT_V4_LOWEST, &address.octets()),
        IpAddr::V6(address) => writer.attribute(attr::NAT_V6_LOWEST, &address.octets()),
    }
    writer.nested(attr::NAT_PROTOCOL, |w| w.attribute(attr::NAT_LOWEST_PORT, &to.port().to_be_bytes()));
}

fn write_tuple(writer: &mut Writer, kind: u16, protocol: u8, tuple: &Tuple) {
    writer.nested(kind, |w| {
        w.nested(attr::TUPLE_IP, |w| {
            write_address(w, tuple.source.ip(), Side::Source);
            write_address(w, tuple.destination.ip(), Side::Destination);
        });
        write_protocol(w, protocol, Some(tuple.source.port()), Some(tuple.destination.port()));
    });
}

fn read(attributes: &[u8]) -> Option<Flow> {
    let (protocol, original) = read_tuple(find(attributes, attr::TUPLE_ORIGINAL)?)?;
    let (_, reply) = read_tuple(find(attributes, attr::TUPLE_REPLY)?)?;
    let state = find(attributes, attr::PROTOCOL_INFO)
        .and_then(|info| find(info, attr::INFO_TCP).or_else(|| find(info, attr::INFO_SCTP)))
        .and_then(|info| find(info, attr::INFO_STATE)?.first().copied());
    Some(Flow {
        protocol,
        original,
        reply,
        status: find(attributes, attr::STATUS).and_then(read_be32)?,
        state: state.unwrap_or(0),
        id: find(attributes, attr::ID).and_then(read_be32)?,
    })
}

/// `None` for a protocol without ports.
fn read_tuple(attributes: &[u8]) -> Option<(u8, Tuple)> {
    let (ip, transport) = (find(attributes, attr::TUPLE_IP)?, find(attributes, attr::TUPLE_PROTOCOL)?);
    let address = |v4, v6| -> Option<IpAddr> {
        match find(ip, v4) {
            Some(value) => Some(<[u8; 4]>::try_from(value).ok()?.into()),
            None => Some(<[u8; 16]>::try_from(find(ip, v6)?).ok()?.into()),
        }
    };
    let port = |kind| Some(u16::from_be_bytes(find(transport, kind)?.try_into().ok()?));
    let source = (address(attr::V4_SOURCE, attr::V6_SOURCE)?, port(attr::SOURCE_PORT)?);
    let destination = (address(attr::V4_DESTINATION, attr::V6_DESTINATION)?, port(attr::DESTINATION_PORT)?);
    let protocol = *find(transport, attr::PROTOCOL_NUMBER)?.first()?;
    Some((protocol, Tuple { source: source.into(), destination: destination.into() }))
}
