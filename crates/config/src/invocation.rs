//! From a command line to what the program is asked to do.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::decode::decode;
use crate::findings::Findings;
use crate::flags::{self, Low};
use crate::v1alpha1::KubeProxyConfiguration;
use crate::{resolve, version, write};

/// What the program is asked to do.
#[derive(Clone, Debug)]
pub enum Invocation {
    /// Proxy, or with [`Config::init_only`] only prepare the node for it.
    Run(Box<Config>),
    /// Write the effective configuration to a file and exit.
    WriteConfig {
        /// The file to write.
        path: PathBuf,
        /// Its content.
        yaml: String,
    },
    /// Remove what any mode left in the kernel and exit.
    Cleanup(Box<Config>),
    /// Show the proxy at work.
    Demo {
        /// Services to show instead of the built-in ones.
        manifests: Option<PathBuf>,
    },
    /// Print this text to stdout and exit with 0.
    Help(String),
    /// Print this text to stdout and exit with 0.
    Version(String),
}

/// A command line that was understood.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// What to do.
    pub invocation: Invocation,
    /// What the user should know: to be logged, one line each, at warning level.
    pub warnings: Vec<String>,
}

/// A command line or configuration that cannot stand. The exit code is 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A flag is unknown or its value unreadable: print the usage, then `Error: ` and this text, to stderr.
    Flag(String),
    /// A word that belongs to no flag: print `Error: ` and this text to stderr, without the usage.
    Argument(String),
    /// The configuration cannot be read or is wrong: log this text as one line at error level.
    Invalid {
        /// Every mistake, each with field, value and what is allowed.
        message: String,
        /// To be logged before it.
        warnings: Vec<String>,
    },
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flag(message) | Self::Argument(message) | Self::Invalid { message, .. } => {
                f.write_str(message)
            }
        }
    }
}

impl std::error::Error for Failure {}

/// Understands a command line, given without the program's name.
///
/// `read_file` is asked for the text of the configuration file, `hostname` is the name of this host.
///
/// # Errors
/// The command line or the configuration is wrong; all mistakes of a configuration are reported at once.
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
    read_file: &dyn Fn(&Path) -> io::Result<String>,
    hostname: &str,
) -> Result<Parsed, Failure> {
    let args: Vec<OsString> = args.into_iter().collect();
    if args.first().is_some_and(|word| word == "demo") {
        return parse_demo(args);
    }
    let given = flags::parse(args)?;
    // All values are read, also of flags that will give way to a file: a typing error is one anyway.
    let mut low = given.alone()?;
    if low.help {
        return Ok(quiet(Invocation::Help(flags::help_text())));
    }
    match low.version.as_str() {
        "true" => return Ok(quiet(Invocation::Version(version::short()))),
        "raw" => return Ok(quiet(Invocation::Version(version::raw()))),
        _ => {}
    }
    let config_given = low.config.is_some();
    let mut findings = Findings { warnings: given.warnings(config_given), ..Findings::default() };
    if let Some(path) = &low.config {
        low = given.beside(load(path, read_file, &mut findings)?)?;
    }
    // Types first: a value of the wrong type was not taken over, so judging it would mislead.
    let (write_config_to, cleanup) = (low.write_config_to.clone(), low.cleanup);
    let readable = findings.mistakes.is_empty();
    let config = readable.then(|| resolve::resolve(low, hostname, &mut findings));
    let source_of = |field: &str| given.source_of(field, config_given);
    match config.filter(|_| findings.mistakes.is_empty()) {
        None => Err(failure(findings, source_of)),
        Some(config) => {
            Ok(Parsed { invocation: choose(config, write_config_to, cleanup)?, warnings: findings.warnings })
        }
    }
}

fn choose(config: Config, write_to: Option<PathBuf>, cleanup: bool) -> Result<Invocation, Failure> {
    Ok(match write_to {
        Some(path) => Invocation::WriteConfig {
            path,
            yaml: write::yaml(&config.written).map_err(|reason| Failure::Invalid {
                message: format!("cannot write the configuration as YAML: {reason}"),
                warnings: Vec::new(),
            })?,
        },
        None if cleanup => Invocation::Cleanup(Box::new(config)),
        None => Invocation::Run(Box::new(config)),
    })
}

fn quiet(invocation: Invocation) -> Parsed {
    Parsed { invocation, warnings: Vec::new() }
}

fn load(
    path: &Path,
    read_file: &dyn Fn(&Path) -> io::Result<String>,
    findings: &mut Findings,
) -> Result<KubeProxyConfiguration, Failure> {
    let text = read_file(path).map_err(|error| error.to_string());
    text.and_then(|text| decode(&text, findings)).map_err(|reason| Failure::Invalid {
        message: format!("cannot read configuration file {}: {reason}", path.display()),
        warnings: std::mem::take(&mut findings.warnings),
    })
}

fn failure(findings: Findings, source_of: impl Fn(&str) -> Option<String>) -> Failure {
    let mut lines = Vec::new();
    let mut told: Vec<(String, String)> = Vec::new();
    for m in findings.mistakes {
        let complaint = format!("invalid value {}: {}", m.value, m.allowed);
        let place = match source_of(&m.field) {
            // One flag may set two fields, and then is wrong only once.
            Some(flag) if told.contains(&(flag.clone(), complaint.clone())) => continue,
            Some(flag) => {
                told.push((flag.clone(), complaint.clone()));
                format!("{} ({flag})", m.field)
            }
            None => m.field,
        };
        lines.push(format!("{place}: {complaint}"));
    }
    Failure::Invalid {
        message: format!("invalid configuration: {}", lines.join("; ")),
        warnings: findings.warnings,
    }
}

fn parse_demo(args: Vec<OsString>) -> Result<Parsed, Failure> {
    let demo: Vec<OsString> = args.into_iter().skip(1).collect();
    let given = flags::parse(demo)?;
    let low = given.alone()?;
    if low.help {
        return Ok(quiet(Invocation::Help(flags::demo_help())));
    }
    let expected = Low { manifests: low.manifests.clone(), ..Low::default() };
    if low != expected {
        return Err(Failure::Argument("\"kube-proxy demo\" takes only --manifests and --help".into()));
    }
    Ok(quiet(Invocation::Demo { manifests: low.manifests }))
}
