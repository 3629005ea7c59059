//! Keeps what was told and knows what changed.
//!
//! In: [`Event`]s. Out: the keys of services whose effect may have changed, and what each means now. The cost of an event is
//! that of the one service it is about, whatever the number of services.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::SystemTime;

use ipnet::IpNet;

use crate::choice::choose;
use crate::claims::{Claim, Claims, Conflict, Precedence, Site};
use crate::departures::{Departure, Departures};
use crate::service::{Spec, networks};
use crate::slices::{Part, ZoneLists, listed, merge, serving};
use crate::{
    Endpoint, Event, Family, Kind, Node, ObjectKey, Policy, ResolvedPort, ResolvedService, Service, Slice,
    SlicePort,
};

/// What a tracker has to know about its node.
#[derive(Clone, Debug)]
pub struct TrackerOptions {
    /// The name of this node, as endpoints give it.
    pub node_name: String,
    /// The families that are served.
    pub families: Vec<Family>,
    /// Whether `externalIPs` are honoured (KEP-5707).
    pub allow_external_ips: bool,
}

/// What changed since the last time it was asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services to resolve anew, sorted.
    pub services: Vec<ObjectKey>,
    /// The Node or the ServiceCIDRs changed.
    pub facts: bool,
    /// Endpoints that service ports have lost.
    pub departures: BTreeSet<Departure>,
    /// Sites that services began or ceased to ask for, or ask for otherwise.
    pub sites: BTreeSet<Site>,
    /// When the changes of endpoints were made in the cluster, as far as known.
    pub triggers: Vec<SystemTime>,
    /// How many of the changes were changes of services.
    pub service_changes: u64,
    /// And how many were changes of slices.
    pub endpoint_changes: u64,
}

#[derive(Debug, Default)]
struct Entry {
    spec: Option<Spec>,
    parts: Vec<Part>,
    epoch: u32,
}

impl Entry {
    /// Whether a data plane can see the endpoints of this slice: its service is served in the family.
    fn shows(&self, part: &Part) -> bool {
        self.spec.as_ref().is_some_and(|spec| spec.serves(part.family))
    }
}

/// What a service claims, with the names of the ports that do.
fn named<'a>(spec: Option<&'a Spec>, claims: &'a [Claim]) -> BTreeSet<(&'a Claim, Option<&'a str>)> {
    let port = |claim: &Claim| spec?.ports.get(usize::from(claim.index));
    claims.iter().map(|claim| (claim, port(claim).map(|port| &*port.name))).collect()
}

fn departure(service: &ObjectKey, (port, endpoint): (&SlicePort, Endpoint)) -> Departure {
    Departure { service: service.clone(), port_name: port.name.clone(), protocol: port.protocol, endpoint }
}

#[derive(Debug)]
struct Owned {
    service: ObjectKey,
    epoch: u32,
}

/// Counts the fillings of a kind: what was not told in the last one is gone.
#[derive(Clone, Copy, Debug, Default)]
struct Filling {
    epoch: u32,
    complete: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Tracker {
    options: TrackerOptions,
    services: HashMap<ObjectKey, Entry>,
    slices: HashMap<ObjectKey, Owned>,
    zone_lists: ZoneLists,
    claims: Claims,
    departures: Departures,
    node: Option<Node>,
    node_epoch: u32,
    service_cidrs: BTreeMap<Box<str>, (Box<[IpNet]>, u32)>,
    fillings: [Filling; 4],
    dirty: BTreeSet<ObjectKey>,
    changes: Changes,
}

fn index(kind: Kind) -> usize {
    match kind {
        Kind::Service => 0,
        Kind::Slice => 1,
        Kind::Node => 2,
        Kind::ServiceCidr => 3,
    }
}

impl Tracker {
    /// A tracker that was told nothing.
    pub fn new(options: TrackerOptions) -> Self {
        Self {
            options,
            services: HashMap::new(),
            slices: HashMap::new(),
            zone_lists: ZoneLists::default(),
            claims: Claims::default(),
            departures: Departures::default(),
            node: None,
            node_epoch: 0,
            service_cidrs: BTreeMap::new(),
            fillings: [Filling::default(); 4],
            dirty: BTreeSet::new(),
            changes: Changes::default(),
        }
    }

    /// Takes an event.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Service(service) => self.set_service(service),
            Event::ServiceDeleted(key) => self.delete_service(&key),
            Event::Slice(slice) => {
                let (triggered, before) = (slice.triggered, self.changes.endpoint_changes);
                self.set_slice(slice);
                if self.changes.endpoint_changes != before {
                    self.changes.triggers.extend(triggered);
                }
            }
            Event::SliceDeleted(key) => self.delete_slice(&key),
            Event::Node(node) => {
                self.node_epoch = self.epoch(Kind::Node);
                self.set_node(Some(node));
            }
            Event::NodeDeleted => self.set_node(None),
            Event::ServiceCidr(name, nets) => {
                let nets = networks(nets);
                self.changes.facts |= self.service_cidrs.get(&name).is_none_or(|(old, _)| *old != nets);
                self.service_cidrs.insert(name, (nets, self.fillings[index(Kind::ServiceCidr)].epoch));
            }
            Event::ServiceCidrDeleted(name) => {
                self.changes.facts |= self.service_cidrs.remove(&name).is_some();
            }
            Event::Begin(kind) => self.fillings[index(kind)].epoch += 1,
            Event::End(kind) => self.end(kind),
        }
    }

    fn epoch(&self, kind: Kind) -> u32 {
        self.fillings[index(kind)].epoch
    }

    fn end(&mut self, kind: Kind) {
        self.fillings[index(kind)].complete = true;
        let epoch = self.epoch(kind);
        match kind {
            Kind::Service => {
                let gone =
                    self.services.iter().filter(|(_, entry)| entry.spec.is_some() && entry.epoch != epoch);
                for key in gone.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                    self.delete_service(&key);
                }
            }
            Kind::Slice => {
                let gone = self.slices.iter().filter(|(_, owned)| owned.epoch != epoch);
                for key in gone.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                    self.delete_slice(&key);
                }
            }
            Kind::Node => {
                if self.node_epoch != epoch {
                    self.set_node(None);
                }
            }
            Kind::ServiceCidr => {
                let before = self.service_cidrs.len();
                self.service_cidrs.retain(|_, (_, told)| *told == epoch);
                self.changes.facts |= self.service_cidrs.len() != before;
            }
        }
    }

    fn set_service(&mut self, service: Service) {
        let key = service.key.clone();
        let epoch = self.epoch(Kind::Service);
        let spec = Spec::new(service, &self.options);
        if spec.is_some() {
            self.services.entry(key.clone()).or_default().epoch = epoch;
        }
        self.put_spec(&key, spec);
    }

    fn delete_service(&mut self, key: &ObjectKey) {
        self.put_spec(key, None);
    }

    fn put_spec(&mut self, key: &ObjectKey, spec: Option<Spec>) {
        let Some(entry) = self.services.get_mut(key) else { return };
        if entry.spec == spec {
            return;
        }
        let claims_of = |spec: &Option<Spec>| spec.as_ref().map(|spec| spec.claims(key)).unwrap_or_default();
        let (old, new) = (claims_of(&entry.spec), claims_of(&spec));
        self.claims.replace(&old, &new, &mut self.dirty);
        if spec.is_none() {
            self.departures.forget_service(key);
        }
        let before = std::mem::replace(&mut entry.spec, spec);
        let (before, after) = (named(before.as_ref(), &old), named(entry.spec.as_ref(), &new));
        let changed: Vec<_> = before.symmetric_difference(&after).map(|(claim, _)| claim.site).collect();
        if self.ready() {
            self.changes.sites.extend(changed);
        }
        self.changes.service_changes += 1;
        self.dirty.insert(key.clone());
        self.forget_if_empty(key);
    }

    fn set_slice(&mut self, slice: Slice) {
        let (key, service) = (slice.key.clone(), slice.service.clone());
        let ready = self.ready();
        let epoch = self.epoch(Kind::Slice);
        if self.slices.get(&key).is_some_and(|owned| owned.service != service) {
            self.delete_slice(&key);
        }
        let part = if self.options.families.contains(&slice.family) {
            Part::new(slice, &self.options.node_name, &mut self.zone_lists)
        } else {
            None
        };
        let Some(part) = part else { return self.delete_slice(&key) };
        let zone = self.node.as_ref().and_then(|node| node.zone.as_deref());
        let entry = self.services.entry(service.clone()).or_default();
        let old = entry.parts.iter().position(|old| old.key == key);
        let same = old.is_some_and(|at| entry.parts[at].looks_like(&part, zone));
        let seen = !same && (entry.shows(&part) || old.is_some_and(|at| entry.shows(&entry.parts[at])));
        if let Some(at) = old.filter(|_| seen && ready) {
            let left = entry.parts[at].left_behind(Some(&part)).map(|left| departure(&service, left));
            self.departures.begin(left, &mut self.changes.departures);
        }
        if let Some(at) = old {
            entry.parts[at] = part;
        } else {
            if entry.parts.is_empty() {
                // most services have one slice: room for four would be a fifth of all the memory
                entry.parts.reserve_exact(1);
            }
            entry.parts.push(part);
        }
        self.slices.insert(key, Owned { service: service.clone(), epoch });
        if seen {
            self.changes.endpoint_changes += 1;
            self.dirty.insert(service);
        }
    }

    fn delete_slice(&mut self, key: &ObjectKey) {
        let Some(Owned { service, .. }) = self.slices.remove(key) else { return };
        let ready = self.ready();
        let Some(entry) = self.services.get_mut(&service) else { return };
        let Some(at) = entry.parts.iter().position(|part| part.key == *key) else { return };
        let part = entry.parts.swap_remove(at);
        if entry.shows(&part) {
            self.changes.endpoint_changes += 1;
            self.dirty.insert(service.clone());
            let left = part.left_behind(None).filter(|_| ready).map(|left| departure(&service, left));
            self.departures.begin(left, &mut self.changes.departures);
        }
        self.forget_if_empty(&service);
    }

    fn forget_if_empty(&mut self, key: &ObjectKey) {
        if self.services.get(key).is_some_and(|entry| entry.spec.is_none() && entry.parts.is_empty()) {
            self.services.remove(key);
        }
    }

    fn set_node(&mut self, node: Option<Node>) {
        if self.node == node {
            return;
        }
        let zone = |node: &Option<Node>| node.as_ref().and_then(|node| node.zone.clone());
        if zone(&self.node) != zone(&node) {
            let hinted = self.services.iter().filter(|(_, entry)| {
                entry.parts.iter().any(|part| part.has_zone_hints() && entry.shows(part))
            });
            self.dirty.extend(hinted.map(|(key, _)| key.clone()));
        }
        let addresses = |node: &Option<Node>| node.as_ref().map(|node| node.addresses.clone());
        if addresses(&self.node) != addresses(&node) {
            let restricted = self
                .services
                .iter()
                .filter(|(_, entry)| entry.spec.as_ref().is_some_and(Spec::has_source_ranges));
            self.dirty.extend(restricted.map(|(key, _)| key.clone()));
        }
        self.node = node;
        self.changes.facts = true;
    }

    fn node_addresses(&self) -> &[IpAddr] {
        self.node.as_ref().map_or(&[], |node| &node.addresses)
    }

    /// All objects of each kind have been told once.
    pub fn ready(&self) -> bool {
        self.fillings.iter().all(|filling| filling.complete)
    }

    /// Something changed.
    pub fn has_changes(&self) -> bool {
        !self.dirty.is_empty() || self.changes != Changes::default()
    }

    /// What changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        let mut changes = std::mem::take(&mut self.changes);
        changes.services = std::mem::take(&mut self.dirty).into_iter().collect();
        changes
    }

    /// From now on, until it leaves once more, the endpoint is among the departed ones of its port while it is in no slice of
    /// it.
    pub fn remember(&mut self, departure: &Departure) {
        let Departure { service, port_name, protocol, endpoint } = departure;
        let Some(entry) = self.services.get(service).filter(|entry| entry.spec.is_some()) else { return };
        let family = Family::of(endpoint.address);
        let is_back =
            listed(&entry.parts, family, port_name, *protocol).any(|(.., listed)| listed == *endpoint);
        if !is_back && self.departures.add(departure) {
            self.dirty.insert(service.clone());
        }
    }

    /// Undoes [`Tracker::remember`].
    pub fn forget(&mut self, departure: &Departure) {
        if self.departures.forget(departure) {
            self.dirty.insert(departure.service.clone());
        }
    }

    /// What a service means for a family; `None` when it is gone or has no frontend there.
    pub fn resolve(&self, key: &ObjectKey, family: Family) -> Option<ResolvedService> {
        let entry = self.services.get(key)?;
        let spec = entry.spec.as_ref().filter(|spec| spec.serves(family))?;
        let zone = self.node.as_ref().and_then(|node| node.zone.as_deref());
        let mut ports = Vec::with_capacity(spec.ports.len());
        for (number, port) in spec.numbered_ports() {
            let held = spec
                .frontends(port, family)
                .filter(|(frontend, site)| self.claims.holds(&spec.claim(key, number, *frontend, *site)));
            let mut frontends: Vec<_> = held.map(|(frontend, _)| frontend).collect();
            if frontends.is_empty() {
                continue;
            }
            frontends.sort_unstable();
            let external = frontends.iter().any(crate::Frontend::is_external);
            let internal = !frontends.iter().all(crate::Frontend::is_external);
            let cluster = external || spec.internal_policy == Policy::Cluster;
            let local = (internal && spec.internal_policy == Policy::Local)
                || (external && spec.external_policy == Policy::Local);
            let candidates = merge(&entry.parts, family, &port.name, port.protocol, zone);
            let choice = choose(&candidates, cluster, local);
            let is_back = |endpoint| candidates.binary_search_by_key(&endpoint, |one| one.endpoint).is_ok();
            let departed = self.departures.of_port(key, &port.name, port.protocol);
            let departed = departed.filter(|one| Family::of(one.address) == family && !is_back(*one));
            ports.push(ResolvedPort {
                name: port.name.clone(),
                protocol: port.protocol,
                port: port.port,
                frontends,
                cluster: choice.cluster,
                local: choice.local,
                any_endpoint: choice.any_endpoint,
                departed: departed.collect(),
            });
        }
        (!ports.is_empty()).then(|| ResolvedService {
            key: key.clone(),
            ports,
            affinity_seconds: spec.affinity_seconds,
            internal_policy: spec.internal_policy,
            external_policy: spec.external_policy,
            source_ranges: spec.source_ranges(family, self.node_addresses()),
            health_check_node_port: spec.health_check_node_port.map(NonZeroU16::get),
        })
    }

    /// The service that has the site.
    pub fn holder(&self, site: Site) -> Option<&ObjectKey> {
        self.claims.holder(site).map(|claim| &claim.service)
    }

    /// Tells each site that the service has in the family, and the endpoints that serve there, sorted: also those that
    /// take no new connections.
    pub fn served_sites(
        &self,
        key: &ObjectKey,
        family: Family,
        each: &mut dyn FnMut(Site, &Arc<[Endpoint]>),
    ) {
        let Some(entry) = self.services.get(key) else { return };
        let Some(spec) = entry.spec.as_ref().filter(|spec| spec.serves(family)) else { return };
        for (number, port) in spec.numbered_ports() {
            let serving: Arc<[Endpoint]> = serving(&entry.parts, family, &port.name, port.protocol).into();
            for (frontend, site) in spec.frontends(port, family) {
                if self.claims.holds(&spec.claim(key, number, frontend, site)) {
                    each(site, &serving);
                }
            }
        }
    }

    /// Every service there is.
    pub fn service_keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.services.iter().filter(|(_, entry)| entry.spec.is_some()).map(|(key, _)| key)
    }

    /// The own Node.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// The networks of all ServiceCIDRs, sorted.
    pub fn service_cidrs(&self) -> Vec<IpNet> {
        networks(self.service_cidrs.values().flat_map(|(nets, _)| nets.iter().copied())).into()
    }

    /// The frontends that services have lost to others since the last call.
    pub fn take_conflicts(&mut self) -> Vec<Conflict> {
        let lost = self.claims.take_lost();
        // a node port lost in both families is one conflict
        let conflicts: BTreeSet<_> =
            lost.iter().filter_map(|(lost, holder)| self.conflict(lost, holder)).collect();
        conflicts.into_iter().collect()
    }

    fn conflict(&self, lost: &Claim, holder: &Claim) -> Option<Conflict> {
        let spec = self.services.get(&lost.service)?.spec.as_ref()?;
        let port = spec.ports.get(usize::from(lost.index))?;
        let sites = [Family::V4, Family::V6].into_iter().flat_map(|family| spec.frontends(port, family));
        let (frontend, site) = sites.into_iter().find(|(_, site)| *site == lost.site)?;
        Some(Conflict {
            service: lost.service.clone(),
            port_name: port.name.clone(),
            frontend,
            protocol: site.protocol,
            port: site.port,
            holder: holder.service.clone(),
            reason: Precedence::between(holder, lost),
        })
    }

    /// How many ready endpoints of the service are on this node: different addresses, of the family that has more, as a
    /// pod has one of each. Ready is what it is in the list for policy Local, so that both say the same.
    pub fn local_ready_endpoints(&self, key: &ObjectKey) -> usize {
        let Some(entry) = self.services.get(key) else { return 0 };
        let Some(spec) = &entry.spec else { return 0 };
        let served = self.options.families.iter().filter(|family| spec.serves(**family));
        let counts = served.map(|family| {
            let ports = spec.ports.iter();
            let candidates =
                ports.flat_map(|port| merge(&entry.parts, *family, &port.name, port.protocol, None));
            let ready = candidates.filter(|one| one.local && one.state.is_ready());
            ready.map(|one| one.endpoint.address).collect::<HashSet<_>>().len()
        });
        counts.max().unwrap_or(0)
    }

    /// The port of the node at which the service's health is checked: that of a load balancer with external policy Local.
    pub fn health_check_node_port(&self, key: &ObjectKey) -> Option<u16> {
        Some(self.services.get(key)?.spec.as_ref()?.health_check_node_port?.get())
    }
}
