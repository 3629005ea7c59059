//! SCTP as far as a NAT cares (RFC 9260): an INIT that asks, an INIT ACK that answers, over raw sockets. The kernel needs
//! no SCTP for it, but conntrack and the checksum must be right.
//!
//! The answer carries `NAME PEER`, as [`lab::Server`] says it, in place of the state cookie.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;
use lab::Outcome;
use netlink::namespace::Namespace;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, ipproto, recvfrom, send,
    sendto, socket_with,
};

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const STATE_COOKIE: u16 = 7;
/// The tag the client asks to be answered with.
const TAG: u32 = 0x1234_5678;
/// Tag, window, streams, first sequence number: the same in INIT and INIT ACK.
const INIT_BODY: usize = 16;

/// A raw socket server for SCTP. Stops when dropped.
#[derive(Debug)]
pub struct Server {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers INITs to any port of any address in `namespace`, as `name`, whose checksum is right.
    pub fn start(namespace: &Namespace, name: &str) -> Result<Self> {
        let sockets = namespace
            .run(|| [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()].map(raw_socket))?;
        let sockets = sockets.into_iter().collect::<io::Result<Vec<_>>>()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (stopped, name) = (Arc::clone(&stop), name.to_owned());
        let thread = thread::spawn(move || serve(&sockets, &stopped, &name));
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends an INIT from `namespace`, from `source_port`, and tells who answers.
pub fn ask(namespace: &Namespace, to: SocketAddr, source_port: u16, timeout: Duration) -> Outcome {
    let start = Instant::now();
    let asked = namespace.run(|| exchange(to, source_port, start + timeout));
    match asked.map_err(|error| error.to_string()) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(Errno::CONNREFUSED)) => Outcome::Refused { after: start.elapsed() },
        Ok(Err(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS)) => Outcome::Unreachable,
        Ok(Err(errno)) => Outcome::Failed(errno.to_string()),
        Err(text) => Outcome::Failed(text),
    }
}

fn exchange(to: SocketAddr, source_port: u16, end: Instant) -> rustix::io::Result<Outcome> {
    let socket =
        raw_socket(if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() })
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    // connected, so that an ICMP error reaches the socket; raw sockets take no port
    connect(&socket, &SocketAddr::new(to.ip(), 0))?;
    match send(&socket, &packet(source_port, to.port(), 0, INIT, &[]), SendFlags::empty()) {
        // This host's own rules took the packet. Whether they refused it or dropped it shows when receiving.
        Ok(_) | Err(Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    let mut buffer = [0; 2048];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let mut wait = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
        if poll(&mut wait, Timespec::try_from(left).ok().as_ref())? == 0 {
            return Ok(Outcome::TimedOut);
        }
        let (length, _, _) = recvfrom(&socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
        let Some(chunk) = parse(transport(&buffer[..length], to.ip())) else { continue };
        if chunk.kind == INIT_ACK && chunk.ports == (to.port(), source_port) && chunk.tag == TAG {
            let text = String::from_utf8_lossy(chunk.cookie).into_owned();
            return Ok(match text.split_once(' ').map(|(by, peer)| (by, peer.parse())) {
                Some((by, Ok(seen_peer))) => Outcome::Answered { by: by.to_owned(), seen_peer },
                _ => Outcome::Failed(format!("an answer that is none of our servers': {text:?}")),
            });
        }
    }
}

fn serve(sockets: &[OwnedFd], stop: &OwnedFd, name: &str) {
    loop {
        let wait = std::iter::once(stop).chain(sockets).map(AsFd::as_fd);
        let mut wait: Vec<_> = wait.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut wait, None) {
            Err(Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) if !wait[0].revents().is_empty() => return,
            Ok(_) => {}
        }
        for socket in sockets {
            answer_all(socket, name);
        }
    }
}

fn answer_all(socket: &OwnedFd, name: &str) {
    let mut buffer = [0; 2048];
    while let Ok((length, _, from)) = recvfrom(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
        let Some(peer) = from.and_then(|from| SocketAddr::try_from(from).ok()) else { continue };
        let Some(chunk) = parse(transport(&buffer[..length], peer.ip())) else { continue };
        if chunk.kind == INIT {
            let (client, server) = chunk.ports;
            let words = format!("{name} {}", SocketAddr::new(peer.ip(), client));
            let answer = packet(server, client, chunk.wanted_tag, INIT_ACK, words.as_bytes());
            let _ = sendto(socket, &answer, SendFlags::empty(), &SocketAddr::new(peer.ip(), 0));
        }
    }
}

fn raw_socket(any: IpAddr) -> io::Result<OwnedFd> {
    let family = if any.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::SCTP))?;
    bind(&socket, &SocketAddr::new(any, 0))?;
    Ok(socket)
}

/// IPv4 raw sockets deliver the IP header too, IPv6 ones do not.
fn transport(datagram: &[u8], like: IpAddr) -> &[u8] {
    match (like, datagram.first()) {
        (IpAddr::V4(_), Some(first)) => datagram.get(usize::from(first & 15) * 4..).unwrap_or_default(),
        _ => datagram,
    }
}

/// A packet of one chunk, of type INIT or INIT ACK, with `cookie` as its parameter unless empty.
fn packet(from: u16, to: u16, tag: u32, kind: u8, cookie: &[u8]) -> Vec<u8> {
    let mut parameter = Vec::new();
    if !cookie.is_empty() {
        parameter.extend(STATE_COOKIE.to_be_bytes());
        parameter.extend(u16::try_from(4 + cookie.len()).unwrap_or(u16::MAX).to_be_bytes());
        parameter.extend(cookie);
    }
    let mut packet = [&from.to_be_bytes()[..], &to.to_be_bytes(), &tag.to_be_bytes(), &[0; 4]].concat();
    packet.extend([kind, 0]);
    packet.extend(u16::try_from(4 + INIT_BODY + parameter.len()).unwrap_or(u16::MAX).to_be_bytes());
    packet.extend(TAG.to_be_bytes());
    packet.extend(65_535_u32.to_be_bytes());
    packet.extend([0, 1, 0, 1, 0, 0, 0, 1]);
    packet.extend(&parameter);
    packet.resize(packet.len().next_multiple_of(4), 0);
    let checksum = crc32c(&packet);
    packet[8..12].copy_from_slice(&checksum.to_le_bytes());
    packet
}

struct Chunk<'a> {
    ports: (u16, u16),
    tag: u32,
    kind: u8,
    wanted_tag: u32,
    cookie: &'a [u8],
}

/// `None` for what is no such packet, or has a wrong checksum.
fn parse(packet: &[u8]) -> Option<Chunk<'_>> {
    let two = |at: usize| Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?));
    let four = |at: usize| Some(u32::from_be_bytes(packet.get(at..at + 4)?.try_into().ok()?));
    let mut unsigned = packet.to_vec();
    unsigned.get_mut(8..12)?.fill(0);
    if crc32c(&unsigned).to_le_bytes() != *packet.get(8..12)? {
        return None;
    }
    let end = 12 + usize::from(two(14)?);
    let cookie = packet.get(12 + 4 + INIT_BODY + 4..end).unwrap_or_default();
    Some(Chunk {
        ports: (two(0)?, two(2)?),
        tag: four(4)?,
        kind: *packet.get(12)?,
        wanted_tag: four(16)?,
        cookie,
    })
}

fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| {
                if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 }
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_rfc_3720() {
        assert_eq!(crc32c(&[0; 32]).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
    }

    #[test]
    fn a_packet_is_read_back_and_a_damaged_one_is_not() {
        let packet = packet(5, 6, TAG, INIT_ACK, b"p1 192.0.2.1:5");
        let chunk = parse(&packet).unwrap();
        assert_eq!((chunk.ports, chunk.tag, chunk.kind, chunk.wanted_tag), ((5, 6), TAG, INIT_ACK, TAG));
        assert_eq!(chunk.cookie, b"p1 192.0.2.1:5");
        for at in 0..packet.len() {
            let mut damaged = packet.clone();
            damaged[at] ^= 1;
            assert!(parse(&damaged).is_none());
            assert!(parse(&packet[..at]).is_none());
        }
    }
}
