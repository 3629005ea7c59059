//! The iptables data plane: services as chains of rules, the original kube-proxy's chain for chain.
//!
//! In: [`model::ResolvedService`]s, [`dataplane::Facts`], and the [`Tables`] that were found. Out: a [`Restore`], the text for one
//! run of `iptables-restore --noflush --counters`, which holds no more than what changes. All rules are in the words of
//! `iptables-save`, so that what was found can be compared with what is wanted.
//!
//! The way of a change: `service` (the rules of one service, by `names` and `shared`) → `ruleset` (which of its chains and lines
//! differ from those last written) → `edit` (lines of shared chains) → `restore` (the text). Pure: never runs a program.

mod edit;
mod names;
mod restore;
mod ruleset;
mod service;
mod settings;
mod shared;
mod tables;

pub use restore::Restore;
pub use ruleset::{Ruleset, Update};
pub use settings::Settings;
pub use shared::COUNTERS;
pub use tables::{Chains, Table, Tables};
