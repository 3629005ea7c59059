//! Each rule of decoding, and that nothing makes it panic.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use model::{Event, Hints, Kind, Node, Policy, Protocol, Service, ServiceType, Slice};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Decoder, Line, value};
use crate::Counters;

/// What an object means, and what is wrong with it.
fn decode(kind: Kind, object: &Value) -> (Option<Event>, Vec<String>) {
    let mut faults = Vec::new();
    let event = value(kind, object, "node-1", &mut faults);
    (event, faults.iter().map(ToString::to_string).collect())
}

fn service_object(spec: Value) -> Value {
    let mut full = json!({"clusterIP": "192.0.2.10", "ports": [{"name": "http", "port": 80}]});
    merge(&mut full, spec);
    json!({
        "metadata": {"namespace": "web", "name": "shop", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": full,
    })
}

/// Puts the fields of `over` in place of those of `object`.
fn merge(object: &mut Value, over: Value) {
    if let (Some(object), Value::Object(over)) = (object.as_object_mut(), over) {
        object.extend(over);
    }
}

/// A service with these fields of its spec, and its faults.
fn service(spec: Value) -> (Service, Vec<String>) {
    match decode(Kind::Service, &service_object(spec)) {
        (Some(Event::Service(service)), faults) => (service, faults),
        other => panic!("not a served service: {other:?}"),
    }
}

fn slice_object(over: Value) -> Value {
    let mut object = json!({
        "metadata": {"namespace": "web", "name": "shop-1", "labels": {"kubernetes.io/service-name": "shop"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["198.51.100.1"]}],
    });
    merge(&mut object, over);
    object
}

fn slice(over: Value) -> (Slice, Vec<String>) {
    match decode(Kind::Slice, &slice_object(over)) {
        (Some(Event::Slice(slice)), faults) => (slice, faults),
        other => panic!("not a used slice: {other:?}"),
    }
}

fn texts<T: ToString>(list: &[T]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

#[test]
fn a_plain_service_has_the_defaults_of_the_api_server() {
    let (service, faults) = service(json!({}));
    assert_eq!(faults, [""; 0]);
    assert_eq!(service.key.as_str(), "web/shop");
    assert_eq!(service.created, 1_767_225_600);
    assert_eq!((service.kind, service.affinity_seconds), (ServiceType::ClusterIp, None));
    assert_eq!((service.internal_policy, service.external_policy), (Policy::Cluster, Policy::Cluster));
    assert_eq!((service.ports[0].protocol, service.ports[0].node_port), (Protocol::Tcp, None));
}

#[test]
fn services_that_are_not_served_are_told_as_deleted() {
    for spec in [
        json!({"clusterIP": "None"}),
        json!({"clusterIP": ""}),
        json!({"clusterIP": null}),
        json!({"clusterIPs": ["None"]}),
        json!({"type": "ExternalName"}),
        json!({"clusterIP": "nonsense"}),
        json!({"type": "Unheard"}),
    ] {
        let (event, _) = decode(Kind::Service, &service_object(spec.clone()));
        assert!(matches!(event, Some(Event::ServiceDeleted(_))), "{spec}");
    }
    let mut foreign = service_object(json!({}));
    foreign["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": ""});
    assert!(matches!(decode(Kind::Service, &foreign).0, Some(Event::ServiceDeleted(_))));
}

#[test]
fn cluster_ips_are_one_a_family() {
    let (dual, faults) = service(json!({"clusterIPs": ["192.0.2.10", "2001:db8::10"]}));
    assert_eq!(
        (texts(&dual.cluster_ips), faults.len()),
        (vec!["192.0.2.10".into(), "2001:db8::10".into()], 0)
    );
    let (twice, faults) = service(json!({"clusterIPs": ["192.0.2.10", "192.0.2.11"]}));
    assert_eq!((texts(&twice.cluster_ips), faults.len()), (vec!["192.0.2.10".into()], 1));
}

#[test]
fn bad_addresses_are_left_out_and_named() {
    let (service, faults) = service(json!({
        "clusterIPs": ["192.0.2.10", "2001:db8::10"],
        "externalIPs": ["192.0.2.x", "198.051.100.7", "0.0.0.0", "2001:db8::7"],
    }));
    assert_eq!(texts(&service.external_ips), ["198.51.100.7", "2001:db8::7"]);
    assert_eq!(
        faults,
        [
            "spec.externalIPs[0]: \"192.0.2.x\" is no address of a host; left out",
            "spec.externalIPs[2]: \"0.0.0.0\" is no address of a host; left out",
        ]
    );
}

#[test]
fn only_ingress_addresses_that_the_proxy_serves_count() {
    let mut object = service_object(json!({"type": "LoadBalancer"}));
    object["status"] = json!({"loadBalancer": {"ingress": [
        {"ip": "203.0.113.1"}, {"ip": "203.0.113.2", "ipMode": "VIP"}, {"ip": "203.0.113.3", "ipMode": "Proxy"},
        {"hostname": "lb.example"},
    ]}});
    let (Some(Event::Service(service)), faults) = decode(Kind::Service, &object) else {
        panic!("not served")
    };
    assert_eq!(
        (texts(&service.load_balancer_ips), faults.len()),
        (vec!["203.0.113.1".into(), "203.0.113.2".into()], 0)
    );
}

#[test]
fn ports_that_cannot_be_served_are_left_out() {
    let ports = [
        (json!({"name": "a", "port": 0}), "spec.ports[1].port"),
        (json!({"name": "a", "port": 65_536}), "spec.ports[1].port"),
        (json!({"name": "a", "port": -1}), "spec.ports[1].port"),
        (json!({"name": "a"}), "spec.ports[1].port"),
        (json!({"name": "a", "port": 1, "protocol": "tcp"}), "spec.ports[1].protocol"),
        (json!({"name": "http", "port": 1}), "spec.ports[1]"),
        (json!({"name": "a", "port": 80}), "spec.ports[1]"),
    ];
    for (port, field) in ports {
        let (service, faults) = service(json!({"ports": [{"name": "http", "port": 80}, port]}));
        assert_eq!((service.ports.len(), faults.len()), (1, 1), "{port}");
        assert!(faults[0].starts_with(&format!("{field}: ")), "{port}: {faults:?}");
    }
    let (both, faults) = service(
        json!({"ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns", "port": 53}]}),
    );
    assert_eq!((both.ports.len(), faults.len()), (2, 0), "the same port of another protocol is another port");
}

#[test]
fn a_bad_node_port_leaves_the_cluster_ip() {
    for (given, kept, faults) in [(30_080, Some(30_080), 0), (0, None, 0), (70_000, None, 1)] {
        let (service, found) =
            service(json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": given}]}));
        assert_eq!((service.ports[0].node_port.map(u16::from), found.len()), (kept, faults), "{given}");
    }
}

#[test]
fn affinity_has_the_limits_of_the_api() {
    for (affinity, seconds, expected, faults) in [
        ("None", json!(5), None, 0),
        ("ClientIP", json!(null), Some(10_800), 0),
        ("ClientIP", json!(1), Some(1), 0),
        ("ClientIP", json!(86_400), Some(86_400), 0),
        ("ClientIP", json!(0), Some(10_800), 1),
        ("ClientIP", json!(86_401), Some(10_800), 1),
        ("Cookie", json!(null), None, 1),
    ] {
        let config = json!({"clientIP": {"timeoutSeconds": seconds}});
        let (service, found) = service(json!({"sessionAffinity": affinity, "sessionAffinityConfig": config}));
        assert_eq!((service.affinity_seconds, found.len()), (expected, faults), "{affinity} {config}");
    }
}

#[test]
fn source_ranges_are_trimmed() {
    let (service, faults) =
        service(json!({"loadBalancerSourceRanges": [" 192.0.2.0/24 ", "2001:db8::/32", "x"]}));
    assert_eq!(texts(&service.source_ranges), ["192.0.2.0/24", "2001:db8::/32"]);
    assert_eq!(faults.len(), 1);
}

#[test]
fn the_health_check_port_is_for_local_load_balancers() {
    for (kind, policy, expected) in [
        ("LoadBalancer", "Local", Some(30_000)),
        ("LoadBalancer", "Cluster", None),
        ("NodePort", "Local", None),
    ] {
        let spec = json!({"type": kind, "externalTrafficPolicy": policy, "healthCheckNodePort": 30_000});
        let (service, faults) = service(spec);
        assert_eq!(
            (service.health_check_node_port.map(u16::from), faults.len()),
            (expected, 0),
            "{kind} {policy}"
        );
    }
    let (_, faults) = service(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}));
    assert!(faults[0].starts_with("spec.healthCheckNodePort: 0 "), "{faults:?}");
}

#[test]
fn an_unknown_policy_is_cluster() {
    let (service, faults) =
        service(json!({"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Near"}));
    assert_eq!(
        (service.internal_policy, service.external_policy, faults.len()),
        (Policy::Local, Policy::Cluster, 1)
    );
}

#[test]
fn a_field_of_the_wrong_type_is_named_and_spoils_the_object() {
    for (spec, field) in [
        (json!({"ports": "none"}), "spec.ports"),
        (json!({"ports": [{"port": "80"}]}), "spec.ports[0].port"),
        (json!({"clusterIPs": [7]}), "spec.clusterIPs[0]"),
    ] {
        let (event, faults) = decode(Kind::Service, &service_object(spec));
        assert_eq!((event, faults.len()), (None, 1));
        assert!(faults[0].starts_with(&format!("{field}: ")), "{faults:?}");
    }
}

#[test]
fn an_object_without_a_name_is_skipped() {
    for kind in [Kind::Service, Kind::Slice, Kind::ServiceCidr] {
        let (event, faults) = decode(kind, &json!({"metadata": {"namespace": "web"}}));
        assert_eq!((event, faults.len()), (None, 1), "{kind:?}");
    }
}

#[test]
fn slices_that_are_not_used_are_told_as_deleted() {
    for (label, over) in [
        ("kubernetes.io/service-name", json!({"metadata": {"namespace": "web", "name": "shop-1"}})),
        ("addressType FQDN", json!({"addressType": "FQDN"})),
        ("addressType unknown", json!({"addressType": "IPX"})),
        (
            "headless",
            json!({"metadata": {"namespace": "web", "name": "shop-1", "labels": {
                "kubernetes.io/service-name": "shop", "service.kubernetes.io/headless": "",
            }}}),
        ),
        (
            "service-proxy-name",
            json!({"metadata": {"namespace": "web", "name": "shop-1", "labels": {
                "kubernetes.io/service-name": "shop", "service.kubernetes.io/service-proxy-name": "other",
            }}}),
        ),
    ] {
        let (event, _) = decode(Kind::Slice, &slice_object(over));
        assert!(matches!(event, Some(Event::SliceDeleted(key)) if key.as_str() == "web/shop-1"), "{label}");
    }
}

#[test]
fn conditions_default_to_a_live_endpoint() {
    for (conditions, expected) in [
        (json!(null), (true, true, false)),
        (json!({}), (true, true, false)),
        (json!({"ready": false}), (false, true, false)),
        (json!({"ready": false, "serving": true, "terminating": true}), (false, true, true)),
        (json!({"ready": null, "serving": false}), (true, false, false)),
    ] {
        let (slice, faults) =
            slice(json!({"endpoints": [{"addresses": ["198.51.100.1"], "conditions": conditions}]}));
        let endpoint = &slice.endpoints[0];
        let found = (endpoint.ready, endpoint.serving, endpoint.terminating);
        assert_eq!((found, faults.len()), (expected, 0), "{conditions}");
    }
}

#[test]
fn an_endpoint_is_local_by_the_exact_name_of_the_node() {
    let endpoints = ["node-1", "Node-1", "node-10", ""]
        .map(|name| json!({"addresses": ["198.51.100.1"], "nodeName": name}));
    let (slice, _) = slice(json!({"endpoints": endpoints}));
    let local: Vec<bool> = slice.endpoints.iter().map(|endpoint| endpoint.local).collect();
    assert_eq!(local, [true, false, false, false]);
}

#[test]
fn only_the_first_usable_address_of_the_family_counts() {
    let (slice, faults) = slice(json!({"endpoints": [
        {"addresses": ["198.051.100.001", "198.51.100.2"]},
        {"addresses": []},
        {"addresses": null},
        {"addresses": ["2001:db8::1"]},
        {"addresses": ["here"]},
    ]}));
    let addresses: Vec<String> =
        slice.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect();
    assert_eq!(addresses, ["198.51.100.1"]);
    assert_eq!(
        faults,
        [
            "endpoints[3].addresses[0]: \"2001:db8::1\" is no IPv4 address by which a host is reached from elsewhere; the endpoint is left out",
            "endpoints[4].addresses[0]: \"here\" is no IPv4 address by which a host is reached from elsewhere; the endpoint is left out",
        ]
    );
}

#[test]
fn slice_ports_without_number_are_ignored() {
    let ports = json!([{"name": "a"}, {"name": "b", "port": null}, {"name": "c", "port": 0}, {"port": 1, "protocol": "SCTP"}]);
    let (slice, faults) = slice(json!({"ports": ports}));
    let found: Vec<(&str, Protocol, u16)> =
        slice.ports.iter().map(|port| (&*port.name, port.protocol, port.port)).collect();
    assert_eq!((found, faults.len()), (vec![("", Protocol::Sctp, 1)], 1));
}

#[test]
fn lists_may_be_null_as_go_writes_them() {
    let (slice, faults) = slice(json!({"ports": null, "endpoints": null}));
    assert_eq!((slice.ports.len(), slice.endpoints.len(), faults.len()), (0, 0, 0));
}

#[test]
fn hints_are_kept_when_there_are_any() {
    for (hints, expected) in [
        (json!(null), None),
        (json!({"forZones": []}), None),
        (json!({"forZones": [{"name": "a"}], "forNodes": [{"name": "n"}]}), Some((vec!["a"], vec!["n"]))),
    ] {
        let (slice, _) = slice(json!({"endpoints": [{"addresses": ["198.51.100.1"], "hints": hints}]}));
        let expected = expected.map(|(zones, nodes)| {
            let boxed = |names: Vec<&str>| names.into_iter().map(Into::into).collect();
            Box::new(Hints { zones: boxed(zones), nodes: boxed(nodes) })
        });
        assert_eq!(slice.endpoints[0].hints, expected, "{hints}");
    }
}

#[test]
fn the_trigger_time_is_read_to_the_nanosecond_and_may_be_nonsense() {
    let at = |time: &str| {
        let mut object = slice_object(json!({}));
        object["metadata"]["annotations"] = json!({"endpoints.kubernetes.io/last-change-trigger-time": time});
        match decode(Kind::Slice, &object) {
            (Some(Event::Slice(slice)), faults) if faults.is_empty() => slice.triggered,
            other => panic!("{other:?}"),
        }
    };
    let expected = SystemTime::UNIX_EPOCH + Duration::new(1_767_225_600, 123_456_789);
    assert_eq!(at("2026-01-01T01:00:00.123456789+01:00"), Some(expected));
    assert_eq!(at("yesterday"), None);
}

#[test]
fn a_node_has_internal_addresses_first() {
    let object = json!({
        "metadata": {"name": "node-1", "uid": "u-1", "labels": {"topology.kubernetes.io/zone": "z"}, "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"podCIDR": "198.51.100.0/25", "podCIDRs": ["198.51.100.0/24", "2001:db8::/64"],
            "taints": [{"key": "other"}, {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]},
        "status": {"addresses": [
            {"type": "Hostname", "address": "node-1"}, {"type": "ExternalIP", "address": "203.0.113.1"},
            {"type": "InternalIP", "address": "192.0.2.1"}, {"type": "InternalIP", "address": "2001:db8::1"},
        ]},
    });
    let (event, faults) = decode(Kind::Node, &object);
    let expected = Node {
        name: "node-1".into(),
        uid: "u-1".into(),
        addresses: ["192.0.2.1", "2001:db8::1", "203.0.113.1"].map(|text| text.parse().unwrap()).into(),
        pod_cidrs: ["198.51.100.0/24", "2001:db8::/64"].map(|text| text.parse().unwrap()).into(),
        zone: Some("z".into()),
        deleting: true,
        to_be_deleted_by_autoscaler: true,
    };
    assert_eq!((event, faults.len()), (Some(Event::Node(expected)), 0));
    assert_eq!(decode(Kind::Node, &json!({"metadata": {"name": "node-2"}})), (None, vec![]));
}

#[test]
fn addresses_of_a_family_without_a_cluster_ip_are_left_out_with_one_word_for_each_field() {
    let mut object = service_object(json!({
        "type": "LoadBalancer",
        "externalIPs": ["2001:db8:d::1", "203.0.113.1", "2001:db8:d::2"],
    }));
    object["status"] = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.2"}, {"ip": "2001:db8:d::3"}]}});
    let (event, faults) = decode(Kind::Service, &object);
    let Some(Event::Service(service)) = event else { panic!("not served") };
    assert_eq!(texts(&service.external_ips), ["203.0.113.1"]);
    assert_eq!(texts(&service.load_balancer_ips), ["203.0.113.2"]);
    let problem = "of a family in which the service has no cluster IP; left out";
    assert_eq!(
        faults,
        [
            format!("spec.externalIPs: 2001:db8:d::1, 2001:db8:d::2 {problem}"),
            format!("status.loadBalancer.ingress: 2001:db8:d::3 {problem}"),
        ]
    );
}

#[test]
fn service_cidrs_are_networks_by_name() {
    let object = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["192.0.2.0/24", "bad", "2001:db8::/112"]}});
    let (event, faults) = decode(Kind::ServiceCidr, &object);
    let nets = ["192.0.2.0/24", "2001:db8::/112"].map(|text| text.parse().unwrap()).into();
    assert_eq!((event, faults.len()), (Some(Event::ServiceCidr("kubernetes".into(), nets)), 1));
}

fn decoder(kind: Kind) -> (Decoder, Arc<Counters>) {
    let counters = Arc::new(Counters::default());
    (Decoder::new(kind, "node-1", counters.clone()), counters)
}

fn line(kind: &str, object: &Value) -> Vec<u8> {
    json!({"type": kind, "object": object}).to_string().into_bytes()
}

#[test]
fn a_malformed_object_is_counted_and_moves_the_version_on() {
    let (mut decoder, counters) = decoder(Kind::Service);
    let mut version = String::from("1");
    let mut bad = service_object(json!({"ports": 7}));
    bad["metadata"]["resourceVersion"] = "5".into();
    assert!(matches!(decoder.line(&line("MODIFIED", &bad), &mut version), Line::Object(None)));
    assert_eq!((version.as_str(), counters.malformed()), ("5", 1));
    let deleted = decoder.line(&line("DELETED", &bad), &mut version);
    assert!(matches!(deleted, Line::Object(Some(Event::ServiceDeleted(_)))), "{deleted:?}");
}

#[test]
fn errors_bookmarks_and_torn_lines_are_told_apart() {
    let (mut decoder, _) = decoder(Kind::Slice);
    let mut version = String::new();
    let mut read = |bytes: &[u8]| decoder.line(bytes, &mut version);
    let status = json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired"});
    assert!(matches!(read(&line("ERROR", &status)), Line::Error(status) if status.code == 410));
    let bookmark =
        json!({"metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}});
    assert!(matches!(read(&line("BOOKMARK", &bookmark)), Line::Bookmark(true)));
    let bookmark = json!({"kind": "EndpointSlice", "metadata": {"resourceVersion": "12"}, "endpoints": null, "addressType": ""});
    assert!(matches!(read(&line("BOOKMARK", &bookmark)), Line::Bookmark(false)));
    for torn in [
        &b"{\"type\":\"ADDED\",\"obj"[..],
        b"nonsense",
        b"{}",
        b"[]",
        b"\xff",
        b"{\"type\":\"NEW\",\"object\":{}}",
    ] {
        assert!(matches!(read(torn), Line::Torn), "{}", String::from_utf8_lossy(torn));
    }
    assert_eq!(version, "12");
}

proptest! {
    #[test]
    fn any_bytes_are_taken_calmly(bytes in proptest::collection::vec(any::<u8>(), 0..64), cut in 0usize..300) {
        let (mut decoder, _) = decoder(Kind::Slice);
        let whole = line("ADDED", &slice_object(json!({})));
        let mut version = String::new();
        let cut = cut.min(whole.len() - 1);
        prop_assert!(matches!(decoder.line(&whole[..cut], &mut version), Line::Torn));
        decoder.line(&[&whole[..cut], &bytes[..]].concat(), &mut version);
        decoder.item(&bytes);
    }
}
