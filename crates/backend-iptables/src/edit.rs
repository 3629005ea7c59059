//! Changes of a chain that all services share: line by line, so that a service that comes or goes costs the same among many as
//! among few.

use std::collections::{HashMap, HashSet};

use model::ObjectKey;

use crate::restore::{Part, Restore};
use crate::shared::SharedChain;
use crate::tables::Table;

/// With more lines to delete than these the chain is written anew. To find a line, `iptables-restore` looks at all: of 10,000, its
/// variant for nf_tables (1.8.9) deletes one in 0.09 s and eight in 0.17 s, and writes all anew in 0.20 s.
const FEW: usize = 8;

/// A line of a shared chain. Those of no service are the last ones there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line<'a> {
    pub(crate) owner: Option<&'a ObjectKey>,
    pub(crate) rule: &'a str,
}

/// What changes in a shared chain.
pub(crate) struct Edit<'a> {
    chain: SharedChain,
    /// There is no such chain yet.
    is_new: bool,
    /// It is written anew, whatever it holds.
    is_whole: bool,
    deletes: Vec<Line<'a>>,
    adds: Vec<Line<'a>>,
}

impl<'a> Edit<'a> {
    /// From the lines that were written to others. Those among both are left out.
    pub(crate) fn between(chain: SharedChain, old: &[Line<'a>], new: &[Line<'a>]) -> Self {
        let beyond = |some: &[Line<'a>], others: &[Line<'a>]| -> Vec<_> {
            let others: HashSet<_> = others.iter().collect();
            some.iter().filter(|line| !others.contains(line)).copied().collect()
        };
        let deletes = beyond(old, new);
        Self { chain, is_new: false, is_whole: deletes.len() > FEW, deletes, adds: beyond(new, old) }
    }

    /// From what was found, if the chain was. No line that others may have written is deleted by its words: not every program's
    /// lines can be read as they are printed.
    pub(crate) fn of_found(chain: SharedChain, found: Option<&Vec<String>>, wanted: &[Line<'a>]) -> Self {
        let mut missing: HashMap<&str, Line<'a>> = wanted.iter().map(|line| (line.rule, *line)).collect();
        let (mut is_behind_end, mut is_whole) = (false, false);
        for rule in found.into_iter().flatten() {
            match missing.remove(rule.as_str()) {
                None => is_whole = true,
                Some(Line { owner: None, .. }) => is_behind_end = true,
                Some(_) => is_whole |= is_behind_end,
            }
        }
        let adds = wanted.iter().filter(|line| missing.contains_key(line.rule)).copied().collect();
        Self { chain, is_new: found.is_none(), is_whole, deletes: Vec::new(), adds }
    }

    /// Writes it; `all` tells what the chain holds afterwards.
    pub(crate) fn write(self, restore: &mut Restore, all: impl FnOnce() -> Vec<Line<'a>>) {
        let name = self.chain.name();
        match self.chain.table() {
            Table::Nat if self.is_new || self.is_whole => replace(&mut restore.nat, name, &all()),
            Table::Nat => {
                self.delete(&mut restore.nat);
                self.add(&mut restore.nat);
            }
            _ => {
                if self.is_new {
                    restore.filter.start(name);
                }
                self.add(&mut restore.filter);
                if self.is_whole {
                    replace(&mut restore.filter_after, name, &all());
                } else {
                    self.delete(&mut restore.filter_after);
                }
            }
        }
    }

    fn delete(&self, part: &mut Part) {
        for line in &self.deletes {
            part.owner(line.owner);
            part.delete(self.chain.name(), line.rule);
        }
    }

    fn add(&self, part: &mut Part) {
        let has_end = self.chain == SharedChain::Services;
        let (before_end, rest): (Vec<Line<'_>>, Vec<Line<'_>>) =
            self.adds.iter().partition(|line| has_end && line.owner.is_some());
        for line in before_end.iter().rev() {
            part.owner(line.owner);
            part.insert(self.chain.name(), line.rule);
        }
        append(part, self.chain.name(), &rest);
    }
}

fn replace(part: &mut Part, chain: &str, lines: &[Line<'_>]) {
    part.start(chain);
    append(part, chain, lines);
}

fn append(part: &mut Part, chain: &str, lines: &[Line<'_>]) {
    for line in lines {
        part.owner(line.owner);
        part.append(chain, line.rule);
    }
}
