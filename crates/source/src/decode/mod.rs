//! From the JSON of an object to the event it means.
//!
//! Pure: an object in, an event and the faults found in it out. A fault trims the smallest thing it is in: one
//! address, one port. Only an object without a usable identity, or with a field of the wrong JSON type, is skipped.

#[cfg(test)]
mod mutations;
mod names;
mod node;
mod service;
mod slice;
mod stream;
#[cfg(test)]
mod tests;

use std::time::SystemTime;

use ipnet::IpNet;
use jiff::Timestamp;
use model::{Event, Kind, ObjectKey, Protocol};
use serde::Deserialize;
use serde_json::Value;

pub(crate) use stream::{Decoder, Line};

use crate::address;
use crate::complaints::Fault;
use crate::wire::{self, Meta, Text};

/// A kind of object, as it comes over the wire.
pub(crate) trait Object<'a>: Deserialize<'a> {
    /// The kind's name in the API.
    const KIND: &'static str;

    /// `metadata`.
    fn meta(&self) -> &Meta<'a>;

    /// What the object means; `None` when it has no identity or is not about this node.
    fn event(&self, own_node: &str, faults: &mut Vec<Fault>) -> Option<Event>;

    /// What its removal means.
    fn removal(meta: &Meta<'_>, own_node: &str) -> Option<Event>;
}

/// The kind's name in the API.
pub(crate) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Service => wire::Service::KIND,
        Kind::Slice => wire::Slice::KIND,
        Kind::Node => wire::Node::KIND,
        Kind::ServiceCidr => wire::ServiceCidr::KIND,
    }
}

/// How an object is called in messages: `Service web/shop`.
pub(crate) fn object_name(kind: Kind, meta: &Meta<'_>) -> String {
    match kind {
        Kind::Service | Kind::Slice => {
            let (namespace, name) = (wire::text(meta.namespace.as_ref()), wire::text(meta.name.as_ref()));
            format!("{} {namespace}/{name}", kind_name(kind))
        }
        Kind::Node | Kind::ServiceCidr => format!("{} {}", kind_name(kind), wire::text(meta.name.as_ref())),
    }
}

/// Decodes one object that has been parsed already. The slow way, which knows what a type error is in.
pub(crate) fn value(kind: Kind, object: &Value, own_node: &str, faults: &mut Vec<Fault>) -> Option<Event> {
    fn typed<'a, T: Object<'a>>(object: &'a Value, own_node: &str, faults: &mut Vec<Fault>) -> Option<Event> {
        match serde_path_to_error::deserialize::<_, T>(object) {
            Ok(object) => object.event(own_node, faults),
            Err(error) => {
                let problem = format!("{}; the object is skipped", error.inner());
                faults.push(Fault::new(error.path().to_string(), problem));
                None
            }
        }
    }
    match kind {
        Kind::Service => typed::<wire::Service<'_>>(object, own_node, faults),
        Kind::Slice => typed::<wire::Slice<'_>>(object, own_node, faults),
        Kind::Node => typed::<wire::Node<'_>>(object, own_node, faults),
        Kind::ServiceCidr => typed::<wire::ServiceCidr<'_>>(object, own_node, faults),
    }
}

/// The key of a namespaced object.
fn key(meta: &Meta<'_>) -> Option<ObjectKey> {
    let (namespace, name) = (wire::text(meta.namespace.as_ref()), wire::text(meta.name.as_ref()));
    (!namespace.is_empty() && !name.is_empty()).then(|| ObjectKey::new(namespace, name))
}

/// Whether an API server takes objects of such a name; else that is a fault.
fn is_named(kind: Kind, meta: &Meta<'_>, faults: &mut Vec<Fault>) -> bool {
    let fault = names::fault(kind, meta);
    let is_named = fault.is_none();
    faults.extend(fault);
    is_named
}

/// The key of a namespaced object, if it is named.
fn expect_key(kind: Kind, meta: &Meta<'_>, faults: &mut Vec<Fault>) -> Option<ObjectKey> {
    is_named(kind, meta, faults).then(|| key(meta)).flatten()
}

/// The name of a port, which may be empty.
fn port_name<'a>(
    name: Option<&'a Text<'_>>,
    field: impl FnOnce() -> String,
    faults: &mut Vec<Fault>,
) -> Option<&'a str> {
    let name = wire::text(name);
    if name.is_empty() || names::is_label(name) {
        return Some(name);
    }
    let problem =
        format!("{name:?} cannot be the name of a port, which is {}; the port is left out", names::A_LABEL);
    faults.push(Fault::new(field(), problem));
    None
}

/// A port number of 1 to 65535.
fn port(number: i64, field: impl FnOnce() -> String, faults: &mut Vec<Fault>) -> Option<u16> {
    let port = u16::try_from(number).ok().filter(|&port| port != 0);
    if port.is_none() {
        faults.push(Fault::new(field(), format!("{number} is no port of 1 to 65535; left out")));
    }
    port
}

/// A protocol, TCP when unset.
fn protocol(
    name: Option<&Text<'_>>,
    field: impl FnOnce() -> String,
    faults: &mut Vec<Fault>,
) -> Option<Protocol> {
    match wire::text(name) {
        "" | "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        other => {
            faults.push(Fault::new(
                field(),
                format!("{other:?} is none of TCP, UDP, SCTP; the port is left out"),
            ));
            None
        }
    }
}

/// Networks, without those that are none.
fn nets(texts: Option<&[Text<'_>]>, field: &str, faults: &mut Vec<Fault>) -> Vec<IpNet> {
    let mut nets = Vec::new();
    for (index, text) in texts.unwrap_or_default().iter().enumerate() {
        match address::parse_net(text) {
            Some(net) => nets.push(net),
            None => faults.push(Fault::new(
                format!("{field}[{index}]"),
                format!("{:?} is no network of the form ADDRESS/LENGTH; left out", &**text),
            )),
        }
    }
    nets
}

/// Seconds since 1970 of an RFC 3339 time; 0 when unset, as for a manifest.
fn seconds(time: Option<&Text<'_>>) -> i64 {
    time.and_then(|time| time.parse::<Timestamp>().ok()).map_or(0, Timestamp::as_second)
}

/// An RFC 3339 time; one that cannot be read counts as unset.
fn time(time: Option<&Text<'_>>) -> Option<SystemTime> {
    time?.parse::<Timestamp>().ok().map(SystemTime::from)
}
