//! How the command line is written.

mod support;

use std::path::PathBuf;
use std::time::Duration;

use kube_proxy_config::{Failure, Invocation, Mode, Parsed};
use support::{file, flag_error, line, line_and_file, quietly, refused, running, with_one_warning};

/// Flags that are accepted without effect, with a value each.
const WITHOUT_EFFECT: &[&str] = &[
    "logtostderr=true",
    "alsologtostderr",
    "stderrthreshold=2",
    "log-dir=/tmp",
    "log-file=/tmp/x",
    "log-file-max-size=1800",
    "one-output",
    "log-backtrace-at=:0",
    "skip-headers",
    "skip-log-headers",
    "add-dir-header",
    "resource-container=/kube-proxy",
    "boot-id-file=/b",
    "machine-id-file=/m",
    "windows-service",
    "network-name=n",
    "source-vip=192.0.2.1",
    "enable-dsr",
    "root-hnsendpoint-name=e",
    "forward-healthcheck-vip",
    "udp-timeout=1s",
    "proxy-port-range=1-2",
];

#[test]
fn each_removed_flag_is_accepted_with_one_warning_that_names_it_and_says_what_to_do() {
    for flag in WITHOUT_EFFECT {
        let (name, _) = flag.split_once('=').unwrap_or((flag, ""));
        let (_, warning) = with_one_warning(line(&format!("--{flag}")));
        let (subject, advice) = warning.split_once(": ").unwrap();
        assert!(subject.contains(&format!("--{name} ")) && advice.len() > 10, "{warning}");
    }
}

#[test]
fn an_old_unit_file_still_starts() {
    let words = "--bind-address=192.0.2.1 --hostname-override=n1 --cluster-cidr=198.51.100.0/24 --kubeconfig=/k \
                 --logtostderr=true --v=2 --ipvs-scheduler=wrr --ipvs-min-sync-period=5s --ipvs-sync-period=5s \
                 --proxy-mode=ipvs";
    let (config, warning) = with_one_warning(line(&words.split_whitespace().collect::<Vec<_>>().join(" ")));
    assert!(warning.contains("--logtostderr"));
    assert_eq!((config.mode, config.ipvs.scheduler.as_str()), (Mode::Ipvs, "wrr"));
    assert_eq!(config.sync(Mode::Ipvs).min_period, Duration::from_secs(5));
}

#[test]
fn deprecated_ports_act_unless_the_address_names_one() {
    for (words, healthz) in [
        ("--healthz-port=5", Some("0.0.0.0:5")),
        ("--healthz-port=5 --healthz-bind-address=192.0.2.1", Some("192.0.2.1:5")),
        ("--healthz-port=5 --healthz-bind-address=192.0.2.1:6", Some("192.0.2.1:6")),
        ("--healthz-port=0", None),
    ] {
        let (config, warning) = with_one_warning(line(words));
        assert_eq!(config.healthz_bind_address.map(|a| a.to_string()).as_deref(), healthz, "{words}");
        assert!(warning.contains("--healthz-bind-address"), "{warning}");
    }
    assert!(with_one_warning(line("--metrics-port=0")).0.metrics_bind_address.is_none());
    assert!(refused(line("--metrics-port=70000")).contains("--metrics-port: invalid value 70000"));
}

#[test]
fn userspace_mode_goes_by_the_flags_it_once_had() {
    for (range, ports) in [
        ("", None),
        ("0", None),
        ("0-0", None),
        ("30000", Some(30000..=30000)),
        ("30000-30010", Some(30000..=30010)),
        ("30000+10", Some(30000..=30010)),
    ] {
        let (config, _) =
            running(line(&format!("--proxy-mode=userspace --udp-timeout=1s --proxy-port-range={range}")));
        assert_eq!(config.userspace.ports, ports, "{range}");
        assert_eq!(config.userspace.udp_idle_timeout, Duration::from_secs(1));
    }
    for range in ["x", "5-4", "0-5", "65535+1", "1-2-3", "-", "+"] {
        let message = refused(file(&format!("mode: userspace\nportRange: '{range}'")));
        assert!(message.contains("portRange"), "{range}: {message}");
    }
}

#[test]
fn underscores_stand_for_dashes_in_names_but_not_in_values() {
    let config = quietly(line("--proxy_mode=ipvs --ipvs_scheduler w_rr --masquerade_all"));
    assert_eq!((config.mode, config.ipvs.scheduler.as_str()), (Mode::Ipvs, "w_rr"));
    assert!(config.masquerade(Mode::Nftables).all && config.masquerade(Mode::Iptables).all);
    assert_eq!(flag_error(line("--no_such_flag=1")), "unknown flag: --no_such_flag");
}

#[test]
fn switches_take_gos_words_and_only_after_an_equals_sign() {
    for (word, on) in
        [("", true), ("=true", true), ("=T", true), ("=1", true), ("=false", false), ("=0", false)]
    {
        assert_eq!(quietly(line(&format!("--masquerade-all{word}"))).iptables.masquerade.all, on, "{word}");
    }
    for word in ["=", "=maybe", "=yes"] {
        assert!(flag_error(line(&format!("--profiling{word}"))).contains("\"--profiling\" flag"), "{word}");
    }
    let apart = line("--masquerade-all false");
    assert!(matches!(&apart, Err(Failure::Argument(text)) if text.contains("[\"false\"]")), "{apart:?}");
}

#[test]
fn values_come_after_an_equals_sign_or_as_the_next_word_and_the_last_one_wins() {
    let config = quietly(line("-v 3 --oom-score-adj -5 --proxy-mode=ipvs --proxy-mode iptables"));
    assert_eq!((config.logging.verbosity, config.oom_score_adj, config.mode), (3, -5, Mode::Iptables));
    for words in ["-v=4", "-v4", "--v=4", "--v 4"] {
        assert_eq!(quietly(line(words)).logging.verbosity, 4, "{words}");
    }
}

#[test]
fn what_does_not_parse_is_a_flag_error_in_the_words_of_the_original() {
    for (words, message) in [
        ("--no-such-flag", "unknown flag: --no-such-flag"),
        ("--no-such-flag=1", "unknown flag: --no-such-flag"),
        ("-z", "unknown shorthand flag: 'z' in -z"),
        ("--config", "flag needs an argument: --config"),
        (
            "--bind-address=x",
            "invalid argument \"x\" for \"--bind-address\" flag: \"x\" is not an IP address",
        ),
        ("-v=abc", "invalid argument \"abc\" for \"-v, --v\" flag: "),
        ("--config-sync-period=15", "invalid argument \"15\" for \"--config-sync-period\" flag: "),
        ("--vmodule=bogus", "\"bogus\" does not have the pattern=N format"),
        ("--feature-gates=KubeProxyIPVS", "\"KubeProxyIPVS\" is not of the form name=bool"),
        ("--kube-api-qps=nan", "\"nan\" is not a finite number"),
        ("--version=v1.2.3", "version \"v1.2.3\" must begin with v1.37.2"),
    ] {
        let answer = flag_error(line(words));
        assert!(answer.contains(message), "{words}: {answer}");
    }
}

#[test]
fn a_word_that_belongs_to_no_flag_is_an_argument_error() {
    for words in ["positional", "--cleanup positional", "-- --cleanup", "--cleanup demo"] {
        assert!(matches!(line(words), Err(Failure::Argument(_) | Failure::Flag(_))), "{words}");
    }
    assert!(matches!(line("positional"), Err(Failure::Argument(text)) if text.contains("[\"positional\"]")));
}

#[test]
fn a_value_that_is_not_text_is_a_flag_error() {
    use std::os::unix::ffi::OsStringExt;
    let word = std::ffi::OsString::from_vec(b"--config=\xff".to_vec());
    let answer = kube_proxy_config::parse([word], &|_| unreachable!("not read"), "n");
    assert!(flag_error(answer).contains("UTF-8"));
}

#[test]
fn version_and_help_print_and_nothing_else() {
    for (words, part) in [
        ("--version", "Kubernetes v1.37.2 "),
        ("--version=raw", "GitVersion:\"v1.37.2\""),
        ("--help", "Usage:"),
        ("-h", "Usage:"),
    ] {
        match line(&format!("--config=/no/such {words}")) {
            Ok(Parsed { invocation: Invocation::Version(text) | Invocation::Help(text), .. }) => {
                assert!(text.contains(part) && text.ends_with('\n'), "{text}");
            }
            other => panic!("{words}: {other:?}"),
        }
    }
    assert_eq!(quietly(line("--version=false")).version, "v1.37.2");
    assert_eq!(quietly(line("--version=v1.37.2-custom")).version, "v1.37.2-custom");
}

#[test]
fn clean_up_can_spare_the_virtual_servers() {
    for (words, ipvs) in
        [("--cleanup", true), ("--cleanup --cleanup-ipvs=false", false), ("--cleanup-iptables", true)]
    {
        match line(words) {
            Ok(Parsed { invocation: Invocation::Cleanup(config), .. }) => {
                assert_eq!(config.cleanup_ipvs, ipvs);
            }
            other => panic!("{words}: {other:?}"),
        }
    }
}

#[test]
fn writing_goes_before_cleaning_up_and_takes_the_loaded_file() {
    let text = format!("{}mode: ipvs\n", support::HEAD);
    let parsed = line_and_file("--config=/config.yaml --cleanup --write-config-to=/out", &text);
    match parsed {
        Ok(Parsed { invocation: Invocation::WriteConfig { path, yaml }, .. }) => {
            assert_eq!(path, PathBuf::from("/out"));
            assert!(yaml.contains("\nmode: ipvs\n"), "{yaml}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_demo_takes_manifests_and_help_only() {
    let manifests = |words| match line(words) {
        Ok(Parsed { invocation: Invocation::Demo { manifests }, .. }) => manifests,
        other => panic!("{words}: {other:?}"),
    };
    assert_eq!(manifests("demo"), None);
    assert_eq!(manifests("demo --manifests=/m"), Some(PathBuf::from("/m")));
    assert!(
        matches!(line("demo --help"), Ok(Parsed { invocation: Invocation::Help(text), .. }) if text.contains("demo"))
    );
    assert!(matches!(line("demo --proxy-mode=ipvs"), Err(Failure::Argument(_))));
    assert!(matches!(line("demo --no-such"), Err(Failure::Flag(_))));
}
