//! Connections at a steady rate, counted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use netlink::namespace::{self, Namespace};

use crate::client::{Outcome, Probe};

/// Threads that connect side by side, so that one slow connection does not hold up the rest.
const WORKERS: u32 = 4;
/// A connection is given up after this time.
const TIMEOUT: Duration = Duration::from_secs(2);

/// One try to connect.
#[derive(Clone, Debug)]
pub struct Try {
    /// Before the first packet.
    pub started: Instant,
    /// After the answer, or when it was given up.
    pub ended: Instant,
    /// The name of the server that answered, or what happened instead.
    pub outcome: Result<String, String>,
}

/// What a load has met: all its tries, in no order.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The tries.
    pub tries: Vec<Try>,
}

impl Report {
    /// How many tries were answered, by the server's name.
    pub fn answers(&self) -> BTreeMap<&str, u64> {
        count(self.tries.iter().filter_map(|one| one.outcome.as_deref().ok()))
    }

    /// How many tries failed, by what happened.
    pub fn failures(&self) -> BTreeMap<&str, u64> {
        count(self.tries.iter().filter_map(|one| one.outcome.as_ref().err().map(String::as_str)))
    }

    /// When a server answered last: the start of the try, which is the sure side.
    pub fn last(&self, server: &str) -> Option<Instant> {
        let answered = self.tries.iter().filter(|one| one.outcome.as_deref() == Ok(server));
        answered.map(|one| one.started).max()
    }

    /// The longest time from the start of a try to its end.
    pub fn longest(&self) -> Duration {
        self.tries.iter().map(|one| one.ended - one.started).max().unwrap_or_default()
    }
}

fn count<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, u64> {
    let mut counts = BTreeMap::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    counts
}

/// A running load; stops when dropped.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicU64>,
    workers: Vec<JoinHandle<Vec<Try>>>,
}

impl Load {
    /// Makes `per_second` TCP connections a second from `namespace` to `to`, for `limit` at most.
    pub fn start(
        namespace: &Namespace,
        to: SocketAddr,
        per_second: u32,
        limit: Duration,
    ) -> Result<Self, namespace::Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let made = Arc::new(AtomicU64::new(0));
        let mut load = Self { stop: Arc::clone(&stop), made: Arc::clone(&made), workers: Vec::new() };
        let pause = Duration::from_secs(1) * WORKERS / per_second.max(1);
        let start = Instant::now();
        for worker in 0..WORKERS {
            let (stop, made) = (Arc::clone(&stop), Arc::clone(&made));
            let first = start + pause * worker / WORKERS;
            let work = move || connect_until(&stop, &made, to, (first, start + limit), pause);
            load.workers.push(namespace.spawn(format!("load {worker}"), work)?);
        }
        Ok(load)
    }

    /// How many tries have ended so far.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Stops, and tells what happened. Waits for tries that are under way.
    pub fn stop(mut self) -> Report {
        self.finish()
    }

    fn finish(&mut self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        let mut report = Report::default();
        for worker in self.workers.drain(..) {
            report.tries.extend(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        report
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.finish();
    }
}

fn connect_until(
    stop: &AtomicBool,
    made: &AtomicU64,
    to: SocketAddr,
    (first, end): (Instant, Instant),
    pause: Duration,
) -> Vec<Try> {
    let mut tries = Vec::new();
    let mut next = first;
    while !stop.load(Ordering::Relaxed) && next < end {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let started = Instant::now();
        let outcome = match Probe::new(TIMEOUT).open(to) {
            Ok(connection) => connection.abandon(),
            Err(outcome) => outcome,
        };
        let outcome = match outcome {
            Outcome::Answered { by, .. } => Ok(by),
            Outcome::Refused { .. } => Err("refused".to_owned()),
            other => Err(other.to_string()),
        };
        tries.push(Try { started, ended: Instant::now(), outcome });
        made.fetch_add(1, Ordering::Relaxed);
        // after a slow try go on at the same rate, do not catch up
        next = (next + pause).max(Instant::now());
    }
    tries
}
