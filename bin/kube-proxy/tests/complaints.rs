//! Complaints about the original that are no scenario of packets, each with its number, and the table of all of them
//! (`docs/complaints.md`). Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use netlink::namespace::Namespace;
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::objects::{Manifests, Objects};
use testkit::proxy::{Proxy, gauge};

const BINARY: &str = env!("CARGO_BIN_EXE_kube-proxy");
/// More than a sync takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
const WRITTEN: &str = "kubeproxy_kernel_objects_written_total";

/// A namespace with a folder for a proxy's objects and log.
struct Node {
    namespace: Namespace,
    folder: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let namespace = Namespace::new().unwrap();
        // metrics are asked for at 127.0.0.1
        assert!(
            namespace.command("ip").unwrap().args(["link", "set", "lo", "up"]).status().unwrap().success()
        );
        Self { namespace, folder: tempfile::tempdir().unwrap() }
    }

    fn manifests(&self) -> Manifests {
        Manifests::new(self.folder.path()).unwrap()
    }

    /// A proxy that has synced, started with `flags` besides those that every test needs.
    fn start(&self, flags: &[String]) -> Proxy<'_> {
        let usual = ["--hostname-override=n1", "--proxy-mode=nftables", "--v=2"].map(str::to_owned);
        let flags = [&usual[..], flags, &self.manifests().flags()].concat();
        let log = self.folder.path().join("log");
        let mut proxy = Proxy::start(&self.namespace, Path::new(BINARY), &flags, &log).unwrap();
        let synced = proxy.wait_until_synced();
        assert!(synced.is_ok(), "{synced:?}: {}", proxy.log());
        proxy
    }
}

fn service(number: u16, annotation: &str) -> Value {
    let [high, low] = number.to_be_bytes();
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "lab", "name": format!("s{number}"), "annotations": {"seen": annotation}},
        "spec": {
            "clusterIP": format!("203.0.113.{low}"),
            "ports": [{"port": 1 + u16::from(high), "targetPort": 8080, "protocol": "TCP"}],
        },
    })
}

/// A slice with the endpoint 198.51.100.`host` beside another one that stays.
fn slice(number: u16, host: u8, annotation: &str, labels: &Value) -> Value {
    let mut slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": "lab", "name": format!("s{number}"), "annotations": {"seen": annotation}},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["198.51.100.250"]}, {"addresses": [format!("198.51.100.{host}")]}],
    });
    slice["metadata"]["labels"] = labels.clone();
    slice["metadata"]["labels"]["kubernetes.io/service-name"] = format!("s{number}").into();
    slice
}

/// The sum of a counter's series.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small and positive
fn sum(proxy: &Proxy<'_>, name: &str) -> u64 {
    gauge(&proxy.metrics().unwrap(), name).iter().sum::<f64>() as u64
}

fn until_more_is_written(proxy: &Proxy<'_>, than: u64) {
    let begin = Instant::now();
    while sum(proxy, WRITTEN) <= than {
        assert!(begin.elapsed() < PATIENCE, "nothing is written: {}", proxy.log());
    }
}

#[test]
fn b15_connection_tracking_limits_that_cannot_be_written_or_need_not_be_do_not_stop_it() {
    let read = |file: &str| fs::read_to_string(file).unwrap().trim().parse::<u32>().unwrap();
    let limit = read("/proc/sys/net/netfilter/nf_conntrack_max");
    let above = limit + 4;
    assert!(
        read("/sys/module/nf_conntrack/parameters/hashsize") >= above / 4,
        "this machine's hash table is small: the proxy would enlarge it, which concerns the whole machine"
    );
    for (case, per_core, min, warnings) in [
        ("nothing is wanted", 0, 131_072, 0),
        ("a minimum without a limit per core", 0, above, 0),
        ("less than there is", 1, 1, 0),
        ("more than there is", 1, above, 1),
    ] {
        let node = Node::new();
        let flags = [
            format!("--conntrack-max-per-core={per_core}"),
            format!("--conntrack-min={min}"),
            "--conntrack-tcp-timeout-established=0".to_owned(),
            "--conntrack-tcp-timeout-close-wait=0".to_owned(),
        ];
        let proxy = node.start(&flags);
        let log = proxy.log();
        let told = log
            .lines()
            .filter(|line| line.contains("nf_conntrack_max") && line.contains("--conntrack-max-per-core=0"));
        assert_eq!(told.count(), warnings, "{case}: {log}");
        assert!(!log.contains("\"Set\""), "{case}: {log}");
        let table =
            node.namespace.command("nft").unwrap().args(["list", "table", "ip", "kube-proxy"]).output();
        assert!(table.unwrap().status.success(), "{case}: the rules are not there");
        proxy.stop(Signal::TERM).unwrap();
    }
    assert_eq!(read("/proc/sys/net/netfilter/nf_conntrack_max"), limit);
}

#[test]
fn b41_one_endpoint_costs_the_same_among_three_thousand_services_as_among_three() {
    let written_for_one_endpoint = |services: u16| {
        let node = Node::new();
        let mut manifests = node.manifests();
        let objects =
            (0..services).flat_map(|number| [service(number, ""), slice(number, 1, "", &json!({}))]);
        manifests.apply(&objects.collect::<Vec<_>>()).unwrap();
        let proxy = node.start(&["--conntrack-max-per-core=0".to_owned()]);
        let full = sum(&proxy, "kubeproxy_sync_full_proxy_rules_duration_seconds_count");
        let before = sum(&proxy, WRITTEN);
        manifests.apply(&[slice(1, 2, "", &json!({}))]).unwrap();
        until_more_is_written(&proxy, before);
        assert_eq!(
            sum(&proxy, "kubeproxy_sync_full_proxy_rules_duration_seconds_count"),
            full,
            "compared all"
        );
        sum(&proxy, WRITTEN) - before
    };
    let among_few = written_for_one_endpoint(3);
    assert!((1..8).contains(&among_few), "{among_few} objects for one endpoint");
    assert_eq!(written_for_one_endpoint(3000), among_few);
}

#[test]
fn b89_fields_that_are_unknown_old_or_given_twice_are_warnings_and_wrong_values_are_errors() {
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    let folder = tempfile::tempdir().unwrap();
    let (file, effective) = (folder.path().join("config"), folder.path().join("effective"));
    let run = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut command = Command::new(BINARY);
        command.arg("--config").arg(&file).arg("--write-config-to").arg(&effective).stdin(Stdio::null());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (fields, named) in [
        ("mode: nftables\ncolour: red", "colour"),
        ("resourceContainer: /kube-proxy", "resourceContainer"),
        ("mode: iptables\nmode: nftables", "mode"),
        ("metadata: {name: config}", "metadata"),
        (&format!("mode: nftables\n---\n{head}"), "documents"),
    ] {
        let (code, told) = run(&format!("{head}{fields}"));
        assert_eq!(code, Some(0), "{fields}: {told}");
        let warnings: Vec<_> = told.lines().filter(|line| line.starts_with('W')).collect();
        assert!(matches!(warnings[..], [one] if one.contains(named)), "{fields}: {told}");
    }
    for (fields, field, value) in [
        ("mode: 5", "mode", "5"),
        ("mode: other", "mode", "other"),
        ("configSyncPeriod: 90", "configSyncPeriod", "90"),
        ("clusterCIDR: nonsense", "clusterCIDR", "nonsense"),
        ("bindAddress: ::", "bindAddress", "::"),
    ] {
        let (code, told) = run(&format!("{head}{fields}"));
        assert_eq!(code, Some(1), "{fields}: {told}");
        assert!(told.contains(field) && told.contains(value), "{fields}: {told}");
    }
    for (text, named) in [
        ("", "empty"),
        ("apiVersion: other/v1\nkind: KubeProxyConfiguration\n", "other/v1"),
        ("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: Other\n", "Other"),
    ] {
        let (code, told) = run(text);
        assert!(code == Some(1) && told.contains(named), "{text}: {told}");
    }
    for (given, meant) in [("0s", "15m0s"), ("1h0m", "1h0m0s"), ("250ms", "250ms")] {
        assert_eq!(run(&format!("{head}configSyncPeriod: {given}")).0, Some(0));
        let effective = fs::read_to_string(&effective).unwrap();
        assert!(effective.contains(&format!("configSyncPeriod: {meant}\n")), "{given}: {effective}");
    }
}

#[test]
fn b95_updates_that_change_nothing_cost_no_sync() {
    let node = Node::new();
    let mut manifests = node.manifests();
    let headless = json!({"service.kubernetes.io/headless": ""});
    let own_node = |heartbeat: &str| {
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n1", "annotations": {"seen": heartbeat}},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "192.0.2.10"}],
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}],
            },
        })
    };
    let mut alone = service(999, "");
    alone["spec"]["clusterIP"] = "None".into();
    let objects = (0..50).flat_map(|number| [service(number, ""), slice(number, 1, "", &json!({}))]);
    manifests.apply(&objects.chain([alone, own_node("start")]).collect::<Vec<_>>()).unwrap();
    let proxy =
        node.start(&["--conntrack-max-per-core=0".to_owned(), "--iptables-min-sync-period=0s".to_owned()]);
    let counts =
        || ["kubeproxy_sync_proxy_rules_duration_seconds_count", WRITTEN].map(|name| sum(&proxy, name));
    let before = counts();
    for round in 0..40 {
        let seen = round.to_string();
        let objects = [
            slice(round, 1, &seen, &json!({"seen": seen})),
            slice(999, u8::try_from(round).unwrap(), &seen, &headless),
            service(round, &seen),
            own_node(&seen),
        ];
        manifests.apply(&objects).unwrap();
        thread::sleep(Duration::from_millis(50)); // else they would share one sync
    }
    // a change at last: all before it has been looked at when it is there
    manifests.apply(&[slice(49, 2, "", &json!({}))]).unwrap();
    until_more_is_written(&proxy, before[1]);
    let after = counts();
    assert!((1..8).contains(&(after[1] - before[1])), "{before:?} {after:?}");
    assert!(after[0] - before[0] <= 2, "one sync a family at most: {before:?} {after:?}");
}

/// What `docs/complaints.md` says shows something: a file, or a file and a test in it.
fn shown_by(row: &str) -> Vec<&str> {
    let last = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
    last.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_table_of_complaints_names_tests_that_exist_and_every_test_with_a_number() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
    let table = text("docs/complaints.md");
    let mut numbers = Vec::new();
    let mut named = BTreeSet::new();
    for row in table.lines().filter(|line| line.starts_with("| B")) {
        let number: u32 = row[3..].split_whitespace().next().unwrap().parse().unwrap();
        numbers.push(number);
        let tests = shown_by(row);
        assert_eq!(tests.is_empty(), row.contains("not in this version"), "{row}");
        for test in &tests {
            let (file, function) = test.split_once("::").unwrap_or((test, ""));
            assert!(
                text(file).contains(&format!("{function}(")) || function.is_empty(),
                "there is no {test}"
            );
            assert!(root.join(file).exists(), "there is no {file}");
            named.insert((*test).to_owned());
        }
        let own = |test: &&str| {
            test.contains(&format!("/b{number:02}-")) || test.contains(&format!("::b{number:02}_"))
        };
        assert!(tests.is_empty() || tests.iter().any(own), "no test has the number: {row}");
    }
    assert!(!numbers.is_empty() && numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    for entry in fs::read_dir(root.join("tests/scenarios")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let has_number =
            name.strip_prefix('b').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let path = format!("tests/scenarios/{name}");
        assert!(!has_number || named.contains(&path), "{path} is not in docs/complaints.md");
    }
}
