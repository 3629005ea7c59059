//! Log lines in the two forms of Kubernetes components: klog text and JSON.
//!
//! Events come from `tracing` macros in every crate. `error!`, `warn!` and `info!` are always printed, `debug!`
//! from `-v=2` on, `trace!` from `-v=5` on; a field `v = N` gives an event a level of its own. Crates of others
//! are quieter: their `debug!` needs `-v=6`, their `trace!` `-v=10`. `--vmodule` raises the level of single files.
//! Spans are not used. An event that is switched off costs one load of an atomic.
//!
//! Lines go out unbuffered, one write each; what cannot be written is lost without a word, for there is no
//! better place to say so.

mod fields;
mod filter;
mod json;
mod text;

use std::io::{self, Write};
use std::sync::Arc;

use tracing::span;
use tracing::subscriber::{Interest, Subscriber};
use tracing::{Event, Metadata, metadata::LevelFilter};

use crate::clock::Moment;
use fields::Fields;
use filter::Filter;

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `I1201 00:43:05.123456     812 file.rs:12] "message" key="value"`, in local time.
    #[default]
    Text,
    /// One JSON object a line: `ts` (milliseconds since 1970), `caller`, `msg`, `v`, `err`, the fields.
    Json,
}

/// How logs are written.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The form of a line (`--logging-format`).
    pub format: Format,
    /// The level (`-v`).
    pub verbosity: u32,
    /// Levels for source files (`--vmodule`): the file's name without path and `.rs`, in which `*` stands for any
    /// characters and `?` for any one; of several that match, the first holds.
    pub vmodule: Vec<(String, u32)>,
    /// Errors and warnings to stderr, the rest to stdout.
    pub split_stream: bool,
}

/// Where lines go.
pub trait Sink: Send + Sync + 'static {
    /// Takes one line, with its line break.
    fn line(&self, line: &str, severity: Severity);
}

/// How grave an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// `info!`, `debug!`, `trace!`.
    Info,
    /// `warn!`.
    Warning,
    /// `error!`.
    Error,
}

/// Changes the level while the program runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Filter>);

impl Handle {
    /// The level of `-v`.
    pub fn verbosity(&self) -> u32 {
        self.0.verbosity()
    }

    /// Sets the level of `-v`, at once and for all threads.
    pub fn set_verbosity(&self, verbosity: u32) {
        self.0.set_verbosity(verbosity);
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Logging is already set up in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("logging is already set up in this process")]
pub struct AlreadySet;

/// Sets up logging for the whole process, to stderr (and stdout, if streams are split).
///
/// # Errors
/// When it was set up before.
pub fn init(options: Options) -> Result<Handle, AlreadySet> {
    let sink = Standard { split: options.split_stream };
    let (logger, handle) = Logger::new(options, sink);
    tracing::subscriber::set_global_default(logger).map_err(|_| AlreadySet)?;
    Ok(handle)
}

/// Prints events to a [`Sink`].
#[derive(Debug)]
pub struct Logger<S> {
    filter: Arc<Filter>,
    format: Format,
    pid: u32,
    sink: S,
}

impl<S: Sink> Logger<S> {
    /// A logger and the handle to its level.
    pub fn new(options: Options, sink: S) -> (Self, Handle) {
        let filter = Arc::new(Filter::new(options.verbosity, options.vmodule));
        let logger = Self { filter: filter.clone(), format: options.format, pid: std::process::id(), sink };
        (logger, Handle(filter))
    }
}

impl<S: Sink> Subscriber for Logger<S> {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.filter.may_print(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.filter.most_verbose())
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let fields = Fields::of(event);
        let level = fields.level.unwrap_or_else(|| filter::level_of(metadata));
        if level > self.filter.verbosity_at(metadata) {
            return;
        }
        let severity = severity_of(metadata);
        let mut line = String::with_capacity(256);
        match self.format {
            Format::Text => {
                let time = jiff::Zoned::try_from(Moment::now().wall).unwrap_or_default();
                text::write(&mut line, time.datetime(), self.pid, severity, metadata, &fields);
            }
            Format::Json => json::write(&mut line, Moment::now().wall, severity, level, metadata, &fields),
        }
        self.sink.line(&line, severity);
    }

    // Spans are never enabled, so that none of these is called for one that has a place here.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

fn severity_of(metadata: &Metadata<'_>) -> Severity {
    match *metadata.level() {
        tracing::Level::ERROR => Severity::Error,
        tracing::Level::WARN => Severity::Warning,
        _ => Severity::Info,
    }
}

/// The last `parts` parts of the path of the file an event comes from.
fn file_name(metadata: &Metadata<'_>, parts: usize) -> String {
    let path = metadata.file().unwrap_or("unknown");
    let start = path.rmatch_indices('/').nth(parts - 1).map_or(0, |(at, _)| at + 1);
    path[start..].to_owned()
}

#[derive(Debug)]
struct Standard {
    split: bool,
}

impl Sink for Standard {
    fn line(&self, line: &str, severity: Severity) {
        // A line that cannot be written is lost: see the module's introduction.
        let _ = if self.split && severity == Severity::Info {
            let mut out = io::stdout().lock();
            out.write_all(line.as_bytes()).and_then(|()| out.flush())
        } else {
            io::stderr().lock().write_all(line.as_bytes())
        };
    }
}
