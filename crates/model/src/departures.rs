//! Endpoints that service ports have lost.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Endpoint, ObjectKey, Protocol};

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

/// Those that are remembered, by service.
#[derive(Debug, Default)]
pub(crate) struct Departures(BTreeMap<ObjectKey, BTreeSet<Departure>>);

impl Departures {
    /// These leave just now, some of them not for the first time.
    pub(crate) fn begin(&mut self, leaving: impl Iterator<Item = Departure>, told: &mut BTreeSet<Departure>) {
        for departure in leaving {
            self.forget(&departure);
            told.insert(departure);
        }
    }

    /// Returns whether it is new.
    pub(crate) fn add(&mut self, departure: &Departure) -> bool {
        self.0.entry(departure.service.clone()).or_default().insert(departure.clone())
    }

    /// Returns whether it was remembered.
    pub(crate) fn forget(&mut self, departure: &Departure) -> bool {
        let Some(own) = self.0.get_mut(&departure.service) else { return false };
        let known = own.remove(departure);
        if own.is_empty() {
            self.0.remove(&departure.service);
        }
        known
    }

    pub(crate) fn forget_service(&mut self, service: &ObjectKey) {
        self.0.remove(service);
    }

    /// The endpoints that left this port, sorted.
    pub(crate) fn of_port(
        &self,
        service: &ObjectKey,
        name: &str,
        protocol: Protocol,
    ) -> impl Iterator<Item = Endpoint> {
        let own = self.0.get(service).into_iter().flatten();
        let of_port = own.filter(move |one| *one.port_name == *name && one.protocol == protocol);
        of_port.map(|one| one.endpoint)
    }
}
