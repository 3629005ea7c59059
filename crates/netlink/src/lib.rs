//! Kernel wire formats and sockets. The only home of `unsafe`; knows no Kubernetes.
//!
//! - [`message`]: writing and reading netlink messages and attributes, pure;
//! - [`socket`]: sending them and reading answers;
//! - `route`: links, addresses, routes;
//! - `nftables`: tables, chains, rules, sets, their elements, and change events.

pub mod message;
pub mod socket;
