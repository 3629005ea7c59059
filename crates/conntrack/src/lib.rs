//! Keeps connection tracking true to the services: flows that lead where nobody serves any more are deleted, so that the
//! client's next packet makes a new one.
//!
//! In: [`dataplane::Sweep`]s, each after the sync that made it necessary. Out: deletions of single flows. All modes need
//! this alike. It has a thread and a socket of its own, and holds up nobody; the kernel does the filtering where it can.

mod judge;
mod reconciler;

pub use reconciler::{Reconciler, Swept};
