//! The command line and the configuration file, understood.
//!
//! In: the words of a command line, and a function that reads the configuration file. Out: an [`Invocation`],
//! what the program is asked to do, with a complete and checked [`Config`], and warnings to log; or a
//! [`Failure`] that names every mistake with its field, its value and what is allowed.
//!
//! It passes through three forms: the text of flags and file becomes *what the user asked for*
//! (`flags::Low` with its `v1alpha1` settings), and that becomes *what it means here* ([`Config`]).
//!
//! Pure: no I/O but through the given function, no clock, no kernel, no environment.

mod config;
mod decode;
mod document;
mod duration;
mod findings;
mod flags;
mod gates;
mod invocation;
mod net;
mod resolve;
mod v1alpha1;
mod version;
mod write;

pub use config::{
    Config, ConntrackSettings, DetectLocal, IptablesSettings, IpvsSettings, LogFormat, LoggingSettings,
    Masquerade, Mode, NftablesSettings, NodePortAddress, SourceSettings, Sync, UserspaceSettings,
};
pub use duration::GoDuration;
pub use flags::{flags_markdown, help_text};
pub use gates::{FeatureGates, Gate};
pub use invocation::{Failure, Invocation, Parsed, parse};
pub use v1alpha1::VModule;
pub use version::KUBERNETES as KUBERNETES_VERSION;
