//! What values are allowed, and how a wrong one is reported.

mod support;

use kube_proxy_config::{DetectLocal, Mode, NodePortAddress};
use support::{file, line, quietly, refused, running, with_one_warning};

type Mistake = (&'static str, &'static str, &'static str);

/// Body of a file, then for each mistake its field, value and a part of what is allowed.
const WRONG: &[(&str, &[Mistake])] = &[
    ("bindAddress: x", &[("bindAddress", "\"x\"", "IP address")]),
    ("healthzBindAddress: x", &[("healthzBindAddress", "\"x\"", "IP:port")]),
    ("healthzBindAddress: 0.0.0.0:0", &[("healthzBindAddress", "\"0.0.0.0:0\"", "1 to 65535")]),
    ("healthzBindAddress: 0.0.0.0:65536", &[("healthzBindAddress", "\"0.0.0.0:65536\"", "1 to 65535")]),
    ("healthzBindAddress: '0.0.0.0:+5'", &[("healthzBindAddress", "\"0.0.0.0:+5\"", "1 to 65535")]),
    ("metricsBindAddress: 'x:1'", &[("metricsBindAddress", "\"x:1\"", "\"x\" is not an IP address")]),
    ("metricsBindAddress: '::1:x'", &[("metricsBindAddress", "\"::1:x\"", "IP:port")]),
    ("metricsBindAddress: '[::1'", &[("metricsBindAddress", "\"[::1\"", "IP:port")]),
    ("clusterCIDR: x", &[("clusterCIDR", "\"x\"", "range")]),
    ("clusterCIDR: 192.0.2.0/33", &[("clusterCIDR", "\"192.0.2.0/33\"", "range")]),
    (
        "clusterCIDR: 192.0.2.0/24,198.51.100.0/24",
        &[("clusterCIDR", "\"192.0.2.0/24,198.51.100.0/24\"", "each IP family")],
    ),
    (
        "clusterCIDR: '192.0.2.0/24,2001:db8::/48,2001:db8:1::/48'",
        &[("clusterCIDR", "\"192.0.2.0/24,2001:db8::/48,2001:db8:1::/48\"", "each IP family")],
    ),
    ("mode: bogus", &[("mode", "\"bogus\"", "nftables, iptables, ipvs, userspace or empty")]),
    ("mode: NFTables", &[("mode", "\"NFTables\"", "nftables")]),
    ("mode: ipvs\nfeatureGates: {KubeProxyIPVS: false}", &[("mode", "\"ipvs\"", "KubeProxyIPVS is off")]),
    ("featureGates: {NoSuchGate: true}", &[("featureGates.NoSuchGate", "true", "no such feature gate")]),
    ("iptables: {masqueradeBit: 32}", &[("iptables.masqueradeBit", "32", "0 to 31")]),
    ("iptables: {masqueradeBit: -1}", &[("iptables.masqueradeBit", "-1", "0 to 31")]),
    ("nftables: {masqueradeBit: 32}", &[("nftables.masqueradeBit", "32", "0 to 31")]),
    ("iptables: {syncPeriod: -1s}", &[("iptables.syncPeriod", "-1s", "more than 0")]),
    ("iptables: {minSyncPeriod: -1s}", &[("iptables.minSyncPeriod", "-1s", "0 or more")]),
    ("iptables: {syncPeriod: 1s, minSyncPeriod: 2s}", &[("iptables.syncPeriod", "1s", "which is 2s")]),
    ("mode: ipvs\nipvs: {syncPeriod: 1s, minSyncPeriod: 2s}", &[("ipvs.syncPeriod", "1s", "which is 2s")]),
    ("mode: ipvs\nipvs: {excludeCIDRs: [192.0.2.0/24, x]}", &[("ipvs.excludeCIDRs[1]", "\"x\"", "range")]),
    (
        "mode: ipvs\nipvs: {tcpTimeout: -1s, tcpFinTimeout: -2s, udpTimeout: -3s}",
        &[
            ("ipvs.tcpTimeout", "-1s", "0 or more"),
            ("ipvs.tcpFinTimeout", "-2s", "0 or more"),
            ("ipvs.udpTimeout", "-3s", "0 or more"),
        ],
    ),
    (
        "mode: userspace\nudpIdleTimeout: -1s\nportRange: 5-4",
        &[("udpIdleTimeout", "-1s", "more than 0"), ("portRange", "\"5-4\"", "begin-end")],
    ),
    ("detectLocalMode: Bogus", &[("detectLocalMode", "\"Bogus\"", "ClusterCIDR, NodeCIDR")]),
    ("detectLocalMode: BridgeInterface", &[("detectLocal.bridgeInterface", "\"\"", "BridgeInterface")]),
    (
        "detectLocalMode: InterfaceNamePrefix",
        &[("detectLocal.interfaceNamePrefix", "\"\"", "InterfaceNamePrefix")],
    ),
    ("nodePortAddresses: [all, x]", &[("nodePortAddresses[1]", "\"x\"", "primary, localhost or all")]),
    ("nodePortAddresses: [192.0.2.1]", &[("nodePortAddresses[0]", "\"192.0.2.1\"", "range")]),
    ("oomScoreAdj: -1001", &[("oomScoreAdj", "-1001", "-1000 to 1000")]),
    ("oomScoreAdj: 1001", &[("oomScoreAdj", "1001", "-1000 to 1000")]),
    ("clientConnection: {burst: -1}", &[("clientConnection.burst", "-1", "0 or more")]),
    ("configSyncPeriod: -1s", &[("configSyncPeriod", "-1s", "more than 0")]),
    ("showHiddenMetricsForVersion: '1.20'", &[("showHiddenMetricsForVersion", "\"1.20\"", "\"1.36\"")]),
    ("hostnameOverride: ' '", &[("hostnameOverride", "\" \"", "only spaces")]),
    (
        "conntrack: {max: -1, maxPerCore: -2, min: -3, tcpEstablishedTimeout: -1s, tcpCloseWaitTimeout: -1s}",
        &[
            ("conntrack.max", "-1", "0 or more"),
            ("conntrack.maxPerCore", "-2", "0 or more"),
            ("conntrack.min", "-3", "0 or more"),
            ("conntrack.tcpEstablishedTimeout", "-1s", "0 or more"),
            ("conntrack.tcpCloseWaitTimeout", "-1s", "0 or more"),
        ],
    ),
    (
        "conntrack: {udpTimeout: -1s, udpStreamTimeout: -1s}",
        &[("conntrack.udpTimeout", "-1s", "0 or more"), ("conntrack.udpStreamTimeout", "-1s", "0 or more")],
    ),
    (
        "logging: {format: xml, flushFrequency: -1s}",
        &[("logging.format", "\"xml\"", "text or json"), ("logging.flushFrequency", "-1s", "more than 0")],
    ),
    (
        "logging: {options: {text: {splitStream: true, infoBufferSize: 1K}, json: {infoBufferSize: x}}}",
        &[
            ("logging.options.text.splitStream", "true", "LoggingAlphaOptions=true"),
            ("logging.options.text.infoBufferSize", "\"1K\"", "LoggingAlphaOptions=true"),
            ("logging.options.json.infoBufferSize", "\"x\"", "number of bytes"),
        ],
    ),
    (
        "logging: {format: json}\nfeatureGates: {LoggingBetaOptions: false}",
        &[("logging.format", "\"json\"", "LoggingBetaOptions is off")],
    ),
];

#[test]
fn each_wrong_value_is_reported_once_with_field_value_and_what_is_allowed() {
    for (body, mistakes) in WRONG {
        let message = refused(file(body));
        let reported: Vec<&str> =
            message.strip_prefix("invalid configuration: ").unwrap().split(": invalid value ").collect();
        assert_eq!(reported.len(), mistakes.len() + 1, "{body}: {message}");
        for (field, value, allowed) in *mistakes {
            assert!(message.contains(&format!("{field}: invalid value {value}: ")), "{body}: {message}");
            assert!(message.contains(allowed), "{body}: {message}");
        }
    }
}

#[test]
fn mistakes_of_all_sections_are_reported_at_once() {
    let message = refused(file("mode: bogus\noomScoreAdj: 5000\nconntrack: {min: -1}\nclusterCIDR: x"));
    for field in ["mode: ", "oomScoreAdj: ", "conntrack.min: ", "clusterCIDR: "] {
        assert!(message.contains(field), "{field} is missing: {message}");
    }
}

#[test]
fn a_value_that_came_from_a_flag_names_the_flag_too_and_only_once() {
    let message = refused(line("--iptables-sync-period=0s --nodeport-addresses=all,x --conntrack-min=-1"));
    for place in [
        "iptables.syncPeriod (--iptables-sync-period): invalid value 0s",
        "nodePortAddresses[1] (--nodeport-addresses): invalid value \"x\"",
        "conntrack.min (--conntrack-min): invalid value -1",
    ] {
        assert_eq!(message.matches(place).count(), 1, "{place}: {message}");
    }
    assert_eq!(message.matches("--iptables-sync-period").count(), 1, "{message}");
}

#[test]
fn mistakes_in_the_section_of_another_mode_are_only_warnings() {
    for (body, field) in [
        ("mode: iptables\nnftables: {masqueradeBit: 32}", "nftables.masqueradeBit"),
        ("mode: nftables\niptables: {masqueradeBit: 32}", "iptables.masqueradeBit"),
        ("ipvs: {excludeCIDRs: [x]}", "ipvs.excludeCIDRs[0]"),
        ("ipvs: {tcpTimeout: -1s}", "ipvs.tcpTimeout"),
    ] {
        let (_, warning) = with_one_warning(file(body));
        assert!(warning.contains(field), "{body}: {warning}");
    }
}

#[test]
fn two_servers_on_one_address_are_warned_of() {
    for (healthz, metrics, collide) in [
        ("0.0.0.0:10256", "127.0.0.1:10256", true),
        ("127.0.0.1:10256", "0.0.0.0:10256", true),
        ("192.0.2.1:10256", "192.0.2.1:10256", true),
        ("[::]:10256", "127.0.0.1:10256", true),
        ("0.0.0.0:10256", "[::]:10256", true),
        ("[::]:10256", "[::1]:10256", true),
        ("0.0.0.0:10256", "127.0.0.1:10249", false),
        ("192.0.2.1:10256", "127.0.0.1:10256", false),
        ("0.0.0.0:10256", "[::1]:10256", false),
    ] {
        let body = format!("healthzBindAddress: '{healthz}'\nmetricsBindAddress: '{metrics}'");
        let (_, warnings) = running(file(&body));
        let told = warnings.iter().any(|text| text.contains(healthz) && text.contains("different ports"));
        assert_eq!(told, collide, "{healthz} {metrics}: {warnings:?}");
    }
}

#[test]
fn an_empty_mode_stays_undecided_and_the_words_of_all_modes_are_known() {
    for (word, mode) in [
        ("", Mode::Auto),
        ("nftables", Mode::Nftables),
        ("iptables", Mode::Iptables),
        ("ipvs", Mode::Ipvs),
        ("userspace", Mode::Userspace),
    ] {
        assert_eq!(quietly(line(&format!("--proxy-mode={word}"))).mode, mode);
        assert_eq!(mode.as_str(), word);
    }
}

#[test]
fn node_ports_without_addresses_are_open_on_the_primary_ones_in_nftables_and_on_all_elsewhere() {
    let config = quietly(line(""));
    assert_eq!(config.node_port_addresses(Mode::Nftables), [NodePortAddress::Primary]);
    for mode in [Mode::Iptables, Mode::Ipvs, Mode::Userspace] {
        assert_eq!(config.node_port_addresses(mode), [NodePortAddress::All]);
    }
    let given = quietly(line("--nodeport-addresses=primary,192.0.2.0/24 --nodeport-addresses=localhost"));
    let range = NodePortAddress::Cidr("192.0.2.0/24".parse().unwrap());
    let wanted = [NodePortAddress::Primary, range, NodePortAddress::Localhost];
    assert_eq!(given.node_port_addresses(Mode::Iptables), wanted);
}

#[test]
fn addresses_with_leading_zeros_are_decimal_and_host_bits_of_ranges_are_cleared() {
    let config = quietly(line("--bind-address=192.000.002.010 --cluster-cidr=192.0.2.9/24,2001:db8::9/64"));
    assert_eq!(config.bind_address.to_string(), "192.0.2.10");
    let ranges = vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/64".parse().unwrap()];
    assert_eq!(config.detect_local, DetectLocal::ClusterCidr(ranges));
}

#[test]
fn servers_get_their_port_and_the_family_of_the_bind_address_and_can_be_switched_off() {
    for (words, healthz, metrics) in [
        ("", "0.0.0.0:10256", "127.0.0.1:10249"),
        ("--bind-address=::", "[::]:10256", "[::1]:10249"),
        ("--healthz-bind-address=192.0.2.1 --metrics-bind-address=::1", "192.0.2.1:10256", "[::1]:10249"),
        ("--healthz-bind-address=[::1]:5 --metrics-bind-address=", "[::1]:5", "none"),
    ] {
        let config = quietly(line(words));
        let shown = |address: Option<std::net::SocketAddr>| address.map_or("none".into(), |a| a.to_string());
        assert_eq!(shown(config.healthz_bind_address), healthz, "{words}");
        assert_eq!(shown(config.metrics_bind_address), metrics, "{words}");
    }
}

#[test]
fn the_hostname_is_trimmed_and_in_lower_case_and_the_override_wins() {
    assert_eq!(quietly(line("")).hostname, "worker-1");
    assert_eq!(quietly(line("--hostname-override=UPPER.Case")).hostname, "upper.case");
    assert_eq!(quietly(file("hostnameOverride: ' Of-File '")).hostname, "of-file");
    let none = kube_proxy_config::parse([], &|_| Err(std::io::ErrorKind::NotFound.into()), "");
    assert!(refused(none).contains("--hostname-override"));
}

#[test]
fn the_conntrack_limit_follows_the_cores_unless_told_otherwise() {
    for (words, cores, limit) in [
        ("", 2, Some(131_072)),
        ("", 8, Some(262_144)),
        ("--conntrack-max-per-core=0", 8, None),
        ("--conntrack-max-per-core=2147483647", 8, Some(1_048_576)),
        ("--conntrack-min=2000000", 8, Some(2_000_000)),
    ] {
        assert_eq!(quietly(line(words)).conntrack.limit(cores), limit, "{words}");
    }
    let (config, _) = with_one_warning(line("--conntrack-max=5"));
    assert_eq!(config.conntrack.limit(8), Some(5));
    assert_eq!(
        quietly(line("--conntrack-tcp-timeout-established=0")).conntrack.tcp_established_timeout,
        None
    );
}

#[test]
fn gates_are_known_retired_foreign_or_refused() {
    use kube_proxy_config::Gate;
    let config = quietly(line("--feature-gates=AllAlpha=true,ComponentFlagz=false"));
    assert!(config.gates.enabled(Gate::LoggingAlphaOptions) && !config.gates.enabled(Gate::ComponentFlagz));
    let config = quietly(line(
        "--feature-gates=AllBeta=false --feature-gates=WatchListClient=true,NFTablesNetlink=true",
    ));
    assert!(config.gates.enabled(Gate::WatchListClient) && !config.gates.enabled(Gate::ComponentStatusz));
    for gate in ["NFTablesProxyMode", "TopologyAwareHints", "InPlacePodVerticalScalingExclusiveCPUs"] {
        let (_, warning) = with_one_warning(line(&format!("--feature-gates={gate}=true")));
        assert!(warning.contains(gate), "{warning}");
    }
    assert!(refused(line("--feature-gates=NoSuch=true")).contains("featureGates.NoSuch (--feature-gates)"));
}

#[test]
fn an_interface_prefix_longer_than_any_name_is_warned_about() {
    let words = "--detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=thisnameiswaytoolong";
    let (_, warnings) = running(line(words));
    assert!(warnings.concat().contains("thisnameiswaytoolong"), "{warnings:?}");
}

#[test]
fn configz_shows_the_v1alpha1_form_with_the_mode_that_was_decided_on() {
    let config = quietly(line("--kubeconfig=/k --cluster-cidr=192.0.2.0/24"));
    let shown: serde_json::Value = serde_json::from_str(&config.configz(Mode::Nftables)).unwrap();
    let body = &shown["kubeproxy.config.k8s.io"];
    assert_eq!(body["mode"], "nftables");
    assert_eq!(body["clusterCIDR"], "192.0.2.0/24");
    assert_eq!(body["kind"], "KubeProxyConfiguration");
    assert_eq!(body["clientConnection"]["qps"], 5);
}
