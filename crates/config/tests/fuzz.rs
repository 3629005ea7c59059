//! Whatever the input, the answer is a configuration or an error, never a panic.

mod support;

use proptest::prelude::*;
use support::{HEAD, file, line_and_file, whole_file, words_and_file};

/// Words that resemble a command line.
fn words() -> impl Strategy<Value = Vec<String>> {
    let name = prop::sample::select(vec![
        "config",
        "proxy-mode",
        "proxy_mode",
        "cleanup",
        "v",
        "vmodule",
        "feature-gates",
        "bind-address",
        "nope",
        "healthz-bind-address",
        "nodeport-addresses",
        "iptables-sync-period",
        "healthz-port",
        "log-dir",
        "version",
        "kube-api-qps",
        "cluster-cidr",
        "proxy-port-range",
        "write-config-to",
        "manifests",
        "help",
        "",
    ]);
    let value = prop_oneof![
        Just(String::new()),
        Just("=true".to_owned()),
        Just("=/config.yaml".to_owned()),
        "=[-0-9a-z.:/,=+\\[\\]]{0,16}",
        "=.{0,8}",
    ];
    let word = prop_oneof![
        4 => (name, value).prop_map(|(name, value)| format!("--{name}{value}")),
        1 => "-{0,3}.{0,8}",
        1 => Just("demo".to_owned()),
    ];
    prop::collection::vec(word, 0..6)
}

/// Lines that resemble a configuration file.
fn body() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "mode",
        "iptables",
        "nftables",
        "ipvs",
        "conntrack",
        "logging",
        "featureGates",
        "nodePortAddresses",
        "clusterCIDR",
        "portRange",
        "healthzBindAddress",
        "bindAddress",
        "configSyncPeriod",
        "metadata",
        "? x",
    ]);
    let value = prop_oneof![
        "[-0-9a-z.:/,]{0,16}",
        "\\{(syncPeriod|minSyncPeriod|masqueradeBit|vmodule|flushFrequency): [-0-9a-z\\[\\]{}]{0,8}\\}",
        "[\\[\\]{}&*!|>'\"%@`#?,: a-z0-9-]{0,24}",
    ];
    prop::collection::vec((key, value).prop_map(|(k, v)| format!("{k}: {v}\n")), 0..6)
        .prop_map(|v| v.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_command_line_is_answered(words in words()) {
        let _ = words_and_file(words, Some(HEAD));
    }

    #[test]
    fn any_file_is_answered(body in body()) {
        let _ = file(&body);
    }

    #[test]
    fn any_text_is_answered(text in "(?s).{0,200}") {
        let _ = whole_file(&text);
        let _ = line_and_file("--config=/config.yaml --write-config-to=/out", &text);
    }
}
