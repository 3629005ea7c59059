//! Connections at a steady rate, counted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use netlink::namespace::{self, Namespace};

use crate::client::{Outcome, Probe};

/// Threads that connect side by side, so that one slow connection does not hold up the rest.
const WORKERS: u32 = 4;
/// A connection is given up after this time.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What a load has met.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Tries made.
    pub connects: u64,
    /// How many were answered, by the server's name.
    pub answers: BTreeMap<String, u64>,
    /// When each server answered last.
    pub last: BTreeMap<String, Instant>,
    /// How many failed, by what happened.
    pub failures: BTreeMap<String, u64>,
    /// The longest time from the start of a try to its end.
    pub longest: Duration,
}

impl Report {
    /// Tries that failed.
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    fn count(&mut self, outcome: Outcome, started: Instant) {
        self.connects += 1;
        self.longest = self.longest.max(started.elapsed());
        match outcome {
            Outcome::Answered { by, .. } => {
                // the server spoke after the connection was made and before now; its start is the sure side
                self.last.insert(by.clone(), started);
                *self.answers.entry(by).or_default() += 1;
            }
            Outcome::Refused { .. } => *self.failures.entry("refused".to_owned()).or_default() += 1,
            other => *self.failures.entry(other.to_string()).or_default() += 1,
        }
    }

    fn add(&mut self, other: Self) {
        self.connects += other.connects;
        self.longest = self.longest.max(other.longest);
        for (into, from) in [(&mut self.answers, other.answers), (&mut self.failures, other.failures)] {
            for (name, count) in from {
                *into.entry(name).or_default() += count;
            }
        }
        for (name, at) in other.last {
            let last = self.last.entry(name).or_insert(at);
            *last = (*last).max(at);
        }
    }
}

/// A running load; stops when dropped.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<Report>>,
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
        let mut load = Self { stop: Arc::clone(&stop), workers: Vec::new() };
        let pause = Duration::from_secs(1) * WORKERS / per_second.max(1);
        let start = Instant::now();
        for worker in 0..WORKERS {
            let stop = Arc::clone(&stop);
            let first = start + pause * worker / WORKERS;
            let work = move || connect_until(&stop, to, first, pause, start + limit);
            load.workers.push(namespace.spawn(format!("load {worker}"), work)?);
        }
        Ok(load)
    }

    /// Stops, and tells what happened. Waits for tries that are under way.
    pub fn stop(mut self) -> Report {
        self.finish()
    }

    fn finish(&mut self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        let mut report = Report::default();
        for worker in self.workers.drain(..) {
            report.add(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        report
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.finish();
    }
}

fn connect_until(stop: &AtomicBool, to: SocketAddr, first: Instant, pause: Duration, end: Instant) -> Report {
    let mut report = Report::default();
    let mut next = first;
    while !stop.load(Ordering::Relaxed) && next < end {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let started = Instant::now();
        let outcome = match Probe::new(TIMEOUT).open(to) {
            Ok(connection) => connection.abandon(),
            Err(outcome) => outcome,
        };
        report.count(outcome, started);
        // after a slow try go on at the same rate, do not catch up
        next = (next + pause).max(Instant::now());
    }
    report
}
