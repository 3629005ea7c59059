//! A service with numbers for its lists and a slot for each endpoint, and the elements that make it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use ipnet::IpNet;
use model::{Endpoint, Family, Frontend, Policy, Protocol, ResolvedPort, ResolvedService};

use crate::entry::{Bytes, Entry};
use crate::ids::Ids;
use crate::layout::{LONGEST_LIST, PAGE, REFUSED, SILENT, Set, size_code};

/// One service as it is in the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) ports: Vec<PlacedPort>,
}

/// One port of a service.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PlacedPort {
    /// `namespace/name:port/protocol`.
    name: Arc<str>,
    protocol: Protocol,
    port: u16,
    frontends: Vec<Frontend>,
    internal_policy: Policy,
    external_policy: Policy,
    affinity_seconds: Option<u32>,
    cluster: Option<PlacedList>,
    local: Option<PlacedList>,
    /// Endpoints on this node: they may reach themselves through a frontend.
    hairpin: Vec<Endpoint>,
    /// TCP connections to these endpoints are reset.
    departed: Vec<Endpoint>,
    /// Who may use the load balancer's addresses, aggregated; `None` for everybody.
    sources: Option<Vec<IpNet>>,
}

/// The endpoints that a frontend leads to, each in its slot.
#[derive(Debug, PartialEq, Eq)]
struct PlacedList {
    id: u32,
    slots: Vec<Endpoint>,
    /// With affinity: the number of the endpoint in each slot.
    endpoint_ids: Vec<u32>,
    /// What the kernel's `lists` says.
    size: u32,
}

/// Which endpoints a list has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Cluster,
    Local,
}

impl Scope {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Cluster => " cluster",
            Self::Local => " local",
        }
    }
}

/// Where a list's endpoints were before: they keep their slots.
pub(crate) enum Memory<'a> {
    /// As last written.
    Placed(Option<&'a Placed>),
    /// As found in the kernel, by list.
    Kernel(&'a dyn Fn(u32) -> Vec<Endpoint>),
}

/// Gives every list of the service a number and every endpoint a slot.
pub(crate) fn place(service: &ResolvedService, memory: &Memory<'_>, ids: &mut Ids) -> Placed {
    let ports = service.ports.iter().map(|port| place_port(service, port, memory, ids)).collect();
    Placed { ports }
}

fn place_port(
    service: &ResolvedService,
    port: &ResolvedPort,
    memory: &Memory<'_>,
    ids: &mut Ids,
) -> PlacedPort {
    let name: Arc<str> = format!("{}/{}", service.port_name(port), port.protocol).into();
    let external = port.frontends.iter().any(|frontend| !matches!(frontend, Frontend::ClusterIp(_)));
    let internal = port.frontends.iter().any(|frontend| matches!(frontend, Frontend::ClusterIp(_)));
    let used_by = |policy| {
        (internal && service.internal_policy == policy) || (external && service.external_policy == policy)
    };
    let mut list = |scope, backends: &[model::Backend]| {
        let endpoints: Vec<_> = backends.iter().map(|backend| backend.endpoint).collect();
        place_list(
            &name,
            scope,
            endpoints,
            port.any_endpoint,
            service.affinity_seconds.is_some(),
            memory,
            ids,
        )
    };
    // with external policy Local the node's own clients still go to the cluster list
    let cluster = (used_by(Policy::Cluster) || external).then(|| list(Scope::Cluster, &port.cluster));
    let local = used_by(Policy::Local).then(|| list(Scope::Local, &port.local));
    let mut hairpin: Vec<_> =
        port.cluster.iter().chain(&port.local).filter(|b| b.local).map(|b| b.endpoint).collect();
    hairpin.sort_unstable();
    hairpin.dedup();
    let firewalled = !service.source_ranges.is_empty()
        && port.frontends.iter().any(|frontend| matches!(frontend, Frontend::LoadBalancerIp(_)));
    PlacedPort {
        protocol: port.protocol,
        port: port.port,
        frontends: port.frontends.clone(),
        internal_policy: service.internal_policy,
        external_policy: service.external_policy,
        affinity_seconds: service.affinity_seconds,
        cluster,
        local,
        hairpin,
        departed: if port.protocol == Protocol::Tcp { port.departed.clone() } else { Vec::new() },
        sources: firewalled.then(|| IpNet::aggregate(&service.source_ranges)),
        name,
    }
}

fn place_list(
    name: &str,
    scope: Scope,
    mut endpoints: Vec<Endpoint>,
    any_endpoint: bool,
    affinity: bool,
    memory: &Memory<'_>,
    ids: &mut Ids,
) -> PlacedList {
    if endpoints.len() > LONGEST_LIST {
        tracing::warn!(
            service = name,
            endpoints = endpoints.len(),
            used = LONGEST_LIST,
            "More endpoints than a service can have in nftables mode; the last ones get no connections"
        );
        endpoints.truncate(LONGEST_LIST);
    }
    let list_name = format!("{name}{}", scope.suffix());
    let before = match memory {
        Memory::Placed(placed) => placed.and_then(|placed| placed.list(name, scope)),
        Memory::Kernel(_) => None,
    };
    let id = before.map_or_else(|| ids.take(list_name.as_bytes()), |list| list.id);
    let old_slots = match (before, memory) {
        (Some(list), _) => Cow::Borrowed(&list.slots[..]),
        (None, Memory::Kernel(slots)) => Cow::Owned(slots(id)),
        (None, Memory::Placed(_)) => Cow::Borrowed(&[][..]),
    };
    let slots = order(&old_slots, &endpoints);
    let endpoint_ids = if affinity { endpoint_ids(&list_name, &slots, before, ids) } else { Vec::new() };
    let size = match (slots.len(), any_endpoint) {
        (0, false) => REFUSED,
        (0, true) => SILENT,
        (length, _) => size_code(length),
    };
    PlacedList { id, slots, endpoint_ids, size }
}

fn endpoint_ids(list: &str, slots: &[Endpoint], before: Option<&PlacedList>, ids: &mut Ids) -> Vec<u32> {
    let known: HashMap<_, _> = before
        .map(|list| {
            list.slots.iter().zip(&list.endpoint_ids).map(|(endpoint, id)| (*endpoint, *id)).collect()
        })
        .unwrap_or_default();
    slots
        .iter()
        .map(|endpoint| {
            known.get(endpoint).copied().unwrap_or_else(|| ids.take(format!("{list} {endpoint}").as_bytes()))
        })
        .collect()
}

/// Endpoints in `old` keep their slots, new ones fill the holes, and the last ones move into holes that are left. `new` is
/// sorted.
fn order(old: &[Endpoint], new: &[Endpoint]) -> Vec<Endpoint> {
    let mut placed = vec![false; new.len()];
    let mut slots: Vec<Option<Endpoint>> = old
        .iter()
        .map(|endpoint| {
            let at = new.binary_search(endpoint).ok()?;
            (!std::mem::replace(&mut placed[at], true)).then_some(*endpoint)
        })
        .collect();
    let mut newcomers =
        new.iter().zip(&placed).filter(|(_, placed)| !**placed).map(|(endpoint, _)| *endpoint);
    for slot in &mut slots {
        if slot.is_none() {
            *slot = newcomers.next();
        }
    }
    slots.extend(newcomers.map(Some));
    let mut hole = 0;
    while hole < slots.len() {
        if slots[hole].is_some() {
            hole += 1;
        } else if let Some(Some(last)) = slots.pop() {
            slots[hole] = Some(last); // it was behind the hole
        }
    }
    slots.into_iter().flatten().collect()
}

impl Placed {
    fn list(&self, port: &str, scope: Scope) -> Option<&PlacedList> {
        let port = self.ports.iter().find(|candidate| &*candidate.name == port)?;
        match scope {
            Scope::Cluster => port.cluster.as_ref(),
            Scope::Local => port.local.as_ref(),
        }
    }

    /// Every number it uses.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> {
        self.ports
            .iter()
            .flat_map(PlacedPort::lists)
            .flat_map(|(list, _)| list.endpoint_ids.iter().copied().chain([list.id]))
    }

    /// The affinity times its lists have.
    pub(crate) fn affinity_seconds(&self) -> impl Iterator<Item = u32> {
        self.ports.iter().filter_map(|port| port.affinity_seconds)
    }

    /// How many ports are silent for cluster IPs, and for other frontends, for want of a local endpoint.
    pub(crate) fn without_local_endpoint(&self) -> [usize; 2] {
        let silent = |port: &&PlacedPort| port.local.as_ref().is_some_and(|list| list.size == SILENT);
        let count = |policy: fn(&PlacedPort) -> Policy| {
            self.ports.iter().filter(silent).filter(|port| policy(port) == Policy::Local).count()
        };
        [count(|port| port.internal_policy), count(|port| port.external_policy)]
    }

    /// The elements of those ports that `other` does not have just so. Of the others only those that a changed port may
    /// want as well: as long as one port wants them, the service does.
    pub(crate) fn entries_beyond(&self, other: Option<&Self>, family: Family) -> Vec<Entry> {
        let mut entries = Vec::new();
        for port in &self.ports {
            port.shared_entries(&mut entries);
            if !other.is_some_and(|other| other.ports.contains(port)) {
                port.own_entries(family, &mut entries);
            }
        }
        // two ports with one cluster IP, or one local endpoint
        entries.sort_unstable_by_key(Entry::place);
        entries.dedup_by_key(|entry| entry.place());
        entries
    }
}

impl PlacedPort {
    fn lists(&self) -> impl Iterator<Item = (&PlacedList, Scope)> {
        let cluster = self.cluster.iter().map(|list| (list, Scope::Cluster));
        cluster.chain(self.local.iter().map(|list| (list, Scope::Local)))
    }

    /// Elements of [`Set::is_shared`] sets.
    fn shared_entries(&self, out: &mut Vec<Entry>) {
        for frontend in &self.frontends {
            if let Frontend::ClusterIp(address) = *frontend {
                out.push(Entry::new(Set::ClusterIps, Bytes::EMPTY.address(address), Bytes::EMPTY));
            }
        }
        for endpoint in &self.hairpin {
            let key = Bytes::EMPTY.address(endpoint.address).address(endpoint.address);
            out.push(Entry::new(Set::Hairpin, key.protocol(self.protocol).port(endpoint.port), Bytes::EMPTY));
        }
    }

    /// Elements that no other port has.
    fn own_entries(&self, family: Family, out: &mut Vec<Entry>) {
        for frontend in &self.frontends {
            self.frontend_entries(*frontend, out);
        }
        for (list, scope) in self.lists() {
            self.list_entries(list, scope, out);
        }
        if let Some(sources) = &self.sources {
            self.firewall_entries(sources, family, out);
        }
        for endpoint in &self.departed {
            self.removed_endpoint_entries(*endpoint, out);
        }
    }

    fn vip(&self, address: std::net::IpAddr) -> Bytes {
        Bytes::EMPTY.address(address).protocol(self.protocol).port(self.port)
    }

    fn list_mark(&self, policy: Policy) -> Bytes {
        let list = match policy {
            Policy::Cluster => self.cluster.as_ref(),
            Policy::Local => self.local.as_ref(),
        };
        list.map_or(Bytes::EMPTY, |list| Bytes::EMPTY.mark(list.id))
    }

    fn frontend_entries(&self, frontend: Frontend, out: &mut Vec<Entry>) {
        let (key, sets, policy) = match frontend {
            Frontend::ClusterIp(address) => (self.vip(address), None, self.internal_policy),
            Frontend::ExternalIp(address) | Frontend::LoadBalancerIp(address) => {
                (self.vip(address), Some((Set::ExternalMasquerade, Set::ShortCircuit)), self.external_policy)
            }
            Frontend::NodePort(port) => (
                Bytes::EMPTY.protocol(self.protocol).port(port),
                Some((Set::NodePortMasquerade, Set::NodePortShortCircuit)),
                self.external_policy,
            ),
        };
        let frontends =
            if matches!(frontend, Frontend::NodePort(_)) { Set::NodePorts } else { Set::Frontends };
        out.push(Entry::with_comment(frontends, key, self.list_mark(policy), &self.name, ""));
        match (sets, policy) {
            (Some((masquerade, _)), Policy::Cluster) => out.push(Entry::new(masquerade, key, Bytes::EMPTY)),
            (Some((_, short_circuit)), Policy::Local) => {
                out.push(Entry::new(short_circuit, key, self.list_mark(Policy::Cluster)));
            }
            (None, _) => {}
        }
    }

    fn list_entries(&self, list: &PlacedList, scope: Scope, out: &mut Vec<Entry>) {
        let id = Bytes::EMPTY.mark(list.id);
        out.push(Entry::with_comment(
            Set::Lists,
            id,
            Bytes::EMPTY.mark(list.size),
            &self.name,
            scope.suffix(),
        ));
        if let Some(seconds) = self.affinity_seconds {
            out.push(Entry::new(Set::AffinityTimeouts, id, Bytes::EMPTY.mark(seconds)));
        }
        let big = list.slots.len() > PAGE as usize;
        for (slot, endpoint) in (0..).zip(&list.slots) {
            let key = if big { id.mark(slot / PAGE).mark(slot % PAGE) } else { id.mark(slot) };
            let address = Bytes::EMPTY.endpoint(*endpoint);
            let Some(endpoint_id) = list.endpoint_ids.get(slot as usize) else {
                out.push(Entry::new(if big { Set::EndpointsBig } else { Set::Endpoints }, key, address));
                continue;
            };
            let endpoint_id = Bytes::EMPTY.mark(*endpoint_id);
            out.push(Entry::new(
                if big { Set::AffinitySlotsBig } else { Set::AffinitySlots },
                key,
                endpoint_id,
            ));
            out.push(Entry::new(Set::AffinityEndpoints, endpoint_id, address));
        }
    }

    fn removed_endpoint_entries(&self, endpoint: Endpoint, out: &mut Vec<Entry>) {
        for frontend in &self.frontends {
            let key = Bytes::EMPTY.endpoint(endpoint);
            let (set, key) = match *frontend {
                Frontend::NodePort(port) => (Set::RemovedEndpointsNodePorts, key.port(port)),
                Frontend::ClusterIp(address)
                | Frontend::ExternalIp(address)
                | Frontend::LoadBalancerIp(address) => {
                    (Set::RemovedEndpoints, key.address(address).port(self.port))
                }
            };
            out.push(Entry::with_comment(set, key, Bytes::EMPTY, &self.name, ""));
        }
    }

    fn firewall_entries(&self, sources: &[IpNet], family: Family, out: &mut Vec<Entry>) {
        for frontend in &self.frontends {
            let Frontend::LoadBalancerIp(address) = *frontend else { continue };
            let key = self.vip(address);
            out.push(Entry::new(Set::FirewallFrontends, key, Bytes::EMPTY));
            for net in sources.iter().filter(|net| Family::of_net(net) == family) {
                let (first, last) = (key.address(net.network()), key.address(net.broadcast()));
                out.push(Entry::new(Set::FirewallSources, first, last));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn endpoints(numbers: &[u8]) -> Vec<Endpoint> {
        numbers.iter().map(|n| Endpoint { address: Ipv4Addr::new(192, 0, 2, *n).into(), port: 80 }).collect()
    }

    #[test]
    fn a_replaced_endpoint_takes_the_slot_of_the_one_that_left() {
        assert_eq!(order(&endpoints(&[1, 2, 3]), &endpoints(&[1, 3, 9])), endpoints(&[1, 9, 3]));
    }

    #[test]
    fn the_last_endpoint_moves_into_a_hole_that_nobody_fills() {
        assert_eq!(order(&endpoints(&[1, 2, 3, 4]), &endpoints(&[1, 3, 4])), endpoints(&[1, 4, 3]));
        assert_eq!(order(&endpoints(&[1, 2, 3]), &endpoints(&[1, 2])), endpoints(&[1, 2]));
        assert_eq!(order(&endpoints(&[1, 2]), &[]), []);
    }

    proptest! {
        #[test]
        fn every_endpoint_has_one_slot_and_few_move(
            old in proptest::collection::btree_set(any::<u8>(), 0..40),
            new in proptest::collection::btree_set(any::<u8>(), 0..40),
            turn in 0_usize..40,
        ) {
            let (mut old, new): (Vec<_>, Vec<_>) = (old.into_iter().collect(), new.into_iter().collect());
            if !old.is_empty() {
                let turn = turn % old.len();
                old.rotate_left(turn);
            }
            let (old, new) = (endpoints(&old), endpoints(&new));
            let slots = order(&old, &new);
            let mut sorted = slots.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, new.clone());
            let left = old.iter().filter(|endpoint| !new.contains(endpoint)).count();
            let moved = old.iter().zip(&slots).filter(|(before, now)| before != now).count();
            prop_assert!(moved <= left, "{} slots changed for {} that left", moved, left);
        }
    }
}
