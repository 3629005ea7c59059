//! A small cluster that changes at random, and what its services mean on the node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use lab::Lab;
use serde_json::{Value, json};
use testkit::objects::Identity;

use crate::chance::Chance;

pub(crate) const PODS: [&str; 4] = ["p1", "p2", "r1", "r2"];
/// The first pods are on the node.
const LOCAL_PODS: usize = 2;
pub(crate) const ENDPOINT_PORT: u16 = 8080;
const SERVICES: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

pub(crate) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

impl Family {
    fn name(self) -> &'static str {
        if self == Self::V4 { "IPv4" } else { "IPv6" }
    }

    /// An address of one of the ranges for services; `host` is below 256.
    fn address(self, range: Range, host: usize) -> IpAddr {
        let text = match (self, range) {
            (Self::V4, _) => format!("203.0.113.{host}"),
            (Self::V6, Range::Cluster) => format!("2001:db8:c::{host:x}"),
            (Self::V6, Range::Outside) => format!("2001:db8:d::{host:x}"),
        };
        text.parse().unwrap()
    }

    /// Where the nodes and the outside are.
    fn nodes(self) -> &'static str {
        if self == Self::V4 { "192.0.2.0/24" } else { "2001:db8:a::/64" }
    }
}

#[derive(Clone, Copy)]
enum Range {
    Cluster,
    Outside,
}

/// What a list of endpoints is for those who connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum List {
    Refused,
    Silent,
    To(BTreeSet<SocketAddr>),
}

/// What a frontend is for those who connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Face {
    pub(crate) list: List,
    /// For pods and the node, where it is another list.
    pub(crate) inside: Option<List>,
    pub(crate) masquerade: bool,
    pub(crate) affinity: Option<u32>,
    /// Who may connect; everybody if empty.
    pub(crate) sources: BTreeSet<String>,
}

/// What the services of a family mean. Frontends are `ADDRESS PROTOCOL PORT`, or `node PROTOCOL PORT`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) faces: BTreeMap<String, Face>,
    pub(crate) cluster_ips: BTreeSet<IpAddr>,
}

impl Meaning {
    /// How another one differs from this, for people.
    pub(crate) fn difference(&self, found: &Self) -> String {
        let mut text = String::new();
        let names: BTreeSet<_> = self.faces.keys().chain(found.faces.keys()).collect();
        for name in names {
            let (wanted, found) = (self.faces.get(name), found.faces.get(name));
            if wanted != found {
                let _ = write!(text, "\n  {name}\n    wanted {wanted:?}\n    found  {found:?}");
            }
        }
        if self.cluster_ips != found.cluster_ips {
            let _ = write!(text, "\n  cluster IPs {:?}, not {:?}", found.cluster_ips, self.cluster_ips);
        }
        text
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Ready,
    NotReady,
    TerminatingServing,
    Terminating,
}

const STATES: [State; 8] = [
    State::Absent,
    State::Absent,
    State::Ready,
    State::Ready,
    State::Ready,
    State::NotReady,
    State::TerminatingServing,
    State::Terminating,
];

const TYPES: [&str; 3] = ["ClusterIP", "NodePort", "LoadBalancer"];

#[derive(Clone, Debug)]
struct Service {
    number: usize,
    kind: &'static str,
    families: Vec<Family>,
    udp: bool,
    affinity: Option<u32>,
    internal_local: bool,
    external_local: bool,
    external_ip: bool,
    ranges: bool,
    /// For each family, the pods.
    endpoints: [[State; PODS.len()]; FAMILIES.len()],
    /// The endpoints are in two slices.
    split: bool,
}

fn families(chance: &mut Chance) -> Vec<Family> {
    [vec![Family::V4], vec![Family::V6], FAMILIES.to_vec()][chance.below(3)].clone()
}

fn affinity(chance: &mut Chance) -> Option<u32> {
    [None, None, Some(60), Some(10_800)][chance.below(4)]
}

impl Service {
    fn random(number: usize, chance: &mut Chance) -> Self {
        let mut new = Self {
            number,
            kind: TYPES[chance.below(3)],
            families: families(chance),
            udp: chance.one_in(2),
            affinity: affinity(chance),
            internal_local: chance.one_in(4),
            external_local: chance.one_in(2),
            external_ip: chance.one_in(2),
            ranges: chance.one_in(2),
            endpoints: [[State::Absent; PODS.len()]; FAMILIES.len()],
            split: chance.one_in(2),
        };
        (0..6).for_each(|_| new.change_endpoint(chance));
        new
    }

    fn change_endpoint(&mut self, chance: &mut Chance) {
        let (family, pod) = (chance.below(FAMILIES.len()), chance.below(PODS.len()));
        self.endpoints[family][pod] = STATES[chance.below(STATES.len())];
    }

    fn change_spec(&mut self, chance: &mut Chance) {
        match chance.below(8) {
            0 => self.kind = TYPES[chance.below(3)],
            1 => self.families = families(chance),
            2 => self.udp = !self.udp,
            3 => self.affinity = affinity(chance),
            4 => self.internal_local = !self.internal_local,
            5 => self.external_local = !self.external_local,
            6 => self.external_ip = !self.external_ip,
            _ => self.ranges = !self.ranges,
        }
    }

    fn name(&self) -> String {
        format!("s{}", self.number)
    }

    /// Protocol, port of the service, node port.
    fn ports(&self) -> Vec<(&'static str, u16, u16)> {
        let number = u16::try_from(self.number).unwrap();
        let mut ports = vec![("tcp", 80, 30_000 + number)];
        ports.extend(self.udp.then_some(("udp", 53, 30_100 + number)));
        ports
    }

    fn is_external(&self) -> bool {
        self.kind != "ClusterIP"
    }

    fn is_balanced(&self) -> bool {
        self.kind == "LoadBalancer"
    }

    fn has_external_local(&self) -> bool {
        self.is_external() && self.external_local
    }

    fn cluster_ip(&self, family: Family) -> IpAddr {
        family.address(Range::Cluster, 10 + self.number)
    }

    fn external_ip(&self, family: Family) -> IpAddr {
        family.address(Range::Outside, 100 + self.number)
    }

    fn balancer_ip(&self, family: Family) -> IpAddr {
        family.address(Range::Outside, 150 + self.number)
    }

    fn object(&self) -> Value {
        let of_families = |address: fn(&Self, Family) -> IpAddr| -> Vec<_> {
            self.families.iter().map(|family| address(self, *family).to_string()).collect()
        };
        let ports: Vec<_> = self.ports().iter().map(|(protocol, port, node_port)| {
            let mut object = json!({"name": protocol, "protocol": protocol.to_uppercase(), "port": port, "targetPort": ENDPOINT_PORT});
            if self.is_external() {
                object["nodePort"] = (*node_port).into();
            }
            object
        }).collect();
        let policy = |local| if local { "Local" } else { "Cluster" };
        let cluster_ips = of_families(Self::cluster_ip);
        let mut spec = json!({
            "type": self.kind,
            "clusterIP": cluster_ips[0],
            "clusterIPs": cluster_ips,
            "ipFamilies": self.families.iter().map(|family| family.name()).collect::<Vec<_>>(),
            "ports": ports,
            "internalTrafficPolicy": policy(self.internal_local),
        });
        if self.external_ip {
            spec["externalIPs"] = of_families(Self::external_ip).into();
        }
        if let Some(seconds) = self.affinity {
            spec["sessionAffinity"] = "ClientIP".into();
            spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": seconds}});
        }
        if self.is_external() {
            spec["externalTrafficPolicy"] = policy(self.external_local).into();
        }
        let mut status = json!({});
        if self.is_balanced() {
            let ingress: Vec<_> = of_families(Self::balancer_ip).iter().map(|ip| json!({"ip": ip})).collect();
            status = json!({"loadBalancer": {"ingress": ingress}});
            if self.ranges {
                spec["loadBalancerSourceRanges"] = FAMILIES.map(Family::nodes).to_vec().into();
            }
            if self.external_local {
                spec["healthCheckNodePort"] = (31_000 + self.number).into();
            }
        }
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "lab", "name": self.name()},
            "spec": spec, "status": status,
        })
    }

    /// All slices that it can have; those that it has not are without endpoints.
    fn slices(&self, lab: &Lab) -> Vec<Value> {
        let mut slices = Vec::new();
        for (family, states) in FAMILIES.into_iter().zip(self.endpoints) {
            let mut endpoints = [vec![], vec![]];
            for (pod, state) in states.into_iter().enumerate().filter(|(_, state)| *state != State::Absent) {
                let part = usize::from(self.split && pod % 2 == 1);
                let member = lab.member(PODS[pod]).unwrap();
                endpoints[part].push(json!({
                    "addresses": [address(lab, PODS[pod], family)],
                    "nodeName": member.node,
                    "conditions": {
                        "ready": state == State::Ready,
                        "serving": matches!(state, State::Ready | State::TerminatingServing),
                        "terminating": matches!(state, State::Terminating | State::TerminatingServing),
                    },
                }));
            }
            for (part, endpoints) in endpoints.into_iter().enumerate() {
                slices.push(json!({
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {
                        "namespace": "lab",
                        "name": format!("{}-{}-{part}", self.name(), family.name().to_lowercase()),
                        "labels": {"kubernetes.io/service-name": self.name()},
                    },
                    "addressType": family.name(),
                    "ports": [
                        {"name": "tcp", "port": ENDPOINT_PORT, "protocol": "TCP"},
                        {"name": "udp", "port": ENDPOINT_PORT, "protocol": "UDP"},
                    ],
                    "endpoints": endpoints,
                }));
            }
        }
        slices
    }

    /// The ready endpoints; without any, those that shut down and still serve.
    fn usable(&self, lab: &Lab, family: Family, pods: usize) -> BTreeSet<SocketAddr> {
        let states = &self.endpoints[usize::from(family == Family::V6)][..pods];
        let wanted = if states.contains(&State::Ready) { State::Ready } else { State::TerminatingServing };
        let usable = states.iter().zip(PODS).filter(|(state, _)| **state == wanted);
        usable.map(|(_, pod)| (address(lab, pod, family), ENDPOINT_PORT).into()).collect()
    }

    fn list(&self, lab: &Lab, family: Family, local: bool) -> List {
        let cluster = self.usable(lab, family, PODS.len());
        let own = if local { self.usable(lab, family, LOCAL_PODS) } else { cluster.clone() };
        match (cluster.is_empty(), own.is_empty()) {
            (true, _) => List::Refused,
            (false, true) => List::Silent,
            (false, false) => List::To(own),
        }
    }

    fn meaning(&self, lab: &Lab, family: Family, meaning: &mut Meaning) {
        if !self.families.contains(&family) {
            return;
        }
        meaning.cluster_ips.insert(self.cluster_ip(family));
        let internal = Face {
            list: self.list(lab, family, self.internal_local),
            inside: None,
            masquerade: false,
            affinity: self.affinity,
            sources: BTreeSet::new(),
        };
        let local = self.has_external_local();
        let external = Face {
            list: self.list(lab, family, local),
            inside: local.then(|| self.list(lab, family, false)),
            masquerade: !local,
            ..internal.clone()
        };
        let mut balanced = external.clone();
        if self.ranges {
            // the node is in the range, so that connections of the balancer's own address are allowed, too
            balanced.sources = [family.nodes().to_owned(), self.balancer_ip(family).to_string()].into();
        }
        for (protocol, port, node_port) in self.ports() {
            let mut add = |at: String, port: u16, face: &Face| {
                meaning.faces.insert(format!("{at} {protocol} {port}"), face.clone());
            };
            add(self.cluster_ip(family).to_string(), port, &internal);
            if self.external_ip {
                add(self.external_ip(family).to_string(), port, &external);
            }
            if self.is_external() {
                add("node".to_owned(), node_port, &external);
            }
            if self.is_balanced() {
                add(self.balancer_ip(family).to_string(), port, &balanced);
            }
        }
    }
}

/// The address of a member of the lab.
pub(crate) fn address(lab: &Lab, member: &str, family: Family) -> IpAddr {
    let addresses = lab.member(member).unwrap().addresses;
    if family == Family::V4 { addresses.v4.addr().into() } else { addresses.v6.addr().into() }
}

/// What a step does to the objects.
pub(crate) struct Change {
    pub(crate) about: String,
    pub(crate) applied: Vec<Value>,
    pub(crate) deleted: Vec<Identity>,
}

pub(crate) struct Cluster<'a> {
    lab: &'a Lab,
    services: [Option<Service>; SERVICES],
}

impl<'a> Cluster<'a> {
    pub(crate) fn new(lab: &'a Lab) -> Self {
        Self { lab, services: [const { None }; SERVICES] }
    }

    pub(crate) fn change(&mut self, chance: &mut Chance) -> Change {
        let number = chance.below(SERVICES);
        let before = self.services[number].clone();
        let after = match before.clone() {
            None => Some(Service::random(number, chance)),
            Some(_) if chance.one_in(20) => None,
            Some(mut service) => {
                if chance.one_in(3) {
                    service.change_spec(chance);
                } else {
                    (0..=chance.below(3)).for_each(|_| service.change_endpoint(chance));
                    service.split ^= chance.one_in(8);
                }
                Some(service)
            }
        };
        let objects = |service: Option<&Service>| {
            service
                .map_or_else(Vec::new, |service| [vec![service.object()], service.slices(self.lab)].concat())
        };
        let (old, new) = (objects(before.as_ref()), objects(after.as_ref()));
        let change = Change {
            about: format!("{before:?} -> {after:?}"),
            deleted: if new.is_empty() {
                old.iter().map(|object| Identity::of(object).unwrap()).collect()
            } else {
                vec![]
            },
            applied: new.into_iter().filter(|object| !old.contains(object)).collect(),
        };
        self.services[number] = after;
        change
    }

    pub(crate) fn meaning(&self, family: Family) -> Meaning {
        let mut meaning = Meaning::default();
        self.services.iter().flatten().for_each(|service| service.meaning(self.lab, family, &mut meaning));
        meaning
    }
}
