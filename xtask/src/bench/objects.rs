//! The cluster that the driver pretends to have, as the JSON that an API server would send.
//!
//! Objects carry what real ones carry (owners, labels, managed fields), because decoding is part of what is measured.
//! Addresses are of the benchmarking network 198.18.0.0/15 (RFC 2544), which has room for large clusters; nothing is
//! ever sent to them.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};

/// The node under test; 1 % of the endpoints are on it.
pub(super) const NODE: &str = "bench-0";
/// Where cluster IPs are.
pub(super) const SERVICE_CIDR: &str = "198.18.0.0/16";
/// Where pods are.
pub(super) const POD_CIDR: &str = "198.19.0.0/16";
/// The node's address.
pub(super) const NODE_ADDRESS: &str = "192.0.2.10";
/// More services than cluster IPs cannot be.
pub(super) const MOST_SERVICES: usize = 60_000;
/// The most endpoints that the slice controller puts into one slice.
pub(super) const MOST_ENDPOINTS: usize = 100;

const CLUSTER_IPS: u32 = 0xc612_0000;
const LOAD_BALANCERS: u32 = 0xcb00_7100; // 203.0.113.0/24
const PODS: u32 = 0xc613_0000;
/// Pod addresses that are used from the start; those above are for replacements.
const FIRST_PODS: usize = 62_000;
const REPLACEMENTS: usize = 3_000;
const FIRST_PORT: usize = 8080;
const NODES: usize = 100;

/// The kinds of objects that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Service,
    Slice,
    Node,
    ServiceCidr,
}

impl Kind {
    /// All of them, in the order of their collections.
    pub(super) const ALL: [Self; 4] = [Self::Service, Self::Slice, Self::Node, Self::ServiceCidr];

    /// `apiVersion` and `kind`.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Service => ("v1", "Service"),
            Self::Slice => ("discovery.k8s.io/v1", "EndpointSlice"),
            Self::Node => ("v1", "Node"),
            Self::ServiceCidr => ("networking.k8s.io/v1", "ServiceCIDR"),
        }
    }

    /// The path of the collection.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Service => "/api/v1/services",
            Self::Slice => "/apis/discovery.k8s.io/v1/endpointslices",
            Self::Node => "/api/v1/nodes",
            Self::ServiceCidr => "/apis/networking.k8s.io/v1/servicecidrs",
        }
    }
}

/// What distinguishes an object from what it was at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// `metadata.resourceVersion`.
    pub(super) version: u64,
    /// Not zero: the first endpoint has been replaced, by one that this number tells from others.
    pub(super) replacement: usize,
    /// How often an annotation has been changed.
    pub(super) annotation: usize,
}

/// What a service has that most have not. Of twenty services one is of each kind, the other fourteen are plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trait {
    Plain,
    Affinity,
    LoadBalancer,
    SourceRanges,
    LocalLoadBalancer,
    LocalClusterIp,
    Udp,
}

fn trait_of(number: usize) -> Trait {
    match number % 20 {
        0 => Trait::Affinity,
        1 => Trait::LoadBalancer,
        2 => Trait::SourceRanges,
        3 => Trait::LocalLoadBalancer,
        4 => Trait::LocalClusterIp,
        5 => Trait::Udp,
        _ => Trait::Plain,
    }
}

fn has_load_balancer(number: usize) -> bool {
    matches!(trait_of(number), Trait::LoadBalancer | Trait::SourceRanges | Trait::LocalLoadBalancer)
}

fn protocol(number: usize) -> &'static str {
    if trait_of(number) == Trait::Udp { "UDP" } else { "TCP" }
}

/// How large the cluster is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cluster {
    pub(super) services: usize,
    pub(super) endpoints: usize,
}

impl Cluster {
    /// Writes object `number` of a kind.
    pub(super) fn write(&self, out: &mut String, kind: Kind, number: usize, state: State) {
        // writing to a String cannot fail
        let _ = match kind {
            Kind::Service => write_service(out, number, state),
            Kind::Slice => self.write_slice(out, number, state),
            Kind::Node => write_node(out, state),
            Kind::ServiceCidr => write_service_cidr(out, state),
        };
    }

    /// How many addresses its services have.
    pub(super) fn frontends(self) -> usize {
        self.services + (0..self.services).filter(|number| has_load_balancer(*number)).count()
    }

    /// The numbers of its UDP services.
    pub(super) fn udp_services(self) -> impl Iterator<Item = usize> {
        (0..self.services).filter(|number| trait_of(*number) == Trait::Udp)
    }

    /// Whether the replacement of its first endpoint is written: with internal policy Local only if that is on the node.
    pub(super) fn is_written(self, number: usize) -> bool {
        trait_of(number) != Trait::LocalClusterIp || self.node(number, 0) == 0
    }

    /// The node of an endpoint.
    fn node(self, number: usize, index: usize) -> usize {
        (number * self.endpoints + index) % NODES
    }

    /// The cluster IP and port of a service.
    pub(super) fn frontend(number: usize) -> SocketAddr {
        (at(CLUSTER_IPS, number + 10), service_port(number)).into()
    }

    /// The endpoint that the first change of a service replaces.
    pub(super) fn first_endpoint(self, number: usize) -> SocketAddr {
        let port = u16::try_from(self.port(number)).unwrap_or(u16::MAX);
        (self.address(number, 0, 0), port).into()
    }

    fn write_slice(&self, out: &mut String, number: usize, state: State) -> std::fmt::Result {
        let (namespace, name) = names(number);
        let service_uid = uid(0x51, number);
        write!(
            out,
            r#"{{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{{"name":"{name}-8kq7x","generateName":"{name}-","namespace":"{namespace}","uid":"{}","resourceVersion":"{}","generation":{},"creationTimestamp":"2026-01-15T08:12:33Z","labels":{{"app.kubernetes.io/managed-by":"Helm","app.kubernetes.io/name":"{name}","endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io","kubernetes.io/service-name":"{name}"}},"annotations":{{"endpoints.kubernetes.io/last-change-trigger-time":"2026-01-15T08:{:02}:{:02}Z"}},"ownerReferences":[{{"apiVersion":"v1","kind":"Service","name":"{name}","uid":"{service_uid}","controller":true,"blockOwnerDeletion":true}}],"managedFields":[{{"manager":"kube-controller-manager","operation":"Update","apiVersion":"discovery.k8s.io/v1","time":"2026-01-15T08:12:34Z","fieldsType":"FieldsV1","fieldsV1":{{"f:addressType":{{}},"f:endpoints":{{}},"f:metadata":{{"f:annotations":{{".":{{}},"f:endpoints.kubernetes.io/last-change-trigger-time":{{}}}},"f:generateName":{{}},"f:labels":{{".":{{}},"f:app.kubernetes.io/managed-by":{{}},"f:app.kubernetes.io/name":{{}},"f:endpointslice.kubernetes.io/managed-by":{{}},"f:kubernetes.io/service-name":{{}}}},"f:ownerReferences":{{".":{{}},"k:{{\"uid\":\"{service_uid}\"}}":{{}}}}}},"f:ports":{{}}}}}}]}},"addressType":"IPv4","endpoints":["#,
            uid(0x52, number),
            state.version,
            1 + state.replacement,
            state.annotation / 60 % 60,
            state.annotation % 60,
        )?;
        for index in 0..self.endpoints {
            let comma = if index == 0 { "" } else { "," };
            let pod = number * self.endpoints + index;
            let node = self.node(number, index);
            let again = if index == 0 { state.replacement } else { 0 };
            write!(
                out,
                r#"{comma}{{"addresses":["{}"],"conditions":{{"ready":true,"serving":true,"terminating":false}},"targetRef":{{"kind":"Pod","namespace":"{namespace}","name":"{name}-6d9c7b58f4-{pod:05x}{again:03x}","uid":"{}"}},"nodeName":"bench-{node}","zone":"zone-{}"}}"#,
                self.address(number, index, again),
                uid(0x53 + again, pod),
                node % 3,
            )?;
        }
        write!(
            out,
            r#"],"ports":[{{"name":"http","port":{},"protocol":"{}"}}]}}"#,
            self.port(number),
            protocol(number)
        )
    }

    /// How many services have pods on the same port.
    fn block(&self) -> usize {
        FIRST_PODS / self.endpoints.max(1)
    }

    /// Address and port together are unique among the first endpoints.
    fn address(&self, number: usize, index: usize, replacement: usize) -> Ipv4Addr {
        let offset = match replacement {
            0 => (number % self.block()) * self.endpoints + index,
            _ => FIRST_PODS + replacement % REPLACEMENTS,
        };
        at(PODS, offset)
    }

    fn port(&self, number: usize) -> usize {
        FIRST_PORT + number / self.block()
    }
}

fn at(base: u32, offset: usize) -> Ipv4Addr {
    // offsets are within a network of 65,536
    Ipv4Addr::from(base + u32::try_from(offset & 0xffff).unwrap_or_default())
}

/// Namespace and name of service `number`.
fn names(number: usize) -> (String, String) {
    (format!("team-{:02}", number % 100), format!("checkout-{number:05}"))
}

fn uid(kind: usize, number: usize) -> String {
    format!("{:08x}-{kind:04x}-4b3c-8d7e-{number:012x}", number.wrapping_mul(2_654_435_761) & 0xffff_ffff)
}

/// Load balancers share 256 addresses, so their services differ in their ports.
fn service_port(number: usize) -> u16 {
    let port = if has_load_balancer(number) { 80 + number / 256 } else { 80 };
    u16::try_from(port).unwrap_or(u16::MAX)
}

fn load_balancer_address(number: usize) -> Ipv4Addr {
    at(LOAD_BALANCERS, number % 256)
}

fn write_service(out: &mut String, number: usize, state: State) -> std::fmt::Result {
    let (namespace, name) = names(number);
    let (address, port, protocol) = (at(CLUSTER_IPS, number + 10), service_port(number), protocol(number));
    let plain = r#""type":"ClusterIP","sessionAffinity":"None","internalTrafficPolicy":"Cluster"},"status":{"loadBalancer":{}}"#;
    let balanced = |more: &str| {
        format!(
            r#""type":"LoadBalancer","allocateLoadBalancerNodePorts":false,"sessionAffinity":"None","internalTrafficPolicy":"Cluster",{more}}},"status":{{"loadBalancer":{{"ingress":[{{"ip":"{}","ipMode":"VIP"}}]}}}}"#,
            load_balancer_address(number)
        )
    };
    let special = match trait_of(number) {
        Trait::Plain | Trait::Udp => plain.to_owned(),
        Trait::Affinity => plain.replace(
            r#""sessionAffinity":"None""#,
            r#""sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":10800}}"#,
        ),
        Trait::LocalClusterIp => plain.replace(r#"Policy":"Cluster""#, r#"Policy":"Local""#),
        Trait::LoadBalancer => balanced(r#""externalTrafficPolicy":"Cluster""#),
        Trait::SourceRanges => balanced(
            r#""externalTrafficPolicy":"Cluster","loadBalancerSourceRanges":["192.0.2.0/24","198.51.100.0/25"]"#,
        ),
        Trait::LocalLoadBalancer => balanced(r#""externalTrafficPolicy":"Local""#),
    };
    write!(
        out,
        r#"{{"kind":"Service","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"{namespace}","uid":"{}","resourceVersion":"{}","creationTimestamp":"2026-01-15T08:12:33Z","labels":{{"app.kubernetes.io/instance":"checkout","app.kubernetes.io/managed-by":"Helm","app.kubernetes.io/name":"{name}","helm.sh/chart":"checkout-4.2.1"}},"annotations":{{"meta.helm.sh/release-name":"checkout","meta.helm.sh/release-namespace":"{namespace}","prometheus.io/scrape":"{}"}},"managedFields":[{{"manager":"helm","operation":"Update","apiVersion":"v1","time":"2026-01-15T08:12:33Z","fieldsType":"FieldsV1","fieldsV1":{{"f:metadata":{{"f:annotations":{{".":{{}},"f:meta.helm.sh/release-name":{{}},"f:meta.helm.sh/release-namespace":{{}},"f:prometheus.io/scrape":{{}}}},"f:labels":{{".":{{}},"f:app.kubernetes.io/instance":{{}},"f:app.kubernetes.io/managed-by":{{}},"f:app.kubernetes.io/name":{{}},"f:helm.sh/chart":{{}}}}}},"f:spec":{{"f:internalTrafficPolicy":{{}},"f:ports":{{".":{{}},"k:{{\"port\":80,\"protocol\":\"TCP\"}}":{{".":{{}},"f:name":{{}},"f:port":{{}},"f:protocol":{{}},"f:targetPort":{{}}}}}},"f:selector":{{}},"f:sessionAffinity":{{}},"f:type":{{}}}}}}}}]}},"spec":{{"ports":[{{"name":"http","protocol":"{protocol}","port":{port},"targetPort":"http"}}],"selector":{{"app.kubernetes.io/instance":"checkout","app.kubernetes.io/name":"{name}"}},"clusterIP":"{address}","clusterIPs":["{address}"],"ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack",{special}}}"#,
        uid(0x51, number),
        state.version,
        state.annotation.is_multiple_of(2),
    )
}

fn write_node(out: &mut String, state: State) -> std::fmt::Result {
    write!(
        out,
        r#"{{"kind":"Node","apiVersion":"v1","metadata":{{"name":"{NODE}","uid":"{}","resourceVersion":"{}","creationTimestamp":"2026-01-10T10:00:00Z","labels":{{"kubernetes.io/arch":"amd64","kubernetes.io/hostname":"{NODE}","kubernetes.io/os":"linux","topology.kubernetes.io/zone":"zone-0"}}}},"spec":{{"podCIDR":"{POD_CIDR}","podCIDRs":["{POD_CIDR}"]}},"status":{{"addresses":[{{"type":"InternalIP","address":"{NODE_ADDRESS}"}},{{"type":"Hostname","address":"{NODE}"}}]}}}}"#,
        uid(0x54, 0),
        state.version,
    )
}

fn write_service_cidr(out: &mut String, state: State) -> std::fmt::Result {
    write!(
        out,
        r#"{{"kind":"ServiceCIDR","apiVersion":"networking.k8s.io/v1","metadata":{{"name":"kubernetes","uid":"{}","resourceVersion":"{}","creationTimestamp":"2026-01-10T10:00:00Z"}},"spec":{{"cidrs":["{SERVICE_CIDR}"]}},"status":{{"conditions":[{{"type":"Ready","status":"True","lastTransitionTime":"2026-01-10T10:00:00Z","reason":"","message":"Kubernetes Service CIDR is ready"}}]}}}}"#,
        uid(0x55, 0),
        state.version,
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    fn object(cluster: Cluster, kind: Kind, number: usize, state: State) -> Value {
        let mut text = String::new();
        cluster.write(&mut text, kind, number, state);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn every_kind_is_written_as_json_with_its_version() {
        let cluster = Cluster { services: 3, endpoints: 2 };
        for kind in Kind::ALL {
            let state = State { version: 77, ..State::default() };
            let object = object(cluster, kind, 0, state);
            assert_eq!(
                (object["apiVersion"].as_str(), object["kind"].as_str()),
                (Some(kind.names().0), Some(kind.names().1))
            );
            assert_eq!(object["metadata"]["resourceVersion"], "77");
        }
    }

    #[test]
    fn a_twentieth_of_the_services_has_each_of_the_special_traits() {
        let cluster = Cluster { services: 100, endpoints: 1 };
        let all: Vec<_> =
            (0..100).map(|number| object(cluster, Kind::Service, number, State::default())).collect();
        let count =
            |field: &str, value: &str| all.iter().filter(|service| service["spec"][field] == value).count();
        assert_eq!(count("sessionAffinity", "ClientIP"), 5);
        assert_eq!(count("type", "LoadBalancer"), 15);
        assert_eq!(count("externalTrafficPolicy", "Local"), 5);
        assert_eq!(count("internalTrafficPolicy", "Local"), 5);
        assert_eq!(all.iter().filter(|service| service["spec"]["ports"][0]["protocol"] == "UDP").count(), 5);
        assert_eq!(
            all.iter().filter(|service| service["spec"]["loadBalancerSourceRanges"].is_array()).count(),
            5
        );
        assert_eq!(cluster.frontends(), 115);
    }

    #[test]
    fn no_two_endpoints_of_a_large_cluster_share_address_and_port() {
        let cluster = Cluster { services: 30_000, endpoints: 10 };
        let mut seen = BTreeSet::new();
        for number in 0..cluster.services {
            for index in 0..cluster.endpoints {
                assert!(
                    seen.insert((cluster.address(number, index, 0), cluster.port(number))),
                    "{number} {index}"
                );
            }
        }
    }

    #[test]
    fn a_replacement_changes_the_first_endpoint_only_and_an_annotation_none() {
        let cluster = Cluster { services: 1, endpoints: 2 };
        let before = object(cluster, Kind::Slice, 0, State::default());
        let replaced = object(cluster, Kind::Slice, 0, State { replacement: 5, ..State::default() });
        assert_ne!(before["endpoints"][0], replaced["endpoints"][0]);
        assert_eq!(before["endpoints"][1], replaced["endpoints"][1]);
        let annotated = object(cluster, Kind::Slice, 0, State { annotation: 1, ..State::default() });
        assert_ne!(before["metadata"]["annotations"], annotated["metadata"]["annotations"]);
        assert_eq!(before["endpoints"], annotated["endpoints"]);
    }
}
