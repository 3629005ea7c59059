//! Segments far out of a connection's window, as a network with long delays delivers them, sent by the server's side of a
//! connection through a service. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;

use lab::{Client, Lab, Outcome, Server, Spec};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, ipproto, recvfrom, sendto,
    socket_with,
};
use serde_json::json;
use testkit::objects::{Manifests, Objects};
use testkit::proxy::Proxy;
use testkit::scenario::format::Slice;
use testkit::scenario::{NODE, USUAL_FLAGS, World, node};

/// The server's port.
const PORT: u16 = 8080;

/// What the server's side knows of a connection from the last segment that it got.
#[derive(Clone, Copy, Debug)]
struct Peer {
    port: u16,
    sequence: u32,
    acknowledgement: u32,
}

fn raw_socket(own: IpAddr) -> OwnedFd {
    let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::TCP)).unwrap();
    bind(&socket, &SocketAddr::new(own, 0)).unwrap();
    socket
}

/// The last segment that has arrived for the server's port.
fn last_segment(socket: &OwnedFd, v4: bool) -> Peer {
    let mut last = None;
    let mut buffer = [0; 2048];
    while let Ok((length, _, _)) = recvfrom(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
        // IPv4 raw sockets deliver the IP header too
        let header = if v4 { usize::from(buffer[0] & 15) * 4 } else { 0 };
        let segment = &buffer[header..length];
        let number = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().unwrap());
        if segment[2..4] == PORT.to_be_bytes() {
            let data = segment.len() - usize::from(segment[12] >> 4) * 4;
            last = Some(Peer {
                port: u16::from_be_bytes([segment[0], segment[1]]),
                sequence: number(4).wrapping_add(u32::try_from(data).unwrap()),
                acknowledgement: number(8),
            });
        }
    }
    last.expect("a segment for the server")
}

/// A segment of the server with four bytes.
fn segment(from: IpAddr, to: SocketAddr, sequence: u32, acknowledgement: u32) -> Vec<u8> {
    let mut segment = [&PORT.to_be_bytes()[..], &to.port().to_be_bytes()].concat();
    segment.extend(sequence.to_be_bytes());
    segment.extend(acknowledgement.to_be_bytes());
    segment.extend([5 << 4, 0b1_1000, 0xff, 0xff, 0, 0, 0, 0]); // no options, ACK and PSH, a large window
    segment.extend(b"late");
    let bytes = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let length = u16::try_from(segment.len()).unwrap();
    let summed =
        [bytes(from), bytes(to.ip()), vec![0, 6], length.to_be_bytes().to_vec(), segment.clone()].concat();
    let sum: u32 = summed.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap();
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    segment
}

#[test]
fn b13_late_packets_do_not_end_a_connection_with_liberal_tracking() {
    let lab = Lab::new(Spec::standard().only(&["p1", "r1"])).unwrap();
    let (client, server) = (lab.member("p1").unwrap(), lab.member("r1").unwrap());
    let _server = Server::start(server, &[PORT]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut manifests = Manifests::new(folder.path()).unwrap();
    let mut world = World::new(&lab);
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "big"},
        "spec": {
            "clusterIPs": ["203.0.113.10", "2001:db8:c::10"],
            "ports": [{"port": 80, "targetPort": PORT, "protocol": "TCP"}],
        },
    });
    let mut objects = vec![node(&lab).unwrap(), world.complete(service).unwrap()];
    let slice = Slice {
        service: "big".to_owned(),
        port: Some(PORT),
        ready: vec!["r1".to_owned()],
        ..Slice::default()
    };
    objects.extend(world.expand(&slice).unwrap());
    manifests.apply(&objects).unwrap();
    let mut flags: Vec<_> = USUAL_FLAGS.map(str::to_owned).into();
    flags.extend(["--proxy-mode=nftables".to_owned(), "--conntrack-tcp-be-liberal".to_owned()]);
    flags.extend(manifests.flags());
    let binary = Path::new(env!("CARGO_BIN_EXE_kube-proxy"));
    let log = folder.path().join("log");
    let mut proxy = Proxy::start(lab.ns(NODE).unwrap(), binary, &flags, &log).unwrap();
    proxy.wait_until_synced().unwrap();

    for to in ["203.0.113.10:80", "[2001:db8:c::10]:80"] {
        let to: SocketAddr = to.parse().unwrap();
        let own = server.addresses.like(to.ip());
        let raw = server.namespace.run(|| raw_socket(own)).unwrap();
        let mut connection = Client::new(&client.namespace).open(to).unwrap();
        for (late, far, acknowledged) in [
            ("an old segment", 0_u32.wrapping_sub(100_000), 0),
            ("a segment far ahead", 100_000_000, 0),
            ("an acknowledgement of what was never sent", 0, 100_000_000),
        ] {
            assert!(matches!(connection.ask(), Outcome::Answered { .. }));
            let peer = last_segment(&raw, to.is_ipv4());
            let client = SocketAddr::new(client.addresses.like(to.ip()), peer.port);
            let sequence = peer.acknowledgement.wrapping_add(far);
            let packet = segment(own, client, sequence, peer.sequence.wrapping_add(acknowledged));
            sendto(&raw, &packet, SendFlags::empty(), &SocketAddr::new(client.ip(), 0)).unwrap();
            for _ in 0..10 {
                let outcome = connection.ask();
                assert!(matches!(outcome, Outcome::Answered { .. }), "{to}, after {late}: {outcome}");
            }
        }
    }
}
