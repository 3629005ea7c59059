//! From what the user asked for to what it means here: completes, checks, and gives every value its type.
//!
//! A value that cannot stand is noted and replaced by a harmless one, so that the rest is checked too. The
//! caller drops the result if anything was noted.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;

use crate::config::{
    Config, ConntrackSettings, DetectLocal, IptablesSettings, IpvsSettings, LogFormat, LoggingSettings,
    Masquerade, Mode, NftablesSettings, NodePortAddress, SourceSettings, Sync, UserspaceSettings,
};
use crate::duration::GoDuration;
use crate::findings::Findings;
use crate::flags::Low;
use crate::gates::{self, FeatureGates, Gate};
use crate::net;
use crate::v1alpha1::{Conntrack, Ipvs, KubeProxyConfiguration, Logging, UDP_IDLE_TIMEOUT};
use crate::version;

const HEALTHZ_PORT: u16 = 10256;
const METRICS_PORT: u16 = 10249;
/// Length of the longest interface name (`IFNAMSIZ` of linux/if.h, without the closing zero).
const LONGEST_INTERFACE: usize = 15;

/// Completes `low` and turns it into a [`Config`]; `os_hostname` is the name of this host.
pub(crate) fn resolve(mut low: Low, os_hostname: &str, findings: &mut Findings) -> Config {
    complete(&mut low, findings);
    let s = low.settings;
    let gates = gates::resolve(&s.feature_gates, findings);
    let mode = mode(&s.mode, &gates, findings);
    let modes = Modes::check(&s, mode, findings);
    if low.config.is_some() {
        note_old_fields(&s, mode, findings);
    }
    let bind_address = net::ip(&s.bind_address).unwrap_or_else(|| {
        findings.mistake("bindAddress", quoted(&s.bind_address), "must be an IP address");
        IpAddr::from([0, 0, 0, 0])
    });
    let mut address = |field: &str, text: &Option<String>, port| {
        let text = text.as_deref().filter(|text| !text.is_empty())?;
        net::ip_port(text, port).map_err(|reason| findings.mistake(field, quoted(text), reason)).ok()
    };
    let healthz_bind_address = address("healthzBindAddress", &s.healthz_bind_address, HEALTHZ_PORT);
    let metrics_bind_address = address("metricsBindAddress", &s.metrics_bind_address, METRICS_PORT);
    if let (Some(healthz), Some(metrics)) = (healthz_bind_address, metrics_bind_address)
        && collide(healthz, metrics)
    {
        findings.warn(format!(
            "healthzBindAddress {healthz} and metricsBindAddress {metrics} cannot both be listened on: the second server will not start; \
             give them different ports"
        ));
    }
    Config {
        hostname: hostname(&s.hostname_override, os_hostname, findings),
        config_file: low.config,
        init_only: low.init_only,
        cleanup_ipvs: low.cleanup_ipvs,
        source: SourceSettings {
            manifests: low.manifests,
            kubeconfig: given(&s.client_connection.kubeconfig).map(Into::into),
            master: given(&low.master).map(Into::into),
            content_type: s.client_connection.content_type.clone(),
            accept_content_types: s.client_connection.accept_content_types.clone(),
            qps: s.client_connection.qps,
            burst: count("clientConnection.burst", s.client_connection.burst, findings),
            resync_period: positive("configSyncPeriod", s.config_sync_period, findings),
        },
        mode,
        nftables: NftablesSettings { own_table: low.nftables_own_table, ..modes.nftables },
        iptables: modes.iptables,
        ipvs: modes.ipvs,
        userspace: modes.userspace,
        detect_local: detect_local(&s, findings),
        node_port_addresses: node_port_addresses(&s.node_port_addresses, findings),
        bind_address,
        healthz_bind_address,
        metrics_bind_address,
        bind_address_hard_fail: s.bind_address_hard_fail,
        profiling: s.enable_profiling,
        show_hidden_metrics: show_hidden_metrics(&s.show_hidden_metrics_for_version, findings),
        oom_score_adj: within("oomScoreAdj", s.oom_score_adj, -1000..=1000, findings),
        conntrack: conntrack(&s.conntrack, findings),
        logging: logging(&s.logging, &gates, findings),
        gates,
        version: Some(low.version).filter(|v| v.starts_with('v')).unwrap_or(version::KUBERNETES.into()),
        written: s,
    }
}

/// Fills in what depends on other settings, so that the written form shows what will hold.
fn complete(low: &mut Low, findings: &mut Findings) {
    let s = &mut low.settings;
    let v6 = net::ip(&s.bind_address).is_some_and(|ip| ip.is_ipv6());
    let (any, loopback) = if v6 { ("::", "::1") } else { ("0.0.0.0", "127.0.0.1") };
    let healthz = port("--healthz-port", low.healthz_port, HEALTHZ_PORT, findings);
    let metrics = port("--metrics-port", low.metrics_port, METRICS_PORT, findings);
    complete_address(&mut s.healthz_bind_address, any, healthz);
    complete_address(&mut s.metrics_bind_address, loopback, metrics);
    if s.mode == Mode::Nftables.as_str() && s.node_port_addresses.is_empty() {
        s.node_port_addresses.push("primary".into());
    }
}

/// Whether only one of two servers can have its address. A wildcard of IPv6 takes IPv4, too.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let covers = |a: IpAddr, b: IpAddr| a == b || (a.is_unspecified() && (a.is_ipv6() || b.is_ipv4()));
    one.port() == other.port() && (covers(one.ip(), other.ip()) || covers(other.ip(), one.ip()))
}

/// The port of the deprecated flags; `None` (from 0) disables the server.
fn port(flag: &str, given: Option<i32>, default: u16, findings: &mut Findings) -> Option<u16> {
    let Some(number) = given else { return Some(default) };
    let port = u16::try_from(within(flag, number, 0..=65535, findings)).unwrap_or(default);
    (port != 0).then_some(port)
}

fn complete_address(address: &mut Option<String>, default_host: &str, port: Option<u16>) {
    let text = address.as_deref().unwrap_or(default_host);
    // Only a bare address takes a port; a wrong or complete one stays for the check that follows.
    match (net::ip(text), port) {
        (Some(ip), Some(port)) => *address = Some(SocketAddr::new(ip, port).to_string()),
        (Some(_), None) => *address = Some(String::new()),
        (None, _) => {}
    }
}

fn hostname(chosen: &str, os: &str, findings: &mut Findings) -> String {
    let (field, name, allowed) = if chosen.is_empty() {
        ("hostname", os, "this host has no name: give one with --hostname-override")
    } else {
        ("hostnameOverride", chosen, "must be the name of this Node, not only spaces")
    };
    let trimmed = name.trim();
    if trimmed.is_empty() {
        findings.mistake(field, quoted(name), allowed);
    }
    trimmed.to_lowercase()
}

fn mode(word: &str, gates: &FeatureGates, findings: &mut Findings) -> Mode {
    const EMPTY: &str = "or empty (empty: nftables where the kernel can, else iptables)";
    match Mode::from_word(word) {
        Some(Mode::Ipvs) if !gates.enabled(Gate::KubeProxyIpvs) => {
            let allowed = format!("must be nftables, iptables, userspace {EMPTY} while KubeProxyIPVS is off");
            findings.mistake("mode", quoted(word), allowed);
        }
        Some(mode) => return mode,
        None => {
            let allowed = format!("must be nftables, iptables, ipvs, userspace {EMPTY}");
            findings.mistake("mode", quoted(word), allowed);
        }
    }
    Mode::Auto
}

/// The settings of each mode.
struct Modes {
    nftables: NftablesSettings,
    iptables: IptablesSettings,
    ipvs: IpvsSettings,
    userspace: UserspaceSettings,
}

impl Modes {
    /// Checks all sections; mistakes in sections `mode` does not use become warnings.
    fn check(s: &KubeProxyConfiguration, mode: Mode, findings: &mut Findings) -> Self {
        let iptables = in_use(mode != Mode::Nftables, mode, findings, |f| {
            let (bit, all) = (s.iptables.masquerade_bit, s.iptables.masquerade_all);
            IptablesSettings {
                masquerade: masquerade("iptables", bit, all, f),
                sync: sync("iptables", s.iptables.sync_period, s.iptables.min_sync_period, f),
                localhost_node_ports: s.iptables.localhost_node_ports,
            }
        });
        let nftables = in_use(matches!(mode, Mode::Nftables | Mode::Auto), mode, findings, |f| {
            let (bit, all) = (s.nftables.masquerade_bit, s.nftables.masquerade_all);
            NftablesSettings {
                masquerade: masquerade("nftables", bit, all, f),
                sync: sync("nftables", s.nftables.sync_period, s.nftables.min_sync_period, f),
                own_table: true,
            }
        });
        let ipvs = in_use(mode == Mode::Ipvs, mode, findings, |f| ipvs(&s.ipvs, f));
        let userspace = in_use(mode == Mode::Userspace, mode, findings, |f| UserspaceSettings {
            udp_idle_timeout: positive("udpIdleTimeout", s.udp_idle_timeout, f),
            ports: port_range(&s.port_range, f),
        });
        Self { nftables, iptables, ipvs, userspace }
    }
}

/// Warns about fields of earlier releases; of the flags with the same meaning, the table of flags warns.
fn note_old_fields(s: &KubeProxyConfiguration, mode: Mode, findings: &mut Findings) {
    let userspace_only = "has no effect: it is for mode userspace";
    let not_userspace = mode != Mode::Userspace;
    for (noted, field, words) in [
        (s.conntrack.max != 0, "conntrack.max", "is deprecated: use conntrack.maxPerCore and conntrack.min"),
        (not_userspace && s.udp_idle_timeout != UDP_IDLE_TIMEOUT, "udpIdleTimeout", userspace_only),
        (not_userspace && !s.port_range.is_empty(), "portRange", userspace_only),
    ] {
        if noted {
            findings.warn(format!("configuration field {field} {words}"));
        }
    }
}

/// Checks a section; if `mode` does not use it, its mistakes become warnings.
fn in_use<T>(used: bool, mode: Mode, findings: &mut Findings, read: impl FnOnce(&mut Findings) -> T) -> T {
    if used {
        return read(findings);
    }
    let mut aside = Findings::default();
    let settings = read(&mut aside);
    let mode = if mode == Mode::Auto { "automatic" } else { mode.as_str() };
    for m in aside.mistakes {
        let (field, value, allowed) = (m.field, m.value, m.allowed);
        findings.warn(format!("{field}: {value} {allowed}; it has no effect in mode {mode}"));
    }
    settings
}

fn masquerade(section: &str, bit: i32, all: bool, findings: &mut Findings) -> Masquerade {
    let bit = within(&format!("{section}.masqueradeBit"), bit, 0..=31, findings);
    Masquerade { bit: u8::try_from(bit).unwrap_or_default(), all }
}

fn sync(section: &str, period: GoDuration, least: GoDuration, findings: &mut Findings) -> Sync {
    let field = format!("{section}.syncPeriod");
    let sync = Sync {
        period: positive(&field, period, findings),
        min_period: zero_or_more(&format!("{section}.minSyncPeriod"), least, findings),
    };
    if period > GoDuration::ZERO && least > period {
        findings.mistake(field, period, format!("must not be less than minSyncPeriod, which is {least}"));
    }
    sync
}

fn ipvs(s: &Ipvs, findings: &mut Findings) -> IpvsSettings {
    let mut exclude_cidrs = Vec::new();
    for (i, text) in s.exclude_cidrs.iter().enumerate() {
        exclude_cidrs.extend(cidr(&format!("ipvs.excludeCIDRs[{i}]"), text, findings));
    }
    IpvsSettings {
        sync: sync("ipvs", s.sync_period, s.min_sync_period, findings),
        scheduler: given(&s.scheduler).unwrap_or("rr").to_owned(),
        exclude_cidrs,
        strict_arp: s.strict_arp,
        tcp_timeout: timeout("ipvs.tcpTimeout", s.tcp_timeout, findings),
        tcp_fin_timeout: timeout("ipvs.tcpFinTimeout", s.tcp_fin_timeout, findings),
        udp_timeout: timeout("ipvs.udpTimeout", s.udp_timeout, findings),
    }
}

fn port_range(text: &str, findings: &mut Findings) -> Option<RangeInclusive<u16>> {
    let read = || {
        if let Some((from, more)) = text.split_once('+') {
            let from: u16 = from.trim().parse().ok()?;
            return Some(from..=from.checked_add(more.trim().parse().ok()?)?);
        }
        let (from, to) = text.split_once('-').unwrap_or((text, text));
        Some(from.trim().parse().ok()?..=to.trim().parse().ok()?)
    };
    if text.is_empty() {
        return None;
    }
    match read() {
        Some(range) if (*range.start(), *range.end()) == (0, 0) => None,
        Some(range) if *range.start() > 0 && !range.is_empty() => Some(range),
        _ => {
            let allowed = "must be a port, begin-end or begin+offset within 1 to 65535, or 0 for any port";
            findings.mistake("portRange", quoted(text), allowed);
            None
        }
    }
}

fn detect_local(s: &KubeProxyConfiguration, findings: &mut Findings) -> DetectLocal {
    let (bridge, prefix) = (&s.detect_local.bridge_interface, &s.detect_local.interface_name_prefix);
    let mut required = |field: &str, text: &String| {
        if text.is_empty() {
            let allowed = format!("must not be empty if detectLocalMode is {}", s.detect_local_mode);
            findings.mistake(field, quoted(text), allowed);
        } else if text.len() > LONGEST_INTERFACE {
            findings.warn(format!(
                "{field}: {text:?} is longer than any interface name ({LONGEST_INTERFACE}): no traffic is local"
            ));
        }
        text.clone()
    };
    match s.detect_local_mode.as_str() {
        "NodeCIDR" => DetectLocal::NodeCidr,
        "BridgeInterface" => DetectLocal::BridgeInterface(required("detectLocal.bridgeInterface", bridge)),
        "InterfaceNamePrefix" => {
            DetectLocal::InterfaceNamePrefix(required("detectLocal.interfaceNamePrefix", prefix))
        }
        "ClusterCIDR" => DetectLocal::ClusterCidr(cluster_cidrs(&s.cluster_cidr, findings)),
        other => {
            let allowed = "must be ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix or empty";
            findings.mistake("detectLocalMode", quoted(other), allowed);
            DetectLocal::NodeCidr
        }
    }
}

fn cluster_cidrs(text: &str, findings: &mut Findings) -> Vec<IpNet> {
    let mut cidrs = Vec::new();
    if let Some(list) = given(text) {
        let all: Vec<_> = list.split(',').filter_map(|text| cidr("clusterCIDR", text, findings)).collect();
        let one_a_family = all.iter().filter(|net| net.addr().is_ipv4()).count() <= 1
            && all.iter().filter(|net| net.addr().is_ipv6()).count() <= 1;
        if !one_a_family {
            findings.mistake("clusterCIDR", quoted(list), "must be at most one range for each IP family");
        }
        cidrs = all;
    }
    cidrs
}

fn node_port_addresses(list: &[String], findings: &mut Findings) -> Vec<NodePortAddress> {
    let mut addresses = Vec::new();
    for (i, text) in list.iter().enumerate() {
        addresses.push(match text.as_str() {
            "primary" => NodePortAddress::Primary,
            "localhost" => NodePortAddress::Localhost,
            "all" => NodePortAddress::All,
            other => {
                let Some(net) = net::cidr(other) else {
                    let allowed = "must be a range such as 192.0.2.0/24, or primary, localhost or all";
                    findings.mistake(format!("nodePortAddresses[{i}]"), quoted(other), allowed);
                    continue;
                };
                NodePortAddress::Cidr(net)
            }
        });
    }
    addresses
}

fn show_hidden_metrics(version: &str, findings: &mut Findings) -> bool {
    let previous = version::PREVIOUS_MINOR;
    if !version.is_empty() && version != previous {
        let allowed = format!("must be empty or {previous:?}, the previous minor version");
        findings.mistake("showHiddenMetricsForVersion", quoted(version), allowed);
    }
    version == previous
}

fn conntrack(s: &Conntrack, findings: &mut Findings) -> ConntrackSettings {
    let limit = |count: u32| (count > 0).then_some(count);
    ConntrackSettings {
        max: limit(count("conntrack.max", s.max, findings)),
        max_per_core: limit(count("conntrack.maxPerCore", s.max_per_core, findings)),
        min: count("conntrack.min", s.min, findings),
        tcp_established_timeout: timeout(
            "conntrack.tcpEstablishedTimeout",
            s.tcp_established_timeout,
            findings,
        ),
        tcp_close_wait_timeout: timeout("conntrack.tcpCloseWaitTimeout", s.tcp_close_wait_timeout, findings),
        tcp_be_liberal: s.tcp_be_liberal,
        udp_timeout: timeout("conntrack.udpTimeout", s.udp_timeout, findings),
        udp_stream_timeout: timeout("conntrack.udpStreamTimeout", s.udp_stream_timeout, findings),
        removed_endpoint_reset_period: timeout(
            "conntrack.removedEndpointResetPeriod",
            s.removed_endpoint_reset_period,
            findings,
        ),
    }
}

fn logging(s: &Logging, gates: &FeatureGates, findings: &mut Findings) -> LoggingSettings {
    let format = match s.format.as_str() {
        "text" => LogFormat::Text,
        "json" => LogFormat::Json,
        other => {
            findings.mistake("logging.format", quoted(other), "must be text or json");
            LogFormat::Text
        }
    };
    if format == LogFormat::Json && !gates.enabled(Gate::LoggingBetaOptions) {
        findings.mistake("logging.format", quoted("json"), "must be text while LoggingBetaOptions is off");
    }
    let mut buffers = [0, 0];
    for (i, (name, streams)) in [("text", &s.options.text), ("json", &s.options.json)].into_iter().enumerate()
    {
        let field = format!("logging.options.{name}.infoBufferSize");
        let size = quantity(&streams.info_buffer_size);
        if size.is_none() {
            let allowed = "must be a number of bytes such as 512, 1K, 2Ki or 5Mi";
            findings.mistake(&field, quoted(&streams.info_buffer_size), allowed);
        }
        buffers[i] = size.unwrap_or_default();
        if !gates.enabled(Gate::LoggingAlphaOptions) {
            let allowed = "needs the feature gate LoggingAlphaOptions=true";
            if streams.split_stream {
                findings.mistake(format!("logging.options.{name}.splitStream"), true, allowed);
            }
            if buffers[i] > 0 {
                findings.mistake(field, quoted(&streams.info_buffer_size), allowed);
            }
        }
    }
    let [text_buffer, json_buffer] = buffers;
    let (streams, info_buffer_bytes) = match format {
        LogFormat::Text => (&s.options.text, text_buffer),
        LogFormat::Json => (&s.options.json, json_buffer),
    };
    LoggingSettings {
        format,
        verbosity: s.verbosity,
        vmodule: s.vmodule.clone(),
        flush_frequency: positive("logging.flushFrequency", s.flush_frequency, findings),
        split_stream: streams.split_stream,
        info_buffer_bytes,
    }
}

/// A number of bytes with an optional suffix, as in Kubernetes' quantities.
fn quantity(text: &str) -> Option<u64> {
    const SUFFIXES: [(&str, u64); 8] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("k", 1_000),
        ("K", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("", 1),
    ];
    let (suffix, factor) = SUFFIXES.into_iter().find(|(suffix, _)| text.ends_with(suffix))?;
    let digits = text.strip_suffix(suffix)?;
    let number: u64 = digits.parse().ok().filter(|_| !digits.starts_with('+'))?;
    number.checked_mul(factor)
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.trim().is_empty())
}

fn cidr(field: &str, text: &str, findings: &mut Findings) -> Option<IpNet> {
    let net = net::cidr(text.trim());
    if net.is_none() {
        findings.mistake(field, quoted(text), "must be a range such as 10.128.0.0/14 or 2001:db8::/48");
    }
    net
}

fn within(field: &str, value: i32, range: RangeInclusive<i32>, findings: &mut Findings) -> i32 {
    if !range.contains(&value) {
        findings.mistake(field, value, format!("must be within {} to {}", range.start(), range.end()));
    }
    value.clamp(*range.start(), *range.end())
}

fn count(field: &str, value: i32, findings: &mut Findings) -> u32 {
    u32::try_from(value).unwrap_or_else(|_| {
        findings.mistake(field, value, "must be 0 or more");
        0
    })
}

fn positive(field: &str, value: GoDuration, findings: &mut Findings) -> Duration {
    if value <= GoDuration::ZERO {
        findings.mistake(field, value, "must be more than 0");
    }
    value.to_std().unwrap_or_default()
}

fn zero_or_more(field: &str, value: GoDuration, findings: &mut Findings) -> Duration {
    if value < GoDuration::ZERO {
        findings.mistake(field, value, "must be 0 or more");
    }
    value.to_std().unwrap_or_default()
}

/// A time-out of the kernel; 0 leaves it as it is.
fn timeout(field: &str, value: GoDuration, findings: &mut Findings) -> Option<Duration> {
    Some(zero_or_more(field, value, findings)).filter(|timeout| !timeout.is_zero())
}
