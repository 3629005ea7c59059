//! From a source of objects to the sync thread.

use std::convert::Infallible;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use config::{Config, DetectLocal};
use dataplane::Message;
use ipnet::IpNet;
use model::{Event, Node};
use source::api::{About, Access, Severity};
use source::{Counters, Watching};

use crate::serve::Served;

/// Follows the API server, or manifests, for ever.
pub(crate) async fn follow(
    config: &Config,
    sender: Sender<Message>,
    served: Arc<Served>,
) -> Result<Infallible> {
    let from_files = config.source.manifests.is_some();
    if from_files {
        // a node that no manifest describes is nobody's to remove
        served.set_node(Some(&Node::default()));
    }
    let (skips, requests) = (Arc::clone(&served.metrics), Arc::clone(&served.metrics));
    let watches_pod_cidrs = config.detect_local == DetectLocal::NodeCidr;
    let pod_cidrs = Mutex::new(None);
    let tell = move |event: Event| {
        match &event {
            Event::Node(node) => {
                served.set_node(Some(node));
                if watches_pod_cidrs {
                    end_if_changed(&pod_cidrs, &node.pod_cidrs);
                }
            }
            Event::NodeDeleted if !from_files => served.set_node(None),
            _ => {}
        }
        // the sync thread ends only with the process
        let _ = sender.send(Message::Event(event));
    };
    let watching = Watching {
        node_name: config.hostname.clone(),
        tell: Box::new(tell),
        counters: Arc::new(Counters::telling(move |kind| skips.count_skipped(kind))),
    };
    if let Some(path) = &config.source.manifests {
        return Ok(source::manifests::run(path, &watching).await?);
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
    let node = About::Node(config.hostname.clone());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let started = connection.post_event(&node, Severity::Normal, "Starting", "StartKubeProxy", "", &host);
    let (never, ()) = tokio::join!(source::api::run(&connection, &watching), started);
    match never {}
}

/// The rules depend on the pod networks the node had at the start: with others they have to be made anew.
fn end_if_changed(first: &Mutex<Option<Vec<IpNet>>>, now: &[IpNet]) {
    let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
    match &*first {
        Some(first) if first != now => {
            let list = |nets: &[IpNet]| nets.iter().map(IpNet::to_string).collect::<Vec<_>>().join(",");
            crate::run::fatal(&anyhow::anyhow!(
                "spec.podCIDRs of the own Node changed from {} to {}, and the rules of --detect-local-mode=NodeCIDR \
                 follow only those of the start; ending to be started anew",
                list(first),
                list(now)
            ));
        }
        None if !now.is_empty() => *first = Some(now.to_vec()),
        _ => {}
    }
}
