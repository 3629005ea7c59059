//! Whether packets meet what the services mean.

use std::net::SocketAddr;
use std::thread;

use lab::Lab;
use testkit::scenario::NODE;
use testkit::scenario::format::{Expect, Flow, OneOrMany, Protocol};

use crate::chance::Chance;
use crate::cluster::{Cluster, FAMILIES, Face, List, PODS, address};

/// Frontends tried each time.
const TRIED: usize = 6;
const CLIENTS: [&str; 3] = ["ext", NODE, "p1"];

/// Tries some frontends side by side, from some client each.
pub(crate) fn check(lab: &Lab, cluster: &Cluster<'_>, chance: &mut Chance) -> Result<(), String> {
    let tries: Vec<_> = (0..TRIED).filter_map(|_| choose(lab, cluster, chance)).collect();
    thread::scope(|scope| {
        let running: Vec<_> = tries.iter().map(|one| scope.spawn(|| one.check(lab))).collect();
        running.into_iter().try_for_each(|one| one.join().unwrap())
    })
}

struct Try {
    name: String,
    client: &'static str,
    to: SocketAddr,
    flow: Flow,
}

impl Try {
    fn check(&self, lab: &Lab) -> Result<(), String> {
        let Self { name, client, to, flow } = self;
        testkit::scenario::check(lab, flow, client, *to, false)
            .map_err(|came| format!("{client} to {name}: expected {:?}, came: {came:#}", flow.expect))
    }
}

fn choose(lab: &Lab, cluster: &Cluster<'_>, chance: &mut Chance) -> Option<Try> {
    let family = FAMILIES[chance.below(FAMILIES.len())];
    let meaning = cluster.meaning(family);
    let choice = chance.below(meaning.faces.len().max(1));
    let (name, face) = meaning.faces.iter().nth(choice)?;
    let client = CLIENTS[chance.below(CLIENTS.len())];
    let mut parts = name.split(' ');
    let (at, protocol, port) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    let at = if at == "node" { address(lab, NODE, family) } else { at.parse().unwrap() };
    let to = SocketAddr::new(at, port.parse().unwrap());
    let name_of = |endpoint: &SocketAddr| {
        let pod = PODS.iter().find(|pod| address(lab, pod, family) == endpoint.ip());
        (*pod.unwrap()).to_owned()
    };
    let expect = match list(face, client) {
        List::Refused => Expect::Refused,
        List::Silent => Expect::Timeout,
        List::To(endpoints) => {
            let names = endpoints.iter().map(name_of).collect();
            if face.affinity.is_some() { Expect::AlwaysOneOf(names) } else { Expect::AnsweredBy(names) }
        }
    };
    let flow = Flow {
        from: OneOrMany::One(client.to_owned()),
        to: OneOrMany::One(to.to_string()),
        protocol: if protocol == "tcp" { Protocol::Tcp } else { Protocol::Udp },
        expect,
        source: None,
        from_address: None,
        from_port: None,
        times: None,
    };
    Some(Try { name: name.clone(), client, to, flow })
}

/// What a client meets: source ranges let in the nodes and the outside only.
fn list(face: &Face, client: &str) -> List {
    match &face.inside {
        _ if client == "p1" && !face.sources.is_empty() => List::Silent,
        Some(inside) if client != "ext" => inside.clone(),
        _ => face.list.clone(),
    }
}
