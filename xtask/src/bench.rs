//! `cargo xtask bench`: what the proxy costs. `docs/benchmarks.md` tells what each number means.
//!
//! A measurement has a network namespace of its own ([`scene`]) and four processes: the proxy, the API [`driver`], the
//! [`observer`] of the kernel's transactions, and this one, which tells the driver what to do and compares times.

mod cases;
mod driver;
mod objects;
mod observer;
mod process;
mod report;
mod scene;
mod shape;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::sh;
use cases::Effort;
use objects::{Cluster, MOST_ENDPOINTS, MOST_SERVICES};
use scene::Program;

/// The proxy's table, in both families.
const TABLE: &str = "kube-proxy";

struct Options {
    names: Vec<&'static str>,
    cluster: Cluster,
    runs: usize,
    json: bool,
    short: bool,
    proxy: Option<PathBuf>,
    flags: Vec<String>,
}

/// Runs benchmarks, or one of the helper processes they need.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["driver", rest @ ..] => driver::run(rest),
        ["observer", mode] => observer::run(*mode == "listen"),
        _ => measure(&parse(arguments)?),
    }
}

fn parse(arguments: &[&str]) -> Result<Options> {
    let mut options = Options {
        names: Vec::new(),
        cluster: Cluster { services: 10_000, endpoints: 10 },
        runs: 3,
        json: false,
        short: false,
        proxy: None,
        flags: Vec::new(),
    };
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        let mut value = || rest.next().copied().with_context(|| format!("{word} needs a value"));
        let number =
            |text: &str| text.parse::<usize>().with_context(|| format!("{word} {text}: not a number"));
        match *word {
            "--services" => options.cluster.services = number(value()?)?,
            "--endpoints" => options.cluster.endpoints = number(value()?)?,
            "--runs" => options.runs = number(value()?)?,
            "--json" => options.json = true,
            "--short" => options.short = true,
            "--proxy" => options.proxy = Some(value()?.into()),
            "--flags" => options.flags.extend(value()?.split_whitespace().map(str::to_owned)),
            "all" => options.names.extend(cases::NAMES),
            name => {
                let known = cases::NAMES.into_iter().find(|known| *known == name);
                options.names.push(known.with_context(|| {
                    format!("there is no benchmark {name}, only {} and all", cases::NAMES.join(" "))
                })?);
            }
        }
    }
    ensure!(!options.names.is_empty(), "which benchmark? {} or all", cases::NAMES.join(" "));
    let Cluster { services, endpoints } = options.cluster;
    ensure!((1..=MOST_SERVICES).contains(&services), "--services {services}: 1 to {MOST_SERVICES}");
    ensure!((1..=MOST_ENDPOINTS).contains(&endpoints), "--endpoints {endpoints}: 1 to {MOST_ENDPOINTS}");
    ensure!(options.runs >= 1, "--runs 0: at least 1");
    Ok(options)
}

fn measure(options: &Options) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("the benchmarks make network namespaces and write kernel rules in them: run this as root");
    }
    let binary = match &options.proxy {
        Some(proxy) => proxy.clone(),
        None => build()?,
    };
    let program = Program { binary, flags: options.flags.clone(), own: options.proxy.is_none() };
    let mut show = |object: &Value| {
        if !options.json {
            println!("{}", report::table(object));
        }
        println!("{object}");
    };
    if options.short {
        return shape::check(&program, options.cluster.endpoints, &options.names, &mut show);
    }
    for name in &options.names {
        show(&measure_one(name, options, &program)?);
    }
    Ok(())
}

/// The median run, and the numbers of all that it is the median of.
fn measure_one(name: &str, options: &Options, program: &Program) -> Result<Value> {
    let mut runs = Vec::new();
    for _ in 0..options.runs {
        runs.push(cases::run(name, options.cluster, program, Effort::FULL)?);
    }
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let keys: Vec<f64> = runs.iter().map(|(key, _)| process::round(*key)).collect();
    let mut results = runs.swap_remove(runs.len() / 2).1;
    results["all_runs"] = json!(keys);
    let Cluster { services, endpoints } = options.cluster;
    let parameters = json!({
        "services": services, "endpoints": endpoints, "runs": options.runs, "flags": options.flags,
        "proxy": program.binary.file_name().map(|name| name.to_string_lossy()),
    });
    Ok(report::object(name, &parameters, &results))
}

/// The proxy as it is shipped.
fn build() -> Result<PathBuf> {
    sh("cargo", &["build", "--quiet", "--locked", "--release", "--package", "kube-proxy"])?;
    release_binary()
}

/// Where that is.
pub(crate) fn release_binary() -> Result<PathBuf> {
    // this program is in the folder `debug` beside it
    let itself = std::env::current_exe().context("looking up this program")?;
    let target = itself.parent().and_then(Path::parent).context("this program is not in a target folder")?;
    Ok(target.join("release/kube-proxy"))
}

/// CLOCK_MONOTONIC in nanoseconds: the same clock in all processes.
fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // both are positive and small enough for 500 years
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_in_any_order() {
        let options = parse(&["--json", "memory", "--services", "5", "--flags", "--v=2 --x"]).unwrap();
        assert_eq!((options.names, options.cluster.services), (vec!["memory"], 5));
        assert_eq!(options.flags, ["--v=2", "--x"]);
    }

    #[test]
    fn mistakes_are_named() {
        for (arguments, part) in [
            (&["speed"][..], "no benchmark speed"),
            (&["idle", "--services"], "--services needs a value"),
            (&["idle", "--services", "many"], "--services many"),
            (&["idle", "--services", "0"], "1 to"),
            (&["--json"], "which benchmark"),
        ] {
            let error = format!("{:#}", parse(arguments).err().unwrap());
            assert!(error.contains(part), "{error}");
        }
    }
}
