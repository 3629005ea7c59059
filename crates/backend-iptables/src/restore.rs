//! The text for one run of `iptables-restore --noflush --counters`.
//!
//! Each table is committed as a whole, and one after the other. Table filter comes twice, so that what refuses connections is
//! there before table nat stops to translate their addresses, and leaves after it has begun to: nothing goes out untranslated
//! meanwhile.

use std::fmt;

use model::ObjectKey;

use crate::service::Rule;
use crate::tables::Table;

/// What to write, in the order in which it is committed.
#[derive(Debug)]
pub struct Restore {
    pub(crate) mangle: Part,
    pub(crate) filter: Part,
    pub(crate) nat: Part,
    /// What table filter loses.
    pub(crate) filter_after: Part,
}

impl Default for Restore {
    fn default() -> Self {
        Self {
            mangle: Part::of(Table::Mangle),
            filter: Part::of(Table::Filter),
            nat: Part::of(Table::Nat),
            filter_after: Part::of(Table::Filter),
        }
    }
}

impl Restore {
    fn parts(&self) -> impl Iterator<Item = &Part> {
        [&self.mangle, &self.filter, &self.nat, &self.filter_after]
            .into_iter()
            .filter(|part| !part.is_empty())
    }

    /// What is written to a table before table nat changes, or with it.
    pub(crate) fn part(&mut self, table: Table) -> &mut Part {
        match table {
            Table::Mangle => &mut self.mangle,
            Table::Filter => &mut self.filter,
            Table::Nat => &mut self.nat,
        }
    }

    /// There is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.parts().next().is_none()
    }

    /// How many chains and rules are written.
    pub fn changes(&self) -> usize {
        self.parts().map(|part| part.lines() - 2).sum()
    }

    /// The line of that number, the first being 1, and the service that it is for, when it is for one.
    pub fn line(&self, number: usize) -> Option<(&str, Option<&ObjectKey>)> {
        let mut index = number.checked_sub(1)?;
        for part in self.parts() {
            if index < part.lines() {
                return part.line(index);
            }
            index -= part.lines();
        }
        None
    }
}

impl fmt::Display for Restore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts().try_for_each(|part| part.fmt(f))
    }
}

/// What to write to a table at once.
#[derive(Debug)]
pub(crate) struct Part {
    table: Table,
    chains: Lines,
    rules: Lines,
    deletions: Lines,
    /// Where in the rules those of a service begin, or (`None`) others.
    owners: Vec<(usize, Option<ObjectKey>)>,
}

#[derive(Debug, Default)]
struct Lines {
    text: String,
    count: usize,
}

impl Lines {
    fn push(&mut self, words: &[&str]) {
        for word in words {
            self.text.push_str(word);
        }
        self.text.push('\n');
        self.count += 1;
    }
}

impl Part {
    fn of(table: Table) -> Self {
        let (chains, rules, deletions) = (Lines::default(), Lines::default(), Lines::default());
        Self { table, chains, rules, deletions, owners: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.lines() == 2
    }

    /// The first line names the table, the last one commits.
    fn lines(&self) -> usize {
        self.chains.count + self.rules.count + self.deletions.count + 2
    }

    fn line(&self, index: usize) -> Option<(&str, Option<&ObjectKey>)> {
        let index = index.checked_sub(1)?;
        if index < self.chains.count {
            return Some((self.chains.text.lines().nth(index)?, None));
        }
        let index = index - self.chains.count;
        if index < self.rules.count {
            let begun = self.owners.partition_point(|(first, _)| *first <= index);
            let owner = begun.checked_sub(1).and_then(|last| self.owners[last].1.as_ref());
            return Some((self.rules.text.lines().nth(index)?, owner));
        }
        Some((self.deletions.text.lines().nth(index - self.rules.count)?, None))
    }

    /// The rules that follow are for this service.
    pub(crate) fn owner(&mut self, owner: Option<&ObjectKey>) {
        if self.owners.last().and_then(|(_, last)| last.as_ref()) != owner {
            self.owners.push((self.rules.count, owner.cloned()));
        }
    }

    /// Makes the chain, or empties it.
    pub(crate) fn start(&mut self, chain: &str) {
        self.chains.push(&[":", chain, " - [0:0]"]);
    }

    /// Adds a rule at the end of a chain.
    pub(crate) fn append(&mut self, chain: &str, rule: &str) {
        self.rules.push(&["-A ", chain, " ", rule]);
    }

    /// Adds a rule at the head of a chain.
    pub(crate) fn insert(&mut self, chain: &str, rule: &str) {
        self.rules.push(&["-I ", chain, " ", rule]);
    }

    /// Deletes the first such rule of a chain, which must be there.
    pub(crate) fn delete(&mut self, chain: &str, rule: &str) {
        self.rules.push(&["-D ", chain, " ", rule]);
    }

    /// Makes the chain hold these rules and no others.
    pub(crate) fn replace(&mut self, chain: &str, rules: &[Rule]) {
        self.start(chain);
        for rule in rules {
            self.append(chain, rule);
        }
    }

    /// Deletes a chain, with its rules, once no rule leads there.
    pub(crate) fn delete_chain(&mut self, chain: &str) {
        self.start(chain);
        self.deletions.push(&["-X ", chain]);
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "*{}", self.table.name())?;
        [&self.chains, &self.rules, &self.deletions].iter().try_for_each(|lines| f.write_str(&lines.text))?;
        f.write_str("COMMIT\n")
    }
}
