//! Warnings about what any client can cause again and again.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::{Site, lock};

/// Time between two warnings of one text.
const PERIOD: Duration = Duration::from_secs(60);

/// No client is to be blamed for this, and no endpoint.
pub(crate) const NO_SOCKET: &str = "Cannot open a socket towards the endpoints of a node port, its client is turned away; \
     check the limit of open files (RLIMIT_NOFILE)";

/// Warns with each text once a minute at most.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<BTreeMap<&'static str, Instant>>);

impl Warnings {
    /// `site` is where it happened this time.
    pub(crate) fn warn(&self, text: &'static str, site: Site, error: Option<&io::Error>) {
        let (mut told, now) = (lock(&self.0), Instant::now());
        if told.get(text).is_some_and(|at| now.saturating_duration_since(*at) < PERIOD) {
            return;
        }
        told.insert(text, now);
        let error = error.map(tracing::field::display);
        tracing::warn!(address = %site.address(), error, "{text}");
    }
}

/// The process, or the machine, has as many files open as it may.
pub(crate) fn out_of_files(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}
