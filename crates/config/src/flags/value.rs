//! Reading single flag values. An error says what is wrong with the value and what is allowed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::duration::GoDuration;
use crate::net;
use crate::v1alpha1::VModule;

pub(super) fn bool(value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

pub(super) fn int(value: &str) -> Result<i32, String> {
    value.parse().map_err(|_| format!("{value:?} is not a whole number of 32 bits"))
}

pub(super) fn unsigned(value: &str) -> Result<u32, String> {
    value.parse().map_err(|_| format!("{value:?} is not a whole number of 32 bits, 0 or more"))
}

pub(super) fn float(value: &str) -> Result<f32, String> {
    let number: f32 = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
    if number.is_finite() { Ok(number) } else { Err(format!("{value:?} is not a finite number")) }
}

pub(super) fn duration(value: &str) -> Result<GoDuration, String> {
    value.parse()
}

/// The empty path means "not given".
pub(super) fn path(value: &str) -> Option<PathBuf> {
    (!value.is_empty()).then(|| PathBuf::from(value))
}

pub(super) fn ip(value: &str) -> Result<String, String> {
    match net::ip(value) {
        Some(_) => Ok(value.to_owned()),
        None => Err(format!("{value:?} is not an IP address")),
    }
}

/// The empty text is allowed: it disables the server.
pub(super) fn ip_port(value: &str) -> Result<String, String> {
    // The port itself is judged with the rest of the configuration, where port 0 has its own message.
    if !value.is_empty() && !value.ends_with(":0") {
        net::ip_port(value, 1)?;
    }
    Ok(value.to_owned())
}

/// Adds the entries of a list; the empty text adds none.
pub(super) fn extend(list: &mut Vec<String>, value: &str) {
    if !value.is_empty() {
        list.extend(value.split(',').map(str::to_owned));
    }
}

pub(super) fn gates(into: &mut BTreeMap<String, bool>, value: &str) -> Result<(), String> {
    for pair in value.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, on) =
            pair.split_once('=').ok_or_else(|| format!("{pair:?} is not of the form name=bool"))?;
        let on = bool(on.trim()).map_err(|reason| format!("feature gate {}: {reason}", name.trim()))?;
        into.insert(name.trim().to_owned(), on);
    }
    Ok(())
}

pub(super) fn patterns(into: &mut Vec<VModule>, value: &str) -> Result<(), String> {
    for pair in value.split(',').filter(|pair| !pair.is_empty()) {
        let (pattern, level) =
            pair.split_once('=').ok_or_else(|| format!("{pair:?} does not have the pattern=N format"))?;
        if pattern.is_empty() {
            return Err(format!("{pair:?} has no pattern before the equals sign"));
        }
        into.push(VModule { file_pattern: pattern.to_owned(), verbosity: unsigned(level)? });
    }
    Ok(())
}
