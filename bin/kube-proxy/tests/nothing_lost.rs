//! More than 2,000 new connections a second while the endpoints of their service change 1,000 times, the proxy is ended and
//! started again, and another program deletes its tables. Every endpoint lives all the time, so each connection that fails
//! is the proxy's fault. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use lab::{Lab, Load, Server, Spec};
use netlink::namespace::Namespace;
use rustix::process::Signal;
use serde_json::json;
use testkit::objects::{Manifests, Objects};
use testkit::proxy::Proxy;
use testkit::scenario::format::Slice;
use testkit::scenario::{NODE, USUAL_FLAGS, World, node};

const CHANGES: usize = 1_000;
const PODS: [&str; 4] = ["p1", "p2", "r1", "r2"];
const FRONTENDS: [&str; 2] = ["203.0.113.10:80", "[2001:db8:c::10]:80"];
/// For each frontend.
const CONNECTIONS_A_SECOND: u32 = 1_250;
/// So many connections are made between two changes at least, however slow the machine is.
const CONNECTIONS_A_CHANGE: u64 = 20;
/// More than all of it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// The endpoints from here on.
struct Change {
    sent: Instant,
    /// From here on the kernel leads to these and no others.
    acknowledged: Instant,
    pods: BTreeSet<&'static str>,
}

/// A time in which connections may fail.
struct Gap {
    begins: Instant,
    ends: Instant,
}

fn pods(turn: usize) -> BTreeSet<&'static str> {
    // each pair follows another one, and each pod comes and goes alone and together with another
    const PAIRS: [[usize; 2]; 6] = [[0, 1], [2, 3], [0, 2], [0, 3], [1, 3], [1, 2]];
    PAIRS[turn % PAIRS.len()].iter().map(|pod| PODS[*pod]).collect()
}

/// The addresses of the endpoints in the kernel's tables.
fn listed(namespace: &Namespace) -> BTreeSet<String> {
    let list = |family| {
        let mut nft = namespace.command("nft").unwrap();
        nft.args(["list", "map", family, "kube-proxy", "endpoints"]);
        nft.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut found = BTreeSet::new();
    for nft in [list("ip"), list("ip6")] {
        let text = String::from_utf8(nft.wait_with_output().unwrap().stdout).unwrap();
        let values = text.split(',').filter_map(|element| element.rsplit_once(" : "));
        found.extend(values.filter_map(|(_, value)| value.split_whitespace().next()).map(str::to_owned));
    }
    found
}

fn wait_for(lab: &Lab, proxy: &Proxy<'_>, pods: &BTreeSet<&str>) -> Instant {
    let of_pod = |pod: &&str| {
        let addresses = lab.member(pod).unwrap().addresses;
        [addresses.v4.addr().to_string(), addresses.v6.addr().to_string()]
    };
    let wanted: BTreeSet<_> = pods.iter().flat_map(of_pod).collect();
    let begin = Instant::now();
    loop {
        let found = listed(lab.ns(NODE).unwrap());
        if found == wanted {
            return Instant::now();
        }
        assert!(begin.elapsed() < PATIENCE / 10, "{found:?}, not {wanted:?}: {}", proxy.log());
    }
}

fn delete_tables(node: &Namespace) {
    for family in ["ip", "ip6"] {
        let delete = node.command("nft").unwrap().args(["delete", "table", family, "kube-proxy"]).status();
        assert!(delete.unwrap().success());
    }
}

#[test]
fn connections_reach_live_endpoints_only_while_endpoints_and_the_proxy_come_and_go() {
    let lab = Lab::new(Spec::standard()).unwrap();
    let _servers: Vec<_> =
        PODS.iter().map(|pod| Server::start(lab.member(pod).unwrap(), &[8080]).unwrap()).collect();
    let folder = tempfile::tempdir().unwrap();
    let mut manifests = Manifests::new(folder.path()).unwrap();
    let mut world = World::new(&lab);
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {
            "clusterIPs": ["203.0.113.10", "2001:db8:c::10"],
            "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}],
        },
    });
    let objects = [node(&lab).unwrap(), world.complete(service).unwrap()];
    manifests.apply(&objects).unwrap();
    let slices = |pods: &BTreeSet<&str>| {
        let ready = pods.iter().map(|pod| (*pod).to_owned()).collect();
        world.expand(&Slice { service: "web".into(), port: Some(8080), ready, ..Slice::default() }).unwrap()
    };
    manifests.apply(&slices(&pods(0))).unwrap();
    let flags = [
        &USUAL_FLAGS.map(str::to_owned)[..],
        &["--proxy-mode=nftables", "--iptables-min-sync-period=0s", "--nftables-own-table=false"]
            .map(str::to_owned),
        &manifests.flags(),
    ]
    .concat();
    let log = folder.path().join("log");
    let start = || {
        let mut proxy =
            Proxy::start(lab.ns(NODE).unwrap(), Path::new(env!("CARGO_BIN_EXE_kube-proxy")), &flags, &log)
                .unwrap();
        proxy.wait_until_synced().unwrap();
        proxy
    };
    let mut proxy = start();

    let begin = Instant::now();
    let mut changes = vec![Change { sent: begin, acknowledged: begin, pods: pods(0) }];
    let mut gaps = Vec::new();
    let loads = FRONTENDS.map(|frontend| {
        let to: SocketAddr = frontend.parse().unwrap();
        Load::start(lab.ns("ext").unwrap(), to, CONNECTIONS_A_SECOND, PATIENCE).unwrap()
    });
    for turn in 1..=CHANGES {
        let signal = match turn * 10 / CHANGES {
            3 if turn % 50 == 0 => Some(Signal::TERM),
            6 if turn % 50 == 0 => Some(Signal::KILL),
            _ => None,
        };
        let pods = pods(turn);
        let sent = Instant::now();
        if let Some(signal) = signal {
            proxy.stop(signal).unwrap();
            manifests.apply(&slices(&pods)).unwrap();
            proxy = start();
        } else {
            manifests.apply(&slices(&pods)).unwrap();
        }
        let acknowledged = wait_for(&lab, &proxy, &pods);
        changes.push(Change { sent, acknowledged, pods });
        if turn % (CHANGES / 4) == 0 {
            let begins = Instant::now();
            delete_tables(lab.ns(NODE).unwrap());
            gaps.push(Gap { begins, ends: wait_for(&lab, &proxy, &changes.last().unwrap().pods) });
        }
        let made = loads.each_ref().map(Load::made);
        while loads.iter().zip(made).any(|(load, made)| load.made() < made + CONNECTIONS_A_CHANGE) {
            assert!(begin.elapsed() < PATIENCE, "connections are made too slowly");
            thread::sleep(Duration::from_millis(1));
        }
    }
    let seconds = begin.elapsed().as_secs_f64();

    for (frontend, load) in FRONTENDS.iter().zip(loads) {
        let report = load.stop();
        println!("{frontend}: {} connections in {seconds:.1} s, {:?}", report.tries.len(), report.answers());
        let mut wrong = Vec::new();
        for one in &report.tries {
            let first = changes.partition_point(|change| change.acknowledged <= one.started) - 1;
            let end = changes.partition_point(|change| change.sent <= one.ended);
            let allowed: BTreeSet<_> = changes[first..end].iter().flat_map(|change| &change.pods).collect();
            let during_gap = || gaps.iter().any(|gap| gap.begins <= one.ended && one.started <= gap.ends);
            let right = match &one.outcome {
                Ok(server) => allowed.contains(&server.as_str()),
                Err(_) => during_gap(),
            };
            if !right {
                wrong.push(format!(
                    "{:?} after change {first} was acknowledged, in {:?}, allowed {allowed:?}: {:?}",
                    one.started - changes[first].acknowledged,
                    one.ended - one.started,
                    one.outcome
                ));
            }
        }
        wrong.truncate(20);
        assert!(wrong.is_empty(), "{frontend}: {}\n{}", wrong.join("\n"), proxy.log());
    }
}
