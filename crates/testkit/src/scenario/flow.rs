//! Sending the packets of a flow and judging what came of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use lab::{Client, Lab, Outcome};

use super::format::{Expect, Flow, OneOrMany, Protocol, Source};
use super::run::NODE;
use crate::sctp;

/// An answer that was expected may take this long, on a machine busy with other tests.
const PATIENCE: Duration = Duration::from_secs(5);
/// Silence is established after this time. A first SYN that is not answered is sent again after one second.
const SILENCE: Duration = Duration::from_millis(1500);
/// A TCP client that is told by the answer to its first packet knows before it sends the second one.
const SECOND_PACKET: Duration = Duration::from_secs(1);
/// The fewest tries of a flow that is answered.
const TRIES: u32 = 10;
/// All of the right servers are met but in one of this many runs.
const RUNS: f64 = 1e9;

/// A flow that did not go as expected: what came instead.
type Wrong = anyhow::Error;

/// The addresses `to` stands for.
pub(super) fn targets(lab: &Lab, to: &OneOrMany) -> Result<Vec<SocketAddr>> {
    let mut targets = Vec::new();
    for text in to.iter() {
        if let Ok(address) = text.parse() {
            targets.push(address);
            continue;
        }
        let parts = text.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse::<u16>().ok()?)));
        let (name, port) = parts.ok_or_else(|| anyhow!("to: {text}: write ADDRESS:PORT or MEMBER:PORT"))?;
        let addresses = lab.member(name)?.addresses;
        targets.push((addresses.v4.addr(), port).into());
        if lab.spec().ipv6 {
            targets.push((addresses.v6.addr(), port).into());
        }
    }
    Ok(targets)
}

/// Tries the flow from one client to one target.
///
/// With `slow_refusal` a TCP client may be told late that it is refused, as it is by an ICMPv6 error.
pub fn check(lab: &Lab, flow: &Flow, from: &str, to: SocketAddr, slow_refusal: bool) -> Result<(), Wrong> {
    let mut met: BTreeMap<String, u32> = BTreeMap::new();
    let at_most = flow.times.unwrap_or_else(|| tries(&flow.expect));
    for turn in 1..=at_most {
        let outcome = send(lab, flow, from, to)?;
        if let Outcome::Refused { after } = outcome {
            let told_late = flow.protocol == Protocol::Tcp && after >= SECOND_PACKET;
            ensure!(slow_refusal || !told_late, "{outcome}: the first packet was not answered by a reset");
        }
        let who = judge(lab, flow, from, to, &outcome).with_context(|| {
            if met.is_empty() { "first try".to_owned() } else { format!("try {turn}, before it: {met:?}") }
        })?;
        *met.entry(who).or_default() += 1;
        if flow.times.is_none() && turn >= TRIES && everybody_met(&flow.expect, &met) {
            break;
        }
    }
    match &flow.expect {
        Expect::AnsweredBy(_) if flow.times.is_none() && !everybody_met(&flow.expect, &met) => {
            bail!("some never answered in {at_most} tries: {met:?}")
        }
        Expect::AlwaysOneOf(_) => ensure!(met.len() == 1, "not always the same one: {met:?}"),
        _ => {}
    }
    Ok(())
}

fn everybody_met(expect: &Expect, met: &BTreeMap<String, u32>) -> bool {
    match expect {
        Expect::AnsweredBy(names) => names.iter().all(|name| met.contains_key(name)),
        _ => true,
    }
}

/// So many that a server chosen with even chances is missed once in [`RUNS`] runs.
fn tries(expect: &Expect) -> u32 {
    match expect {
        Expect::AnsweredBy(names) if names.len() > 1 => {
            let servers = f64::from(u32::try_from(names.len()).unwrap_or(u32::MAX));
            let tries = (RUNS * servers).ln() / -(1.0 - 1.0 / servers).ln();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small and positive
            let tries = tries.ceil() as u32;
            tries.max(TRIES)
        }
        Expect::AnsweredBy(_) | Expect::AlwaysOneOf(_) => TRIES,
        Expect::Refused => 3,
        Expect::Timeout | Expect::Unreachable | Expect::Lost => 1,
    }
}

fn send(lab: &Lab, flow: &Flow, from: &str, to: SocketAddr) -> Result<Outcome> {
    static NEXT_PORT: AtomicU16 = AtomicU16::new(0);
    let silent = matches!(flow.expect, Expect::Timeout | Expect::Lost);
    let patience = if silent { SILENCE } else { PATIENCE };
    let mut client = Client::new(lab.ns(from)?).timeout(patience);
    if let Some(source) = flow.from_address {
        client = client.from_address(source);
    }
    if let Some(port) = flow.from_port {
        client = client.from_port(port);
    }
    Ok(match flow.protocol {
        Protocol::Tcp => client.tcp(to),
        Protocol::Udp => client.udp(to),
        Protocol::Sctp => {
            let port =
                flow.from_port.unwrap_or_else(|| 20_000 + NEXT_PORT.fetch_add(1, Ordering::Relaxed) % 20_000);
            sctp::ask(lab.ns(from)?, to, port, patience)
        }
    })
}

/// Who answered, if that was right; else what was wrong.
fn judge(lab: &Lab, flow: &Flow, from: &str, to: SocketAddr, outcome: &Outcome) -> Result<String, Wrong> {
    match (&flow.expect, outcome) {
        (Expect::AnsweredBy(names) | Expect::AlwaysOneOf(names), Outcome::Answered { by, seen_peer })
            if names.contains(by) =>
        {
            let Some(source) = &flow.source else { return Ok(by.clone()) };
            let wanted = wanted_source(lab, flow, source, from, by, to)?;
            ensure!(seen_peer.ip() == wanted, "{by} sees {} instead of {wanted}", seen_peer.ip());
            Ok(by.clone())
        }
        (Expect::Refused, Outcome::Refused { .. }) => Ok("refused".to_owned()),
        (Expect::Timeout | Expect::Lost, Outcome::TimedOut)
        | (Expect::Unreachable | Expect::Lost, Outcome::Unreachable) => Ok(outcome.to_string()),
        _ => bail!("{outcome}"),
    }
}

fn wanted_source(
    lab: &Lab,
    flow: &Flow,
    source: &Source,
    from: &str,
    by: &str,
    to: SocketAddr,
) -> Result<IpAddr> {
    Ok(match source {
        Source::Kept => match flow.from_address {
            Some(address) => address,
            None => lab.member(from)?.addresses.like(to.ip()),
        },
        Source::Masqueraded => lab.facing(NODE, by)?.like(to.ip()),
        Source::Address(text) => text.parse().with_context(|| format!("source: {text}"))?,
    })
}
