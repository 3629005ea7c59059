//! The arrows between the crates, as ARCHITECTURE.md draws them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Each crate of the workspace, and the ones it may use outside of its tests.
const ARROWS: [(&str, &[&str]); 14] = [
    ("backend-iptables", &["dataplane", "model"]),
    ("backend-nftables", &["dataplane", "model", "netlink"]),
    ("config", &[]),
    ("conntrack", &["dataplane", "model", "netlink"]),
    ("dataplane", &["model"]),
    ("lab", &["netlink"]),
    ("model", &[]),
    ("netlink", &[]),
    ("observe", &["model"]),
    ("relay", &["dataplane", "model"]),
    ("source", &["model"]),
    ("testkit", &["lab", "netlink"]),
    (
        "kube-proxy",
        &[
            "backend-nftables",
            "config",
            "conntrack",
            "dataplane",
            "lab",
            "model",
            "netlink",
            "observe",
            "relay",
            "source",
        ],
    ),
    ("xtask", &["lab", "netlink", "testkit"]),
];

/// Crates that only these may use directly.
const RESERVED: [(&str, &[&str]); 4] = [
    ("tokio", &["observe", "relay", "source", "kube-proxy"]),
    ("kube", &["source"]),
    ("libc", &["netlink"]),
    ("anyhow", &["kube-proxy", "testkit", "xtask"]),
];

type Dependencies = BTreeMap<String, BTreeSet<String>>;

/// What each crate of the workspace depends on, tests and build scripts left out. Ours are called by their folder.
fn dependencies() -> Dependencies {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let short = |name: &str| name.strip_prefix("kube-proxy-").unwrap_or(name).to_owned();
    let of_package = |package: &serde_json::Value| {
        let used = package["dependencies"].as_array().unwrap().iter().filter(|used| used["kind"].is_null());
        (
            short(package["name"].as_str().unwrap()),
            used.map(|used| short(used["name"].as_str().unwrap())).collect::<BTreeSet<_>>(),
        )
    };
    metadata["packages"].as_array().unwrap().iter().map(of_package).collect()
}

#[test]
fn crates_use_only_the_siblings_that_architecture_allows() {
    let dependencies = dependencies();
    let arrows: BTreeMap<&str, &[&str]> = ARROWS.into();
    let known: BTreeSet<&str> = dependencies.keys().map(String::as_str).collect();
    assert_eq!(
        known,
        arrows.keys().copied().collect(),
        "a crate came or went: say in ARROWS what it may use"
    );
    for (package, used) in &dependencies {
        for sibling in used.iter().filter(|used| known.contains(used.as_str())) {
            assert!(arrows[package.as_str()].contains(&sibling.as_str()), "{package} may not use {sibling}");
        }
    }
}

#[test]
fn runtimes_api_clients_and_unsafe_bindings_stay_where_they_belong() {
    for (package, used) in dependencies() {
        for (reserved, users) in RESERVED {
            let allowed = !used.contains(reserved) || users.contains(&package.as_str());
            assert!(allowed, "{package} may not use {reserved}");
        }
    }
}
