//! The relay without a free file descriptor. One test: the limit is that of the process. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::File;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube_proxy_relay::{Counters, Limits, NodePort, Transport, relay};
use model::{Family, ObjectKey};
use netlink::namespace::Namespace;
use netlink::route;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, UdpSocket};
use tokio::time::{sleep, timeout};
use tracing_subscriber::layer::SubscriberExt;

/// Longer than anything takes that happens at all.
const PATIENCE: Duration = Duration::from_secs(20);
const LIMITS: Limits = Limits { connections: 100, sessions: 100, listeners: 100 };

/// Counts the listeners that have been opened.
struct Opened(Arc<AtomicUsize>);

impl Counters for Opened {
    fn opened(&self, _: Family) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn closed(&self, _: Family) {}
    fn failed(&self, _: Family) {}
}

/// Keeps the messages of the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn count(&self, part: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|line| line.contains(part)).count()
    }
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        struct Message<'a>(&'a Mutex<Vec<String>>);
        impl tracing::field::Visit for Message<'_> {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0.lock().unwrap().push(format!("{value:?}"));
                }
            }
        }
        event.record(&mut Message(&self.0));
    }
}

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// A node port with one endpoint.
fn port(transport: Transport, number: u16, endpoint: SocketAddr) -> NodePort {
    NodePort { transport, number, endpoints: vec![endpoint], departed: vec![], affinity: None }
}

async fn until(what: &str, so: impl AsyncFn() -> bool) {
    let waiting = async {
        while !so().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

/// Opens files until there may be no more.
fn all_descriptors() -> Vec<File> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(200), maximum }).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn without_a_free_descriptor_each_trouble_is_told_once_and_passes_with_it() {
    let log = Log::default();
    let run = || {
        route::Handle::open().unwrap().set_up("lo").unwrap();
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(&log));
    };
    Namespace::new().expect("namespace tests need root").run(run).unwrap();
}

async fn test(log: &Log) {
    let opened = Arc::new(AtomicUsize::new(0));
    let (handle, relay) = relay(LIMITS, Box::new(Opened(Arc::clone(&opened))));
    tokio::spawn(relay.run());
    let tcp = TcpListener::bind(at(0)).await.unwrap();
    let udp = UdpSocket::bind(at(0)).await.unwrap();
    let (tcp_endpoint, udp_endpoint) = (tcp.local_addr().unwrap(), udp.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = tcp.accept().await {
            let _ = stream.write_all(b"!").await;
        }
    });
    let first = vec![port(Transport::Tcp, 30080, tcp_endpoint), port(Transport::Udp, 30080, udp_endpoint)];
    handle.set(Family::V4, ObjectKey::new("default", "first"), first);
    until("the node port is served", async || opened.load(Ordering::SeqCst) == 2).await;

    let clients = [TcpSocket::new_v4().unwrap(), TcpSocket::new_v4().unwrap()];
    let udp_client = UdpSocket::bind(at(0)).await.unwrap();
    let hoard = all_descriptors();
    let mut waiting = Vec::new();
    for client in clients {
        waiting.push(client.connect(at(30080)).await.unwrap());
    }
    for _ in 0..2 {
        udp_client.send_to(b"?", at(30080)).await.unwrap();
    }
    for (name, number) in [("second", 30081), ("third", 30082)] {
        let ports = vec![port(Transport::Tcp, number, tcp_endpoint)];
        handle.set(Family::V4, ObjectKey::new("default", name), ports);
    }
    let troubles = ["Cannot accept", "Cannot open a socket", "Cannot listen"];
    until("all is told", async || troubles.iter().all(|trouble| log.count(trouble) > 0)).await;
    drop(hoard);

    for client in &mut waiting {
        assert_eq!(timeout(PATIENCE, client.read_u8()).await.unwrap().unwrap(), b'!', "it only had to wait");
    }
    until("all are served", async || opened.load(Ordering::SeqCst) == 4).await;
    udp_client.send_to(b"now", at(30080)).await.unwrap();
    let mut datagram = [0; 10];
    let (length, _) = timeout(PATIENCE, udp.recv_from(&mut datagram)).await.unwrap().unwrap();
    assert_eq!(&datagram[..length], b"now");
    for trouble in troubles {
        assert_eq!(log.count(trouble), 1, "{trouble}");
    }
    assert_eq!(log.count("does not answer") + log.count("takes no datagrams"), 0, "no endpoint is to blame");
}
