//! The two HTTP servers every proxy has: health (port 10256) and metrics (port 10249).
//!
//! In: an address, and what there is to show. Out: answers in the forms of the original. Each server is a future
//! for a tokio runtime that ends only if its address cannot be had and that is to be fatal. No TLS and no
//! log-in, as in the original: what is shown is no secret, and only the level of the logs can be set.

mod answer;
mod health_pages;
mod metrics_pages;
mod negotiation;
mod server;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::health::Health;
use crate::metrics::Metrics;

pub(crate) use answer::{Answer, json};
pub use metrics_pages::{Pages, Pings};
pub use server::{BindError, Limits};
pub(crate) use server::{listen, serve};

/// A server's address could not be had, though it was to be fatal (`bindAddressHardFail`).
pub type ServeResult = Result<Infallible, BindError>;

/// Serves `/healthz` and `/livez` for ever. If the address cannot be had it tries again every five seconds.
///
/// # Errors
/// If the address cannot be had and `hard_fail` is set.
pub async fn serve_health(
    address: SocketAddr,
    hard_fail: bool,
    limits: Limits,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
) -> ServeResult {
    let listener = server::bind("health", address, hard_fail, &limits).await?;
    let pages = Arc::new(health_pages::HealthPages { health, metrics });
    serve(listener, limits, move |request| {
        let pages = pages.clone();
        async move { pages.answer(&request) }
    })
    .await
}

/// Serves [`Pages`] for ever. If the address cannot be had it tries again every five seconds.
///
/// # Errors
/// If the address cannot be had and `hard_fail` is set.
pub async fn serve_metrics(
    address: SocketAddr,
    hard_fail: bool,
    limits: Limits,
    pages: Arc<Pages>,
) -> ServeResult {
    let listener = server::bind("metrics", address, hard_fail, &limits).await?;
    serve(listener, limits, move |request| {
        let pages = pages.clone();
        async move { pages.answer(request).await }
    })
    .await
}
