//! Services.

use std::net::IpAddr;
use std::num::NonZeroU16;

use model::{Event, Family, Kind, ObjectKey, Policy, Service, ServicePort, ServiceType};

use super::{Object, expect_key, key, nets, port, port_name, protocol, seconds};
use crate::address;
use crate::complaints::Fault;
use crate::wire::{self, Meta, ServiceSpec, Text, text};

/// Seconds of ClientIP affinity when unset, and the most there can be: the API server's values.
const AFFINITY_DEFAULT: u32 = 10_800;
const AFFINITY_MAX: u32 = 86_400;

/// Where a load balancer's addresses are.
const INGRESS: &str = "status.loadBalancer.ingress";

impl<'a> Object<'a> for wire::Service<'a> {
    const KIND: &'static str = "Service";

    fn meta(&self) -> &Meta<'a> {
        &self.metadata
    }

    fn event(&self, _own_node: &str, faults: &mut Vec<Fault>) -> Option<Event> {
        let key = expect_key(Kind::Service, &self.metadata, faults)?;
        Some(match served(self, &key, faults) {
            Some(service) => Event::Service(service),
            None => Event::ServiceDeleted(key),
        })
    }

    fn removal(meta: &Meta<'_>, _own_node: &str) -> Option<Event> {
        key(meta).map(Event::ServiceDeleted)
    }
}

/// The service as a proxy serves it; `None` for one of another proxy, without a cluster IP, or an `ExternalName`.
fn served(raw: &wire::Service<'_>, key: &ObjectKey, faults: &mut Vec<Fault>) -> Option<Service> {
    let spec = raw.spec.as_ref()?;
    if raw.metadata.labels.as_ref().is_some_and(|labels| labels.service_proxy_name.is_some()) {
        return None;
    }
    let kind = service_type(spec, faults)?;
    let cluster_ips = cluster_ips(spec, faults);
    if cluster_ips.is_empty() {
        return None;
    }
    let external_policy = policy(spec.external_traffic_policy.as_ref(), "spec.externalTrafficPolicy", faults);
    let health_check_node_port = (kind == ServiceType::LoadBalancer && external_policy == Policy::Local)
        .then(|| health_check_node_port(spec, faults))
        .flatten();
    let external_ips = hosts(spec.external_ips.as_deref(), address::is_reachable, "spec.externalIPs", faults);
    let load_balancer_ips = load_balancer_ips(raw, faults);
    Some(Service {
        key: key.clone(),
        created: seconds(raw.metadata.creation_timestamp.as_ref()),
        kind,
        ports: ports(spec, faults),
        external_ips: of_families(external_ips, &cluster_ips, "spec.externalIPs", faults),
        load_balancer_ips: of_families(load_balancer_ips, &cluster_ips, INGRESS, faults),
        cluster_ips,
        source_ranges: nets(
            spec.load_balancer_source_ranges.as_deref(),
            "spec.loadBalancerSourceRanges",
            faults,
        ),
        affinity_seconds: affinity(spec, faults),
        internal_policy: policy(spec.internal_traffic_policy.as_ref(), "spec.internalTrafficPolicy", faults),
        external_policy,
        health_check_node_port,
    })
}

fn service_type(spec: &ServiceSpec<'_>, faults: &mut Vec<Fault>) -> Option<ServiceType> {
    match text(spec.kind.as_ref()) {
        "" | "ClusterIP" => Some(ServiceType::ClusterIp),
        "NodePort" => Some(ServiceType::NodePort),
        "LoadBalancer" => Some(ServiceType::LoadBalancer),
        "ExternalName" => None,
        other => {
            faults.push(Fault::new(
                "spec.type",
                format!("{other:?} is no type of service; the service is not served"),
            ));
            None
        }
    }
}

/// The first usable address of each family. Empty for a headless service.
fn cluster_ips(spec: &ServiceSpec<'_>, faults: &mut Vec<Fault>) -> Vec<IpAddr> {
    let one = spec.cluster_ip.as_ref();
    if text(one) == "None" {
        return Vec::new();
    }
    let (texts, field) = match spec.cluster_ips.as_deref() {
        Some(texts) if !texts.is_empty() => (texts, "spec.clusterIPs"),
        _ => (one.map(std::slice::from_ref).unwrap_or_default(), "spec.clusterIP"),
    };
    if texts.iter().any(|text| &**text == "None") {
        return Vec::new();
    }
    let mut found: Vec<IpAddr> = Vec::new();
    for address in hosts(Some(texts), address::is_host, field, faults) {
        if found.iter().any(|known| Family::of(*known) == Family::of(address)) {
            faults.push(Fault::new(field, format!("{address} is a second address of its family; left out")));
        } else {
            found.push(address);
        }
    }
    found
}

/// Host addresses, without those that are none. Empty texts are unset fields.
fn hosts(
    texts: Option<&[Text<'_>]>,
    is_usable: fn(IpAddr) -> bool,
    field: &str,
    faults: &mut Vec<Fault>,
) -> Vec<IpAddr> {
    let mut hosts = Vec::new();
    for (index, text) in texts.unwrap_or_default().iter().enumerate().filter(|(_, text)| !text.is_empty()) {
        match address::parse_ip(text).filter(|address| is_usable(*address)) {
            Some(address) if hosts.contains(&address) => {}
            Some(address) => hosts.push(address),
            None => faults.push(Fault::new(
                format!("{field}[{index}]"),
                format!("{:?} is no address of a host; left out", &**text),
            )),
        }
    }
    hosts
}

/// The addresses of those families in which the service has a cluster IP.
fn of_families(
    addresses: Vec<IpAddr>,
    cluster_ips: &[IpAddr],
    field: &str,
    faults: &mut Vec<Fault>,
) -> Vec<IpAddr> {
    let is_served = |address: &IpAddr| cluster_ips.iter().any(|own| Family::of(*own) == Family::of(*address));
    let (served, others): (Vec<_>, Vec<_>) = addresses.into_iter().partition(is_served);
    if !others.is_empty() {
        let others: Vec<_> = others.iter().map(ToString::to_string).collect();
        let problem = "of a family in which the service has no cluster IP; left out";
        faults.push(Fault::new(field, format!("{} {problem}", others.join(", "))));
    }
    served
}

/// Ingress addresses that the proxy has to serve: `ipMode` unset or `VIP` (KEP-1860).
fn load_balancer_ips(raw: &wire::Service<'_>, faults: &mut Vec<Fault>) -> Vec<IpAddr> {
    let balancer = raw.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default();
    let vips: Vec<Text<'_>> = ingress
        .iter()
        .filter(|ingress| matches!(text(ingress.ip_mode.as_ref()), "" | "VIP"))
        .map(|ingress| ingress.ip.clone().unwrap_or_default())
        .collect();
    hosts(Some(&vips), address::is_host, INGRESS, faults)
}

fn ports(spec: &ServiceSpec<'_>, faults: &mut Vec<Fault>) -> Vec<ServicePort> {
    let raw = spec.ports.as_deref().unwrap_or_default();
    let mut ports: Vec<ServicePort> = Vec::with_capacity(raw.len());
    for (index, raw) in raw.iter().enumerate() {
        let Some(found) = service_port(raw, index, faults) else { continue };
        let taken = |known: &ServicePort| {
            known.protocol == found.protocol && (known.port == found.port || known.name == found.name)
        };
        if ports.iter().any(taken) {
            let problem = "name or number is that of an earlier port of the same protocol; left out";
            faults.push(Fault::new(format!("spec.ports[{index}]"), problem));
        } else {
            ports.push(found);
        }
    }
    ports
}

fn service_port(raw: &wire::ServicePort<'_>, index: usize, faults: &mut Vec<Fault>) -> Option<ServicePort> {
    let name = port_name(raw.name.as_ref(), || format!("spec.ports[{index}].name"), faults)?;
    let protocol = protocol(raw.protocol.as_ref(), || format!("spec.ports[{index}].protocol"), faults)?;
    let number = port(raw.port.unwrap_or(0), || format!("spec.ports[{index}].port"), faults)?;
    let node_port = match raw.node_port {
        None | Some(0) => None,
        Some(number) => {
            port(number, || format!("spec.ports[{index}].nodePort"), faults).and_then(NonZeroU16::new)
        }
    };
    Some(ServicePort { name: name.into(), protocol, port: number, node_port })
}

fn health_check_node_port(spec: &ServiceSpec<'_>, faults: &mut Vec<Fault>) -> Option<NonZeroU16> {
    let field = || "spec.healthCheckNodePort".to_owned();
    port(spec.health_check_node_port.unwrap_or(0), field, faults).and_then(NonZeroU16::new)
}

fn policy(value: Option<&Text<'_>>, field: &str, faults: &mut Vec<Fault>) -> Policy {
    match text(value) {
        "" | "Cluster" => Policy::Cluster,
        "Local" => Policy::Local,
        other => {
            faults
                .push(Fault::new(field, format!("{other:?} is neither Cluster nor Local; Cluster is used")));
            Policy::Cluster
        }
    }
}

fn affinity(spec: &ServiceSpec<'_>, faults: &mut Vec<Fault>) -> Option<u32> {
    match text(spec.session_affinity.as_ref()) {
        "" | "None" => return None,
        "ClientIP" => {}
        other => {
            let problem = format!("{other:?} is neither None nor ClientIP; None is used");
            faults.push(Fault::new("spec.sessionAffinity", problem));
            return None;
        }
    }
    let client_ip = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let Some(given) = client_ip.and_then(|client_ip| client_ip.timeout_seconds) else {
        return Some(AFFINITY_DEFAULT);
    };
    let valid = u32::try_from(given).ok().filter(|seconds| (1..=AFFINITY_MAX).contains(seconds));
    if valid.is_none() {
        faults.push(Fault::new(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            format!("{given} is not 1 to {AFFINITY_MAX} seconds; {AFFINITY_DEFAULT} is used"),
        ));
    }
    valid.or(Some(AFFINITY_DEFAULT))
}
