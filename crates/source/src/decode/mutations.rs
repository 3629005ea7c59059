//! 100,000 random mutations of valid objects: none makes decoding panic, the fast and the slow way of it agree, none changes
//! what another service means, what is left out is told once for each field, and what is not is such as a data plane can write.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use model::{Event, Family, Frontend, Kind, ObjectKey, ResolvedService, Tracker, TrackerOptions};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use super::{Decoder, value};
use crate::Counters;
use crate::address::{is_host, is_reachable};

const ROUNDS: u32 = 100_000;
const NODE: &str = "node-1";

static OBJECTS: LazyLock<[(Kind, Value); 4]> = LazyLock::new(|| {
    let service = json!({
        "metadata": {"namespace": "web", "name": "shop", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "type": "LoadBalancer", "clusterIP": "203.0.113.10",
            "clusterIPs": ["203.0.113.10", "2001:db8:c::10"], "ipFamilies": ["IPv4", "IPv6"],
            "ports": [
                {"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30_100},
                {"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30_101},
            ],
            "externalIPs": ["203.0.113.200", "2001:db8:d::200"],
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}},
            "loadBalancerSourceRanges": ["192.0.2.0/24", "2001:db8::/64"],
            "internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31_000,
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.201", "ipMode": "VIP"}, {"ip": "2001:db8:d::201"}]}},
    });
    let slice = json!({
        "metadata": {
            "namespace": "web", "name": "shop-1", "labels": {"kubernetes.io/service-name": "shop"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "dns", "port": 5353, "protocol": "UDP"}],
        "endpoints": [
            {"addresses": ["198.51.100.1"], "nodeName": NODE, "conditions": {"ready": true, "serving": true, "terminating": false}},
            {"addresses": ["198.51.100.2"], "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": NODE}]}, "zone": "a"},
        ],
    });
    let node = json!({
        "metadata": {"name": NODE, "uid": "1", "labels": {"topology.kubernetes.io/zone": "a"}},
        "spec": {"podCIDRs": ["198.51.100.0/24"], "taints": [{"key": "a", "effect": "NoSchedule"}]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.10"}, {"type": "Hostname", "address": NODE}]},
    });
    let cidr = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["203.0.113.0/24", "2001:db8:c::/112"]}});
    [(Kind::Service, service), (Kind::Slice, slice), (Kind::Node, node), (Kind::ServiceCidr, cidr)]
});

/// A service that none of the mutated objects is about, and its endpoints.
static HEALTHY: LazyLock<[Event; 2]> = LazyLock::new(|| {
    let service = json!({
        "metadata": {"namespace": "web", "name": "healthy"},
        "spec": {
            "type": "NodePort", "clusterIPs": ["203.0.113.99", "2001:db8:c::99"],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30_999}],
        },
    });
    let slice = json!({
        "metadata": {"namespace": "web", "name": "healthy-1", "labels": {"kubernetes.io/service-name": "healthy"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["198.51.100.99"]}],
    });
    [(Kind::Service, service), (Kind::Slice, slice)].map(|(kind, object)| decoded(kind, &object).unwrap())
});

/// What the objects mean as they are.
static EVENTS: LazyLock<[Event; 4]> =
    LazyLock::new(|| OBJECTS.each_ref().map(|(kind, object)| decoded(*kind, object).unwrap()));

fn decoded(kind: Kind, object: &Value) -> Option<Event> {
    value(kind, object, NODE, &mut Vec::new())
}

/// What happens to one of the values of an object.
#[derive(Clone, Debug)]
enum Mutation {
    Becomes(Value),
    /// With all that a field or an entry of a list is.
    Vanishes,
    /// An entry of a list.
    ComesTwice,
    /// Text gets something at its end.
    Grows(&'static str),
}

/// Any JSON, small.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-70_000i64..70_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[ -~é]{0,12}".prop_map(Value::from),
        "[0-9]{1,3}(\\.[0-9]{1,4}){3}(/[0-9]{1,3})?".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::hash_map("[a-z]{1,4}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn odd_value() -> impl Strategy<Value = Value> {
    const TEXTS: [&str; 36] = [
        "",
        " ",
        "None",
        "none",
        "\0",
        "a\0b",
        "\n",
        "\u{202e}",
        "é",
        "UPPER",
        "../..",
        "-",
        "a.b",
        "web/other",
        "%s",
        "{}",
        "\"",
        "192.0.2.1",
        "192.0.2.1 ",
        " 192.0.2.1",
        "192.0.2.01",
        "192.0.2.256",
        "::ffff:192.0.2.1",
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "127.0.0.1",
        "169.254.1.1",
        "::",
        "::1",
        "fe80::1",
        "ff02::1",
        "2001:db8:f::1",
        "192.0.2.0/33",
        "0.0.0.0/0",
        "::/0",
    ];
    const NUMBERS: [i64; 10] = [0, 1, -1, 53, 80, 65_535, 65_536, 86_401, i64::MIN, i64::MAX];
    let deep = (0..100).fold(Value::Null, |inner, _| json!([inner]));
    prop_oneof![
        6 => select(&TEXTS[..]).prop_map(Value::from),
        3 => select(&NUMBERS[..]).prop_map(Value::from),
        2 => json_value(),
        1 => (60usize..70).prop_map(|length| "a".repeat(length).into()),
        3 => select(vec![Value::Null, true.into(), false.into(), json!([]), json!({}), json!([null]), "x".repeat(5000).into(), deep]),
    ]
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        6 => odd_value().prop_map(Mutation::Becomes),
        2 => Just(Mutation::Vanishes),
        1 => Just(Mutation::ComesTwice),
        2 => select(&[" ", "\0", "0", ".", "é", "/32", ":80", "-"][..]).prop_map(Mutation::Grows),
    ]
}

/// The paths of all values within this one.
fn paths(object: &Value, to: &str, paths: &mut Vec<String>) {
    let mut inner = |name: &str, value: &Value| {
        let path = format!("{to}/{}", name.replace('~', "~0").replace('/', "~1"));
        paths.push(path.clone());
        self::paths(value, &path, paths);
    };
    match object {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| inner(name, value)),
        Value::Array(list) => list.iter().enumerate().for_each(|(at, value)| inner(&at.to_string(), value)),
        _ => {}
    }
}

fn mutate(object: &mut Value, at: Index, mutation: &Mutation) {
    let mut all = vec![String::new()];
    paths(object, "", &mut all);
    let path = at.get(&all);
    let Some((parent, name)) = path.rsplit_once('/') else {
        if let Mutation::Becomes(new) = mutation {
            object.clone_from(new);
        }
        return;
    };
    let name = name.replace("~1", "/").replace("~0", "~");
    match (mutation, object.pointer_mut(parent)) {
        (Mutation::Becomes(new), Some(parent)) => match parent {
            Value::Object(fields) => drop(fields.insert(name, new.clone())),
            Value::Array(list) => list[name.parse::<usize>().unwrap()] = new.clone(),
            _ => {}
        },
        (Mutation::Vanishes, Some(Value::Object(fields))) => drop(fields.remove(&name)),
        (Mutation::Vanishes, Some(Value::Array(list))) => drop(list.remove(name.parse().unwrap())),
        (Mutation::ComesTwice, Some(Value::Array(list))) => {
            let twin = list[name.parse::<usize>().unwrap()].clone();
            list.push(twin);
        }
        (Mutation::Grows(end), Some(_)) => {
            if let Some(Value::String(text)) = object.pointer_mut(path) {
                text.push_str(end);
            }
        }
        _ => {}
    }
}

fn tracker() -> Tracker {
    Tracker::new(TrackerOptions {
        node_name: NODE.to_owned(),
        families: vec![Family::V4, Family::V6],
        allow_external_ips: true,
    })
}

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// What no data plane could write, or nobody could mean.
fn impossible(service: &ResolvedService, family: Family) -> Option<String> {
    let is_named = is_name(service.key.namespace()) && is_name(service.key.name());
    let affinity = service.affinity_seconds.is_none_or(|seconds| (1..=86_400).contains(&seconds));
    if !is_named || !affinity {
        return Some(format!("{} {:?}", service.key, service.affinity_seconds));
    }
    for port in &service.ports {
        let named = port.name.is_empty() || is_name(&port.name);
        let frontends = port.frontends.iter().all(|frontend| match frontend {
            Frontend::ClusterIp(ip) | Frontend::LoadBalancerIp(ip) => {
                Family::of(*ip) == family && is_host(*ip)
            }
            Frontend::ExternalIp(ip) => Family::of(*ip) == family && is_reachable(*ip),
            Frontend::NodePort(number) => *number != 0,
        });
        let endpoints = port.cluster.iter().chain(&port.local).all(|backend| {
            let ip: IpAddr = backend.endpoint.address;
            Family::of(ip) == family && is_reachable(ip) && backend.endpoint.port != 0
        });
        if !named || port.port == 0 || !frontends || !endpoints {
            return Some(format!("{port:?}"));
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ROUNDS, ..ProptestConfig::default() })]

    #[test]
    fn a_mutated_object_is_left_out_where_it_is_wrong_and_harms_no_other(
        which in 0usize..4,
        mutations in proptest::collection::vec((any::<Index>(), mutation()), 1..4),
    ) {
        let (kind, mut object) = OBJECTS[which].clone();
        for (at, mutation) in &mutations {
            mutate(&mut object, *at, mutation);
        }
        let mut faults = Vec::new();
        let event = value(kind, &object, NODE, &mut faults);
        let counters = Arc::new(Counters::default());
        let fast = Decoder::new(kind, NODE, counters.clone()).item(object.to_string().as_bytes());
        prop_assert_eq!(&fast, &event, "the fast and the slow way of decoding must agree");
        prop_assert_eq!(counters.malformed(), u64::from(!faults.is_empty()));
        let fields: BTreeSet<_> = faults.iter().map(|fault| &fault.field).collect();
        prop_assert_eq!(fields.len(), faults.len(), "one warning for each field: {:?}", faults);
        if event.is_none() && kind != Kind::Node {
            prop_assert!(!faults.is_empty(), "skipped without a word");
        }

        let healthy_key = ObjectKey::new("web", "healthy");
        let mut world = tracker();
        HEALTHY.iter().cloned().for_each(|event| world.apply(event));
        let before = FAMILIES.map(|family| world.resolve(&healthy_key, family));
        let others = EVENTS.iter().enumerate().filter(|(at, _)| *at != which).map(|(_, event)| event.clone());
        others.chain(event).for_each(|event| world.apply(event));
        for (family, before) in FAMILIES.into_iter().zip(before) {
            prop_assert!(before.is_some());
            prop_assert_eq!(&world.resolve(&healthy_key, family), &before);
            for key in world.service_keys() {
                let wrong = world.resolve(key, family).and_then(|service| impossible(&service, family));
                prop_assert_eq!(wrong, None);
            }
        }
    }
}
