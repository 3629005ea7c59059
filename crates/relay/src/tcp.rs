//! TCP: each connection is taken and continued to an endpoint.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::choice::Choice;
use crate::warnings::{NO_SOCKET, Warnings};
use crate::{Site, lock};

/// How long an endpoint may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// The first pause after a failed accept; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Connections that wait for being accepted.
const BACKLOG: u32 = 1024;
/// A peer that has been silent for this time is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 9;

/// The connections of all listeners.
#[derive(Debug)]
pub(crate) struct Connections {
    free: Arc<Semaphore>,
    /// The connections of a listener to an endpoint, those that are being made included, end when this is dropped.
    lives: Mutex<BTreeMap<(Site, SocketAddr), watch::Sender<()>>>,
    warnings: Arc<Warnings>,
}

impl Connections {
    pub(crate) fn new(limit: usize, warnings: Arc<Warnings>) -> Self {
        let free = Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        Self { free, lives: Mutex::default(), warnings }
    }

    /// Resets the connections of a listener to an endpoint. To be called when its clients no longer get that endpoint.
    pub(crate) fn reset(&self, site: Site, endpoint: SocketAddr) {
        lock(&self.lives).remove(&(site, endpoint));
    }

    /// The endpoint for a new client, and what tells that connections to it are reset.
    fn pick(&self, site: Site, choice: &Mutex<Choice>, failed: &[SocketAddr]) -> Option<(SocketAddr, Life)> {
        // held until the connection is known: from here on a departure finds it, or has found the endpoint removed
        let mut choice = lock(choice);
        let endpoint = choice.pick(Instant::now(), failed)?;
        let mut lives = lock(&self.lives);
        let life = lives.entry((site, endpoint)).or_insert_with(|| watch::channel(()).0).subscribe();
        Some((endpoint, Life(life)))
    }

    /// Forgets the endpoints to which there is no connection any more.
    pub(crate) fn tidy(&self) {
        lock(&self.lives).retain(|_, life| !life.is_closed());
    }
}

/// Of the connections to an endpoint.
struct Life(watch::Receiver<()>);

impl Life {
    /// Waits until the endpoint has departed.
    async fn end(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// Opens a listener.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = new_socket(address)?;
    // without this a restart would have to wait for the end of the last connections' TIME_WAIT
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn new_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }
}

/// Accepts connections for ever. They go on when the listener is closed, until either end closes them: the listener
/// goes when the last endpoint does, and a connection to it may still be at work.
pub(crate) async fn serve(
    site: Site,
    listener: TcpListener,
    choice: Arc<Mutex<Choice>>,
    connections: Arc<Connections>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                // out of file descriptors, mostly: waiting gives others the time to return some
                connections.warnings.warn(
                    "Cannot accept connections to a node port, trying again; check the limit of open files (RLIMIT_NOFILE)",
                    site,
                    Some(&error),
                );
                sleep(pause).await;
                pause = (2 * pause).min(LONGEST_PAUSE);
                continue;
            }
        };
        pause = FIRST_PAUSE;
        let Ok(permit) = Arc::clone(&connections.free).try_acquire_owned() else {
            connections.warnings.warn(
                "Too many connections to node ports on loopback addresses, refusing more",
                site,
                None,
            );
            reset(&client);
            continue;
        };
        let (choice, connections) = (Arc::clone(&choice), Arc::clone(&connections));
        tokio::spawn(async move {
            converse(site, client, &choice, &connections).await;
            drop(permit);
        });
    }
}

async fn converse(site: Site, mut client: TcpStream, choice: &Mutex<Choice>, connections: &Connections) {
    let Some((mut endpoint, mut life)) = dial(site, choice, connections).await else {
        reset(&client);
        return;
    };
    prepare(&client);
    prepare(&endpoint);
    let ended_well = tokio::select! {
        copied = copy_bidirectional(&mut client, &mut endpoint) => copied.is_ok(),
        () = life.end() => false,
    };
    if !ended_well {
        // an end that is no proper end must not look like one to the other side
        reset(&client);
        reset(&endpoint);
    }
}

/// A connection to an endpoint; tries others when one does not answer, or departs meanwhile.
async fn dial(site: Site, choice: &Mutex<Choice>, connections: &Connections) -> Option<(TcpStream, Life)> {
    let mut failed = Vec::new();
    loop {
        let (endpoint, mut life) = connections.pick(site, choice, &failed)?;
        let socket = match new_socket(endpoint) {
            Ok(socket) => socket,
            Err(error) => {
                connections.warnings.warn(NO_SOCKET, site, Some(&error));
                return None;
            }
        };
        let connected = tokio::select! {
            connected = timeout(CONNECT, socket.connect(endpoint)) => connected.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())),
            () = life.end() => Err(io::Error::other("it has departed")),
        };
        match connected {
            Ok(stream) => return Some((stream, life)),
            Err(error) => {
                tracing::debug!(v = 4, address = %site.address(), %endpoint, %error, "Endpoint of a node port does not answer");
                failed.push(endpoint);
            }
        }
    }
}

/// Small writes go at once, and a peer that has vanished is noticed. A socket for which that cannot be set still works.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE);
    let _ = sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES);
}

/// Closing this connection will send a reset.
fn reset(stream: &TcpStream) {
    // a socket that is dead already needs none
    let _ = stream.set_zero_linger();
}
