//! A server that tells who it is and whom it sees.
//!
//! Over TCP it sends one line when a connection is made and one more for each line it receives; over UDP one datagram for
//! each it receives. The line is `NAME PEER`, where PEER is the client's address and port as the server sees them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, bind, listen, socket_with, sockopt};

use crate::world::{Error, Member};

/// Connections waiting to be accepted: more than the load generator opens at once.
const BACKLOG: i32 = 1024;
/// Pause after an accept that failed for want of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A running server; stops when dropped, and its connections break.
#[derive(Debug)]
pub struct Server {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server in the namespace of `member`, called as the member, for TCP and UDP on all of `ports` of all its
    /// addresses.
    pub fn start(member: &Member, ports: &[u16]) -> Result<Self, Error> {
        let opened = member.namespace.run(|| {
            let mut sockets = Sockets::default();
            for port in ports {
                sockets.open(*port).map_err(|source| Error::Listen {
                    member: member.name.clone(),
                    port: *port,
                    source,
                })?;
            }
            Ok::<_, Error>(sockets)
        })?;
        let sockets = opened?;
        let failed = |source: io::Error| Error::Socket { member: member.name.clone(), source };
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?);
        let stopped = Arc::clone(&stop);
        let name = member.name.clone();
        let thread = thread::Builder::new()
            .name(format!("server {name}"))
            .spawn(move || sockets.serve(&name, &stopped))
            .map_err(failed)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // an eventfd takes 8 bytes until it holds 2^64 - 2: the first write cannot fail
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug, Default)]
struct Sockets {
    listeners: Vec<TcpListener>,
    datagrams: Vec<UdpSocket>,
    connections: Vec<(TcpStream, SocketAddr)>,
}

impl Sockets {
    fn open(&mut self, port: u16) -> io::Result<()> {
        for address in [SocketAddr::from(([0, 0, 0, 0], port)), SocketAddr::from(([0_u16; 8], port))] {
            match listening(address, SocketType::STREAM) {
                Err(Errno::AFNOSUPPORT) if address.is_ipv6() => continue,
                socket => self.listeners.push(socket?.into()),
            }
            self.datagrams.push(listening(address, SocketType::DGRAM)?.into());
        }
        Ok(())
    }

    fn serve(mut self, name: &str, stop: &OwnedFd) {
        loop {
            let wait = std::iter::once(stop.as_fd())
                .chain(self.listeners.iter().map(AsFd::as_fd))
                .chain(self.datagrams.iter().map(AsFd::as_fd))
                .chain(self.connections.iter().map(|(stream, _)| stream.as_fd()));
            let mut wait: Vec<_> = wait.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            match poll(&mut wait, None) {
                Err(Errno::INTR) => continue,
                Err(_) => return,
                Ok(_) => {}
            }
            let ready: Vec<bool> = wait.iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut ready = ready.into_iter();
            if ready.next() == Some(true) {
                return;
            }
            let arrived = with_ready(&self.listeners, &mut ready).flat_map(|listener| accept(listener, name));
            let arrived: Vec<_> = arrived.collect();
            with_ready(&self.datagrams, &mut ready).for_each(|socket| answer_datagrams(socket, name));
            self.connections.retain(|(stream, peer)| {
                !ready.next().unwrap_or(false) || answer_lines(stream, *peer, name).is_ok()
            });
            self.connections.extend(arrived);
        }
    }
}

/// Those of `sockets` for which `ready`, which goes along with them, is true.
fn with_ready<'a, S>(
    sockets: &'a [S],
    ready: &mut impl Iterator<Item = bool>,
) -> impl Iterator<Item = &'a S> {
    sockets.iter().zip(ready).filter(|(_, ready)| *ready).map(|(socket, _)| socket)
}

fn listening(address: SocketAddr, kind: SocketType) -> rustix::io::Result<OwnedFd> {
    use rustix::net::SocketFlags;
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if kind == SocketType::STREAM {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &address)?;
    if kind == SocketType::STREAM {
        listen(&socket, BACKLOG)?;
    }
    Ok(socket)
}

fn accept(listener: &TcpListener, name: &str) -> Vec<(TcpStream, SocketAddr)> {
    let mut accepted = Vec::new();
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                if stream.set_nonblocking(true).is_ok() && greet(&stream, peer, name).is_ok() {
                    accepted.push((stream, peer));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return accepted,
            Err(_) => {
                thread::sleep(ACCEPT_PAUSE);
                return accepted;
            }
        }
    }
}

fn greet(mut stream: &TcpStream, peer: SocketAddr, name: &str) -> io::Result<()> {
    stream.write_all(format!("{name} {peer}\n").as_bytes())
}

/// Answers what was received; an error when the connection is over.
fn answer_lines(mut stream: &TcpStream, peer: SocketAddr, name: &str) -> io::Result<()> {
    let mut buffer = [0; 1024];
    let length = stream.read(&mut buffer)?;
    if length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut line_ends = buffer[..length].iter().filter(|byte| **byte == b'\n');
    line_ends.try_for_each(|_| greet(stream, peer, name))
}

fn answer_datagrams(socket: &UdpSocket, name: &str) {
    let mut buffer = [0; 1024];
    while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
        let _ = socket.send_to(format!("{name} {peer}\n").as_bytes(), peer);
    }
}
