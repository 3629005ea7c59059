//! A cluster in miniature: an outside client, nodes and pods in network namespaces of their own, with servers that tell
//! who answered whom, and clients that tell what happened to a connection. For `kube-proxy demo` and for tests.
//!
//! In: a [`Spec`]. Out: a [`Lab`] with real links, routes and forwarding, and nothing of it visible outside: when the
//! `Lab` is dropped, or this program ends in any way, the kernel takes all of it away. Addresses are documentation
//! addresses; no packet can leave the machine, because no namespace is connected to it.
//!
//! This crate knows no Kubernetes and never writes rules.

mod client;
mod load;
mod server;
mod spec;
mod world;

pub use client::{Client, Connection, Outcome};
pub use load::{Load, Report, Try};
pub use server::Server;
pub use spec::{Addresses, Node, Pod, Spec};
pub use world::{Error, Lab, Member};
