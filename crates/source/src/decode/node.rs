//! The own Node and ServiceCIDRs.

use std::net::IpAddr;

use model::{Event, Kind, Node};

use super::{Object, is_named, nets};
use crate::address;
use crate::complaints::Fault;
use crate::wire::{self, Meta, NodeAddress, NodeSpec, text};

/// The cluster autoscaler taints a node with it before it takes the node away.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

impl<'a> Object<'a> for wire::Node<'a> {
    const KIND: &'static str = "Node";

    fn meta(&self) -> &Meta<'a> {
        &self.metadata
    }

    fn event(&self, own_node: &str, faults: &mut Vec<Fault>) -> Option<Event> {
        if text(self.metadata.name.as_ref()) != own_node {
            return None;
        }
        let spec = self.spec.as_ref();
        let addresses =
            self.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default();
        let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        Some(Event::Node(Node {
            name: own_node.to_owned(),
            uid: text(self.metadata.uid.as_ref()).to_owned(),
            addresses: node_addresses(addresses, faults),
            pod_cidrs: spec.map_or_else(Vec::new, |spec| pod_cidrs(spec, faults)),
            zone: self.metadata.labels.as_ref().and_then(|labels| labels.zone.as_deref()).map(Into::into),
            deleting: self.metadata.deletion_timestamp.is_some(),
            to_be_deleted_by_autoscaler: taints.iter().any(|taint| text(taint.key.as_ref()) == TO_BE_DELETED),
        }))
    }

    fn removal(meta: &Meta<'_>, own_node: &str) -> Option<Event> {
        (text(meta.name.as_ref()) == own_node).then_some(Event::NodeDeleted)
    }
}

/// Internal addresses first, then external ones; host names and others are no use here.
fn node_addresses(raw: &[NodeAddress<'_>], faults: &mut Vec<Fault>) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for wanted in ["InternalIP", "ExternalIP"] {
        for (index, raw) in raw.iter().enumerate().filter(|(_, raw)| text(raw.kind.as_ref()) == wanted) {
            let given = text(raw.address.as_ref());
            match address::parse_ip(given).filter(|address| address::is_host(*address)) {
                Some(address) if addresses.contains(&address) => {}
                Some(address) => addresses.push(address),
                None => faults.push(Fault::new(
                    format!("status.addresses[{index}].address"),
                    format!("{given:?} is no address of a host; left out"),
                )),
            }
        }
    }
    addresses
}

fn pod_cidrs(spec: &NodeSpec<'_>, faults: &mut Vec<Fault>) -> Vec<ipnet::IpNet> {
    match spec.pod_cidrs.as_deref() {
        Some(many) if !many.is_empty() => nets(Some(many), "spec.podCIDRs", faults),
        _ => match spec.pod_cidr.as_ref().filter(|one| !one.is_empty()) {
            Some(one) => nets(Some(std::slice::from_ref(one)), "spec.podCIDR", faults),
            None => Vec::new(),
        },
    }
}

impl<'a> Object<'a> for wire::ServiceCidr<'a> {
    const KIND: &'static str = "ServiceCIDR";

    fn meta(&self) -> &Meta<'a> {
        &self.metadata
    }

    fn event(&self, _own_node: &str, faults: &mut Vec<Fault>) -> Option<Event> {
        if !is_named(Kind::ServiceCidr, &self.metadata, faults) {
            return None;
        }
        let cidrs = self.spec.as_ref().and_then(|spec| spec.cidrs.as_deref());
        let name = text(self.metadata.name.as_ref());
        Some(Event::ServiceCidr(name.into(), nets(cidrs, "spec.cidrs", faults)))
    }

    fn removal(meta: &Meta<'_>, _own_node: &str) -> Option<Event> {
        let name = text(meta.name.as_ref());
        (!name.is_empty()).then(|| Event::ServiceCidrDeleted(name.into()))
    }
}
