//! The original's recorded answers (v1.37.2, `tests/data/`) against ours; every difference is listed with its reason.

mod support;

use kube_proxy_config::{Failure, Invocation, Mode, Parsed};
use support::{line_and_file, quietly, words_and_file, written};

const REMOVED_STILL_TAKEN: &str = "old unit files keep working";
const BOTH_SECTIONS: &str = "an empty mode may become nftables, so that section counts";
const RETIRED_GATE: &str = "a retired gate is a warning";
const ALL_ALPHA: &str =
    "AllAlpha trips over gates of other components there; here it has those of the proxy only";
const USERSPACE: &str = "userspace is a mode again";
const PORT_ZERO: &str = "0 disables the server, as the help text of the original promises";

/// Case, our outcome, and why it differs from the recorded one.
const DIFFERENCES: &[(&str, &str, &str)] = &[
    ("--cleanup-ipvs", "runs", REMOVED_STILL_TAKEN),
    ("--cleanup-ipvs=true", "runs", REMOVED_STILL_TAKEN),
    ("--udp-timeout=250ms", "runs", REMOVED_STILL_TAKEN),
    ("--proxy-port-range=0-0", "runs", REMOVED_STILL_TAKEN),
    ("--conntrack-max=0", "runs", REMOVED_STILL_TAKEN),
    ("--resource-container=/kube-proxy", "runs", REMOVED_STILL_TAKEN),
    ("--logtostderr=true", "runs", REMOVED_STILL_TAKEN),
    ("--alsologtostderr", "runs", REMOVED_STILL_TAKEN),
    ("--log-dir=/tmp", "runs", REMOVED_STILL_TAKEN),
    ("--log-backtrace-at=:0", "runs", REMOVED_STILL_TAKEN),
    ("--stderrthreshold=2", "runs", REMOVED_STILL_TAKEN),
    ("--boot-id-file=/proc/sys/kernel/random/boot_id", "runs", REMOVED_STILL_TAKEN),
    ("--machine-id-file=/etc/machine-id", "runs", REMOVED_STILL_TAKEN),
    ("--windows-service", "runs", REMOVED_STILL_TAKEN),
    ("--metrics-port=0", "runs", PORT_ZERO),
    ("--proxy-mode=userspace", "runs", USERSPACE),
    ("mode: userspace", "runs", USERSPACE),
    ("--feature-gates=TopologyAwareHints=true", "runs", RETIRED_GATE),
    ("--feature-gates=MinimizeIPTablesRestore=true", "runs", RETIRED_GATE),
    ("--feature-gates=SCTPSupport=true", "runs", RETIRED_GATE),
    ("--feature-gates=AllAlpha=true", "runs", ALL_ALPHA),
    ("featureGates: {AllAlpha: true}", "runs", ALL_ALPHA),
    ("nftables: {masqueradeBit: 32}", "invalid", BOTH_SECTIONS),
    ("nftables: {syncPeriod: -1s}", "invalid", BOTH_SECTIONS),
    ("nftables: {syncPeriod: 1s, minSyncPeriod: 2s}", "invalid", BOTH_SECTIONS),
];

fn outcome(result: &Result<Parsed, Failure>) -> &'static str {
    match result {
        Ok(Parsed { invocation: Invocation::Help(_) | Invocation::Version(_), .. }) => "prints",
        Ok(_) => "runs",
        Err(Failure::Flag(_)) => "flag error",
        Err(Failure::Argument(_)) => "argument error",
        Err(Failure::Invalid { .. }) => "invalid",
    }
}

#[test]
fn every_recorded_command_line_and_file_ends_as_in_the_original_or_as_listed() {
    let cases: serde_json::Value = serde_json::from_str(include_str!("data/cli.json")).unwrap();
    let mut wrong = Vec::new();
    let mut listed = 0;
    for case in cases.as_array().unwrap() {
        let (name, result) = if let Some(args) = case["args"].as_array() {
            let args: Vec<String> = args.iter().map(|a| a.as_str().unwrap().to_owned()).collect();
            (args.join(" "), words_and_file(args, None))
        } else {
            let name = case["name"].as_str().unwrap().to_owned();
            (name, words_and_file(["--config=/config.yaml".into()], case["file"].as_str()))
        };
        let difference = DIFFERENCES.iter().find(|(case, ..)| *case == name);
        listed += usize::from(difference.is_some());
        let wanted = difference.map_or(case["outcome"].as_str().unwrap(), |(_, ours, _)| ours);
        if outcome(&result) != wanted {
            wrong.push(format!("{name}: should be {wanted:?}, but is {result:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(listed, DIFFERENCES.len(), "a listed difference matches no case");
}

#[test]
fn the_written_configuration_equals_the_originals_but_for_the_sections_it_leaves_empty() {
    let expected = include_str!("data/write-config.yaml")
        // Quoted, for readers that take it for a number.
        .replace("bindAddress: 0.0.0.0\n", "bindAddress: \"0.0.0.0\"\n")
        // The mode is decided at the start, by what the kernel can.
        .replace("mode: iptables\n", "mode: \"\"\n")
        // The sections of other modes are lost there; here they say what would hold.
        .replace(
            "nftables:\n  masqueradeAll: false\n  masqueradeBit: 14\n  minSyncPeriod: 0s\n  syncPeriod: 0s\n",
            "nftables:\n  masqueradeAll: false\n  masqueradeBit: 14\n  minSyncPeriod: 1s\n  syncPeriod: 30s\n",
        )
        .replace(
            "ipvs:\n  excludeCIDRs: null\n  minSyncPeriod: 0s\n  scheduler: \"\"\n  strictARP: false\n  syncPeriod: 0s\n",
            "ipvs:\n  excludeCIDRs: null\n  minSyncPeriod: 1s\n  scheduler: \"\"\n  strictARP: false\n  syncPeriod: 30s\n",
        );
    let ours = written(words_and_file(["--write-config-to=/out".into()], None));
    assert_eq!(ours, expected);
}

#[test]
fn configz_equals_the_originals_but_for_the_sections_it_leaves_empty() {
    let periods = |period, least| format!("\"syncPeriod\":\"{period}\",\"minSyncPeriod\":\"{least}\"");
    // Of both modes that were not in use there, ipvs and nftables.
    let expected = include_str!("data/configz.json").replace(&periods("0s", "0s"), &periods("30s", "1s"));
    let flags = "--kubeconfig=/kubeconfig --hostname-override=pe-node --cluster-cidr=192.0.2.0/24 \
                 --conntrack-max-per-core=0";
    let config = quietly(words_and_file(flags.split(' ').map(str::to_owned), None));
    assert_eq!(config.configz(Mode::Iptables), expected);
}

#[test]
fn a_written_configuration_read_again_writes_the_same() {
    let flags = "--write-config-to=/out --proxy-mode=ipvs --ipvs-exclude-cidrs=192.0.2.0/24,198.51.100.0/24 \
                 --feature-gates=NFTablesNetlink=true --vmodule=sync=4 --conntrack-max=5 --udp-timeout=1s \
                 --nodeport-addresses=primary,192.0.2.0/24 --hostname-override=n1 --kube-api-qps=2.5 \
                 --cluster-cidr=198.51.100.0/24,2001:db8::/48 --ipvs-min-sync-period=3s --bind-address=::";
    let once = written(words_and_file(flags.split(' ').map(str::to_owned), None));
    let twice = written(line_and_file("--config=/config.yaml --write-config-to=/out", &once));
    assert_eq!(once, twice);
    for part in
        ["qps: 2.5", "excludeCIDRs:\n  - 192.0.2.0/24\n", "max: 5", "udpIdleTimeout: 1s", "verbosity: 4"]
    {
        assert!(once.contains(part), "{part} is missing in\n{once}");
    }
}
