//! `cargo xtask conformance`: the scenarios of `tests/scenarios` with a real kube-apiserver between the objects and the
//! proxy.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testkit::api_server::ApiServer;
use testkit::objects::Source;
use testkit::scenario::{Setup, load, run as run_scenario};

use crate::sh;

/// A change must have taken effect after this time.
const EFFECT: Duration = Duration::from_secs(10);
const MODES: [&str; 1] = ["nftables"];

struct Options {
    peers: Option<PathBuf>,
    /// Only scenarios with one of these in their name.
    names: Vec<String>,
}

/// Runs all scenarios that a real API server can have the objects of, or those whose name contains a NAME:
/// `[--peers FOLDER] [NAME...]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let options = parse(arguments)?;
    if !rustix::process::geteuid().is_root() {
        bail!("conformance makes network namespaces and writes kernel rules in them: run this as root");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let peers = peers(options.peers, std::env::var_os("PEERS").map(PathBuf::from), &root)?;
    let scenarios = scenarios(&root.join("tests/scenarios"), &options.names)?;
    sh("cargo", &["build", "--quiet", "--locked", "--release", "--package", "kube-proxy"])?;
    let binary = crate::bench::release_binary()?;
    eprintln!("starting kube-apiserver and etcd from {}", peers.display());
    let source = Source::Server(Arc::new(ApiServer::start(&peers)?));
    let mut failed = Vec::new();
    for path in &scenarios {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let scenario = load(path)?;
        if let Some(reason) = scenario.not_with_api_server {
            println!("{name}: left out: {reason}");
            continue;
        }
        for mode in MODES
            .into_iter()
            .filter(|mode| scenario.modes.is_empty() || scenario.modes.iter().any(|m| m == mode))
        {
            let (binary, mode, source) = (binary.clone(), mode.to_owned(), source.clone());
            let setup = Setup { binary, mode, source, effect: EFFECT, slow_refusal: false, nft: Vec::new() };
            match run_scenario(path, &setup) {
                Ok(()) => println!("{name}::{}: ok", setup.mode),
                Err(problem) => {
                    println!("{name}::{}: {problem:#}", setup.mode);
                    failed.push(name.to_string());
                }
            }
        }
    }
    ensure!(
        failed.is_empty(),
        "{} of {} scenarios failed: {}",
        failed.len(),
        scenarios.len(),
        failed.join(" ")
    );
    Ok(())
}

fn parse(arguments: &[&str]) -> Result<Options> {
    let mut options = Options { peers: None, names: Vec::new() };
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match *word {
            "--peers" => options.peers = Some(rest.next().context("--peers needs a folder")?.into()),
            option if option.starts_with('-') => bail!("there is no option {option}, only --peers FOLDER"),
            name => options.names.push(name.to_owned()),
        }
    }
    Ok(options)
}

/// The folder that starts a kube-apiserver: as told, or beside the repository.
fn peers(option: Option<PathBuf>, variable: Option<PathBuf>, root: &Path) -> Result<PathBuf> {
    let beside = root.join("../shared/peers");
    match option.or(variable) {
        Some(folder) => Ok(std::path::absolute(folder)?),
        None if beside.is_dir() => Ok(beside.canonicalize()?),
        None => bail!(
            "conformance needs a folder whose script `up` starts a kube-apiserver and its etcd: name it with --peers \
             FOLDER or in the variable PEERS; PEERS_BIN may name a folder with the programs already built"
        ),
    }
}

fn scenarios(folder: &Path, names: &[String]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in folder.read_dir().with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let wanted = names.is_empty() || names.iter().any(|part| name.contains(part.as_str()));
        if wanted && path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    files.sort();
    ensure!(!files.is_empty(), "no scenario in {} has {} in its name", folder.display(), names.join(" or "));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_goes_before_the_variable_and_without_both_the_message_says_what_is_needed() {
        let nowhere = Path::new("/nonexistent");
        let folder = |name: &str| Some(PathBuf::from(name));
        assert_eq!(peers(folder("/a"), folder("/b"), nowhere).unwrap(), Path::new("/a"));
        assert_eq!(peers(None, folder("/b"), nowhere).unwrap(), Path::new("/b"));
        assert!(peers(None, None, nowhere).unwrap_err().to_string().contains("--peers"));
    }
}
