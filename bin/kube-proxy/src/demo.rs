//! `kube-proxy demo`: the proxy at work in a cluster in miniature, without a cluster and without a trace.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use lab::{Client, Lab, Load, Outcome, Server, Spec};
use netlink::namespace::{self, Namespace};

/// The manifests of `examples/`.
const EXAMPLES: [(&str, &str); 4] = [
    ("node.yaml", include_str!("../../../examples/node.yaml")),
    ("tomcat.yaml", include_str!("../../../examples/tomcat.yaml")),
    ("dns.yaml", include_str!("../../../examples/dns.yaml")),
    ("batch.yaml", include_str!("../../../examples/batch.yaml")),
];
/// The service whose endpoint is taken away, and the line of its manifest that is.
const CHANGED: &str = "tomcat.yaml";
const REMOVED: (&str, &str) = ("p2", "198.51.100.12");

const CLUSTER_IP: SocketAddr = address([203, 0, 113, 40], 6080);
const NODE_PORT: SocketAddr = address([192, 0, 2, 10], 30005);
const DNS: SocketAddr = address([203, 0, 113, 10], 53);
const EMPTY: SocketAddr = address([203, 0, 113, 20], 80);
const METRICS: SocketAddr = address([127, 0, 0, 1], 10249);

/// Connections of each row of the table.
const CONNECTIONS: usize = 60;
const LOAD_PER_SECOND: u32 = 1000;
const START_LIMIT: Duration = Duration::from_secs(20);

const fn address(ip: [u8; 4], port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(ip[0], ip[1], ip[2], ip[3])), port)
}

/// Runs the demo; `manifests`, when given, are read beside the examples.
pub(crate) fn run(manifests: Option<&Path>) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        namespace::become_root_in_user_namespace()?;
    }
    say("A client (ext), a node (n1) and three pods (p1, p2, p3), in network namespaces of their own.");
    let lab = Lab::new(Spec::standard().only(&["p1", "p2"]).with_pod("p3", 13))?;
    let servers = ["p1", "p2", "p3"].map(|pod| Server::start(lab.member(pod)?, &[6080, 5353, 8080]));
    let _servers = servers.into_iter().collect::<Result<Vec<_>, _>>()?;

    let folder = write_examples(manifests)?;
    let node = lab.ns("n1")?;
    let begin = Instant::now();
    let proxy = Proxy::start(node, folder.path())?;
    proxy.wait_until_synced()?;
    say(&format!(
        "kube-proxy serves the services of examples/, {} ms after its start.\n",
        begin.elapsed().as_millis()
    ));

    show_answers(&lab)?;
    show_change(&lab, &proxy, folder.path())?;
    say("\nNothing is left behind: the namespaces, with the rules in them, end with this process.");
    Ok(())
}

fn say(text: &str) {
    // a closed stdout is no reason to stop
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn write_examples(more: Option<&Path>) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir().context("making a folder for the manifests")?;
    for (name, text) in EXAMPLES {
        fs::write(folder.path().join(name), text).with_context(|| format!("writing {name}"))?;
    }
    let files: Vec<PathBuf> = match more {
        None => vec![],
        Some(path) if path.is_dir() => {
            let entries = fs::read_dir(path).with_context(|| format!("reading folder {}", path.display()))?;
            entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?
        }
        Some(file) => vec![file.to_owned()],
    };
    for (number, file) in files.iter().enumerate().filter(|(_, file)| file.is_file()) {
        let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or("yaml");
        fs::copy(file, folder.path().join(format!("given-{number}.{extension}")))
            .with_context(|| format!("copying {}", file.display()))?;
    }
    Ok(folder)
}

/// Connects to each address and prints who answered.
fn show_answers(lab: &Lab) -> Result<()> {
    let clients = ["ext", "p1", "n1"];
    say(&format!("{:<38}{:<6}{}", "connections to", "from", "answered by"));
    for (what, to) in [("tomcat, ClusterIP", CLUSTER_IP), ("tomcat, NodePort", NODE_PORT)] {
        for from in clients {
            let client = Client::new(lab.ns(from)?);
            let answers = count((0..CONNECTIONS).map(|_| client.tcp(to)), what)?;
            ensure!(answers.len() == 3, "{what} from {from}: only {:?} answered", answers.keys());
            print_row(&format!("{what} {to}"), from, &in_words(&answers));
        }
    }
    let client = Client::new(lab.ns("p3")?);
    print_row(&format!("dns, UDP {DNS}"), "p3", &in_words(&count([client.udp(DNS)], "dns over UDP")?));
    print_row(&format!("dns, TCP {DNS}"), "p3", &in_words(&count([client.tcp(DNS)], "dns over TCP")?));
    let refused = client.tcp(EMPTY);
    ensure!(
        matches!(refused, Outcome::Refused { .. }),
        "batch has no endpoints and should refuse: {refused}"
    );
    print_row(&format!("batch, no endpoints {EMPTY}"), "p3", &format!("nobody: {refused}"));
    Ok(())
}

fn print_row(what: &str, from: &str, answers: &str) {
    say(&format!("{what:<38}{from:<6}{answers}"));
}

fn count(outcomes: impl IntoIterator<Item = Outcome>, what: &str) -> Result<BTreeMap<String, usize>> {
    let mut answers = BTreeMap::new();
    for outcome in outcomes {
        match outcome {
            Outcome::Answered { by, .. } => *answers.entry(by).or_default() += 1,
            failed => bail!("a connection to {what} failed: {failed}"),
        }
    }
    Ok(answers)
}

fn in_words(answers: &BTreeMap<String, usize>) -> String {
    let words: Vec<_> = answers.iter().map(|(name, count)| format!("{name} x {count}")).collect();
    words.join(", ")
}

/// Takes an endpoint away under load, and tells how long that took and what became of the connections.
fn show_change(lab: &Lab, proxy: &Proxy<'_>, folder: &Path) -> Result<()> {
    let (pod, line) = REMOVED;
    say(&format!("\nNow {LOAD_PER_SECOND} connections a second from ext to tomcat; endpoint {pod} leaves."));
    let load = Load::start(lab.ns("ext")?, CLUSTER_IP, LOAD_PER_SECOND, Duration::from_secs(10))?;
    thread::sleep(Duration::from_secs(1));

    let (_, text) = EXAMPLES.iter().find(|(name, _)| *name == CHANGED).context("the example is gone")?;
    let without: String = text.split_inclusive('\n').filter(|text| !text.contains(line)).collect();
    let synced_before = proxy.last_sync()?;
    let (written, written_at) = (Instant::now(), now());
    fs::write(folder.join(".next"), without).context("writing the changed manifest")?;
    fs::rename(folder.join(".next"), folder.join(CHANGED))
        .context("putting the changed manifest in place")?;
    let synced = proxy.wait_for_sync_after(synced_before)?;
    thread::sleep(Duration::from_secs(1));
    let report = load.stop();

    let last = report.last(pod).map(|last| last.saturating_duration_since(written));
    say(&format!(
        "the change was in the kernel          {:.1} ms after it was written",
        (synced - written_at) * 1e3
    ));
    say(&format!(
        "the last connection that {pod} answered {:.1} ms after it was written",
        last.unwrap_or_default().as_secs_f64() * 1e3
    ));
    let failures = report.failures();
    let failed: u64 = failures.values().sum();
    say(&format!("connections made, failed              {}, {failed}", report.tries.len()));
    ensure!(failed == 0, "connections failed: {failures:?}");
    ensure!(last.is_some(), "{pod} never answered before it left");
    let late = last.is_some_and(|last| {
        last > Duration::from_secs_f64((synced - written_at).max(0.0)) + Duration::from_millis(100)
    });
    ensure!(!late, "{pod} still got connections after it had left");
    Ok(())
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The proxy under show: this program, in the node's namespace.
struct Proxy<'a> {
    node: &'a Namespace,
    child: Child,
    log: tempfile::NamedTempFile,
}

impl<'a> Proxy<'a> {
    fn start(node: &'a Namespace, manifests: &Path) -> Result<Self> {
        let log = tempfile::NamedTempFile::new().context("making a file for the proxy's log")?;
        let program = std::env::current_exe().context("finding this program")?;
        let child = node
            .command(program)?
            .arg("--manifests")
            .arg(manifests)
            .args(["--hostname-override=n1", "--proxy-mode=nftables", "--cluster-cidr=198.51.100.0/24"])
            // limits of the whole machine are not the demo's to change
            .args(["--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0"])
            .args(["--conntrack-tcp-timeout-close-wait=0", "--oom-score-adj=0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.reopen().context("opening the proxy's log")?)
            .spawn()
            .context("starting the proxy")?;
        Ok(Self { node, child, log })
    }

    fn metrics(&self) -> Result<String> {
        let page = self.node.run(|| -> std::io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&METRICS, Duration::from_secs(1))?;
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            let mut page = String::new();
            stream.read_to_string(&mut page)?;
            Ok(page)
        })?;
        page.context("asking the proxy for its metrics")
    }

    /// When the IPv4 rules were last written, seconds since 1970; 0 before the first time.
    fn last_sync(&self) -> Result<f64> {
        const NAME: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} ";
        let page = self.metrics()?;
        let value = page.lines().find_map(|line| line.strip_prefix(NAME));
        Ok(value.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0))
    }

    fn wait_until_synced(&self) -> Result<()> {
        self.wait_for_sync_after(0.0).map(drop)
    }

    fn wait_for_sync_after(&self, before: f64) -> Result<f64> {
        let begin = Instant::now();
        loop {
            let last = self.last_sync();
            match last {
                Ok(at) if at > before => return Ok(at),
                _ if begin.elapsed() < START_LIMIT => thread::sleep(Duration::from_millis(5)),
                last => {
                    let log = fs::read_to_string(self.log.path()).unwrap_or_default();
                    bail!("the proxy did not write its rules in {START_LIMIT:?} ({last:?}); its log:\n{log}");
                }
            }
        }
    }
}

impl Drop for Proxy<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
