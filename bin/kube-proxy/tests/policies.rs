//! Who answers: every pair of traffic policies, every state of the endpoints, every kind of client, every frontend, both
//! families. One running proxy, real packets, a service for each pair of policies and state. What is right is worked out
//! here from the rule in words, by code that shares nothing with the product. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use ipnet::IpNet;
use lab::{Addresses, Lab, Node, Pod, Server, Spec};
use netlink::route::Handle;
use serde_json::{Value, json};
use testkit::objects::{Manifests, Objects};
use testkit::proxy::Proxy;
use testkit::scenario::format::{Expect, Flow, OneOrMany, Protocol, Slice, Source};
use testkit::scenario::{NODE, USUAL_FLAGS, World, check, node};

/// Flows tried side by side, but for silent ones, which are all tried at once.
const SIDE_BY_SIDE: usize = 8;
/// So many wrong flows are enough to report.
const ENOUGH: usize = 20;

/// The endpoints on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    NotReady,
    Terminating,
    TerminatingServing,
    Ready,
    /// The second one terminates and serves.
    ReadyAndTerminatingServing,
}

const STATES: [State; 6] = [
    State::Absent,
    State::NotReady,
    State::Terminating,
    State::TerminatingServing,
    State::Ready,
    State::ReadyAndTerminatingServing,
];

impl State {
    /// Puts the pods of a node into the slice.
    fn add_to(self, slice: &mut Slice, pods: [&str; 2]) {
        let [first, second] = pods.map(str::to_owned);
        match self {
            Self::Absent => {}
            Self::NotReady => slice.not_ready.push(first),
            Self::Terminating => slice.terminating.push(first),
            Self::TerminatingServing => slice.terminating_serving.push(first),
            Self::Ready => slice.ready.push(first),
            Self::ReadyAndTerminatingServing => {
                slice.ready.push(first);
                slice.terminating_serving.push(second);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Cluster,
    Local,
}

const POLICIES: [Policy; 2] = [Policy::Cluster, Policy::Local];

/// Client kinds, each with its name in the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    PodOfTheNode,
    TheNode,
    Outside,
    PodElsewhere,
}

const CLIENTS: [(Client, &str); 4] = [
    (Client::PodOfTheNode, "p3"),
    (Client::TheNode, NODE),
    (Client::Outside, "ext"),
    (Client::PodElsewhere, "s1"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frontend {
    ClusterIp,
    ExternalIp,
    LoadBalancerIp,
    NodePort,
}

const FRONTENDS: [Frontend; 4] =
    [Frontend::ClusterIp, Frontend::ExternalIp, Frontend::LoadBalancerIp, Frontend::NodePort];

/// One service.
#[derive(Clone, Copy, Debug)]
struct Case {
    number: u8,
    internal: Policy,
    external: Policy,
    local: State,
    remote: State,
}

impl Case {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for internal in POLICIES {
            for external in POLICIES {
                for local in STATES {
                    for remote in STATES {
                        let number = u8::try_from(all.len() + 1).unwrap();
                        all.push(Self { number, internal, external, local, remote });
                    }
                }
            }
        }
        all
    }

    fn name(self) -> String {
        format!("case-{}", self.number)
    }

    fn port(self) -> u16 {
        1000 + u16::from(self.number)
    }

    fn node_port(self) -> u16 {
        30_000 + u16::from(self.number)
    }

    fn service(self) -> Value {
        let mut service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name()},
            "spec": {
                "type": "LoadBalancer",
                "internalTrafficPolicy": format!("{:?}", self.internal),
                "externalTrafficPolicy": format!("{:?}", self.external),
                "clusterIPs": [format!("203.0.113.{}", self.number), format!("2001:db8:c::{}", self.number)],
                "externalIPs": ["203.0.113.250", "2001:db8:d::250"],
                "ports": [
                    {"port": self.port(), "targetPort": 8080, "nodePort": self.node_port(), "protocol": "TCP"},
                ],
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.251"}, {"ip": "2001:db8:d::251"}]}},
        });
        if self.external == Policy::Local {
            service["spec"]["healthCheckNodePort"] = (31_000 + u16::from(self.number)).into();
        }
        service
    }

    fn slice(self) -> Slice {
        let mut slice = Slice { service: self.name(), port: Some(8080), ..Slice::default() };
        self.local.add_to(&mut slice, ["p1", "p2"]);
        self.remote.add_to(&mut slice, ["r1", "r2"]);
        slice
    }

    /// The address of a frontend in each family.
    fn addresses(self, frontend: Frontend) -> [SocketAddr; 2] {
        let texts = match frontend {
            Frontend::ClusterIp => {
                [format!("203.0.113.{}", self.number), format!("[2001:db8:c::{}]", self.number)]
            }
            Frontend::ExternalIp => ["203.0.113.250".to_owned(), "[2001:db8:d::250]".to_owned()],
            Frontend::LoadBalancerIp => ["203.0.113.251".to_owned(), "[2001:db8:d::251]".to_owned()],
            Frontend::NodePort => ["192.0.2.10".to_owned(), "[2001:db8:a::10]".to_owned()],
        };
        let port = if frontend == Frontend::NodePort { self.node_port() } else { self.port() };
        texts.map(|address| format!("{address}:{port}").parse().unwrap())
    }

    /// What must happen, and the source that servers must see.
    ///
    /// - The cluster list is the ready endpoints; if there are none, those that terminate and serve. The local list is the
    ///   same among the endpoints of this node.
    /// - Nobody in the cluster list: refused.
    /// - The internal policy rules the cluster IP. Cluster: the cluster list. Local: the local list, and silence if it is
    ///   empty. Pods keep their address, others are masqueraded.
    /// - The external policy rules the other frontends. Cluster: the cluster list, masqueraded. Local: the outside meets the
    ///   local list with its address kept, or silence; pods meet the cluster list with their address kept; the node meets the
    ///   cluster list masqueraded.
    fn right(self, client: Client, frontend: Frontend) -> (Expect, Option<Source>) {
        let cluster = usable(&[(self.local, ["p1", "p2"]), (self.remote, ["r1", "r2"])]);
        let local = usable(&[(self.local, ["p1", "p2"])]);
        if cluster.is_empty() {
            return (Expect::Refused, None);
        }
        let pod = matches!(client, Client::PodOfTheNode | Client::PodElsewhere);
        let (list, kept) = match (frontend, self.internal, self.external) {
            (Frontend::ClusterIp, Policy::Cluster, _) => (cluster, pod),
            (Frontend::ClusterIp, Policy::Local, _) => (local, pod),
            (_, _, Policy::Cluster) => (cluster, false),
            (_, _, Policy::Local) if client == Client::Outside => (local, true),
            (_, _, Policy::Local) => (cluster, pod),
        };
        if list.is_empty() {
            return (Expect::Timeout, None);
        }
        let source = if kept { Source::Kept } else { Source::Masqueraded };
        (Expect::AnsweredBy(list.into_iter().map(str::to_owned).collect()), Some(source))
    }
}

fn usable<'a>(nodes: &[(State, [&'a str; 2])]) -> Vec<&'a str> {
    let first_of = |wanted: &[State]| -> Vec<&'a str> {
        nodes.iter().filter(|(state, _)| wanted.contains(state)).map(|(_, [first, _])| *first).collect()
    };
    let ready = first_of(&[State::Ready, State::ReadyAndTerminatingServing]);
    if ready.is_empty() { first_of(&[State::TerminatingServing]) } else { ready }
}

/// A flow, and what it is for people.
struct Cell {
    about: String,
    from: &'static str,
    to: SocketAddr,
    flow: Flow,
}

fn cells(cases: &[Case]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for case in cases {
        for (client, from) in CLIENTS {
            for frontend in FRONTENDS {
                let (expect, source) = case.right(client, frontend);
                for to in case.addresses(frontend) {
                    cells.push(Cell {
                        about: format!("{case:?} {client:?} {frontend:?}"),
                        from,
                        to,
                        flow: Flow {
                            from: OneOrMany::One(from.to_owned()),
                            to: OneOrMany::One(to.to_string()),
                            protocol: Protocol::Tcp,
                            expect: expect.clone(),
                            source: source.clone(),
                            from_address: None,
                            from_port: None,
                            times: None,
                        },
                    });
                }
            }
        }
    }
    cells
}

/// The standard lab with a third pod on the node, and a third node with a pod.
///
/// In a cluster each node's proxy has the connections of its own pods. Those of the pod elsewhere come to `n1` here, so
/// that its rules are seen; the way back from an endpoint on `n2` must lead through `n1` too.
fn lab() -> Lab {
    let addresses = |v4: &str, v6: &str| Addresses { v4: v4.parse().unwrap(), v6: v6.parse().unwrap() };
    let mut spec = Spec::standard().with_pod("p3", 13);
    spec.nodes.push(Node {
        name: "n3".to_owned(),
        addresses: addresses("192.0.2.30/24", "2001:db8:a::30/64"),
        bridge: addresses("198.51.100.193/26", "2001:db8:b:1:8000::1/65"),
        pods: vec![Pod {
            name: "s1".to_owned(),
            addresses: addresses("198.51.100.201/26", "2001:db8:b:1:8000::201/65"),
        }],
    });
    let lab = Lab::new(spec).unwrap();
    let (pod, n1) = (lab.member("s1").unwrap().addresses, lab.member(NODE).unwrap().addresses);
    let back = || {
        let mut routes = Handle::open().unwrap();
        routes.add_route(IpNet::from(IpAddr::from(pod.v4.addr())), n1.v4.addr().into()).unwrap();
        routes.add_route(IpNet::from(IpAddr::from(pod.v6.addr())), n1.v6.addr().into()).unwrap();
    };
    lab.ns("n2").unwrap().run(back).unwrap();
    lab
}

/// Tries flows side by side and tells which went wrong.
fn wrong(lab: &Lab, cells: Vec<&Cell>, side_by_side: usize) -> Vec<String> {
    let queue = Mutex::new(cells.into_iter());
    let wrong = Mutex::new(Vec::new());
    let work = || {
        while wrong.lock().unwrap().len() < ENOUGH {
            let Some(cell) = queue.lock().unwrap().next() else { return };
            if let Err(came) = check(lab, &cell.flow, cell.from, cell.to, false) {
                let (about, to, flow) = (&cell.about, cell.to, &cell.flow);
                let text =
                    format!("{about} at {to}: expected {:?} {:?}, came: {came:#}", flow.expect, flow.source);
                wrong.lock().unwrap().push(text);
            }
        }
    };
    thread::scope(|scope| (0..side_by_side).for_each(|_| drop(scope.spawn(work))));
    wrong.into_inner().unwrap()
}

#[test]
fn every_client_meets_the_endpoints_that_the_policies_allow_at_every_frontend() {
    let lab = lab();
    let servers = lab.members().iter().filter(|member| member.node.is_some());
    let _servers: Vec<_> = servers.map(|pod| Server::start(pod, &[8080]).unwrap()).collect();
    let folder = tempfile::tempdir().unwrap();
    let mut manifests = Manifests::new(folder.path()).unwrap();
    let cases = Case::all();
    let mut world = World::new(&lab);
    let mut objects = vec![node(&lab).unwrap()];
    for case in &cases {
        objects.push(world.complete(case.service()).unwrap());
        objects.extend(world.expand(&case.slice()).unwrap());
    }
    manifests.apply(&objects).unwrap();
    let mut flags: Vec<_> = USUAL_FLAGS.map(str::to_owned).into();
    flags.push("--proxy-mode=nftables".to_owned());
    flags.extend(manifests.flags());
    let log = folder.path().join("log");
    let binary = Path::new(env!("CARGO_BIN_EXE_kube-proxy"));
    let mut proxy = Proxy::start(lab.ns(NODE).unwrap(), binary, &flags, &log).unwrap();
    proxy.wait_until_synced().unwrap();

    let cells = cells(&cases);
    let (silent, told): (Vec<_>, Vec<_>) = cells.iter().partition(|cell| cell.flow.expect == Expect::Timeout);
    let at_once = silent.len();
    let mut all_wrong = wrong(&lab, told, SIDE_BY_SIDE);
    all_wrong.extend(wrong(&lab, silent, at_once));
    assert!(all_wrong.is_empty(), "{}\n\nthe proxy's log:\n{}", all_wrong.join("\n"), proxy.log());
}
