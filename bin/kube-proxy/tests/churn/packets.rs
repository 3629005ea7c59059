//! Whether packets meet what the services mean.

use std::net::SocketAddr;

use lab::Lab;
use testkit::scenario::NODE;
use testkit::scenario::format::{Expect, Flow, OneOrMany, Protocol};

use crate::chance::Chance;
use crate::cluster::{Cluster, FAMILIES, Face, List, PODS, address};

/// Frontends tried each time.
const TRIED: usize = 6;
const CLIENTS: [&str; 3] = ["ext", NODE, "p1"];

/// Tries some frontends from some client each.
pub(crate) fn check(lab: &Lab, cluster: &Cluster<'_>, chance: &mut Chance) -> Result<(), String> {
    for _ in 0..TRIED {
        let family = FAMILIES[chance.below(FAMILIES.len())];
        let meaning = cluster.meaning(family);
        if meaning.faces.is_empty() {
            continue;
        }
        let (name, face) = meaning.faces.iter().nth(chance.below(meaning.faces.len())).unwrap();
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
        testkit::scenario::check(lab, &flow, client, to, false)
            .map_err(|came| format!("{client} to {name}: expected {:?}, came: {came:#}", flow.expect))?;
    }
    Ok(())
}

/// What a client meets: source ranges let in the nodes and the outside only.
fn list(face: &Face, client: &str) -> List {
    match &face.inside {
        _ if client == "p1" && !face.sources.is_empty() => List::Silent,
        Some(inside) if client != "ext" => inside.clone(),
        _ => face.list.clone(),
    }
}
