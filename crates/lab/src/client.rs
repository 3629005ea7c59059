//! A client that tells what became of a connection.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use netlink::namespace::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};

/// What became of one try to reach a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A server answered.
    Answered {
        /// Its name.
        by: String,
        /// The client's address and port as the server sees them.
        seen_peer: SocketAddr,
    },
    /// Refused: by a TCP reset, or by an ICMP port unreachable.
    Refused {
        /// How long it took to be told.
        after: Duration,
    },
    /// Nothing came back in time.
    TimedOut,
    /// The connection was made, then reset or closed before the answer came.
    Reset,
    /// No route, or a router said it cannot deliver or may not.
    Unreachable,
    /// Anything else, in the system's words.
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered { by, seen_peer } => write!(f, "answered by {by}, which sees {seen_peer}"),
            Self::Refused { after } => write!(f, "refused after {after:.1?}"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Reset => f.write_str("reset"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Failed(words) => f.write_str(words),
        }
    }
}

impl Outcome {
    fn of(error: &io::Error, since: Instant) -> Self {
        match Errno::from_io_error(error) {
            Some(Errno::CONNREFUSED) => Self::Refused { after: since.elapsed() },
            // EAGAIN is what reading from a socket with a time limit says when the time is over
            Some(Errno::TIMEDOUT | Errno::AGAIN) => Self::TimedOut,
            None if error.kind() == io::ErrorKind::TimedOut => Self::TimedOut,
            Some(Errno::CONNRESET | Errno::PIPE) => Self::Reset,
            Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS | Errno::NOPROTOOPT) => {
                Self::Unreachable
            }
            _ if error.kind() == io::ErrorKind::UnexpectedEof => Self::Reset,
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Connects from inside a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    namespace: &'a Namespace,
    probe: Probe,
}

/// How to connect; can be taken to a thread that is in the right namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    source: Option<IpAddr>,
    source_port: u16,
    timeout: Duration,
}

impl Probe {
    pub(crate) const fn new(timeout: Duration) -> Self {
        Self { source: None, source_port: 0, timeout }
    }
}

impl<'a> Client<'a> {
    /// A client in `namespace` that gives up after two seconds.
    pub fn new(namespace: &'a Namespace) -> Self {
        Self { namespace, probe: Probe::new(Duration::from_secs(2)) }
    }

    /// Gives up after `timeout`, which counts from the start of a try to its answer.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.probe.timeout = timeout;
        self
    }

    /// Sends from this address.
    #[must_use]
    pub fn from_address(mut self, source: IpAddr) -> Self {
        self.probe.source = Some(source);
        self
    }

    /// Sends from this port.
    #[must_use]
    pub fn from_port(mut self, port: u16) -> Self {
        self.probe.source_port = port;
        self
    }

    /// Connects by TCP, reads who answers, and closes.
    pub fn tcp(&self, to: SocketAddr) -> Outcome {
        self.inside(|probe| match probe.open(to) {
            Ok(connection) => connection.greeting,
            Err(outcome) => outcome,
        })
    }

    /// Sends a datagram by UDP and reads who answers.
    pub fn udp(&self, to: SocketAddr) -> Outcome {
        self.inside(|probe| {
            let start = Instant::now();
            probe.ask_by_udp(to).unwrap_or_else(|error| Outcome::of(&error, start))
        })
    }

    /// Connects by TCP and keeps the connection.
    pub fn open(&self, to: SocketAddr) -> Result<Connection, Outcome> {
        let run = self.namespace.run(|| self.probe.open(to));
        run.unwrap_or_else(|error| Err(Outcome::Failed(error.to_string())))
    }

    fn inside(&self, work: impl FnOnce(Probe) -> Outcome + Send) -> Outcome {
        self.namespace.run(|| work(self.probe)).unwrap_or_else(|error| Outcome::Failed(error.to_string()))
    }
}

impl Probe {
    /// Connects in the namespace of the calling thread.
    pub(crate) fn open(self, to: SocketAddr) -> Result<Connection, Outcome> {
        let start = Instant::now();
        let open = || -> io::Result<Connection> {
            let stream = TcpStream::from(self.connect(to)?);
            stream.set_nonblocking(false)?;
            let left = self.timeout.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
            stream.set_read_timeout(Some(left))?;
            let mut connection = Connection { stream: BufReader::new(stream), greeting: Outcome::TimedOut };
            connection.greeting = connection.read_answer()?;
            connection.stream.get_ref().set_read_timeout(Some(self.timeout))?;
            Ok(connection)
        };
        open().map_err(|error| Outcome::of(&error, start))
    }

    fn connect(self, to: SocketAddr) -> io::Result<OwnedFd> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        if self.source.is_some() || self.source_port != 0 {
            sockopt::set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &self.bind_address(to))?;
        }
        match connect(&socket, &to) {
            Err(Errno::INPROGRESS) => {}
            other => other?,
        }
        let limit = Timespec::try_from(self.timeout).ok();
        let ready = {
            let mut wait = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)];
            poll(&mut wait, limit.as_ref())?
        };
        if ready == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        sockopt::socket_error(&socket)??;
        Ok(socket)
    }

    fn ask_by_udp(self, to: SocketAddr) -> io::Result<Outcome> {
        let socket = UdpSocket::bind(self.bind_address(to))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(self.timeout))?;
        match socket.send(b"who\n").map_err(|error| (Errno::from_io_error(&error), error)) {
            // This host's own rules took the packet. Whether they refused it or dropped it shows when receiving.
            Ok(_) | Err((Some(Errno::PERM), _)) => {}
            Err((_, error)) => return Err(error),
        }
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer)?;
        Ok(parse_answer(&String::from_utf8_lossy(&buffer[..length])))
    }

    fn bind_address(self, to: SocketAddr) -> SocketAddr {
        let any = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        SocketAddr::new(self.source.unwrap_or(any), self.source_port)
    }
}

/// A TCP connection that stays open.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
    greeting: Outcome,
}

impl Connection {
    /// What the server said when the connection was made.
    pub fn greeting(&self) -> &Outcome {
        &self.greeting
    }

    /// Asks once more over the same connection: tells whether it still carries data both ways.
    pub fn ask(&mut self) -> Outcome {
        let start = Instant::now();
        let asked = self.stream.get_mut().write_all(b"who\n").and_then(|()| self.read_answer());
        asked.unwrap_or_else(|error| Outcome::of(&error, start))
    }

    /// Closes by reset, so that no port stays in TIME_WAIT. Before that the end is announced: connection tracking lets a client
    /// use its port again for a new connection if it has seen a FIN, or if the reset was the very last packet, which it is not
    /// when an acknowledgement on another processor is late.
    pub(crate) fn abandon(self) -> Outcome {
        let _ = self.stream.get_ref().shutdown(Shutdown::Write);
        let _ = sockopt::set_socket_linger(self.stream.get_ref(), Some(Duration::ZERO));
        self.greeting
    }

    fn read_answer(&mut self) -> io::Result<Outcome> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(parse_answer(&line)),
        }
    }
}

fn parse_answer(line: &str) -> Outcome {
    let mut words = line.split_whitespace();
    match (words.next(), words.next().map(str::parse)) {
        (Some(by), Some(Ok(seen_peer))) => Outcome::Answered { by: by.to_owned(), seen_peer },
        _ => Outcome::Failed(format!("an answer that is none of our servers': {line:?}")),
    }
}
