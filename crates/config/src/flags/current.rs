//! The flags in use.

use super::Kind::{Bool, Duration, Float, Gates, Int, Ip, IpPort, List, OptionalWord, Path, Patterns, Text};
use super::low::Low;
use super::{Flag, value};
use crate::version;

/// What the program does instead of, or next to, proxying.
pub(super) const ACTIONS: &[Flag] = &[
    Flag::new("help", Bool, "false", |low, v| put(&mut low.help, value::bool(v)))
        .short('h')
        .beside_config()
        .help("Print this text and exit."),
    Flag::new("version", OptionalWord, "false", |low, v| put(&mut low.version, version(v)))
        .beside_config()
        .help("Print the version and exit; --version=raw prints more of it."),
    Flag::new("config", Path, "", |low, v| put(&mut low.config, Ok(value::path(v))))
        .beside_config()
        .help("Configuration file; it replaces all flags but those marked with *."),
    Flag::new("write-config-to", Path, "", |low, v| put(&mut low.write_config_to, Ok(value::path(v))))
        .beside_config()
        .help("Write the effective configuration to this file and exit."),
    Flag::new("cleanup", Bool, "false", |low, v| put(&mut low.cleanup, value::bool(v)))
        .beside_config()
        .help("Remove what any mode left in the kernel and exit."),
    Flag::new("init-only", Bool, "false", |low, v| put(&mut low.init_only, value::bool(v)))
        .beside_config()
        .help("Do the privileged part of the start and exit; later starts need only CAP_NET_ADMIN."),
    Flag::new("feature-gates", Gates, "", |low, v| value::gates(&mut low.settings.feature_gates, v))
        .field("featureGates")
        .help("Switch features: name=true,name=false. Gates are listed in docs/flags.md."),
];

/// Where objects are read from.
pub(super) const SOURCES: &[Flag] = &[
    Flag::new("kubeconfig", Path, "", |low, v| {
        put(&mut low.settings.client_connection.kubeconfig, Ok(v.to_owned()))
    })
    .field("clientConnection.kubeconfig")
    .help("File with address and credentials of the API server; none: in-cluster ones."),
    Flag::new("master", Text, "", |low, v| put(&mut low.master, Ok(v.to_owned())))
        .beside_config()
        .help("Address of the API server; wins over the kubeconfig."),
    Flag::new("manifests", Path, "", |low, v| put(&mut low.manifests, Ok(value::path(v))))
        .beside_config()
        .added()
        .help("Read objects from this YAML or JSON file or folder; no API server needed."),
    Flag::new("kube-api-content-type", Text, "application/vnd.kubernetes.protobuf", |low, v| {
        put(&mut low.settings.client_connection.content_type, Ok(v.to_owned()))
    })
    .field("clientConnection.contentType")
    .help("Content type of requests to the API server."),
    Flag::new("kube-api-qps", Float, "5", |low, v| {
        put(&mut low.settings.client_connection.qps, value::float(v))
    })
    .field("clientConnection.qps")
    .help("Requests to the API server per second; negative: no limit."),
    Flag::new("kube-api-burst", Int, "10", |low, v| {
        put(&mut low.settings.client_connection.burst, value::int(v))
    })
    .field("clientConnection.burst")
    .help("Requests that may be sent at once beyond that."),
    Flag::new("config-sync-period", Duration, "15m0s", |low, v| {
        put(&mut low.settings.config_sync_period, value::duration(v))
    })
    .field("configSyncPeriod")
    .help("How often all objects are considered anew; more than 0."),
];

/// Facts about this node and process.
pub(super) const NODE: &[Flag] = &[
    Flag::new("hostname-override", Text, "", |low, v| {
        put(&mut low.settings.hostname_override, Ok(v.to_owned()))
    })
    .field("hostnameOverride")
    .beside_config()
    .help("Name of this Node, instead of the host's name."),
    Flag::new("bind-address", Ip, "0.0.0.0", |low, v| put(&mut low.settings.bind_address, bind_address(v)))
        .field("bindAddress")
        .help("This node's primary IP and family; nothing is bound to it (but in mode userspace)."),
    Flag::new("oom-score-adj", Int, "-999", |low, v| put(&mut low.settings.oom_score_adj, value::int(v)))
        .field("oomScoreAdj")
        .help("oom_score_adj of this process, -1000 to 1000."),
];

/// What holds in all modes.
pub(super) const PROXY: &[Flag] = &[
    Flag::new("proxy-mode", Text, "", |low, v| put(&mut low.settings.mode, Ok(v.to_owned())))
        .field("mode")
        .help("nftables, iptables, ipvs or userspace; empty: nftables where the kernel can, else iptables."),
    Flag::new("masquerade-all", Bool, "false", masquerade_all)
        .field("iptables.masqueradeAll, nftables.masqueradeAll")
        .help("Replace the source address of all traffic to cluster IPs."),
    Flag::new("nodeport-addresses", List, "", |low, v| {
        value::extend(&mut low.settings.node_port_addresses, v);
        Ok(())
    })
    .field("nodePortAddresses")
    .help(
        "Node addresses that take node ports: CIDRs, primary, localhost, all. Empty: by mode primary or all.",
    ),
];

/// How traffic of local pods is recognised.
pub(super) const DETECT_LOCAL: &[Flag] = &[
    Flag::new("detect-local-mode", Text, "ClusterCIDR", |low, v| {
        put(&mut low.settings.detect_local_mode, detect_local_mode(v))
    })
    .field("detectLocalMode")
    .help("ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix."),
    Flag::new("cluster-cidr", Text, "", |low, v| put(&mut low.settings.cluster_cidr, Ok(v.to_owned())))
        .field("clusterCIDR")
        .help("For ClusterCIDR: range of pod addresses, at most one for each family."),
    Flag::new("pod-bridge-interface", Text, "", |low, v| {
        put(&mut low.settings.detect_local.bridge_interface, Ok(v.to_owned()))
    })
    .field("detectLocal.bridgeInterface")
    .help("For BridgeInterface: the bridge local pods are behind."),
    Flag::new("pod-interface-name-prefix", Text, "", |low, v| {
        put(&mut low.settings.detect_local.interface_name_prefix, Ok(v.to_owned()))
    })
    .field("detectLocal.interfaceNamePrefix")
    .help("For InterfaceNamePrefix: how names of local pods' interfaces begin."),
];

/// Settings of the modes nftables and iptables.
pub(super) const TABLES: &[Flag] = &[
    Flag::new("nftables-own-table", Bool, "true", |low, v| put(&mut low.nftables_own_table, value::bool(v)))
        .beside_config()
        .added()
        .help("Mark the nftables table as owned and persistent, so that foreign flushes leave it alone."),
    Flag::new("iptables-sync-period", Duration, "30s", sync_period)
        .field("iptables.syncPeriod, nftables.syncPeriod")
        .help("How often the rules are checked against the kernel; more than 0."),
    Flag::new("iptables-min-sync-period", Duration, "1s", min_sync_period)
        .field("iptables.minSyncPeriod, nftables.minSyncPeriod")
        .help("Shortest time between two updates of the rules; 0: every change at once."),
    Flag::new("iptables-masquerade-bit", Int, "14", |low, v| {
        put(&mut low.settings.iptables.masquerade_bit, value::int(v))
    })
    .field("iptables.masqueradeBit")
    .help("Bit of the packet mark for masquerading in modes iptables and ipvs, 0 to 31."),
    Flag::new("iptables-localhost-nodeports", Bool, "true", |low, v| {
        put(&mut low.settings.iptables.localhost_node_ports, value::bool(v))
    })
    .field("iptables.localhostNodePorts")
    .help("Node ports on 127.0.0.1 in mode iptables, IPv4 only."),
];

/// Settings of the mode ipvs.
pub(super) const IPVS: &[Flag] = &[
    Flag::new("ipvs-sync-period", Duration, "30s", |low, v| {
        put(&mut low.settings.ipvs.sync_period, value::duration(v))
    })
    .field("ipvs.syncPeriod")
    .help("How often the virtual servers are checked against the kernel; more than 0."),
    Flag::new("ipvs-min-sync-period", Duration, "1s", |low, v| {
        put(&mut low.settings.ipvs.min_sync_period, value::duration(v))
    })
    .field("ipvs.minSyncPeriod")
    .help("Shortest time between two updates; 0: every change at once."),
    Flag::new("ipvs-scheduler", Text, "", |low, v| put(&mut low.settings.ipvs.scheduler, Ok(v.to_owned())))
        .field("ipvs.scheduler")
        .help("A scheduler the kernel has; empty: rr."),
    Flag::new("ipvs-exclude-cidrs", List, "", |low, v| {
        value::extend(&mut low.settings.ipvs.exclude_cidrs, v);
        Ok(())
    })
    .field("ipvs.excludeCIDRs")
    .help("Virtual servers in these ranges are not touched."),
    Flag::new("ipvs-strict-arp", Bool, "false", |low, v| {
        put(&mut low.settings.ipvs.strict_arp, value::bool(v))
    })
    .field("ipvs.strictARP")
    .help("Set arp_ignore to 1 and arp_announce to 2."),
    Flag::new("ipvs-tcp-timeout", Duration, "0s", |low, v| {
        put(&mut low.settings.ipvs.tcp_timeout, value::duration(v))
    })
    .field("ipvs.tcpTimeout")
    .help("Time-out of idle TCP connections; 0: leave it."),
    Flag::new("ipvs-tcpfin-timeout", Duration, "0s", |low, v| {
        put(&mut low.settings.ipvs.tcp_fin_timeout, value::duration(v))
    })
    .field("ipvs.tcpFinTimeout")
    .help("Time-out of TCP connections after a FIN; 0: leave it."),
    Flag::new("ipvs-udp-timeout", Duration, "0s", |low, v| {
        put(&mut low.settings.ipvs.udp_timeout, value::duration(v))
    })
    .field("ipvs.udpTimeout")
    .help("Time-out of UDP packets; 0: leave it."),
];

/// Limits of connection tracking, set at the start.
pub(super) const CONNTRACK: &[Flag] = &[
    Flag::new("conntrack-max-per-core", Int, "32768", |low, v| {
        put(&mut low.settings.conntrack.max_per_core, value::int(v))
    })
    .field("conntrack.maxPerCore")
    .help("Tracked connections per CPU core; 0: leave the limit and ignore --conntrack-min."),
    Flag::new("conntrack-min", Int, "131072", |low, v| put(&mut low.settings.conntrack.min, value::int(v)))
        .field("conntrack.min")
        .help("Least number of tracked connections, whatever --conntrack-max-per-core gives."),
    Flag::new("conntrack-tcp-timeout-established", Duration, "24h0m0s", |low, v| {
        put(&mut low.settings.conntrack.tcp_established_timeout, value::duration(v))
    })
    .field("conntrack.tcpEstablishedTimeout")
    .help("Idle time-out of established TCP connections; 0: leave it."),
    Flag::new("conntrack-tcp-timeout-close-wait", Duration, "1h0m0s", |low, v| {
        put(&mut low.settings.conntrack.tcp_close_wait_timeout, value::duration(v))
    })
    .field("conntrack.tcpCloseWaitTimeout")
    .help("Time-out of TCP connections in CLOSE_WAIT; 0: leave it."),
    Flag::new("conntrack-tcp-be-liberal", Bool, "false", |low, v| {
        put(&mut low.settings.conntrack.tcp_be_liberal, value::bool(v))
    })
    .field("conntrack.tcpBeLiberal")
    .help("Set nf_conntrack_tcp_be_liberal to 1."),
    Flag::new("conntrack-udp-timeout", Duration, "0s", |low, v| {
        put(&mut low.settings.conntrack.udp_timeout, value::duration(v))
    })
    .field("conntrack.udpTimeout")
    .help("Idle time-out of unanswered UDP flows; 0: leave it."),
    Flag::new("conntrack-udp-timeout-stream", Duration, "0s", |low, v| {
        put(&mut low.settings.conntrack.udp_stream_timeout, value::duration(v))
    })
    .field("conntrack.udpStreamTimeout")
    .help("Idle time-out of answered UDP flows; 0: leave it."),
    Flag::new("conntrack-removed-endpoint-reset-period", Duration, "3m0s", |low, v| {
        put(&mut low.settings.conntrack.removed_endpoint_reset_period, value::duration(v))
    })
    .field("conntrack.removedEndpointResetPeriod")
    .added()
    .help("How long TCP connections to a removed endpoint are reset; 0: never."),
];

/// The servers for health and metrics.
pub(super) const HTTP: &[Flag] = &[
    Flag::new("healthz-bind-address", IpPort, "0.0.0.0:10256", |low, v| {
        put(&mut low.settings.healthz_bind_address, value::ip_port(v).map(Some))
    })
    .field("healthzBindAddress")
    .help("Address of the health server ([::] if --bind-address is IPv6); empty: none."),
    Flag::new("metrics-bind-address", IpPort, "127.0.0.1:10249", |low, v| {
        put(&mut low.settings.metrics_bind_address, value::ip_port(v).map(Some))
    })
    .field("metricsBindAddress")
    .help("Address of the metrics server ([::1] if --bind-address is IPv6); empty: none."),
    Flag::new("bind-address-hard-fail", Bool, "false", |low, v| {
        put(&mut low.settings.bind_address_hard_fail, value::bool(v))
    })
    .field("bindAddressHardFail")
    .help("Exit if one of the two addresses is taken, instead of trying again."),
    Flag::new("profiling", Bool, "false", |low, v| put(&mut low.settings.enable_profiling, value::bool(v)))
        .field("enableProfiling")
        .help("Serve /debug/pprof and /debug/flags/v on the metrics address."),
    Flag::new("show-hidden-metrics-for-version", Text, "", |low, v| {
        put(&mut low.settings.show_hidden_metrics_for_version, Ok(v.to_owned()))
    })
    .field("showHiddenMetricsForVersion")
    .help("Show metrics hidden since the previous minor version, such as 1.36."),
];

/// Logging; all of these act next to a configuration file.
pub(super) const LOGGING: &[Flag] = &[
    Flag::new("v", Int, "0", |low, v| put(&mut low.settings.logging.verbosity, value::unsigned(v)))
        .field("logging.verbosity")
        .short('v')
        .beside_config()
        .help("Level of detail: 0 little, 2 usual, 4 debugging, 6 and more everything."),
    Flag::new("vmodule", Patterns, "", |low, v| value::patterns(&mut low.settings.logging.vmodule, v))
        .field("logging.vmodule")
        .beside_config()
        .help("Levels for single modules: pattern=N,..."),
    Flag::new("logging-format", Text, "text", |low, v| {
        put(&mut low.settings.logging.format, Ok(v.to_owned()))
    })
    .field("logging.format")
    .beside_config()
    .help("text or json."),
    Flag::new("log-flush-frequency", Duration, "5s", |low, v| {
        put(&mut low.settings.logging.flush_frequency, value::duration(v))
    })
    .field("logging.flushFrequency")
    .beside_config()
    .help("Longest time a buffered line is held back."),
    Flag::new("log-text-split-stream", Bool, "false", |low, v| {
        put(&mut low.settings.logging.options.text.split_stream, value::bool(v))
    })
    .field("logging.options.text.splitStream")
    .beside_config()
    .help("Text: errors to stderr, the rest to stdout (gate LoggingAlphaOptions)."),
    Flag::new("log-text-info-buffer-size", Text, "0", |low, v| {
        put(&mut low.settings.logging.options.text.info_buffer_size, Ok(v.to_owned()))
    })
    .field("logging.options.text.infoBufferSize")
    .beside_config()
    .help("Text: buffer for stdout in bytes, or 1K, 2Ki, 5Mi (gate LoggingAlphaOptions)."),
    Flag::new("log-json-split-stream", Bool, "false", |low, v| {
        put(&mut low.settings.logging.options.json.split_stream, value::bool(v))
    })
    .field("logging.options.json.splitStream")
    .beside_config()
    .help("JSON: errors to stderr, the rest to stdout (gate LoggingAlphaOptions)."),
    Flag::new("log-json-info-buffer-size", Text, "0", |low, v| {
        put(&mut low.settings.logging.options.json.info_buffer_size, Ok(v.to_owned()))
    })
    .field("logging.options.json.infoBufferSize")
    .beside_config()
    .help("JSON: buffer for stdout in bytes, or 1K, 2Ki, 5Mi (gate LoggingAlphaOptions)."),
];

/// Keeps a value that could be read.
pub(super) fn put<T>(target: &mut T, value: Result<T, String>) -> Result<(), String> {
    *target = value?;
    Ok(())
}

fn version(value: &str) -> Result<String, String> {
    match value {
        "raw" => Ok("raw".into()),
        other if other.starts_with('v') => version::check_override(other).map(|()| other.into()),
        other => value::bool(other)
            .map(|on| on.to_string())
            .map_err(|_| format!("{other:?} is none of true, false, raw, {}", version::KUBERNETES)),
    }
}

/// The empty text means the default.
fn bind_address(value: &str) -> Result<String, String> {
    value::ip(if value.is_empty() { "0.0.0.0" } else { value })
}

/// The empty text means the default.
#[allow(clippy::unnecessary_wraps)] // the signature of all values
fn detect_local_mode(value: &str) -> Result<String, String> {
    Ok(if value.is_empty() { "ClusterCIDR" } else { value }.into())
}

fn masquerade_all(low: &mut Low, value: &str) -> Result<(), String> {
    put(&mut low.settings.iptables.masquerade_all, value::bool(value))?;
    put(&mut low.settings.nftables.masquerade_all, value::bool(value))
}

fn sync_period(low: &mut Low, value: &str) -> Result<(), String> {
    put(&mut low.settings.iptables.sync_period, value::duration(value))?;
    put(&mut low.settings.nftables.sync_period, value::duration(value))
}

fn min_sync_period(low: &mut Low, value: &str) -> Result<(), String> {
    put(&mut low.settings.iptables.min_sync_period, value::duration(value))?;
    put(&mut low.settings.nftables.min_sync_period, value::duration(value))
}
