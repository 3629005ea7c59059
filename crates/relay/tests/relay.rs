//! The relay with real connections, each test in a network namespace of its own. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use kube_proxy_relay::{Counters, Handle, Limits, NodePort, Transport, relay};
use model::{Family, ObjectKey};
use netlink::namespace::Namespace;
use netlink::route;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing_subscriber::layer::SubscriberExt;

/// The node port.
const PORT: u16 = 30080;
/// Longer than anything takes that happens at all.
const PATIENCE: Duration = Duration::from_secs(20);
const PLENTY: Limits = Limits { connections: 100, sessions: 100, listeners: 100 };

/// What the relay counted.
#[derive(Default)]
struct Counts {
    open: AtomicI64,
    opened: AtomicUsize,
    failed: AtomicUsize,
}

struct Counting(Arc<Counts>);

impl Counters for Counting {
    fn opened(&self, _: Family) {
        self.0.open.fetch_add(1, Ordering::SeqCst);
        self.0.opened.fetch_add(1, Ordering::SeqCst);
    }

    fn closed(&self, _: Family) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }

    fn failed(&self, _: Family) {
        self.0.failed.fetch_add(1, Ordering::SeqCst);
    }
}

/// A relay at work, seen from one family.
struct Node {
    family: Family,
    handle: Handle,
    counts: Arc<Counts>,
    /// Lines in the log that are errors.
    complaints: Arc<AtomicUsize>,
}

/// Runs a test for each family of this machine, in a namespace with a relay in it.
fn for_each_family<F: Future<Output = ()>>(limits: Limits, test: impl Fn(Node) -> F + Sync) {
    for family in [Family::V4, Family::V6] {
        if family == Family::V6 && !Path::new("/proc/net/if_inet6").exists() {
            continue;
        }
        let namespace = Namespace::new().expect("namespace tests need root");
        let run = || {
            route::Handle::open().unwrap().set_up("lo").unwrap();
            let complaints = Arc::new(AtomicUsize::new(0));
            let log = tracing_subscriber::registry().with(Complaints(Arc::clone(&complaints)));
            let _guard = tracing::subscriber::set_default(log);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let counts = Arc::new(Counts::default());
                let (handle, relay) = relay(limits, Box::new(Counting(Arc::clone(&counts))));
                tokio::spawn(relay.run());
                timeout(3 * PATIENCE, test(Node { family, handle, counts, complaints })).await.unwrap();
            });
        };
        namespace.run(run).unwrap();
    }
}

/// Counts errors in the log.
struct Complaints(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Complaints {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if *event.metadata().level() == tracing::Level::ERROR {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn loopback(family: Family, port: u16) -> SocketAddr {
    let address: IpAddr = match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    };
    (address, port).into()
}

fn service(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

impl Node {
    fn address(&self, port: u16) -> SocketAddr {
        loopback(self.family, port)
    }

    fn endpoint(&self, number: u8) -> SocketAddr {
        self.address(8000 + u16::from(number))
    }

    /// Gives the node port these endpoints.
    fn set(&self, transport: Transport, numbers: &[u8]) {
        self.set_with_affinity(transport, numbers, None);
    }

    fn set_with_affinity(&self, transport: Transport, numbers: &[u8], affinity: Option<Duration>) {
        self.set_service("web", transport, numbers, affinity);
    }

    fn set_service(&self, name: &str, transport: Transport, numbers: &[u8], affinity: Option<Duration>) {
        let endpoints = numbers.iter().map(|number| self.endpoint(*number)).collect();
        let port = NodePort { transport, number: PORT, endpoints, departed: vec![], affinity };
        self.handle.set(self.family, service(name), vec![port]);
    }

    /// The same, and waits until so many listeners are open.
    async fn settle(&self, transport: Transport, numbers: &[u8]) {
        self.set(transport, numbers);
        self.until_open(usize::from(!numbers.is_empty())).await;
    }

    async fn until_open(&self, listeners: usize) {
        let listeners = i64::try_from(listeners).unwrap();
        until("the listeners are open", async || self.counts.open.load(Ordering::SeqCst) == listeners).await;
    }

    fn opened(&self) -> usize {
        self.counts.opened.load(Ordering::SeqCst)
    }

    async fn tcp_listener(&self, number: u8) -> TcpListener {
        TcpListener::bind(self.endpoint(number)).await.unwrap()
    }

    /// An endpoint that answers nobody until it accepts the connection that comes with it.
    async fn full_listener(&self, number: u8) -> (TcpListener, TcpStream) {
        let socket = match self.family {
            Family::V4 => TcpSocket::new_v4(),
            Family::V6 => TcpSocket::new_v6(),
        };
        let socket = socket.unwrap();
        socket.bind(self.endpoint(number)).unwrap();
        // the kernel keeps one more than asked for
        let listener = socket.listen(0).unwrap();
        (listener, TcpStream::connect(self.endpoint(number)).await.unwrap())
    }

    /// Somebody in this namespace waits for the answer to a SYN.
    fn is_connecting(&self) -> bool {
        const SYN_SENT: &str = "02";
        let sockets = match self.family {
            Family::V4 => "/proc/thread-self/net/tcp",
            Family::V6 => "/proc/thread-self/net/tcp6",
        };
        let sockets = std::fs::read_to_string(sockets).unwrap();
        sockets.lines().any(|socket| socket.split_whitespace().nth(3) == Some(SYN_SENT))
    }

    async fn udp_endpoint(&self, number: u8) -> UdpSocket {
        UdpSocket::bind(self.endpoint(number)).await.unwrap()
    }

    /// An endpoint that writes its number to each client, then sends back what it gets.
    async fn tcp_server(&self, number: u8) -> JoinHandle<()> {
        let listener = self.tcp_listener(number).await;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.into_split();
                    write.write_all(&[number]).await.unwrap();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        })
    }

    /// An endpoint that answers each datagram with its number.
    async fn udp_server(&self, number: u8) -> JoinHandle<()> {
        let socket = self.udp_endpoint(number).await;
        tokio::spawn(async move {
            while let Ok((_, peer)) = socket.recv_from(&mut [0; 100]).await {
                let _ = socket.send_to(&[number], peer).await;
            }
        })
    }

    async fn tcp(&self) -> io::Result<TcpStream> {
        TcpStream::connect(self.address(PORT)).await
    }

    /// A connection to the node port, and the number of the endpoint that it leads to.
    async fn greeted(&self) -> io::Result<(u8, TcpStream)> {
        let mut stream = self.tcp().await?;
        Ok((stream.read_u8().await?, stream))
    }

    async fn answered_by(&self) -> u8 {
        self.greeted().await.unwrap().0
    }

    async fn udp_client(&self) -> UdpSocket {
        UdpSocket::bind(self.address(0)).await.unwrap()
    }
}

/// Who answers one datagram of this client. What has not come after a second is lost: another one is sent.
async fn ask(node: &Node, client: &UdpSocket) -> u8 {
    let mut answer = [0; 100];
    for _ in 0..20 {
        client.send_to(b"who", node.address(PORT)).await.unwrap();
        if let Ok(received) = timeout(Duration::from_secs(1), client.recv_from(&mut answer)).await {
            let (length, from) = received.unwrap();
            assert_eq!((length, from), (1, node.address(PORT)), "from where it was sent to");
            return answer[0];
        }
    }
    panic!("no answer");
}

async fn until(what: &str, so: impl AsyncFn() -> bool) {
    let waiting = async {
        while !so().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    all
}

/// What reading says of a connection that the other side has ended.
async fn end(stream: &mut TcpStream) -> Result<usize, ErrorKind> {
    stream.read(&mut [0; 10]).await.map_err(|error| error.kind())
}

#[test]
fn the_end_of_one_direction_is_passed_on_and_the_other_goes_on() {
    for_each_family(PLENTY, async |node| {
        let listener = node.tcp_listener(1).await;
        node.settle(Transport::Tcp, &[1]).await;
        for client_first in [true, false] {
            let client = node.tcp().await.unwrap();
            let (endpoint, _) = listener.accept().await.unwrap();
            let (mut first, mut second) = if client_first { (client, endpoint) } else { (endpoint, client) };
            first.write_all(b"question").await.unwrap();
            first.shutdown().await.unwrap();
            assert_eq!(read_all(&mut second).await, b"question");
            second.write_all(b"late answer").await.unwrap();
            second.shutdown().await.unwrap();
            assert_eq!(read_all(&mut first).await, b"late answer");
        }
    });
}

#[test]
fn a_reset_is_passed_on_as_a_reset() {
    for_each_family(PLENTY, async |node| {
        let listener = node.tcp_listener(1).await;
        node.settle(Transport::Tcp, &[1]).await;
        for client_first in [true, false] {
            let client = node.tcp().await.unwrap();
            let (endpoint, _) = listener.accept().await.unwrap();
            let (first, mut second) = if client_first { (client, endpoint) } else { (endpoint, client) };
            first.set_zero_linger().unwrap();
            drop(first);
            assert_eq!(end(&mut second).await, Err(ErrorKind::ConnectionReset));
        }
    });
}

#[test]
fn a_dead_endpoint_is_stepped_over_and_without_a_live_one_the_client_is_reset() {
    for_each_family(PLENTY, async |node| {
        let _server = node.tcp_server(3).await;
        node.settle(Transport::Tcp, &[1, 2, 3]).await;
        for _ in 0..3 {
            assert_eq!(node.answered_by().await, 3);
        }
        node.set(Transport::Tcp, &[1, 2]);
        until("the live endpoint is left out", async || {
            node.greeted().await.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
        })
        .await;
    });
}

#[test]
fn clients_follow_the_endpoints_and_the_listener_stays() {
    for_each_family(PLENTY, async |node| {
        let _servers = (node.tcp_server(1).await, node.tcp_server(2).await);
        node.settle(Transport::Tcp, &[1]).await;
        let (_, mut old) = node.greeted().await.unwrap();
        node.set(Transport::Tcp, &[1, 2]);
        until("the new endpoint is met", async || node.answered_by().await == 2).await;
        node.set(Transport::Tcp, &[2]);
        until("the old endpoint is met no more", async || {
            node.answered_by().await == 2 && node.answered_by().await == 2
        })
        .await;
        old.write_all(b"!").await.unwrap();
        assert_eq!(old.read_u8().await.unwrap(), b'!', "an established connection goes on");
        assert_eq!(node.opened(), 1);
    });
}

#[test]
fn without_endpoints_tcp_clients_are_refused_and_established_connections_go_on() {
    for_each_family(PLENTY, async |node| {
        let _server = node.tcp_server(1).await;
        node.settle(Transport::Tcp, &[1]).await;
        let (_, mut old) = node.greeted().await.unwrap();
        node.settle(Transport::Tcp, &[]).await;
        assert_eq!(node.tcp().await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        old.write_all(b"!").await.unwrap();
        assert_eq!(old.read_u8().await.unwrap(), b'!');
        node.settle(Transport::Tcp, &[1]).await;
        assert_eq!(node.answered_by().await, 1, "with the old connection still there");
        node.handle.set(node.family, service("web"), vec![]);
        node.until_open(0).await;
        assert_eq!(node.tcp().await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn connections_to_an_endpoint_that_has_departed_are_reset_and_no_others() {
    for_each_family(PLENTY, async |node| {
        let listeners = [node.tcp_listener(1).await, node.tcp_listener(2).await];
        let mut connections = Vec::new();
        for number in [1, 2] {
            node.settle(Transport::Tcp, &[number]).await;
            let client = node.tcp().await.unwrap();
            connections.push((client, listeners[usize::from(number) - 1].accept().await.unwrap().0));
            node.settle(Transport::Tcp, &[]).await;
        }
        let departed = vec![node.endpoint(1)];
        let port =
            NodePort { transport: Transport::Tcp, number: PORT, endpoints: vec![], departed, affinity: None };
        node.handle.set(node.family, service("web"), vec![port]);
        let [(client, endpoint), (other, at_other)] = &mut connections[..] else { unreachable!() };
        assert_eq!(end(client).await, Err(ErrorKind::ConnectionReset));
        assert_eq!(end(endpoint).await, Err(ErrorKind::ConnectionReset));
        at_other.write_all(b"!").await.unwrap();
        assert_eq!(other.read_u8().await.unwrap(), b'!');
    });
}

#[test]
fn a_client_that_waits_for_an_endpoint_is_reset_when_all_have_departed() {
    for_each_family(PLENTY, async |node| {
        let _other = node.tcp_server(2).await;
        let (slow, _first) = node.full_listener(1).await;
        node.settle(Transport::Tcp, &[1]).await;
        let mut client = node.tcp().await.unwrap();
        until("the relay waits for the endpoint", async || node.is_connecting()).await;
        // the next one to be tried, which the relay knows of when it serves what it is told after that
        node.set(Transport::Tcp, &[1, 2]);
        node.set_service("later", Transport::Udp, &[2], None);
        node.until_open(2).await;
        let departed = vec![node.endpoint(1), node.endpoint(2)];
        let port =
            NodePort { transport: Transport::Tcp, number: PORT, endpoints: vec![], departed, affinity: None };
        node.handle.set(node.family, service("web"), vec![port]);
        node.until_open(1).await;
        let accepting = tokio::spawn(async move {
            let mut accepted = Vec::new();
            while let Ok((stream, _)) = slow.accept().await {
                accepted.push(stream);
            }
        });
        let ended = timeout(PATIENCE, end(&mut client)).await;
        assert_eq!(ended.expect("the client is told"), Err(ErrorKind::ConnectionReset));
        accepting.abort();
    });
}

#[test]
fn a_port_that_goes_to_another_service_stays_open() {
    for_each_family(PLENTY, async |node| {
        let _servers = (node.tcp_server(1).await, node.tcp_server(2).await);
        node.settle(Transport::Tcp, &[1]).await;
        for old_first in [true, false] {
            let (old, new, number) = if old_first { ("web", "new", 2) } else { ("new", "web", 1) };
            let take = || node.handle.set(node.family, service(old), vec![]);
            let give = || node.set_service(new, Transport::Tcp, &[number], None);
            if old_first {
                take();
                give();
            } else {
                give();
                take();
            }
            until("the new service has it", async || node.answered_by().await == number).await;
        }
        assert_eq!(node.opened(), 1);
    });
}

#[test]
fn with_client_ip_affinity_one_endpoint_is_kept() {
    for_each_family(PLENTY, async |node| {
        let mut servers = Vec::new();
        for number in [1, 2, 3] {
            servers.push((node.tcp_server(number).await, node.udp_server(number).await));
        }
        for transport in [Transport::Tcp, Transport::Udp] {
            node.set_with_affinity(transport, &[1, 2, 3], Some(Duration::from_secs(3600)));
            until("the port is served", async || match transport {
                Transport::Tcp => node.tcp().await.is_ok(),
                Transport::Udp => UdpSocket::bind(node.address(PORT)).await.is_err(),
            })
            .await;
            let mut met = Vec::new();
            for _ in 0..6 {
                met.push(match transport {
                    Transport::Tcp => node.answered_by().await,
                    Transport::Udp => ask(&node, &node.udp_client().await).await,
                });
            }
            assert!(met.iter().all(|number| *number == met[0]), "{transport:?}: {met:?}");
        }
    });
}

#[test]
fn more_connections_than_allowed_are_reset() {
    for_each_family(Limits { connections: 1, ..PLENTY }, async |node| {
        let _server = node.tcp_server(1).await;
        node.settle(Transport::Tcp, &[1]).await;
        let (_, mut first) = node.greeted().await.unwrap();
        assert_eq!(node.greeted().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        first.write_all(b"!").await.unwrap();
        assert_eq!(first.read_u8().await.unwrap(), b'!', "the first one is not disturbed");
        drop(first);
        until("there is room again", async || node.greeted().await.is_ok()).await;
    });
}

#[test]
fn replies_come_from_the_node_port_to_the_client_that_asked() {
    for_each_family(PLENTY, async |node| {
        let endpoint = node.udp_endpoint(1).await;
        node.settle(Transport::Udp, &[1]).await;
        let clients = [node.udp_client().await, node.udp_client().await];
        let largest = vec![7; 65507];
        let mut buffer = vec![0; 70000];
        for client in &clients {
            for payload in [&b"hello"[..], b"", &largest] {
                client.send_to(payload, node.address(PORT)).await.unwrap();
                let (length, peer) =
                    timeout(PATIENCE, endpoint.recv_from(&mut buffer)).await.unwrap().unwrap();
                assert_eq!(&buffer[..length], payload);
                endpoint.send_to(payload, peer).await.unwrap();
                let (length, from) = timeout(PATIENCE, client.recv_from(&mut buffer)).await.unwrap().unwrap();
                assert_eq!((&buffer[..length], from), (payload, node.address(PORT)));
            }
        }
        assert!(clients.iter().all(|client| client.try_recv(&mut buffer).is_err()), "nothing else came");
    });
}

#[test]
fn a_client_stays_with_its_udp_endpoint_until_that_is_removed() {
    for_each_family(PLENTY, async |node| {
        let servers = [node.udp_server(1).await, node.udp_server(2).await];
        node.settle(Transport::Udp, &[1, 2]).await;
        let client = node.udp_client().await;
        let first = ask(&node, &client).await;
        for _ in 0..4 {
            assert_eq!(ask(&node, &client).await, first);
        }
        let other = 3 - first;
        node.set(Transport::Udp, &[other]);
        until("the client moves to the one left", async || ask(&node, &client).await == other).await;
        assert_eq!(node.opened(), 1);
        drop(servers);
    });
}

#[test]
fn a_client_moves_away_from_a_udp_endpoint_where_nobody_listens() {
    for_each_family(PLENTY, async |node| {
        let _server = node.udp_server(2).await;
        node.settle(Transport::Udp, &[1, 2]).await;
        for _ in 0..2 {
            assert_eq!(ask(&node, &node.udp_client().await).await, 2);
        }
    });
}

#[test]
fn without_endpoints_udp_clients_are_refused() {
    for_each_family(PLENTY, async |node| {
        let _server = node.udp_server(1).await;
        node.settle(Transport::Udp, &[1]).await;
        let client = node.udp_client().await;
        client.connect(node.address(PORT)).await.unwrap();
        assert_eq!(ask(&node, &node.udp_client().await).await, 1);
        node.settle(Transport::Udp, &[]).await;
        client.send(b"who").await.unwrap();
        let refused = timeout(PATIENCE, client.recv(&mut [0; 10])).await.unwrap();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_new_udp_client_takes_the_place_of_the_one_that_was_idle_longest() {
    for_each_family(Limits { sessions: 2, ..PLENTY }, async |node| {
        let endpoint = node.udp_endpoint(1).await;
        node.settle(Transport::Udp, &[1]).await;
        // how the endpoint sees the client's session
        let seen = async |client: &UdpSocket| {
            client.send_to(b"who", node.address(PORT)).await.unwrap();
            timeout(PATIENCE, endpoint.recv_from(&mut [0; 10])).await.unwrap().unwrap().1
        };
        let (a, b, c) = (node.udp_client().await, node.udp_client().await, node.udp_client().await);
        let (session_a, session_b) = (seen(&a).await, seen(&b).await);
        assert_eq!(seen(&a).await, session_a);
        seen(&c).await;
        assert_eq!(seen(&a).await, session_a, "used after the other one");
        assert_ne!(seen(&b).await, session_b, "had made room");
    });
}

#[test]
fn a_port_in_use_is_complained_about_once_and_served_when_it_is_free() {
    for_each_family(PLENTY, async |node| {
        let _servers = (node.tcp_server(1).await, node.udp_server(1).await);
        let taken = (
            std::net::TcpListener::bind(node.address(PORT)).unwrap(),
            std::net::UdpSocket::bind(node.address(PORT)).unwrap(),
        );
        let port = |transport| NodePort {
            transport,
            number: PORT,
            endpoints: vec![node.endpoint(1)],
            departed: vec![],
            affinity: None,
        };
        let ports = vec![port(Transport::Tcp), port(Transport::Udp)];
        node.handle.set(node.family, service("web"), ports);
        until("it was tried again", async || node.counts.failed.load(Ordering::SeqCst) >= 4).await;
        assert_eq!(node.complaints.load(Ordering::SeqCst), 2, "one for each protocol");
        assert_eq!(node.counts.open.load(Ordering::SeqCst), 0);
        drop(taken);
        node.until_open(2).await;
        assert_eq!(node.answered_by().await, 1);
        assert_eq!(ask(&node, &node.udp_client().await).await, 1);
    });
}

#[test]
fn more_listeners_than_allowed_are_opened_when_others_have_been_closed() {
    for_each_family(Limits { listeners: 1, ..PLENTY }, async |node| {
        let _servers = (node.tcp_server(1).await, node.udp_server(1).await);
        node.settle(Transport::Tcp, &[1]).await;
        node.set_service("second", Transport::Udp, &[1], None);
        until("it was tried again", async || node.counts.failed.load(Ordering::SeqCst) >= 2).await;
        assert_eq!(node.answered_by().await, 1);
        assert_eq!(node.complaints.load(Ordering::SeqCst), 0, "the port is not to blame");
        node.set(Transport::Tcp, &[]);
        assert_eq!(ask(&node, &node.udp_client().await).await, 1);
        assert_eq!(node.opened(), 2);
    });
}

#[test]
fn everything_is_closed_when_nobody_can_tell_the_relay_more() {
    for_each_family(PLENTY, async |node| {
        node.settle(Transport::Tcp, &[1]).await;
        let Node { family, handle, counts, .. } = node;
        drop(handle);
        until("all is closed", async || counts.open.load(Ordering::SeqCst) == 0).await;
        let refused = TcpStream::connect(loopback(family, PORT)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}
