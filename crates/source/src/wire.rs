//! The JSON of Kubernetes objects, cut down to the fields a node proxy reads.
//!
//! Strings are borrowed from the input where it has no escapes. Every list may be null and every field may be absent,
//! as Go writes them. Numbers are wide, so that one that is out of range spoils its own entry only.

use std::borrow::Cow;

use serde::Deserialize;

/// A string borrowed from the input where possible.
#[derive(Deserialize, Debug, Default, Clone, PartialEq, Eq)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// The text, empty when absent.
pub(crate) fn text<'a>(field: Option<&'a Text<'_>>) -> &'a str {
    field.map_or("", |text| text)
}

/// `metadata`.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "'de: 'a"))]
pub(crate) struct Meta<'a> {
    pub(crate) name: Option<Text<'a>>,
    pub(crate) namespace: Option<Text<'a>>,
    pub(crate) uid: Option<Text<'a>>,
    pub(crate) resource_version: Option<Text<'a>>,
    pub(crate) creation_timestamp: Option<Text<'a>>,
    pub(crate) deletion_timestamp: Option<Text<'a>>,
    pub(crate) labels: Option<Labels<'a>>,
    pub(crate) annotations: Option<Annotations<'a>>,
}

/// The labels that are read.
#[derive(Deserialize, Debug, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(crate) struct Labels<'a> {
    #[serde(rename = "kubernetes.io/service-name")]
    pub(crate) service_name: Option<Text<'a>>,
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub(crate) service_proxy_name: Option<Text<'a>>,
    #[serde(rename = "service.kubernetes.io/headless")]
    pub(crate) headless: Option<Text<'a>>,
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub(crate) zone: Option<Text<'a>>,
}

/// The annotations that are read.
#[derive(Deserialize, Debug, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(crate) struct Annotations<'a> {
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub(crate) trigger_time: Option<Text<'a>>,
    #[serde(rename = "k8s.io/initial-events-end")]
    pub(crate) initial_events_end: Option<Text<'a>>,
}

/// A Service.
#[derive(Deserialize, Debug, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(crate) struct Service<'a> {
    pub(crate) metadata: Meta<'a>,
    pub(crate) spec: Option<ServiceSpec<'a>>,
    pub(crate) status: Option<ServiceStatus<'a>>,
}

/// `spec` of a Service.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "'de: 'a"))]
pub(crate) struct ServiceSpec<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: Option<Text<'a>>,
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: Option<Text<'a>>,
    #[serde(rename = "clusterIPs")]
    pub(crate) cluster_ips: Option<Vec<Text<'a>>>,
    #[serde(rename = "externalIPs")]
    pub(crate) external_ips: Option<Vec<Text<'a>>>,
    pub(crate) ports: Option<Vec<ServicePort<'a>>>,
    pub(crate) session_affinity: Option<Text<'a>>,
    pub(crate) session_affinity_config: Option<AffinityConfig>,
    pub(crate) load_balancer_source_ranges: Option<Vec<Text<'a>>>,
    pub(crate) internal_traffic_policy: Option<Text<'a>>,
    pub(crate) external_traffic_policy: Option<Text<'a>>,
    pub(crate) health_check_node_port: Option<i64>,
}

/// `spec.sessionAffinityConfig`.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(crate) struct AffinityConfig {
    #[serde(rename = "clientIP")]
    pub(crate) client_ip: Option<ClientIp>,
}

/// `spec.sessionAffinityConfig.clientIP`.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClientIp {
    pub(crate) timeout_seconds: Option<i64>,
}

/// One of `spec.ports` of a Service.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "'de: 'a"))]
pub(crate) struct ServicePort<'a> {
    pub(crate) name: Option<Text<'a>>,
    pub(crate) protocol: Option<Text<'a>>,
    pub(crate) port: Option<i64>,
    pub(crate) node_port: Option<i64>,
}

/// `status` of a Service.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "'de: 'a"))]
pub(crate) struct ServiceStatus<'a> {
    pub(crate) load_balancer: Option<LoadBalancer<'a>>,
}

/// `status.loadBalancer`.
#[derive(Deserialize, Debug, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(crate) struct LoadBalancer<'a> {
    pub(crate) ingress: Option<Vec<Ingress<'a>>>,
}

/// One of `status.loadBalancer.ingress`.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "'de: 'a"))]
pub(crate) struct Ingress<'a> {
    pub(crate) ip: Option<Text<'a>>,
    pub(crate) ip_mode: Option<Text<'a>>,
}

/// An EndpointSlice.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "'de: 'a"))]
pub(crate) struct Slice<'a> {
    pub(crate) metadata: Meta<'a>,
    pub(crate) address_type: Option<Text<'a>>,
    pub(crate) endpoints: Option<Vec<Endpoint<'a>>>,
    pub(crate) ports: Option<Vec<SlicePort<'a>>>,
}

/// One of `ports` of a slice.
#[derive(Deserialize, Debug, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(crate) struct SlicePort<'a> {
    pub(crate) name: Option<Text<'a>>,
    pub(crate) protocol: Option<Text<'a>>,
    pub(crate) port: Option<i64>,
}

/// One of `endpoints` of a slice.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "'de: 'a"))]
pub(crate) struct Endpoint<'a> {
    pub(crate) addresses: Option<Vec<Text<'a>>>,
    pub(crate) conditions: Option<Conditions>,
    pub(crate) node_name: Option<Text<'a>>,
    pub(crate) hints: Option<Hints<'a>>,
}

/// `conditions` of an endpoint.
#[derive(Deserialize, Debug, Default, Clone, Copy)]
#[serde(default)]
pub(crate) struct Conditions {
    pub(crate) ready: Option<bool>,
    pub(crate) serving: Option<bool>,
    pub(crate) terminating: Option<bool>,
}

/// `hints` of an endpoint.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "'de: 'a"))]
pub(crate) struct Hints<'a> {
    pub(crate) for_zones: Option<Vec<Named<'a>>>,
    pub(crate) for_nodes: Option<Vec<Named<'a>>>,
}

/// An object with a name and nothing else that is read.
#[derive(Deserialize, Debug, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(crate) struct Named<'a> {
    pub(crate) name: Option<Text<'a>>,
}

/// A Node.
#[derive(Deserialize, Debug, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(crate) struct Node<'a> {
    pub(crate) metadata: Meta<'a>,
    pub(crate) spec: Option<NodeSpec<'a>>,
    pub(crate) status: Option<NodeStatus<'a>>,
}

/// `spec` of a Node.
#[derive(Deserialize, Debug, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(crate) struct NodeSpec<'a> {
    #[serde(rename = "podCIDR")]
    pub(crate) pod_cidr: Option<Text<'a>>,
    #[serde(rename = "podCIDRs")]
    pub(crate) pod_cidrs: Option<Vec<Text<'a>>>,
    pub(crate) taints: Option<Vec<Taint<'a>>>,
}

/// One of `spec.taints`.
#[derive(Deserialize, Debug, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(crate) struct Taint<'a> {
    pub(crate) key: Option<Text<'a>>,
}

/// `status` of a Node.
#[derive(Deserialize, Debug, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(crate) struct NodeStatus<'a> {
    pub(crate) addresses: Option<Vec<NodeAddress<'a>>>,
}

/// One of `status.addresses`.
#[derive(Deserialize, Debug, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(crate) struct NodeAddress<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: Option<Text<'a>>,
    pub(crate) address: Option<Text<'a>>,
}

/// A ServiceCIDR.
#[derive(Deserialize, Debug, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(crate) struct ServiceCidr<'a> {
    pub(crate) metadata: Meta<'a>,
    pub(crate) spec: Option<ServiceCidrSpec<'a>>,
}

/// `spec` of a ServiceCIDR.
#[derive(Deserialize, Debug, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(crate) struct ServiceCidrSpec<'a> {
    pub(crate) cidrs: Option<Vec<Text<'a>>>,
}

/// One line of a watch.
#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>, 'de: 'a"))]
pub(crate) struct Line<'a, T> {
    #[serde(rename = "type")]
    pub(crate) kind: Text<'a>,
    pub(crate) object: T,
}

/// A `Status`: what the API server answers in place of what was asked for.
#[derive(Deserialize, Debug, Default, Clone)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) code: u16,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) details: Option<StatusDetails>,
}

/// `details` of a `Status`.
#[derive(Deserialize, Debug, Default, Clone)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StatusDetails {
    pub(crate) retry_after_seconds: Option<u64>,
}

/// A list without its items.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(crate) struct Envelope {
    pub(crate) metadata: ListMeta,
}

/// `metadata` of a list.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ListMeta {
    pub(crate) resource_version: String,
    #[serde(rename = "continue")]
    pub(crate) next: Option<String>,
}
