//! How a configuration file is read: what stops it, what is only worth a warning.

mod support;

use std::time::Duration;

use kube_proxy_config::{DetectLocal, Failure, Mode, NodePortAddress};
use support::{HEAD, file, line_and_file, quietly, refused, running, whole_file, with_one_warning};

#[test]
fn unknown_removed_repeated_and_misplaced_fields_start_with_one_warning_naming_the_field() {
    for (body, field) in [
        ("noSuchField: 1", "noSuchField"),
        ("iptables: {noSuch: 1}", "iptables.noSuch"),
        ("logging: {vmodule: [{filePattern: a, verbosity: 1, extra: 2}]}", "logging.vmodule[0].extra"),
        ("mode: nftables\nmode: iptables", "mode"),
        ("conntrack: {min: 1, min: 2}", "conntrack.min"),
        ("metadata: {name: proxy}", "metadata"),
        ("udpIdleTimeout: 1s", "udpIdleTimeout"),
        ("conntrack: {max: 5}", "conntrack.max"),
        ("resourceContainer: /kube-proxy", "resourceContainer"),
        ("portRange: 1-2", "portRange"),
    ] {
        let (_, warning) = with_one_warning(file(body));
        assert!(warning.split([' ', ':']).any(|word| word == field), "{field} is not named: {warning}");
    }
}

#[test]
fn a_repeated_field_has_its_last_value() {
    let (config, _) = with_one_warning(file("mode: nftables\nmode: iptables"));
    assert_eq!(config.mode, Mode::Iptables);
}

#[test]
fn a_field_in_the_wrong_case_is_ignored_and_the_right_name_is_suggested() {
    let (config, warning) = with_one_warning(file("Mode: nftables"));
    assert_eq!(config.mode, Mode::Auto);
    assert!(warning.contains("Mode") && warning.contains("did you mean mode?"), "{warning}");
}

#[test]
fn wrong_types_are_refused_with_field_and_value() {
    for (body, field, value) in [
        ("mode: 5", "mode", "5"),
        ("oomScoreAdj: many", "oomScoreAdj", "\"many\""),
        ("oomScoreAdj: \"5\"", "oomScoreAdj", "\"5\""),
        ("oomScoreAdj: 99999999999", "oomScoreAdj", "99999999999"),
        ("enableProfiling: \"true\"", "enableProfiling", "\"true\""),
        ("configSyncPeriod: 5", "configSyncPeriod", "5"),
        ("configSyncPeriod: \"90\"", "configSyncPeriod", "\"90\""),
        ("configSyncPeriod: five", "configSyncPeriod", "\"five\""),
        ("iptables: yes please", "iptables", "\"yes please\""),
        ("nodePortAddresses: primary", "nodePortAddresses", "\"primary\""),
        ("nodePortAddresses: [primary, 5]", "nodePortAddresses[1]", "5"),
        ("featureGates: {KubeProxyIPVS: maybe}", "featureGates.KubeProxyIPVS", "\"maybe\""),
        ("logging: {verbosity: -1}", "logging.verbosity", "-1"),
        ("logging: {vmodule: [5]}", "logging.vmodule[0]", "5"),
        ("clientConnection: {qps: fast}", "clientConnection.qps", "\"fast\""),
    ] {
        let message = refused(file(body));
        assert!(
            message.contains(&format!("{field}: invalid value {value}: must be "))
                || message.contains(&format!("{field}: invalid value {value}: {value} ")),
            "{body}: {message}"
        );
    }
}

#[test]
fn all_wrong_types_are_reported_at_once() {
    let message = refused(file("mode: 5\noomScoreAdj: x\nipvs: {strictARP: 1, scheduler: 2}"));
    for field in ["mode: ", "oomScoreAdj: ", "ipvs.strictARP: ", "ipvs.scheduler: "] {
        assert!(message.contains(field), "{field} is missing: {message}");
    }
}

#[test]
fn what_is_no_such_file_is_refused_with_the_reason() {
    for (text, reason) in [
        ("", "it is empty"),
        ("# only a comment\n", "it is empty"),
        ("---\n", "it is empty"),
        ("{{{{", "line 1"),
        ("mode: [", "line"),
        // The second colon begins a mapping in YAML, so this needs quotes.
        ("bindAddress: ::\n", "\"bindAddress: ::\""),
        ("- 1\n", "must be a mapping"),
        ("kind: KubeProxyConfiguration\n", "apiVersion is missing"),
        ("apiVersion: kubeproxy.config.k8s.io/v1alpha1\n", "kind is missing"),
        ("apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration\n", "v1beta1"),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeletConfiguration\n",
            "KubeletConfiguration",
        ),
        ("apiVersion: 5\nkind: KubeProxyConfiguration\n", "apiVersion: 5"),
    ] {
        let message = refused(whole_file(text));
        assert!(message.contains("/config.yaml") && message.contains(reason), "{text:?}: {message}");
    }
}

#[test]
fn a_file_that_cannot_be_opened_is_named() {
    let message = refused(support::line("--config=/no/such.yaml"));
    assert!(message.contains("/no/such.yaml"), "{message}");
}

#[test]
fn of_two_documents_the_first_is_used_with_a_warning() {
    for second in [format!("{HEAD}mode: ipvs\n"), "{{{{ broken".into()] {
        let (config, warning) = with_one_warning(whole_file(&format!("{HEAD}mode: iptables\n---\n{second}")));
        assert_eq!(config.mode, Mode::Iptables);
        assert!(warning.contains("first"), "{warning}");
    }
}

#[test]
fn warnings_of_a_refused_file_are_kept() {
    match file("noSuchField: 1\nmode: bogus") {
        Err(Failure::Invalid { warnings, .. }) => assert!(warnings.concat().contains("noSuchField")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_file_kubeadm_writes_means_the_defaults() {
    let config = quietly(whole_file(include_str!("data/kubeadm.yaml")));
    let default = quietly(file(""));
    assert_eq!(config.configz(Mode::Auto), default.configz(Mode::Auto));
}

#[test]
fn zero_periods_mean_the_default_but_for_ipvs() {
    let zero = "{syncPeriod: 0s, minSyncPeriod: 0s}";
    let config =
        quietly(file(&format!("configSyncPeriod: 0s\nnftables: {zero}\niptables: {zero}\nipvs: {zero}")));
    for mode in [Mode::Nftables, Mode::Iptables] {
        assert_eq!(config.sync(mode).period, Duration::from_secs(30));
        assert_eq!(config.sync(mode).min_period, Duration::from_secs(1));
    }
    assert_eq!(config.sync(Mode::Ipvs).period, Duration::from_secs(30));
    assert_eq!(config.sync(Mode::Ipvs).min_period, Duration::ZERO);
    assert_eq!(config.source.resync_period, Duration::from_secs(900));
}

#[test]
fn yaml_of_all_styles_and_json_is_read() {
    let config = quietly(file("bindAddress: \"::\"\nenableProfiling: yes\nconntrack:\n  min: 0x10\n"));
    assert!(config.bind_address.is_ipv6() && config.profiling);
    assert_eq!(config.conntrack.min, 16);
    assert_eq!(config.healthz_bind_address.unwrap().to_string(), "[::]:10256");
    assert_eq!(config.metrics_bind_address.unwrap().to_string(), "[::1]:10249");
    let json = r#"{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": "ipvs", "nodePortAddresses": ["all"], "iptables": null}"#;
    let config = quietly(whole_file(json));
    assert_eq!((config.mode, config.node_port_addresses), (Mode::Ipvs, vec![NodePortAddress::All]));
}

#[test]
fn a_file_replaces_the_flags_and_one_warning_lists_those_without_effect() {
    let text = format!("{HEAD}detectLocalMode: NodeCIDR\n");
    let words = "--config=/config.yaml --proxy-mode=ipvs --cluster-cidr=192.0.2.0/24 --healthz-port=0";
    let (config, warning) = with_one_warning(line_and_file(words, &text));
    assert_eq!((config.mode, config.detect_local), (Mode::Auto, DetectLocal::NodeCidr));
    assert!(config.healthz_bind_address.is_some());
    for named in ["--proxy-mode (mode)", "--cluster-cidr (clusterCIDR)", "--healthz-port"] {
        assert!(warning.contains(named), "{named} is missing: {warning}");
    }
}

#[test]
fn some_flags_still_act_next_to_a_file() {
    let text = format!(
        "{HEAD}hostnameOverride: of-file\nlogging: {{verbosity: 2, vmodule: [{{filePattern: file, verbosity: 1}}]}}\n"
    );
    let words = "--config=/config.yaml --hostname-override=of-flag --master=https://192.0.2.1 -v=5 \
                 --vmodule=flag=3 --init-only --manifests=/m --nftables-own-table=false --logging-format=json";
    let config = quietly(line_and_file(&words.split_whitespace().collect::<Vec<_>>().join(" "), &text));
    assert_eq!(config.hostname, "of-flag");
    assert_eq!(config.source.master.as_deref(), Some("https://192.0.2.1"));
    assert!(config.init_only && config.source.manifests.is_some() && !config.nftables.own_table);
    assert_eq!(config.logging.verbosity, 5);
    let patterns: Vec<_> = config.logging.vmodule.iter().map(|rule| rule.file_pattern.as_str()).collect();
    assert_eq!(patterns, ["flag", "file"]);
}

#[test]
fn a_file_without_those_flags_keeps_its_own_settings() {
    let (config, _) = running(line_and_file(
        "--config=/config.yaml",
        &format!("{HEAD}hostnameOverride: Of-File\nlogging: {{verbosity: 2, format: json}}\n"),
    ));
    assert_eq!((config.hostname.as_str(), config.logging.verbosity), ("of-file", 2));
}
