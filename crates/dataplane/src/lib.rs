//! What all data planes share: the trait they implement, and the loop that drives them.

mod backend;

pub use backend::{Backend, Facts, NodePortAddresses, Report, SyncError};
