//! Whether the proxy does its work, for `/healthz`, `/livez` and the health checks of services.
//!
//! In: for each family when a change was queued and when the rules were brought up to date, and the own Node.
//! Out: [`Verdict`]s. A family is unhealthy when a change has waited for its rules longer than the timeout;
//! one that has not been synced yet is not judged. Load balancers ask `/healthz`, which also tells whether
//! the node takes new connections (KEP-3836); `/livez` and service health checks leave the node aside.

use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use model::{Family, Node};

use crate::clock::{Moment, rfc3339};

/// The health of a proxy, shared by the threads that report and the servers that answer.
#[derive(Debug)]
pub struct Health {
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ipv4: Progress,
    ipv6: Progress,
    node_eligible: bool,
}

#[derive(Debug, Default)]
struct Progress {
    /// The last time the rules were up to date.
    updated: Option<Moment>,
    /// Since when a change waits.
    pending: Option<Moment>,
}

/// How a proxy is at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// When this was found.
    pub now: SystemTime,
    /// No family has a change waiting for too long.
    pub healthy: bool,
    /// The own Node is known, not being deleted, and not about to be removed by the cluster autoscaler.
    pub node_eligible: bool,
    /// The last sync of any family.
    pub last_updated: Option<SystemTime>,
    /// The families that have been synced: last sync, and whether healthy.
    pub families: Vec<(Family, SystemTime, bool)>,
}

impl Health {
    /// Nothing synced yet, Node unknown. `timeout` is how long a change may wait: twice the sync period.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, state: Mutex::default() }
    }

    /// A change for a family's rules is waiting from now on.
    pub fn queued_update(&self, family: Family, now: Moment) {
        self.state().progress(family).pending.get_or_insert(now);
    }

    /// A family's rules are up to date. Also to be called once when its loop starts.
    pub fn updated(&self, family: Family, now: Moment) {
        *self.state().progress(family) = Progress { updated: Some(now), pending: None };
    }

    /// What is known of the own Node, `None` if it does not exist. Without a source that tells nodes, tell a
    /// default one, else the node never becomes eligible.
    pub fn set_node(&self, node: Option<&Node>) {
        self.state().node_eligible =
            node.is_some_and(|node| !node.deleting && !node.to_be_deleted_by_autoscaler);
    }

    /// How the proxy is now.
    pub fn verdict(&self, now: Moment) -> Verdict {
        let mut state = self.state();
        let families: Vec<_> = [Family::V4, Family::V6]
            .into_iter()
            .filter_map(|family| {
                let progress = state.progress(family);
                let stuck = progress.pending.is_some_and(|since| now.since(&since) >= self.timeout);
                Some((family, progress.updated?.wall, !stuck))
            })
            .collect();
        Verdict {
            now: now.wall,
            healthy: families.iter().all(|(_, _, healthy)| *healthy),
            node_eligible: state.node_eligible,
            last_updated: families.iter().map(|(_, updated, _)| *updated).max(),
            families,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole at every moment a thread could panic at.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn progress(&mut self, family: Family) -> &mut Progress {
        match family {
            Family::V4 => &mut self.ipv4,
            Family::V6 => &mut self.ipv6,
        }
    }
}

impl Verdict {
    /// Status and JSON body of `/healthz`.
    pub(crate) fn healthz(&self) -> (u16, String) {
        self.answer(self.healthy && self.node_eligible, Some(self.node_eligible))
    }

    /// Status and JSON body of `/livez`.
    pub(crate) fn livez(&self) -> (u16, String) {
        self.answer(self.healthy, None)
    }

    /// As in the original a good answer says that the last update is now: nothing was left to do.
    fn answer(&self, good: bool, node_eligible: Option<bool>) -> (u16, String) {
        let last = if good { Some(self.now) } else { self.last_updated };
        let mut body = format!(
            "{{\"lastUpdated\":\"{}\",\"currentTime\":\"{}\",",
            rfc3339(last),
            rfc3339(Some(self.now))
        );
        // Writing to a string cannot fail.
        if let Some(eligible) = node_eligible {
            let _ = write!(body, "\"nodeEligible\":{eligible},");
        }
        let _ = write!(body, "\"healthy\":{},\"status\":{{", self.healthy);
        for (i, (family, updated, healthy)) in self.families.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let time = rfc3339(Some(*updated));
            let _ = write!(body, "{comma}\"{family}\":{{\"lastUpdated\":\"{time}\",\"healthy\":{healthy}}}");
        }
        body.push_str("}}");
        (if good { 200 } else { 503 }, body)
    }
}
