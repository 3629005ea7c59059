//! Changes by other programs.

use std::io;
use std::os::fd::OwnedFd;

use super::{SUBSYSTEM, msg};
use crate::message::{self, Message, find, read_be32, read_string};
use crate::socket::{self, Membership, Socket};

const GROUP: u32 = 7; // NFNLGRP_NFTABLES
const ENOBUFS: i32 = 105;

/// Somebody else's transaction that touched the watched table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignChange {
    /// The families (`NFPROTO_…`) in which the table was touched; both when events were lost.
    pub families: Vec<u8>,
    /// The name and id of the thread that made it, where known; the kernel does not tell its process.
    pub program: Option<(String, u32)>,
}

/// Turns the telling of events off and on while another thread waits for them.
///
/// As long as anybody on the machine listens, in whatever namespace, the kernel keeps a message of 4 KB for each object of a transaction until it is committed:
/// half a gigabyte for 130,000 elements, and most of the time the transaction takes (seen on 6.18).
#[derive(Debug)]
pub struct Switch(Membership<OwnedFd>);

impl Switch {
    /// No events of what happens from now on.
    pub fn off(&self) -> io::Result<()> {
        self.0.leave(GROUP)
    }

    /// Events again.
    pub fn on(&self) -> io::Result<()> {
        self.0.join(GROUP)
    }
}

/// Watches a table of the network namespace it was opened in.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    table: &'static str,
    own_ports: Vec<u32>,
}

impl Monitor {
    /// Watches `table` in all families; transactions sent by sockets with `own_ports` are not told.
    pub fn open(table: &'static str, own_ports: Vec<u32>) -> io::Result<Self> {
        let socket = Socket::open(socket::NETFILTER)?;
        socket.join(GROUP)?;
        Ok(Self { socket, table, own_ports })
    }

    /// Leaves out what the socket with this port does, too.
    pub fn leave_out(&mut self, port: u32) {
        self.own_ports.push(port);
    }

    /// To be given to who writes.
    pub fn switch(&self) -> io::Result<Switch> {
        Ok(Switch(self.socket.try_clone_membership()?))
    }

    /// Waits for the next foreign change.
    pub fn next_change(&mut self) -> io::Result<ForeignChange> {
        let mut families = Vec::new();
        loop {
            let datagram = match self.socket.receive() {
                Err(error) if error.raw_os_error() == Some(ENOBUFS) => {
                    return Ok(ForeignChange { families: vec![super::IPV4, super::IPV6], program: None });
                }
                other => other?,
            };
            for message in message::messages(datagram) {
                if message.kind >> 8 != SUBSYSTEM || self.own_ports.contains(&message.port) {
                    continue;
                }
                if message.kind & 0xff == msg::NEW_GENERATION {
                    if !families.is_empty() {
                        return Ok(ForeignChange { families, program: program(&message) });
                    }
                } else if let Some(family) = touched(&message, self.table)
                    && !families.contains(&family)
                {
                    families.push(family);
                }
            }
        }
    }
}

/// The family in which a message is about `table`. The table's name is attribute 1 of every kind of object.
fn touched(message: &Message<'_>, table: &str) -> Option<u8> {
    let family = *message.payload.first()?;
    let name = find(message.payload.get(4..)?, 1)?;
    (read_string(name) == table).then_some(family)
}

fn program(message: &Message<'_>) -> Option<(String, u32)> {
    let body = message.payload.get(4..)?;
    Some((read_string(find(body, 3)?), read_be32(find(body, 2)?)?))
}
