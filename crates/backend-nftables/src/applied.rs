//! What was last written.

use std::collections::{BTreeSet, HashMap};

use dataplane::Report;
use model::ObjectKey;

use crate::entry::{Bytes, Entry};
use crate::ids::Ids;
use crate::layout::Set;
use crate::placed::Placed;

/// What was last written.
#[derive(Default)]
pub(crate) struct Applied {
    pub(crate) services: HashMap<ObjectKey, Placed>,
    pub(crate) ids: Ids,
    /// How many services want an element of a shared set.
    wanted_by: HashMap<(Set, Bytes), u32>,
    /// Elements that the node decides, sorted.
    pub(crate) facts: Vec<Entry>,
    /// The affinity times that have chains.
    pub(crate) affinity_seconds: BTreeSet<u32>,
    without_local_endpoint: [usize; 2],
}

impl Applied {
    pub(crate) fn insert(&mut self, key: ObjectKey, placed: Placed) {
        self.count(&placed, 1);
        self.services.insert(key, placed);
    }

    pub(crate) fn replace(&mut self, key: ObjectKey, placed: Option<Placed>) {
        let kept: BTreeSet<u32> = placed.iter().flat_map(Placed::ids).collect();
        if let Some(old) = self.services.remove(&key) {
            self.count(&old, -1);
            for id in old.ids().filter(|id| !kept.contains(id)) {
                self.ids.release(id);
            }
        }
        if let Some(placed) = placed {
            self.insert(key, placed);
        }
    }

    fn count(&mut self, placed: &Placed, sign: isize) {
        for (total, own) in self.without_local_endpoint.iter_mut().zip(placed.without_local_endpoint()) {
            *total = total.saturating_add_signed(own.cast_signed() * sign);
        }
    }

    pub(crate) fn is_first_to_want(&mut self, entry: &Entry) -> bool {
        if !entry.set.is_shared() {
            return true;
        }
        let count = self.wanted_by.entry(entry.place()).or_insert(0);
        *count += 1;
        *count == 1
    }

    pub(crate) fn is_last_to_want(&mut self, entry: &Entry) -> bool {
        if !entry.set.is_shared() {
            return true;
        }
        let count = self.wanted_by.entry(entry.place()).or_insert(1);
        *count -= 1;
        let last = *count == 0;
        if last {
            self.wanted_by.remove(&entry.place());
        }
        last
    }

    pub(crate) fn report(&self, written: usize, compare_again: bool) -> Report {
        let [internal, external] = self.without_local_endpoint;
        Report {
            written,
            compare_again,
            internal_without_local_endpoints: internal,
            external_without_local_endpoints: external,
        }
    }
}
