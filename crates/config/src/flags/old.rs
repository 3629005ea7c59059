//! Flags of earlier releases, so that old unit files and manifests keep working.

use super::Kind::{Bool, Duration, Int, Path, Text};
use super::current::put;
use super::{Flag, value};

/// They still act.
pub(super) const DEPRECATED: &[Flag] = &[
    Flag::new("healthz-port", Int, "", |low, v| put(&mut low.healthz_port, value::int(v).map(Some)))
        .deprecated("use --healthz-bind-address")
        .help("Port of the health server if its address names none; 0: no server."),
    Flag::new("metrics-port", Int, "", |low, v| put(&mut low.metrics_port, value::int(v).map(Some)))
        .deprecated("use --metrics-bind-address")
        .help("Port of the metrics server if its address names none; 0: no server."),
    Flag::new("cleanup-iptables", Bool, "false", |low, v| put(&mut low.cleanup, value::bool(v)))
        .beside_config()
        .deprecated("use --cleanup")
        .help("The same as --cleanup."),
    Flag::new("cleanup-ipvs", Bool, "true", |low, v| put(&mut low.cleanup_ipvs, value::bool(v)))
        .beside_config()
        .deprecated("leave it out: by default it does")
        .help("Whether --cleanup removes virtual servers."),
    Flag::new("conntrack-max", Int, "0", |low, v| put(&mut low.settings.conntrack.max, value::int(v)))
        .field("conntrack.max")
        .deprecated("use --conntrack-max-per-core and --conntrack-min")
        .help("Tracked connections in all; 0: by cores."),
    Flag::new("udp-timeout", Duration, "250ms", |low, v| {
        put(&mut low.settings.udp_idle_timeout, value::duration(v))
    })
    .field("udpIdleTimeout")
    .deprecated("only mode userspace goes by it")
    .help("Idle time-out of UDP sessions."),
    Flag::new("proxy-port-range", Text, "", |low, v| put(&mut low.settings.port_range, Ok(v.to_owned())))
        .field("portRange")
        .deprecated("only mode userspace goes by it")
        .help("Ports to listen on: begin-end, begin+offset or one; empty: any."),
];

const TO_STDERR: &str = "logs always go to stderr: redirect it or read the journal";
const HEADERS: &str = "the format of a line is fixed: use --logging-format=json to pick fields";
const CADVISOR: &str = "nothing reads it any more: remove it";
const WINDOWS: &str = "it is for Windows only: remove it";

/// They have lost their effect.
pub(super) const REMOVED: &[Flag] = &[
    Flag::removed("logtostderr", Bool, TO_STDERR),
    Flag::removed("alsologtostderr", Bool, TO_STDERR),
    Flag::removed("stderrthreshold", Text, TO_STDERR),
    Flag::removed("log-dir", Path, TO_STDERR),
    Flag::removed("log-file", Path, TO_STDERR),
    Flag::removed("log-file-max-size", Int, TO_STDERR),
    Flag::removed("one-output", Bool, TO_STDERR),
    Flag::removed("log-backtrace-at", Text, "use --v=6 or --vmodule to see more of one place"),
    Flag::removed("skip-headers", Bool, HEADERS),
    Flag::removed("skip-log-headers", Bool, HEADERS),
    Flag::removed("add-dir-header", Bool, HEADERS),
    Flag::removed("resource-container", Text, "put the process into a cgroup with its service manager"),
    Flag::removed("boot-id-file", Path, CADVISOR),
    Flag::removed("machine-id-file", Path, CADVISOR),
    Flag::removed("windows-service", Bool, WINDOWS),
    Flag::removed("network-name", Text, WINDOWS),
    Flag::removed("source-vip", Text, WINDOWS),
    Flag::removed("enable-dsr", Bool, WINDOWS),
    Flag::removed("root-hnsendpoint-name", Text, WINDOWS),
    Flag::removed("forward-healthcheck-vip", Bool, WINDOWS),
];
