//! `kube-proxy`: parse, wire, run, exit code. Everything else lives in the crates.

mod cleanup;
mod config_watch;
mod demo;
mod node_ports;
mod node_setup;
mod objects;
mod program;
mod run;
mod serve;

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use config::{Failure, Invocation, LogFormat, LoggingSettings};
use observe::log;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let hostname = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    match config::parse(arguments, &|path| fs::read_to_string(path), &hostname) {
        Ok(parsed) => carry_out(parsed),
        Err(failure) => {
            refuse(&failure);
            ExitCode::FAILURE
        }
    }
}

fn carry_out(parsed: config::Parsed) -> ExitCode {
    let warnings = &parsed.warnings;
    let outcome = match parsed.invocation {
        Invocation::Help(text) | Invocation::Version(text) => print(&text),
        Invocation::WriteConfig { path, yaml } => start_logging(None, warnings)
            .and_then(|_| fs::write(&path, yaml).with_context(|| format!("writing {}", path.display()))),
        Invocation::Demo { manifests } => demo::run(manifests.as_deref()),
        Invocation::Cleanup(config) => {
            start_logging(Some(&config.logging), warnings).and_then(|_| cleanup::run())
        }
        Invocation::Run(config) => {
            start_logging(Some(&config.logging), warnings).and_then(|log| run::run(&config, &log))
        }
    };
    match outcome {
        Ok(()) => {
            log::flush();
            ExitCode::SUCCESS
        }
        Err(error) => {
            log::last_line(&format!("Error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{}", text.trim_end()).context("writing to stdout")
}

/// Says what is wrong with the command line or the configuration, in the original's ways.
fn refuse(failure: &Failure) {
    match failure {
        Failure::Flag(message) => {
            log::last_line(&format!("{}\nError: {message}", config::help_text().trim_end()));
        }
        Failure::Argument(message) => log::last_line(&format!("Error: {message}")),
        Failure::Invalid { message, warnings } => match start_logging(None, warnings) {
            Ok(_) => {
                tracing::error!(err = %message, "command failed");
                log::flush();
            }
            Err(_) => log::last_line(&format!("Error: {message}")),
        },
    }
}

fn start_logging(settings: Option<&LoggingSettings>, warnings: &[String]) -> Result<log::Handle> {
    let options = settings.map_or_else(log::Options::default, |settings| log::Options {
        format: match settings.format {
            LogFormat::Text => log::Format::Text,
            LogFormat::Json => log::Format::Json,
        },
        verbosity: settings.verbosity,
        vmodule: settings.vmodule.iter().map(|entry| (entry.file_pattern.clone(), entry.verbosity)).collect(),
        split_stream: settings.split_stream,
    });
    let handle = log::init(options).context("setting up the logs")?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    Ok(handle)
}
