//! The kernel side: what is there, what is written.

use std::collections::BTreeSet;

use dataplane::{Backend, Facts, Report, Services, SyncError};
use model::{Family, ObjectKey, ResolvedService};
use netlink::nftables::list::{self};
use netlink::nftables::monitor::Switch;
use netlink::nftables::{Element, IPV4, IPV6, Table, Transaction, TransactionError, Verdict, table_flag};
use netlink::socket::{self, Socket};

use crate::applied::Applied;
use crate::entry::{Bytes, Entry, difference, sort};
use crate::found::{Found, Reader};
use crate::layout::{Layout, Set, Settings, VerdictElement, draws, intervals};
use crate::placed::{Memory, Placed, place};

/// The name of the table in both families: the original kube-proxy's, so that each takes over from the other.
pub const TABLE: &str = "kube-proxy";

/// The API's default of `timeoutSeconds`: its chains are made at once, as later they cost a walk over all frontends.
const DEFAULT_AFFINITY_SECONDS: u32 = 10800;

/// A transaction of more objects is made while this program does not listen to the kernel's events.
const LOUD: usize = 1000;

/// Other programs may write at the same time; a reading that was overtaken is repeated.
const READINGS: usize = 8;

/// The nftables data plane of one family.
pub struct Nftables {
    settings: Settings,
    layout: Layout,
    socket: Socket,
    /// Turns off whoever of this program listens to the kernel's events.
    listener: Option<Switch>,
    /// What the kernel holds, when that is certain.
    applied: Option<Applied>,
}

fn protocol_number(family: Family) -> u8 {
    match family {
        Family::V4 => IPV4,
        Family::V6 => IPV6,
    }
}

fn family_word(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

impl Nftables {
    /// A data plane that has not looked at the kernel yet. `listener` is that of the program's own monitor.
    pub fn new(settings: Settings, listener: Option<Switch>) -> std::io::Result<Self> {
        let (layout, socket) = (Layout::new(&settings), Socket::open(socket::NETFILTER)?);
        Ok(Self { settings, layout, socket, listener, applied: None })
    }

    /// The netlink port its changes come from, to tell them from foreign ones.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    fn family_number(&self) -> u8 {
        protocol_number(self.settings.family)
    }

    fn transaction(&mut self, generation: Option<u32>) -> Transaction {
        let family = self.family_number();
        Transaction::new(&mut self.socket, family, TABLE, generation)
    }

    /// Commits. Gives back whether other programs may have written meanwhile without being noticed.
    fn commit(&mut self, transaction: Transaction, objects: usize) -> Result<bool, TransactionError> {
        let Some(listener) = self.listener.as_ref().filter(|_| objects > LOUD) else {
            return transaction.commit(&mut self.socket).map(|()| false);
        };
        // what is committed before the listener is off is counted as well as heard of, which does no harm
        let before = list::generation(&mut self.socket);
        listener.off()?;
        let outcome = transaction.commit(&mut self.socket);
        listener.on()?;
        let after = list::generation(&mut self.socket);
        outcome?;
        let own = |(before, after): (u32, u32)| after == before.wrapping_add(1);
        Ok(!before.ok().zip(after.ok()).is_some_and(own))
    }

    fn find(&mut self) -> Result<Found, socket::Error> {
        let family = self.family_number();
        Reader { socket: &mut self.socket, family, layout: &self.layout }.find()
    }

    // --- rebuilding -----------------------------------------------------------------------------------------------

    fn rebuild_once(&mut self, services: &Services<'_>, facts: &Facts) -> Result<Report, Failure> {
        let found = self.find()?;
        let (mut applied, mut wanted) = self.plan_all(services, facts, &found);
        sort(&mut wanted);
        let (deletes, adds) = difference(&found.entries, &wanted);
        let mut transaction = self.transaction(Some(found.generation));
        let mut written = deletes.len() + adds.len();
        let in_place = self.can_stay(&found);
        let has_chains = if in_place { found.affinity_seconds.clone() } else { BTreeSet::new() };
        if in_place {
            let owner = found.table.as_ref().and_then(|table| table.owner);
            if self.settings.own_table && owner != Some(self.port()) {
                transaction.add_table(&self.table());
            }
        } else {
            if found.table.is_some() {
                transaction.delete_table();
            }
            written += self.lay_out(&mut transaction);
        }
        for seconds in applied.affinity_seconds.difference(&has_chains) {
            written += self.add_affinity(&mut transaction, *seconds);
        }
        for seconds in has_chains.difference(&applied.affinity_seconds) {
            written += self.delete_affinity(&mut transaction, *seconds);
        }
        // what was found goes with the table that holds it
        let deletes = if in_place { deletes } else { Vec::new() };
        let adds = if in_place { adds } else { wanted.iter().collect() };
        write_entries(&mut transaction, &deletes, &adds);
        let unseen = match self.commit(transaction, written) {
            Ok(unseen) => unseen,
            Err(error) if self.settings.own_table && cannot_own(&error) => return Err(Failure::CannotOwn),
            Err(error) => return Err(self.failure(error, &deletes, &adds, applied.services.iter())),
        };
        let report = applied.report(written, unseen);
        applied.facts = fact_entries(facts, self.settings.family);
        self.applied = Some(applied);
        Ok(report)
    }

    /// Everything that is wanted, with endpoints in the slots where they were found.
    fn plan_all(&self, services: &Services<'_>, facts: &Facts, found: &Found) -> (Applied, Vec<Entry>) {
        let slots = |list| found.slots(list);
        let memory = Memory::Kernel(&slots);
        let mut applied = Applied::default();
        let mut wanted: Vec<_> = draws().chain(fact_entries(facts, self.settings.family)).collect();
        services(&mut |service: ResolvedService| {
            let placed = place(&service, &memory, &mut applied.ids);
            for entry in placed.entries_beyond(None, self.settings.family) {
                if applied.is_first_to_want(&entry) {
                    wanted.push(entry);
                }
            }
            applied.insert(service.key, placed);
        });
        applied.affinity_seconds = applied.services.values().flat_map(Placed::affinity_seconds).collect();
        applied.affinity_seconds.insert(DEFAULT_AFFINITY_SECONDS);
        (applied, wanted)
    }

    fn table(&self) -> Table {
        let flags = if self.settings.own_table { table_flag::OWNER | table_flag::PERSIST } else { 0 };
        Table { name: TABLE, flags, comment: "rules for kube-proxy" }
    }

    /// The table that was found can be changed into the one that is wanted. A table whose owner is gone can be taken
    /// over, but none can become one that persists, nor lose that.
    fn can_stay(&self, found: &Found) -> bool {
        let Some(table) = &found.table else { return false };
        let persists = table.flags & table_flag::PERSIST != 0;
        let difference = match &found.difference {
            None if persists == self.settings.own_table => return true,
            None => "its flags",
            Some(difference) => difference,
        };
        tracing::info!(family = %self.settings.family, difference, "Replacing the table kube-proxy that was found, which was laid out otherwise");
        false
    }

    /// Creates the constant part; returns how many objects that are.
    fn lay_out(&self, transaction: &mut Transaction) -> usize {
        transaction.add_table(&self.table());
        for set in &self.layout.sets {
            transaction.add_set(set);
        }
        for chain in &self.layout.chains {
            transaction.add_chain(chain);
        }
        for chain in &self.layout.chains {
            transaction.add_rules(chain);
        }
        write_verdicts(transaction, &self.layout.verdicts);
        let rules: usize = self.layout.chains.iter().map(|chain| chain.rules.len()).sum();
        1 + self.layout.sets.len() + self.layout.chains.len() + rules + self.layout.verdicts.len()
    }

    fn add_affinity(&self, transaction: &mut Transaction, seconds: u32) -> usize {
        let (chains, verdicts) = self.layout.affinity(seconds);
        for chain in &chains {
            transaction.add_chain(chain);
            transaction.add_rules(chain);
        }
        write_verdicts(transaction, &verdicts);
        chains.iter().map(|chain| 1 + chain.rules.len()).sum::<usize>() + verdicts.len()
    }

    fn delete_affinity(&self, transaction: &mut Transaction, seconds: u32) -> usize {
        let (chains, verdicts) = self.layout.affinity(seconds);
        for (set, key, _) in &verdicts {
            transaction
                .delete_elements(set.name(), [Element { key: &key.to_ne_bytes(), ..Element::default() }]);
        }
        for chain in &chains {
            transaction.delete_chain(&chain.name);
        }
        chains.len() + verdicts.len()
    }

    // --- updating -------------------------------------------------------------------------------------------------

    fn update_applied(
        &mut self,
        applied: &mut Applied,
        changes: Vec<(ObjectKey, Option<ResolvedService>)>,
        facts: &Facts,
    ) -> Result<Report, Failure> {
        let family = self.settings.family;
        let (mut deletes, mut adds) = (Vec::new(), Vec::new());
        let new_facts = fact_entries(facts, family);
        let (gone, come) = difference(&applied.facts, &new_facts);
        deletes.extend(gone.into_iter().cloned());
        adds.extend(come.into_iter().cloned());

        let mut new_seconds = BTreeSet::new();
        let mut placed = Vec::with_capacity(changes.len());
        for (key, service) in changes {
            let old = applied.services.get(&key);
            let new = service.map(|service| place(&service, &Memory::Placed(old), &mut applied.ids));
            if old == new.as_ref() {
                continue;
            }
            let gone = old.map(|old| old.entries_beyond(new.as_ref(), family)).unwrap_or_default();
            let come = new.as_ref().map(|new| new.entries_beyond(old, family)).unwrap_or_default();
            let (gone, come) = difference(&gone, &come);
            deletes.extend(gone.into_iter().filter(|entry| applied.is_last_to_want(entry)).cloned());
            adds.extend(come.into_iter().filter(|entry| applied.is_first_to_want(entry)).cloned());
            new_seconds.extend(new.iter().flat_map(Placed::affinity_seconds));
            placed.push((key, new));
        }
        sort(&mut deletes);
        sort(&mut adds);

        let mut transaction = self.transaction(None);
        let mut written = deletes.len() + adds.len();
        for seconds in new_seconds.difference(&applied.affinity_seconds) {
            written += self.add_affinity(&mut transaction, *seconds);
        }
        let (deletes, adds): (Vec<_>, Vec<_>) = (deletes.iter().collect(), adds.iter().collect());
        write_entries(&mut transaction, &deletes, &adds);
        let outcome = self.commit(transaction, written);
        if let Err(error) = outcome {
            let old = placed.iter().filter_map(|(key, _)| applied.services.get_key_value(key));
            let new = placed.iter().filter_map(|(key, placed)| Some((key, placed.as_ref()?)));
            return Err(self.failure(error, &deletes, &adds, old.chain(new)));
        }
        applied.affinity_seconds.append(&mut new_seconds);
        applied.facts = new_facts;
        for (key, placed) in placed {
            applied.replace(key, placed);
        }
        Ok(applied.report(written, outcome.unwrap_or(true)))
    }

    // --- failing --------------------------------------------------------------------------------------------------

    fn failure<'a>(
        &self,
        error: TransactionError,
        deletes: &[&Entry],
        adds: &[&Entry],
        services: impl Iterator<Item = (&'a ObjectKey, &'a Placed)>,
    ) -> Failure {
        let TransactionError::Refused(refusal) = &error else {
            return match error {
                TransactionError::Stale => Failure::Overtaken,
                other => Failure::Final(self.sync_error("writing", other.to_string(), None)),
            };
        };
        let entry = refusal.element.and_then(|(set, deleted, place)| {
            let entries = if deleted { deletes } else { adds };
            entries.iter().filter(|entry| entry.set.name() == set).nth(place)
        });
        let mut services = services;
        let service = entry.and_then(|entry| {
            let owner = services.find(|(_, placed)| {
                placed
                    .entries_beyond(None, self.settings.family)
                    .iter()
                    .any(|own| own.place() == entry.place())
            });
            owner.map(|(key, _)| key.clone())
        });
        let what = match (&service, entry) {
            (Some(service), Some(entry)) => {
                format!("{} for service {service}: element {:?}", refusal.what, entry.key)
            }
            (None, Some(entry)) => format!("{}: element {:?}", refusal.what, entry.key),
            _ => refusal.what.clone(),
        };
        let hint = if entry.is_some() {
            "; another program may have changed the table, it is compared and mended next"
        } else {
            advice(refusal.errno)
        };
        Failure::Final(self.sync_error(&what, format!("{}{hint}", refusal.cause()), service))
    }

    fn sync_error(&self, doing: &str, cause: String, service: Option<ObjectKey>) -> SyncError {
        let what = format!("table {} {TABLE}: {doing}", family_word(self.settings.family));
        SyncError { what, cause, service }
    }
}

/// What the operator can do about an error number.
fn advice(errno: i32) -> &'static str {
    const EPERM: i32 = 1;
    const ENOENT: i32 = 2;
    const EOPNOTSUPP: i32 = 95;
    const ENOBUFS: i32 = 105;
    match errno {
        EPERM => {
            "; either this process lacks CAP_NET_ADMIN, or the table belongs to another running process (an older \
             kube-proxy?), which has to end first"
        }
        ENOENT | EOPNOTSUPP => {
            "; a feature of nf_tables is missing from this kernel (5.13 or newer is needed)"
        }
        ENOBUFS => {
            "; the socket buffer is too small, and only a process with CAP_NET_ADMIN can have a larger one"
        }
        _ => "",
    }
}

/// The flags of the table were refused, not its name or the right to change it.
fn cannot_own(error: &TransactionError) -> bool {
    const EINVAL: i32 = 22;
    const EOPNOTSUPP: i32 = 95;
    matches!(error, TransactionError::Refused(refusal)
        if refusal.what.starts_with("add table") && matches!(refusal.errno, EINVAL | EOPNOTSUPP))
}

/// Why a sync did not come to its end.
enum Failure {
    /// Another program wrote meanwhile: read again.
    Overtaken,
    /// This kernel knows no tables that persist for an owner.
    CannotOwn,
    Final(SyncError),
}

impl From<socket::Error> for Failure {
    fn from(error: socket::Error) -> Self {
        match error {
            socket::Error::Interrupted => Self::Overtaken,
            other => Self::Final(SyncError {
                what: format!("listing table {TABLE}"),
                cause: format!("{other}{}", advice(other.errno().unwrap_or(0))),
                service: None,
            }),
        }
    }
}

/// The elements that the node decides, sorted.
fn fact_entries(facts: &Facts, family: Family) -> Vec<Entry> {
    let of_family: Vec<_> =
        facts.service_cidrs.iter().filter(|net| Family::of_net(net) == family).copied().collect();
    let mut entries: Vec<_> = intervals(&of_family).collect();
    let own = facts.node_port_addresses.iter().filter(|address| Family::of(**address) == family);
    entries.extend(
        own.map(|address| Entry::new(Set::NodePortIps, Bytes::EMPTY.address(*address), Bytes::EMPTY)),
    );
    sort(&mut entries);
    entries
}

/// Deletes first: an element with a new value is deleted and added. Both are sorted by set.
fn write_entries(transaction: &mut Transaction, deletes: &[&Entry], adds: &[&Entry]) {
    for of_set in deletes.chunk_by(|a, b| a.set == b.set) {
        // a key is enough to delete, but an interval needs its end
        let elements = of_set.iter().map(|entry| Element { data: None, ..entry.element("") });
        transaction.delete_elements(of_set[0].set.name(), elements);
    }
    for of_set in adds.chunk_by(|a, b| a.set == b.set) {
        let comments: Vec<_> = of_set.iter().map(|entry| entry.comment_text()).collect();
        let elements = of_set.iter().zip(&comments).map(|(entry, comment)| entry.element(comment));
        transaction.add_elements(of_set[0].set.name(), elements);
    }
}

fn write_verdicts(transaction: &mut Transaction, verdicts: &[VerdictElement]) {
    for (set, key, chain) in verdicts {
        let verdict = chain.clone().map_or(Verdict::Drop, Verdict::Goto);
        let element = Element { key: &key.to_ne_bytes(), verdict: Some(&verdict), ..Element::default() };
        transaction.add_elements(set.name(), [element]);
    }
}

impl Backend for Nftables {
    fn family(&self) -> Family {
        self.settings.family
    }

    fn rebuild(&mut self, services: &Services<'_>, facts: &Facts) -> Result<Report, SyncError> {
        self.applied = None;
        for _ in 0..READINGS {
            match self.rebuild_once(services, facts) {
                Ok(report) => return Ok(report),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Overtaken) => {}
                Err(Failure::CannotOwn) => {
                    tracing::warn!(
                        "This kernel cannot keep other programs from changing the nftables table (6.9 or newer can); a change is noticed and repaired instead"
                    );
                    self.settings.own_table = false;
                }
            }
        }
        let cause = format!("other programs changed the ruleset during each of {READINGS} readings");
        Err(self.sync_error("reading and writing", cause, None))
    }

    fn update(
        &mut self,
        changes: Vec<(ObjectKey, Option<ResolvedService>)>,
        facts: &Facts,
    ) -> Result<Report, SyncError> {
        let Some(mut applied) = self.applied.take() else {
            let cause = "what the kernel holds is not known; it has to be rebuilt first".to_owned();
            return Err(self.sync_error("updating", cause, None));
        };
        match self.update_applied(&mut applied, changes, facts) {
            Ok(report) => {
                self.applied = Some(applied);
                Ok(report)
            }
            Err(Failure::Final(error)) => Err(error),
            Err(Failure::Overtaken | Failure::CannotOwn) => {
                Err(self.sync_error("updating", "the table was changed by another program".to_owned(), None))
            }
        }
    }
}

/// Removes the table of a family, ours or the original kube-proxy's. Returns whether there was one.
pub fn cleanup(family: Family) -> Result<bool, SyncError> {
    let failed = |cause: String| SyncError {
        what: format!("delete table {} {TABLE}", family_word(family)),
        cause,
        service: None,
    };
    let number = protocol_number(family);
    let mut socket = Socket::open(socket::NETFILTER).map_err(|error| failed(error.to_string()))?;
    let table = list::table(&mut socket, number, TABLE)
        .map_err(|error| failed(format!("{error}{}", advice(error.errno().unwrap_or(0)))))?;
    if table.is_none() {
        return Ok(false);
    }
    let mut transaction = Transaction::new(&mut socket, number, TABLE, None);
    transaction.delete_table();
    transaction
        .commit(&mut socket)
        .map_err(|error| failed(format!("{error}{}", advice(error.errno().unwrap_or(0)))))?;
    Ok(true)
}
