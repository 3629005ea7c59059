//! The binary and an API server: what it tells, and what it makes of its own Node.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use netlink::namespace::Namespace;
use netlink::route::Handle;
use serde_json::{Value, json};
use testkit::http;

const BINARY: &str = env!("CARGO_BIN_EXE_kube-proxy");
const HEALTH: &str = "127.0.0.1:10256";
/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// An API server on loopback of a namespace: it tells the objects that it begins with, then what a test tells it.
struct Api {
    address: SocketAddr,
    watches: Arc<Mutex<BTreeMap<String, Watch>>>,
    posted: Receiver<Value>,
}

/// A collection: what is told at first, and what comes then.
#[derive(Default)]
struct Watch {
    initial: Vec<String>,
    later: Option<Receiver<String>>,
    sender: Option<Sender<String>>,
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn initial_end() -> String {
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    line("BOOKMARK", &json!({"metadata": {"resourceVersion": "1", "annotations": annotations}}))
}

impl Api {
    fn start(namespace: &Namespace, objects: &[(&str, Value)]) -> Self {
        let listener = namespace.run(|| TcpListener::bind("127.0.0.1:0")).unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let mut watches = BTreeMap::<String, Watch>::new();
        for plural in ["services", "endpointslices", "nodes", "servicecidrs"] {
            let (sender, later) = channel();
            let own = objects.iter().filter(|(of, _)| *of == plural);
            let mut initial: Vec<_> = own.map(|(_, object)| line("ADDED", object)).collect();
            initial.push(initial_end());
            watches.insert(plural.into(), Watch { initial, later: Some(later), sender: Some(sender) });
        }
        let watches = Arc::new(Mutex::new(watches));
        let (sender, posted) = channel();
        let served = Arc::clone(&watches);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (watches, posts) = (Arc::clone(&served), sender.clone());
                thread::spawn(move || converse(stream, &watches, &posts));
            }
        });
        Self { address, watches, posted }
    }

    fn tell(&self, plural: &str, kind: &str, object: &Value) {
        let watches = self.watches.lock().unwrap();
        watches[plural].sender.as_ref().unwrap().send(line(kind, object)).unwrap();
    }

    /// The next event that is posted with this reason.
    fn event(&self, reason: &str) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let event = self.posted.recv_timeout(end.saturating_duration_since(Instant::now()));
            let event = event.unwrap_or_else(|_| panic!("no event {reason}"));
            if event["reason"] == reason {
                return event;
            }
        }
    }
}

/// One connection, until either side has enough.
fn converse(
    stream: TcpStream,
    watches: &Mutex<BTreeMap<String, Watch>>,
    posts: &Sender<Value>,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut request = String::new();
        reader.read_line(&mut request).ok().filter(|length| *length > 0)?;
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok().filter(|length| *length > 0)?;
            match header.trim().to_lowercase().split_once(": ") {
                Some(("content-length", value)) => length = value.parse().ok()?,
                None if header.trim().is_empty() => break,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        if request.starts_with("POST") {
            posts.send(serde_json::from_slice(&body).ok()?).ok()?;
            writer.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}").ok()?;
            continue;
        }
        let plural = request.split(['?', ' ']).nth(1)?.rsplit('/').next()?;
        let (initial, later) = {
            let mut watches = watches.lock().ok()?;
            let watch = watches.get_mut(plural)?;
            // who asks for everything again finds nothing
            (std::mem::replace(&mut watch.initial, vec![initial_end()]), watch.later.take())
        };
        writer.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").ok()?;
        for piece in initial.into_iter().chain(later.into_iter().flatten()) {
            write!(writer, "{:x}\r\n{piece}\r\n", piece.len()).ok()?;
        }
        return Some(());
    }
}

/// A running proxy in a namespace of its own.
struct Proxy {
    namespace: Namespace,
    api: Api,
    child: Child,
    folder: tempfile::TempDir,
}

impl Proxy {
    fn start(objects: &[(&str, Value)], flags: &[&str], prepare: impl FnOnce() + Send) -> Self {
        let namespace = Namespace::new().unwrap();
        namespace
            .run(|| {
                Handle::open().unwrap().set_up("lo").unwrap();
                prepare();
            })
            .unwrap();
        let api = Api::start(&namespace, objects);
        let folder = tempfile::tempdir().unwrap();
        let child = namespace
            .command(BINARY)
            .unwrap()
            .arg(format!("--master=http://{}", api.address))
            .args(["--hostname-override=n1", "--conntrack-max-per-core=0", "--oom-score-adj=0"])
            .args(["--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"])
            .args(flags)
            .stdin(Stdio::null())
            .stderr(File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { namespace, api, child, folder }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Asks the health server until both pages have these answers.
    fn wait_for(&self, healthz: u16, livez: u16) {
        let status =
            |path| http::get(&self.namespace, HEALTH.parse().unwrap(), path).map(|it| it.status).ok();
        let end = Instant::now() + PATIENCE;
        while (status("/healthz"), status("/livez")) != (Some(healthz), Some(livez)) {
            assert!(Instant::now() < end, "not healthz {healthz}, livez {livez}: {}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The exit code, once it has ended.
    fn exit_code(&mut self) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return status.code(),
                None => assert!(Instant::now() < end, "it goes on: {}", self.log()),
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // it may have ended by itself
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The own Node, and what a test changes about it.
fn node(version: u32, change: impl FnOnce(&mut Value)) -> Value {
    let mut node = json!({
        "metadata": {"name": "n1", "resourceVersion": version.to_string()},
        "spec": {"podCIDRs": ["198.51.100.0/25"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.10"}]},
    });
    change(&mut node);
    node
}

#[test]
fn load_balancers_leave_a_node_that_goes_and_the_kubelet_does_not_mind() {
    let proxy = Proxy::start(&[("nodes", node(1, |_| ()))], &[], || ());
    proxy.wait_for(200, 200);
    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    let tell = |kind, object: &Value| proxy.api.tell("nodes", kind, object);
    tell("MODIFIED", &node(2, |node| node["spec"]["taints"] = taint));
    proxy.wait_for(503, 200);
    tell("MODIFIED", &node(3, |_| ()));
    proxy.wait_for(200, 200);
    tell("MODIFIED", &node(4, |node| node["metadata"]["deletionTimestamp"] = "2026-11-30T22:59:45Z".into()));
    proxy.wait_for(503, 200);
    tell("MODIFIED", &node(5, |_| ()));
    proxy.wait_for(200, 200);
    tell("DELETED", &node(6, |_| ()));
    proxy.wait_for(503, 200);
    assert!(proxy.log().contains("The own Node was deleted"), "{}", proxy.log());
    tell("ADDED", &node(7, |_| ()));
    proxy.wait_for(200, 200);
}

#[test]
fn a_node_that_was_deleted_while_nobody_watched_takes_no_new_connections() {
    let proxy = Proxy::start(&[("nodes", node(1, |_| ()))], &[], || ());
    proxy.wait_for(200, 200);
    proxy.api.tell("nodes", "ERROR", &json!({"kind": "Status", "code": 410, "reason": "Expired"}));
    proxy.wait_for(503, 200);
}

#[test]
fn other_pod_networks_end_the_process_in_node_cidr_mode_and_a_node_without_any_does_not() {
    let mut proxy = Proxy::start(&[("nodes", node(1, |_| ()))], &["--detect-local-mode=NodeCIDR"], || ());
    proxy.wait_for(200, 200);
    // the Node is created anew, and gets its networks later
    proxy.api.tell("nodes", "DELETED", &node(2, |_| ()));
    proxy.wait_for(503, 200);
    proxy.api.tell("nodes", "ADDED", &node(3, |node| node["spec"] = json!({})));
    proxy.wait_for(200, 200);
    proxy.api.tell(
        "nodes",
        "MODIFIED",
        &node(4, |node| node["spec"]["podCIDRs"][0] = "198.51.100.128/25".into()),
    );
    assert_eq!(proxy.exit_code(), Some(1));
    for part in ["spec.podCIDRs", "from 198.51.100.0/25 to 198.51.100.128/25", "NodeCIDR"] {
        assert!(proxy.log().contains(part), "{part} is not in {}", proxy.log());
    }
}

#[test]
fn without_node_cidr_mode_other_pod_networks_are_nothing_to_it() {
    let proxy = Proxy::start(&[("nodes", node(1, |_| ()))], &["--cluster-cidr=198.51.100.0/24"], || ());
    proxy.wait_for(200, 200);
    proxy.api.tell(
        "nodes",
        "MODIFIED",
        &node(2, |node| node["spec"]["podCIDRs"][0] = "198.51.100.128/25".into()),
    );
    proxy.api.tell("nodes", "DELETED", &node(3, |_| ()));
    proxy.wait_for(503, 200);
}

/// Takes a port of all addresses, for ever.
fn take(port: u16) -> impl FnOnce() + Send {
    move || std::mem::forget(TcpListener::bind(("::", port)).unwrap())
}

#[test]
fn a_health_check_port_that_is_taken_is_an_event_of_its_service() {
    let service = json!({
        "metadata": {"name": "shop", "namespace": "web", "resourceVersion": "1"},
        "spec": {
            "type": "LoadBalancer", "clusterIP": "203.0.113.10", "clusterIPs": ["203.0.113.10"],
            "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
            "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}],
        },
    });
    let objects = [("nodes", node(1, |_| ())), ("services", service)];
    let proxy = Proxy::start(&objects, &["--nodeport-addresses=0.0.0.0/0"], take(32000));
    assert_eq!(proxy.api.event("Starting")["regarding"]["name"], "n1");
    let event = proxy.api.event("FailedToStartServiceHealthcheck");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["action"], "Listen");
    assert_eq!(event["metadata"]["namespace"], "web");
    assert_eq!(event["regarding"]["uid"], "web/shop");
    let note = event["note"].as_str().unwrap();
    for part in ["node n1", "\"web/shop\"", ":32000", "in use"] {
        assert!(note.contains(part), "{part} is not in {note}");
    }
}

#[test]
fn a_server_that_has_to_be_there_and_cannot_be_is_an_event_of_the_node_before_the_end() {
    for (port, reason) in [(10256, "FailedToStartProxierHealthcheck"), (10249, "FailedToStartMetricServer")] {
        let objects = [("nodes", node(1, |_| ()))];
        let mut proxy = Proxy::start(&objects, &["--bind-address-hard-fail"], take(port));
        let event = proxy.api.event(reason);
        assert_eq!((&event["type"], &event["action"]), (&json!("Warning"), &json!("StartKubeProxy")));
        assert_eq!(event["regarding"]["kind"], "Node");
        assert!(event["note"].as_str().unwrap().contains(&port.to_string()), "{event}");
        assert_eq!(proxy.exit_code(), Some(1));
    }
}
