//! Which listeners there are.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::{Family, ObjectKey};
use rustix::io::Errno;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::choice::{Choice, Targets};
use crate::sessions::Sessions;
use crate::tcp::{self, Connections};
use crate::udp;
use crate::warnings::{Warnings, out_of_files};
use crate::{Counters, Limits, Site, Told, Transport, lock};

/// Time between attempts to open a listener, and between looks at idle sessions.
const CHORES: Duration = Duration::from_secs(3);

/// What one node port should do.
#[derive(Debug)]
struct Wanted {
    service: ObjectKey,
    targets: Arc<Targets>,
}

#[derive(Debug)]
struct Listener {
    choice: Arc<Mutex<Choice>>,
    task: JoinHandle<()>,
}

/// All listeners, to be run on a tokio runtime.
pub struct Relay {
    counters: Box<dyn Counters>,
    inbox: UnboundedReceiver<Told>,
    wanted: BTreeMap<Site, Wanted>,
    /// The sites of each service.
    sites: BTreeMap<(ObjectKey, Family), Vec<Site>>,
    open: BTreeMap<Site, Listener>,
    /// Wanted and not open, with the reason, which has been told.
    failed: BTreeMap<Site, Option<Errno>>,
    limit: usize,
    connections: Arc<Connections>,
    sessions: Arc<Mutex<Sessions>>,
    warnings: Arc<Warnings>,
}

impl Relay {
    pub(crate) fn new(limits: Limits, counters: Box<dyn Counters>, inbox: UnboundedReceiver<Told>) -> Self {
        let warnings = Arc::<Warnings>::default();
        Self {
            counters,
            inbox,
            wanted: BTreeMap::new(),
            sites: BTreeMap::new(),
            open: BTreeMap::new(),
            failed: BTreeMap::new(),
            limit: limits.listeners,
            connections: Arc::new(Connections::new(limits.connections, Arc::clone(&warnings))),
            sessions: Arc::new(Mutex::new(Sessions::new(limits.sessions))),
            warnings,
        }
    }

    /// Opens, changes and closes listeners as told, until the last handle is dropped; then closes them all.
    pub async fn run(mut self) {
        let mut chores = interval(CHORES);
        chores.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                told = self.inbox.recv() => match told {
                    Some(told) => self.follow(told).await,
                    None => break,
                },
                _ = chores.tick() => self.do_chores(),
            }
        }
        for site in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(site).await;
        }
    }

    /// Takes in everything that has been told, then brings the listeners to it: a port that goes from one service to
    /// another stays open.
    async fn follow(&mut self, told: Told) {
        let (mut changed, mut departed) = (BTreeSet::new(), BTreeSet::new());
        let mut next = Some(told);
        while let Some(told) = next {
            self.note(told, &mut changed, &mut departed);
            next = self.inbox.try_recv().ok();
        }
        for site in changed {
            self.settle(site).await;
        }
        // only now no new connection can go there
        for (site, endpoint) in departed {
            self.connections.reset(site, endpoint);
        }
    }

    fn note(
        &mut self,
        told: Told,
        changed: &mut BTreeSet<Site>,
        departed: &mut BTreeSet<(Site, SocketAddr)>,
    ) {
        let Told { family, service, ports } = told;
        for site in self.sites.remove(&(service.clone(), family)).unwrap_or_default() {
            if self.wanted.get(&site).is_some_and(|wanted| wanted.service == service) {
                self.wanted.remove(&site);
            }
            changed.insert(site);
        }
        let mut sites = Vec::new();
        for port in ports {
            let site = Site { family, transport: port.transport, port: port.number };
            departed.extend(port.departed.into_iter().map(|endpoint| (site, endpoint)));
            if port.endpoints.is_empty() {
                continue;
            }
            let targets = Arc::new(Targets::new(port.endpoints, port.affinity));
            self.wanted.insert(site, Wanted { service: service.clone(), targets });
            changed.insert(site);
            sites.push(site);
        }
        if !sites.is_empty() {
            self.sites.insert((service, family), sites);
        }
    }

    async fn settle(&mut self, site: Site) {
        match (self.wanted.get(&site), self.open.get(&site)) {
            (Some(wanted), Some(listener)) => {
                if lock(&listener.choice).set(&wanted.targets) {
                    lock(&self.sessions).keep_only(site, Some(&wanted.targets));
                }
            }
            (Some(_), None) => self.open(site),
            (None, Some(_)) => self.close(site).await,
            (None, None) => {
                self.failed.remove(&site);
            }
        }
    }

    fn open(&mut self, site: Site) {
        let Some(wanted) = self.wanted.get(&site) else { return };
        let (service, address, protocol) = (&wanted.service, site.address(), site.transport);
        let choice = Arc::new(Mutex::new(Choice::new(Arc::clone(&wanted.targets))));
        match self.listen(site, &choice) {
            Ok(task) => {
                if self.failed.remove(&site).is_some() {
                    tracing::info!(%service, %address, ?protocol, "Node port is served on its loopback address now");
                } else {
                    tracing::debug!(v = 3, %service, %address, ?protocol, "Opened node port on loopback address");
                }
                self.open.insert(site, Listener { choice, task });
                self.counters.opened(site.family);
            }
            Err(error) => {
                self.counters.failed(site.family);
                let reason = Errno::from_io_error(&error);
                let is_new = self.failed.insert(site, reason) != Some(reason);
                if out_of_files(&error) {
                    self.warnings.warn(
                        "Cannot listen for all node ports on loopback addresses, trying again; raise the limit of open \
                         files (RLIMIT_NOFILE)",
                        site,
                        Some(&error),
                    );
                } else if is_new {
                    tracing::error!(
                        %service, %address, ?protocol, %error,
                        "Cannot listen for a node port on its loopback address, trying again; stop what uses the port \
                         (see ss -lntup), or take localhost out of --nodeport-addresses"
                    );
                }
            }
        }
    }

    fn listen(&self, site: Site, choice: &Arc<Mutex<Choice>>) -> io::Result<JoinHandle<()>> {
        if self.open.len() >= self.limit {
            return Err(Errno::MFILE.into());
        }
        let (address, choice) = (site.address(), Arc::clone(choice));
        Ok(match site.transport {
            Transport::Tcp => {
                let connections = Arc::clone(&self.connections);
                tokio::spawn(tcp::serve(site, tcp::bind(address)?, choice, connections))
            }
            Transport::Udp => {
                let (sessions, warnings) = (Arc::clone(&self.sessions), Arc::clone(&self.warnings));
                let listener =
                    udp::Listener { site, socket: udp::bind(address)?, choice, sessions, warnings };
                tokio::spawn(udp::serve(Arc::new(listener)))
            }
        })
    }

    async fn close(&mut self, site: Site) {
        let Some(listener) = self.open.remove(&site) else { return };
        listener.task.abort();
        // only after this the port is free for the next owner
        let _ = listener.task.await;
        // clients that were accepted and have no endpoint yet get none
        lock(&listener.choice).set(&Arc::default());
        lock(&self.sessions).keep_only(site, None);
        self.counters.closed(site.family);
        let (address, protocol) = (site.address(), site.transport);
        tracing::debug!(v = 3, %address, ?protocol, "Closed node port on loopback address");
    }

    fn do_chores(&mut self) {
        lock(&self.sessions).end_idle(Instant::now());
        self.connections.tidy();
        for site in self.failed.keys().copied().collect::<Vec<_>>() {
            self.open(site);
        }
    }
}
