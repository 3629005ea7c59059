//! Going through the steps of a scenario.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use lab::{Client, Connection, Lab, Outcome, Server, Spec};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::flow;
use super::format::{Flow, Http, Load, Open, Scenario, Step, Stop};
use super::slices::{World, node};
use crate::http;
use crate::objects::{Objects, Source};
use crate::proxy::{Proxy, wall_clock};
use crate::sctp;

/// The node under test.
pub const NODE: &str = "n1";
/// What the proxy is started with in every scenario.
pub const USUAL_FLAGS: [&str; 6] = [
    "--hostname-override=n1",
    "--cluster-cidr=198.51.100.0/24,2001:db8:b::/63",
    // limits of all namespaces, which only the first one may write
    "--conntrack-max-per-core=0",
    "--conntrack-tcp-timeout-established=0",
    "--conntrack-tcp-timeout-close-wait=0",
    "--v=2",
];
/// A change that causes a sync is looked for in the metrics for this time, before the packets are.
const SYNC: Duration = Duration::from_secs(1);
/// A load ends by itself after this time.
const LOAD: Duration = Duration::from_secs(120);
/// Time between two looks at what is not right yet, which leaves the processor to the proxy.
const LOOK: Duration = Duration::from_millis(50);
/// Lines of the log shown with a failure.
const LOG_LINES: usize = 40;
/// Characters shown of each.
const LOG_WIDTH: usize = 300;

/// What a scenario is run with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The proxy.
    pub binary: PathBuf,
    /// `--proxy-mode`.
    pub mode: String,
    /// How the proxy gets its objects.
    pub source: Source,
    /// A change must have taken effect after this time.
    pub effect: Duration,
    /// Accept that a TCP client is told late that it is refused. Kubernetes' own kube-proxy answers with ICMP, which an
    /// IPv6 client believes only after a second.
    pub slow_refusal: bool,
    /// Programs that must be able to list the ruleset; empty: `nft`.
    pub nft: Vec<PathBuf>,
}

/// Runs one scenario.
///
/// # Errors
/// A text for people: which step, what was expected, what came, and the end of the proxy's log.
pub fn run(path: &Path, setup: &Setup) -> Result<()> {
    let scenario = super::load(path)?;
    ensure!(
        rustix::process::geteuid().is_root(),
        "packet scenarios need root, because they make network namespaces: run them as root"
    );
    let members: Vec<_> = scenario.lab.iter().map(String::as_str).collect();
    let lab = Lab::new(Spec::standard().only(&members))?;
    let folder = tempfile::tempdir()?;
    let objects = setup.source.open(lab.ns(NODE)?, folder.path())?;
    let mut stage = Stage {
        setup,
        scenario: &scenario,
        lab: &lab,
        world: World::new(&lab),
        objects,
        log: folder.path().join("log"),
        proxy: None,
        open: BTreeMap::new(),
        _servers: servers(&lab, &scenario)?,
    };
    stage.play().map_err(|problem| {
        let log = std::fs::read_to_string(&stage.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_LINES)..];
        let tail: Vec<_> = tail.iter().map(|line| format!("\n  | {line:.LOG_WIDTH$}")).collect();
        anyhow!("{}\n  {problem:#}\n  the log ends with:{}", scenario.name, tail.concat())
    })
}

type Servers = (Vec<Server>, Vec<sctp::Server>);

fn servers(lab: &Lab, scenario: &Scenario) -> Result<Servers> {
    let mut servers = Servers::default();
    for member in lab.members() {
        if member.node.is_some() || scenario.lab.contains(&member.name) {
            servers.0.push(Server::start(member, &scenario.ports)?);
            servers.1.push(sctp::Server::start(&member.namespace, &member.name)?);
        }
    }
    Ok(servers)
}

struct Stage<'a> {
    setup: &'a Setup,
    scenario: &'a Scenario,
    lab: &'a Lab,
    world: World<'a>,
    objects: Box<dyn Objects + 'a>,
    log: PathBuf,
    proxy: Option<Proxy<'a>>,
    open: BTreeMap<String, Connection>,
    _servers: Servers,
}

impl Stage<'_> {
    fn play(&mut self) -> Result<()> {
        let mut first = Step { apply: self.scenario.objects.clone(), ..Step::default() };
        if !first.apply.iter().any(|object| object["kind"] == "Node") {
            first.apply.insert(0, node(self.lab)?);
        }
        first.slices.clone_from(&self.scenario.slices);
        first.start = true;
        self.step(&first).context("at the start")?;
        for (at, step) in self.scenario.steps.iter().enumerate() {
            let title = if step.say.is_empty() { String::new() } else { format!(" ({})", step.say) };
            self.step(step).with_context(|| format!("step {}{title}", at + 1))?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        let load = self.start_load(&step.load)?;
        for open in &step.open {
            self.open_connections(open)?;
        }
        let change = (wall_clock(), Instant::now());
        self.edit(step)?;
        for command in &step.run {
            self.shell(command)?;
        }
        if let Some(how) = step.stop.or(step.restart) {
            self.stop(how)?;
        }
        if step.start || step.restart.is_some() {
            self.start()?;
        } else if let Some(proxy) = self.proxy.as_ref().filter(|_| step.changes_objects()) {
            proxy.wait_for_sync(change.0, SYNC);
        }
        for flow in &step.flows {
            self.flow(flow, change.1)?;
        }
        self.check_connections(step)?;
        for (what, load) in load {
            let report = load.stop();
            ensure!(!report.tries.is_empty(), "{what}: no connection was made");
            let failures = report.failures();
            ensure!(failures.is_empty(), "{what}: connections failed: {failures:?}");
        }
        self.check_log(step)?;
        for request in &step.http {
            self.check_http(request, change.1)?;
        }
        self.check_process()?;
        self.list_ruleset()
    }

    fn edit(&mut self, step: &Step) -> Result<()> {
        for object in &step.delete {
            self.objects.delete(&World::identity(object)?)?;
        }
        let mut changed = Vec::new();
        for object in &step.apply {
            changed.push(self.world.complete(object.clone())?);
        }
        for slice in &step.slices {
            changed.extend(self.world.expand(slice)?);
        }
        if changed.is_empty() { Ok(()) } else { self.objects.apply(&changed) }
    }

    fn start(&mut self) -> Result<()> {
        let mut flags: Vec<String> = USUAL_FLAGS.map(str::to_owned).into();
        flags.push(format!("--proxy-mode={}", self.setup.mode));
        let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
        flags.retain(|flag| self.scenario.flags.iter().all(|other| name(other) != name(flag)));
        flags.extend(self.scenario.flags.iter().filter(|flag| !flag.ends_with('=')).cloned());
        flags.extend(self.objects.flags());
        if let Some(fields) = &self.scenario.config {
            flags.push(format!("--config={}", self.write_config(fields)?.display()));
        }
        let proxy = Proxy::start(self.lab.ns(NODE)?, &self.setup.binary, &flags, &self.log)?;
        self.proxy.insert(proxy).wait_until_synced()
    }

    /// A configuration file with the same content as the usual flags.
    fn write_config(&self, fields: &serde_json::Map<String, Value>) -> Result<PathBuf> {
        let mut config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "hostnameOverride": NODE,
            "clusterCIDR": "198.51.100.0/24,2001:db8:b::/63",
            "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "mode": self.setup.mode,
        });
        let connection = self.objects.client_connection();
        if !connection.is_null() {
            config["clientConnection"] = connection;
        }
        for (name, value) in fields {
            config[name] = value.clone();
        }
        let file = self.log.with_file_name("config");
        std::fs::write(&file, serde_json::to_vec_pretty(&config)?)?;
        Ok(file)
    }

    fn stop(&mut self, how: Stop) -> Result<()> {
        let proxy = self.proxy.take().ok_or_else(|| anyhow!("stop: the proxy does not run"))?;
        proxy.stop(match how {
            Stop::Term => Signal::TERM,
            Stop::Kill => Signal::KILL,
        })?;
        Ok(())
    }

    /// Tries all clients and targets of a flow side by side. Each has until [`Setup::effect`] after the change of its step to
    /// become right.
    fn flow(&self, flow: &Flow, change: Instant) -> Result<()> {
        let targets = flow::targets(self.lab, &flow.to)?;
        let (lab, setup) = (self.lab, self.setup);
        thread::scope(|scope| {
            let pairs = flow.from.iter().flat_map(|from| targets.iter().map(move |to| (from, *to)));
            let running: Vec<_> = pairs
                .map(|(from, to)| scope.spawn(move || pair(lab, flow, from, to, change, setup)))
                .collect();
            running
                .into_iter()
                .try_for_each(|pair| pair.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    fn start_load(&self, loads: &[Load]) -> Result<Vec<(String, lab::Load)>> {
        let mut running = Vec::new();
        for load in loads {
            for to in flow::targets(self.lab, &load.to)? {
                let started = lab::Load::start(self.lab.ns(&load.from)?, to, load.per_second, LOAD)?;
                running.push((format!("load from {} to {to}", load.from), started));
            }
        }
        Ok(running)
    }

    fn open_connections(&mut self, open: &Open) -> Result<()> {
        for to in flow::targets(self.lab, &open.to)? {
            let connection = Client::new(self.lab.ns(&open.from)?).open(to);
            let connection =
                connection.map_err(|outcome| anyhow!("open {} to {to}: {outcome}", open.name))?;
            self.open.insert(format!("{} {to}", open.name), connection);
        }
        Ok(())
    }

    fn check_connections(&mut self, step: &Step) -> Result<()> {
        for name in &step.alive {
            let mut known = false;
            for (full_name, connection) in &mut self.open {
                if full_name.split(' ').next() == Some(name) {
                    known = true;
                    let outcome = connection.ask();
                    ensure!(
                        matches!(outcome, Outcome::Answered { .. }),
                        "connection {full_name} is not alive: {outcome}"
                    );
                }
            }
            ensure!(known, "alive: {name} was never opened");
        }
        for name in &step.reset {
            let named = |full_name: &&String| full_name.split(' ').next() == Some(name);
            let names: Vec<_> = self.open.keys().filter(named).cloned().collect();
            ensure!(!names.is_empty(), "reset: {name} was never opened, or is reset already");
            for full_name in names {
                let Some(mut connection) = self.open.remove(&full_name) else { continue };
                let deadline = Instant::now() + self.setup.effect;
                let mut outcome = connection.ask();
                while outcome != Outcome::Reset && Instant::now() < deadline {
                    outcome = connection.ask();
                }
                ensure!(outcome == Outcome::Reset, "connection {full_name} is not reset: {outcome}");
            }
        }
        Ok(())
    }

    fn check_log(&self, step: &Step) -> Result<()> {
        let log = self.proxy.as_ref().map(Proxy::log).unwrap_or_default();
        for wanted in &step.logged {
            let lines = log.lines().filter(|line| wanted.with.iter().all(|text| line.contains(text)));
            let times = lines.count();
            ensure!(
                times == wanted.times,
                "logged {times} lines with {:?}, not {}",
                wanted.with,
                wanted.times
            );
        }
        Ok(())
    }

    fn check_http(&self, request: &Http, change: Instant) -> Result<()> {
        for to in flow::targets(self.lab, &request.to)? {
            while let Err(wrong) = self.ask_http(request, to) {
                if change.elapsed() > self.setup.effect {
                    return Err(wrong);
                }
                thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    fn ask_http(&self, request: &Http, to: SocketAddr) -> Result<()> {
        let answer = http::get(self.lab.ns(&request.from)?, to, &request.path);
        let Some(status) = request.status else {
            let refused = |error: &anyhow::Error| {
                let error = error.downcast_ref::<std::io::Error>();
                error.is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
            };
            return match answer {
                Err(error) if refused(&error) => Ok(()),
                other => bail!("http://{to}: somebody may listen there: {other:?}"),
            };
        };
        let answer = answer?;
        let text = format!("{}\n\n{}", answer.header, answer.body);
        ensure!(
            answer.status == status && request.with.iter().all(|part| text.contains(part)),
            "http://{to}{}: expected status {status} with {:?}, came:\n{text}",
            request.path,
            request.with,
        );
        Ok(())
    }

    fn check_process(&mut self) -> Result<()> {
        match self.proxy.as_mut().map(Proxy::ended).transpose()?.flatten() {
            Some(status) => bail!("the proxy has ended: {status}"),
            None => Ok(()),
        }
    }

    fn list_ruleset(&self) -> Result<()> {
        if self.setup.mode != "nftables" {
            return Ok(());
        }
        let usual = [PathBuf::from("nft")];
        let programs = if self.setup.nft.is_empty() { &usual[..] } else { &self.setup.nft };
        for nft in programs {
            for arguments in [&["list", "ruleset"][..], &["-j", "list", "ruleset"]] {
                let mut command = self.lab.ns(NODE)?.command(nft)?;
                let output = command.args(arguments).stdin(Stdio::null()).output();
                let output = output.with_context(|| format!("starting {}", nft.display()))?;
                ensure!(
                    output.status.success(),
                    "{} {}: {}: {}",
                    nft.display(),
                    arguments.join(" "),
                    output.status,
                    String::from_utf8_lossy(&output.stderr)
                );
            }
        }
        Ok(())
    }

    fn shell(&self, command: &str) -> Result<()> {
        let mut shell = self.lab.ns(NODE)?.command("sh")?;
        let folder = self.log.parent().unwrap_or(Path::new("/"));
        let output = shell.args(["-ec", command]).current_dir(folder).stdin(Stdio::null()).output()?;
        ensure!(
            output.status.success(),
            "run: {command}: {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}

fn pair(lab: &Lab, flow: &Flow, from: &str, to: SocketAddr, change: Instant, setup: &Setup) -> Result<()> {
    while let Err(wrong) = flow::check(lab, flow, from, to, setup.slow_refusal) {
        if change.elapsed() > setup.effect {
            let source = flow.source.as_ref().map(|source| format!(", source {source:?}"));
            bail!(
                "{:?} from {from} to {to}\n    expected: {:?}{}\n    came:     {wrong:#}",
                flow.protocol,
                flow.expect,
                source.unwrap_or_default(),
            );
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

impl Step {
    fn changes_objects(&self) -> bool {
        !(self.delete.is_empty() && self.apply.is_empty() && self.slices.is_empty())
    }
}
