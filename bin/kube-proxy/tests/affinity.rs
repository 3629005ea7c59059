//! Session affinity over time: many clients, each with an endpoint of its own, which it keeps as long as it comes back
//! within the time-out. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use lab::{Lab, Outcome, Server, Spec};
use serde_json::json;
use testkit::objects::{Manifests, Objects};
use testkit::proxy::Proxy;
use testkit::scenario::format::Slice;
use testkit::scenario::{NODE, USUAL_FLAGS, World, node};

const TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two uses of a client that keeps its endpoint.
const PAUSE: Duration = Duration::from_millis(250);
/// Clients of a family. With three endpoints, they all choose the same or all choose alike again once in 10⁹ runs.
const CLIENTS: u8 = 20;

/// A client and the endpoint that it met last.
struct Client {
    address: IpAddr,
    frontends: [SocketAddr; 2],
    home: String,
    used: Instant,
}

impl Client {
    /// All clients: addresses of the pod `p2`.
    fn all(lab: &Lab) -> Vec<Self> {
        let mut all = Vec::new();
        for number in 0..CLIENTS {
            for (address, frontends) in [
                (format!("198.51.100.{}", 30 + number), ["203.0.113.10:80", "192.0.2.10:30080"]),
                (format!("2001:db8:b::{}", 30 + number), ["[2001:db8:c::10]:80", "[2001:db8:a::10]:30080"]),
            ] {
                let address = address.parse().unwrap();
                lab.add_address("p2", IpNet::from(address)).unwrap();
                let frontends = frontends.map(|frontend| frontend.parse().unwrap());
                all.push(Self { address, frontends, home: String::new(), used: Instant::now() });
            }
        }
        all
    }

    /// Connects to one of the frontends. Tells how long ago the last use was, at most, and whether the endpoint is the same.
    fn connect(&mut self, lab: &Lab, frontend: usize) -> (Duration, bool) {
        let begin = Instant::now();
        let client = lab::Client::new(lab.ns("p2").unwrap()).timeout(Duration::from_secs(10));
        let outcome = client.from_address(self.address).tcp(self.frontends[frontend]);
        let Outcome::Answered { by, .. } = outcome else { panic!("{}: {outcome}", self.address) };
        let (idle, same) = (self.used.elapsed(), by == self.home);
        self.home = by;
        self.used = begin;
        (idle, same)
    }
}

#[test]
fn a_client_keeps_its_endpoint_while_it_comes_back_in_time_and_is_forgotten_after_that() {
    let lab = Lab::new(Spec::standard()).unwrap();
    let servers = ["p1", "r1", "r2"];
    let _servers = servers.map(|pod| Server::start(lab.member(pod).unwrap(), &[8080]).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut manifests = Manifests::new(folder.path()).unwrap();
    let mut world = World::new(&lab);
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {
            "type": "NodePort",
            "externalTrafficPolicy": "Local",
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": TIMEOUT.as_secs()}},
            "clusterIPs": ["203.0.113.10", "2001:db8:c::10"],
            "ports": [{"port": 80, "targetPort": 8080, "nodePort": 30080, "protocol": "TCP"}],
        },
    });
    let mut objects = vec![node(&lab).unwrap(), world.complete(service).unwrap()];
    let ready = servers.map(str::to_owned).into();
    let slice = Slice { service: "web".to_owned(), port: Some(8080), ready, ..Slice::default() };
    objects.extend(world.expand(&slice).unwrap());
    manifests.apply(&objects).unwrap();
    let mut flags: Vec<_> = USUAL_FLAGS.map(str::to_owned).into();
    flags.push("--proxy-mode=nftables".to_owned());
    flags.extend(manifests.flags());
    let (binary, log) = (Path::new(env!("CARGO_BIN_EXE_kube-proxy")), folder.path().join("log"));
    let mut proxy = Proxy::start(lab.ns(NODE).unwrap(), binary, &flags, &log).unwrap();
    proxy.wait_until_synced().unwrap();

    let mut clients = Client::all(&lab);
    for client in &mut clients {
        client.connect(&lab, 0);
    }
    for v4 in [true, false] {
        let homes: BTreeSet<_> = clients
            .iter()
            .filter(|client| client.address.is_ipv4() == v4)
            .map(|client| &client.home)
            .collect();
        assert!(homes.len() > 1, "all clients are at {homes:?}");
    }
    let begin = Instant::now();
    let mut in_time = 0;
    for frontend in [0, 1].into_iter().cycle() {
        if begin.elapsed() > 2 * TIMEOUT {
            break;
        }
        thread::sleep(PAUSE);
        for client in &mut clients {
            let (idle, same) = client.connect(&lab, frontend);
            // a machine that is too slow proves nothing
            if idle < TIMEOUT {
                in_time += 1;
                assert!(same, "{} moved to {} after {idle:?}", client.address, client.home);
            }
        }
    }
    assert!(in_time > 0, "this machine is too slow: no client came back in time");
    thread::sleep(TIMEOUT + PAUSE);
    let mut stayed = [true, true];
    for client in &mut clients {
        stayed[usize::from(client.address.is_ipv4())] &= client.connect(&lab, 0).1;
    }
    assert_eq!(stayed, [false, false], "all clients of a family are where they were long ago");
}
