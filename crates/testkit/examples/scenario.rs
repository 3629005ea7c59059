//! Runs scenarios with any binary that has kube-proxy's flags:
//!
//! `scenario BINARY MODE [--api PROGRAM] [--slow-refusal] FILE...` where PROGRAM is a stand-in for an API server.
//! Kubernetes' own kube-proxy needs both options.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use kube_proxy_testkit::objects::Source;
use kube_proxy_testkit::scenario::{Setup, load, run};

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1).peekable();
    let binary = PathBuf::from(arguments.next().context("which binary?")?);
    let mode = arguments.next().context("which mode?")?;
    let program = arguments.next_if_eq("--api").and_then(|_| arguments.next());
    let source = program.map_or(Source::Manifests, |program| Source::Program(program.into()));
    let slow_refusal = arguments.next_if_eq("--slow-refusal").is_some();
    let effect = Duration::from_secs(10);
    let setup = Setup { binary, mode, source, effect, slow_refusal, nft: Vec::new() };
    let mut failed = false;
    for file in arguments {
        let path = Path::new(&file);
        let modes = load(path)?.modes;
        if !modes.is_empty() && !modes.contains(&setup.mode) {
            println!("{file}: not for {}", setup.mode);
        } else if let Err(problem) = run(path, &setup) {
            failed = true;
            println!("{file}: {problem:#}");
        } else {
            println!("{file}: ok");
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
