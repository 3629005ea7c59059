//! A small language for trying command lines and files.
#![allow(dead_code)] // each test file uses a part of it

use std::ffi::OsString;
use std::io;
use std::path::Path;

use kube_proxy_config::{Config, Failure, Invocation, Parsed, parse};

/// First lines of every configuration file.
pub(crate) const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// Tries a command line, written with single spaces between the words.
pub(crate) fn line(words: &str) -> Result<Parsed, Failure> {
    words_and_file(words.split(' ').filter(|w| !w.is_empty()).map(str::to_owned), None)
}

/// Tries a configuration file that begins with [`HEAD`].
pub(crate) fn file(body: &str) -> Result<Parsed, Failure> {
    whole_file(&format!("{HEAD}{body}"))
}

/// Tries the whole text of a configuration file.
pub(crate) fn whole_file(text: &str) -> Result<Parsed, Failure> {
    line_and_file("--config=/config.yaml", text)
}

/// Tries a command line that names `/config.yaml`, which holds `text`.
pub(crate) fn line_and_file(words: &str, text: &str) -> Result<Parsed, Failure> {
    words_and_file(words.split(' ').map(str::to_owned), Some(text))
}

/// Tries words with an optional `/config.yaml`.
pub(crate) fn words_and_file(
    words: impl IntoIterator<Item = String>,
    text: Option<&str>,
) -> Result<Parsed, Failure> {
    let read = |path: &Path| match text {
        Some(text) if path == Path::new("/config.yaml") => Ok(text.to_owned()),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    parse(words.into_iter().map(OsString::from), &read, "Worker-1")
}

/// The configuration a command line or file leads to, and its warnings.
pub(crate) fn running(parsed: Result<Parsed, Failure>) -> (Config, Vec<String>) {
    match parsed {
        Ok(Parsed { invocation: Invocation::Run(config), warnings }) => (*config, warnings),
        other => panic!("should run, but: {other:?}"),
    }
}

/// The configuration, where there is nothing to warn about.
pub(crate) fn quietly(parsed: Result<Parsed, Failure>) -> Config {
    let (config, warnings) = running(parsed);
    assert_eq!(warnings, Vec::<String>::new());
    config
}

/// The configuration and the only warning.
pub(crate) fn with_one_warning(parsed: Result<Parsed, Failure>) -> (Config, String) {
    let (config, warnings) = running(parsed);
    assert_eq!(warnings.len(), 1, "exactly one warning expected: {warnings:?}");
    (config, warnings.concat())
}

/// The message of a configuration that is refused.
pub(crate) fn refused(parsed: Result<Parsed, Failure>) -> String {
    match parsed {
        Err(Failure::Invalid { message, .. }) => message,
        other => panic!("should be invalid, but: {other:?}"),
    }
}

/// The message of a flag that is refused with the usage.
pub(crate) fn flag_error(parsed: Result<Parsed, Failure>) -> String {
    match parsed {
        Err(Failure::Flag(message)) => message,
        other => panic!("should be a flag error, but: {other:?}"),
    }
}

/// The YAML that `--write-config-to` writes for a command line.
pub(crate) fn written(parsed: Result<Parsed, Failure>) -> String {
    match parsed {
        Ok(Parsed { invocation: Invocation::WriteConfig { yaml, .. }, .. }) => yaml,
        other => panic!("should write, but: {other:?}"),
    }
}
