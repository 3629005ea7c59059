//! What the kernel holds.

use super::object::{Chain, ChainBase, Data, Rule, SetSpec};
use super::{header, message_type, msg};
use crate::message::{self, Message, Writer, attributes, find, read_be32, read_string};
use crate::socket::{Error, Socket};

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTable {
    /// [`super::table_flag`]s.
    pub flags: u32,
    /// The netlink port of the socket that owns it.
    pub owner: Option<u32>,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedChain {
    /// Its name.
    pub name: String,
    /// Its hook number, priority and kind, when it is a base chain.
    pub base: Option<(u32, i32, String)>,
}

/// A set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSet {
    /// Its name.
    pub name: String,
    /// All its flags.
    pub flags: u32,
    /// Number and length of the key, number and length of the data.
    pub types: [u32; 4],
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRule {
    /// The chain it is in.
    pub chain: String,
    expressions: Vec<u8>,
}

/// An element, as it lies in the received message.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListedElement<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The end of the interval in a set with several fields.
    pub key_end: Option<&'a [u8]>,
    /// In an interval set with one field: the key is the first one behind the interval.
    pub interval_end: bool,
    /// What a data map holds.
    pub data: Option<&'a [u8]>,
}

const ENOENT: i32 = 2;

fn body(message: &Message<'_>) -> Vec<u8> {
    message.payload.get(4..).unwrap_or_default().to_vec()
}

fn dump(
    socket: &mut Socket,
    kind: u16,
    family: u8,
    filter: impl FnOnce(&mut Writer),
    mut each: impl FnMut(&[u8]),
) -> Result<(), Error> {
    socket.dump(message_type(kind), message::DUMP, &header(family), filter, |message| {
        each(message.payload.get(4..).unwrap_or_default());
    })
}

fn text(bytes: &[u8], kind: u16) -> String {
    find(bytes, kind).map(read_string).unwrap_or_default()
}

fn number(bytes: &[u8], kind: u16) -> Option<u32> {
    find(bytes, kind).and_then(read_be32)
}

/// The generation of the namespace's ruleset; every transaction of anybody moves it on.
pub fn generation(socket: &mut Socket) -> Result<u32, Error> {
    let mut generation = 0;
    socket.dump(
        message_type(msg::GET_GENERATION),
        0,
        &header(0),
        |_| (),
        |message| {
            generation = number(&body(&message), 1).unwrap_or(0);
        },
    )?;
    Ok(generation)
}

/// A table by name, when it is there.
pub fn table(socket: &mut Socket, family: u8, name: &str) -> Result<Option<ListedTable>, Error> {
    let mut table = None;
    let asked = socket.dump(
        message_type(msg::GET_TABLE),
        0,
        &header(family),
        |w| w.string(1, name),
        |message| {
            let body = body(&message);
            table = Some(ListedTable { flags: number(&body, 2).unwrap_or(0), owner: number(&body, 7) });
        },
    );
    match asked {
        Err(error) if error.errno() == Some(ENOENT) => Ok(None),
        other => other.map(|()| table),
    }
}

/// The chains of a table.
pub fn chains(socket: &mut Socket, family: u8, table: &str) -> Result<Vec<ListedChain>, Error> {
    let mut chains = Vec::new();
    dump(
        socket,
        msg::GET_CHAIN,
        family,
        |w| w.string(1, table),
        |bytes| {
            if text(bytes, 1) == table {
                let base = find(bytes, 4).and_then(|hook| {
                    Some((number(hook, 1)?, number(hook, 2)?.cast_signed(), text(bytes, 7)))
                });
                chains.push(ListedChain { name: text(bytes, 3), base });
            }
        },
    )?;
    Ok(chains)
}

/// The sets and maps of a table.
pub fn sets(socket: &mut Socket, family: u8, table: &str) -> Result<Vec<ListedSet>, Error> {
    let mut sets = Vec::new();
    dump(
        socket,
        msg::GET_SET,
        family,
        |w| w.string(1, table),
        |bytes| {
            let types = [4, 5, 6, 7].map(|kind| number(bytes, kind).unwrap_or(0));
            sets.push(ListedSet { name: text(bytes, 2), flags: number(bytes, 3).unwrap_or(0), types });
        },
    )?;
    Ok(sets)
}

/// The rules of a table, those of each chain in order.
pub fn rules(socket: &mut Socket, family: u8, table: &str) -> Result<Vec<ListedRule>, Error> {
    let mut rules = Vec::new();
    dump(
        socket,
        msg::GET_RULE,
        family,
        |w| w.string(1, table),
        |bytes| {
            if text(bytes, 1) == table {
                let expressions = find(bytes, 4).unwrap_or_default().to_vec();
                rules.push(ListedRule { chain: text(bytes, 2), expressions });
            }
        },
    )?;
    Ok(rules)
}

/// Hands each element of a set to `each`.
pub fn elements(
    socket: &mut Socket,
    family: u8,
    table: &str,
    set: &str,
    mut each: impl FnMut(ListedElement<'_>),
) -> Result<(), Error> {
    let filter = |w: &mut Writer| {
        w.string(1, table);
        w.string(2, set);
    };
    dump(socket, msg::GET_ELEMENT, family, filter, |bytes| {
        for (_, item) in attributes(find(bytes, 3).unwrap_or_default()) {
            each(element(item));
        }
    })
}

fn element(item: &[u8]) -> ListedElement<'_> {
    let mut element = ListedElement::default();
    for (kind, value) in attributes(item) {
        match kind {
            1 => element.key = find(value, 1).unwrap_or_default(),
            2 => element.data = find(value, 1),
            3 => element.interval_end = read_be32(value).is_some_and(|flags| flags & 1 != 0),
            10 => element.key_end = find(value, 1),
            _ => {}
        }
    }
    element
}

impl ListedChain {
    /// It is the chain that would be created.
    pub fn is(&self, wanted: &Chain) -> bool {
        let same_base = match (&self.base, wanted.base) {
            (None, None) => true,
            (
                Some((hook, priority, kind)),
                Some(ChainBase { kind: wanted_kind, hook: wanted_hook, priority: wanted }),
            ) => *hook == wanted_hook as u32 && *priority == wanted && kind == wanted_kind,
            _ => false,
        };
        self.name == wanted.name && same_base
    }
}

impl ListedSet {
    /// It is the set that would be created.
    pub fn is(&self, wanted: &SetSpec) -> bool {
        let [key, key_length, data, data_length] = wanted.types();
        // the kernel lists the size of its own structure as the length of a verdict
        let same_length = self.types[3] == data_length || wanted.data == Data::Verdict;
        self.name == wanted.name
            && self.flags == wanted.all_flags()
            && self.types[..3] == [key, key_length, data]
            && same_length
    }
}

impl ListedRule {
    /// It does what the wanted rule does. The kernel lists more than was written (defaults), never less.
    pub fn is(&self, wanted: &Rule) -> bool {
        let mut writer = Writer::default();
        wanted.write_expressions(&mut writer);
        let written = find(writer.bytes(), 4).unwrap_or_default();
        attributes(&self.expressions).count() == wanted.expressions.len()
            && message::contains(&self.expressions, written)
    }
}
