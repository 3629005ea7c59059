//! Node ports on the loopback addresses, relayed in user space (KEP-6032): the kernel cannot translate a connection to
//! 127.0.0.1 without `route_localnet`, which opens the node's local services to its neighbours, and one to `::1` never.
//!
//! In: after each sync of a data plane the node ports of the services that it wrote ([`LocalhostNodePorts`] listens in
//! and tells the [`Handle`]). Out: listeners on 127.0.0.1 and `[::1]`, TCP and UDP, that pass everything on to an
//! endpoint. SCTP is not relayed. The [`Relay`] is one future on the program's runtime; nothing here may hold up the
//! thread that syncs.

mod backend;
mod choice;
mod listeners;
mod sessions;
mod tcp;
mod udp;
mod warnings;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{Family, ObjectKey};
use tokio::sync::mpsc::{self, UnboundedSender};

pub use backend::LocalhostNodePorts;
pub use listeners::Relay;

/// A transport protocol that is relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A node port of a service in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePort {
    /// TCP or UDP.
    pub transport: Transport,
    /// The number, not 0.
    pub number: u16,
    /// Where to, all of the family. With none there is no listener, and clients are refused.
    pub endpoints: Vec<SocketAddr>,
    /// Endpoints that are gone: the TCP connections to them are reset, as the kernel's are.
    pub departed: Vec<SocketAddr>,
    /// How long after its last use an endpoint is kept for the next client, with ClientIP affinity.
    pub affinity: Option<Duration>,
}

/// Is told what becomes of listeners.
pub trait Counters: Send {
    /// One more is open.
    fn opened(&self, family: Family);
    /// One less is open.
    fn closed(&self, family: Family);
    /// One could not be opened; told at each attempt.
    fn failed(&self, family: Family);
}

/// What may be open, all node ports together.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// TCP connections at a time. More are reset.
    pub connections: usize,
    /// UDP clients at a time. The one idle for the longest time makes room for a new one.
    pub sessions: usize,
    /// Listeners at a time. More are opened when others have been closed.
    pub listeners: usize,
}

impl Limits {
    /// What a process may take that may have only this number of files open: a quarter of them is for connections, which
    /// take two each, one for sessions, one for listeners, and one is left for everything else. There are 4,096
    /// connections and 4,096 sessions at most.
    pub fn within(files: usize) -> Self {
        const MOST: usize = 4096;
        let quarter = files / 4;
        Self { connections: (quarter / 2).min(MOST), sessions: quarter.min(MOST), listeners: quarter }
    }
}

/// Tells the relay what is wanted, from any thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle(UnboundedSender<Told>);

impl Handle {
    /// Makes `ports` all the ports of this service in this family. Returns at once.
    pub fn set(&self, family: Family, service: ObjectKey, ports: Vec<NodePort>) {
        // without a relay there is nothing to tell
        let _ = self.0.send(Told { family, service, ports });
    }
}

/// The ports of one service in one family.
#[derive(Debug)]
struct Told {
    family: Family,
    service: ObjectKey,
    ports: Vec<NodePort>,
}

/// The handle for the sync thread, and the relay, which has no listener yet.
pub fn relay(limits: Limits, counters: Box<dyn Counters>) -> (Handle, Relay) {
    let (sender, inbox) = mpsc::unbounded_channel();
    (Handle(sender), Relay::new(limits, counters, inbox))
}

/// Where a listener listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Site {
    family: Family,
    transport: Transport,
    port: u16,
}

impl Site {
    fn address(self) -> SocketAddr {
        let address: IpAddr = match self.family {
            Family::V4 => Ipv4Addr::LOCALHOST.into(),
            Family::V6 => Ipv6Addr::LOCALHOST.into(),
        };
        (address, self.port).into()
    }
}

/// Whoever panicked with the lock held left a whole value: nothing that is done under a lock here can stop half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
