//! Addresses, clients and servers for tests on loopback.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube_proxy_observe::health::Health;
use kube_proxy_observe::http::{self, Limits, Pages};
use kube_proxy_observe::log::{Logger, Options, Severity, Sink};
use kube_proxy_observe::metrics::{Build, Metrics};
use model::Family;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Far longer than anything here takes; only a fault lets it pass.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A loopback address of this process alone (its number is in the address) with a port of its own.
pub(crate) fn address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 64 | high, middle, low], NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// Limits that a test does not run into.
pub(crate) fn limits() -> Limits {
    Limits { bind_retry: Duration::from_millis(10), ..Limits::default() }
}

/// The metrics of a dual-stack proxy.
pub(crate) fn metrics() -> Arc<Metrics> {
    let build = Build { version: "v1.37.2".into(), ..Build::default() };
    Arc::new(Metrics::new(&[Family::V4, Family::V6], &build, &[]))
}

/// A health server; it ends with the test's runtime.
pub(crate) fn health_server(limits: Limits, health: &Arc<Health>, metrics: &Arc<Metrics>) -> SocketAddr {
    let address = address();
    let server = http::serve_health(address, true, limits, health.clone(), metrics.clone());
    drop(tokio::spawn(server));
    address
}

/// A metrics server; it ends with the test's runtime.
pub(crate) fn metrics_server(pages: Pages) -> SocketAddr {
    let address = address();
    drop(tokio::spawn(http::serve_metrics(address, true, limits(), Arc::new(pages))));
    address
}

/// Connects as soon as somebody listens.
pub(crate) async fn connect(address: SocketAddr) -> TcpStream {
    let attempt = async {
        loop {
            match TcpStream::connect(address).await {
                Ok(stream) => return stream,
                Err(_) => sleep(Duration::from_millis(1)).await,
            }
        }
    };
    timeout(PATIENCE, attempt).await.expect("somebody listens")
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Reply {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a header");
        let mut lines = head.split("\r\n");
        let status = lines.next().expect("a status line").to_owned();
        let headers = lines
            .map(|line| line.split_once(": ").expect("name and value"))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Self { status, headers, body: body.to_owned() }
    }

    pub(crate) fn code(&self) -> u16 {
        self.status.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code")
    }
}

/// One request on a connection of its own.
pub(crate) async fn request(address: SocketAddr, method: &str, path: &str, rest: &str) -> Reply {
    let mut stream = connect(address).await;
    let text = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{rest}");
    let text = if text.contains("\r\n\r\n") { text } else { text + "\r\n" };
    stream.write_all(text.as_bytes()).await.expect("the request is taken");
    Reply::parse(&rest_of(&mut stream).await)
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> Reply {
    request(address, "GET", path, "").await
}

/// Reads until the other side closes.
pub(crate) async fn rest_of(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A connection that is reset has ended too.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the server closes");
    String::from_utf8(bytes).expect("text")
}

/// A task's result.
pub(crate) async fn result_of<T>(task: JoinHandle<T>) -> T {
    timeout(PATIENCE, task).await.expect("it ends").expect("it does not panic")
}

/// Keeps log lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<Mutex<Vec<String>>>);

impl Memory {
    /// Keeps the lines of this thread, where a test's tasks run too, until the guard is dropped.
    pub(crate) fn of_this_thread() -> (Self, tracing::subscriber::DefaultGuard) {
        let memory = Self::default();
        let (logger, _) = Logger::new(Options::default(), memory.clone());
        (memory, tracing::subscriber::set_default(logger))
    }

    /// The lines so far, without their line breaks.
    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = self.0.lock().expect("no panic while held");
        lines.iter().map(|line| line.strip_suffix('\n').expect("a whole line").to_owned()).collect()
    }

    /// How many lines have this text.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.lines().iter().filter(|line| line.contains(text)).count()
    }
}

impl Sink for Memory {
    fn line(&self, line: String, _: Severity) {
        self.0.lock().expect("no panic while held").push(line);
    }
}
