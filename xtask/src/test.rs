//! Running the tests.

use anyhow::{Result, bail};

use crate::{packages, sh};

/// All tests, or those of the crates and scenarios that `names` are part of.
pub(crate) fn run(names: &[&str]) -> Result<()> {
    packages::ensure()?;
    if !rustix::process::geteuid().is_root() {
        bail!("the tests make network namespaces and write kernel rules in them: run this as root");
    }
    if names.is_empty() {
        return sh("cargo", &["test", "--workspace", "--locked"]);
    }
    let crates = crate_names()?;
    for name in names {
        let package = crates.iter().find(|package| package.trim_start_matches("kube-proxy-") == *name);
        match package {
            Some(package) => sh("cargo", &["test", "--locked", "--package", package])?,
            None => sh("cargo", &["test", "--locked", "--workspace", "--", name])?,
        }
    }
    Ok(())
}

fn crate_names() -> Result<Vec<String>> {
    let output = std::process::Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version=1", "--locked"])
        .output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    Ok(packages.iter().filter_map(|package| package["name"].as_str().map(str::to_owned)).collect())
}

/// Formatting, lints and the rules about dependencies.
pub(crate) fn lint() -> Result<()> {
    sh("cargo", &["fmt", "--all", "--check"])?;
    sh("cargo", &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    sh("cargo", &["deny", "--locked", "check", "bans", "licenses", "sources"])
}
