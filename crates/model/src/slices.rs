//! What slices contribute to their services, kept small, and merged into the endpoints of one service port.
//!
//! In: [`Slice`]s. Out: [`Candidate`]s, each address and port once, sorted. A node holds hundreds of thousands of
//! endpoints, so each takes two dozen bytes and no allocation of its own.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::{Endpoint, Family, Hints, ObjectKey, Protocol, Slice, SliceEndpoint, SlicePort};

/// The condition of an endpoint. Of two with one address and port the smaller counts: a pod that is shutting down must
/// not hide the new one that was given its address, nor stand in for it before it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// Ready.
    Ready,
    /// Not ready, and not terminating either.
    NotReady,
    /// Terminating, but to be used as if ready (`publishNotReadyAddresses`).
    ReadyTerminating,
    /// Terminating and still serving (KEP-1669).
    Draining,
    /// Terminating, and takes no new connections.
    Ending,
}

impl State {
    fn of(endpoint: &SliceEndpoint) -> Self {
        match (endpoint.ready, endpoint.terminating, endpoint.serving) {
            (true, false, _) => Self::Ready,
            (false, false, _) => Self::NotReady,
            (true, true, _) => Self::ReadyTerminating,
            (false, true, true) => Self::Draining,
            (false, true, false) => Self::Ending,
        }
    }

    pub(crate) fn is_ready(self) -> bool {
        matches!(self, Self::Ready | Self::ReadyTerminating)
    }

    /// Answers those that are connected to it.
    pub(crate) fn is_serving(self) -> bool {
        self.is_ready() || self == Self::Draining
    }
}

/// What a hint says to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hint {
    /// Use it.
    Ours,
    /// It is for others.
    Others,
    /// There is none.
    Missing,
}

impl Hint {
    fn of(names: &[Box<str>], ours: Option<&str>) -> Self {
        if names.is_empty() {
            Self::Missing
        } else if ours.is_some_and(|ours| names.iter().any(|name| **name == *ours)) {
            Self::Ours
        } else {
            Self::Others
        }
    }
}

type Zones = Arc<[Box<str>]>;

/// The lists of zones in use. There are few, and each is kept once.
#[derive(Debug, Default)]
pub(crate) struct ZoneLists {
    lists: HashSet<Zones>,
    /// The number of lists at which those out of use are dropped.
    limit: usize,
}

impl ZoneLists {
    fn shared(&mut self, mut zones: Vec<Box<str>>) -> Zones {
        zones.sort_unstable();
        zones.dedup();
        if let Some(known) = self.lists.get(&zones[..]) {
            return Arc::clone(known);
        }
        if self.lists.len() >= self.limit {
            self.lists.retain(|list| Arc::strong_count(list) > 1);
            self.limit = 16.max(2 * self.lists.len());
        }
        let zones = Zones::from(zones);
        self.lists.insert(Arc::clone(&zones));
        zones
    }
}

/// An endpoint of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    address: IpAddr,
    state: State,
    local: bool,
    node: Hint,
    /// 0, or one more than the index in [`Part::zones`].
    zones: u16,
}

/// What one slice contributes to its service.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) key: ObjectKey,
    pub(crate) family: Family,
    ports: Box<[SlicePort]>,
    members: Box<[Member]>,
    zones: Box<[Zones]>,
}

impl Part {
    /// `None` when the slice contributes nothing.
    pub(crate) fn new(slice: Slice, node_name: &str, lists: &mut ZoneLists) -> Option<Self> {
        let mut zones = Vec::new();
        let mut members: Vec<Member> = Vec::with_capacity(slice.endpoints.len());
        for endpoint in slice.endpoints {
            let state = State::of(&endpoint);
            let SliceEndpoint { address, local, hints, .. } = endpoint;
            let hints = hints.map_or_else(Hints::default, |hints| *hints);
            let node = Hint::of(&hints.nodes, Some(node_name));
            let zones =
                if hints.zones.is_empty() { 0 } else { position(&mut zones, lists.shared(hints.zones)) };
            members.push(Member { address, state, local, node, zones });
        }
        let order = |member: &Member| {
            let list = usize::from(member.zones).checked_sub(1).and_then(|index| zones.get(index));
            (member.address, member.state, member.local, member.node, list)
        };
        members.sort_unstable_by(|a, b| order(a).cmp(&order(b)));
        let mut ports = slice.ports;
        ports.sort_unstable_by(|a, b| (&a.name, a.protocol, a.port).cmp(&(&b.name, b.protocol, b.port)));
        (!members.is_empty() && !ports.is_empty()).then(|| Self {
            key: slice.key,
            family: slice.family,
            ports: ports.into(),
            members: members.into(),
            zones: zones.into(),
        })
    }

    /// Whether some endpoint has hints for zones.
    pub(crate) fn has_zone_hints(&self) -> bool {
        !self.zones.is_empty()
    }

    /// Whether a node in `zone` can tell the two apart.
    pub(crate) fn looks_like(&self, other: &Self, zone: Option<&str>) -> bool {
        let seen_of = |part: &Self, member: &Member| {
            (member.address, member.state, member.local, member.node, part.zone_hint(member, zone))
        };
        self.family == other.family
            && self.ports == other.ports
            && self.members.len() == other.members.len()
            && self.members.iter().zip(&other.members).all(|(a, b)| seen_of(self, a) == seen_of(other, b))
    }

    /// What was served or at least listed here, and is not so in `successor`. An endpoint that moves to another slice
    /// is among them.
    pub(crate) fn left_behind<'a>(
        &'a self,
        successor: Option<&'a Self>,
    ) -> impl Iterator<Item = (&'a SlicePort, Endpoint)> {
        self.ports.iter().flat_map(move |port| {
            let successor = successor.filter(|part| part.ports.contains(port));
            let left = self.members.iter().filter(move |member| {
                !successor.is_some_and(|part| {
                    let of_address = part.members.partition_point(|other| other.address < member.address);
                    let twins = part.members[of_address..].iter();
                    let mut twins = twins.take_while(|other| other.address == member.address);
                    twins.any(|other| other.state.is_serving() || !member.state.is_serving())
                })
            });
            left.map(move |member| (port, Endpoint { address: member.address, port: port.port }))
        })
    }

    fn zone_hint(&self, member: &Member, zone: Option<&str>) -> Hint {
        let list = usize::from(member.zones).checked_sub(1).and_then(|index| self.zones.get(index));
        Hint::of(list.map_or(&[], |list| &list[..]), zone)
    }
}

/// The index of `list`, plus one. A slice with more than 65,534 different lists has none for the rest of them.
fn position(lists: &mut Vec<Zones>, list: Zones) -> u16 {
    let index = lists.iter().position(|known| Arc::ptr_eq(known, &list)).unwrap_or_else(|| {
        lists.push(list);
        lists.len() - 1
    });
    u16::try_from(index + 1).unwrap_or(0)
}

/// An endpoint of a service port, before the choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) endpoint: Endpoint,
    pub(crate) state: State,
    pub(crate) local: bool,
    pub(crate) node: Hint,
    pub(crate) zone: Hint,
}

/// What the slices of the family have for one service port, named `name`.
pub(crate) fn listed<'a>(
    parts: &'a [Part],
    family: Family,
    name: &'a str,
    protocol: Protocol,
) -> impl Iterator<Item = (&'a Part, &'a Member, Endpoint)> {
    parts.iter().filter(move |part| part.family == family).flat_map(move |part| {
        let ports = part.ports.iter().filter(move |port| *port.name == *name && port.protocol == protocol);
        ports.flat_map(move |port| {
            let endpoint = |member: &Member| Endpoint { address: member.address, port: port.port };
            part.members.iter().map(move |member| (part, member, endpoint(member)))
        })
    })
}

/// The endpoints of one service port, of all slices of the family; each address and port once, sorted.
pub(crate) fn merge(
    parts: &[Part],
    family: Family,
    name: &str,
    protocol: Protocol,
    zone: Option<&str>,
) -> Vec<Candidate> {
    let candidate = |(part, member, endpoint): (&Part, &Member, Endpoint)| Candidate {
        endpoint,
        state: member.state,
        local: member.local,
        node: member.node,
        zone: part.zone_hint(member, zone),
    };
    let mut candidates: Vec<_> = listed(parts, family, name, protocol).map(candidate).collect();
    candidates.sort_unstable_by_key(|one| (one.endpoint, one.state, !one.local, one.node, one.zone));
    candidates.dedup_by_key(|one| one.endpoint);
    candidates
}

/// The endpoints of one service port that any slice of the family says serve, sorted.
pub(crate) fn serving(parts: &[Part], family: Family, name: &str, protocol: Protocol) -> Vec<Endpoint> {
    let serving = listed(parts, family, name, protocol).filter(|(_, member, _)| member.state.is_serving());
    let mut endpoints: Vec<_> = serving.map(|(_, _, endpoint)| endpoint).collect();
    endpoints.sort_unstable();
    endpoints.dedup();
    endpoints
}
