//! Programs that tests look with, from the distribution.

use std::env;
use std::path::Path;

use anyhow::{Result, bail};

use crate::sh;

/// Program, and the Debian package that has it.
const NEEDED: [(&str, &str); 6] = [
    ("nft", "nftables"),
    ("iptables-save", "iptables"),
    ("ipset", "ipset"),
    ("ipvsadm", "ipvsadm"),
    ("conntrack", "conntrack"),
    ("ip", "iproute2"),
];

fn is_there(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
        || ["/usr/sbin", "/sbin"].iter().any(|folder| Path::new(folder).join(program).is_file())
}

/// Installs what is missing when run as root on a distribution with apt, else names it.
pub(crate) fn ensure() -> Result<()> {
    let missing: Vec<_> = NEEDED.iter().filter(|(program, _)| !is_there(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    if !rustix::process::geteuid().is_root() || !is_there("apt-get") {
        let programs: Vec<&str> = missing.iter().map(|(program, _)| *program).collect();
        bail!("the tests need {}; install the packages {}", programs.join(", "), packages.join(" "));
    }
    sh("apt-get", &["update", "-qq"])?;
    let mut arguments = vec!["-o", "Dpkg::Use-Pty=0", "install", "-qq", "-y", "--no-install-recommends"];
    arguments.extend(packages);
    sh("env", &[&["DEBIAN_FRONTEND=noninteractive", "apt-get"], &arguments[..]].concat())
}
