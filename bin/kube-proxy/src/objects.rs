//! From a source of objects to the sync thread.

use std::convert::Infallible;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use config::{Config, DetectLocal};
use dataplane::Message;
use ipnet::IpNet;
use model::{Event, Kind, Node};
use source::api::{About, Access, Notice, Notices, Poster, Severity};
use source::{Counters, Watching};

use crate::serve::Served;

/// Follows the API server, or manifests, for ever. An API server is told the notices, too.
pub(crate) async fn follow(
    config: &Config,
    sender: Sender<Message>,
    served: Arc<Served>,
    (notices, poster): (&Notices, Poster),
) -> Result<Infallible> {
    // a node that no manifest describes is nobody's to remove
    let without_node = config.source.manifests.is_some().then(Node::default);
    let skips = Arc::clone(&served.metrics);
    let requests = Arc::clone(&served.metrics);
    let own_node = Mutex::new(OwnNode {
        served,
        without_node,
        follows_pod_cidrs: config.detect_local == DetectLocal::NodeCidr,
        pod_cidrs: Vec::new(),
        told: false,
        exists: false,
    });
    let tell = move |event: Event| {
        own_node.lock().unwrap_or_else(PoisonError::into_inner).note(&event);
        // the sync thread ends only with the process
        let _ = sender.send(Message::Event(event));
    };
    let watching = Watching {
        node_name: config.hostname.clone(),
        tell: Box::new(tell),
        counters: Arc::new(Counters::telling(move |kind| skips.count_skipped(kind))),
    };
    if let Some(path) = &config.source.manifests {
        drop(poster);
        return Ok(source::manifests::run(path, watching).await?);
    }
    let access = Access {
        kubeconfig: config.source.kubeconfig.clone(),
        master: config.source.master.clone(),
        qps: config.source.qps,
        burst: config.source.burst,
    };
    let answered =
        move |code: u16, method: &str, host: &str| requests.count_request(&code.to_string(), method, host);
    let connection = source::api::connect(access, Box::new(answered)).await?;
    drop(notices.tell(Notice {
        about: About::Node(config.hostname.clone()),
        severity: Severity::Normal,
        reason: "Starting",
        action: "StartKubeProxy",
        note: String::new(),
    }));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (never, ()) = tokio::join!(source::api::run(&connection, &watching), poster.run(&connection, &host));
    match never {}
}

/// What has to be done at once, on the thread of the source, when the own Node changes.
struct OwnNode {
    served: Arc<Served>,
    /// What stands for the Node where there is none.
    without_node: Option<Node>,
    follows_pod_cidrs: bool,
    /// The first that were told.
    pod_cidrs: Vec<IpNet>,
    /// It was told since the last time that all objects are told.
    told: bool,
    exists: bool,
}

impl OwnNode {
    fn note(&mut self, event: &Event) {
        match event {
            Event::Begin(Kind::Node) => self.told = false,
            Event::Node(node) => {
                (self.told, self.exists) = (true, true);
                self.served.set_node(Some(node));
                if self.follows_pod_cidrs {
                    self.end_if_changed(&node.pod_cidrs);
                }
            }
            Event::NodeDeleted => self.gone(),
            Event::End(Kind::Node) if !self.told => self.gone(),
            _ => {}
        }
    }

    fn gone(&mut self) {
        if std::mem::take(&mut self.exists) && self.without_node.is_none() {
            tracing::warn!(
                "The own Node was deleted: /healthz answers 503, so that load balancers leave this machine; the rules stay"
            );
        }
        self.served.set_node(self.without_node.as_ref());
    }

    /// The rules depend on the pod networks the node had at the start: with others they have to be made anew. A Node that
    /// was created anew has none at first.
    fn end_if_changed(&mut self, now: &[IpNet]) {
        if self.pod_cidrs.is_empty() {
            now.clone_into(&mut self.pod_cidrs);
        }
        if now.is_empty() || self.pod_cidrs == now {
            return;
        }
        let list = |nets: &[IpNet]| nets.iter().map(IpNet::to_string).collect::<Vec<_>>().join(",");
        crate::run::fatal(&anyhow::anyhow!(
            "spec.podCIDRs of the own Node changed from {} to {}, and the rules of --detect-local-mode=NodeCIDR follow \
             only those of the start; ending to be started anew",
            list(&self.pod_cidrs),
            list(now)
        ));
    }
}
