//! What reading and checking a configuration brings to light: every mistake, not only the first one.

use std::fmt::Display;

/// A value that cannot stand: where it is, what it is, and what would be allowed there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// Path in the configuration file, such as `conntrack.maxPerCore`.
    pub field: String,
    /// The value as it was written.
    pub value: String,
    /// What is allowed there.
    pub allowed: String,
}

/// Collected while reading and checking.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub mistakes: Vec<Mistake>,
    pub warnings: Vec<String>,
}

impl Findings {
    pub(crate) fn mistake(
        &mut self,
        field: impl Into<String>,
        value: impl Display,
        allowed: impl Into<String>,
    ) {
        let mistake = Mistake { field: field.into(), value: value.to_string(), allowed: allowed.into() };
        self.mistakes.push(mistake);
    }

    pub(crate) fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }
}
