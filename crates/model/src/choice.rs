//! Which endpoints of a service port connections are sent to.
//!
//! In: all its [`Candidate`]s. Out: the list for each traffic policy that some frontend needs. `docs/semantics.md` has
//! the rules in words.

use crate::Backend;
use crate::slices::{Candidate, Hint, State};

/// The endpoints to use.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) cluster: Vec<Backend>,
    pub(crate) local: Vec<Backend>,
    /// Some endpoint could be used, here or elsewhere.
    pub(crate) any_endpoint: bool,
}

/// Chooses for the policies that are asked for.
pub(crate) fn choose(candidates: &[Candidate], cluster: bool, local: bool) -> Choice {
    Choice {
        cluster: if cluster { cluster_list(candidates) } else { Vec::new() },
        local: if local { local_list(candidates) } else { Vec::new() },
        any_endpoint: candidates.iter().any(|one| one.state.is_ready() || one.state == State::Draining),
    }
}

/// Ready ones that topology allows, else those that are shutting down and still serve, wherever they are.
fn cluster_list(candidates: &[Candidate]) -> Vec<Backend> {
    let topology = topology(candidates);
    let ready = list(candidates, |one| {
        one.state.is_ready()
            && match topology {
                Topology::Anywhere => true,
                Topology::SameNode => one.node == Hint::Ours,
                Topology::SameZone => one.zone == Hint::Ours,
            }
    });
    if ready.is_empty() { list(candidates, |one| one.state == State::Draining) } else { ready }
}

/// The same of this node alone, without regard to topology.
fn local_list(candidates: &[Candidate]) -> Vec<Backend> {
    let ready = list(candidates, |one| one.local && one.state.is_ready());
    if ready.is_empty() { list(candidates, |one| one.local && one.state == State::Draining) } else { ready }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topology {
    Anywhere,
    SameNode,
    SameZone,
}

/// Hints count only if every ready endpoint has one and one is for us: else some node could be left with none
/// (KEP-2433, KEP-3015).
fn topology(candidates: &[Candidate]) -> Topology {
    let usable = |hint: fn(&Candidate) -> Hint| {
        let mut hints = candidates.iter().filter(|one| one.state.is_ready()).map(hint);
        hints.clone().any(|hint| hint == Hint::Ours) && hints.all(|hint| hint != Hint::Missing)
    };
    if usable(|one| one.node) {
        Topology::SameNode
    } else if usable(|one| one.zone) {
        Topology::SameZone
    } else {
        Topology::Anywhere
    }
}

fn list(candidates: &[Candidate], wanted: impl Fn(&Candidate) -> bool) -> Vec<Backend> {
    let chosen = candidates.iter().filter(|one| wanted(one));
    chosen.map(|one| Backend { endpoint: one.endpoint, local: one.local }).collect()
}
