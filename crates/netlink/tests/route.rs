//! Links, addresses and routes in network namespaces of their own. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use ipnet::IpNet;
use kube_proxy_netlink::namespace::Namespace;
use kube_proxy_netlink::route::{AddressEvent, AddressMonitor, Handle, Scope};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Runs `work` with a handle in a new namespace whose `lo` is up.
fn alone<T: Send>(work: impl FnOnce(&mut Handle) -> T + Send) -> T {
    inside(&Namespace::new().expect("namespace tests need root"), work)
}

fn inside<T: Send>(namespace: &Namespace, work: impl FnOnce(&mut Handle) -> T + Send) -> T {
    let run = namespace.run(|| {
        let mut handle = Handle::open().unwrap();
        handle.set_up("lo").unwrap();
        work(&mut handle)
    });
    run.unwrap()
}

#[test]
fn a_new_namespace_has_only_loopback() {
    let names: Vec<_> = alone(|handle| handle.links().unwrap().into_iter().map(|link| link.name).collect());
    assert_eq!(names, ["lo"]);
}

#[test]
fn running_inside_does_not_move_the_caller() {
    let before = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let there = alone(|_| std::fs::read_link("/proc/thread-self/ns/net").unwrap());
    assert_ne!(there, before);
    assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), before);
}

#[test]
fn a_process_is_started_inside_the_namespace() {
    let namespace = Namespace::new().unwrap();
    let there = namespace.run(|| std::fs::read_link("/proc/thread-self/ns/net").unwrap()).unwrap();
    let output = namespace.command("readlink").unwrap().arg("/proc/self/ns/net").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), there.to_str().unwrap());
}

#[test]
fn addresses_are_listed_with_interface_and_scope() {
    let addresses = alone(|handle| {
        handle.add_bridge("br0").unwrap();
        handle.add_address("br0", net("192.0.2.1/24")).unwrap();
        handle.add_address("br0", net("2001:db8::1/64")).unwrap();
        handle.addresses().unwrap()
    });
    let mut found: Vec<_> =
        addresses.iter().map(|a| (a.interface.as_str(), a.net.to_string(), a.scope)).collect();
    found.sort_by_key(|(interface, net, _)| (interface.to_string(), net.clone()));
    assert_eq!(
        found,
        [
            ("br0", "192.0.2.1/24".to_owned(), Scope::Global),
            ("br0", "2001:db8::1/64".to_owned(), Scope::Global),
            ("lo", "127.0.0.1/8".to_owned(), Scope::Host),
            ("lo", "::1/128".to_owned(), Scope::Host),
        ]
    );
}

#[test]
fn packets_pass_a_bridge_between_two_namespaces() {
    let [a, b, switch] = [(); 3].map(|()| Namespace::new().unwrap());
    inside(&switch, |handle| {
        handle.add_bridge("br0").unwrap();
        handle.set_up("br0").unwrap();
        for (name, end) in [("va", &a), ("vb", &b)] {
            handle.add_veth(name, "eth0", std::os::fd::AsFd::as_fd(end)).unwrap();
            handle.attach(name, "br0", true).unwrap();
            handle.set_up(name).unwrap();
        }
        let links = handle.links().unwrap();
        let bridge = links.iter().find(|link| link.name == "br0").unwrap().index;
        assert_eq!(links.iter().filter(|link| link.bridge == Some(bridge) && link.up).count(), 2);
    });
    for (end, four, six) in [(&a, "192.0.2.1/24", "2001:db8::1/64"), (&b, "192.0.2.2/24", "2001:db8::2/64")] {
        inside(end, |handle| {
            handle.set_up("eth0").unwrap();
            handle.add_address("eth0", net(four)).unwrap();
            handle.add_address("eth0", net(six)).unwrap();
        });
    }
    for address in ["192.0.2.2:4000", "[2001:db8::2]:4000"] {
        let address: SocketAddr = address.parse().unwrap();
        let server = b.run(|| UdpSocket::bind(address).unwrap()).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let client = a
            .run(|| {
                let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let client = UdpSocket::bind(any).unwrap();
                client.send_to(b"hello", address).unwrap();
                client.local_addr().unwrap().port()
            })
            .unwrap();
        let mut buffer = [0; 10];
        let (length, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from.port()), (&b"hello"[..], client));
    }
}

#[test]
fn addresses_are_listed_while_others_come_as_fast_as_can_be() {
    const NEWCOMERS: u16 = 5_000;
    alone(|handle| {
        // so many that a listing takes several messages
        for number in 0..200 {
            let bridge = format!("br{number}");
            handle.add_bridge(&bridge).unwrap();
            handle.set_up(&bridge).unwrap();
        }
        let mut other = Handle::open().unwrap();
        let add_newcomers = || {
            for number in 0..NEWCOMERS {
                let [high, low] = number.to_be_bytes();
                other.add_address("br1", IpNet::from(IpAddr::from([198, 18, high, low]))).unwrap();
            }
        };
        thread::scope(|scope| {
            let adding = scope.spawn(add_newcomers);
            while !adding.is_finished() {
                handle.addresses().unwrap();
            }
        });
        let newcomers = handle.addresses().unwrap().into_iter().filter(|address| address.interface == "br1");
        let newcomers = newcomers.filter(|address| address.net.addr().is_ipv4()).count();
        assert_eq!(newcomers, usize::from(NEWCOMERS));
    });
}

#[test]
fn routes_decide_where_packets_go() {
    let source_towards = |to: &str| {
        let socket = UdpSocket::bind(if to.contains('[') { "[::]:0" } else { "0.0.0.0:0" }).unwrap();
        socket.connect(to).map(|()| socket.local_addr().unwrap().ip())
    };
    alone(|handle| {
        handle.add_bridge("br0").unwrap();
        handle.set_up("br0").unwrap();
        handle.add_address("br0", net("192.0.2.1/24")).unwrap();
        assert!(source_towards("203.0.113.1:9").is_err());
        handle.add_route(net("203.0.113.0/24"), ip("192.0.2.2")).unwrap();
        assert_eq!(source_towards("203.0.113.1:9").unwrap(), ip("192.0.2.1"));
        handle.add_local_route(net("198.51.100.0/25"), "lo").unwrap();
        assert_eq!(source_towards("198.51.100.7:9").unwrap(), ip("198.51.100.7"));
        assert!(source_towards("198.51.100.130:9").is_err());
        handle.add_link_route(net("198.51.100.128/25"), "br0").unwrap();
        assert_eq!(source_towards("198.51.100.130:9").unwrap(), ip("192.0.2.1"));
        handle.add_address("br0", net("2001:db8::1/64")).unwrap();
        handle.add_route(net("::/0"), ip("2001:db8::2")).unwrap();
        assert_eq!(source_towards("[2001:db8:7::1]:9").unwrap(), ip("2001:db8::1"));
    });
}

#[test]
fn the_monitor_tells_addresses_that_come_and_go() {
    alone(|handle| {
        let mut monitor = AddressMonitor::open().unwrap();
        monitor.set_receive_timeout(Some(Duration::from_secs(10))).unwrap();
        for address in ["192.0.2.1/32", "2001:db8::1/128"] {
            handle.add_address("lo", net(address)).unwrap();
            assert_eq!(monitor.receive().unwrap(), [AddressEvent::Added(net(address).addr())]);
            handle.delete_address("lo", net(address)).unwrap();
            assert_eq!(monitor.receive().unwrap(), [AddressEvent::Removed(net(address).addr())]);
        }
        monitor.set_receive_timeout(Some(Duration::from_millis(1))).unwrap();
        assert_eq!(monitor.receive().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    });
}

#[test]
fn a_deleted_link_is_gone_and_errors_name_what_was_asked() {
    alone(|handle| {
        handle.add_bridge("br0").unwrap();
        let twice = handle.add_bridge("br0").unwrap_err();
        assert!(twice.to_string().starts_with("adding bridge link br0: File exists"), "{twice}");
        handle.delete_link("br0").unwrap();
        let missing = handle.set_up("br0").unwrap_err();
        assert!(missing.to_string().starts_with("looking up link br0: No such device"), "{missing}");
        assert_eq!(missing.errno(), Some(libc::ENODEV));
    });
}
