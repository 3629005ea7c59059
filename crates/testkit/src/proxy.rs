//! The proxy under test as a process in a lab's node.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use netlink::namespace::Namespace;
use rustix::process::{Pid, Signal, kill_process};

use crate::http;

/// Where the metrics are, by default.
const METRICS: ([u8; 4], u16) = ([127, 0, 0, 1], 10249);
/// How long a start may take, on a machine that is busy with other tests.
const START: Duration = Duration::from_secs(60);
/// How long a terminated process may take to end.
const STOP: Duration = Duration::from_secs(20);
/// Time between two looks at the metrics.
const LOOK: Duration = Duration::from_millis(20);

/// A running proxy. Killed when dropped, and when the thread that started it ends.
#[derive(Debug)]
pub struct Proxy<'a> {
    namespace: &'a Namespace,
    process: Child,
    log: PathBuf,
    started: f64,
}

impl<'a> Proxy<'a> {
    /// Starts `binary` with `flags` inside `namespace`. What it prints is appended to the file `log`.
    pub fn start(namespace: &'a Namespace, binary: &Path, flags: &[String], log: &Path) -> Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        let started = wall_clock();
        let process = namespace
            .command(binary)?
            .args(flags)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("starting {}", binary.display()))?;
        Ok(Self { namespace, process, log: log.to_owned(), started })
    }

    /// Waits until all families have been written to the kernel for the first time.
    pub fn wait_until_synced(&mut self) -> Result<()> {
        let end = Instant::now() + START;
        while !self.synced_since(self.started) {
            if let Some(status) = self.process.try_wait()? {
                bail!("the proxy ended ({status}) before it had synced");
            }
            if Instant::now() > end {
                bail!("the proxy has not synced after {START:?}");
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits until a sync has ended after `change`, for `limit` at most: a change that concerns nobody causes none.
    pub fn wait_for_sync(&self, change: f64, limit: Duration) {
        let end = Instant::now() + limit;
        while !self.synced_since(change) && Instant::now() < end {
            thread::sleep(LOOK);
        }
    }

    fn synced_since(&self, time: f64) -> bool {
        let Ok(metrics) = self.metrics() else { return false };
        let stamps = gauge(&metrics, "kubeproxy_sync_proxy_rules_last_timestamp_seconds");
        // a family has no stamp before its first sync
        stamps.len() >= families() && stamps.iter().all(|stamp| *stamp > time)
    }

    /// What `/metrics` says.
    pub fn metrics(&self) -> Result<String> {
        Ok(http::get(self.namespace, SocketAddr::from(METRICS), "/metrics")?.body)
    }

    /// Sends `signal` and waits for the end.
    pub fn stop(mut self, signal: Signal) -> Result<ExitStatus> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.ok_or_else(|| anyhow!("a process id of 0"))?, signal)?;
        let end = Instant::now() + STOP;
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > end {
                bail!("the proxy still runs {STOP:?} after {signal:?}");
            }
            thread::sleep(LOOK);
        }
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.process.try_wait()?)
    }

    /// All it has printed.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Proxy<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How many families the proxy writes on this machine.
fn families() -> usize {
    if Path::new("/proc/net/if_inet6").exists() { 2 } else { 1 }
}

/// The values of all series of the gauge `name`.
pub fn gauge(metrics: &str, name: &str) -> Vec<f64> {
    let series = metrics.lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
    });
    series.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
}

/// Seconds since 1970, as in the metrics.
pub fn wall_clock() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_is_read_with_and_without_labels() {
        let text =
            "# HELP a_b x\na_b{ip_family=\"IPv4\"} 1.5\na_b{ip_family=\"IPv6\"} 2e+09\na_b_c 7\na_b 3\n";
        assert_eq!(gauge(text, "a_b"), [1.5, 2e9, 3.0]);
    }
}
