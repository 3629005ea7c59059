//! The JSON form (k8s.io/component-base/logs/json): one object a line.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::Metadata;

use super::Severity;
use super::fields::{Fields, Value};

/// Appends one event, with its line break. As in the original an error has no `v`; in addition a warning has
/// `"severity":"warning"`.
pub(super) fn write(
    line: &mut String,
    time: SystemTime,
    severity: Severity,
    level: u32,
    metadata: &Metadata<'_>,
    fields: &Fields,
) {
    let micros = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    // Writing to a string cannot fail.
    let _ = write!(line, "{{\"ts\":{}.{:03},\"caller\":", micros / 1000, micros % 1000);
    string(line, &format!("{}:{}", super::file_name(metadata, 2), metadata.line().unwrap_or_default()));
    line.push_str(",\"msg\":");
    string(line, &fields.message);
    match severity {
        Severity::Info => {
            let _ = write!(line, ",\"v\":{level}");
        }
        Severity::Warning => line.push_str(",\"v\":0,\"severity\":\"warning\""),
        Severity::Error => {}
    }
    for (name, value) in &fields.values {
        line.push(',');
        string(line, name);
        line.push(':');
        match value {
            Value::Plain(text) => line.push_str(text),
            Value::Text(text) => string(line, text),
        }
    }
    line.push_str("}\n");
}

fn string(line: &mut String, text: &str) {
    // A string has a JSON form always.
    line.push_str(&serde_json::to_string(text).unwrap_or_default());
}
