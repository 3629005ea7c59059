//! The nftables data plane: services as elements of named sets and maps.
//!
//! In: [`model::ResolvedService`]s and [`dataplane::Facts`]. Out: one nf_tables transaction a sync on the table
//! `kube-proxy` of one family. Chains and rules depend on [`Settings`] only; a change of a service is a change of a few
//! elements, whatever the size of the cluster. `docs/nftables.md` tells how a packet goes through them.
//!
//! The way of a change: `placed` (which list, which slot) → `entry` (elements as bytes) → `apply` (the difference, in
//! one transaction). `layout` is the constant part. Never runs a program, never touches another table.

mod applied;
mod apply;
mod entry;
mod found;
mod ids;
mod layout;
mod placed;
mod rules;

pub use apply::{Nftables, TABLE, cleanup};
pub use layout::Settings;
