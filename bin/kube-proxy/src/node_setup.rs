//! What the node needs once at the start: connection tracking limits, the score for the out-of-memory killer, the limit of
//! open files.
//!
//! A setting that cannot be written is a warning, never the end: in a container or a nested namespace these files are
//! often read-only, and a node with the old limits still serves.

use std::fs;
use std::path::{Path, PathBuf};

use config::ConntrackSettings;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

/// The files of the kernel, below `/` or below a test's folder.
pub(crate) struct NodeFiles {
    root: PathBuf,
}

const CONNTRACK: &str = "proc/sys/net/netfilter/nf_conntrack_";
const HASH_SIZE: &str = "sys/module/nf_conntrack/parameters/hashsize";
const ONLINE_CPUS: &str = "sys/devices/system/cpu/online";
const OOM_SCORE: &str = "proc/self/oom_score_adj";

impl NodeFiles {
    /// The files below `root`.
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    fn read(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.path(file)).ok()?.trim().parse().ok()
    }

    /// Writes a number; a failure is logged with the setting that turns it off.
    fn write(&self, file: &str, value: u64, setting: &str) {
        let path = self.path(file);
        match fs::write(&path, value.to_string()) {
            Ok(()) => info!(file = %path.display(), value, "Set"),
            Err(error) => warn!(
                file = %path.display(), value, %error,
                "Cannot be set, going on with the value it has; set it on the host, or turn this off with {setting}"
            ),
        }
    }

    /// Applies the connection tracking settings.
    pub(crate) fn set_conntrack(&self, settings: &ConntrackSettings) {
        if let Some(limit) = settings.limit(self.online_cpus()) {
            self.raise_limit(u64::from(limit));
        }
        let timeouts = [
            (
                "tcp_timeout_established",
                settings.tcp_established_timeout,
                "--conntrack-tcp-timeout-established=0",
            ),
            (
                "tcp_timeout_close_wait",
                settings.tcp_close_wait_timeout,
                "--conntrack-tcp-timeout-close-wait=0",
            ),
            ("udp_timeout", settings.udp_timeout, "--conntrack-udp-timeout=0"),
            ("udp_timeout_stream", settings.udp_stream_timeout, "--conntrack-udp-timeout-stream=0"),
        ];
        for (name, timeout, setting) in timeouts {
            if let Some(seconds) = timeout.map(|timeout| timeout.as_secs()).filter(|seconds| *seconds > 0) {
                self.set_if_different(&format!("{CONNTRACK}{name}"), seconds, setting);
            }
        }
        if settings.tcp_be_liberal {
            self.set_if_different(
                &format!("{CONNTRACK}tcp_be_liberal"),
                1,
                "--conntrack-tcp-be-liberal=false",
            );
        }
    }

    /// Limits are raised, never lowered: somebody may have wanted more.
    fn raise_limit(&self, limit: u64) {
        const SETTING: &str = "--conntrack-max-per-core=0";
        let max = format!("{CONNTRACK}max");
        if self.read(&max).is_none_or(|current| current < limit) {
            self.write(&max, limit, SETTING);
        }
        let buckets = limit / 4;
        if self.read(HASH_SIZE).is_some_and(|current| current < buckets) {
            self.write(HASH_SIZE, buckets, SETTING);
        }
    }

    fn set_if_different(&self, file: &str, value: u64, setting: &str) {
        if self.read(file) != Some(value) {
            self.write(file, value, setting);
        }
    }

    /// The CPUs that are online, those the process may not use included.
    fn online_cpus(&self) -> u32 {
        let ranges = fs::read_to_string(self.path(ONLINE_CPUS)).unwrap_or_default();
        let count = ranges.trim().split(',').filter_map(cpus_in).sum();
        u32::max(count, 1)
    }

    /// Sets this process' score for the out-of-memory killer, -1000 to 1000.
    pub(crate) fn set_oom_score(&self, score: i32) {
        let path: &Path = &self.path(OOM_SCORE);
        if let Err(error) = fs::write(path, score.to_string()) {
            warn!(score, %error, "The score for the out-of-memory killer cannot be set (--oom-score-adj)");
        }
    }
}

/// Lets this process open as many files as it may at all, as every Go program does. Tells how many.
pub(crate) fn raise_file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        warn!(%error, "The limit of open files cannot be raised to its maximum");
    }
    let files = getrlimit(Resource::Nofile).current;
    files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// How many CPUs a part of the list names: `3` or `0-7`.
fn cpus_in(range: &str) -> Option<u32> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
    last.checked_sub(first)?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOTHING: ConntrackSettings = ConntrackSettings {
        max: None,
        max_per_core: None,
        min: 131_072,
        tcp_established_timeout: None,
        tcp_close_wait_timeout: None,
        tcp_be_liberal: false,
        udp_timeout: None,
        udp_stream_timeout: None,
        removed_endpoint_reset_period: None,
    };

    /// A node with four CPUs, and a limit of 200,000 connections in 50,000 buckets.
    struct Node(tempfile::TempDir);

    impl Node {
        fn new() -> Self {
            let node = Self(tempfile::tempdir().unwrap());
            node.put(ONLINE_CPUS, "0-2,5\n");
            node.put(HASH_SIZE, "50000\n");
            node.put("proc/sys/net/netfilter/nf_conntrack_max", "200000\n");
            node.put("proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established", "432000\n");
            node
        }

        fn put(&self, file: &str, text: &str) {
            let path = self.0.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn get(&self, file: &str) -> String {
            fs::read_to_string(self.0.path().join(file)).unwrap()
        }

        fn limits(&self) -> (String, String) {
            (self.get("proc/sys/net/netfilter/nf_conntrack_max"), self.get(HASH_SIZE))
        }

        fn apply(&self, settings: &ConntrackSettings) {
            NodeFiles::new(self.0.path()).set_conntrack(settings);
        }
    }

    #[test]
    fn as_many_files_may_be_open_as_the_hard_limit_says() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let lower = maximum.map_or(1024, |maximum| maximum / 2);
        setrlimit(Resource::Nofile, Rlimit { current: Some(lower), maximum }).unwrap();
        let files = raise_file_limit();
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
        assert_eq!(u64::try_from(files).ok(), maximum.or(Some(u64::MAX)));
    }

    #[test]
    fn nothing_asked_for_writes_nothing() {
        let node = Node::new();
        node.apply(&NOTHING);
        assert_eq!(node.limits(), ("200000\n".into(), "50000\n".into()));
    }

    #[test]
    fn limits_grow_with_the_cpus_and_are_never_lowered() {
        let node = Node::new();
        node.apply(&ConntrackSettings { max_per_core: Some(1000), ..NOTHING });
        assert_eq!(node.limits(), ("200000\n".into(), "50000\n".into()));
        node.apply(&ConntrackSettings { max_per_core: Some(100_000), ..NOTHING });
        assert_eq!(node.limits(), ("400000".into(), "100000".into()));
    }

    #[test]
    fn timeouts_are_set_when_they_differ() {
        let node = Node::new();
        node.apply(&ConntrackSettings {
            tcp_established_timeout: Some(Duration::from_secs(86400)),
            ..NOTHING
        });
        assert_eq!(node.get("proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"), "86400");
    }

    #[test]
    fn files_that_cannot_be_written_do_not_stop_the_rest() {
        let node = Node::new();
        fs::remove_dir_all(node.0.path().join("sys/module")).unwrap();
        fs::remove_file(node.0.path().join("proc/sys/net/netfilter/nf_conntrack_max")).unwrap();
        fs::create_dir(node.0.path().join("proc/sys/net/netfilter/nf_conntrack_max")).unwrap();
        let timeout = Some(Duration::from_secs(5));
        node.apply(&ConntrackSettings { max: Some(500_000), tcp_established_timeout: timeout, ..NOTHING });
        assert_eq!(node.get("proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"), "5");
    }
}
