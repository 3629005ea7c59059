//! 10,000 random valid changes and some faults, in two courses side by side. After each, what the kernel's tables mean is listed with `nft` and compared with
//! what is right, which is worked out from the rules in words ([`cluster`]) by code that shares nothing with the product; every
//! hundredth time real packets are sent, too. Connections to endpoints that leave are reset all the while; the sets for that are
//! not compared. Needs root. `CHURN_SEED` chooses another course.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod chance;
mod cluster;
mod kernel;
mod packets;

use std::path::Path;
use std::time::{Duration, Instant};

use lab::{Lab, Server, Spec};
use rustix::process::Signal;
use serde_json::json;
use testkit::objects::{Identity, Manifests, Objects};
use testkit::proxy::Proxy;
use testkit::scenario::{NODE, USUAL_FLAGS, node};

use chance::Chance;
use cluster::{Cluster, FAMILIES, Family};
use kernel::Nft;

/// Of each of two courses.
const STEPS: usize = 5_000;
const PACKETS_EVERY: usize = 100;
const RESTART_EVERY: usize = 300;
/// Faults come no faster than a proxy still repairs at once.
const FAULT_EVERY: usize = 600;
/// More than a sync takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What other programs do to the tables.
const FAULTS: [&str; 4] = [
    "delete table ip kube-proxy",
    "delete table ip6 kube-proxy",
    "flush map ip kube-proxy endpoints",
    "flush map ip6 kube-proxy frontends",
];

fn start<'a>(lab: &'a Lab, folder: &Path, manifests: &Manifests) -> Proxy<'a> {
    let own = [
        "--proxy-mode=nftables",
        "--iptables-min-sync-period=0s",
        "--nftables-own-table=false",
        "--conntrack-removed-endpoint-reset-period=2s",
    ];
    let flags = [&USUAL_FLAGS.map(str::to_owned)[..], &own.map(str::to_owned), &manifests.flags()].concat();
    let binary = Path::new(env!("CARGO_BIN_EXE_kube-proxy"));
    let mut proxy = Proxy::start(lab.ns(NODE).unwrap(), binary, &flags, &folder.join("log")).unwrap();
    proxy.wait_until_synced().unwrap();
    proxy
}

/// Waits until the tables of some families mean what the cluster says.
fn settle(nft: &mut Nft, cluster: &Cluster<'_>, families: &[Family]) -> Result<(), String> {
    let begin = Instant::now();
    for family in families {
        let wanted = cluster.meaning(*family);
        loop {
            let found = nft.meaning(*family);
            if found == wanted {
                break;
            }
            if begin.elapsed() > PATIENCE {
                return Err(format!("{family:?}: {}", wanted.difference(&found)));
            }
        }
    }
    Ok(())
}

/// An object with something wrong in it: nobody else may notice. It is gone with the next one.
fn malformed(chance: &mut Chance) -> serde_json::Value {
    let ports =
        [json!(7), json!([{"port": 70_000}]), json!([{"port": 80, "protocol": "ICMP"}]), json!([null])];
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "lab", "name": "malformed"},
        "spec": {"clusterIP": "203.0.113.250", "ports": ports[chance.below(ports.len())]},
    })
}

#[test]
fn whatever_changes_the_tables_mean_what_the_cluster_says() {
    run(std::env::var("CHURN_SEED").map_or(1, |text| text.parse().unwrap()));
}

#[test]
fn whatever_else_changes_the_tables_mean_what_the_cluster_says() {
    run(2);
}

fn run(seed: u64) {
    let lab = Lab::new(Spec::standard()).unwrap();
    let _servers: Vec<_> = cluster::PODS
        .iter()
        .map(|pod| Server::start(lab.member(pod).unwrap(), &[cluster::ENDPOINT_PORT]).unwrap())
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let mut manifests = Manifests::new(folder.path()).unwrap();
    manifests.apply(&[node(&lab).unwrap()]).unwrap();
    let mut chance = Chance::new(seed);
    let mut cluster = Cluster::new(&lab);
    let mut nft = Nft::start(lab.ns(NODE).unwrap());
    let mut proxy = start(&lab, folder.path(), &manifests);
    for step in 1..=STEPS {
        let change = cluster.change(&mut chance);
        manifests.apply(&change.applied).unwrap();
        change.deleted.iter().for_each(|object| manifests.delete(object).unwrap());
        match step % FAULT_EVERY {
            50 => manifests.apply(&[malformed(&mut chance)]).unwrap(),
            250 => manifests.delete(&Identity::of(&malformed(&mut chance)).unwrap()).unwrap(),
            450 => nft.run(FAULTS[chance.below(FAULTS.len())]),
            _ => {}
        }
        if step % RESTART_EVERY == 0 {
            proxy.stop(if chance.one_in(2) { Signal::KILL } else { Signal::TERM }).unwrap();
            proxy = start(&lab, folder.path(), &manifests);
        }
        // each family at every second step, and both where something special has happened
        let families = if step % 50 == 0 { &FAMILIES[..] } else { &FAMILIES[step % 2..][..1] };
        let mut outcome = settle(&mut nft, &cluster, families);
        if step % PACKETS_EVERY == 0 {
            outcome = outcome.and_then(|()| packets::check(&lab, &cluster, &mut chance));
        }
        if let Err(wrong) = outcome {
            let log = proxy.log();
            let tail: Vec<_> = log.lines().rev().take(20).collect();
            panic!("CHURN_SEED={seed} step {step}: {}: {wrong}\n{}", change.about, tail.join("\n"));
        }
    }
}
