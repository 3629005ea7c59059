//! Objects from the Kubernetes API.
//!
//! [`connect`] reads a kubeconfig (or the pod's service account) and makes a [`Connection`], without a word to the
//! network. [`run`] then follows four collections, each on its own: all objects once, changes from there on, and
//! again from the last version known whenever a watch ends, for whatever reason. It never gives up.

mod access;
mod connection;
mod follow;
mod frames;
mod pace;
mod post;
mod proxy;
mod resource;

use std::convert::Infallible;
use std::error::Error as StdError;

pub use access::Access;
pub use connection::{Answered, Connection, connect};
pub use post::{About, Notice, Notices, Poster, Severity, notices};

use crate::Watching;

/// Follows Services, EndpointSlices, the own Node and ServiceCIDRs, and tells what becomes of them, for ever.
///
/// Each kind begins with [`model::Event::Begin`], all its objects and [`model::Event::End`]. A second `Begin` before
/// the `End` starts over: the connection broke in between. Must run on a tokio runtime with time and I/O.
pub async fn run(connection: &Connection, watching: &Watching) -> Infallible {
    let (services, slices) = (resource::services(), resource::slices());
    let (node, cidrs) = (resource::node(&watching.node_name), resource::service_cidrs());
    tokio::select! {
        never = follow::follow(connection, &services, watching) => never,
        never = follow::follow(connection, &slices, watching) => never,
        never = follow::follow(connection, &node, watching) => never,
        never = follow::follow(connection, &cidrs, watching) => never,
    }
}

/// What is wrong, without kube's wrapping.
fn kube_text(error: &kube::Error) -> String {
    match error {
        kube::Error::Service(inner) => text_of(&**inner),
        kube::Error::InferKubeconfig(inner) => access::kubeconfig_problem(inner),
        kube::Error::RustlsTls(inner) => {
            format!("client certificate, key or certificate authority: {}", text_of(inner))
        }
        other => text_of(other),
    }
}

/// An error with its causes, each once.
fn text_of(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}
