//! The health check node ports of services with `externalTrafficPolicy: Local`: load balancers ask there whether
//! this node has endpoints of the service.
//!
//! In: from a plain thread, after a sync, the services whose port or number of endpoints here has changed
//! ([`ServiceHealth::sync`]). Out: a small HTTP server for each, which answers every path with 200 when there are local
//! endpoints and the proxy is healthy, else with 503. Only the sockets of what changed are looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::header::HeaderValue;
use model::ObjectKey;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{debug, error, info};

use crate::clock::Moment;
use crate::health::Health;
use crate::http::{Answer, Limits, json, listen, serve};

/// What can be asked about a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its `healthCheckNodePort`.
    pub port: u16,
    /// How many endpoints take its external traffic on this node.
    pub local_endpoints: usize,
}

/// What has changed.
#[derive(Debug)]
struct Told {
    changes: Vec<(ObjectKey, Option<Check>)>,
    addresses: Vec<IpAddr>,
}

/// Tells which services are to be asked for. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServiceHealth(UnboundedSender<Told>);

impl ServiceHealth {
    /// Changes what is served: these services, `None` for one that is to be asked for no more. From now on all are
    /// served on these addresses: a wildcard stands for all addresses of its own family. Returns at once. A port that
    /// cannot be opened is tried again and again.
    pub fn sync(&self, changes: Vec<(ObjectKey, Option<Check>)>, addresses: Vec<IpAddr>) {
        // without servers there is nobody to tell
        let _ = self.0.send(Told { changes, addresses });
    }
}

/// Takes which service cannot be asked for at which address, and why. Must not wait.
pub type Failed = Box<dyn Fn(&ObjectKey, SocketAddr, &io::Error) + Send + Sync>;

/// The servers, to be run on a tokio runtime.
pub struct Servers {
    inbox: UnboundedReceiver<Told>,
    health: Arc<Health>,
    limits: Limits,
    failed: Failed,
    wanted: Wanted,
    open: BTreeMap<SocketAddr, Server>,
    /// Sockets that could not be opened, and for which service that has been told.
    told: BTreeMap<SocketAddr, ObjectKey>,
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

/// What is to be served where.
#[derive(Debug, Default)]
struct Wanted {
    ports: BTreeMap<ObjectKey, u16>,
    /// The services of each port, with their local endpoints. The API server gives a port to one service only; should
    /// two have one, the one with the smaller key has it.
    services: BTreeMap<u16, BTreeMap<ObjectKey, usize>>,
    addresses: Vec<IpAddr>,
}

impl Wanted {
    fn set(&mut self, service: ObjectKey, check: Option<Check>, changed: &mut BTreeSet<SocketAddr>) {
        if let Some(old) = self.ports.remove(&service)
            && let Some(services) = self.services.get_mut(&old)
        {
            services.remove(&service);
            if services.is_empty() {
                self.services.remove(&old);
            }
            changed.extend(self.sockets(old));
        }
        if let Some(Check { port, local_endpoints }) = check {
            self.ports.insert(service.clone(), port);
            self.services.entry(port).or_default().insert(service, local_endpoints);
            changed.extend(self.sockets(port));
        }
    }

    fn set_addresses(&mut self, addresses: Vec<IpAddr>, changed: &mut BTreeSet<SocketAddr>) {
        if self.addresses == addresses {
            return;
        }
        for addresses in [std::mem::replace(&mut self.addresses, addresses), self.addresses.clone()] {
            let of_port = |port| addresses.iter().map(move |address| SocketAddr::new(*address, port));
            changed.extend(self.services.keys().flat_map(|port| of_port(*port)));
        }
    }

    fn sockets(&self, port: u16) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().map(move |address| SocketAddr::new(*address, port))
    }

    /// Who is to be asked for at a socket.
    fn at(&self, socket: SocketAddr) -> Option<(&ObjectKey, usize)> {
        let (service, local_endpoints) = self.services.get(&socket.port())?.first_key_value()?;
        self.addresses.contains(&socket.ip()).then_some((service, *local_endpoints))
    }
}

/// The handle for the sync thread, and the servers, of which none is open yet. Each failure is told to `failed` once, and
/// again when it comes back.
pub fn service_health(health: Arc<Health>, limits: Limits, failed: Failed) -> (ServiceHealth, Servers) {
    let (sender, inbox) = unbounded_channel();
    let (wanted, open, told) = (Wanted::default(), BTreeMap::new(), BTreeMap::new());
    (ServiceHealth(sender), Servers { inbox, health, limits, failed, wanted, open, told })
}

impl Servers {
    /// Opens, updates and closes servers as told, until the last handle is dropped; then closes them all.
    pub async fn run(mut self) {
        while let Some(sockets) = self.something_to_do().await {
            // a port at a wildcard keeps it from single addresses, and the other way round
            for &socket in &sockets {
                self.close_unwanted(socket).await;
            }
            for &socket in &sockets {
                self.open_or_update(socket);
            }
        }
        self.wanted = Wanted::default();
        for socket in self.open.keys().copied().collect::<Vec<_>>() {
            self.close_unwanted(socket).await;
        }
    }

    /// Takes in everything that has been told, and tells at which sockets something may be other than wanted; `None`
    /// when nobody can want anything any more.
    async fn something_to_do(&mut self) -> Option<BTreeSet<SocketAddr>> {
        let mut next = if self.told.is_empty() {
            Some(self.inbox.recv().await?)
        } else {
            match timeout(self.limits.bind_retry, self.inbox.recv()).await {
                Ok(told) => Some(told?),
                Err(_) => None,
            }
        };
        let mut sockets: BTreeSet<_> = self.told.keys().copied().collect();
        while let Some(Told { changes, addresses }) = next {
            self.wanted.set_addresses(addresses, &mut sockets);
            for (service, check) in changes {
                self.wanted.set(service, check, &mut sockets);
            }
            next = self.inbox.try_recv().ok();
        }
        Some(sockets)
    }

    async fn close_unwanted(&mut self, socket: SocketAddr) {
        let wanted = self.wanted.at(socket).map(|(service, _)| service);
        if self.told.get(&socket).is_some_and(|service| Some(service) != wanted) {
            self.told.remove(&socket);
        }
        if self.open.get(&socket).is_none_or(|server| Some(&server.service) == wanted) {
            return;
        }
        if let Some(server) = self.open.remove(&socket) {
            server.task.abort();
            // Only after this the port is free for the next owner.
            let _ = server.task.await;
            debug!(service = %server.service, address = %socket, "Closed health check of service");
        }
    }

    fn open_or_update(&mut self, address: SocketAddr) {
        let Some((service, endpoints)) = self.wanted.at(address) else { return };
        if let Some(server) = self.open.get(&address) {
            server.local_endpoints.store(endpoints, Ordering::Relaxed);
            return;
        }
        let service = service.clone();
        match listen(address, true) {
            Ok(listener) => {
                if self.told.remove(&address).is_some() {
                    info!(service = %service, %address, "Health check of service is served now");
                } else {
                    debug!(service = %service, %address, "Opened health check of service");
                }
                let local_endpoints = Arc::new(AtomicUsize::new(endpoints));
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
                if self.told.insert(address, service.clone()).is_none() {
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
