//! The clients of all UDP listeners.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

use crate::Site;
use crate::choice::Targets;

/// After this time without a datagram in either direction a client is forgotten.
const IDLE: Duration = Duration::from_secs(120);

/// A client of a listener.
pub(crate) type Key = (Site, SocketAddr);

/// One client's way to its endpoint. Dropped, replies are passed on no more.
#[derive(Debug)]
pub(crate) struct Session {
    /// Connected to the endpoint.
    pub(crate) socket: Arc<UdpSocket>,
    pub(crate) endpoint: SocketAddr,
    /// Passes replies on.
    pub(crate) task: AbortHandle,
    pub(crate) used: Instant,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// All sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    entries: BTreeMap<Key, Session>,
    limit: usize,
}

impl Sessions {
    pub(crate) fn new(limit: usize) -> Self {
        Self { entries: BTreeMap::new(), limit }
    }

    /// Adds a session. Where there are too many already, the one idle for the longest time makes room.
    pub(crate) fn add(&mut self, key: Key, session: Session) {
        if self.entries.len() >= self.limit {
            let oldest = self.entries.iter().min_by_key(|(_, session)| session.used).map(|(key, _)| *key);
            oldest.and_then(|key| self.entries.remove(&key));
        }
        self.entries.insert(key, session);
    }

    /// The client's way, which is used now.
    pub(crate) fn find(&mut self, key: &Key, now: Instant) -> Option<Arc<UdpSocket>> {
        let session = self.entries.get_mut(key)?;
        session.used = now;
        Some(Arc::clone(&session.socket))
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        self.entries.remove(key);
    }

    /// Removes the sessions of a listener whose endpoints are not among these.
    pub(crate) fn keep_only(&mut self, site: Site, targets: Option<&Targets>) {
        self.entries.retain(|(other, _), session| {
            *other != site || targets.is_some_and(|targets| targets.hold(session.endpoint))
        });
    }

    /// Removes the sessions that nobody has used for some time.
    pub(crate) fn end_idle(&mut self, now: Instant) {
        self.entries.retain(|_, session| now.saturating_duration_since(session.used) < IDLE);
    }
}

#[cfg(test)]
mod tests {
    use model::Family;

    use super::*;
    use crate::Transport;

    #[tokio::test]
    async fn a_client_is_forgotten_when_nothing_went_either_way_for_two_minutes() {
        let site = Site { family: Family::V4, transport: Transport::Udp, port: 30080 };
        let client = |port| (site, SocketAddr::from(([127, 0, 0, 1], port)));
        let start = Instant::now();
        let mut sessions = Sessions::new(10);
        for port in [1, 2] {
            let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
            let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
            let endpoint = ([192, 0, 2, 1], 80).into();
            sessions.add(client(port), Session { socket, endpoint, task, used: start });
        }
        assert!(sessions.find(&client(2), start + IDLE / 2).is_some());
        sessions.end_idle(start + IDLE);
        assert!(sessions.find(&client(1), start + IDLE).is_none());
        assert!(sessions.find(&client(2), start + IDLE).is_some());
    }
}
