//! The observer: a process of its own that tells when the kernel has taken a transaction of the proxy.
//!
//! It is a process so that nothing of it outlives a measurement: its thread waits in the kernel and holds the network
//! namespace. Output: `open`, then for each transaction `taken NANOSECONDS`, or `lost NANOSECONDS` when events came
//! faster than they could be read. The time is CLOCK_MONOTONIC.
//!
//! It waits for events, or looks at the ruleset's generation every half millisecond: a listener makes large transactions
//! several times as dear in the kernel, so those that are measured are only looked for.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use netlink::nftables::list;
use netlink::nftables::monitor::Monitor;
use netlink::socket::{self, Socket};

use super::{TABLE, monotonic};

/// How often the generation is looked at.
const LOOK: Duration = Duration::from_micros(500);

/// Watches until it is killed.
pub(super) fn run(listens: bool) -> Result<()> {
    if listens { listen() } else { look() }
}

fn say(line: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

fn listen() -> Result<()> {
    let mut monitor = Monitor::open(TABLE, Vec::new()).context("watching nftables")?;
    say("open")?;
    loop {
        let change = monitor.next_change().context("watching nftables")?;
        let now = monotonic();
        // the kernel names the program in every event; without one, events were lost
        let word = if change.program.is_some() { "taken" } else { "lost" };
        say(&format!("{word} {now}"))?;
    }
}

fn look() -> Result<()> {
    let mut socket = Socket::open(socket::NETFILTER).context("opening a netlink socket")?;
    let mut known = list::generation(&mut socket)?;
    say("open")?;
    loop {
        let generation = list::generation(&mut socket)?;
        let now = monotonic();
        for _ in known..generation {
            say(&format!("taken {now}"))?;
        }
        known = generation;
        thread::sleep(LOOK);
    }
}
