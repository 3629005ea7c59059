//! What a node proxy has to bring about, as plain values.
//!
//! In: [`Event`]s about Services, EndpointSlices, ServiceCIDRs and the own Node, in any order.
//! Out: for each service whose effect changed, a [`ResolvedService`] per address family: which addresses and
//! ports lead to which endpoints. Every data plane reads that and nothing else.
//!
//! Pure: no I/O, no clock, no threads, no kernel, no Kubernetes wire format.

mod choice;
mod claims;
mod departures;
mod object;
mod resolved;
mod service;
mod slices;
mod tracker;

pub use claims::{Conflict, Place, Precedence, Site};
pub use departures::Departure;
pub use object::{
    Endpoint, Event, Family, Hints, Kind, Node, ObjectKey, Policy, Protocol, Service, ServicePort,
    ServiceType, Slice, SliceEndpoint, SlicePort,
};
pub use resolved::{Backend, Frontend, ResolvedPort, ResolvedService};
pub use tracker::{Changes, Tracker, TrackerOptions};
