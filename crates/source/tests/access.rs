//! What is wrong with a kubeconfig or a master is said at once, with the field.
#![allow(clippy::unwrap_used)]

use std::fs;

use kube_proxy_source::api::{Access, Connection, connect};

const GOOD: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: 'https://192.0.2.1:6443'}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
";

/// Reads GOOD with `old` replaced by `new`.
fn connected(old: &str, new: &str, master: Option<&str>) -> Result<Connection, String> {
    assert!(GOOD.contains(old), "{old}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    fs::write(&path, GOOD.replace(old, new)).unwrap();
    let access = Access { kubeconfig: Some(path), master: master.map(str::to_owned), qps: 5.0, burst: 10 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(connect(access, Box::new(|_, _, _| ()))).map_err(|error| error.to_string())
}

#[test]
fn a_wrong_field_of_the_kubeconfig_is_named() {
    for (old, new, part) in [
        ("current-context: x", "", "current-context: is not set"),
        ("current-context: x", "current-context: y", "current-context: \"y\" is not among contexts[].name"),
        ("cluster: c", "cluster: d", "contexts[].context.cluster: \"d\" is not among clusters[].name"),
        ("server: 'https://192.0.2.1:6443'", "", "clusters[].cluster.server: is missing"),
        ("https://192.0.2.1:6443", "https://a b", "clusters[].cluster.server: "),
        ("https://192.0.2.1:6443", "ftp://192.0.2.1", "clusters[].cluster.server: ftp://192.0.2.1"),
        ("6443'", "6443', certificate-authority: absent", "clusters[].cluster.certificate-authority: "),
        ("6443'", "6443', certificate-authority-data: '%'", "clusters[].cluster.certificate-authority: "),
        ("token: secret", "tokenFile: absent", "users[].user.tokenFile: "),
        ("token: secret", "client-certificate: absent", "users[].user.client-certificate: "),
        ("contexts: [", "contexts: ", "is no kubeconfig: "),
    ] {
        let error = connected(old, new, None).map(drop).unwrap_err();
        assert!(error.contains("/kubeconfig: ") && error.contains(part), "{new}: {error}");
    }
}

#[test]
fn a_missing_kubeconfig_is_named() {
    let access = Access { kubeconfig: Some("/nowhere/kubeconfig".into()), ..Access::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(connect(access, Box::new(|_, _, _| ()))).map(drop).unwrap_err().to_string();
    assert!(error.starts_with("kubeconfig /nowhere/kubeconfig: cannot be read: "), "{error}");
}

#[test]
fn the_master_takes_the_place_of_the_server() {
    for (old, new, master, address) in [
        ("", "", "http://192.0.2.9:8080", "http://192.0.2.9:8080/"),
        ("", "", "192.0.2.9:6443", "https://192.0.2.9:6443/"),
        ("server: 'https://192.0.2.1:6443'", "", "https://192.0.2.9", "https://192.0.2.9/"),
    ] {
        let connection = connected(old, new, Some(master)).unwrap();
        assert_eq!(connection.address(), address);
    }
    assert_eq!(connected("", "", None).unwrap().address(), "https://192.0.2.1:6443/");
}

#[test]
fn a_master_that_is_no_url_is_refused() {
    for master in ["ftp://192.0.2.1", "https://", "http://a b"] {
        let error = connected("", "", Some(master)).map(drop).unwrap_err();
        assert!(error.contains(master), "{master}: {error}");
    }
}
