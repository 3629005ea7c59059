//! What a node proxy has to bring about, as plain values.
//!
//! In: [`Event`]s about Services, EndpointSlices, ServiceCIDRs and the own Node, in any order.
//! Out: for each service whose effect changed, a [`ResolvedService`] per address family: which addresses and
//! ports lead to which endpoints. Every data plane reads that and nothing else.
//!
//! Pure: no I/O, no clock, no threads, no kernel, no Kubernetes wire format.

mod object;
mod resolved;

pub use object::{
    Endpoint, Event, Family, Hints, Kind, Node, ObjectKey, Policy, Protocol, Service, ServicePort,
    ServiceType, Slice, SliceEndpoint, SlicePort,
};
pub use resolved::{Backend, Frontend, ResolvedPort, ResolvedService};
