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

/// An endpoint that comes back within this time was never gone: when one moves from one slice to another, or slices are
/// deleted and made anew, it can be in none for a moment.
const GRACE: Duration = Duration::from_secs(1);
/// Resets are written together with others.
const RESETS_TOGETHER: Duration = Duration::from_millis(200);
/// The first new look at the flows of an endpoint that left, for packets that were on the way. Where connections are reset there
/// are more, each after this many times the time: what the kernel keeps of them after a reset is in the way of a client that
/// uses its port again.
const FIRST_VISIT: Duration = Duration::from_secs(2);
const NEXT_VISIT: u32 = 4;
/// Visits are made together with others: each is a walk through all that the kernel tracks.
const VISITS_TOGETHER: Duration = Duration::from_secs(1);

/// Endpoints that left, for as long as something has to be done about them.
#[derive(Debug)]
pub(crate) struct Aftercare {
    /// How long their connections are reset.
    reset_period: Duration,
    /// Times are counted from here.
    start: Instant,
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
    /// Its connections are to be reset.
    Remember,
    /// Look at its flows again, after this time since it left.
    Visit(Duration),
    /// Its connections are not to be reset any more.
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
    pub(crate) fn new(reset_period: Duration, start: Instant) -> Self {
        Self { reset_period, start, cases: BTreeMap::new(), due: BTreeSet::new() }
    }

    fn resets(&self, departure: &Departure) -> bool {
        !self.reset_period.is_zero() && departure.protocol == Protocol::Tcp
    }

    /// An endpoint is leaving, which is yet to be written: nothing is to be done because it left before.
    pub(crate) fn end(&mut self, departure: &Departure) {
        if let Some(old) = self.cases.remove(departure) {
            self.due.remove(&(old.at, departure.clone()));
        }
    }

    /// An endpoint left; one that had left before begins anew.
    pub(crate) fn begin(&mut self, departure: Departure, now: Instant) {
        self.end(&departure);
        let first = if self.resets(&departure) { Step::Remember } else { Step::Visit(FIRST_VISIT) };
        self.plan(departure, now, first);
    }

    fn plan(&mut self, departure: Departure, since: Instant, next: Step) {
        let (after, together) = match next {
            Step::Remember => (GRACE, RESETS_TOGETHER),
            Step::Visit(after) => (after, VISITS_TOGETHER),
            Step::Forget => (self.reset_period, VISITS_TOGETHER),
        };
        let after = (since + after).saturating_duration_since(self.start);
        let turns = after.as_nanos().div_ceil(together.as_nanos());
        let at = self.start + together * u32::try_from(turns).unwrap_or(u32::MAX);
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
                    if self.resets(&departure) {
                        let next = NEXT_VISIT * after;
                        let step = if next < self.reset_period { Step::Visit(next) } else { Step::Forget };
                        self.plan(departure, case.since, step);
                    }
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
        let start = Instant::now();
        let mut care = Aftercare::new(20 * SECOND, start);
        care.begin(departure(1), start);
        let visits = [2, 8].map(|seconds| (seconds * SECOND, "visit"));
        let expected = [vec![(GRACE, "remember")], visits.to_vec(), vec![(20 * SECOND, "forget")]].concat();
        assert_eq!(course(&mut care, start), expected);
    }

    #[test]
    fn what_is_not_reset_is_looked_at_once_more() {
        let start = Instant::now();
        for (period, protocol) in [(0, Protocol::Tcp), (20, Protocol::Udp), (20, Protocol::Sctp)] {
            let mut care = Aftercare::new(period * SECOND, start);
            care.begin(Departure { protocol, ..departure(1) }, start);
            assert_eq!(course(&mut care, start), [(2 * SECOND, "visit")]);
        }
    }

    #[test]
    fn what_is_due_at_about_the_same_time_is_done_together() {
        let start = Instant::now();
        let mut care = Aftercare::new(20 * SECOND, start);
        for host in 0..100 {
            care.begin(departure(host), start + SECOND / 1000 * u32::from(host));
        }
        let times: BTreeSet<_> = course(&mut care, start).into_iter().map(|(at, _)| at).collect();
        assert!(times.len() < 12, "{times:?}");
    }

    #[test]
    fn an_endpoint_that_leaves_again_is_kept_for_the_whole_time_again() {
        let start = Instant::now();
        let mut care = Aftercare::new(20 * SECOND, start);
        care.begin(departure(1), start);
        care.tasks(start + 19 * SECOND);
        care.begin(departure(1), start + 19 * SECOND);
        let course = course(&mut care, start);
        assert_eq!(course.first(), Some(&(19 * SECOND + GRACE, "remember")));
        assert_eq!(course.last(), Some(&(39 * SECOND, "forget")));
        assert_eq!(course.iter().filter(|(_, kind)| *kind == "forget").count(), 1);
    }
}
