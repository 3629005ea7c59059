//! What the proxy tells about itself: logs, metrics, health, and the HTTP servers that show them.
//!
//! In: log events of every crate, counts and times from the sync threads, the own Node, the local endpoints of
//! services with a health check node port. Out: lines on stderr, HTTP answers in the forms of the original.
//!
//! [`metrics::Metrics`], [`health::Health`] and [`service_health::ServiceHealth`] are handles that plain threads
//! use; the servers are futures for a tokio runtime. A client can never hold up a sync, and a full disk, a
//! closed stderr or a hostile client never ends the program.

pub mod clock;
pub mod health;
pub mod http;
pub mod log;
pub mod metrics;
pub mod service_health;
