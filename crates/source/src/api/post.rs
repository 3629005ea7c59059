//! Events about the own node or a service, for people who ask `kubectl get events`.

use std::time::SystemTime;

use jiff::Timestamp;
use model::ObjectKey;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::connection::{Connection, Failure};
use super::pace::RateLimit;

/// Events that wait to be posted, at most.
const WAITING: usize = 64;

/// So many events are posted at once, and this many a second in the long run: one each ten seconds.
const BURST: u32 = 10;
const PER_SECOND: f32 = 0.1;

/// Whether an event is good news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// What should happen.
    Normal,
    /// What should not.
    Warning,
}

/// What an event is about.
#[derive(Clone, Debug)]
pub enum About {
    /// The own node, by name.
    Node(String),
    /// A service.
    Service(ObjectKey),
}

/// Something people should know: reason `Starting` and action `StartKubeProxy`, for example.
#[derive(Clone, Debug)]
pub struct Notice {
    /// The object it is about.
    pub about: About,
    /// Whether it is good news.
    pub severity: Severity,
    /// Why it is told, as one word.
    pub reason: &'static str,
    /// What was being done, as one word.
    pub action: &'static str,
    /// A sentence for people; may be empty.
    pub note: String,
}

/// Takes notices to be posted as events, from any thread, without waiting. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Notices(mpsc::Sender<(Notice, oneshot::Sender<()>)>);

impl Notices {
    /// Has a notice posted. When too many wait it is dropped: the log has it anyway. The answer comes when it has been
    /// posted, or cannot be.
    pub fn tell(&self, notice: Notice) -> oneshot::Receiver<()> {
        let (done, posted) = oneshot::channel();
        if let Err(error) = self.0.try_send((notice, done)) {
            tracing::debug!("An event is not posted: {error}");
        }
        posted
    }
}

/// Posts notices. One that is dropped makes [`Notices`] go nowhere, as they do without an API server.
#[derive(Debug)]
pub struct Poster(mpsc::Receiver<(Notice, oneshot::Sender<()>)>);

/// The two ends of the way of notices.
pub fn notices() -> (Notices, Poster) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (Notices(sender), Poster(receiver))
}

impl Poster {
    /// Posts each notice as an event (events.k8s.io/v1), reported by `kube-proxy` on `host`. It is tried once; a failure
    /// is only logged, at debug. Ends when all [`Notices`] are dropped.
    pub async fn run(mut self, connection: &Connection, host: &str) {
        let limit = RateLimit::new(PER_SECOND, BURST);
        while let Some((notice, done)) = self.0.recv().await {
            if let Some(limit) = &limit {
                limit.turn().await;
            }
            post(connection, &notice, host).await;
            // who told it need not wait
            let _ = done.send(());
        }
    }
}

async fn post(connection: &Connection, notice: &Notice, host: &str) {
    let event = event(notice, host, SystemTime::now());
    let namespace = event["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
    let uri = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let reason = notice.reason;
    match connection.post(&uri, event.to_string().into_bytes()).await {
        Ok(_) => {}
        Err(Failure::Refused(refusal)) => tracing::debug!(reason, "An event was not posted: {refusal}"),
        Err(failure) => tracing::debug!(reason, "An event was not posted: {failure:?}"),
    }
}

fn event(notice: &Notice, host: &str, now: SystemTime) -> Value {
    let Notice { about, severity, reason, action, note } = notice;
    let (namespace, name, regarding) = match about {
        About::Node(name) => {
            ("default", name.as_str(), json!({"kind": "Node", "name": name, "apiVersion": "v1"}))
        }
        About::Service(key) => (
            key.namespace(),
            key.name(),
            json!({
                "kind": "Service", "namespace": key.namespace(), "name": key.name(), "uid": key.as_str(),
                "apiVersion": "v1",
            }),
        ),
    };
    let nanoseconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let time = Timestamp::try_from(now).unwrap_or_default();
    let mut event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": format!("{name}.{nanoseconds:x}"), "namespace": namespace},
        "eventTime": format!("{time:.6}"),
        "reportingController": "kube-proxy",
        "reportingInstance": format!("kube-proxy-{host}"),
        "action": action,
        "reason": reason,
        "regarding": regarding,
        "type": match severity { Severity::Normal => "Normal", Severity::Warning => "Warning" },
    });
    if !note.is_empty() {
        event["note"] = note.as_str().into();
    }
    event
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(about: About, note: &str) -> Value {
        let now = SystemTime::UNIX_EPOCH + Duration::new(1_796_079_585, 416_142_999);
        let (severity, note) = (Severity::Normal, note.to_owned());
        let notice = Notice { about, severity, reason: "Starting", action: "StartKubeProxy", note };
        event(&notice, "host-1", now)
    }

    #[test]
    fn the_starting_event_is_that_of_the_reference() {
        let expected = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "node-1.18ecf4dded0f6097", "namespace": "default"},
            "eventTime": "2026-11-30T22:59:45.416142Z",
            "reportingController": "kube-proxy",
            "reportingInstance": "kube-proxy-host-1",
            "action": "StartKubeProxy",
            "reason": "Starting",
            "regarding": {"kind": "Node", "name": "node-1", "apiVersion": "v1"},
            "type": "Normal",
        });
        assert_eq!(at(About::Node("node-1".to_owned()), ""), expected);
    }

    #[test]
    fn an_event_about_a_service_is_in_its_namespace() {
        let event = at(About::Service(ObjectKey::new("web", "shop")), "port 80 is taken");
        assert_eq!(event["metadata"]["namespace"], "web");
        assert_eq!(event["regarding"]["uid"], "web/shop");
        assert_eq!(event["note"], "port 80 is taken");
    }
}
