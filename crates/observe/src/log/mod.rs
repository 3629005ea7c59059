//! Log lines in the two forms of Kubernetes components: klog text and JSON.
//!
//! Events come from `tracing` macros in every crate. `error!`, `warn!` and `info!` are always printed, `debug!`
//! from `-v=2` on, `trace!` from `-v=5` on; a field `v = N` gives an event a level of its own. Crates of others
//! are quieter: their `info!` needs `-v=4`, their `debug!` `-v=6`, their `trace!` `-v=10`. `--vmodule` raises the level of single files.
//! Spans are not used. An event that is switched off costs one load of an atomic.
//!
//! A thread of its own writes the lines, one write each, so that nobody waits for whoever reads them.

mod fields;
mod filter;
mod json;
mod queue;
mod text;

use std::io::{self, Write};
use std::sync::{Arc, OnceLock};

use tracing::span;
use tracing::subscriber::{Interest, Subscriber};
use tracing::{Event, Metadata, metadata::LevelFilter};

use crate::clock::Moment;
use fields::Fields;
use filter::Filter;
pub(crate) use queue::LOST;
use queue::Queue;

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
    /// Takes one line, with its line break. Must not wait.
    fn line(&self, line: String, severity: Severity);
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

/// Why logging cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// It was set up before.
    #[error("logging is already set up in this process")]
    AlreadySet,
    /// There is no thread to write lines.
    #[error("starting the thread that writes the logs: {0}")]
    Thread(#[from] io::Error),
}

/// The queue of the process.
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Sets up logging for the whole process, to stderr (and stdout, if streams are split).
///
/// # Errors
/// When it was set up before, or no thread can be started.
pub fn init(options: Options) -> Result<Handle, SetupError> {
    if QUEUE.get().is_some() {
        return Err(SetupError::AlreadySet);
    }
    let queue = Queue::start(options.split_stream)?;
    let (logger, handle) = Logger::new(options, queue.clone());
    tracing::subscriber::set_global_default(logger).map_err(|_| SetupError::AlreadySet)?;
    QUEUE.set(queue).map_err(|_| SetupError::AlreadySet)?;
    Ok(handle)
}

/// Waits until all lines so far are written, a second at most. To be called before the process ends by itself.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush();
    }
}

/// Prints the last line of a process to stderr as it is, after all others, and waits a second at most until it is read.
pub fn last_line(text: &str) {
    let line = format!("{text}\n");
    match QUEUE.get() {
        Some(queue) => {
            queue.line(line, Severity::Error);
            queue.flush();
        }
        // a closed stderr is no reason to panic
        None => drop(io::stderr().write_all(line.as_bytes())),
    }
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
        self.sink.line(line, severity);
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
