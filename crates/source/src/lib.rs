//! Where the objects come from: the Kubernetes API ([`api`]) or a file or folder of manifests ([`manifests`]).
//!
//! In: bytes of watches, lists and files. Out: [`model::Event`]s, told through [`Watching::tell`] in order per kind.
//! Objects are decoded straight into the model's trimmed types; nothing is cached here (but for manifests, what was
//! told last, to tell differences). A malformed object is skipped or trimmed, warned of once and counted; it never
//! stops the others. This crate never touches the kernel's state and never decides what an object means.

mod address;
pub mod api;
mod complaints;
mod decode;
pub mod manifests;
mod wire;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a source is asked to do, the same for both.
pub struct Watching {
    /// Name of this node: picks the Node object, and endpoints with this `nodeName` are local.
    pub node_name: String,
    /// Takes each event. Called from the source's own task, so it must not wait long: hand the event over.
    pub tell: Box<dyn Fn(model::Event) + Send + Sync>,
    /// Where the source counts.
    pub counters: Arc<Counters>,
}

impl fmt::Debug for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watching").field("node_name", &self.node_name).finish_non_exhaustive()
    }
}

/// What a source has counted since its start.
#[derive(Default)]
pub struct Counters {
    malformed: AtomicU64,
    fills: AtomicU64,
    watches: AtomicU64,
    skipped: Option<Box<dyn Fn(model::Kind) + Send + Sync>>,
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { malformed, fills, watches, skipped: _ } = self;
        f.debug_struct("Counters")
            .field("malformed", malformed)
            .field("fills", fills)
            .field("watches", watches)
            .finish_non_exhaustive()
    }
}

impl Counters {
    /// Counters that also call `skipped` for each object that is skipped or trimmed.
    pub fn telling(skipped: impl Fn(model::Kind) + Send + Sync + 'static) -> Self {
        Self { skipped: Some(Box::new(skipped)), ..Self::default() }
    }

    /// Objects that were skipped or trimmed because of bad fields, counted each time they arrive.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }

    /// How often all objects of a kind were fetched: one per kind at start, more after an expired version.
    pub fn fills(&self) -> u64 {
        self.fills.load(Ordering::Relaxed)
    }

    /// Watches that were started, resumed ones included.
    pub fn watches(&self) -> u64 {
        self.watches.load(Ordering::Relaxed)
    }

    /// An object was skipped or trimmed.
    fn skip(&self, kind: model::Kind) {
        Self::count(&self.malformed);
        if let Some(skipped) = &self.skipped {
            skipped(kind);
        }
    }

    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why a source cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig cannot be read, or a field of it is missing or wrong.
    #[error("kubeconfig {path}: {problem}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Which field, and what is wrong with it.
        problem: String,
    },
    /// Neither a kubeconfig nor a master was given, and this is no pod with a service account.
    #[error(
        "no API server is configured: give --kubeconfig, --master or --manifests, or run in a pod with a service account ({problem})"
    )]
    InCluster {
        /// What is missing in the pod's environment.
        problem: String,
    },
    /// `--master` is no URL.
    #[error("--master {value}: not an http or https URL: {problem}")]
    Master {
        /// What was given.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The manifests cannot be read or watched.
    #[error("manifests {path}: {problem}")]
    Manifests {
        /// The file or folder that was given, or the file in it that is broken.
        path: PathBuf,
        /// What is wrong with it, with the line where known.
        problem: String,
    },
}
