//! What was found wrong with objects, told once each.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Objects whose faults are remembered; of further ones only the count is kept, so memory stays bounded.
const REMEMBERED: usize = 4096;

/// A field that is wrong, and what is done about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fault {
    /// Path of the field, `spec.ports[1].port`.
    pub(crate) field: String,
    /// Its value, what is wrong with it, and what is left out because of it.
    pub(crate) problem: String,
}

impl Fault {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

/// Remembers which faults have been told.
#[derive(Default)]
pub(crate) struct Complaints {
    told: HashMap<Box<str>, Vec<u64>>,
    full: bool,
}

impl Complaints {
    /// Nothing bad is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// Takes the faults found in an object (`Service web/shop`), and gives back those to tell now. A fault that went
    /// away is forgotten, so that it is told again when it comes back.
    pub(crate) fn news<'a>(&mut self, object: &str, faults: &'a [Fault]) -> Vec<&'a Fault> {
        if faults.is_empty() {
            self.told.remove(object);
            return Vec::new();
        }
        if self.told.len() >= REMEMBERED && !self.told.contains_key(object) {
            if !std::mem::replace(&mut self.full, true) {
                tracing::warn!(
                    "More than {REMEMBERED} objects have bad fields; of further ones only the count is kept"
                );
            }
            return Vec::new();
        }
        let before = self.told.entry(object.into()).or_default();
        let now: Vec<u64> = faults.iter().map(digest).collect();
        let news = faults
            .iter()
            .zip(&now)
            .filter(|(_, digest)| !before.contains(digest))
            .map(|(fault, _)| fault)
            .collect();
        *before = now;
        news
    }

    /// Warns of the faults of an object that are new.
    pub(crate) fn warn(&mut self, object: &str, faults: &[Fault]) {
        for fault in self.news(object, faults) {
            tracing::warn!(object, field = fault.field, "{object} has a bad field: {fault}");
        }
    }
}

fn digest(fault: &Fault) -> u64 {
    let mut hasher = DefaultHasher::new();
    fault.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(fields: &[&str]) -> Vec<Fault> {
        fields.iter().map(|field| Fault::new(*field, "bad")).collect()
    }

    #[test]
    fn a_fault_is_told_once_until_it_goes_away() {
        let mut complaints = Complaints::default();
        let both = faults(&["a", "b"]);
        assert_eq!(complaints.news("Service x/y", &both[..1]).len(), 1);
        assert_eq!(complaints.news("Service x/y", &both), [&both[1]]);
        assert_eq!(complaints.news("Service x/y", &both).len(), 0);
        assert_eq!(complaints.news("Service x/z", &both).len(), 2);
        assert_eq!(complaints.news("Service x/y", &[]).len(), 0);
        assert_eq!(complaints.news("Service x/y", &both).len(), 2);
    }

    #[test]
    fn memory_is_bounded_however_many_objects_are_bad() {
        let mut complaints = Complaints::default();
        let bad = faults(&["a"]);
        let told: usize =
            (0..3 * REMEMBERED).map(|n| complaints.news(&format!("Service x/{n}"), &bad).len()).sum();
        assert_eq!(told, REMEMBERED);
        assert_eq!(complaints.told.len(), REMEMBERED);
    }
}
