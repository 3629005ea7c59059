//! Events about the own node or a service, for people who ask `kubectl get events`.

use std::time::SystemTime;

use jiff::Timestamp;
use model::ObjectKey;
use serde_json::{Value, json};

use super::connection::{Connection, Failure};

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

impl Connection {
    /// Posts an event (events.k8s.io/v1), reported by `kube-proxy` on `host`: reason `Starting` and action
    /// `StartKubeProxy`, for example. It is tried once; a failure is only logged, at debug.
    pub async fn post_event(
        &self,
        about: &About,
        severity: Severity,
        reason: &str,
        action: &str,
        note: &str,
        host: &str,
    ) {
        let event = event(about, severity, reason, action, note, host, SystemTime::now());
        let namespace = event["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
        let uri = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        match self.post(&uri, event.to_string().into_bytes()).await {
            Ok(_) => {}
            Err(Failure::Refused(refusal)) => tracing::debug!(reason, "An event was not posted: {refusal}"),
            Err(failure) => tracing::debug!(reason, "An event was not posted: {failure:?}"),
        }
    }
}

fn event(
    about: &About,
    severity: Severity,
    reason: &str,
    action: &str,
    note: &str,
    host: &str,
    now: SystemTime,
) -> Value {
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
        event["note"] = note.into();
    }
    event
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(about: &About, note: &str) -> Value {
        let now = SystemTime::UNIX_EPOCH + Duration::new(1_796_079_585, 416_142_999);
        event(about, Severity::Normal, "Starting", "StartKubeProxy", note, "host-1", now)
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
        assert_eq!(at(&About::Node("node-1".to_owned()), ""), expected);
    }

    #[test]
    fn an_event_about_a_service_is_in_its_namespace() {
        let event = at(&About::Service(ObjectKey::new("web", "shop")), "port 80 is taken");
        assert_eq!(event["metadata"]["namespace"], "web");
        assert_eq!(event["regarding"]["uid"], "web/shop");
        assert_eq!(event["note"], "port 80 is taken");
    }
}
