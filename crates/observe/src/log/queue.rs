//! The way of a line to stderr or stdout: a bounded queue, and a thread that writes.
//!
//! Whoever reads the other end of a pipe may stop reading. That holds up this thread and no other: lines that find the
//! queue full are dropped and counted ([`LOST`]), and their number is told as soon as the queue has drained.

use std::io::{self, Write};
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::{Severity, Sink};
use crate::metrics::Counter;

/// Lines that wait at most, some 200 bytes each.
const WAITING: usize = 4096;
/// How long the end of the process waits for the lines before it.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// Time between two attempts to reach a thread that is behind.
const NEXT_TRY: Duration = Duration::from_millis(5);

enum Entry {
    Line(String, Severity),
    /// Everything before this has been written: says so.
    Mark(SyncSender<()>),
}

/// Where lines are put. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    entries: SyncSender<Entry>,
}

/// Lines of this process that were dropped.
pub(crate) static LOST: LazyLock<Counter> = LazyLock::new(Counter::default);

impl Queue {
    /// Starts the thread that writes. With `split` what is no warning goes to stdout.
    pub(super) fn start(split: bool) -> io::Result<Self> {
        let (sender, entries) = sync_channel(WAITING);
        thread::Builder::new().name("log".into()).spawn(move || write_all(&entries, split))?;
        Ok(Self { entries: sender })
    }

    /// Waits until all lines so far are written, but not for long.
    pub(super) fn flush(&self) {
        let end = Instant::now() + LAST_WAIT;
        let (done, written) = sync_channel(1);
        let mut mark = Entry::Mark(done);
        while let Err(TrySendError::Full(back)) = self.entries.try_send(mark) {
            if Instant::now() >= end {
                return;
            }
            mark = back;
            thread::sleep(NEXT_TRY);
        }
        // nobody reads: the lines are lost
        let _ = written.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

impl Sink for Queue {
    fn line(&self, line: String, severity: Severity) {
        if self.entries.try_send(Entry::Line(line, severity)).is_err() {
            LOST.inc();
        }
    }
}

fn write_all(entries: &Receiver<Entry>, split: bool) {
    let mut told = 0;
    loop {
        let entry = match entries.try_recv() {
            Ok(entry) => entry,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                let now = LOST.get();
                if now != told {
                    tracing::warn!(
                        lines = now - told,
                        "Log lines were lost: they were not read as fast as written"
                    );
                    told = now;
                }
                match entries.recv() {
                    Ok(entry) => entry,
                    Err(_) => return,
                }
            }
        };
        match entry {
            // a line that cannot be written is lost: there is no better place to say so
            Entry::Line(line, severity) => drop(write(&line, split && severity == Severity::Info)),
            // who does not wait any more does not need to know
            Entry::Mark(done) => drop(done.send(())),
        }
    }
}

fn write(line: &str, to_stdout: bool) -> io::Result<()> {
    if to_stdout {
        let mut out = io::stdout().lock();
        out.write_all(line.as_bytes()).and_then(|()| out.flush())
    } else {
        io::stderr().lock().write_all(line.as_bytes())
    }
}
