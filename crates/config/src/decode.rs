//! From the text of a configuration file to [`KubeProxyConfiguration`].

use crate::document::{Node, Section, first_document};
use crate::findings::Findings;
use crate::v1alpha1::{API_VERSION, KIND, KubeProxyConfiguration, Streams, VModule};

/// Reads a configuration file. Mistakes and warnings about its fields go to `findings`.
///
/// # Errors
/// The text as a whole is no such file: not YAML, empty, or of another `apiVersion` or `kind`.
pub(crate) fn decode(text: &str, findings: &mut Findings) -> Result<KubeProxyConfiguration, String> {
    let (node, more_follow) = first_document(text)?;
    if more_follow {
        findings.warn("the configuration file holds several YAML documents: the first is used");
    }
    let Node::Map(entries) = node else {
        return Err(format!("it must be a mapping of fields, but starts with {node}"));
    };
    header(&entries, "apiVersion", API_VERSION)?;
    header(&entries, "kind", KIND)?;
    let mut config = KubeProxyConfiguration::default();
    Section::read("", entries, findings, |top| read_top(top, &mut config));
    Ok(config)
}

/// Checks a field that says what kind of object this is.
fn header(entries: &[(String, Node)], key: &str, wanted: &str) -> Result<(), String> {
    match entries.iter().rev().find(|(k, _)| k == key) {
        Some((_, Node::Text(text))) if text == wanted => Ok(()),
        Some((_, other)) => Err(format!("{key}: {other} is not supported, it must be {wanted:?}")),
        None => Err(format!("{key} is missing, it must be {wanted:?}")),
    }
}

fn read_top(top: &mut Section<'_>, c: &mut KubeProxyConfiguration) {
    let mut checked_before = String::new();
    top.text("apiVersion", &mut checked_before);
    top.text("kind", &mut checked_before);
    top.without_effect("metadata", "a configuration file has no metadata");
    top.bools("featureGates", |name, value| _ = c.feature_gates.insert(name, value));
    read_client(top, c);
    read_logging(top, c);
    top.text("hostnameOverride", &mut c.hostname_override);
    top.nonempty_text("bindAddress", &mut c.bind_address);
    c.healthz_bind_address = address(top, "healthzBindAddress");
    c.metrics_bind_address = address(top, "metricsBindAddress");
    top.bool("bindAddressHardFail", &mut c.bind_address_hard_fail);
    top.bool("enableProfiling", &mut c.enable_profiling);
    top.text("showHiddenMetricsForVersion", &mut c.show_hidden_metrics_for_version);
    top.text("mode", &mut c.mode);
    read_modes(top, c);
    read_windows(top, c);
    top.nonempty_text("detectLocalMode", &mut c.detect_local_mode);
    top.section("detectLocal", |s| {
        s.text("bridgeInterface", &mut c.detect_local.bridge_interface);
        s.text("interfaceNamePrefix", &mut c.detect_local.interface_name_prefix);
    });
    top.text("clusterCIDR", &mut c.cluster_cidr);
    top.texts("nodePortAddresses", &mut c.node_port_addresses);
    top.int("oomScoreAdj", &mut c.oom_score_adj);
    read_conntrack(top, c);
    top.period("configSyncPeriod", &mut c.config_sync_period);
    top.text("portRange", &mut c.port_range);
    top.period("udpIdleTimeout", &mut c.udp_idle_timeout);
    top.without_effect("resourceContainer", "put the process into a cgroup with its service manager");
}

/// An address of a server; the empty text is what tools write for "not set".
fn address(top: &mut Section<'_>, key: &'static str) -> Option<String> {
    let mut text = String::new();
    top.text(key, &mut text);
    Some(text).filter(|text| !text.is_empty())
}

fn read_client(top: &mut Section<'_>, c: &mut KubeProxyConfiguration) {
    top.section("clientConnection", |s| {
        let client = &mut c.client_connection;
        s.text("kubeconfig", &mut client.kubeconfig);
        s.text("acceptContentTypes", &mut client.accept_content_types);
        s.nonempty_text("contentType", &mut client.content_type);
        s.nonzero_float("qps", &mut client.qps);
        s.nonzero_int("burst", &mut client.burst);
    });
}

fn read_logging(top: &mut Section<'_>, c: &mut KubeProxyConfiguration) {
    top.section("logging", |s| {
        let logging = &mut c.logging;
        s.nonempty_text("format", &mut logging.format);
        s.period_or_nanos("flushFrequency", &mut logging.flush_frequency);
        s.unsigned("verbosity", &mut logging.verbosity);
        s.sections("vmodule", |item| {
            let mut rule = VModule { file_pattern: String::new(), verbosity: 0 };
            item.text("filePattern", &mut rule.file_pattern);
            item.unsigned("verbosity", &mut rule.verbosity);
            logging.vmodule.push(rule);
        });
        s.section("options", |options| {
            options.section("text", |s| read_streams(s, &mut logging.options.text));
            options.section("json", |s| read_streams(s, &mut logging.options.json));
        });
    });
}

fn read_streams(s: &mut Section<'_>, streams: &mut Streams) {
    s.bool("splitStream", &mut streams.split_stream);
    s.nonempty_text("infoBufferSize", &mut streams.info_buffer_size);
}

fn read_modes(top: &mut Section<'_>, c: &mut KubeProxyConfiguration) {
    top.section("iptables", |s| {
        s.int("masqueradeBit", &mut c.iptables.masquerade_bit);
        s.bool("masqueradeAll", &mut c.iptables.masquerade_all);
        s.bool("localhostNodePorts", &mut c.iptables.localhost_node_ports);
        s.period("syncPeriod", &mut c.iptables.sync_period);
        s.period("minSyncPeriod", &mut c.iptables.min_sync_period);
    });
    top.section("ipvs", |s| {
        s.period("syncPeriod", &mut c.ipvs.sync_period);
        s.duration("minSyncPeriod", &mut c.ipvs.min_sync_period);
        s.text("scheduler", &mut c.ipvs.scheduler);
        s.texts("excludeCIDRs", &mut c.ipvs.exclude_cidrs);
        s.bool("strictARP", &mut c.ipvs.strict_arp);
        s.duration("tcpTimeout", &mut c.ipvs.tcp_timeout);
        s.duration("tcpFinTimeout", &mut c.ipvs.tcp_fin_timeout);
        s.duration("udpTimeout", &mut c.ipvs.udp_timeout);
    });
    top.section("nftables", |s| {
        s.int("masqueradeBit", &mut c.nftables.masquerade_bit);
        s.bool("masqueradeAll", &mut c.nftables.masquerade_all);
        s.period("syncPeriod", &mut c.nftables.sync_period);
        s.period("minSyncPeriod", &mut c.nftables.min_sync_period);
    });
}

fn read_windows(top: &mut Section<'_>, c: &mut KubeProxyConfiguration) {
    top.section("winkernel", |s| {
        s.text("networkName", &mut c.winkernel.network_name);
        s.text("sourceVip", &mut c.winkernel.source_vip);
        s.bool("enableDSR", &mut c.winkernel.enable_dsr);
        s.text("rootHnsEndpointName", &mut c.winkernel.root_hns_endpoint_name);
        s.bool("forwardHealthCheckVip", &mut c.winkernel.forward_health_check_vip);
    });
    let mut ignored = false;
    top.bool("windowsRunAsService", &mut ignored);
}

fn read_conntrack(top: &mut Section<'_>, c: &mut KubeProxyConfiguration) {
    top.section("conntrack", |s| {
        let conntrack = &mut c.conntrack;
        s.int("max", &mut conntrack.max);
        s.int("maxPerCore", &mut conntrack.max_per_core);
        s.int("min", &mut conntrack.min);
        s.duration("tcpEstablishedTimeout", &mut conntrack.tcp_established_timeout);
        s.duration("tcpCloseWaitTimeout", &mut conntrack.tcp_close_wait_timeout);
        s.bool("tcpBeLiberal", &mut conntrack.tcp_be_liberal);
        s.duration("udpTimeout", &mut conntrack.udp_timeout);
        s.duration("udpStreamTimeout", &mut conntrack.udp_stream_timeout);
        s.duration("removedEndpointResetPeriod", &mut conntrack.removed_endpoint_reset_period);
    });
}
