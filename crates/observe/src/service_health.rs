//! The health check node ports of services with `externalTrafficPolicy: Local`: load balancers ask there whether
//! this node has endpoints of the service.
//!
//! In: from a plain thread, after a sync that changed it, all services that have such a port and how many endpoints they
//! have here ([`ServiceHealth::sync`]). Out: a small HTTP server for each, which answers every path with 200 when there
//! are local endpoints and the proxy is healthy, else with 503. Only the last word counts, so a thread that tells
//! faster than ports can be opened fills no queue.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::header::HeaderValue;
use model::ObjectKey;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{debug, error, info};

use crate::clock::Moment;
use crate::health::Health;
use crate::http::{Answer, Limits, json, listen, serve};

/// A service whose health can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The service.
    pub service: ObjectKey,
    /// Its `healthCheckNodePort`.
    pub port: u16,
    /// How many endpoints take its external traffic on this node.
    pub local_endpoints: usize,
}

#[derive(Debug, Default)]
struct Wanted {
    checks: Vec<Check>,
    addresses: Vec<IpAddr>,
}

/// Tells which services are to be asked for. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServiceHealth(watch::Sender<Arc<Wanted>>);

impl ServiceHealth {
    /// Makes `checks` all that is served, on these addresses: a wildcard stands for all addresses of its own
    /// family. Returns at once. A port that cannot be opened is tried again and again.
    pub fn sync(&self, checks: Vec<Check>, addresses: Vec<IpAddr>) {
        self.0.send_replace(Arc::new(Wanted { checks, addresses }));
    }
}

/// Takes which service cannot be asked for at which address, and why. Must not wait.
pub type Failed = Box<dyn Fn(&ObjectKey, SocketAddr, &io::Error) + Send + Sync>;

/// The servers, to be run on a tokio runtime.
pub struct Servers {
    wanted: watch::Receiver<Arc<Wanted>>,
    health: Arc<Health>,
    limits: Limits,
    failed: Failed,
    open: BTreeMap<SocketAddr, Server>,
    /// Failures already told.
    told: BTreeSet<(SocketAddr, ObjectKey)>,
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Servers").field("open", &self.open).field("told", &self.told).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Server {
    service: ObjectKey,
    local_endpoints: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

/// The handle for the sync thread, and the servers, of which none is open yet. Each failure is told to `failed` once, and
/// again when it comes back.
pub fn service_health(health: Arc<Health>, limits: Limits, failed: Failed) -> (ServiceHealth, Servers) {
    let (sender, wanted) = watch::channel(Arc::default());
    let (open, told) = (BTreeMap::new(), BTreeSet::new());
    (ServiceHealth(sender), Servers { wanted, health, limits, failed, open, told })
}

impl Servers {
    /// Opens, updates and closes servers as told, until the last handle is dropped; then closes them all.
    pub async fn run(mut self) {
        while self.something_to_do().await {
            let wanted = self.wanted.borrow_and_update().clone();
            let wanted = by_address(&wanted);
            self.close_unwanted(&wanted).await;
            for (&address, check) in &wanted {
                self.open_or_update(address, check);
            }
            self.told.retain(|(address, service)| {
                wanted.get(address).is_some_and(|check| check.service == *service)
            });
        }
        self.close_unwanted(&BTreeMap::new()).await;
    }

    /// Waits until something is wanted or has to be tried again; false when nobody can want anything any more.
    async fn something_to_do(&mut self) -> bool {
        if self.told.is_empty() {
            return self.wanted.changed().await.is_ok();
        }
        match timeout(self.limits.bind_retry, self.wanted.changed()).await {
            Ok(changed) => changed.is_ok(),
            Err(_) => true,
        }
    }

    async fn close_unwanted(&mut self, wanted: &BTreeMap<SocketAddr, &Check>) {
        let stays = |address: &SocketAddr, server: &Server| {
            wanted.get(address).is_some_and(|check| check.service == server.service)
        };
        let (stay, go) = std::mem::take(&mut self.open)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(address, server)| stays(address, server));
        self.open = stay;
        for (address, server) in go {
            server.task.abort();
            // Only after this the port is free for the next owner.
            let _ = server.task.await;
            debug!(service = %server.service, %address, "Closed health check of service");
        }
    }

    fn open_or_update(&mut self, address: SocketAddr, check: &Check) {
        if let Some(server) = self.open.get(&address) {
            server.local_endpoints.store(check.local_endpoints, Ordering::Relaxed);
            return;
        }
        let service = check.service.clone();
        match listen(address, true) {
            Ok(listener) => {
                if self.told.remove(&(address, service.clone())) {
                    info!(service = %service, %address, "Health check of service is served now");
                } else {
                    debug!(service = %service, %address, "Opened health check of service");
                }
                let local_endpoints = Arc::new(AtomicUsize::new(check.local_endpoints));
                let page = Page {
                    service: service.clone(),
                    local_endpoints: local_endpoints.clone(),
                    health: self.health.clone(),
                };
                let limits = self.limits;
                let task = tokio::spawn(async move {
                    serve(listener, limits, move |_| {
                        let answer = page.answer();
                        async move { answer }
                    })
                    .await;
                });
                self.open.insert(address, Server { service, local_endpoints, task });
            }
            Err(cause) => {
                if self.told.insert((address, service.clone())) {
                    error!(
                        err = %cause, service = %service, %address,
                        "Cannot open healthCheckNodePort of service, load balancers will take this node for \
                         unhealthy; will try again"
                    );
                    (self.failed)(&service, address, &cause);
                }
            }
        }
    }
}

/// The checks by the addresses they are asked at. The API server gives a port to one service only; should two have
/// one, the one with the smaller key has it.
fn by_address(wanted: &Wanted) -> BTreeMap<SocketAddr, &Check> {
    let mut checks: Vec<_> = wanted.checks.iter().collect();
    checks.sort_by(|a, b| b.service.cmp(&a.service));
    let sockets = |check: &Check| {
        let port = check.port;
        wanted.addresses.iter().map(move |&address| SocketAddr::new(address, port))
    };
    checks.into_iter().flat_map(|check| sockets(check).map(move |socket| (socket, check))).collect()
}

#[derive(Clone, Debug)]
struct Page {
    service: ObjectKey,
    local_endpoints: Arc<AtomicUsize>,
    health: Arc<Health>,
}

impl Page {
    fn answer(&self) -> Answer {
        let endpoints = self.local_endpoints.load(Ordering::Relaxed);
        let healthy = self.health.verdict(Moment::now()).healthy;
        let body = format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{}\",\n\t\t\"name\": \"{}\"\n\t}},\n\
             \t\"localEndpoints\": {endpoints},\n\t\"serviceProxyHealthy\": {healthy}\n}}",
            self.service.namespace(),
            self.service.name(),
        );
        let mut answer = json(if endpoints > 0 && healthy { 200 } else { 503 }, body);
        answer.headers_mut().insert("X-Load-Balancing-Endpoint-Weight", HeaderValue::from(endpoints));
        answer
    }
}
