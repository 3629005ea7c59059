//! Endpoints that a service port has lost.
//!
//! In: what left a slice. Out: for each service port the endpoints that are to be remembered, until they are told to be
//! forgotten. Whether one has come back is for the tracker to say.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Endpoint, ObjectKey, Protocol, SlicePort};

/// An endpoint served a service port, or was at least listed for it, and does not or is not any more. It may be back by
/// the time this is looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Departure {
    /// The service.
    pub service: ObjectKey,
    /// The name of its port.
    pub port_name: Box<str>,
    /// The protocol of its port.
    pub protocol: Protocol,
    /// The endpoint.
    pub endpoint: Endpoint,
}

type OfService = BTreeSet<(Box<str>, Protocol, Endpoint)>;

/// Those that are remembered.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    remembered: BTreeMap<ObjectKey, OfService>,
    /// Since [`Departures::take_new`].
    new: Vec<Departure>,
}

impl Departures {
    pub(crate) fn add(&mut self, service: &ObjectKey, port: &SlicePort, endpoint: Endpoint) {
        let place = (port.name.clone(), port.protocol, endpoint);
        self.remembered.entry(service.clone()).or_default().insert(place);
        self.new.push(Departure {
            service: service.clone(),
            port_name: port.name.clone(),
            protocol: port.protocol,
            endpoint,
        });
    }

    pub(crate) fn take_new(&mut self) -> Vec<Departure> {
        std::mem::take(&mut self.new)
    }

    /// Returns whether it was remembered.
    pub(crate) fn forget(&mut self, departure: &Departure) -> bool {
        let Some(own) = self.remembered.get_mut(&departure.service) else { return false };
        let known = own.remove(&(departure.port_name.clone(), departure.protocol, departure.endpoint));
        if own.is_empty() {
            self.remembered.remove(&departure.service);
        }
        known
    }

    pub(crate) fn forget_service(&mut self, service: &ObjectKey) {
        self.remembered.remove(service);
    }

    /// The endpoints that left this port, sorted.
    pub(crate) fn of_port(&self, service: &ObjectKey, name: &str, protocol: Protocol) -> Vec<Endpoint> {
        let own = self.remembered.get(service).into_iter().flatten();
        own.filter(|(own, of, _)| **own == *name && *of == protocol)
            .map(|(_, _, endpoint)| *endpoint)
            .collect()
    }
}
