//! Which endpoint the next client gets.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Endpoints that are tried for one client.
const ATTEMPTS: usize = 3;

/// The endpoints of one node port.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Targets {
    /// Sorted.
    endpoints: Vec<SocketAddr>,
    affinity: Option<Duration>,
}

impl Targets {
    pub(crate) fn new(mut endpoints: Vec<SocketAddr>, affinity: Option<Duration>) -> Self {
        endpoints.sort_unstable();
        endpoints.dedup();
        Self { endpoints, affinity }
    }

    pub(crate) fn hold(&self, endpoint: SocketAddr) -> bool {
        self.endpoints.binary_search(&endpoint).is_ok()
    }
}

/// Round robin from a random start. With affinity the last endpoint is kept while it is used: all clients have the one
/// loopback address.
#[derive(Debug)]
pub(crate) struct Choice {
    targets: Arc<Targets>,
    next: usize,
    last: Option<(SocketAddr, Instant)>,
}

impl Choice {
    pub(crate) fn new(targets: Arc<Targets>) -> Self {
        // the keys of a hasher are random, so is what it makes of nothing
        let start = RandomState::new().build_hasher().finish();
        let next = usize::try_from(start % (1 << 31)).unwrap_or(0);
        Self { targets, next, last: None }
    }

    /// From here on these. Tells whether they are others than before.
    pub(crate) fn set(&mut self, targets: &Arc<Targets>) -> bool {
        let changed = self.targets != *targets;
        self.targets = Arc::clone(targets);
        changed
    }

    /// The endpoint for a new client that has found those in `failed` dead; `None` if there is no other, or if these
    /// were enough.
    pub(crate) fn pick(&mut self, now: Instant, failed: &[SocketAddr]) -> Option<SocketAddr> {
        if failed.len() >= ATTEMPTS {
            return None;
        }
        let usable = |endpoint: &SocketAddr| self.targets.hold(*endpoint) && !failed.contains(endpoint);
        let fresh = |used: Instant| {
            self.targets.affinity.is_some_and(|time| now.saturating_duration_since(used) <= time)
        };
        let kept = self.last.filter(|(endpoint, used)| usable(endpoint) && fresh(*used));
        let endpoint = match kept {
            Some((endpoint, _)) => endpoint,
            None => self.turn(failed)?,
        };
        self.last = Some((endpoint, now));
        Some(endpoint)
    }

    fn turn(&mut self, failed: &[SocketAddr]) -> Option<SocketAddr> {
        for _ in 0..self.targets.endpoints.len() {
            let endpoint = self.targets.endpoints[self.next % self.targets.endpoints.len()];
            self.next = self.next.wrapping_add(1);
            if !failed.contains(&endpoint) {
                return Some(endpoint);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn endpoint(host: u8) -> SocketAddr {
        ([192, 0, 2, host], 80).into()
    }

    fn targets(hosts: &[u8], affinity: Option<Duration>) -> Arc<Targets> {
        Arc::new(Targets::new(hosts.iter().map(|host| endpoint(*host)).collect(), affinity))
    }

    fn picks(choice: &mut Choice, times: usize) -> Vec<SocketAddr> {
        (0..times).filter_map(|_| choice.pick(Instant::now(), &[])).collect()
    }

    #[test]
    fn clients_go_to_all_endpoints_in_turn() {
        let mut choice = Choice::new(targets(&[1, 2, 3], None));
        let first = picks(&mut choice, 3);
        assert_eq!(picks(&mut choice, 3), first);
        assert!([1, 2, 3].into_iter().all(|host| first.contains(&endpoint(host))));
    }

    #[test]
    fn the_first_endpoint_is_not_always_the_same() {
        let start = || picks(&mut Choice::new(targets(&[1, 2], None)), 1);
        // by chance this fails once in 2^99 runs
        let starts: Vec<_> = (0..100).map(|_| start()).collect();
        assert!(starts.iter().any(|other| *other != starts[0]));
    }

    #[test]
    fn endpoints_that_failed_are_left_out_until_there_is_none() {
        let mut choice = Choice::new(targets(&[1, 2], None));
        let now = Instant::now();
        assert_eq!(choice.pick(now, &[endpoint(1)]), Some(endpoint(2)));
        assert_eq!(choice.pick(now, &[endpoint(1), endpoint(2)]), None);
        assert_eq!(Choice::new(targets(&[], None)).pick(now, &[]), None);
    }

    #[test]
    fn a_client_that_found_three_endpoints_dead_gets_no_fourth() {
        let mut choice = Choice::new(targets(&[1, 2, 3, 4], None));
        let dead = [endpoint(1), endpoint(2), endpoint(3)];
        assert!(choice.pick(Instant::now(), &dead[..2]).is_some());
        assert_eq!(choice.pick(Instant::now(), &dead), None);
    }

    #[test]
    fn with_affinity_an_endpoint_is_kept_while_it_is_used() {
        let mut choice = Choice::new(targets(&[1, 2, 3], Some(MINUTE)));
        let mut now = Instant::now();
        let first = choice.pick(now, &[]);
        for _ in 0..10 {
            now += MINUTE;
            assert_eq!(choice.pick(now, &[]), first);
        }
        now += MINUTE + Duration::from_nanos(1);
        assert_ne!(choice.pick(now, &[]), first);
    }

    #[test]
    fn affinity_never_leads_to_a_removed_endpoint_and_moves_away_from_a_dead_one() {
        let now = Instant::now();
        let mut choice = Choice::new(targets(&[1], Some(MINUTE)));
        assert_eq!(choice.pick(now, &[]), Some(endpoint(1)));
        assert!(choice.set(&targets(&[2, 3], Some(MINUTE))));
        assert!(!choice.set(&targets(&[3, 2], Some(MINUTE))));
        let second = choice.pick(now, &[]).unwrap();
        let third = choice.pick(now, &[second]).unwrap();
        assert!(second != third && ![second, third].contains(&endpoint(1)));
        assert_eq!(choice.pick(now, &[]), Some(third));
    }
}
