//! A netlink socket: requests with their answers, dumps, and multicast events.
#![allow(unsafe_code)]
// sizes and families of libc are given in the types its functions take
#![allow(clippy::cast_possible_truncation)]

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::message::{self, Message};

/// `NETLINK_ROUTE`: links, addresses, routes.
pub const ROUTE: i32 = libc::NETLINK_ROUTE;
/// `NETLINK_NETFILTER`: nftables, conntrack, ipset.
pub const NETFILTER: i32 = libc::NETLINK_NETFILTER;

const BUFFER: usize = 64 << 20;
const DATAGRAM: usize = 256 << 10;

/// What the kernel answered to one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelError {
    /// The sequence number of the message that was refused.
    pub sequence: u32,
    /// The error number, positive.
    pub errno: i32,
    /// The kernel's words (extended ack), often empty.
    pub text: String,
    /// Where in the message the refused attribute starts (extended ack).
    pub offset: Option<u32>,
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", io::Error::from_raw_os_error(self.errno))?;
        if self.text.is_empty() { Ok(()) } else { write!(f, ": {}", self.text) }
    }
}

impl std::error::Error for KernelError {}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused it.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The socket failed.
    #[error("netlink socket: {0}")]
    Io(#[from] io::Error),
    /// A dump was disturbed by a change; ask again.
    #[error("the kernel's state changed while it was listed")]
    Interrupted,
}

impl Error {
    /// The error number, where there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Kernel(error) => Some(error.errno),
            Self::Io(error) => error.raw_os_error(),
            Self::Interrupted => None,
        }
    }
}

/// A netlink socket of the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    port: u32,
    sequence: u32,
    buffer: Vec<u8>,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn set_option(fd: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, which outlives the call.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// The multicast groups of a socket.
#[derive(Debug)]
pub struct Membership<Fd>(Fd);

impl<Fd: AsFd> Membership<Fd> {
    /// Joins a group.
    pub fn join(&self, group: u32) -> io::Result<()> {
        self.set(libc::NETLINK_ADD_MEMBERSHIP, group)
    }

    /// Leaves a group. What has arrived stays to be received.
    pub fn leave(&self, group: u32) -> io::Result<()> {
        self.set(libc::NETLINK_DROP_MEMBERSHIP, group)
    }

    fn set(&self, option: i32, group: u32) -> io::Result<()> {
        set_option(self.0.as_fd(), libc::SOL_NETLINK, option, i32::try_from(group).unwrap_or(i32::MAX))
    }
}

impl Socket {
    /// Opens a socket for `protocol`, with room for large transactions and extended error reports.
    pub fn open(protocol: i32) -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked and owned at once.
        let fd = unsafe {
            OwnedFd::from_raw_fd(check(libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                protocol,
            ))?)
        };
        let mut socket = Self { fd, port: 0, sequence: 0, buffer: vec![0; DATAGRAM] };
        for (force, plain) in
            [(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF), (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)]
        {
            let size = i32::try_from(BUFFER).unwrap_or(i32::MAX);
            socket
                .set(libc::SOL_SOCKET, force, size)
                .or_else(|_| socket.set(libc::SOL_SOCKET, plain, size))?;
        }
        socket.set(libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1)?;
        socket.set(libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
        socket.bind()?;
        Ok(socket)
    }

    fn set(&self, level: i32, option: i32, value: i32) -> io::Result<()> {
        set_option(self.fd.as_fd(), level, option, value)
    }

    fn bind(&mut self) -> io::Result<()> {
        // SAFETY: sockaddr_nl is plain data, valid when zero; pointers and lengths describe it in both calls.
        unsafe {
            let mut address: libc::sockaddr_nl = std::mem::zeroed();
            address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
            let mut length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
            check(libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), length))?;
            check(libc::getsockname(self.fd.as_raw_fd(), (&raw mut address).cast(), &raw mut length))?;
            self.port = address.nl_pid;
        }
        Ok(())
    }

    /// Joins a multicast group (an `NFNLGRP_…` or `RTNLGRP_…` number); events then arrive at [`Socket::receive`].
    pub fn join(&self, group: u32) -> io::Result<()> {
        self.membership().join(group)
    }

    /// A handle to join and leave groups while another thread receives.
    pub fn try_clone_membership(&self) -> io::Result<Membership<OwnedFd>> {
        Ok(Membership(self.fd.try_clone()?))
    }

    fn membership(&self) -> Membership<BorrowedFd<'_>> {
        Membership(self.fd.as_fd())
    }

    /// Receiving gives up after this time with [`io::ErrorKind::WouldBlock`]; `None` waits for ever.
    pub fn set_receive_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_socket_timeout(&self.fd, rustix::net::sockopt::Timeout::Recv, timeout)?)
    }

    /// The port id of this socket: events it causes carry it.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// A sequence number not used before.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    /// Sequence numbers up to `last` have been used.
    pub(crate) fn skip_sequences(&mut self, last: u32) {
        self.sequence = last;
    }

    /// Sends all of `bytes` as one datagram.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.fd, bytes, rustix::net::SendFlags::empty())?;
        Ok(())
    }

    /// Receives one datagram and returns its bytes.
    pub fn receive(&mut self) -> io::Result<&[u8]> {
        let length = loop {
            match rustix::net::recv(&self.fd, &mut self.buffer[..], rustix::net::RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?.0,
            }
        };
        Ok(&self.buffer[..length])
    }

    /// Sends one message that asks for an acknowledgement, and waits for it. `header` is the protocol's fixed part.
    pub fn request(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        body: impl FnOnce(&mut message::Writer),
    ) -> Result<(), Error> {
        self.exchange(kind, flags | message::ACK, header, body, |_| ())
    }

    /// Asks for a dump (or, without [`message::DUMP`] in `flags`, for one object) and hands each answer to `each`.
    pub fn dump(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        body: impl FnOnce(&mut message::Writer),
        each: impl FnMut(Message<'_>),
    ) -> Result<(), Error> {
        self.exchange(kind, flags, header, body, each)
    }

    fn exchange(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        body: impl FnOnce(&mut message::Writer),
        mut each: impl FnMut(Message<'_>),
    ) -> Result<(), Error> {
        let sequence = self.next_sequence();
        let mut writer = message::Writer::default();
        let open = writer.message(kind, message::REQUEST | flags, sequence, header);
        body(&mut writer);
        writer.end_message(open);
        self.send(writer.bytes())?;
        let mut interrupted = false;
        loop {
            for message in message::messages(self.receive()?).filter(|message| message.sequence == sequence) {
                interrupted |= message.flags & message::DUMP_INTERRUPTED != 0;
                match message.kind {
                    message::ERROR => {
                        return match error_of(&message) {
                            Some(error) => Err(error.into()),
                            None => Ok(()),
                        };
                    }
                    message::DONE => return if interrupted { Err(Error::Interrupted) } else { Ok(()) },
                    _ => {
                        each(message);
                        if flags & (message::ACK | message::DUMP) == 0 {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The error in a message of type [`message::ERROR`]; `None` when it is an acknowledgement.
pub fn error_of(message: &Message<'_>) -> Option<KernelError> {
    const TEXT: u16 = 1; // NLMSGERR_ATTR_MSG
    const OFFSET: u16 = 2; // NLMSGERR_ATTR_OFFS
    let code = message.payload.get(..4).and_then(message::read_u32)?.cast_signed();
    if code == 0 {
        return None;
    }
    // NETLINK_CAP_ACK: only the header of the refused message follows the code
    let extra = if message.flags & message::ACK_TLVS == 0 {
        &[]
    } else {
        message.payload.get(20..).unwrap_or_default()
    };
    Some(KernelError {
        sequence: message.sequence,
        errno: code.wrapping_neg(),
        text: message::find(extra, TEXT).map(message::read_string).unwrap_or_default(),
        offset: message::find(extra, OFFSET).and_then(message::read_u32),
    })
}
