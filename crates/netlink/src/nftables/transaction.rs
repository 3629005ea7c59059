//! One transaction: written as one datagram, taken by the kernel whole or not at all.

use std::fmt;
use std::io;

use super::object::{Chain, Element, Rule, SetSpec, Table};
use super::{header, message_type, msg};
use crate::message::{self, Writer};
use crate::socket::{Socket, error_of};

const BATCH_BEGIN: u16 = 0x10; // NFNL_MSG_BATCH_BEGIN
const BATCH_END: u16 = 0x11;
const BATCH_GENERATION: u16 = 1; // NFNL_BATCH_GENID
const LIST_ELEMENTS: u16 = 3; // NFTA_SET_ELEM_LIST_ELEMENTS

/// An attribute holds 65,535 bytes; the rest is for the attributes around.
const LONGEST_LIST: usize = 60_000;

/// `ERESTART`: the generation the transaction was made for is no longer current. Not in libc, the kernel does not
/// show it otherwise.
const RESTART: i32 = 85;

/// A transaction on one table.
#[derive(Debug)]
pub struct Transaction {
    family: u8,
    table: &'static str,
    writer: Writer,
    base: u32,
    labels: Vec<Label>,
}

/// What a message does, to tell which one was refused.
#[derive(Clone, Debug)]
enum Label {
    Table(&'static str),
    Chain(&'static str, String),
    Rule(String),
    Set(&'static str),
    Elements { deletes: bool, set: &'static str, first: usize, at: usize },
}

/// A message that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What the message was to do.
    pub what: String,
    /// The element it was about: the set, whether it was to be deleted, and its place among the elements of that call.
    pub element: Option<(&'static str, bool, usize)>,
    /// The error number.
    pub errno: i32,
    /// The kernel's words, often empty.
    pub text: String,
}

impl Refusal {
    /// The error number and the kernel's words, for people.
    pub fn cause(&self) -> String {
        let error = io::Error::from_raw_os_error(self.errno);
        if self.text.is_empty() { error.to_string() } else { format!("{error} ({})", self.text) }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.cause())
    }
}

/// Why a transaction failed. Nothing of it was applied.
#[derive(Debug, thiserror::Error)]
pub enum TransactionError {
    /// Somebody changed the ruleset since the generation this was made for.
    #[error("the ruleset was changed by another program meanwhile")]
    Stale,
    /// The kernel refused one of its messages; the first one is told.
    #[error("{0}")]
    Refused(Refusal),
    /// The socket failed.
    #[error("sending the transaction: {0}")]
    Io(#[from] io::Error),
}

impl TransactionError {
    /// The error number, where there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Stale => Some(RESTART),
            Self::Refused(refusal) => Some(refusal.errno),
            Self::Io(error) => error.raw_os_error(),
        }
    }
}

impl Transaction {
    /// An empty transaction on `table`, to be sent through `socket`. With a `generation` the kernel refuses it if
    /// anything was changed since.
    pub fn new(socket: &mut Socket, family: u8, table: &'static str, generation: Option<u32>) -> Self {
        let base = socket.next_sequence();
        let mut transaction = Self { family, table, writer: Writer::default(), base, labels: Vec::new() };
        transaction.bound(BATCH_BEGIN, |w| {
            if let Some(generation) = generation {
                w.be32(BATCH_GENERATION, generation);
            }
        });
        transaction
    }

    /// Nothing would change.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    fn bound(&mut self, kind: u16, body: impl FnOnce(&mut Writer)) {
        #[allow(clippy::cast_possible_truncation)] // the netfilter subsystem is in res_id, big-endian
        let header = [0, 0, 0, super::SUBSYSTEM as u8];
        let open = self.writer.message(kind, message::REQUEST, self.next_sequence(), &header);
        body(&mut self.writer);
        self.writer.end_message(open);
    }

    /// The begin message has [`Transaction::base`], the first change one more, and so on.
    fn next_sequence(&self) -> u32 {
        if self.writer.bytes().is_empty() {
            self.base
        } else {
            self.base + 1 + u32::try_from(self.labels.len()).unwrap_or(u32::MAX)
        }
    }

    fn message(&mut self, kind: u16, flags: u16, label: Label, body: impl FnOnce(&mut Writer)) {
        let open = self.writer.message(
            message_type(kind),
            message::REQUEST | flags,
            self.next_sequence(),
            &header(self.family),
        );
        body(&mut self.writer);
        self.writer.end_message(open);
        self.labels.push(label);
    }

    /// Creates the table, or takes it over with these flags when it is there.
    pub fn add_table(&mut self, table: &Table) {
        self.message(msg::NEW_TABLE, message::CREATE, Label::Table("add"), |w| table.write(w));
    }

    /// Deletes the table with everything in it.
    pub fn delete_table(&mut self) {
        let table = self.table;
        self.message(msg::DEL_TABLE, 0, Label::Table("delete"), |w| w.string(1, table));
    }

    /// Creates a set or map.
    pub fn add_set(&mut self, set: &SetSpec) {
        let (table, id) = (self.table, self.next_sequence());
        self.message(msg::NEW_SET, message::CREATE, Label::Set(set.name), |w| set.write(table, id, w));
    }

    /// Creates a chain, without its rules: those may name chains that follow.
    pub fn add_chain(&mut self, chain: &Chain) {
        let table = self.table;
        self.message(msg::NEW_CHAIN, message::CREATE, Label::Chain("add", chain.name.clone()), |w| {
            chain.write(table, w);
        });
    }

    /// Appends a chain's rules.
    pub fn add_rules(&mut self, chain: &Chain) {
        for rule in &chain.rules {
            self.add_rule(&chain.name, rule);
        }
    }

    fn add_rule(&mut self, chain: &str, rule: &Rule) {
        let table = self.table;
        let flags = message::CREATE | message::APPEND;
        self.message(msg::NEW_RULE, flags, Label::Rule(chain.to_owned()), |w| rule.write(table, chain, w));
    }

    /// Deletes a chain and its rules. No rule and no verdict map may lead to it.
    pub fn delete_chain(&mut self, chain: &str) {
        let table = self.table;
        for (kind, attribute) in [(msg::DEL_RULE, 2), (msg::DEL_CHAIN, 3)] {
            self.message(kind, 0, Label::Chain("delete", chain.to_owned()), |w| {
                w.string(1, table);
                w.string(attribute, chain);
            });
        }
    }

    /// Adds elements to a set.
    pub fn add_elements<'a>(&mut self, set: &'static str, elements: impl IntoIterator<Item = Element<'a>>) {
        self.elements(false, set, elements);
    }

    /// Deletes elements from a set.
    pub fn delete_elements<'a>(
        &mut self,
        set: &'static str,
        elements: impl IntoIterator<Item = Element<'a>>,
    ) {
        self.elements(true, set, elements);
    }

    fn elements<'a>(
        &mut self,
        deletes: bool,
        set: &'static str,
        elements: impl IntoIterator<Item = Element<'a>>,
    ) {
        let (kind, flags) = if deletes { (msg::DEL_ELEMENT, 0) } else { (msg::NEW_ELEMENT, message::CREATE) };
        let mut elements = elements.into_iter().peekable();
        let mut written = 0;
        while elements.peek().is_some() {
            let (table, first, at) = (self.table, written, self.writer.bytes().len());
            let label = Label::Elements { deletes, set, first, at };
            self.message(kind, flags, label, |w| {
                w.string(1, table);
                w.string(2, set);
                w.nested(LIST_ELEMENTS, |w| {
                    let mut length = 0;
                    while let Some(element) =
                        elements.next_if(|next| length + next.size_bound() <= LONGEST_LIST)
                    {
                        length += element.size_bound();
                        element.write(w);
                        written += 1;
                    }
                });
            });
        }
    }

    /// Sends it and waits for the kernel's answer.
    pub fn commit(mut self, socket: &mut Socket) -> Result<(), TransactionError> {
        if self.is_empty() {
            return Ok(());
        }
        self.ask_for_one_answer();
        self.bound(BATCH_END, |_| ());
        socket.skip_sequences(self.last_sequence() + 1);
        socket.send(self.writer.bytes())?;
        self.answer(socket)
    }

    /// One acknowledgement for the last change is enough, however many there are; older kernels never answer for the
    /// messages around a batch. Errors come for every refused message.
    fn ask_for_one_answer(&mut self) {
        let last = self.last_sequence();
        self.writer.add_flags(last, message::ACK);
    }

    fn last_sequence(&self) -> u32 {
        self.base + u32::try_from(self.labels.len()).unwrap_or(u32::MAX)
    }

    fn answer(&self, socket: &mut Socket) -> Result<(), TransactionError> {
        let last = self.last_sequence();
        loop {
            for message in
                message::messages(socket.receive()?).filter(|message| message.kind == message::ERROR)
            {
                match error_of(&message) {
                    None if message.sequence == last => return Ok(()),
                    Some(error) if error.errno == RESTART => return Err(TransactionError::Stale),
                    Some(error) => return Err(TransactionError::Refused(self.refusal(&error))),
                    None => {}
                }
            }
        }
    }

    fn refusal(&self, error: &crate::socket::KernelError) -> Refusal {
        let index = error.sequence.wrapping_sub(self.base + 1) as usize;
        let mut element = None;
        let what = match self.labels.get(index) {
            None => format!("transaction on table {}", self.table),
            Some(Label::Table(verb)) => format!("{verb} table {}", self.table),
            Some(Label::Chain(verb, chain)) => format!("{verb} chain {chain}"),
            Some(Label::Rule(chain)) => format!("add a rule to chain {chain}"),
            Some(Label::Set(set)) => format!("add set {set}"),
            Some(Label::Elements { deletes, set, first, at }) => {
                element = self.element_at(*at, error.offset).map(|place| (*set, *deletes, first + place));
                format!("{} set {set}", if *deletes { "delete elements from" } else { "add elements to" })
            }
        };
        Refusal { what, element, errno: error.errno, text: error.text.clone() }
    }

    /// Which element of the message at `start` an error's offset lies in.
    fn element_at(&self, start: usize, offset: Option<u32>) -> Option<usize> {
        let message = message::messages(self.writer.bytes().get(start..)?).next()?;
        let list = message::find(message.payload.get(4..)?, LIST_ELEMENTS)?;
        let base = self.writer.bytes().as_ptr().addr() + start;
        let offset = offset? as usize;
        message::attributes(list).position(|(_, item)| item.as_ptr().addr() + item.len() - base > offset)
    }
}
