//! A lab for a user who is not root: either there is one, or the user is told why not. Needs root to become that user.
//!
//! Without the test harness, because a user namespace can only be made by a process of a single thread.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use kube_proxy_lab::{Client, Lab, Outcome, Server, Spec};
use netlink::namespace;

const NOBODY: u32 = 65_534;
const AS_NOBODY: &str = "LAB_TEST_AS_NOBODY";

fn main() {
    if std::env::var_os(AS_NOBODY).is_some() {
        return a_lab_or_a_reason();
    }
    // a copy, because the build folder may be closed to others
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let status = Command::new(program).uid(NOBODY).gid(NOBODY).env(AS_NOBODY, "1").status();
    assert!(status.expect("becoming another user needs root").success());
    println!("test an_ordinary_user_gets_a_lab_or_is_told_why_not ... ok");
}

fn a_lab_or_a_reason() {
    assert!(Lab::new(Spec::standard()).unwrap_err().to_string().contains("this needs root"));
    if let Err(error) = namespace::become_root_in_user_namespace() {
        let text = error.to_string();
        return assert!(text.contains("run this as root"), "{text}");
    }
    let lab = Lab::new(Spec::standard().only(&["p1"])).unwrap();
    let pod = lab.member("p1").unwrap();
    let _server = Server::start(pod, &[8080]).unwrap();
    let outcome = Client::new(lab.ns("ext").unwrap()).tcp((pod.addresses.v4.addr(), 8080).into());
    assert!(matches!(outcome, Outcome::Answered { .. }), "{outcome}");
}
