//! Tracked flows that a sync may have made stale: which to look at, and how to judge them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use model::{Departure, Endpoint, Family, Protocol, Site};

/// The endpoints that serve at each site, sorted; `None` where no service has the site.
pub type Servers = HashMap<Site, Option<Arc<[Endpoint]>>>;

/// After a sync: look at these flows, and delete the stale ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The family of the flows.
    pub family: Family,
    /// Which flows to look at.
    pub suspects: Suspects,
    /// By what they are judged. A flow to a site that is not here is not stale.
    pub servers: Servers,
    /// The addresses at which node ports are; `None` means all of the node's.
    pub node_port_addresses: Option<Arc<[IpAddr]>>,
    /// With [`Suspects::All`] a translated flow into these networks is stale when no site is there.
    pub service_cidrs: Arc<[IpNet]>,
}

/// Flows to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Suspects {
    /// Those answered by these endpoints, and those to these sites.
    Some {
        /// Endpoints, with the protocol.
        endpoints: BTreeSet<(Protocol, Endpoint)>,
        /// Sites.
        sites: BTreeSet<Site>,
    },
    /// All.
    All,
}

impl Suspects {
    /// No flow.
    pub fn none() -> Self {
        Self::Some { endpoints: BTreeSet::new(), sites: BTreeSet::new() }
    }

    /// Whether no flow is suspected.
    pub fn are_none(&self) -> bool {
        *self == Self::none()
    }

    /// These and the others.
    pub fn extend(&mut self, others: Self) {
        match (&mut *self, others) {
            (Self::Some { endpoints, sites }, Self::Some { endpoints: more, sites: more_sites }) => {
                endpoints.extend(more);
                sites.extend(more_sites);
            }
            _ => *self = Self::All,
        }
    }
}

impl Sweep {
    /// Takes in one that was ordered later.
    pub fn extend(&mut self, later: Self) {
        self.suspects.extend(later.suspects);
        self.servers.extend(later.servers);
        self.node_port_addresses = later.node_port_addresses;
        self.service_cidrs = later.service_cidrs;
    }
}

/// An endpoint that comes back within this time was never gone: when one moves from one slice to another it can be in
/// neither for a moment.
const GRACE: Duration = Duration::from_millis(200);
/// The first new look at the flows of an endpoint that left; each further one comes after twice the time.
const FIRST_VISIT: Duration = Duration::from_secs(1);
/// So long flows are looked at again in any case.
const SHORTEST_CARE: Duration = Duration::from_secs(8);

/// Endpoints that left, for as long as packets may still be on the way to them.
#[derive(Debug)]
pub(crate) struct Aftercare {
    /// How long their connections are reset.
    reset_period: Duration,
    cases: BTreeMap<Departure, Case>,
    due: BTreeSet<(Instant, Departure)>,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    since: Instant,
    next: Step,
    at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing was done yet.
    Remember,
    /// Look again, after this time since it left.
    Visit(Duration),
    /// The last.
    Forget,
}

/// What is to be done now.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    pub(crate) remember: Vec<Departure>,
    pub(crate) visit: Vec<Departure>,
    pub(crate) forget: Vec<Departure>,
}

impl Aftercare {
    pub(crate) fn new(reset_period: Duration) -> Self {
        Self { reset_period, cases: BTreeMap::new(), due: BTreeSet::new() }
    }

    /// An endpoint left; one that had left before begins anew.
    pub(crate) fn begin(&mut self, departure: Departure, now: Instant) {
        if let Some(old) = self.cases.remove(&departure) {
            self.due.remove(&(old.at, departure.clone()));
        }
        let resets = !self.reset_period.is_zero() && departure.protocol == Protocol::Tcp;
        self.plan(departure, now, if resets { Step::Remember } else { Step::Visit(FIRST_VISIT) });
    }

    fn duration(&self) -> Duration {
        self.reset_period.max(SHORTEST_CARE)
    }

    fn plan(&mut self, departure: Departure, since: Instant, next: Step) {
        let after = match next {
            Step::Remember => GRACE,
            Step::Visit(after) => after,
            Step::Forget => self.duration(),
        };
        let at = since + after;
        self.due.insert((at, departure.clone()));
        self.cases.insert(departure, Case { since, next, at });
    }

    /// When there will be something to do.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes what is due.
    pub(crate) fn tasks(&mut self, now: Instant) -> Tasks {
        let mut tasks = Tasks::default();
        while self.next_at().is_some_and(|at| at <= now) {
            let Some((_, departure)) = self.due.pop_first() else { break };
            let Some(case) = self.cases.remove(&departure) else { continue };
            match case.next {
                Step::Remember => {
                    tasks.remember.push(departure.clone());
                    self.plan(departure, case.since, Step::Visit(FIRST_VISIT));
                }
                Step::Visit(after) => {
                    tasks.visit.push(departure.clone());
                    let next = 2 * after;
                    let then = if next <= self.duration() { Step::Visit(next) } else { Step::Forget };
                    self.plan(departure, case.since, then);
                }
                Step::Forget => tasks.forget.push(departure),
            }
        }
        tasks
    }
}

#[cfg(test)]
mod tests {
    use model::ObjectKey;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn departure(host: u8) -> Departure {
        Departure {
            service: ObjectKey::new("web", "a"),
            port_name: "".into(),
            protocol: Protocol::Tcp,
            endpoint: Endpoint { address: [192, 0, 2, host].into(), port: 80 },
        }
    }

    /// Everything that is done, with the time since the start.
    fn course(care: &mut Aftercare, start: Instant) -> Vec<(Duration, &'static str)> {
        let mut course = Vec::new();
        while let Some(at) = care.next_at() {
            let tasks = care.tasks(at);
            let kinds = [("remember", tasks.remember), ("visit", tasks.visit), ("forget", tasks.forget)];
            for (kind, departures) in kinds {
                course.extend(departures.iter().map(|_| (at - start, kind)));
            }
        }
        course
    }

    #[test]
    fn flows_are_looked_at_ever_more_rarely_until_the_endpoint_is_forgotten() {
        let (mut care, start) = (Aftercare::new(20 * SECOND), Instant::now());
        care.begin(departure(1), start);
        let visits = [1, 2, 4, 8, 16].map(|seconds| (seconds * SECOND, "visit"));
        let expected = [vec![(GRACE, "remember")], visits.to_vec(), vec![(20 * SECOND, "forget")]].concat();
        assert_eq!(course(&mut care, start), expected);
    }

    #[test]
    fn without_resets_nothing_is_remembered_and_flows_are_looked_at_all_the_same() {
        let (mut care, start) = (Aftercare::new(Duration::ZERO), Instant::now());
        care.begin(departure(1), start);
        let course = course(&mut care, start);
        let visits = [1, 2, 4, 8].map(|seconds| (seconds * SECOND, "visit"));
        assert_eq!(course, [visits.to_vec(), vec![(8 * SECOND, "forget")]].concat());
    }

    #[test]
    fn an_endpoint_that_leaves_again_is_kept_for_the_whole_time_again() {
        let (mut care, start) = (Aftercare::new(20 * SECOND), Instant::now());
        care.begin(departure(1), start);
        care.tasks(start + 19 * SECOND);
        care.begin(departure(1), start + 19 * SECOND);
        let course = course(&mut care, start);
        assert_eq!(course.first(), Some(&(19 * SECOND + GRACE, "remember")));
        assert_eq!(course.last(), Some(&(39 * SECOND, "forget")));
        assert_eq!(course.iter().filter(|(_, kind)| *kind == "forget").count(), 1);
    }
}
