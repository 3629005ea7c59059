//! When a proxy counts as healthy, with a clock that is told what to show.

use std::time::{Duration, Instant, SystemTime};

use kube_proxy_observe::clock::Moment;
use kube_proxy_observe::health::{Health, Verdict};
use model::Family::{self, V4, V6};
use model::Node;

const START: Duration = Duration::from_secs(1_800_000_000);

/// A health with a timeout of 60 s, and the steps of a story told in seconds after its start.
struct Story {
    health: Health,
    begin: Instant,
}

impl Story {
    fn new() -> Self {
        Self { health: Health::new(Duration::from_secs(60)), begin: Instant::now() }
    }

    fn at(&self, second: u64) -> Moment {
        let passed = Duration::from_secs(second);
        Moment { wall: SystemTime::UNIX_EPOCH + START + passed, steady: self.begin + passed }
    }

    fn updated(&self, family: Family, second: u64) {
        self.health.updated(family, self.at(second));
    }

    fn queued(&self, family: Family, second: u64) {
        self.health.queued_update(family, self.at(second));
    }

    fn verdict(&self, second: u64) -> Verdict {
        self.health.verdict(self.at(second))
    }

    fn healthy(&self, second: u64) -> bool {
        self.verdict(second).healthy
    }
}

fn second(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH + START).expect("after the start");
    since.as_secs()
}

#[test]
fn before_the_first_sync_nothing_is_judged() {
    let story = Story::new();
    story.queued(V4, 0);
    let verdict = story.verdict(1000);
    assert!(verdict.healthy);
    assert_eq!((verdict.families, verdict.last_updated), (Vec::new(), None));
}

#[test]
fn without_changes_an_old_sync_is_healthy_for_ever() {
    let story = Story::new();
    story.updated(V4, 0);
    assert!(story.healthy(1_000_000));
}

#[test]
fn a_change_may_wait_for_less_than_the_timeout() {
    let story = Story::new();
    story.updated(V4, 0);
    story.queued(V4, 10);
    assert!(story.healthy(69));
    assert!(!story.healthy(70));
}

#[test]
fn the_oldest_waiting_change_counts() {
    let story = Story::new();
    story.updated(V4, 0);
    story.queued(V4, 10);
    story.queued(V4, 60);
    assert!(!story.healthy(70));
}

#[test]
fn a_sync_makes_it_healthy_again_and_the_next_change_waits_anew() {
    let story = Story::new();
    story.updated(V4, 0);
    story.queued(V4, 10);
    assert!(!story.healthy(100));
    story.updated(V4, 101);
    assert!(story.healthy(102));
    story.queued(V4, 110);
    assert!(story.healthy(169));
    assert!(!story.healthy(170));
}

#[test]
fn one_stuck_family_makes_the_proxy_unhealthy() {
    let story = Story::new();
    story.updated(V4, 0);
    story.updated(V6, 5);
    story.queued(V6, 10);
    story.updated(V4, 80);
    let verdict = story.verdict(90);
    assert!(!verdict.healthy);
    assert_eq!(verdict.last_updated.map(second), Some(80));
    let families: Vec<_> =
        verdict.families.iter().map(|(f, t, healthy)| (*f, second(*t), *healthy)).collect();
    assert_eq!(families, [(V4, 80, true), (V6, 5, false)]);
}

#[test]
fn a_change_of_the_wall_clock_changes_nothing() {
    let story = Story::new();
    story.updated(V4, 0);
    story.queued(V4, 10);
    let mut later = story.at(20);
    later.wall += Duration::from_secs(3600);
    assert!(story.health.verdict(later).healthy);
    let mut late = story.at(80);
    late.wall -= Duration::from_secs(3600);
    assert!(!story.health.verdict(late).healthy);
}

#[test]
fn only_a_known_node_that_stays_is_eligible() {
    let story = Story::new();
    let eligible = || story.verdict(0).node_eligible;
    assert!(!eligible(), "unknown");
    story.health.set_node(Some(&Node::default()));
    assert!(eligible());
    story.health.set_node(Some(&Node { deleting: true, ..Node::default() }));
    assert!(!eligible(), "being deleted");
    story.health.set_node(Some(&Node { to_be_deleted_by_autoscaler: true, ..Node::default() }));
    assert!(!eligible(), "tainted");
    story.health.set_node(Some(&Node::default()));
    assert!(eligible());
    story.health.set_node(None);
    assert!(!eligible(), "gone");
}

#[test]
fn a_node_says_nothing_about_the_proxy() {
    let story = Story::new();
    story.updated(V4, 0);
    story.health.set_node(None);
    assert!(story.healthy(0));
}
