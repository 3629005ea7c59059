//! Packets between the members of a lab. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kube_proxy_lab::{Client, Lab, Load, Outcome, Server, Spec};

fn lab(spec: Spec) -> Lab {
    Lab::new(spec).expect("a lab needs root")
}

fn serve(lab: &Lab, name: &str) -> Server {
    Server::start(lab.member(name).unwrap(), &[8080]).unwrap()
}

fn client<'a>(lab: &'a Lab, name: &str) -> Client<'a> {
    Client::new(lab.ns(name).unwrap()).timeout(Duration::from_secs(10))
}

/// Port 8080 of a member, in both families.
fn at(lab: &Lab, name: &str) -> [SocketAddr; 2] {
    let addresses = lab.member(name).unwrap().addresses;
    [(addresses.v4.addr(), 8080).into(), (addresses.v6.addr(), 8080).into()]
}

fn own(lab: &Lab, name: &str, like: SocketAddr) -> IpAddr {
    lab.member(name).unwrap().addresses.like(like.ip())
}

#[track_caller]
fn assert_answer(outcome: &Outcome, by: &str, sees: IpAddr) {
    match outcome {
        Outcome::Answered { by: who, seen_peer } => assert_eq!((who.as_str(), seen_peer.ip()), (by, sees)),
        other => panic!("{by} should have answered, but: {other}"),
    }
}

#[test]
fn everybody_reaches_every_pod_and_is_seen_as_itself() {
    let lab = lab(Spec::standard());
    let pods = ["p1", "p2", "r1", "r2"];
    let _servers = pods.map(|pod| serve(&lab, pod));
    for pod in pods {
        for member in lab.members() {
            for to in at(&lab, pod) {
                let mut seen = own(&lab, &member.name, to);
                if lab.member(pod).unwrap().node.as_deref() == Some(member.name.as_str()) {
                    seen = lab.facing(&member.name, pod).unwrap().like(to.ip());
                }
                assert_answer(&client(&lab, &member.name).tcp(to), pod, seen);
                assert_answer(&client(&lab, &member.name).udp(to), pod, seen);
            }
        }
    }
}

#[test]
fn a_part_of_a_lab_has_only_the_wanted_pods_and_their_nodes() {
    let names = |spec: Spec| {
        let lab = lab(spec);
        lab.members().iter().map(|member| member.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(Spec::standard().only(&["p2"])), ["ext", "n1", "p2"]);
    assert_eq!(names(Spec::standard().only(&["r1"])), ["ext", "n1", "n2", "r1"]);
    let more = Spec::standard().only(&["p1", "p2"]).with_pod("p3", 13);
    assert_eq!(more.nodes[0].pods[2].addresses.v6.to_string(), "2001:db8:b::13/64");
    assert_eq!(names(more), ["ext", "n1", "p1", "p2", "p3"]);
}

#[test]
fn a_lab_without_ipv6_carries_ipv4() {
    let mut spec = Spec::standard().only(&["p1"]);
    spec.ipv6 = false;
    let lab = lab(spec);
    let _server = serve(&lab, "p1");
    let [four, six] = at(&lab, "p1");
    assert_answer(&client(&lab, "ext").tcp(four), "p1", own(&lab, "ext", four));
    assert_eq!(client(&lab, "ext").tcp(six), Outcome::Unreachable);
}

#[test]
fn a_client_tells_refused_from_unreachable_from_silence() {
    let lab = lab(Spec::standard().only(&["p1"]));
    for to in at(&lab, "p1") {
        let refused = |outcome| assert!(matches!(outcome, Outcome::Refused { .. }), "{outcome}");
        refused(client(&lab, "ext").tcp(to));
        refused(client(&lab, "ext").udp(to));
    }
    let unknown: SocketAddr = "198.51.100.200:80".parse().unwrap();
    assert_eq!(client(&lab, "ext").tcp(unknown), Outcome::Unreachable);
    assert_eq!(client(&lab, "ext").udp(unknown), Outcome::Unreachable);
    let hurried = client(&lab, "ext").timeout(Duration::from_millis(10));
    assert_eq!(hurried.tcp("192.0.2.77:80".parse().unwrap()), Outcome::TimedOut);
    assert_eq!(hurried.udp("192.0.2.77:80".parse().unwrap()), Outcome::TimedOut);
}

#[test]
fn source_address_and_port_are_as_asked() {
    let lab = lab(Spec::standard().only(&["p1"]));
    let _server = serve(&lab, "p1");
    lab.add_address("n1", "192.0.2.11/24".parse().unwrap()).unwrap();
    let picky = client(&lab, "n1").from_address("192.0.2.11".parse().unwrap()).from_port(40_000);
    let [to, _] = at(&lab, "p1");
    for outcome in [picky.tcp(to), picky.udp(to)] {
        let seen_peer = "192.0.2.11:40000".parse().unwrap();
        assert_eq!(outcome, Outcome::Answered { by: "p1".into(), seen_peer });
    }
}

#[test]
fn a_kept_connection_answers_until_its_server_stops() {
    let lab = lab(Spec::standard().only(&["p1"]));
    let server = serve(&lab, "p1");
    let [to, _] = at(&lab, "p1");
    let mut connection = client(&lab, "ext").open(to).unwrap();
    let first = connection.greeting().clone();
    assert_answer(&first, "p1", own(&lab, "ext", to));
    assert_eq!(connection.ask(), first);
    drop(server);
    assert_eq!(connection.ask(), Outcome::Reset);
}

#[test]
fn a_load_counts_answers_and_failures() {
    let lab = lab(Spec::standard().only(&["p1"]));
    let [to, _] = at(&lab, "p1");
    let load = || Load::start(lab.ns("ext").unwrap(), to, 400, Duration::from_secs(20)).unwrap();
    let try_often = || [(); 50].map(|()| client(&lab, "ext").tcp(to))[49].clone();

    let running = load();
    assert!(matches!(try_often(), Outcome::Refused { .. }));
    let report = running.stop();
    let all = u64::try_from(report.tries.len()).unwrap();
    assert!(all > 0 && report.failures()["refused"] == all, "{report:?}");

    let _server = serve(&lab, "p1");
    let running = load();
    try_often();
    let made = running.made();
    let report = running.stop();
    let all = u64::try_from(report.tries.len()).unwrap();
    assert!(report.failures().is_empty() && report.answers()["p1"] == all, "{report:?}");
    assert!(0 < made && made <= all);
    assert!(report.longest() > Duration::ZERO && report.last("p1").is_some());
}

#[test]
fn nothing_is_left_when_a_lab_is_dropped() {
    let own_links = || std::fs::read_to_string("/proc/net/dev").unwrap().lines().count();
    let (links, lab) = (own_links(), lab(Spec::standard()));
    assert_eq!(own_links(), links, "a lab has no link in the namespace it was made in");
    // The namespace goes when its last holder does: a process inside it sees its number, nobody else may have it.
    let number =
        lab.ns("n1").unwrap().run(|| std::fs::read_link("/proc/thread-self/ns/net").unwrap()).unwrap();
    let server = serve(&lab, "n1");
    drop(server);
    drop(lab);
    let holders = std::fs::read_dir("/proc/self/fd").unwrap();
    let held =
        holders.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok()).any(|target| target == number);
    assert!(!held, "this process still holds {}", number.display());
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let inside = threads.filter_map(|task| std::fs::read_link(task.ok()?.path().join("ns/net")).ok());
    assert!(
        !inside.into_iter().any(|namespace| namespace == number),
        "a thread of this process is still inside"
    );
}

#[test]
fn an_unknown_member_is_named_with_those_there_are() {
    let lab = lab(Spec::standard().only(&["p1"]));
    assert_eq!(lab.ns("p9").unwrap_err().to_string(), "the lab has no p9; it has ext, n1, p1");
}
