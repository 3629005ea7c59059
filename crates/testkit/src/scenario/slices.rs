//! From the short forms of a scenario to whole Kubernetes objects.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Result, anyhow};
use lab::Lab;
use serde_json::{Value, json};

use super::format::Slice;
use crate::objects::Identity;

/// The namespace of objects that name none.
const NAMESPACE: &str = "lab";

/// The objects as they are at this point of a scenario.
pub struct World<'a> {
    lab: &'a Lab,
    services: BTreeMap<String, Value>,
}

impl<'a> World<'a> {
    /// No objects yet; the slices' pods are those of `lab`.
    pub fn new(lab: &'a Lab) -> Self {
        Self { lab, services: BTreeMap::new() }
    }

    /// Fills in what an API server would, and remembers services for [`World::expand`].
    pub fn complete(&mut self, mut object: Value) -> Result<Value> {
        if matches!(object["kind"].as_str(), Some("Service" | "EndpointSlice"))
            && object.pointer("/metadata/namespace").is_none()
        {
            object["metadata"]["namespace"] = NAMESPACE.into();
        }
        if object["kind"] == "Service" {
            complete_service(&mut object["spec"]);
            self.services.insert(Identity::of(&object)?.name, object.clone());
        }
        Ok(object)
    }

    /// `Kind/name` as written in a scenario.
    pub(super) fn identity(text: &str) -> Result<Identity> {
        let (kind, name) = text.split_once('/').ok_or_else(|| anyhow!("{text}: write Kind/name"))?;
        let namespace = if matches!(kind, "Service" | "EndpointSlice") { NAMESPACE } else { "" };
        Ok(Identity { kind: kind.into(), namespace: namespace.into(), name: name.into() })
    }

    /// The `EndpointSlices` of a short form.
    pub fn expand(&self, slice: &Slice) -> Result<Vec<Value>> {
        let service = self.services.get(&slice.service);
        let service = service.ok_or_else(|| anyhow!("slices: there is no service {}", slice.service))?;
        let families = service["spec"]["ipFamilies"].as_array().cloned().unwrap_or_default();
        families.iter().map(|family| self.expand_family(slice, service, family)).collect()
    }

    fn expand_family(&self, slice: &Slice, service: &Value, family: &Value) -> Result<Value> {
        let state = |pods: &[String], ready: bool, serving: bool, terminating: bool| {
            let conditions = json!({"ready": ready, "serving": serving, "terminating": terminating});
            pods.iter().map(|pod| self.endpoint(pod, family, &conditions)).collect::<Result<Vec<_>>>()
        };
        let endpoints = [
            state(&slice.ready, true, true, false)?,
            state(&slice.terminating_serving, false, true, true)?,
            state(&slice.terminating, false, false, true)?,
            state(&slice.not_ready, false, false, false)?,
        ]
        .concat();
        let protocol = slice.protocol.as_deref().unwrap_or("TCP");
        let unnamed = slice.port.map(|port| json!({"name": "", "port": port, "protocol": protocol}));
        let ports: Vec<_> = slice.ports.iter().cloned().chain(unnamed).collect();
        let name = &slice.service;
        let suffix = family.as_str().unwrap_or_default().to_lowercase();
        Ok(json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-{suffix}"),
                "namespace": service["metadata"]["namespace"],
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": family,
            "ports": ports,
            "endpoints": endpoints,
        }))
    }

    fn endpoint(&self, pod: &str, family: &Value, conditions: &Value) -> Result<Value> {
        let member = self.lab.member(pod)?;
        let node = member.node.as_deref().unwrap_or(pod);
        let address = if family == "IPv6" {
            IpAddr::from(member.addresses.v6.addr())
        } else {
            member.addresses.v4.addr().into()
        };
        Ok(json!({"addresses": [address], "nodeName": node, "conditions": conditions}))
    }
}

fn complete_service(spec: &mut Value) {
    if let Some(first) = spec["clusterIPs"].get(0).cloned() {
        spec["clusterIP"] = first;
    } else if spec["clusterIP"].is_string() {
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
    }
    let addresses = spec["clusterIPs"].as_array().cloned().unwrap_or_default();
    let families = addresses.iter().filter_map(Value::as_str);
    let families: Vec<_> =
        families.map(|address| if address.contains(':') { "IPv6" } else { "IPv4" }).collect();
    spec["ipFamilyPolicy"] = if families.len() > 1 { "RequireDualStack" } else { "SingleStack" }.into();
    spec["ipFamilies"] = families.into();
}

/// The Node object of node `n1`.
pub fn node(lab: &Lab) -> Result<Value> {
    let name = super::run::NODE;
    let node = lab.spec().nodes.iter().find(|node| node.name == name);
    let node = node.ok_or_else(|| anyhow!("the lab has no node {name}"))?;
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": "a"}},
        "spec": {
            "podCIDR": node.bridge.v4.trunc(),
            "podCIDRs": [node.bridge.v4.trunc(), node.bridge.v6.trunc()],
        },
        "status": {"addresses": [
            {"type": "InternalIP", "address": node.addresses.v4.addr()},
            {"type": "InternalIP", "address": node.addresses.v6.addr()},
            {"type": "Hostname", "address": name},
        ]},
    }))
}
