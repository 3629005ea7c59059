//! The loop: messages in, syncs out.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime};

use model::{Changes, Departure, Event, Family, ObjectKey, ResolvedService, Site, Tracker};

use crate::flows::Aftercare;
use crate::schedule::{Limiter, Repairs, Retry};
use crate::{Backend, Facts, NodePortSelection, Report, Servers, Suspects, Sweep, SyncError};

/// What the loop is told.
#[derive(Debug)]
pub enum Message {
    /// Something about an object.
    Event(Event),
    /// Another program changed what this family's backend wrote. Who, where known.
    ForeignChange(Family, Option<String>),
    /// The addresses of the node's interfaces, all of them, each time one comes or goes.
    InterfaceAddresses(Vec<IpAddr>),
}

/// How the loop goes about its work.
#[derive(Clone, Debug)]
pub struct Options {
    /// The least time between syncs, beyond a burst of two.
    pub min_sync_period: Duration,
    /// The longest pause between attempts while syncs fail.
    pub sync_period: Duration,
    /// How often the kernel is read and compared, though nothing is known to have changed.
    pub check_period: Duration,
    /// Which addresses take node port traffic.
    pub node_ports: NodePortSelection,
    /// Addresses that go before those of the Node as the primary ones (`bindAddress`).
    pub primary_addresses: Vec<IpAddr>,
    /// Without a Node the addresses of the interfaces are taken for the primary ones.
    pub interfaces_are_primary: bool,
    /// How long TCP connections to an endpoint that is in no slice any more are reset; zero for never.
    pub reset_period: Duration,
}

/// Whether a sync read the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// Everything was compared with the kernel.
    Full,
    /// What had changed was written.
    Partial,
}

/// A sync that ended well.
#[derive(Debug)]
pub struct Sync<'a> {
    /// Full or partial.
    pub kind: SyncKind,
    /// How long it took, planning included.
    pub duration: Duration,
    /// What the backend did.
    pub report: Report,
    /// When the changes that it wrote were made in the cluster, as far as known.
    pub triggers: &'a [SystemTime],
}

/// Learns what the loop does.
pub trait Reporter {
    /// Changes arrived.
    fn changed(&mut self, changes: &Changes);
    /// A change waits to be written.
    fn queued(&mut self, family: Family);
    /// A sync ended well.
    fn synced(&mut self, family: Family, sync: &Sync<'_>);
    /// A sync failed; it is tried again.
    fn failed(&mut self, family: Family, kind: SyncKind, error: &SyncError);
    /// A repair begins: another program changed the kernel's state.
    fn repairing(&mut self, family: Family);
    /// Something was synced: what is known now.
    fn settled(&mut self, tracker: &Tracker, facts: &Facts);
}

/// One family's backend and what it has yet to do.
struct Plane {
    backend: Box<dyn Backend + Send>,
    /// The kernel has to be read: at the start, after a failure or a foreign change, and now and then.
    full: bool,
    dirty: BTreeSet<ObjectKey>,
    /// Whose flows are to be looked at once this is written.
    departures: BTreeSet<Departure>,
    sites: BTreeSet<Site>,
    facts: bool,
    triggers: Vec<SystemTime>,
    retry: Retry,
    repairs: Repairs,
    /// Services that the kernel refuses; left out until they change.
    refused: BTreeSet<ObjectKey>,
    checked_at: Option<Instant>,
}

/// How many services may be found to be refused in one sync.
const REFUSALS_A_SYNC: usize = 64;

impl Plane {
    fn has_work(&self) -> bool {
        self.full || self.facts || !self.dirty.is_empty()
    }

    fn kind(&self) -> SyncKind {
        if self.full { SyncKind::Full } else { SyncKind::Partial }
    }

    fn write(&mut self, tracker: &Tracker, facts: &Facts) -> Result<Report, SyncError> {
        let family = self.backend.family();
        self.refused.retain(|key| !self.dirty.contains(key));
        if self.full {
            let services = |each: &mut dyn FnMut(ResolvedService)| {
                let wanted = tracker.service_keys().filter(|key| !self.refused.contains(key));
                wanted.filter_map(|key| tracker.resolve(key, family)).for_each(each);
            };
            return self.backend.rebuild(&services, facts);
        }
        let changes = self.dirty.iter().map(|key| (key.clone(), tracker.resolve(key, family))).collect();
        self.backend.update(changes, facts)
    }

    /// The endpoints behind all that changed, or that flows are suspected of.
    fn servers(&self, tracker: &Tracker) -> Servers {
        let family = self.backend.family();
        let held = self.sites.iter().filter_map(|site| tracker.holder(*site));
        let services: BTreeSet<_> =
            self.dirty.iter().chain(self.departures.iter().map(|one| &one.service)).chain(held).collect();
        let mut servers: Servers = self.sites.iter().map(|site| (*site, None)).collect();
        for service in services {
            add_servers(&mut servers, tracker, service, family);
        }
        servers
    }

    /// Writes, and leaves out what the kernel refuses, so that one service cannot stop the others.
    fn write_what_is_taken(&mut self, tracker: &Tracker, facts: &Facts) -> Result<Report, SyncError> {
        for _ in 0..REFUSALS_A_SYNC {
            let error = match self.write(tracker, facts) {
                Ok(report) => return Ok(report),
                Err(error) => error,
            };
            // what the kernel holds is as before; from here on everything is compared with it
            let was_full = std::mem::replace(&mut self.full, true);
            self.dirty.clear();
            match error.service.clone() {
                // a refused update may be the fault of what others changed: the full comparison tells
                Some(_) if !was_full => {}
                Some(service) => {
                    tracing::warn!(family = %self.backend.family(), %service, %error, "The kernel refuses this service; it is left out until it changes");
                    self.refused.insert(service);
                }
                None => return Err(error),
            }
        }
        self.write(tracker, facts)
    }

    fn done(&mut self, now: Instant) {
        if self.full {
            self.checked_at = Some(now);
            self.repairs.due = false;
        }
        self.full = false;
        self.facts = false;
        self.dirty.clear();
        self.triggers.clear();
        self.retry.succeeded();
    }
}

fn add_servers(servers: &mut Servers, tracker: &Tracker, service: &ObjectKey, family: Family) {
    tracker.served_sites(service, family, &mut |site, endpoints| {
        servers.insert(site, Some(Arc::clone(endpoints)));
    });
}

/// Owns the tracker and the backends.
pub struct SyncLoop<R> {
    tracker: Tracker,
    planes: Vec<Plane>,
    options: Options,
    reporter: R,
    limiter: Limiter,
    sweeps: Sender<Sweep>,
    aftercare: Aftercare,
    interfaces: Vec<IpAddr>,
    facts: Facts,
    missed_node: bool,
}

impl<R: Reporter> SyncLoop<R> {
    /// A loop that knows nothing yet and has written nothing. After syncs it orders sweeps.
    pub fn new(
        tracker: Tracker,
        backends: Vec<Box<dyn Backend + Send>>,
        options: Options,
        reporter: R,
        sweeps: Sender<Sweep>,
    ) -> Self {
        let plane = |backend| Plane {
            backend,
            full: true,
            dirty: BTreeSet::new(),
            departures: BTreeSet::new(),
            sites: BTreeSet::new(),
            facts: false,
            triggers: Vec::new(),
            retry: Retry::default(),
            repairs: Repairs::default(),
            refused: BTreeSet::new(),
            checked_at: None,
        };
        Self {
            tracker,
            planes: backends.into_iter().map(plane).collect(),
            limiter: Limiter::new(options.min_sync_period),
            sweeps,
            aftercare: Aftercare::new(options.reset_period, Instant::now()),
            options,
            reporter,
            interfaces: Vec::new(),
            facts: Facts::default(),
            missed_node: false,
        }
    }

    /// Takes a message that arrived before the loop could run.
    pub fn tell(&mut self, message: Message) {
        self.take(message);
        self.distribute();
    }

    /// Runs until every sender of messages is gone.
    pub fn run(mut self, inbox: &Receiver<Message>) {
        loop {
            let deadline = self.step(Instant::now());
            let received = match deadline {
                None => inbox.recv().map_err(RecvTimeoutError::from),
                Some(at) => inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match received {
                Ok(message) => self.take_all(message, inbox),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Everything that has arrived goes into the same sync.
    fn take_all(&mut self, first: Message, inbox: &Receiver<Message>) {
        self.take(first);
        while let Ok(message) = inbox.try_recv() {
            self.take(message);
        }
        self.distribute();
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Event(event) => {
                self.tracker.apply(event);
            }
            Message::InterfaceAddresses(addresses) => self.interfaces = addresses,
            Message::ForeignChange(family, program) => self.foreign_change(family, program.as_deref()),
        }
    }

    fn foreign_change(&mut self, family: Family, program: Option<&str>) {
        let told = |plane: &Plane| plane.full || plane.repairs.due;
        for plane in self.planes.iter_mut().filter(|plane| plane.backend.family() == family && !told(plane)) {
            let program = program.unwrap_or("another program");
            if plane.repairs.are_many() {
                tracing::warn!(%family, program, "The proxy's kernel state is changed from outside again and again; repairs are up to 30 s apart until that ends");
            } else {
                tracing::warn!(%family, program, "The proxy's kernel state was changed from outside; repairing it");
            }
            plane.repairs.due = true;
        }
    }

    /// Hands what changed to the planes.
    fn distribute(&mut self) {
        let changes = self.tracker.take_changes();
        for conflict in self.tracker.take_conflicts() {
            tracing::warn!("{conflict}");
        }
        let facts = self.current_facts();
        let facts_changed = facts != self.facts;
        self.facts = facts;
        self.reporter.changed(&changes);
        if changes.services.is_empty() && !facts_changed {
            return;
        }
        for departure in &changes.departures {
            self.aftercare.end(departure);
        }
        for plane in &mut self.planes {
            if !plane.has_work() {
                self.reporter.queued(plane.backend.family());
            }
            plane.facts |= facts_changed;
            plane.dirty.extend(changes.services.iter().cloned());
            let family = plane.backend.family();
            let own = |departure: &&Departure| Family::of(departure.endpoint.address) == family;
            plane.departures.extend(changes.departures.iter().filter(own).cloned());
            plane.sites.extend(changes.sites.iter().filter(|site| site.family() == family));
            // what was changed before the first sync says nothing about this program
            if plane.checked_at.is_some() {
                plane.triggers.extend(&changes.triggers);
            }
        }
    }

    fn current_facts(&self) -> Facts {
        Facts {
            service_cidrs: self.tracker.service_cidrs(),
            node_port_addresses: self.options.node_ports.select(&self.primary_addresses(), &self.interfaces),
        }
    }

    /// One address of each family; where nobody says which, all that there are.
    fn primary_addresses(&self) -> Vec<IpAddr> {
        let known = match self.tracker.node() {
            None if self.options.interfaces_are_primary => return self.interfaces.clone(),
            None => &[][..],
            Some(node) => &node.addresses,
        };
        let candidates = || self.options.primary_addresses.iter().chain(known).copied();
        let first = |family| candidates().find(|address| Family::of(*address) == family);
        [Family::V4, Family::V6].into_iter().filter_map(first).collect()
    }

    /// Syncs what is due. Returns when to be called again if no message comes before.
    fn step(&mut self, now: Instant) -> Option<Instant> {
        // before everything is known nothing is written
        if !self.tracker.ready() {
            return None;
        }
        if self.tracker.node().is_none() && !self.options.interfaces_are_primary && !self.missed_node {
            self.missed_node = true;
            tracing::error!(
                "The own Node was not found; its addresses take no node ports until it appears. Check --hostname-override"
            );
        }
        let awaited = self.has_work();
        self.look_after_departures(now);
        // what nobody in the cluster has just changed does not delay what somebody changes next
        let is_aftercare = !awaited && self.has_work();
        for plane in &mut self.planes {
            let check_at = plane.checked_at.map(|at| at + self.options.check_period);
            plane.full |= check_at.is_some_and(|at| at <= now);
            if plane.repairs.begin(now) {
                plane.full = true;
                self.reporter.repairing(plane.backend.family());
            }
        }
        let allowed = is_aftercare || self.limiter.allowed_at(now) <= now;
        let due = |plane: &Plane| plane.retry.at().unwrap_or(now) <= now;
        if allowed && self.planes.iter().any(|plane| plane.has_work() && due(plane)) {
            let mut written = false;
            for index in 0..self.planes.len() {
                if self.planes[index].has_work() && due(&self.planes[index]) {
                    written |= self.sync(index, now);
                }
            }
            if written {
                self.reporter.settled(&self.tracker, &self.facts);
            }
            if !is_aftercare {
                self.limiter.ran(now);
            }
        }
        self.next_deadline(now)
    }

    fn has_work(&self) -> bool {
        self.planes.iter().any(Plane::has_work)
    }

    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let allowed = self.limiter.allowed_at(now);
        let of_plane = |plane: &Plane| {
            if plane.has_work() {
                return Some(plane.retry.at().unwrap_or(now).max(allowed));
            }
            let check_at = plane.checked_at.map(|at| at + self.options.check_period);
            check_at.into_iter().chain(plane.repairs.at(now)).min()
        };
        self.planes.iter().filter_map(of_plane).chain(self.aftercare.next_at()).min()
    }

    /// Flows to endpoints that left may have come up after they were looked at: a packet was on its way, or a reset has
    /// closed a connection.
    fn look_after_departures(&mut self, now: Instant) {
        let tasks = self.aftercare.tasks(now);
        for departure in &tasks.remember {
            self.tracker.remember(departure);
        }
        for departure in &tasks.forget {
            self.tracker.forget(departure);
        }
        if !tasks.remember.is_empty() || !tasks.forget.is_empty() {
            self.distribute();
        }
        for family in self.planes.iter().map(|plane| plane.backend.family()) {
            let own = || tasks.visit.iter().filter(|one| Family::of(one.endpoint.address) == family);
            let mut servers = Servers::new();
            for service in own().map(|one| &one.service).collect::<BTreeSet<_>>() {
                add_servers(&mut servers, &self.tracker, service, family);
            }
            // where no site is left there is nothing by which a flow could be stale
            if !servers.is_empty() {
                let endpoints = own().map(|one| (one.protocol, one.endpoint)).collect();
                self.order(family, Suspects::Some { endpoints, sites: BTreeSet::new() }, servers);
            }
        }
    }

    fn order(&self, family: Family, suspects: Suspects, servers: Servers) {
        let of_family = |address: &&IpAddr| Family::of(**address) == family;
        let addresses = self.facts.node_port_addresses.iter().filter(of_family).copied();
        let sweep = Sweep {
            family,
            suspects,
            servers,
            node_port_addresses: (!self.options.node_ports.takes_all(family)).then(|| addresses.collect()),
            service_cidrs: self.facts.service_cidrs.clone().into(),
        };
        // without anybody who sweeps there is nothing to order
        let _ = self.sweeps.send(sweep);
    }

    /// What was written makes some flows stale. At the start, and after others meddled, it can be any.
    fn order_after_sync(&mut self, index: usize, any: bool, mut servers: Servers, now: Instant) {
        let plane = &mut self.planes[index];
        let family = plane.backend.family();
        let departures = std::mem::take(&mut plane.departures);
        let sites = std::mem::take(&mut plane.sites);
        let suspects = if any {
            for service in self.tracker.service_keys() {
                add_servers(&mut servers, &self.tracker, service, family);
            }
            Suspects::All
        } else {
            let endpoints = departures.iter().map(|one| (one.protocol, one.endpoint)).collect();
            Suspects::Some { endpoints, sites }
        };
        if !suspects.are_none() {
            self.order(family, suspects, servers);
        }
        for departure in departures {
            self.aftercare.begin(departure, now);
        }
    }

    /// Whether it was written.
    fn sync(&mut self, index: usize, now: Instant) -> bool {
        let (family, start) = (self.planes[index].backend.family(), Instant::now());
        let is_first = self.planes[index].checked_at.is_none();
        let mut servers = Servers::new();
        if !is_first {
            servers = self.planes[index].servers(&self.tracker);
            // who sweeps just now must know of new endpoints before connections go there
            self.order(family, Suspects::none(), servers.clone());
        }
        let plane = &mut self.planes[index];
        let outcome = plane.write_what_is_taken(&self.tracker, &self.facts);
        let kind = plane.kind();
        let written = outcome.is_ok();
        match outcome {
            Ok(report) => {
                let sync = Sync { kind, duration: start.elapsed(), report, triggers: &plane.triggers };
                self.reporter.synced(family, &sync);
                let any = is_first || (kind == SyncKind::Full && report.written > 0);
                self.planes[index].done(now);
                self.order_after_sync(index, any, servers, now);
                for plane in self.planes.iter_mut().filter(|_| report.compare_again) {
                    plane.full = true;
                }
            }
            Err(error) => {
                plane.retry.failed(now, self.options.sync_period);
                tracing::error!(%family, %error, "Sync failed; the kernel holds what it held before, trying again");
                self.reporter.failed(family, kind, &error);
            }
        }
        written
    }
}

#[cfg(test)]
mod tests;
