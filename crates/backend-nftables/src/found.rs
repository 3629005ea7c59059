//! What the kernel holds, and what about it is not as laid out.

use std::collections::{BTreeSet, HashMap};

use model::Endpoint;
use netlink::nftables::list::{self, ListedChain, ListedRule, ListedSet, ListedTable};
use netlink::nftables::{Chain, SetSpec};
use netlink::socket::{self, Socket};

use crate::apply::TABLE;
use crate::entry::{Bytes, Entry, INTERVAL_END, sort};
use crate::layout::{Layout, Set};
use crate::rules::affinity_seconds;

/// Reads one table.
pub(crate) struct Reader<'a> {
    pub(crate) socket: &'a mut Socket,
    /// `NFPROTO_…`.
    pub(crate) family: u8,
    pub(crate) layout: &'a Layout,
}

/// What was found.
pub(crate) struct Found {
    pub(crate) generation: u32,
    pub(crate) table: Option<ListedTable>,
    /// What about its sets, chains and rules is not as laid out.
    pub(crate) difference: Option<String>,
    pub(crate) affinity_seconds: BTreeSet<u32>,
    /// Sorted; empty when there is a difference.
    pub(crate) entries: Vec<Entry>,
}

impl Reader<'_> {
    pub(crate) fn find(&mut self) -> Result<Found, socket::Error> {
        let generation = list::generation(self.socket)?;
        let table = list::table(self.socket, self.family, TABLE)?;
        let mut found = Found {
            generation,
            difference: None,
            affinity_seconds: BTreeSet::new(),
            entries: Vec::new(),
            table,
        };
        if found.table.is_some() {
            (found.difference, found.affinity_seconds) = self.compare_layout()?;
            if found.difference.is_none() {
                found.entries = self.read_entries()?;
            }
        }
        Ok(found)
    }

    /// The first thing about sets, chains and rules that is not as laid out; and the affinity times that have chains.
    fn compare_layout(&mut self) -> Result<(Option<String>, BTreeSet<u32>), socket::Error> {
        let chains = list::chains(self.socket, self.family, TABLE)?;
        let sets = list::sets(self.socket, self.family, TABLE)?;
        let rules = list::rules(self.socket, self.family, TABLE)?;
        let seconds: BTreeSet<u32> =
            chains.iter().filter_map(|chain| affinity_seconds(&chain.name)).collect();
        let affinity: Vec<_> = seconds.iter().flat_map(|seconds| self.layout.affinity(*seconds).0).collect();
        let wanted: Vec<_> = self.layout.chains.iter().chain(&affinity).collect();
        let difference = different_set(&sets, &self.layout.sets)
            .or_else(|| different_chain(&chains, &wanted))
            .or_else(|| different_rule(&rules, &wanted));
        if difference.is_some() {
            return Ok((difference, seconds));
        }
        let same_verdicts = self.same_verdicts(&seconds)?;
        Ok(((!same_verdicts).then(|| "a verdict map has other elements".to_owned()), seconds))
    }

    fn same_verdicts(&mut self, seconds: &BTreeSet<u32>) -> Result<bool, socket::Error> {
        let affinity = seconds.iter().flat_map(|seconds| self.layout.affinity(*seconds).1);
        let mut wanted: Vec<_> =
            self.layout.verdicts.iter().cloned().chain(affinity).map(|(set, key, _)| (set, key)).collect();
        wanted.sort_unstable();
        let mut found = Vec::new();
        for set in Set::ALL.into_iter().filter(|set| !set.is_written() && *set != Set::Affinity) {
            list::elements(self.socket, self.family, TABLE, set.name(), |element| {
                found.extend(Bytes::of(element.key).mark_at(0).map(|key| (set, key)));
            })?;
        }
        found.sort_unstable();
        Ok(found == wanted)
    }

    fn read_entries(&mut self) -> Result<Vec<Entry>, socket::Error> {
        let mut entries = Vec::new();
        for set in Set::ALL.into_iter().filter(|set| set.is_written()) {
            list::elements(self.socket, self.family, TABLE, set.name(), |element| {
                let data = if element.interval_end {
                    INTERVAL_END
                } else {
                    Bytes::of(element.data.or(element.key_end).unwrap_or_default())
                };
                entries.push(Entry::new(set, Bytes::of(element.key), data));
            })?;
        }
        sort(&mut entries);
        Ok(entries)
    }
}

impl Found {
    /// The endpoints of a list in the order of their slots.
    pub(crate) fn slots(&self, list: u32) -> Vec<Endpoint> {
        let of_list = |set| {
            let key = Bytes::EMPTY.mark(list);
            let start = self.entries.partition_point(|entry| entry.place() < (set, key));
            self.entries[start..]
                .iter()
                .take_while(move |entry| entry.set == set && entry.key.mark_at(0) == Some(list))
                .filter_map(|entry| {
                    let page = entry.key.mark_at(8).map_or(0, |_| entry.key.mark_at(4).unwrap_or(0));
                    Some(((page, entry.key.mark_at(8).or(entry.key.mark_at(4))?), entry.data))
                })
        };
        let by_address = [Set::Endpoints, Set::EndpointsBig]
            .into_iter()
            .flat_map(of_list)
            .filter_map(|(slot, data)| Some((slot, data.to_endpoint()?)));
        let by_id = [Set::AffinitySlots, Set::AffinitySlotsBig].into_iter().flat_map(of_list).filter_map(
            |(slot, id)| {
                let at =
                    self.entries.binary_search_by_key(&(Set::AffinityEndpoints, id), Entry::place).ok()?;
                Some((slot, self.entries[at].data.to_endpoint()?))
            },
        );
        let mut slots: Vec<_> = by_address.chain(by_id).collect();
        slots.sort_unstable();
        slots.into_iter().map(|(_, endpoint)| endpoint).collect()
    }
}

fn different_set(found: &[ListedSet], wanted: &[SetSpec]) -> Option<String> {
    let missing = wanted.iter().find(|wanted| !found.iter().any(|set| set.is(wanted)));
    let foreign = || found.iter().find(|set| !wanted.iter().any(|wanted| wanted.name == set.name));
    missing
        .map(|set| format!("set {}", set.name))
        .or_else(|| foreign().map(|set| format!("set {}", set.name)))
}

fn different_chain(found: &[ListedChain], wanted: &[&Chain]) -> Option<String> {
    let missing = wanted.iter().find(|wanted| !found.iter().any(|chain| chain.is(wanted)));
    let foreign = || found.iter().find(|chain| !wanted.iter().any(|wanted| wanted.name == chain.name));
    missing
        .map(|chain| format!("chain {}", chain.name))
        .or_else(|| foreign().map(|chain| format!("chain {}", chain.name)))
}

fn different_rule(found: &[ListedRule], wanted: &[&Chain]) -> Option<String> {
    let mut of_chain: HashMap<&str, Vec<_>> = HashMap::new();
    for rule in found {
        of_chain.entry(&rule.chain).or_default().push(rule);
    }
    wanted.iter().find_map(|chain| {
        let listed = of_chain.get(&*chain.name).map_or(&[][..], |rules| rules);
        if listed.len() != chain.rules.len() {
            return Some(format!("the number of rules in chain {}", chain.name));
        }
        let at = listed.iter().zip(&chain.rules).position(|(rule, wanted)| !rule.is(wanted))?;
        Some(format!("rule {} of chain {}", at + 1, chain.name))
    })
}
