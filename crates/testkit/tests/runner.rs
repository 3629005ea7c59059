//! The scenario runner itself, with a proxy that does nothing: what it accepts, and how it says what went wrong. Needs
//! root.
//!
//! This program is its own fake proxy: called with kube-proxy's flags it answers on the metrics port as if it had synced.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use kube_proxy_testkit::objects::Source;
use kube_proxy_testkit::proxy::wall_clock;
use kube_proxy_testkit::scenario::{Setup, run};
use libtest_mimic::{Arguments, Failed, Trial};

const FAKE: &str = "fake";

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == format!("--proxy-mode={FAKE}")) {
        fake_proxy();
    }
    let accepted = [
        (
            "pods are reached directly",
            "flows: [{from: [ext, p1], to: 'r1:8080', expect: {answered_by: [r1]}, source: kept}]",
        ),
        (
            "a closed port is refused",
            "flows: [{from: ext, to: ['198.51.100.11:9', '[2001:db8:b::11]:9'], expect: refused}]",
        ),
        (
            "udp and sctp are answered",
            "flows: [{from: ext, to: 'p1:8080', protocol: udp, expect: {answered_by: [p1]}}, {from: p1, to: 'r1:8080', protocol: sctp, expect: {answered_by: [r1]}}]",
        ),
        ("silence is a timeout", "flows: [{from: ext, to: '192.0.2.77:80', expect: timeout}]"),
        (
            "no way there is unreachable",
            "flows: [{from: ext, to: '[2001:db8:ffff::1]:80', expect: unreachable}]",
        ),
        (
            "connections live through a restart",
            "{open: [{name: long, from: ext, to: 'p1:8080'}], restart: kill, alive: [long]}",
        ),
        (
            "objects are whole manifests",
            "{slices: [{service: web, port: 8080, ready: [p1], terminating: [r1]}], run: ['grep -q 2001:db8:c::10 manifests/service.lab.web.json', 'grep -q 2001:db8:b:1::141 manifests/endpointslice.lab.web-ipv6.json', 'test $(grep -c terminating manifests/endpointslice.lab.web-ipv4.json) = 2']}",
        ),
        (
            "pages are looked at, and ports where nobody listens",
            "http: [{from: n1, to: '127.0.0.1:10249', path: /metrics, status: 200, with: ['200 OK', IPv6]}, {from: ext, to: 'n1:10249'}]",
        ),
        (
            "deleted objects are gone",
            "{delete: [Service/web], run: ['test ! -e manifests/service.lab.web.json']}",
        ),
    ];
    let refused = [
        (
            "a wrong answerer",
            "flows: [{from: ext, to: '198.51.100.11:8080', expect: {answered_by: [r1]}}]",
            "came:     first try: answered by p1",
        ),
        (
            "an answerer that never comes",
            "flows: [{from: ext, to: 'p1:8080', expect: {answered_by: [p1, r1]}}]",
            "some never answered",
        ),
        (
            "a wrong source",
            "flows: [{from: n1, to: '198.51.100.11:8080', expect: {answered_by: [p1]}, source: kept}]",
            "p1 sees 198.51.100.1 instead of 192.0.2.10",
        ),
        (
            "a refusal",
            "flows: [{from: ext, to: '198.51.100.11:9', expect: {answered_by: [p1]}}]",
            "came:     first try: refused",
        ),
        (
            "an answer instead of silence",
            "flows: [{from: ext, to: '198.51.100.11:8080', expect: timeout}]",
            "expected: Timeout",
        ),
        (
            "a load that fails",
            "{load: [{from: ext, to: '198.51.100.11:9'}], run: [sleep 0.5]}",
            "connections failed: {\"refused\"",
        ),
        (
            "a command that fails",
            "run: [echo look here; false]",
            "run: echo look here; false: exit status: 1: look here",
        ),
        ("a log without what is wanted", "logged: [{with: nothing, times: 1}]", "logged 0 lines with"),
        (
            "a page without what is wanted",
            "http: [{from: n1, to: '127.0.0.1:10249', status: 200, with: [nothing]}]",
            "expected status 200 with [\"nothing\"]",
        ),
        (
            "somebody where nobody should listen",
            "http: [{from: n1, to: '127.0.0.1:10249'}]",
            "somebody may listen there",
        ),
        ("a connection nobody opened", "alive: [long]", "alive: long was never opened"),
        (
            "an unknown member",
            "flows: [{from: p9, to: '198.51.100.11:9', expect: refused}]",
            "the lab has no p9",
        ),
        ("a field that does not exist", "flow: []", "unknown field"),
    ];
    let accepted =
        accepted.map(|(name, step)| Trial::test(format!("accepts: {name}"), move || accepts(step)));
    let refused =
        refused.map(|(name, step, words)| Trial::test(format!("tells: {name}"), move || tells(step, words)));
    let mut trials: Vec<_> = accepted.into_iter().chain(refused).collect();
    trials.push(Trial::test("tells: a proxy that ends at once", || {
        contains(&play("say: nothing", "/bin/false".into()).unwrap_err(), "the proxy ended (exit status: 1)")
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn accepts(step: &str) -> Result<(), Failed> {
    play(step, std::env::current_exe()?).map_err(Failed::from)
}

fn tells(step: &str, words: &str) -> Result<(), Failed> {
    let told = play(step, std::env::current_exe()?).err().ok_or("it was accepted")?;
    contains(&told, words)
}

fn contains(told: &str, words: &str) -> Result<(), Failed> {
    if told.contains(words) { Ok(()) } else { Err(format!("{words:?} is not in: {told}").into()) }
}

fn play(step: &str, binary: PathBuf) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.yaml");
    let text = "name: a test of the runner
lab: [p1, r1]
objects:
- {apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIPs: [203.0.113.10, '2001:db8:c::10']}}
steps:
- ";
    let step = if step.starts_with('{') { step.to_owned() } else { format!("{{{step}}}") };
    std::fs::write(&file, format!("{text}{step}\n")).unwrap();
    let setup = Setup {
        binary,
        mode: FAKE.to_owned(),
        source: Source::Manifests,
        effect: Duration::from_millis(100),
        slow_refusal: false,
        nft: Vec::new(),
    };
    run(&file, &setup).map_err(|error| format!("{error:#}"))
}

fn fake_proxy() -> ! {
    let listener = TcpListener::bind("127.0.0.1:10249").unwrap();
    loop {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n");
        for family in ["IPv4", "IPv6"] {
            let name = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
            let _ = writeln!(stream, "{name}{{ip_family=\"{family}\"}} {}", wall_clock());
        }
    }
}
