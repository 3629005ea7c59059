//! What all data planes share: the trait they implement, and the loop that drives them.
//!
//! In: [`Message`]s, from any number of threads. Out: syncs of the [`Backend`]s, one per address family, what became of
//! them to a [`Reporter`], and [`Sweep`]s: orders to look for tracked flows that have become stale. The loop is one plain
//! thread that owns the [`model::Tracker`] and the backends; nothing here is shared, locked or asynchronous, and nothing knows a
//! kernel or Kubernetes.

mod backend;
mod flows;
mod node_ports;
mod schedule;
mod sync;

pub use backend::{Backend, Facts, LocalDetector, Report, Services, SyncError};
pub use flows::{Servers, Suspects, Sweep};
pub use node_ports::NodePortSelection;
pub use sync::{Message, Options, Reporter, Sync, SyncKind, SyncLoop};
