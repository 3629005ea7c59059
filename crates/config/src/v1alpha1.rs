//! `KubeProxyConfiguration` of `kubeproxy.config.k8s.io/v1alpha1`, with every default filled in.
//!
//! This is the form that is written (`--write-config-to`, `/configz`) and the form flags and file are read
//! into. Its values are still what the user wrote: nothing is checked yet. `Config` is what they mean.
//! The order of the fields is that of the original's `/configz`.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::duration::GoDuration;

/// `apiVersion` of the only supported configuration file format.
pub(crate) const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// `kind` of the configuration file.
pub(crate) const KIND: &str = "KubeProxyConfiguration";
/// Content type of requests to the API server unless another is asked for.
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Idle time of a UDP session in userspace mode, as it was until 1.25.
pub(crate) const UDP_IDLE_TIMEOUT: GoDuration = GoDuration::from_millis(250);

/// The configuration file's top level. Field meanings: docs/flags.md.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KubeProxyConfiguration {
    kind: &'static str,
    api_version: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    pub client_connection: ClientConnection,
    pub logging: Logging,
    pub hostname_override: String,
    pub bind_address: String,
    /// `None`: by the family of `bind_address`; the empty text: no health server.
    pub healthz_bind_address: Option<String>,
    /// `None`: by the family of `bind_address`; the empty text: no metrics server.
    pub metrics_bind_address: Option<String>,
    pub bind_address_hard_fail: bool,
    pub enable_profiling: bool,
    pub show_hidden_metrics_for_version: String,
    pub mode: String,
    pub iptables: IpTables,
    pub ipvs: Ipvs,
    pub nftables: NfTables,
    pub winkernel: Winkernel,
    pub detect_local_mode: String,
    pub detect_local: DetectLocal,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    #[serde(serialize_with = "null_if_empty")]
    pub node_port_addresses: Vec<String>,
    pub oom_score_adj: i32,
    pub conntrack: Conntrack,
    pub config_sync_period: GoDuration,
    pub port_range: String,
    /// Left out by the original since 1.26; still what userspace mode goes by.
    #[serde(skip_serializing_if = "is_default_idle")]
    pub udp_idle_timeout: GoDuration,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClientConnection {
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    #[serde(serialize_with = "short_float")]
    pub qps: f32,
    pub burst: i32,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Logging {
    pub format: String,
    pub flush_frequency: GoDuration,
    pub verbosity: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vmodule: Vec<VModule>,
    pub options: LoggingOptions,
}

/// A verbosity for the source files (here: modules) a pattern matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VModule {
    /// Name of a module without its path; `*` and `?` stand for any characters and any one character.
    pub file_pattern: String,
    /// The `-v` level that holds there.
    pub verbosity: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct LoggingOptions {
    pub text: Streams,
    pub json: Streams,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Streams {
    #[serde(skip_serializing_if = "is_false")]
    pub split_stream: bool,
    pub info_buffer_size: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IpTables {
    pub masquerade_bit: i32,
    pub masquerade_all: bool,
    pub localhost_node_ports: bool,
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ipvs {
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
    pub scheduler: String,
    #[serde(rename = "excludeCIDRs", serialize_with = "null_if_empty")]
    pub exclude_cidrs: Vec<String>,
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    pub tcp_timeout: GoDuration,
    pub tcp_fin_timeout: GoDuration,
    pub udp_timeout: GoDuration,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NfTables {
    pub masquerade_bit: i32,
    pub masquerade_all: bool,
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
}

/// Windows only: read and written back, otherwise without effect.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Winkernel {
    pub network_name: String,
    pub source_vip: String,
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    pub root_hns_endpoint_name: String,
    pub forward_health_check_vip: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DetectLocal {
    pub bridge_interface: String,
    pub interface_name_prefix: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Conntrack {
    /// Removed in 1.16; an absolute limit that overrides the two others, 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub max: i32,
    pub max_per_core: i32,
    pub min: i32,
    pub tcp_established_timeout: GoDuration,
    pub tcp_close_wait_timeout: GoDuration,
    pub tcp_be_liberal: bool,
    pub udp_timeout: GoDuration,
    pub udp_stream_timeout: GoDuration,
    /// Not in the original's API, and so not shown unless it was set.
    #[serde(skip_serializing_if = "is_default_reset_period")]
    pub removed_endpoint_reset_period: GoDuration,
}

const DEFAULT_RESET_PERIOD: GoDuration = GoDuration::from_secs(180);

impl Default for KubeProxyConfiguration {
    fn default() -> Self {
        Self {
            kind: KIND,
            api_version: API_VERSION,
            feature_gates: BTreeMap::new(),
            client_connection: ClientConnection::default(),
            logging: Logging::default(),
            hostname_override: String::new(),
            bind_address: "0.0.0.0".into(),
            healthz_bind_address: None,
            metrics_bind_address: None,
            bind_address_hard_fail: false,
            enable_profiling: false,
            show_hidden_metrics_for_version: String::new(),
            mode: String::new(),
            iptables: IpTables::default(),
            ipvs: Ipvs::default(),
            nftables: NfTables::default(),
            winkernel: Winkernel::default(),
            detect_local_mode: "ClusterCIDR".into(),
            detect_local: DetectLocal::default(),
            cluster_cidr: String::new(),
            node_port_addresses: Vec::new(),
            oom_score_adj: -999,
            conntrack: Conntrack::default(),
            config_sync_period: GoDuration::from_secs(15 * 60),
            port_range: String::new(),
            udp_idle_timeout: UDP_IDLE_TIMEOUT,
        }
    }
}

impl Default for ClientConnection {
    fn default() -> Self {
        Self {
            kubeconfig: String::new(),
            accept_content_types: String::new(),
            content_type: PROTOBUF.into(),
            qps: 5.0,
            burst: 10,
        }
    }
}

impl Default for Logging {
    fn default() -> Self {
        Self {
            format: "text".into(),
            flush_frequency: GoDuration::from_secs(5),
            verbosity: 0,
            vmodule: Vec::new(),
            options: LoggingOptions::default(),
        }
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self { split_stream: false, info_buffer_size: "0".into() }
    }
}

impl Default for IpTables {
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            masquerade_all: false,
            localhost_node_ports: true,
            sync_period: GoDuration::from_secs(30),
            min_sync_period: GoDuration::from_secs(1),
        }
    }
}

impl Default for Ipvs {
    fn default() -> Self {
        Self {
            sync_period: GoDuration::from_secs(30),
            min_sync_period: GoDuration::ZERO,
            scheduler: String::new(),
            exclude_cidrs: Vec::new(),
            strict_arp: false,
            tcp_timeout: GoDuration::ZERO,
            tcp_fin_timeout: GoDuration::ZERO,
            udp_timeout: GoDuration::ZERO,
        }
    }
}

impl Default for NfTables {
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            masquerade_all: false,
            sync_period: GoDuration::from_secs(30),
            min_sync_period: GoDuration::from_secs(1),
        }
    }
}

impl Default for Conntrack {
    fn default() -> Self {
        Self {
            max: 0,
            max_per_core: 32 * 1024,
            min: 128 * 1024,
            tcp_established_timeout: GoDuration::from_secs(24 * 3600),
            tcp_close_wait_timeout: GoDuration::from_secs(3600),
            tcp_be_liberal: false,
            udp_timeout: GoDuration::ZERO,
            udp_stream_timeout: GoDuration::ZERO,
            removed_endpoint_reset_period: DEFAULT_RESET_PERIOD,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the signature serde asks for
fn is_false(value: &bool) -> bool {
    !value
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the signature serde asks for
fn is_default_reset_period(value: &GoDuration) -> bool {
    *value == DEFAULT_RESET_PERIOD
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the signature serde asks for
fn is_zero(value: &i32) -> bool {
    *value == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the signature serde asks for
fn is_default_idle(value: &GoDuration) -> bool {
    *value == UDP_IDLE_TIMEOUT
}

fn null_if_empty<S: Serializer>(list: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    if list.is_empty() { serializer.serialize_none() } else { list.serialize(serializer) }
}

/// Writes 5 as `5`, not as `5.0`.
#[allow(clippy::trivially_copy_pass_by_ref)] // the signature serde asks for
fn short_float<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    #[allow(clippy::cast_possible_truncation)] // whole and far inside the range of i64, as tested before
    if value.fract() == 0.0 && value.abs() < 1e15 {
        serializer.serialize_i64(*value as i64)
    } else {
        serializer.serialize_f32(*value)
    }
}
