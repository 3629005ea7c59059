//! Writes to the real kernel, in network namespaces of their own, and looks with the public tools.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

use dataplane::{Backend as _, Facts, LocalDetector, Report};
use ipnet::IpNet;
use kube_proxy_backend_nftables::{Nftables, Settings, TABLE, cleanup};
use model::{
    Backend, Endpoint, Family, Frontend, ObjectKey, Policy, Protocol, ResolvedPort, ResolvedService,
};
use netlink::namespace::Namespace;
use netlink::nftables::monitor::Monitor;
use proptest::prelude::*;

// --- a small language -----------------------------------------------------------------------------------------------

fn in_namespace(test: impl FnOnce() + Send) {
    Namespace::new().expect("these tests need root").run(test).unwrap();
}

/// Runs nft, which has to succeed, and gives what it printed.
fn nft(arguments: &str) -> String {
    let output = Command::new("nft").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "nft {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn assert_listable() {
    nft("list ruleset");
    nft("-j list ruleset");
}

fn settings(family: Family) -> Settings {
    let pods = match family {
        Family::V4 => "198.51.100.0/24",
        Family::V6 => "2001:db8:b::/63",
    };
    Settings {
        family,
        masquerade_mark: 0x4000,
        masquerade_all: false,
        local_detector: LocalDetector::Cidr(pods.parse().unwrap()),
        all_node_port_addresses: false,
        own_table: false,
    }
}

fn facts() -> Facts {
    let cidrs = ["203.0.113.0/25", "2001:db8:c::/112"];
    Facts {
        service_cidrs: cidrs.iter().map(|net| net.parse().unwrap()).collect(),
        node_port_addresses: vec!["192.0.2.10".parse().unwrap(), "2001:db8:a::10".parse().unwrap()],
    }
}

fn address(family: Family, network: u8, host: u16) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from(0xc633_6400 + u32::from(network) * 0x1000 + u32::from(host)).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, u16::from(network), 0, 0, 0, 0, host).into(),
    }
}

/// What varies between the services of a test.
#[derive(Clone, Debug, PartialEq)]
struct Shape {
    endpoints: Vec<u16>,
    local_endpoints: u16,
    affinity: Option<u32>,
    external: Policy,
    internal: Policy,
    ranges: bool,
    protocol: Protocol,
    /// A second port with the same cluster IP and endpoints.
    second_port: bool,
    departed: u16,
}

const PLAIN: Shape = Shape {
    endpoints: vec![],
    local_endpoints: 0,
    affinity: None,
    external: Policy::Cluster,
    internal: Policy::Cluster,
    ranges: false,
    protocol: Protocol::Tcp,
    second_port: false,
    departed: 0,
};

fn with_endpoints(endpoints: &[u16]) -> Shape {
    Shape { endpoints: endpoints.to_vec(), ..PLAIN }
}

fn key(number: u8) -> ObjectKey {
    ObjectKey::new("web", &format!("s{number}"))
}

fn service(family: Family, number: u8, shape: &Shape) -> ResolvedService {
    let departed = |host: u16| Endpoint { address: address(family, 5, host), port: 8080 };
    let backend = |host: &u16| Backend {
        endpoint: Endpoint { address: address(family, 0, *host), port: 8080 },
        local: *host < shape.local_endpoints,
    };
    let mut cluster: Vec<_> = shape.endpoints.iter().map(backend).collect();
    cluster.sort_unstable();
    let host = u16::from(number);
    let port = |name: &str, number: u16, node_port: u16| ResolvedPort {
        name: name.into(),
        protocol: shape.protocol,
        port: number,
        frontends: vec![
            Frontend::ClusterIp(address(family, 1, host)),
            Frontend::ExternalIp(address(family, 2, host)),
            Frontend::LoadBalancerIp(address(family, 3, host)),
            Frontend::NodePort(node_port),
        ],
        local: cluster.iter().filter(|backend| backend.local).copied().collect(),
        any_endpoint: !cluster.is_empty(),
        cluster: cluster.clone(),
        departed: (0..shape.departed).map(departed).collect(),
    };
    let mut ports = vec![port("http", 80, 30000 + host)];
    if shape.second_port {
        ports.push(port("more", 81, 31000 + host));
    }
    let ranges = if family == Family::V4 { "192.0.2.0/24" } else { "2001:db8:a::/64" };
    ResolvedService {
        key: key(number),
        affinity_seconds: shape.affinity,
        internal_policy: shape.internal,
        external_policy: shape.external,
        source_ranges: if shape.ranges { vec![ranges.parse().unwrap()] } else { vec![] },
        health_check_node_port: None,
        ports,
    }
}

type World = BTreeMap<u8, Shape>;

fn rebuild(plane: &mut Nftables, world: &World) -> Report {
    let family = plane.family();
    let services = |each: &mut dyn FnMut(ResolvedService)| {
        for (number, shape) in world {
            each(service(family, *number, shape));
        }
    };
    plane.rebuild(&services, &facts()).unwrap()
}

fn update(plane: &mut Nftables, number: u8, shape: Option<&Shape>) -> Report {
    let family = plane.family();
    plane.update(vec![(key(number), shape.map(|shape| service(family, number, shape)))], &facts()).unwrap()
}

fn started(family: Family, world: &World) -> Nftables {
    let mut plane = Nftables::new(settings(family), None).unwrap();
    rebuild(&mut plane, world);
    plane
}

fn world(numbers: std::ops::Range<u8>) -> World {
    numbers.map(|number| (number, with_endpoints(&[1, 2, 3]))).collect()
}

// --- what is written is what was wanted -----------------------------------------------------------------------------

fn shape() -> impl Strategy<Value = Shape> {
    let policy = || prop_oneof![Just(Policy::Cluster), Just(Policy::Local)];
    let endpoints = prop_oneof![
        8 => proptest::collection::btree_set(1_u16..40, 0..6),
        2 => proptest::collection::btree_set(1_u16..400, 55..75),
        1 => proptest::collection::btree_set(1_u16..400, 120..135),
    ];
    let affinity = prop_oneof![3 => Just(None), 1 => Just(Some(10800)), 1 => Just(Some(60))];
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)];
    (endpoints, 0_u16..60, affinity, policy(), policy(), any::<[bool; 2]>(), protocol, 0_u16..3).prop_map(
        |(
            endpoints,
            local_endpoints,
            affinity,
            external,
            internal,
            [ranges, second_port],
            protocol,
            departed,
        )| Shape {
            endpoints: endpoints.into_iter().collect(),
            local_endpoints,
            affinity,
            external,
            internal,
            ranges,
            protocol,
            second_port,
            departed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn after_any_changes_the_kernel_holds_exactly_what_is_wanted(
        changes in proptest::collection::vec((0_u8..6, proptest::option::weighted(0.8, shape())), 1..25),
        family in prop_oneof![Just(Family::V4), Just(Family::V6)],
    ) {
        in_namespace(|| {
            // keeps the chains of both affinity times in use
            let mut wanted = World::from([(9, Shape { affinity: Some(60), ..with_endpoints(&[1]) })]);
            let mut plane = started(family, &wanted);
            for (number, shape) in &changes {
                update(&mut plane, *number, shape.as_ref());
                match shape {
                    Some(shape) => wanted.insert(*number, shape.clone()),
                    None => wanted.remove(number),
                };
            }
            assert_listable();
            assert_eq!(rebuild(&mut plane, &wanted).written, 0, "the kernel held something else");
            drop(plane);
            assert_eq!(rebuild(&mut Nftables::new(settings(family), None).unwrap(), &wanted).written, 0, "a restart wrote");
        });
    }
}

/// Networks that lie in, beside and far from each other.
fn service_networks(family: Family) -> impl Strategy<Value = Vec<IpNet>> {
    let net = (0_u8..8, 0_u8..4).prop_map(move |(place, length)| {
        let address: IpAddr = match family {
            Family::V4 => Ipv4Addr::new(203, 0, 113, place * 32).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, u16::from(place) * 32).into(),
        };
        let longest = if family == Family::V4 { 27 } else { 123 };
        IpNet::new(address, longest - length).unwrap().trunc()
    });
    proptest::collection::vec(net, 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, max_shrink_iters: 20, ..ProptestConfig::default() })]
    #[test]
    fn service_networks_may_change_in_any_way(
        (family, steps) in prop_oneof![Just(Family::V4), Just(Family::V6)].prop_flat_map(|family| {
            (Just(family), proptest::collection::vec(service_networks(family), 1..12))
        }),
    ) {
        in_namespace(|| {
            let mut plane = started(family, &World::new());
            let table = if family == Family::V4 { "ip kube-proxy" } else { "ip6 kube-proxy" };
            for nets in steps {
                let facts = Facts { service_cidrs: nets.clone(), ..facts() };
                plane.update(vec![], &facts).unwrap();
                let hosts = [0, 31, 32, 63, 64, 95, 96, 127, 128, 255].map(|host: u8| match family {
                    Family::V4 => IpAddr::from(Ipv4Addr::new(203, 0, 113, host)),
                    Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, host.into()).into(),
                });
                let inside = |host: &&IpAddr| nets.iter().any(|net| net.contains(*host));
                let (inside, outside): (Vec<&IpAddr>, Vec<_>) = hosts.iter().partition(inside);
                for host in inside.into_iter().take(2) {
                    nft(&format!("get element {table} service-cidrs {{ {host} }}"));
                }
                for host in outside.into_iter().take(1) {
                    let arguments = format!("get element {table} service-cidrs {{ {host} }}");
                    let found = Command::new("nft").args(arguments.split(' ')).output().unwrap().status.success();
                    assert!(!found, "{host} in {nets:?}");
                }
                assert_eq!(plane.rebuild(&|_| (), &facts).unwrap().written, 0, "the kernel held something else");
            }
        });
    }
}

#[test]
fn everything_can_be_listed_at_every_step() {
    for family in [Family::V4, Family::V6] {
        in_namespace(|| {
            let mut plane = started(family, &world(0..3));
            assert_listable();
            for shape in [
                with_endpoints(&[]),
                with_endpoints(&(1..100).collect::<Vec<_>>()),
                Shape { affinity: Some(60), ..with_endpoints(&[1, 2]) },
                Shape { affinity: Some(60), ..with_endpoints(&(1..100).collect::<Vec<_>>()) },
                Shape {
                    external: Policy::Local,
                    internal: Policy::Local,
                    local_endpoints: 2,
                    ..with_endpoints(&[1, 2])
                },
                Shape { external: Policy::Local, ranges: true, departed: 2, ..with_endpoints(&[1, 2]) },
            ] {
                update(&mut plane, 1, Some(&shape));
                assert_listable();
            }
            update(&mut plane, 1, None);
            assert_listable();
        });
    }
}

#[test]
fn one_endpoint_replaced_is_two_elements_written() {
    in_namespace(|| {
        let mut plane = started(Family::V4, &world(0..50));
        assert_eq!(update(&mut plane, 7, Some(&with_endpoints(&[1, 9, 3]))).written, 2);
        assert_eq!(update(&mut plane, 7, Some(&with_endpoints(&[1, 9, 3]))).written, 0);
    });
}

#[test]
fn what_two_ports_share_stays_while_one_of_them_does() {
    in_namespace(|| {
        let both = Shape { second_port: true, local_endpoints: 9, ..with_endpoints(&[1, 2]) };
        let one = Shape { second_port: false, ..both.clone() };
        let mut plane = started(Family::V4, &World::from([(1, both)]));
        update(&mut plane, 1, Some(&one));
        for set in ["cluster-ips", "hairpin"] {
            assert!(nft(&format!("list set ip kube-proxy {set}")).contains("elements"), "{set} is empty");
        }
        assert_eq!(rebuild(&mut plane, &World::from([(1, one)])).written, 0);
        update(&mut plane, 1, None);
        assert!(!nft("list set ip kube-proxy cluster-ips").contains("elements"));
    });
}

#[test]
fn names_longer_than_nft_can_read_are_cut() {
    in_namespace(|| {
        let mut plane = started(Family::V4, &world(0..1));
        let mut long = service(Family::V4, 9, &with_endpoints(&[1]));
        long.key = ObjectKey::new(&"n".repeat(63), &"s".repeat(63));
        long.ports[0].name = "p".repeat(15).into();
        plane.update(vec![(long.key.clone(), Some(long))], &facts()).unwrap();
        assert!(nft("list map ip kube-proxy frontends").contains(&"n".repeat(63)));
        assert_listable();
    });
}

/// Names that no API server lets through, but files may have, and the longest that one does.
fn hostile_names() -> Vec<String> {
    let mut names: Vec<String> =
        ["", " ", "\0", "a\0b", "a\nb", "\r\n", "\"", "\\", "'; drop", "{ }", "%s%n", "\u{1b}[2J"]
            .map(str::to_owned)
            .into();
    // the cut falls into a character of two, three or four bytes, at each of its bytes
    for character in ["é", "€", "🦀"] {
        names.extend((0..4).map(|shift| "x".repeat(shift) + &character.repeat(80)));
    }
    names.extend([126, 127, 128, 253, 70_000].map(|length| "n".repeat(length)));
    names
}

#[test]
fn no_name_can_break_a_transaction_or_a_listing() {
    for family in [Family::V4, Family::V6] {
        in_namespace(|| {
            let table = if family == Family::V4 { "ip kube-proxy" } else { "ip6 kube-proxy" };
            let mut plane = started(family, &world(200..202));
            let named = |number: usize, name: &str| {
                let shape = Shape { affinity: Some(10800), ranges: true, ..with_endpoints(&[1, 2]) };
                let mut service = service(family, u8::try_from(number).unwrap(), &shape);
                service.key = ObjectKey::new(name, &format!("{name}{number}"));
                service.ports[0].name = name.into();
                service
            };
            let services: Vec<_> = (0..).zip(hostile_names()).map(|(n, name)| named(n, &name)).collect();
            let before = nft("list ruleset");
            for service in &services {
                let change = vec![(service.key.clone(), Some(service.clone()))];
                assert!(plane.update(change, &facts()).unwrap().written > 0, "{:?}", service.key);
                for map in ["frontends", "lists"] {
                    nft(&format!("list map {table} {map}"));
                    nft(&format!("-j list map {table} {map}"));
                }
            }
            assert_listable();
            let mut again = Nftables::new(settings(family), None).unwrap();
            let all = |each: &mut dyn FnMut(ResolvedService)| {
                let others = (200..202).map(|number| service(family, number, &with_endpoints(&[1, 2, 3])));
                services.iter().cloned().chain(others).for_each(each);
            };
            assert_eq!(again.rebuild(&all, &facts()).unwrap().written, 0, "the kernel held something else");
            let gone = services.iter().map(|service| (service.key.clone(), None)).collect();
            plane.update(gone, &facts()).unwrap();
            assert_eq!(nft("list ruleset"), before);
        });
    }
}

#[test]
fn services_whose_names_differ_behind_the_cut_do_not_meet() {
    in_namespace(|| {
        let mut plane = started(Family::V4, &World::new());
        let long = |number: u8| {
            let mut service = service(Family::V4, number, &with_endpoints(&[u16::from(number) + 1]));
            service.key = ObjectKey::new(&"n".repeat(63), &format!("{}{number:03}", "s".repeat(60)));
            service
        };
        let changes = (0..=255).map(|number| (long(number).key, Some(long(number)))).collect();
        plane.update(changes, &facts()).unwrap();
        let lists = nft("list map ip kube-proxy lists");
        assert_eq!(lists.matches(&"n".repeat(63)).count(), 256);
        assert_eq!(nft("list map ip kube-proxy endpoints").matches("8080").count(), 256);
    });
}

// --- what others do -------------------------------------------------------------------------------------------------

#[test]
fn foreign_changes_are_found_and_mended() {
    let damages = [
        "flush ruleset",
        "delete table ip kube-proxy",
        "flush chain ip kube-proxy services",
        "add rule ip kube-proxy services drop",
        "insert rule ip kube-proxy nat-prerouting accept",
        "add chain ip kube-proxy another",
        "flush map ip kube-proxy endpoints",
        "flush map ip kube-proxy draw",
        "flush map ip kube-proxy refuse",
        "flush set ip kube-proxy service-cidrs",
        "add element ip kube-proxy cluster-ips { 203.0.113.99 }",
        "add element ip kube-proxy nodeports { tcp . 31999 : 5 }",
        "add set ip kube-proxy another { type ipv4_addr ; }",
        "flush chain ip kube-proxy affinity-10800s",
    ];
    in_namespace(|| {
        let world = world(0..5);
        let mut plane = started(Family::V4, &world);
        let before = nft("list ruleset");
        for damage in damages {
            nft(damage);
            assert_ne!(nft("list ruleset"), before, "nft {damage} had no effect");
            assert!(rebuild(&mut plane, &world).written > 0, "{damage}: not noticed");
            assert_eq!(rebuild(&mut plane, &world).written, 0, "{damage}: not mended at once");
            assert_eq!(nft("list ruleset").len(), before.len(), "after {damage}");
        }
    });
}

#[test]
fn tables_of_others_are_left_alone() {
    in_namespace(|| {
        nft("add table ip other");
        nft("add chain ip other c { type filter hook input priority 0 ; }");
        nft("add rule ip other c counter");
        let before = nft("list table ip other");
        let mut plane = started(Family::V4, &world(0..3));
        update(&mut plane, 1, None);
        rebuild(&mut plane, &world(0..9));
        assert!(cleanup(Family::V4).unwrap());
        assert_eq!(nft("list ruleset"), before);
    });
}

#[test]
fn the_original_proxys_table_is_taken_over_and_cleaned_up() {
    let original = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/original-table.nft");
    in_namespace(|| {
        nft(&format!("-f {original}"));
        let world = world(0..3);
        let mut plane = started(Family::V4, &world);
        assert!(!nft("list ruleset").contains("service-ips"));
        assert_eq!(rebuild(&mut plane, &world).written, 0);
    });
    in_namespace(|| {
        nft(&format!("-f {original}"));
        assert!(cleanup(Family::V4).unwrap());
        assert!(!cleanup(Family::V4).unwrap());
        assert_eq!(nft("list ruleset"), "");
    });
}

#[test]
fn an_owned_table_survives_a_foreign_flush_and_its_owners_end() {
    let owned = || Nftables::new(Settings { own_table: true, ..settings(Family::V4) }, None).unwrap();
    in_namespace(|| {
        let world = world(0..3);
        let mut first = owned();
        rebuild(&mut first, &world);
        nft("flush ruleset");
        assert_eq!(rebuild(&mut first, &world).written, 0);

        let error = cleanup(Family::V4).unwrap_err().to_string();
        assert!(error.contains("another running process"), "{error}");

        drop(first);
        let mut second = owned();
        assert_eq!(rebuild(&mut second, &world).written, 0, "the table did not stay");
        drop(second);
        assert!(cleanup(Family::V4).unwrap());
    });
}

#[test]
fn a_table_changes_between_owned_and_plain_without_a_second_table() {
    in_namespace(|| {
        let world = world(0..3);
        for own_table in [true, false, true] {
            let mut plane = Nftables::new(Settings { own_table, ..settings(Family::V4) }, None).unwrap();
            assert!(rebuild(&mut plane, &world).written > 0);
            assert_eq!(rebuild(&mut plane, &world).written, 0);
        }
    });
}

#[test]
fn a_refused_change_names_the_service_and_changes_nothing() {
    in_namespace(|| {
        let mut plane = started(Family::V4, &world(0..5));
        nft("delete element ip kube-proxy nodeports { tcp . 30003 }");
        let before = nft("list ruleset");
        let changes = vec![(key(1), Some(service(Family::V4, 1, &with_endpoints(&[9])))), (key(3), None)];
        let error = plane.update(changes, &facts()).unwrap_err();
        assert_eq!(error.service, Some(key(3)), "{error}");
        assert_eq!(nft("list ruleset"), before);
    });
}

#[test]
fn unused_affinity_times_go_at_the_next_rebuild() {
    in_namespace(|| {
        let mut plane = started(Family::V4, &world(0..2));
        update(&mut plane, 1, Some(&Shape { affinity: Some(77), ..with_endpoints(&[1]) }));
        assert!(nft("list ruleset").contains("affinity-77s"));
        rebuild(&mut plane, &world(0..2));
        assert!(!nft("list ruleset").contains("affinity-77s"));
        assert_eq!(rebuild(&mut plane, &world(0..2)).written, 0);
    });
}

#[test]
fn changes_by_others_are_heard_of_before_and_after_a_large_transaction_of_our_own() {
    in_namespace(|| {
        let mut monitor = Monitor::open(TABLE, vec![]).unwrap();
        let mut plane = Nftables::new(settings(Family::V4), Some(monitor.switch().unwrap())).unwrap();
        monitor.leave_out(plane.port());
        nft("add table ip kube-proxy");
        assert!(!rebuild(&mut plane, &world(0..200)).compare_again, "nobody else wrote");
        nft("add chain ip kube-proxy another");
        let heard = [monitor.next_change().unwrap(), monitor.next_change().unwrap()];
        assert!(heard.iter().all(|change| change.families == [netlink::nftables::IPV4]), "{heard:?}");
        assert!(heard.iter().all(|change| change.program.as_ref().unwrap().0 == "nft"), "{heard:?}");
    });
}
