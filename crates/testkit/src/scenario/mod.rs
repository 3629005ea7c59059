//! Scenarios: objects in, real packets through the real binary, what must happen to them.
//!
//! A file of `tests/scenarios` is one behaviour. Its format is [`format::Scenario`]; `tests/scenarios/README.md` explains
//! it to a writer. [`run`] builds the lab it names, starts servers in the pods and the proxy in node `n1`, and goes
//! through its steps. Its parts serve tests that have too many objects for a file: [`World`], [`node`], [`check`].

mod flow;
pub mod format;
mod run;
mod slices;

use std::path::Path;

use anyhow::{Context, Result};

pub use flow::check;
pub use run::{NODE, Setup, USUAL_FLAGS, run};
pub use slices::{World, node};

/// Reads a scenario.
pub fn load(path: &Path) -> Result<format::Scenario> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("reading {}", path.display()))
}
