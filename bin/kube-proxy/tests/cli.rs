//! The binary as a person or a unit file meets it: exit codes, what it prints, what it leaves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::{Command, Output, Stdio};

use netlink::namespace::Namespace;

const BINARY: &str = env!("CARGO_BIN_EXE_kube-proxy");

/// What a run ended with: exit code, stdout, stderr.
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn ended(output: Output) -> Ended {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn run(arguments: &[&str]) -> Ended {
    ended(Command::new(BINARY).args(arguments).stdin(Stdio::null()).output().unwrap())
}

/// Runs it, or another program, in a namespace.
fn run_in(namespace: &Namespace, program: &str, arguments: &[&str]) -> Ended {
    let output = namespace.run(|| namespace.command(program).unwrap().args(arguments).output().unwrap());
    ended(output.unwrap())
}

fn folder_with(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[test]
fn version_and_help_are_for_stdout() {
    let version = run(&["--version"]);
    assert_eq!(version.code, Some(0));
    assert!(version.stdout.starts_with("Kubernetes v1."), "{}", version.stdout);
    let help = run(&["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
    assert!(help.stdout.contains("--proxy-mode"));
}

#[test]
fn a_wrong_flag_prints_the_usage_and_the_error_last() {
    let wrong = run(&["--no-such-flag"]);
    assert_eq!((wrong.code, wrong.stdout.as_str()), (Some(1), ""));
    assert!(wrong.stderr.contains("--proxy-mode"));
    assert_eq!(wrong.stderr.trim_end().lines().last(), Some("Error: unknown flag: --no-such-flag"));
}

#[test]
fn a_wrong_value_is_named_with_its_field() {
    let wrong = run(&["--iptables-masquerade-bit=99", "--cluster-cidr=nonsense"]);
    assert_eq!(wrong.code, Some(1));
    for word in ["masqueradeBit", "99", "clusterCIDR", "nonsense"] {
        assert!(wrong.stderr.contains(word), "{word} is not in: {}", wrong.stderr);
    }
}

#[test]
fn the_effective_configuration_is_written_and_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.yaml");
    let path = path.to_str().unwrap();
    assert_eq!(run(&["--cluster-cidr=198.51.100.0/24", "--write-config-to", path]).code, Some(0));
    let again = folder.path().join("again.yaml");
    assert_eq!(run(&["--config", path, "--write-config-to", again.to_str().unwrap()]).code, Some(0));
    assert_eq!(std::fs::read_to_string(path).unwrap(), std::fs::read_to_string(again).unwrap());
}

#[test]
fn a_missing_kubeconfig_ends_it_with_the_files_name() {
    let missing = run_in(
        &Namespace::new().unwrap(),
        BINARY,
        &["--kubeconfig=/nonexistent/kubeconfig", "--hostname-override=n1", "--conntrack-max-per-core=0"],
    );
    assert_eq!(missing.code, Some(1));
    assert!(missing.stderr.contains("/nonexistent/kubeconfig"), "{}", missing.stderr);
}

#[test]
fn broken_manifests_end_it_at_the_start_with_file_and_line() {
    let folder = folder_with(&[("web.yaml", "kind: Service\nmetadata: {name: web\n")]);
    let path = folder.path().to_str().unwrap();
    let broken =
        run_in(&Namespace::new().unwrap(), BINARY, &["--manifests", path, "--conntrack-max-per-core=0"]);
    assert_eq!(broken.code, Some(1));
    assert!(broken.stderr.contains("web.yaml"), "{}", broken.stderr);
    assert!(broken.stderr.contains("line"), "{}", broken.stderr);
}

#[test]
fn a_mode_that_is_not_here_is_refused_with_one_that_is() {
    let refused = run(&["--proxy-mode=ipvs", "--manifests=/nonexistent"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("--proxy-mode=nftables"), "{}", refused.stderr);
}

#[test]
fn cleanup_removes_its_tables_and_those_of_nobody_else() {
    let namespace = Namespace::new().unwrap();
    let nft = |arguments: &[&str]| run_in(&namespace, "nft", arguments).stdout;
    nft(&["add", "table", "ip", "other"]);
    nft(&["add", "table", "ip", "kube-proxy"]);
    nft(&["add", "table", "ip6", "kube-proxy"]);
    assert_eq!(run_in(&namespace, BINARY, &["--cleanup"]).code, Some(0));
    assert_eq!(nft(&["list", "tables"]), "table ip other\n");
    assert_eq!(run_in(&namespace, BINARY, &["--cleanup"]).code, Some(0), "a second time");
}

#[test]
fn without_the_rights_it_says_which_are_missing() {
    let namespace = Namespace::new().unwrap();
    run_in(&namespace, "nft", &["add", "table", "ip", "kube-proxy"]);
    let refused = run_in(&namespace, "setpriv", &["--bounding-set=-net_admin", BINARY, "--cleanup"]);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("CAP_NET_ADMIN"), "{}", refused.stderr);
    let folder = folder_with(&[]);
    let manifests = folder.path().to_str().unwrap();
    let refused = run_in(
        &namespace,
        "setpriv",
        &["--bounding-set=-net_admin", BINARY, "--manifests", manifests, "--conntrack-max-per-core=0"],
    );
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("nothing can be done without CAP_NET_ADMIN"), "{}", refused.stderr);
}

/// A proxy that ends with the test.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        // it may have ended by itself
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Looks until it is so, or fails.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < std::time::Duration::from_secs(20), "{what}: not within 20 s");
        std::thread::yield_now();
    }
}

#[test]
fn tables_that_are_flushed_again_and_again_are_there_in_the_end_in_both_families() {
    let folder = folder_with(&[]);
    let namespace = Namespace::new().unwrap();
    let quiet = ["--conntrack-max-per-core=0", "--healthz-bind-address=", "--metrics-bind-address="];
    let _proxy = Running(
        namespace
            .command(BINARY)
            .unwrap()
            .args(["--manifests", folder.path().to_str().unwrap(), "--nftables-own-table=false"])
            .args(quiet)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let has_rules = |family: &str| {
        run_in(&namespace, "nft", &["-t", "list", "chain", family, "kube-proxy", "services"]).code == Some(0)
    };
    let both = || has_rules("ip") && has_rules("ip6");
    until("the first sync", both);
    for _ in 0..25 {
        run_in(&namespace, "nft", &["flush", "ruleset"]);
    }
    until("the repair", both);
}

#[test]
fn the_demo_shows_answers_and_no_failed_connection() {
    let demo = run(&["demo"]);
    assert_eq!(demo.code, Some(0), "{}{}", demo.stdout, demo.stderr);
    assert!(
        demo.stdout.lines().any(|line| line.starts_with("connections made, failed") && line.ends_with(", 0"))
    );
}
