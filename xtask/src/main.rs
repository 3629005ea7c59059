//! `cargo xtask`: what a developer runs. `test`, `bench`, `conformance`, `lint`.

mod bench;
mod conformance;
mod packages;
mod test;

use std::process::{Command, ExitCode};

use anyhow::{Result, bail};

const USAGE: &str = "usage: cargo xtask COMMAND

  test [NAME...]       run all tests, or only those of crates or scenarios whose name contains a NAME
  lint                 formatting, clippy and the dependency rules
  bench NAME [OPTION]  measure: cold-sync endpoint-change service-create restart-warm memory idle, or all
      --services N     services (default 10000)
      --endpoints M    endpoints of each (default 10)
      --runs R         repeat, report the median run (default 3)
      --json           one JSON object a line and nothing else
      --proxy PATH     measure another kube-proxy; --flags '…' are given to it
      --short          small sizes, and fail when cost grows with the cluster: what CI runs
  conformance [NAME...]  the scenarios against a real kube-apiserver
      --peers DIR      the folder that builds and starts one (default: the variable PEERS, else ../shared/peers)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.split_first() {
        Some((&"test", names)) => test::run(names),
        Some((&"lint", [])) => test::lint(),
        Some((&"bench", rest)) => bench::run(rest),
        Some((&"conformance", rest)) => conformance::run(rest),
        _ => Err(anyhow::anyhow!("{USAGE}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a program in the workspace; it has to succeed.
fn sh(program: &str, arguments: &[&str]) -> Result<()> {
    let line = format!("{program} {}", arguments.join(" "));
    eprintln!("$ {line}");
    let status =
        Command::new(program).args(arguments).status().map_err(|error| anyhow::anyhow!("{line}: {error}"))?;
    if !status.success() {
        bail!("{line}: {status}");
    }
    Ok(())
}
