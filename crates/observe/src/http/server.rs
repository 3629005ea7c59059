//! Listening, accepting, and the limits that keep a client from holding up the others.
//!
//! A client has [`Limits::idle`] to send the header of a request, and a connection lives [`Limits::lifetime`] at
//! most. When there are [`Limits::connections`] already, the oldest makes room for a new one: whoever sends
//! slowly or not at all is old, and an honest request is over in a millisecond.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use rustix::net::sockopt::set_ipv6_v6only;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

use super::answer::Answer;

/// What clients may cost, and how patient a server is. The default is right for a node.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Time to send the header of a request, and time between requests.
    pub idle: Duration,
    /// Time until a connection is closed after the request it is at, and at once after [`Limits::idle`] more.
    pub lifetime: Duration,
    /// Time between attempts to get a taken address.
    pub bind_retry: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            idle: Duration::from_secs(30),
            lifetime: Duration::from_secs(300),
            bind_retry: Duration::from_secs(5),
        }
    }
}

/// A server's address could not be had.
#[derive(Debug, thiserror::Error)]
#[error("{server} server: cannot listen on {address}: {cause}; stop what uses it, or choose another address")]
pub struct BindError {
    server: &'static str,
    address: SocketAddr,
    cause: io::Error,
}

/// Listens on an address, trying again and again unless failing is fatal.
pub(super) async fn bind(
    server: &'static str,
    address: SocketAddr,
    hard_fail: bool,
    limits: &Limits,
) -> Result<TcpListener, BindError> {
    let mut told = false;
    loop {
        match listen(address, false) {
            Ok(listener) => {
                if told {
                    info!(server, %address, "Address is free now, serving");
                }
                return Ok(listener);
            }
            Err(cause) if hard_fail => return Err(BindError { server, address, cause }),
            Err(cause) if !told => {
                error!(err = %cause, server, %address, retry = ?limits.bind_retry, "Cannot listen, will try again");
                told = true;
            }
            Err(_) => {}
        }
        sleep(limits.bind_retry).await;
    }
}

/// Opens a listener. Unless `one_family`, a wildcard of either family takes connections of both, as in Go, so that a
/// balancer can ask the default 0.0.0.0:10256 over IPv6.
pub(crate) fn listen(address: SocketAddr, one_family: bool) -> io::Result<TcpListener> {
    let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port()));
    if !one_family && address.ip().is_unspecified() && address != both {
        match listen_there(both, false) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) => {} // no IPv6 here
            other => return other,
        }
    }
    listen_there(address, one_family)
}

fn listen_there(address: SocketAddr, one_family: bool) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, one_family)?;
    }
    // Without this a restart would have to wait for the end of the last connections' TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(128)
}

/// Accepts and answers for ever. Dropping the future closes the listener and all connections.
pub(crate) async fn serve<H, F>(listener: TcpListener, limits: Limits, handler: H) -> !
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let mut connections = Connections::new(limits.connections);
    let mut told = false;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => connections.admit(converse(stream, limits, handler.clone())),
                Err(cause) => {
                    // Mostly out of file descriptors: waiting gives others the time to return some.
                    if !told {
                        warn!(err = %cause, address = ?listener.local_addr().ok(), "Cannot accept connections");
                        told = true;
                    }
                    sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.tasks.join_next() => {}
        }
    }
}

/// One connection, from accept to close. Errors are the client's own affair.
async fn converse<H, F>(stream: TcpStream, limits: Limits, handler: H)
where
    H: Fn(Request<Incoming>) -> F,
    F: Future<Output = Answer>,
{
    let service = service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .max_buf_size(16 * 1024)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = sleep(limits.lifetime) => connection.as_mut().graceful_shutdown(),
    }
    // Whoever does not take the last answer in time is cut off.
    let _ = timeout(limits.idle, connection).await;
}

/// The open connections, the oldest first.
struct Connections {
    most: usize,
    tasks: JoinSet<()>,
    by_age: VecDeque<AbortHandle>,
}

impl Connections {
    fn new(most: usize) -> Self {
        Self { most, tasks: JoinSet::new(), by_age: VecDeque::new() }
    }

    fn admit(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        if self.by_age.len() >= self.most {
            self.by_age.retain(|task| !task.is_finished());
        }
        if self.by_age.len() >= self.most
            && let Some(oldest) = self.by_age.pop_front()
        {
            oldest.abort();
        }
        self.by_age.push_back(self.tasks.spawn(connection));
    }
}
