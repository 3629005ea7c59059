//! From the words of the command line to rows of the table and their values.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};

use super::{Flag, Kind, Low, Status, all};
use crate::invocation::Failure;
use crate::v1alpha1::KubeProxyConfiguration;

/// The flags of a command line, in the order of the table; a repeated flag is there several times.
pub(crate) struct Given(Vec<(&'static Flag, String)>);

/// Splits a command line (without the program's name) into flags and values.
///
/// # Errors
/// An unknown flag, a missing value, a value that is not text, or a word that belongs to no flag.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Given, Failure> {
    let matches =
        command().try_get_matches_from(args.into_iter().map(with_dashes)).map_err(|error| refused(&error))?;
    let mut given = Vec::new();
    for flag in all() {
        for value in matches.get_many::<OsString>(flag.name).into_iter().flatten() {
            let text = value.to_str().ok_or_else(|| {
                let shown = value.to_string_lossy();
                invalid(flag, &shown, "it is not UTF-8 text")
            })?;
            given.push((flag, text.to_owned()));
        }
    }
    Ok(Given(given))
}

impl Given {
    /// What the flags ask for, on top of the defaults.
    ///
    /// # Errors
    /// A value that cannot be read.
    pub(crate) fn alone(&self) -> Result<Low, Failure> {
        let mut low = Low::default();
        self.apply(|_| true, &mut low)?;
        Ok(low)
    }

    /// What the flags ask for that still act next to a configuration file, on top of that file.
    ///
    /// # Errors
    /// A value that cannot be read.
    pub(crate) fn beside(&self, mut file: KubeProxyConfiguration) -> Result<Low, Failure> {
        // Of two patterns that match, the first counts: flags go before the file.
        let vmodule_of_file = std::mem::take(&mut file.logging.vmodule);
        let mut low = Low { settings: file, ..Low::default() };
        self.apply(|flag| flag.beside_config, &mut low)?;
        low.settings.logging.vmodule.extend(vmodule_of_file);
        Ok(low)
    }

    fn apply(&self, wanted: impl Fn(&Flag) -> bool, low: &mut Low) -> Result<(), Failure> {
        for (flag, value) in self.0.iter().filter(|(flag, _)| wanted(flag)) {
            // Flags without effect take anything, even what the releases that had them would refuse.
            (flag.set)(low, value).map_err(|reason| invalid(flag, value, &reason))?;
        }
        Ok(())
    }

    /// The given flag that set `field`, such as `--conntrack-min` for `conntrack.min`.
    pub(crate) fn source_of(&self, field: &str, config_given: bool) -> Option<String> {
        let acts = |flag: &Flag| flag.beside_config || !config_given;
        let sets = |flag: &Flag| flag.fields.split(", ").any(|f| !f.is_empty() && is_about(field, f));
        let (flag, _) = self.0.iter().find(|(flag, _)| acts(flag) && sets(flag))?;
        Some(format!("--{}", flag.name))
    }

    /// One warning for each deprecated or removed flag, and one for all that give way to a configuration file.
    pub(crate) fn warnings(&self, config_given: bool) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut ignored = Vec::new();
        let mut flags: Vec<_> = self.0.iter().map(|(flag, _)| *flag).collect();
        flags.dedup_by_key(|flag| flag.name);
        for flag in flags {
            let name = flag.name;
            match flag.status {
                Status::Removed(instead) => {
                    warnings.push(format!("flag --{name} no longer has an effect: {instead}"));
                }
                _ if config_given && !flag.beside_config => ignored.push(shown_with_field(flag)),
                Status::Deprecated(instead) => {
                    warnings.push(format!("flag --{name} is deprecated: {instead}"));
                }
                Status::Current | Status::Added => {}
            }
        }
        if !ignored.is_empty() {
            let list = ignored.join(", ");
            warnings.push(format!(
                "flags without effect because --config is given (set the field in the file instead): {list}"
            ));
        }
        warnings
    }
}

/// Whether a mistake at `at`, such as `clusterCIDR` or `nodePortAddresses[1]`, is about the field `field`.
fn is_about(at: &str, field: &str) -> bool {
    at.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['[', '.']))
}

fn shown_with_field(flag: &Flag) -> String {
    if flag.fields.is_empty() {
        format!("--{}", flag.name)
    } else {
        format!("--{} ({})", flag.name, flag.fields)
    }
}

fn command() -> Command {
    Command::new("kube-proxy")
        .no_binary_name(true)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(all().map(arg))
}

fn arg(flag: &Flag) -> Arg {
    // Every occurrence is kept, so that lists grow and the last of all others wins.
    let arg = Arg::new(flag.name)
        .long(flag.name)
        .action(ArgAction::Append)
        .value_parser(clap::value_parser!(OsString));
    let arg = if let Some(short) = flag.short { arg.short(short) } else { arg };
    match flag.kind {
        Kind::Bool | Kind::OptionalWord => {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true")
        }
        _ => arg.num_args(1).allow_hyphen_values(true),
    }
}

/// `--proxy_mode=x` means `--proxy-mode=x`; words that are no flag of the table stay as they are.
fn with_dashes(word: OsString) -> OsString {
    let Some(text) = word.to_str().and_then(|text| text.strip_prefix("--")) else { return word };
    let (name, rest) = text.split_at(text.find('=').unwrap_or(text.len()));
    let dashed = name.replace('_', "-");
    if all().any(|flag| flag.name == dashed) { format!("--{dashed}{rest}").into() } else { word }
}

fn invalid(flag: &Flag, value: &str, reason: &str) -> Failure {
    let name = match flag.short {
        Some(short) => format!("-{short}, --{}", flag.name),
        None => format!("--{}", flag.name),
    };
    Failure::Flag(format!("invalid argument {value:?} for \"{name}\" flag: {reason}"))
}

/// What the parser refused, in the words users of the original know.
fn refused(error: &clap::Error) -> Failure {
    let word = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) => word.as_str(),
        _ => "",
    };
    match error.kind() {
        ErrorKind::UnknownArgument => unknown(word),
        ErrorKind::InvalidValue | ErrorKind::WrongNumberOfValues | ErrorKind::TooFewValues => {
            let name = word.split_whitespace().next().unwrap_or(word);
            Failure::Flag(format!("flag needs an argument: {name}"))
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            Failure::Flag(line.trim_start_matches("error: ").to_owned())
        }
    }
}

fn unknown(word: &str) -> Failure {
    if word.starts_with("--") {
        let name = word.split('=').next().unwrap_or(word);
        return Failure::Flag(format!("unknown flag: {name}"));
    }
    match word.strip_prefix('-').and_then(|rest| rest.chars().next()) {
        Some(letter) => Failure::Flag(format!("unknown shorthand flag: '{letter}' in {word}")),
        None => Failure::Argument(format!("\"kube-proxy\" does not take any arguments, got [{word:?}]")),
    }
}
