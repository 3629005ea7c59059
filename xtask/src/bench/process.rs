//! The measured proxy as a process, and what the kernel says about it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail};
use netlink::namespace::Namespace;
use serde_json::{Value, json};
use testkit::proxy::{gauge, wall_clock};

use super::monotonic;

/// The kernel counts processor time in these (USER_HZ).
const TICKS_A_SECOND: f64 = 100.0;
const METRICS: ([u8; 4], u16) = ([127, 0, 0, 1], 10249);
/// Lines of the log that are shown with a failure.
const LOG_LINES: usize = 15;

/// A running proxy; killed when dropped.
pub(super) struct Proxy<'a> {
    namespace: &'a Namespace,
    process: Child,
    log: PathBuf,
    /// CLOCK_MONOTONIC just before it was started, nanoseconds.
    pub(super) started: u64,
    started_wall: f64,
}

/// Processor time and switches between threads since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Seconds in user space and in the kernel, children included; counted in steps of 10 ms.
    pub(super) user: f64,
    pub(super) system: f64,
    /// Nanoseconds of all threads that are alive, exact.
    pub(super) nanoseconds: u64,
    /// How often a thread has gone to sleep.
    pub(super) waits: u64,
}

impl<'a> Proxy<'a> {
    pub(super) fn start(
        namespace: &'a Namespace,
        binary: &Path,
        flags: &[String],
        log: &Path,
    ) -> Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        let mut command = namespace.command(binary)?;
        command.args(flags).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let (started, started_wall) = (monotonic(), wall_clock());
        let process = command.spawn().with_context(|| format!("starting {}", binary.display()))?;
        Ok(Self { namespace, process, log: log.to_owned(), started, started_wall })
    }

    /// Fails when the process has ended, with the end of its log.
    pub(super) fn check(&mut self) -> Result<()> {
        let Some(status) = self.process.try_wait()? else { return Ok(()) };
        bail!("the proxy ended ({status}); its log ends with:\n{}", self.log_tail())
    }

    pub(super) fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    /// All families have been synced since it started, as its metrics say.
    pub(super) fn synced(&self) -> bool {
        let stamps = self.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds");
        !stamps.is_empty() && stamps.iter().all(|stamp| *stamp > self.started_wall)
    }

    /// Objects it has written to the kernel since its start, where it counts them.
    pub(super) fn objects_written(&self) -> Value {
        let counts = self.metric("kubeproxy_kernel_objects_written_total");
        if counts.is_empty() { Value::Null } else { json!(counts.iter().sum::<f64>()) }
    }

    fn metric(&self, name: &str) -> Vec<f64> {
        let page = testkit::http::get(self.namespace, SocketAddr::from(METRICS), "/metrics");
        page.map_or(Vec::new(), |page| gauge(&page.body, name))
    }

    fn proc(&self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.process.id());
        fs::read_to_string(&path).with_context(|| format!("reading {path}"))
    }

    pub(super) fn usage(&self) -> Result<Usage> {
        let stat = self.proc("stat")?;
        // proc_pid_stat(5): utime, stime, cutime and cstime are the 12th to 15th behind the name
        let fields = stat.rsplit(") ").next().unwrap_or_default().split_whitespace();
        let ticks: Vec<f64> = fields.skip(11).take(4).filter_map(|text| text.parse().ok()).collect();
        let [user, system, child_user, child_system] = ticks[..] else { bail!("/proc/…/stat is {stat:?}") };
        let mut usage = Usage {
            user: (user + child_user) / TICKS_A_SECOND,
            system: (system + child_system) / TICKS_A_SECOND,
            ..Usage::default()
        };
        for thread in fs::read_dir(format!("/proc/{}/task", self.process.id()))?.flatten() {
            // a thread may end meanwhile
            let read = |file: &str| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let first = read("schedstat").split_whitespace().next().and_then(|text| text.parse().ok());
            usage.nanoseconds += first.unwrap_or(0);
            usage.waits += field(&read("status"), "voluntary_ctxt_switches").unwrap_or(0);
        }
        Ok(usage)
    }

    /// Resident memory now and at most, MiB.
    pub(super) fn memory(&self) -> Result<(f64, f64)> {
        let status = self.proc("status")?;
        #[allow(clippy::cast_precision_loss)] // memory of a process in KiB is far below 2^52
        let mib = |name: &str| field(&status, name).unwrap_or(0) as f64 / 1024.0;
        Ok((round(mib("VmRSS")), round(mib("VmHWM"))))
    }

    /// SIGKILL.
    pub(super) fn kill(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Proxy<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The number in a line `NAME: NUMBER …`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Three decimals.
pub(super) fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// How the machine is, for the record.
pub(super) fn machine() -> Value {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: BTreeMap<_, _> = processors
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim(), value.trim()))
        .collect();
    json!({
        "cpu": models.get("model name").copied().unwrap_or("unknown"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": rustix::system::uname().release().to_string_lossy(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_a_status_file_is_found_by_its_whole_name() {
        let text = "nonvoluntary_ctxt_switches:\t9\nvoluntary_ctxt_switches:\t3\nVmRSS:\t  1024 kB\n";
        assert_eq!(field(text, "voluntary_ctxt_switches"), Some(3));
        assert_eq!(field(text, "VmRSS"), Some(1024));
        assert_eq!(field(text, "VmHWM"), None);
    }
}
