//! Kernel wire formats and sockets. The only home of `unsafe`; knows no Kubernetes.
//!
//! - [`message`]: writing and reading netlink messages and attributes, pure;
//! - [`socket`]: sending them and reading answers;
//! - [`route`]: links, addresses, routes, address events;
//! - [`namespace`]: network namespaces, and threads and processes in them;
//! - [`conntrack`]: tracked flows, listed and deleted;
//! - `nftables`: tables, chains, rules, sets, their elements, and change events.

pub mod conntrack;
pub mod message;
pub mod namespace;
pub mod nftables;
pub mod route;
pub mod socket;
