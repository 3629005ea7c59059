//! What tests of the whole program need, and nobody else: never a dependency of the product.
//!
//! - [`scenario`]: runs one file of `tests/scenarios` through the real binary, with real packets in a lab;
//! - [`proxy`]: the binary as a process in a lab's node;
//! - [`objects`]: how Kubernetes objects reach it, as manifests or through an API server;
//! - [`api_server`]: a real API server;
//! - [`http`]: asking its HTTP servers;
//! - [`sctp`]: SCTP packets, which need no SCTP in the kernel.

pub mod api_server;
pub mod http;
pub mod objects;
pub mod proxy;
pub mod scenario;
pub mod sctp;
