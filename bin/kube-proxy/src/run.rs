//! The wiring. Threads and who owns what:
//!
//! - `main` (tokio, one thread): the API client, the HTTP servers, the relay of node ports on loopback; `manifests` in place of
//!   the first;
//! - `sync`: the tracker and the backends, all writes to the kernel;
//! - `conntrack`: deletes stale flows, as `sync` orders;
//! - `nft-monitor`: waits for foreign changes; `addresses`: waits for changes of the interfaces' addresses;
//! - `log`: writes lines to stderr, which may block.
//!
//! The monitors and the source only send messages to `sync`.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use backend_nftables::{Nftables, Settings};
use config::{Config, DetectLocal, Gate, Mode};
use conntrack::{Reconciler, Swept};
use dataplane::{Backend, LocalDetector, Message, NodePortSelection, Options, Sweep, SyncLoop};
use ipnet::IpNet;
use model::{Event, Family, Node, Tracker, TrackerOptions};
use netlink::nftables::monitor::Monitor;
use netlink::route;
use observe::metrics::Metrics;
use relay::{Limits, LocalhostNodePorts};
use tracing::info;

use crate::config_watch;
use crate::node_ports;
use crate::node_setup::{self, NodeFiles};
use crate::objects;
use crate::program;
use crate::serve::{Checks, ListenerCounters, Served, SyncReporter};

/// How long the own Node may take to get pod networks, where they are needed; as with the original.
const POD_CIDR_WAIT: Duration = Duration::from_secs(300);
/// How often the kernel is compared with what is wanted though nobody is known to have changed it.
const CHECK_PERIOD: Duration = Duration::from_secs(3600);

/// Runs until the process is ended from outside. Rules stay in the kernel then, by design: traffic goes on while the next
/// process starts.
pub(crate) fn run(config: &Config, log: &observe::log::Handle) -> Result<()> {
    info!(version = %config.version, node = %config.hostname, "Starting kube-proxy");
    let mode = choose_mode(config.mode)?;
    let files = NodeFiles::new("/");
    files.set_conntrack(&config.conntrack);
    if config.init_only {
        info!("The node is prepared (--init-only)");
        return Ok(());
    }
    files.set_oom_score(config.oom_score_adj);

    if let Some(file) = &config.config_file {
        config_watch::start(file)?;
    }
    let families = families();
    let served = Arc::new(Served::new(config, mode, &families));
    let (notices, poster) = source::api::notices();
    let (service_health, service_servers) = served.service_health(&config.hostname, notices.clone());
    let (sender, inbox) = channel();
    let node_ports = node_ports::selection(&config.node_port_addresses(mode));
    let limits = Limits::within(node_setup::raise_file_limit());
    let (relay_handle, relay) = relay::relay(limits, Box::new(ListenerCounters(Arc::clone(&served.metrics))));
    let reporter = SyncReporter {
        metrics: Arc::clone(&served.metrics),
        health: Arc::clone(&served.health),
        services: service_health,
        all_addresses: families.iter().copied().filter(|family| node_ports.takes_all(*family)).collect(),
        checks: Checks::default(),
    };
    let sync = SyncThread {
        config: config.clone(),
        mode,
        families,
        node_ports,
        relay: relay_handle,
        sender: sender.clone(),
    };
    thread::Builder::new()
        .name("sync".into())
        .spawn(move || {
            if let Err(error) = sync.run(&inbox, reporter) {
                fatal(&error);
            }
        })
        .context("starting the sync thread")?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let never = runtime.block_on(async {
        tokio::select! {
            ended = served.run(config, mode, log, service_servers, &notices) => ended,
            ended = objects::follow(config, sender, Arc::clone(&served), (&notices, poster)) => ended,
            ended = relay_for_ever(relay) => ended,
        }
    })?;
    match never {}
}

/// Without a loopback address to serve, the relay ends at once.
async fn relay_for_ever(relay: relay::Relay) -> Result<Infallible> {
    relay.run().await;
    std::future::pending().await
}

/// Ends the process: what goes on without this thread would only look alive.
pub(crate) fn fatal(error: &anyhow::Error) -> ! {
    tracing::error!("Error running kube-proxy: {error:#}");
    observe::log::flush();
    std::process::exit(1)
}

/// The mode to run in: nftables where the kernel can.
fn choose_mode(wanted: Mode) -> Result<Mode> {
    const SKIP: &str = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK";
    if !matches!(wanted, Mode::Auto | Mode::Nftables) {
        bail!("proxy mode {} is not part of this version; use --proxy-mode=nftables", wanted.as_str());
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let skip = std::env::var_os(SKIP).is_some_and(|value| !value.is_empty());
    if !skip && kernel_version(&release).is_some_and(|version| version < (5, 13)) {
        bail!("proxy mode nftables needs Linux 5.13 or newer, this is {release}; {SKIP}=1 skips this check");
    }
    Ok(Mode::Nftables)
}

fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// What the sync thread is made from.
struct SyncThread {
    config: Config,
    mode: Mode,
    families: Vec<Family>,
    node_ports: NodePortSelection,
    relay: relay::Handle,
    sender: Sender<Message>,
}

impl SyncThread {
    fn run(self, inbox: &Receiver<Message>, reporter: SyncReporter) -> Result<()> {
        let (node, early) = match self.config.detect_local {
            DetectLocal::NodeCidr => wait_for_pod_cidrs(inbox)?,
            _ => (None, Vec::new()),
        };
        let options = self.options();
        let mut backends: Vec<Box<dyn Backend + Send>> = Vec::new();
        let mut monitor = Monitor::open(backend_nftables::TABLE, vec![]).map_err(cannot_watch)?;
        let addresses = self.config.node_port_addresses(self.mode);
        for family in &self.families {
            let settings = self.settings(*family, node.as_ref());
            let listener = monitor.switch().map_err(cannot_watch)?;
            let backend = Nftables::new(settings, Some(listener)).context("opening a netlink socket")?;
            monitor.leave_out(backend.port());
            backends.push(if node_ports::relayed(&addresses, &self.config.gates, *family) {
                Box::new(LocalhostNodePorts::new(Box::new(backend), self.relay.clone()))
            } else {
                Box::new(backend)
            });
        }
        drop(self.relay);
        watch_ruleset(monitor, self.sender.clone())?;
        if self.node_ports.needs_interfaces() || options.interfaces_are_primary {
            watch_addresses(self.sender.clone())?;
        }
        let tracker = Tracker::new(TrackerOptions {
            node_name: self.config.hostname.clone(),
            families: self.families,
            allow_external_ips: self.config.gates.enabled(Gate::AllowServiceExternalIps),
        });
        drop(self.sender);
        let sweeps = sweep_flows(Arc::clone(&reporter.metrics))?;
        let mut sync = SyncLoop::new(tracker, backends, options, reporter, sweeps);
        for message in early {
            sync.tell(message);
        }
        sync.run(inbox);
        bail!("the sync loop ended: every source of objects is gone")
    }

    fn options(&self) -> Options {
        let sync = self.config.sync(self.mode);
        let bind = self.config.bind_address;
        let from_files = self.config.source.manifests.is_some();
        Options {
            min_sync_period: sync.min_period,
            sync_period: sync.period,
            check_period: CHECK_PERIOD,
            node_ports: self.node_ports.clone(),
            primary_addresses: if bind.is_unspecified() { vec![] } else { vec![bind] },
            interfaces_are_primary: from_files && bind.is_unspecified(),
            reset_period: self.config.conntrack.removed_endpoint_reset_period.unwrap_or_default(),
        }
    }

    fn settings(&self, family: Family, node: Option<&Node>) -> Settings {
        let masquerade = self.config.masquerade(self.mode);
        let of_family = |nets: &[IpNet]| {
            nets.iter()
                .find(|net| Family::of_net(net) == family)
                .map_or(LocalDetector::None, |net| LocalDetector::Cidr(*net))
        };
        let local_detector = match &self.config.detect_local {
            DetectLocal::ClusterCidr(nets) => of_family(nets),
            DetectLocal::NodeCidr => node.map_or(LocalDetector::None, |node| of_family(&node.pod_cidrs)),
            DetectLocal::BridgeInterface(name) => LocalDetector::Interface(name.clone()),
            DetectLocal::InterfaceNamePrefix(prefix) => LocalDetector::InterfacePrefix(prefix.clone()),
        };
        if local_detector == LocalDetector::None {
            info!(%family, "No pod network of this family is known: traffic to cluster IPs is not masqueraded for clients from elsewhere");
        }
        Settings {
            family,
            masquerade_mark: masquerade.mark(),
            masquerade_all: masquerade.all,
            local_detector,
            all_node_port_addresses: self.node_ports.takes_all(family),
            own_table: self.config.nftables.own_table,
        }
    }
}

/// IPv4, and IPv6 where the kernel has it.
fn families() -> Vec<Family> {
    let ipv6 = Path::new("/proc/net/if_inet6").exists();
    if ipv6 { vec![Family::V4, Family::V6] } else { vec![Family::V4] }
}

/// Reads messages until the own Node has pod networks; gives back what was read.
fn wait_for_pod_cidrs(inbox: &Receiver<Message>) -> Result<(Option<Node>, Vec<Message>)> {
    let deadline = Instant::now() + POD_CIDR_WAIT;
    let mut early = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let message = inbox.recv_timeout(left).context(
            "the own Node got no spec.podCIDRs in 5 minutes, which --detect-local-mode=NodeCIDR needs; is the node IPAM \
             controller running?",
        )?;
        let node = match &message {
            Message::Event(Event::Node(node)) if !node.pod_cidrs.is_empty() => Some(node.clone()),
            _ => None,
        };
        early.push(message);
        if node.is_some() {
            return Ok((node, early));
        }
    }
}

/// The first thing that a process without the rights cannot do.
fn cannot_watch(error: io::Error) -> anyhow::Error {
    let doing = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "nothing can be done without CAP_NET_ADMIN, which this process lacks: run it as root, in a container as a privileged one or \
             with that capability added; watching the nftables tables"
        }
        _ => "watching for foreign changes of the nftables tables",
    };
    anyhow::Error::new(error).context(doing)
}

/// Starts the thread that deletes stale flows.
fn sweep_flows(metrics: Arc<Metrics>) -> Result<Sender<Sweep>> {
    let reconciler = Reconciler::open().context("opening a netlink socket")?;
    let (sender, orders) = channel();
    let done = move |swept: Swept| {
        metrics.conntrack_duration.of(swept.family).observe(swept.duration.as_secs_f64());
        metrics.conntrack_deleted.of(swept.family).inc_by(swept.deleted.try_into().unwrap_or(u64::MAX));
    };
    thread::Builder::new()
        .name("conntrack".into())
        .spawn(move || reconciler.run(&orders, done))
        .context("starting a thread")?;
    Ok(sender)
}

fn watch_ruleset(mut monitor: Monitor, sender: Sender<Message>) -> Result<()> {
    let watch = move || {
        loop {
            let change = match monitor.next_change() {
                Ok(change) => change,
                Err(error) => fatal(&cannot_watch(error)),
            };
            let of_thread = |(name, id): (String, u32)| program::of_thread(Path::new("/proc"), &name, id);
            let program = change.program.map(of_thread);
            for number in change.families {
                let family = match number {
                    netlink::nftables::IPV4 => Family::V4,
                    netlink::nftables::IPV6 => Family::V6,
                    _ => continue,
                };
                if sender.send(Message::ForeignChange(family, program.clone())).is_err() {
                    return;
                }
            }
        }
    };
    thread::Builder::new().name("nft-monitor".into()).spawn(watch).context("starting a thread")?;
    Ok(())
}

/// Tells the addresses of the interfaces, now and after each change.
fn watch_addresses(sender: Sender<Message>) -> Result<()> {
    let mut monitor = route::AddressMonitor::open().context("watching for address changes")?;
    let mut handle = route::Handle::open().context("listing addresses")?;
    let mut list = move || -> Result<Vec<IpAddr>> {
        let addresses = handle.addresses().context("listing addresses")?;
        Ok(addresses
            .iter()
            .filter(|address| matches!(address.scope, route::Scope::Global | route::Scope::Site))
            .map(|address| address.net.addr())
            .collect())
    };
    sender.send(Message::InterfaceAddresses(list()?)).context("telling the addresses")?;
    let watch = move || {
        loop {
            let told = monitor.receive().context("watching for address changes").and_then(|_| list());
            match told {
                Ok(addresses) => {
                    if sender.send(Message::InterfaceAddresses(addresses)).is_err() {
                        return;
                    }
                }
                Err(error) => fatal(&error),
            }
        }
    };
    thread::Builder::new().name("addresses".into()).spawn(watch).context("starting a thread")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_read_whatever_follows_the_numbers() {
        assert_eq!(kernel_version("6.18.44-generic"), Some((6, 18)));
        assert_eq!(kernel_version("5.4+"), Some((5, 4)));
        assert_eq!(kernel_version("unknown"), None);
    }
}
