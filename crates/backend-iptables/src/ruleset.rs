//! What was last written, and what has to be written next.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};

use dataplane::{Facts, Report, Services};
use model::{ObjectKey, ResolvedService};

use crate::edit::{Edit, Line};
use crate::names::{ChainName, is_of_a_service};
use crate::restore::{Part, Restore};
use crate::service::{Rule, ServiceRules, endpoints, without_local_endpoint};
use crate::settings::Settings;
use crate::shared::{self, KUBELET_FIREWALL, SharedChain};
use crate::tables::{Chains, Table, Tables};

/// With more endpoints than these, the rules of endpoints go without comments.
const SMALL_CLUSTER: usize = 1000;

/// The rules of one family as they were last written: of each service's own chains no more than what tells whether they
/// have changed, since rules of hundreds of thousands of endpoints would fill the memory.
#[derive(Debug)]
pub struct Ruleset {
    settings: Settings,
    services: BTreeMap<ObjectKey, Footprint>,
    to_node_ports: Vec<Rule>,
    counts: Counts,
    hasher: RandomState,
}

/// What is counted, of one service or of all.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    endpoints: usize,
    /// Ports that are silent for want of an endpoint on this node: for the cluster IP, and for other frontends.
    without_local_endpoint: [usize; 2],
}

impl Counts {
    fn with(self, own: Self, combine: fn(usize, usize) -> usize) -> Self {
        let ([internal, external], [own_internal, own_external]) =
            (self.without_local_endpoint, own.without_local_endpoint);
        Self {
            endpoints: combine(self.endpoints, own.endpoints),
            without_local_endpoint: [combine(internal, own_internal), combine(external, own_external)],
        }
    }
}

/// What a service has in the tables.
#[derive(Debug)]
struct Footprint {
    /// Its chains, sorted, and a hash of the rules of each.
    chains: Box<[(ChainName, u64)]>,
    lines: Box<[(SharedChain, Box<str>)]>,
    counts: Counts,
}

/// A change of a [`Ruleset`] that has yet to be written.
#[derive(Debug)]
pub struct Update {
    services: BTreeMap<ObjectKey, Option<Footprint>>,
    to_node_ports: Vec<Rule>,
}

impl Footprint {
    fn new(service: &ResolvedService, rules: &ServiceRules, hasher: &RandomState) -> Self {
        Self {
            chains: rules.chains.iter().map(|(name, rules)| (*name, hasher.hash_one(rules))).collect(),
            lines: rules.lines.iter().map(|(chain, rule)| (*chain, rule.as_str().into())).collect(),
            counts: Counts {
                endpoints: endpoints(service),
                without_local_endpoint: without_local_endpoint(service),
            },
        }
    }

    fn lines(&self, chain: SharedChain) -> impl Iterator<Item = &str> {
        self.lines.iter().filter(move |(of, _)| *of == chain).map(|(_, rule)| &**rule)
    }
}

/// The lines of these services in a shared chain, and those at its end.
fn lines<'a>(
    chain: SharedChain,
    services: impl Iterator<Item = (&'a ObjectKey, &'a Footprint)>,
    to_node_ports: &'a [Rule],
) -> Vec<Line<'a>> {
    let of_services = services
        .flat_map(|(key, footprint)| footprint.lines(chain).map(move |rule| Line { owner: Some(key), rule }));
    let end = if chain == SharedChain::Services { to_node_ports } else { &[] };
    of_services.chain(end.iter().map(|rule| Line { owner: None, rule })).collect()
}

impl Ruleset {
    /// The rules for these services, and what makes them of what was found.
    pub fn rebuild(
        settings: &Settings,
        services: &Services<'_>,
        facts: &Facts,
        found: &Tables,
    ) -> (Self, Restore) {
        let mut ruleset = Self::empty(settings, facts);
        let mut restore = Restore::default();
        write_fixed(settings, found, &mut restore);
        let mut total = 0;
        services(&mut |service| total += endpoints(&service));
        let mut stale: BTreeSet<&str> =
            found.nat.keys().map(String::as_str).filter(|name| is_of_a_service(name)).collect();
        services(&mut |service| {
            let rules = ServiceRules::new(&service, settings, total > SMALL_CLUSTER);
            restore.nat.owner(Some(&service.key));
            for (name, rules) in &rules.chains {
                let name = name.to_string();
                stale.remove(&*name);
                if found.nat.get(&name) != Some(rules) {
                    restore.nat.replace(&name, rules);
                }
            }
            let footprint = Footprint::new(&service, &rules, &ruleset.hasher);
            ruleset.put(service.key, Some(footprint));
        });
        restore.nat.owner(None);
        for chain in SharedChain::ALL {
            let all = || lines(chain, ruleset.services.iter(), &ruleset.to_node_ports);
            let found = found.chains(chain.table()).get(chain.name());
            Edit::of_found(chain, found, &all()).write(&mut restore, all);
        }
        delete_stale(&stale, &found.nat, &mut restore.nat);
        (ruleset, restore)
    }

    /// What these changes make of the rules, `None` where a service is gone, and what brings them about. They take effect
    /// here by [`Ruleset::apply`].
    pub fn update(
        &self,
        changes: Vec<(ObjectKey, Option<ResolvedService>)>,
        facts: &Facts,
    ) -> (Update, Restore) {
        let mut restore = Restore::default();
        let to_node_ports = shared::to_node_ports(&self.settings, facts);
        let mut update = Update { services: BTreeMap::new(), to_node_ports };
        let is_large = self.endpoints_after(&changes) > SMALL_CLUSTER;
        for (key, service) in changes {
            restore.nat.owner(Some(&key));
            let footprint = self.update_chains(&key, service, is_large, &mut restore.nat);
            update.services.insert(key, footprint);
        }
        restore.nat.owner(None);
        for chain in SharedChain::ALL {
            let changed = update.services.keys().filter_map(|key| self.services.get_key_value(key));
            let old = lines(chain, changed, &self.to_node_ports);
            let new = lines(chain, update.services(), &update.to_node_ports);
            let others = self.services.iter().filter(|(key, _)| !update.services.contains_key(*key));
            let all = || lines(chain, others.chain(update.services()), &update.to_node_ports);
            Edit::between(chain, &old, &new).write(&mut restore, all);
        }
        (update, restore)
    }

    /// An update has been written.
    pub fn apply(&mut self, update: Update) {
        for (key, footprint) in update.services {
            self.put(key, footprint);
        }
        self.to_node_ports = update.to_node_ports;
    }

    /// What a sync did that wrote so many chains and rules.
    pub fn report(&self, written: usize) -> Report {
        let [internal, external] = self.counts.without_local_endpoint;
        Report {
            written,
            compare_again: false,
            internal_without_local_endpoints: internal,
            external_without_local_endpoints: external,
        }
    }

    fn empty(settings: &Settings, facts: &Facts) -> Self {
        Self {
            settings: settings.clone(),
            services: BTreeMap::new(),
            to_node_ports: shared::to_node_ports(settings, facts),
            counts: Counts::default(),
            hasher: RandomState::new(),
        }
    }

    fn put(&mut self, key: ObjectKey, footprint: Option<Footprint>) {
        if let Some(old) = self.services.remove(&key) {
            self.counts = self.counts.with(old.counts, |total, own| total - own);
        }
        if let Some(new) = footprint {
            self.counts = self.counts.with(new.counts, |total, own| total + own);
            self.services.insert(key, new);
        }
    }

    fn endpoints_after(&self, changes: &[(ObjectKey, Option<ResolvedService>)]) -> usize {
        changes.iter().fold(self.counts.endpoints, |total, (key, service)| {
            let old = self.services.get(key).map_or(0, |old| old.counts.endpoints);
            total + service.as_ref().map_or(0, endpoints) - old
        })
    }

    /// Writes those of the service's own chains that change.
    fn update_chains(
        &self,
        key: &ObjectKey,
        service: Option<ResolvedService>,
        is_large: bool,
        nat: &mut Part,
    ) -> Option<Footprint> {
        let mut old: BTreeMap<_, _> =
            self.services.get(key).iter().flat_map(|old| old.chains.iter().copied()).collect();
        let new = service.map(|service| {
            let rules = ServiceRules::new(&service, &self.settings, is_large);
            let new = Footprint::new(&service, &rules, &self.hasher);
            for ((name, rules), (_, hash)) in rules.chains.iter().zip(&new.chains) {
                if old.remove(name) != Some(*hash) {
                    nat.replace(&name.to_string(), rules);
                }
            }
            new
        });
        for name in old.keys() {
            nat.delete_chain(&name.to_string());
        }
        new
    }
}

impl Update {
    fn services(&self) -> impl Iterator<Item = (&ObjectKey, &Footprint)> {
        self.services.iter().filter_map(|(key, footprint)| Some((key, footprint.as_ref()?)))
    }
}

/// What does not depend on services.
fn write_fixed(settings: &Settings, found: &Tables, restore: &mut Restore) {
    for chain in shared::fixed_chains(settings) {
        if found.chains(chain.table).get(chain.name) != Some(&chain.rules) {
            restore.part(chain.table).replace(chain.name, &chain.rules);
        }
    }
    if !found.filter.contains_key(KUBELET_FIREWALL) {
        restore.filter.start(KUBELET_FIREWALL);
    }
    for guest in shared::guests(settings) {
        let chain = found.chains(guest.table).get(guest.chain);
        if !chain.is_some_and(|rules| rules.contains(&guest.rule)) {
            restore.part(guest.table).insert(guest.chain, &guest.rule);
        }
    }
}

/// A chain to which a rule of others leads cannot be deleted; it is left empty.
fn delete_stale(stale: &BTreeSet<&str>, found: &Chains, nat: &mut Part) {
    let is_own = |chain: &str| {
        is_of_a_service(chain)
            || SharedChain::ALL.iter().any(|shared| shared.table() == Table::Nat && shared.name() == chain)
    };
    let of_others = found.iter().filter(|(chain, _)| !is_own(chain));
    let targets: HashSet<&str> =
        of_others.flat_map(|(_, rules)| rules).filter_map(|rule| rule.rsplit(' ').next()).collect();
    for chain in stale {
        if targets.contains(chain) {
            nat.start(chain);
        } else {
            nat.delete_chain(chain);
        }
    }
}
