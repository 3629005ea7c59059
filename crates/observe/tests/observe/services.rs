//! The health check ports of services: opened, updated and closed as a sync thread tells.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};

use kube_proxy_observe::clock::Moment;
use kube_proxy_observe::health::Health;
use kube_proxy_observe::service_health::{Check, ServiceHealth, service_health};
use model::{Family, ObjectKey};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::lab::{Memory, PATIENCE, Reply, address, get, limits, result_of};

struct Services {
    handle: ServiceHealth,
    servers: JoinHandle<()>,
    health: Arc<Health>,
    failures: Receiver<String>,
    told: RefCell<BTreeSet<ObjectKey>>,
}

impl Services {
    fn start() -> Self {
        let health = Arc::new(Health::new(Duration::from_secs(60)));
        let (sender, failures) = channel();
        let failed = move |service: &ObjectKey, address: SocketAddr, _: &std::io::Error| {
            // a test that has ended hears no more
            let _ = sender.send(format!("{service} at {address}"));
        };
        let (handle, servers) = service_health(health.clone(), limits(), Box::new(failed));
        let told = RefCell::default();
        Self { handle, servers: tokio::spawn(servers.run()), health, failures, told }
    }

    /// Tells that these services (all in namespace `ns`) are all there are.
    fn sync(&self, services: &[(&str, SocketAddr, usize)]) {
        let check = |&(name, address, local_endpoints): &(&str, SocketAddr, usize)| {
            (ObjectKey::new("ns", name), Check { port: address.port(), local_endpoints })
        };
        let checks: BTreeMap<_, _> = services.iter().map(check).collect();
        let gone = self.told.replace(checks.keys().cloned().collect());
        let changed = gone.into_iter().chain(checks.keys().cloned());
        let changes = changed.map(|service| (service.clone(), checks.get(&service).copied())).collect();
        self.handle.sync(changes, vec![address().ip()]);
    }
}

/// Asks until the answer is as wanted; what a sync tells takes effect soon, not at once.
async fn wait_for(address: SocketAddr, wanted: impl Fn(&Reply) -> bool) {
    let ask = async {
        while !wanted(&get(address, "/").await) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, ask).await.expect("the wanted answer");
}

async fn wait_closed(address: SocketAddr) {
    let ask = async {
        while TcpStream::connect(address).await.is_ok() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, ask).await.expect("closed");
}

fn names(name: &str) -> impl Fn(&Reply) -> bool {
    let line = format!("\t\t\"name\": \"{name}\"\n");
    move |reply| reply.body.contains(&line)
}

#[tokio::test]
async fn endpoints_that_come_and_go_change_the_answer() {
    let (services, port) = (Services::start(), address());
    services.sync(&[("shop", port, 0)]);
    wait_for(port, |reply| reply.code() == 503).await;
    services.sync(&[("shop", port, 3)]);
    wait_for(port, |reply| reply.code() == 200 && reply.headers["X-Load-Balancing-Endpoint-Weight"] == "3")
        .await;
    services.sync(&[("shop", port, 0)]);
    wait_for(port, |reply| reply.code() == 503).await;
}

#[tokio::test]
async fn a_stuck_proxy_is_told_by_every_service() {
    let (services, port) = (Services::start(), address());
    services.sync(&[("shop", port, 1)]);
    wait_for(port, |reply| reply.code() == 200).await;
    let long_ago = Moment {
        wall: SystemTime::now(),
        steady: Instant::now().checked_sub(Duration::from_secs(61)).expect("up for a minute"),
    };
    services.health.updated(Family::V4, long_ago);
    services.health.queued_update(Family::V4, long_ago);
    let reply = get(port, "/").await;
    assert_eq!(reply.code(), 503);
    assert!(
        reply.body.ends_with("\t\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": false\n}"),
        "{}",
        reply.body
    );
}

#[tokio::test]
async fn ports_move_with_their_service_and_close_without_it() {
    let (services, old, new) = (Services::start(), address(), address());
    services.sync(&[("shop", old, 1)]);
    wait_for(old, names("shop")).await;
    services.sync(&[("shop", new, 1)]);
    wait_for(new, names("shop")).await;
    wait_closed(old).await;
    services.sync(&[]);
    wait_closed(new).await;
}

#[tokio::test]
async fn a_port_passes_from_one_service_to_another_in_one_sync() {
    let (services, port) = (Services::start(), address());
    services.sync(&[("first", port, 1)]);
    wait_for(port, names("first")).await;
    services.sync(&[("second", port, 1)]);
    wait_for(port, names("second")).await;
}

#[tokio::test]
async fn a_port_of_two_services_is_served_for_one_and_the_same() {
    let (services, port) = (Services::start(), address());
    services.sync(&[("b", port, 1), ("a", port, 2)]);
    wait_for(port, names("a")).await;
}

#[tokio::test]
async fn a_taken_port_holds_up_no_other_is_told_once_and_tried_until_it_is_free() {
    let (log, _guard) = Memory::of_this_thread();
    let (services, taken, other) = (Services::start(), address(), address());
    let owner = TcpListener::bind(taken).await.expect("free");
    for endpoints in 1..4 {
        services.sync(&[("taken", taken, 1), ("other", other, endpoints)]);
        wait_for(other, |reply| reply.body.contains(&format!("\"localEndpoints\": {endpoints},"))).await;
    }
    assert_eq!(log.count("Cannot open healthCheckNodePort"), 1, "{:?}", log.lines());
    assert_eq!(log.count("service=\"ns/taken\""), 1, "{:?}", log.lines());
    assert_eq!(services.failures.try_iter().collect::<Vec<_>>(), [format!("ns/taken at {taken}")]);
    drop(owner);
    wait_for(taken, names("taken")).await;
    assert_eq!(log.count("is served now"), 1, "{:?}", log.lines());
}

#[tokio::test]
async fn only_the_last_of_many_syncs_has_to_be_done() {
    let (services, port) = (Services::start(), address());
    for endpoints in 0..10_000 {
        services.sync(&[("shop", port, endpoints)]);
    }
    wait_for(port, |reply| reply.headers["X-Load-Balancing-Endpoint-Weight"] == "9999").await;
}

#[tokio::test]
async fn a_sync_about_one_service_leaves_the_others_as_they_are() {
    let (services, first, second) = (Services::start(), address(), address());
    services.sync(&[("first", first, 1), ("second", second, 2)]);
    wait_for(first, names("first")).await;
    let changes = vec![(ObjectKey::new("ns", "first"), None)];
    services.handle.sync(changes, vec![first.ip()]);
    wait_closed(first).await;
    wait_for(second, |reply| reply.headers["X-Load-Balancing-Endpoint-Weight"] == "2").await;
}

#[tokio::test]
async fn all_ports_move_when_the_addresses_change() {
    let services = Services::start();
    let [any, one, other] = [Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into(), address().ip()];
    let mut changes = Vec::new();
    for name in ["a", "b"] {
        let free = TcpListener::bind("0.0.0.0:0").await.and_then(|listener| listener.local_addr());
        let check = Check { port: free.expect("there is a free port").port(), local_endpoints: 1 };
        changes.push((ObjectKey::new("ns", name), Some(check)));
    }
    let ports = changes.clone();
    for addresses in [vec![one], vec![any], vec![one]] {
        services.handle.sync(std::mem::take(&mut changes), addresses.clone());
        for (service, check) in &ports {
            let port = check.expect("they all have one").port;
            wait_for((one, port).into(), names(service.name())).await;
            if addresses == [any] {
                wait_for((other, port).into(), names(service.name())).await;
            } else {
                wait_closed((other, port).into()).await;
            }
        }
    }
}

#[tokio::test]
async fn syncs_come_from_plain_threads() {
    let (services, port) = (Services::start(), address());
    let handle = services.handle.clone();
    let check = Check { port: port.port(), local_endpoints: 1 };
    let changes = vec![(ObjectKey::new("ns", "shop"), Some(check))];
    let thread = std::thread::spawn(move || handle.sync(changes, vec![port.ip()]));
    thread.join().expect("no panic");
    wait_for(port, names("shop")).await;
}

#[tokio::test]
async fn wildcards_of_both_families_share_a_port() {
    let services = Services::start();
    let free = TcpListener::bind("[::]:0").await.and_then(|listener| listener.local_addr());
    let port = free.expect("there is a free port").port();
    let changes = vec![(ObjectKey::new("ns", "shop"), Some(Check { port, local_endpoints: 1 }))];
    services.handle.sync(changes, ["0.0.0.0", "::"].map(|any| any.parse().expect("an address")).to_vec());
    for loopback in ["127.0.0.1", "::1"] {
        let address = SocketAddr::new(loopback.parse().expect("an address"), port);
        wait_for(address, names("shop")).await;
    }
}

#[tokio::test]
async fn when_the_last_handle_goes_all_ports_close() {
    let (services, port) = (Services::start(), address());
    services.sync(&[("shop", port, 1)]);
    wait_for(port, names("shop")).await;
    drop(services.handle);
    result_of(services.servers).await;
    wait_closed(port).await;
}
