//! The servers against taken ports and against clients that are slow, broken or hostile.

use std::sync::Arc;
use std::time::Duration;

use kube_proxy_observe::health::Health;
use kube_proxy_observe::http::{self, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::lab::{
    Memory, PATIENCE, address, connect, get, health_server, limits, metrics, rest_of, result_of,
};

fn health() -> Arc<Health> {
    Arc::new(Health::new(Duration::from_secs(60)))
}

/// The page all these tests ask for is there.
async fn assert_serves(address: std::net::SocketAddr) {
    assert_eq!(get(address, "/livez").await.code(), 200);
}

/// The other side closes, whatever it sends before.
async fn assert_closed(mut stream: TcpStream) {
    rest_of(&mut stream).await;
}

#[tokio::test]
async fn a_taken_port_is_fatal_when_told_so() {
    let address = address();
    let _owner = TcpListener::bind(address).await.expect("free");
    let server = tokio::spawn(http::serve_health(address, true, limits(), health(), metrics()));
    let error = result_of(server).await.expect_err("taken").to_string();
    assert!(error.contains("health server: cannot listen on"), "{error}");
    assert!(error.contains(&address.to_string()) && error.contains("in use"), "{error}");
}

#[tokio::test]
async fn an_address_that_is_not_the_nodes_is_fatal_when_told_so() {
    let elsewhere = "192.0.2.200:10256".parse().expect("an address");
    let server = tokio::spawn(http::serve_health(elsewhere, true, limits(), health(), metrics()));
    let error = result_of(server).await.expect_err("not of this node").to_string();
    assert!(error.contains("192.0.2.200:10256"), "{error}");
}

#[tokio::test]
async fn a_taken_port_is_tried_again_until_it_is_free_and_told_once() {
    let (log, _guard) = Memory::of_this_thread();
    let address = address();
    let owner = TcpListener::bind(address).await.expect("free");
    let server = tokio::spawn(http::serve_health(address, false, limits(), health(), metrics()));
    // The owner hears a client, so the server has not got the port.
    let client = TcpStream::connect(address).await.expect("the owner listens");
    owner.accept().await.expect("the client arrives there");
    sleep(limits().bind_retry * 5).await;
    assert!(!server.is_finished());
    assert_eq!(log.count("\"Cannot listen, will try again\""), 1, "{:?}", log.lines());
    drop((owner, client));
    assert_serves(address).await;
    assert_eq!(log.count("Address is free now"), 1, "{:?}", log.lines());
}

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let address = health_server(limits(), &health(), &metrics());
    let mut stream = connect(address).await;
    for _ in 0..3 {
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("open");
        let mut seen = Vec::new();
        while !seen.ends_with(b"404 page not found\n") {
            let read = timeout(PATIENCE, stream.read_buf(&mut seen)).await.expect("an answer");
            assert_ne!(read.expect("open"), 0, "closed after {}", String::from_utf8_lossy(&seen));
        }
    }
}

#[tokio::test]
async fn a_client_that_has_nothing_more_to_say_is_still_answered() {
    let address = health_server(limits(), &health(), &metrics());
    let mut stream = connect(address).await;
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("open");
    stream.shutdown().await.expect("open");
    assert!(rest_of(&mut stream).await.starts_with("HTTP/1.1 200 OK\r\n"));
}

#[tokio::test]
async fn silent_and_dripping_clients_are_cut_off() {
    let quick = Limits { idle: Duration::from_millis(50), ..limits() };
    let address = health_server(quick, &health(), &metrics());
    let silent = connect(address).await;
    let (mut reader, mut writer) = connect(address).await.into_split();
    let drip = tokio::spawn(async move {
        // A byte at a time, for ever, until the server has enough.
        while writer.write_all(b"X").await.is_ok() {
            sleep(Duration::from_millis(5)).await;
        }
    });
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, reader.read_to_end(&mut answer)).await.expect("cut off");
    result_of(drip).await;
    assert_closed(silent).await;
    assert_serves(address).await;
}

#[tokio::test]
async fn a_client_that_never_reads_is_cut_off_after_the_lifetime() {
    let quick = Limits { idle: Duration::from_millis(50), lifetime: Duration::from_millis(50), ..limits() };
    let address = health_server(quick, &health(), &metrics());
    let (_reader, mut writer) = connect(address).await.into_split();
    let request = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";
    // Answers pile up until the server can write no more, and requests until this can write no more.
    let flood = async { while writer.write_all(request).await.is_ok() {} };
    timeout(PATIENCE, flood).await.expect("cut off");
    assert_serves(address).await;
}

#[tokio::test]
async fn when_all_connections_are_taken_the_oldest_makes_room() {
    let few = Limits { connections: 4, ..limits() };
    let address = health_server(few, &health(), &metrics());
    let mut holders = Vec::new();
    for _ in 0..4 {
        let mut stream = connect(address).await;
        stream.write_all(b"GET /livez HTTP/1.1\r\n").await.expect("open");
        holders.push(stream);
    }
    assert_serves(address).await;
    assert_closed(holders.remove(0)).await;
    for mut stream in holders {
        stream.write_all(b"Connection: close\r\nHost: x\r\n\r\n").await.expect("open");
        assert!(rest_of(&mut stream).await.starts_with("HTTP/1.1 200 OK\r\n"));
    }
}

#[tokio::test]
async fn garbage_ends_a_connection_and_nothing_else() {
    let address = health_server(limits(), &health(), &metrics());
    let long_path = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(1 << 20));
    let many_headers = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(5000));
    let cases: [&[u8]; 8] = [
        b"\0\xff\xfe\x80\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /livez HTTP/9.9\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        long_path.as_bytes(),
        many_headers.as_bytes(),
    ];
    for case in cases {
        let (mut reader, mut writer) = connect(address).await.into_split();
        // The server may close before it has all.
        let _ = writer.write_all(case).await;
        let mut answer = Vec::new();
        let ended = timeout(PATIENCE, reader.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "{} is not ended", String::from_utf8_lossy(&case[..20.min(case.len())]));
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        drop(writer);
        assert_serves(address).await;
    }
}

#[tokio::test]
async fn a_client_that_resets_harms_nobody() {
    let address = health_server(limits(), &health(), &metrics());
    for _ in 0..20 {
        let mut stream = connect(address).await;
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("open");
        stream.set_zero_linger().expect("a socket");
        drop(stream);
    }
    assert_serves(address).await;
}
