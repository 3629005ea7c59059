//! A fresh network namespace with the API driver, the observer, and the measured proxy in it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use ipnet::IpNet;
use netlink::conntrack::{self, Filter, Flow};
use netlink::namespace::Namespace;
use netlink::nftables::{self, list};
use netlink::route::Handle;
use netlink::socket::{self, Socket};
use tempfile::TempDir;

use super::objects::{Cluster, NODE, NODE_ADDRESS, POD_CIDR};
use super::process::Proxy;
use super::{TABLE, monotonic};

/// The map that has an element for each address of a service: ours, and the original's.
const FRONTENDS: [&str; 2] = ["frontends", "service-ips"];
/// Helpers answer within this time.
const ANSWER: Duration = Duration::from_secs(60);
/// After so long without a transaction, what followed from an event is over.
pub(super) const CALM: Duration = Duration::from_millis(500);
/// Flows that the benchmark makes outlast it.
const TRACKED: Duration = Duration::from_secs(3600);
/// A start that takes longer has failed.
const START: Duration = Duration::from_secs(900);

/// A child process that is talked to in lines. Killed when dropped.
struct Helper {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Helper {
    fn start(namespace: &Namespace, arguments: &[&str]) -> Result<Self> {
        let itself = std::env::current_exe().context("looking up this program")?;
        let mut command = namespace.command(itself)?;
        let mut process =
            command.arg("bench").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { bail!("a helper without pipes") };
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { process, input, lines })
    }

    fn answer(&self) -> Result<String> {
        self.lines.recv_timeout(ANSWER).context("a helper process of the benchmark does not answer")
    }

    fn ask(&self, line: &str) -> Result<String> {
        writeln!(&self.input, "{line}")?;
        self.answer()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What the observer has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    /// CLOCK_MONOTONIC, nanoseconds.
    at: u64,
    /// Events were lost just before.
    lost: bool,
}

/// A first sync.
#[derive(Clone, Copy, Debug)]
pub(super) struct Synced {
    /// From just before exec to the last transaction, seconds.
    pub(super) seconds: f64,
    pub(super) transactions: usize,
    /// The observer could not read fast enough, so the number of transactions is too low.
    pub(super) lost: bool,
}

/// The proxy to measure.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) binary: PathBuf,
    pub(super) flags: Vec<String>,
    /// It is ours, and knows our flags.
    pub(super) own: bool,
}

/// See the module.
pub(super) struct Scene {
    namespace: Namespace,
    driver: Helper,
    observer: Helper,
    cluster: Cluster,
    program: Program,
    folder: TempDir,
}

impl Scene {
    /// With `listens` the time of each transaction is exact, and large ones are dearer; else it is found within half a
    /// millisecond.
    pub(super) fn new(cluster: Cluster, program: &Program, listens: bool) -> Result<Self> {
        let namespace = Namespace::new()?;
        let address: IpNet = format!("{NODE_ADDRESS}/32").parse()?;
        namespace.run(|| -> Result<()> {
            let mut links = Handle::open()?;
            links.set_up("lo")?;
            Ok(links.add_address("lo", address)?)
        })??;
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        let (services, endpoints) = (cluster.services.to_string(), cluster.endpoints.to_string());
        let kubeconfig = kubeconfig.to_str().context("the folder for temporary files has a strange name")?;
        let driver = Helper::start(&namespace, &["driver", &services, &endpoints, kubeconfig])?;
        let observer = Helper::start(&namespace, &["observer", if listens { "listen" } else { "look" }])?;
        driver.answer()?;
        observer.answer()?;
        Ok(Self { namespace, driver, observer, cluster, program: program.clone(), folder })
    }

    /// Starts the proxy so that it writes in answer to a change, and nothing later.
    pub(super) fn start_without_resets(&self, flags: &[&str]) -> Result<Proxy<'_>> {
        let no_resets = self.program.own.then_some("--conntrack-removed-endpoint-reset-period=0s");
        self.start(&no_resets.into_iter().chain(flags.iter().copied()).collect::<Vec<_>>())
    }

    /// The same, without a pause between syncs.
    pub(super) fn start_prompt(&self) -> Result<Proxy<'_>> {
        self.start_without_resets(&["--iptables-min-sync-period=0s"])
    }

    /// Starts the proxy with these flags besides the usual ones.
    pub(super) fn start<'a>(&'a self, flags: &[&str]) -> Result<Proxy<'a>> {
        let usual = [
            "--proxy-mode=nftables".to_owned(),
            format!("--kubeconfig={}", self.file("kubeconfig").display()),
            "--kube-api-content-type=application/json".to_owned(),
            format!("--hostname-override={NODE}"),
            format!("--cluster-cidr={POD_CIDR}"),
            // these are limits of the whole machine
            "--conntrack-max-per-core=0".to_owned(),
            "--conntrack-tcp-timeout-established=0".to_owned(),
            "--conntrack-tcp-timeout-close-wait=0".to_owned(),
        ];
        let given = flags.iter().map(ToString::to_string).chain(self.program.flags.iter().cloned());
        let flags: Vec<String> = usual.into_iter().chain(given).collect();
        Proxy::start(&self.namespace, &self.program.binary, &flags, &self.file("log"))
    }

    fn file(&self, name: &str) -> PathBuf {
        Path::new(self.folder.path()).join(name)
    }

    /// Gives the driver time to prepare what a starting proxy will ask for, so that this is not measured.
    pub(super) fn prepare(&self) -> Result<()> {
        let answer = self.driver.ask("render")?;
        ensure!(answer == "ready", "the driver answers {answer:?}");
        self.forget();
        Ok(())
    }

    /// Tells the driver to change something. The time just before the event was written.
    pub(super) fn tell(&self, command: &str, number: usize) -> Result<u64> {
        let answer = self.driver.ask(&format!("{command} {number}"))?;
        match answer.split(' ').collect::<Vec<_>>()[..] {
            ["sent", _, "0"] => bail!("{command} {number}: the proxy does not watch"),
            ["sent", at, _] => Ok(at.parse()?),
            _ => bail!("the driver answers {answer:?}"),
        }
    }

    /// Forgets the transactions seen until now.
    pub(super) fn forget(&self) -> usize {
        self.observer.lines.try_iter().count()
    }

    fn next(&self, within: Duration) -> Result<Option<Taken>> {
        let line = match self.observer.lines.recv_timeout(within) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the observer has ended"),
        };
        let (word, at) = line.split_once(' ').ok_or_else(|| anyhow!("the observer says {line:?}"))?;
        Ok(Some(Taken { at: at.parse()?, lost: word == "lost" }))
    }

    /// The time of the last of the transactions that follow each other until nothing happens for `calm`, and their
    /// number; `None` when there is none within `limit`.
    pub(super) fn last_transaction(&self, limit: Duration, calm: Duration) -> Result<Option<(u64, usize)>> {
        let mut last = None;
        let mut wait = limit;
        while let Some(taken) = self.next(wait)? {
            last = Some((taken.at, last.map_or(0, |(_, count)| count) + 1));
            wait = calm;
        }
        Ok(last)
    }

    /// Waits until a started proxy has written everything.
    pub(super) fn wait_for_sync(&self, proxy: &mut Proxy<'_>) -> Result<Synced> {
        let limit = Instant::now() + START;
        let mut last = Taken { at: proxy.started, lost: false };
        let mut transactions = 0;
        loop {
            if let Some(taken) = self.next(CALM)? {
                transactions += 1;
                last = Taken { at: taken.at, lost: last.lost || taken.lost };
            } else if self.everything_is_there()? && proxy.synced() {
                let seconds = seconds_between(proxy.started, last.at);
                return Ok(Synced { seconds, transactions, lost: last.lost });
            }
            proxy.check()?;
            if Instant::now() > limit {
                bail!("no sync within {START:?}; the log ends with:\n{}", proxy.log_tail());
            }
        }
    }

    /// A table of each family is there, with an element for each address of a service.
    fn everything_is_there(&self) -> Result<bool> {
        let wanted = self.cluster.frontends();
        self.namespace.run(|| -> Result<bool> {
            let mut socket = Socket::open(socket::NETFILTER)?;
            let tables =
                [nftables::IPV4, nftables::IPV6].map(|family| list::table(&mut socket, family, TABLE));
            if !tables.into_iter().all(|table| matches!(table, Ok(Some(_)))) {
                return Ok(false);
            }
            Ok(FRONTENDS.iter().any(|map| {
                let mut count = 0;
                let listed = list::elements(&mut socket, nftables::IPV4, TABLE, map, |_| count += 1);
                listed.is_ok() && count == wanted
            }))
        })?
    }

    /// Makes the kernel track these flows, which are of clients that are not there.
    pub(super) fn track(&self, flows: &[Flow]) -> Result<()> {
        self.namespace.run(|| -> Result<()> {
            let mut socket = Socket::open(socket::NETFILTER)?;
            for flow in flows {
                conntrack::insert(&mut socket, flow, TRACKED).context("tracking a flow")?;
            }
            Ok(())
        })?
    }

    /// How many flows the kernel tracks of those that `filter` lists.
    pub(super) fn tracked(&self, filter: &Filter) -> Result<usize> {
        self.namespace.run(|| -> Result<usize> {
            let mut count = 0;
            conntrack::list(&mut Socket::open(socket::NETFILTER)?, nftables::IPV4, filter, |_| count += 1)?;
            Ok(count)
        })?
    }

    /// Waits until the kernel tracks no more than so many flows; the time.
    pub(super) fn wait_for_fewer_flows(&self, most: usize) -> Result<u64> {
        let limit = Instant::now() + ANSWER;
        self.namespace.run(|| -> Result<u64> {
            while tracked_in_all()? > most {
                ensure!(Instant::now() < limit, "stale flows are still there after {ANSWER:?}");
                thread::sleep(Duration::from_micros(200)); // the resolution of the result
            }
            Ok(monotonic())
        })?
    }

    /// How many flows the kernel tracks.
    pub(super) fn tracked_in_all(&self) -> Result<usize> {
        self.namespace.run(tracked_in_all)?
    }

    /// The number of the ruleset; every transaction moves it on.
    pub(super) fn generation(&self) -> Result<u32> {
        self.namespace
            .run(|| -> Result<u32> { Ok(list::generation(&mut Socket::open(socket::NETFILTER)?)?) })?
    }
}

fn tracked_in_all() -> Result<usize> {
    let file = "/proc/sys/net/netfilter/nf_conntrack_count";
    let text = fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
    text.trim().parse().with_context(|| format!("{file} says {text:?}"))
}

/// Seconds from one time to a later one, both in nanoseconds.
pub(super) fn seconds_between(from: u64, to: u64) -> f64 {
    Duration::from_nanos(to.saturating_sub(from)).as_secs_f64()
}

/// Waits until the metrics of a proxy that was started on rules it left say that they are right. Seconds that took.
pub(super) fn wait_until_synced_again(proxy: &mut Proxy<'_>) -> Result<f64> {
    let limit = Instant::now() + START;
    while !proxy.synced() {
        proxy.check()?;
        ensure!(Instant::now() < limit, "no sync within {START:?}");
        thread::sleep(Duration::from_millis(2)); // the resolution of the result
    }
    Ok(seconds_between(proxy.started, monotonic()))
}
