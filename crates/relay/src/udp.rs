//! UDP: a session for each client, with a socket of its own that is connected to the client's endpoint.
//!
//! Datagrams are read in batches, with a buffer that no wait keeps, so that an idle session costs a socket and no more.
//! They are sent without asking the runtime whether there is room: it does not know yet of a new socket. A datagram
//! that does not fit into the send buffer is lost, as datagrams are.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, send, sendto};
use tokio::net::UdpSocket;
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::choice::Choice;
use crate::sessions::{Key, Session, Sessions};
use crate::warnings::{NO_SOCKET, Warnings};
use crate::{Site, lock};

/// The largest payload there is, and more.
const DATAGRAM: usize = 1 << 16;
/// So many datagrams are passed on before others have their turn.
const BATCH: usize = 32;
/// Pause after an error that no datagram explains.
const PAUSE: Duration = Duration::from_millis(100);

/// A UDP listener, shared with the tasks that send replies from its address.
pub(crate) struct Listener {
    pub(crate) site: Site,
    pub(crate) socket: UdpSocket,
    pub(crate) choice: Arc<Mutex<Choice>>,
    pub(crate) sessions: Arc<Mutex<Sessions>>,
    pub(crate) warnings: Arc<Warnings>,
}

/// Opens the socket of a listener.
pub(crate) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Passes datagrams on for ever.
pub(crate) async fn serve(listener: Arc<Listener>) {
    loop {
        match listener.socket.readable().await.and_then(|()| take_waiting(&listener)) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                tracing::debug!(v = 4, address = %listener.site.address(), %error, "Receiving a datagram failed");
                sleep(PAUSE).await;
            }
            _ => yield_now().await,
        }
    }
}

/// Passes on what clients have sent; ends with `WouldBlock` when that was all.
fn take_waiting(listener: &Arc<Listener>) -> io::Result<()> {
    let mut buffer = vec![0; DATAGRAM];
    for _ in 0..BATCH {
        let (length, client) = listener.socket.try_recv_from(&mut buffer)?;
        forward(listener, (listener.site, client), &buffer[..length]);
    }
    Ok(())
}

fn forward(listener: &Arc<Listener>, key: Key, datagram: &[u8]) {
    let session = lock(&listener.sessions).find(&key, Instant::now());
    if let Some(socket) = session {
        match send_to_endpoint(&socket, datagram) {
            Ok(()) => return,
            // an ICMP error, mostly: an earlier datagram found no one there
            Err(_) => lock(&listener.sessions).remove(&key),
        }
    }
    begin(listener, key, datagram);
}

/// An error is the endpoint's: what does not fit now, or never, is lost.
fn send_to_endpoint(socket: &UdpSocket, datagram: &[u8]) -> io::Result<()> {
    match send(socket, datagram, SendFlags::empty()) {
        Ok(_) | Err(Errno::AGAIN | Errno::MSGSIZE | Errno::NOBUFS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Begins a session with its first datagram.
fn begin(listener: &Arc<Listener>, key: Key, datagram: &[u8]) {
    let (mut failed, now) = (Vec::new(), Instant::now());
    loop {
        let Some(endpoint) = lock(&listener.choice).pick(now, &failed) else { return };
        let socket = match bind(any_of_family(endpoint)) {
            Ok(socket) => Arc::new(socket),
            Err(error) => return listener.warnings.warn(NO_SOCKET, listener.site, Some(&error)),
        };
        let begun = rustix::net::connect(&*socket, &endpoint)
            .map_err(io::Error::from)
            .and_then(|()| send_to_endpoint(&socket, datagram));
        match begun {
            Ok(()) => {
                let replies = pass_replies(Arc::downgrade(listener), key, Arc::clone(&socket));
                let task = tokio::spawn(replies).abort_handle();
                lock(&listener.sessions).add(key, Session { socket, endpoint, task, used: now });
                return;
            }
            Err(error) => {
                let address = listener.site.address();
                tracing::debug!(v = 4, %address, %endpoint, %error, "Endpoint of a node port takes no datagrams");
                failed.push(endpoint);
            }
        }
    }
}

fn any_of_family(endpoint: SocketAddr) -> SocketAddr {
    match endpoint {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Passes replies on until the session is dropped, or its endpoint is found dead. Does not keep the listener open.
async fn pass_replies(listener: Weak<Listener>, key: Key, socket: Arc<UdpSocket>) {
    loop {
        match socket.readable().await.and_then(|()| take_replies(&listener, &key, &socket)) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => break,
            _ => yield_now().await,
        }
    }
    if let Some(listener) = listener.upgrade() {
        lock(&listener.sessions).remove(&key);
    }
}

/// Passes on what the endpoint has sent; ends with `WouldBlock` when that was all.
fn take_replies(listener: &Weak<Listener>, key: &Key, socket: &UdpSocket) -> io::Result<()> {
    let mut buffer = vec![0; DATAGRAM];
    for _ in 0..BATCH {
        let length = socket.try_recv(&mut buffer)?;
        let Some(listener) = listener.upgrade() else { return Err(ErrorKind::NotConnected.into()) };
        lock(&listener.sessions).find(key, Instant::now());
        // a client that has gone, or a full buffer: the reply is lost
        let _ = sendto(&listener.socket, &buffer[..length], SendFlags::empty(), &key.1);
    }
    Ok(())
}
