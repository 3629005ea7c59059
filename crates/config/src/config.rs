//! What the user's settings mean here: typed, checked, complete.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use crate::gates::FeatureGates;
use crate::v1alpha1::{KubeProxyConfiguration, VModule};
use crate::write;

/// How traffic is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Not chosen: nftables where the kernel can (5.13 or newer), else iptables.
    Auto,
    /// Rules and maps of nf_tables, written by netlink.
    Nftables,
    /// Rules written by iptables-restore.
    Iptables,
    /// Virtual servers of IPVS.
    Ipvs,
    /// Connections are accepted and copied by this process.
    Userspace,
}

impl Mode {
    /// The word of `--proxy-mode`; empty for [`Mode::Auto`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "",
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Userspace => "userspace",
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        [Self::Auto, Self::Nftables, Self::Iptables, Self::Ipvs, Self::Userspace]
            .into_iter()
            .find(|mode| mode.as_str() == word)
    }
}

/// Everything the program needs to know from its user.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // each is a setting of its own
pub struct Config {
    /// Name of this Node: trimmed and in lower case, never empty.
    pub hostname: String,
    /// The configuration file in use, to watch it for changes.
    pub config_file: Option<PathBuf>,
    /// Do the privileged part of the start and exit.
    pub init_only: bool,
    /// Whether a clean-up removes virtual servers too.
    pub cleanup_ipvs: bool,
    /// Where objects come from.
    pub source: SourceSettings,
    /// Which features are on.
    pub gates: FeatureGates,
    /// How traffic is carried.
    pub mode: Mode,
    /// Settings of [`Mode::Nftables`].
    pub nftables: NftablesSettings,
    /// Settings of [`Mode::Iptables`], of which the others but nftables use a part.
    pub iptables: IptablesSettings,
    /// Settings of [`Mode::Ipvs`].
    pub ipvs: IpvsSettings,
    /// Settings of [`Mode::Userspace`].
    pub userspace: UserspaceSettings,
    /// How traffic of local pods is recognised.
    pub detect_local: DetectLocal,
    /// As given; use [`Config::node_port_addresses`], which knows what an empty list means.
    pub node_port_addresses: Vec<NodePortAddress>,
    /// Given address of this node; unspecified: only its family says something, the preferred one.
    pub bind_address: IpAddr,
    /// Where the health server listens; `None`: nowhere.
    pub healthz_bind_address: Option<SocketAddr>,
    /// Where the metrics server listens; `None`: nowhere.
    pub metrics_bind_address: Option<SocketAddr>,
    /// Exit if one of these addresses is taken, instead of trying again every 5 seconds.
    pub bind_address_hard_fail: bool,
    /// Serve pprof and the log level on the metrics address.
    pub profiling: bool,
    /// Show metrics that were hidden since the previous minor version.
    pub show_hidden_metrics: bool,
    /// `oom_score_adj` of this process.
    pub oom_score_adj: i32,
    /// Limits of connection tracking.
    pub conntrack: ConntrackSettings,
    /// How logs are written.
    pub logging: LoggingSettings,
    /// Version to report, such as `v1.37.2`.
    pub version: String,
    pub(crate) written: KubeProxyConfiguration,
}

impl Config {
    /// How often to update and to check, in `mode`.
    pub fn sync(&self, mode: Mode) -> Sync {
        match mode {
            Mode::Nftables | Mode::Auto => self.nftables.sync,
            Mode::Iptables | Mode::Userspace => self.iptables.sync,
            Mode::Ipvs => self.ipvs.sync,
        }
    }

    /// How source addresses are replaced, in `mode`.
    pub fn masquerade(&self, mode: Mode) -> Masquerade {
        match mode {
            Mode::Nftables | Mode::Auto => self.nftables.masquerade,
            Mode::Iptables | Mode::Userspace | Mode::Ipvs => self.iptables.masquerade,
        }
    }

    /// Which node addresses take node ports, in `mode`: without any given, the primary ones in mode nftables
    /// and all in the others.
    pub fn node_port_addresses(&self, mode: Mode) -> Vec<NodePortAddress> {
        match mode {
            _ if !self.node_port_addresses.is_empty() => self.node_port_addresses.clone(),
            Mode::Nftables | Mode::Auto => vec![NodePortAddress::Primary],
            Mode::Iptables | Mode::Userspace | Mode::Ipvs => vec![NodePortAddress::All],
        }
    }

    /// The body of `/configz` in JSON: the v1alpha1 form with the `mode` that was decided on.
    pub fn configz(&self, mode: Mode) -> String {
        let mut shown = self.written.clone();
        mode.as_str().clone_into(&mut shown.mode);
        write::configz(&shown)
    }
}

/// Where objects come from.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSettings {
    /// A file or folder of manifests; it goes before the API server.
    pub manifests: Option<PathBuf>,
    /// The kubeconfig; without it and without `master`, the credentials of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server; wins over that in the kubeconfig.
    pub master: Option<String>,
    /// `Content-Type` of requests; never empty.
    pub content_type: String,
    /// `Accept` of requests; empty: as `content_type`.
    pub accept_content_types: String,
    /// Requests per second; negative: no limit.
    pub qps: f32,
    /// Requests that may be sent at once beyond that.
    pub burst: u32,
    /// How often all objects are considered anew; more than zero.
    pub resync_period: Duration,
}

/// How often a data plane is updated and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    /// Between two checks against the kernel; more than zero, never less than `min_period`.
    pub period: Duration,
    /// Least time between two updates; zero: every change at once.
    pub min_period: Duration,
}

/// How source addresses are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masquerade {
    /// Bit of the packet mark, 0 to 31.
    pub bit: u8,
    /// Do so for all traffic to cluster IPs.
    pub all: bool,
}

impl Masquerade {
    /// The packet mark with just that bit.
    pub fn mark(self) -> u32 {
        1 << self.bit
    }
}

/// Settings of [`Mode::Nftables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NftablesSettings {
    /// How source addresses are replaced.
    pub masquerade: Masquerade,
    /// How often to update and check.
    pub sync: Sync,
    /// Own the table and let it persist, so that foreign flushes leave it alone.
    pub own_table: bool,
}

/// Settings of [`Mode::Iptables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IptablesSettings {
    /// How source addresses are replaced.
    pub masquerade: Masquerade,
    /// How often to update and check.
    pub sync: Sync,
    /// Node ports on 127.0.0.1, IPv4 only.
    pub localhost_node_ports: bool,
}

/// Settings of [`Mode::Ipvs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpvsSettings {
    /// How often to update and check.
    pub sync: Sync,
    /// Name of a scheduler of the kernel; never empty.
    pub scheduler: String,
    /// Virtual servers in these ranges are not touched.
    pub exclude_cidrs: Vec<IpNet>,
    /// Set `arp_ignore` to 1 and `arp_announce` to 2.
    pub strict_arp: bool,
    /// Idle TCP connections; `None`: leave it.
    pub tcp_timeout: Option<Duration>,
    /// TCP connections after a FIN; `None`: leave it.
    pub tcp_fin_timeout: Option<Duration>,
    /// UDP packets; `None`: leave it.
    pub udp_timeout: Option<Duration>,
}

/// Settings of [`Mode::Userspace`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserspaceSettings {
    /// How long a UDP session without packets is kept; more than zero.
    pub udp_idle_timeout: Duration,
    /// Ports to listen on; `None`: any the kernel gives.
    pub ports: Option<RangeInclusive<u16>>,
}

/// How traffic of local pods is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// By source address: at most one range for each family; without any, no traffic counts as local.
    ClusterCidr(Vec<IpNet>),
    /// By source address: the pod ranges of this Node.
    NodeCidr,
    /// By the bridge it comes from.
    BridgeInterface(String),
    /// By how the name of the interface it comes from begins.
    InterfaceNamePrefix(String),
}

/// Node addresses that take node ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePortAddress {
    /// The primary addresses of the Node, one for each family.
    Primary,
    /// 127.0.0.0/8 and `::1/128`.
    Localhost,
    /// 0.0.0.0/0 and `::/0`.
    All,
    /// The addresses of the node inside this range.
    Cidr(IpNet),
}

/// Connection tracking: limits, set at the start (`None`: leave the kernel's value), and what becomes of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConntrackSettings {
    /// Limit in all; wins over the next two.
    pub max: Option<u32>,
    /// Limit for each CPU core.
    pub max_per_core: Option<u32>,
    /// Least limit if `max_per_core` is given.
    pub min: u32,
    /// Idle time-out of established TCP connections.
    pub tcp_established_timeout: Option<Duration>,
    /// Time-out of TCP connections in `CLOSE_WAIT`.
    pub tcp_close_wait_timeout: Option<Duration>,
    /// Do not take packets outside of the window for invalid.
    pub tcp_be_liberal: bool,
    /// Idle time-out of unanswered UDP flows.
    pub udp_timeout: Option<Duration>,
    /// Idle time-out of answered UDP flows.
    pub udp_stream_timeout: Option<Duration>,
    /// How long established TCP connections to an endpoint that was removed are reset; `None`: never.
    pub removed_endpoint_reset_period: Option<Duration>,
}

impl ConntrackSettings {
    /// How many connections `cores` CPU cores are to track; `None`: leave the kernel's limit. What follows from the
    /// cores is at most 1,048,576, as with the original.
    pub fn limit(&self, cores: u32) -> Option<u32> {
        let scaled = |each: u32| each.saturating_mul(cores).min(1 << 20).max(self.min);
        self.max.or_else(|| self.max_per_core.map(scaled))
    }
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// klog's lines.
    Text,
    /// One JSON object a line.
    Json,
}

/// How logs are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggingSettings {
    /// The form of a line.
    pub format: LogFormat,
    /// The `-v` level.
    pub verbosity: u32,
    /// Levels for single modules; of two that match, the first holds.
    pub vmodule: Vec<VModule>,
    /// Longest time a buffered line is held back; more than zero.
    pub flush_frequency: Duration,
    /// Errors go to stderr, the rest to stdout (of the chosen format).
    pub split_stream: bool,
    /// Bytes of stdout to buffer if streams are split; 0: none.
    pub info_buffer_bytes: u64,
}
