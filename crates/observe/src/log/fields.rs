//! The message and the fields of an event, taken apart.

use std::error::Error;
use std::fmt::{Debug, Write};

use tracing::Event;
use tracing::field::{Field, Visit};

/// A value as both forms print it.
#[derive(Debug, PartialEq)]
pub(super) enum Value {
    /// To be quoted.
    Text(String),
    /// A number or a boolean, printed as it stands.
    Plain(String),
}

/// An event's content.
#[derive(Debug, Default)]
pub(super) struct Fields {
    pub(super) message: String,
    /// The fields in their order, but an error (`err` or `error`) first and under the name `err`.
    pub(super) values: Vec<(&'static str, Value)>,
    /// The field `v`.
    pub(super) level: Option<u32>,
}

impl Fields {
    pub(super) fn of(event: &Event<'_>) -> Self {
        let mut fields = Self::default();
        event.record(&mut fields);
        fields
    }

    fn push(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::Text(text) | Value::Plain(text)) => self.message = text,
            ("err" | "error", value) => self.values.insert(0, ("err", value)),
            (name, value) => self.values.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        // A value whose formatting fails is printed as far as it came.
        let _ = write!(text, "{value:?}");
        self.push(field, Value::Text(text));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, Value::Text(value.to_owned()));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.push(field, Value::Text(value.to_string()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, Value::Plain(value.to_string()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        if field.name() == "v" {
            self.level = Some(u32::try_from(value).unwrap_or(0));
        } else {
            self.push(field, Value::Plain(value.to_string()));
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "v" {
            self.level = Some(u32::try_from(value).unwrap_or(u32::MAX));
        } else {
            self.push(field, Value::Plain(value.to_string()));
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        let text = value.to_string();
        // JSON has no infinity.
        self.push(field, if value.is_finite() { Value::Plain(text) } else { Value::Text(text) });
    }
}
