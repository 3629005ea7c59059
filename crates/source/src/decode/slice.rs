//! EndpointSlices.

use model::{Event, Family, Hints, Kind, ObjectKey, Slice, SliceEndpoint, SlicePort};

use super::{Object, expect_key, key, names, port, port_name, protocol, time};
use crate::address;
use crate::complaints::Fault;
use crate::wire::{self, Conditions, Meta, Named, text};

impl<'a> Object<'a> for wire::Slice<'a> {
    const KIND: &'static str = "EndpointSlice";

    fn meta(&self) -> &Meta<'a> {
        &self.metadata
    }

    fn event(&self, own_node: &str, faults: &mut Vec<Fault>) -> Option<Event> {
        let key = expect_key(Kind::Slice, &self.metadata, faults)?;
        Some(match used(self, &key, own_node, faults) {
            Some(slice) => Event::Slice(slice),
            None => Event::SliceDeleted(key),
        })
    }

    fn removal(meta: &Meta<'_>, _own_node: &str) -> Option<Event> {
        key(meta).map(Event::SliceDeleted)
    }
}

/// The slice, `None` when it has no owner, belongs to a headless service or another proxy's, or holds names (FQDN).
fn used(raw: &wire::Slice<'_>, key: &ObjectKey, own_node: &str, faults: &mut Vec<Fault>) -> Option<Slice> {
    let labels = raw.metadata.labels.as_ref()?;
    let owner = text(labels.service_name.as_ref());
    if owner.is_empty() || labels.headless.is_some() || labels.service_proxy_name.is_some() {
        return None;
    }
    if !names::is_label(owner) {
        let problem = format!(
            "{owner:?} cannot be the name of a Service, which is {}; the slice is skipped",
            names::A_LABEL
        );
        faults.push(Fault::new("metadata.labels[kubernetes.io/service-name]", problem));
        return None;
    }
    let family = match text(raw.address_type.as_ref()) {
        "IPv4" => Family::V4,
        "IPv6" => Family::V6,
        "FQDN" => return None,
        other => {
            let problem = format!("{other:?} is none of IPv4, IPv6, FQDN; the slice is skipped");
            faults.push(Fault::new("addressType", problem));
            return None;
        }
    };
    let annotations = raw.metadata.annotations.as_ref();
    Some(Slice {
        key: key.clone(),
        service: ObjectKey::new(key.namespace(), owner),
        family,
        ports: ports(raw, faults),
        endpoints: endpoints(raw, family, own_node, faults),
        triggered: time(annotations.and_then(|annotations| annotations.trigger_time.as_ref())),
    })
}

/// The ports with a number; one without ("all ports") cannot be matched with a service's.
fn ports(raw: &wire::Slice<'_>, faults: &mut Vec<Fault>) -> Vec<SlicePort> {
    let mut ports = Vec::new();
    for (index, raw) in raw.ports.as_deref().unwrap_or_default().iter().enumerate() {
        let Some(number) = raw.port else { continue };
        let Some(number) = port(number, || format!("ports[{index}].port"), faults) else { continue };
        let Some(protocol) = protocol(raw.protocol.as_ref(), || format!("ports[{index}].protocol"), faults)
        else {
            continue;
        };
        let Some(name) = port_name(raw.name.as_ref(), || format!("ports[{index}].name"), faults) else {
            continue;
        };
        ports.push(SlicePort { name: name.into(), protocol, port: number });
    }
    ports
}

fn endpoints(
    raw: &wire::Slice<'_>,
    family: Family,
    own_node: &str,
    faults: &mut Vec<Fault>,
) -> Vec<SliceEndpoint> {
    let raw = raw.endpoints.as_deref().unwrap_or_default();
    let mut endpoints = Vec::with_capacity(raw.len());
    for (index, raw) in raw.iter().enumerate() {
        // the API lets a slice's endpoint have more addresses, all of one backend: any one of them will do
        let Some(first) = raw.addresses.as_deref().and_then(<[_]>::first) else { continue };
        let usable = address::parse_ip(first)
            .filter(|address| address::is_reachable(*address) && Family::of(*address) == family);
        let Some(address) = usable else {
            let problem = format!(
                "{:?} is no {family} address by which a host is reached from elsewhere; the endpoint is left out",
                &**first
            );
            faults.push(Fault::new(format!("endpoints[{index}].addresses[0]"), problem));
            continue;
        };
        let Conditions { ready, serving, terminating } = raw.conditions.unwrap_or_default();
        endpoints.push(SliceEndpoint {
            address,
            local: raw.node_name.as_ref().is_some_and(|name| &**name == own_node),
            ready: ready.unwrap_or(true),
            serving: serving.unwrap_or(true),
            terminating: terminating.unwrap_or(false),
            hints: raw.hints.as_ref().and_then(hints),
        });
    }
    endpoints
}

fn hints(raw: &wire::Hints<'_>) -> Option<Box<Hints>> {
    let names = |list: Option<&[Named<'_>]>| -> Vec<Box<str>> {
        let names = list.unwrap_or_default().iter().map(|named| text(named.name.as_ref()));
        names.filter(|name| !name.is_empty()).map(Into::into).collect()
    };
    let hints = Hints { zones: names(raw.for_zones.as_deref()), nodes: names(raw.for_nodes.as_deref()) };
    (!hints.zones.is_empty() || !hints.nodes.is_empty()).then(|| Box::new(hints))
}
