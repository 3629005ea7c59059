//! TCP: each connection is taken and continued to an endpoint.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{sleep, timeout};

use crate::choice::Choice;
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
/// Time between two warnings about too many connections.
const WARN_PERIOD: Duration = Duration::from_secs(60);

/// The connections of all listeners.
#[derive(Debug)]
pub(crate) struct Connections {
    free: Arc<Semaphore>,
    /// What tells the connections of a listener to an endpoint to end.
    ends: Mutex<BTreeMap<(Site, SocketAddr), Weak<Notify>>>,
    warned: Mutex<Option<Instant>>,
}

impl Connections {
    pub(crate) fn new(limit: usize) -> Self {
        let free = Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        Self { free, ends: Mutex::default(), warned: Mutex::default() }
    }

    /// Resets the connections of a listener to an endpoint.
    pub(crate) fn reset(&self, site: Site, endpoint: SocketAddr) {
        let end = lock(&self.ends).remove(&(site, endpoint));
        if let Some(end) = end.and_then(|end| end.upgrade()) {
            end.notify_waiters();
        }
    }

    /// What will tell a new connection to end.
    fn end(&self, site: Site, endpoint: SocketAddr) -> Arc<Notify> {
        let mut ends = lock(&self.ends);
        let known = ends.entry((site, endpoint)).or_default();
        known.upgrade().unwrap_or_else(|| {
            let end = Arc::default();
            *known = Arc::downgrade(&end);
            end
        })
    }

    /// Forgets the endpoints to which there is no connection any more.
    pub(crate) fn tidy(&self) {
        lock(&self.ends).retain(|_, end| end.strong_count() > 0);
    }

    fn warn(&self, what: &str, site: Site, error: Option<&io::Error>) {
        let (mut warned, now) = (lock(&self.warned), Instant::now());
        if warned.is_none_or(|at| now.saturating_duration_since(at) >= WARN_PERIOD) {
            *warned = Some(now);
            let error = error.map(tracing::field::display);
            tracing::warn!(address = %site.address(), error, "{what}");
        }
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
                connections.warn(
                    "Cannot accept connections to a node port, trying again",
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
            connections.warn(
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
    let Some((mut endpoint, address)) = dial(site, choice).await else {
        reset(&client);
        return;
    };
    let end = connections.end(site, address);
    prepare(&client);
    prepare(&endpoint);
    let ended_well = tokio::select! {
        copied = copy_bidirectional(&mut client, &mut endpoint) => copied.is_ok(),
        () = end.notified() => false,
    };
    if !ended_well {
        // an end that is no proper end must not look like one to the other side
        reset(&client);
        reset(&endpoint);
    }
}

/// A connection to an endpoint, and which; tries others when one does not answer.
async fn dial(site: Site, choice: &Mutex<Choice>) -> Option<(TcpStream, SocketAddr)> {
    let mut failed = Vec::new();
    loop {
        let endpoint = lock(choice).pick(Instant::now(), &failed)?;
        let connect = async { new_socket(endpoint)?.connect(endpoint).await };
        let error = match timeout(CONNECT, connect).await {
            Ok(Ok(stream)) => return Some((stream, endpoint)),
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        tracing::debug!(v = 4, address = %site.address(), %endpoint, %error, "Endpoint of a node port does not answer");
        failed.push(endpoint);
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
