//! Tables, chains, rules, sets and elements, as they are written.

use super::expression::{Expression, Hook, Verdict, write_value, write_verdict};
use crate::message::Writer;

/// Table flags (`enum nft_table_flags`).
pub mod table_flag {
    /// Only the socket that created it may change it; gone with that socket. Linux 5.12.
    pub const OWNER: u32 = 2;
    /// Stays when its owner goes, without an owner until another takes it. Linux 6.9.
    pub const PERSIST: u32 = 4;
}

/// Set flags (`enum nft_set_flags`).
pub mod set_flag {
    /// Holds intervals.
    pub const INTERVAL: u32 = 4;
    /// A map.
    pub const MAP: u32 = 8;
    /// Elements can expire.
    pub const TIMEOUT: u32 = 0x10;
    /// Rules change it.
    pub const EVAL: u32 = 0x20;
    /// The key has several fields.
    pub const CONCAT: u32 = 0x80;
}

/// A field of a key or of map data, numbered as `nft` does for printing (`enum datatypes` of its source).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named as nft prints them
pub enum DataType {
    Ipv4Addr = 7,
    Ipv6Addr = 8,
    InetProto = 12,
    InetService = 13,
    Mark = 19,
}

impl DataType {
    /// Bytes of a value; in a concatenation each is padded to a multiple of four.
    pub const fn length(self) -> usize {
        match self {
            Self::Ipv4Addr | Self::Mark => 4,
            Self::Ipv6Addr => 16,
            Self::InetProto => 1,
            Self::InetService => 2,
        }
    }

    /// The number `nft` prints a concatenation by, and its length.
    fn concatenation(fields: &[Self]) -> (u32, u32) {
        let number = fields.iter().fold(0, |number, field| number << 6 | *field as u32);
        let length = match fields {
            [single] => single.length(),
            _ => fields.iter().map(|field| field.length().next_multiple_of(4)).sum(),
        };
        (number, u32::try_from(length).unwrap_or(0))
    }
}

/// A table to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// [`table_flag`]s.
    pub flags: u32,
    /// For people.
    pub comment: &'static str,
}

/// Where a base chain is hooked in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainBase {
    /// `filter` or `nat`.
    pub kind: &'static str,
    /// The hook.
    pub hook: Hook,
    /// Its place among the chains of the hook.
    pub priority: i32,
}

/// A chain to create, with its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// `None` for a chain that is jumped to.
    pub base: Option<ChainBase>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it does.
    pub expressions: Vec<Expression>,
    /// For people; empty for none.
    pub comment: &'static str,
}

/// What a map holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Nothing: a set.
    None,
    /// Values of these fields.
    Fields(&'static [DataType]),
    /// Verdicts.
    Verdict,
}

/// A set or map to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSpec {
    /// Its name.
    pub name: &'static str,
    /// The fields of the key.
    pub key: &'static [DataType],
    /// What it holds for a key.
    pub data: Data,
    /// [`set_flag`]s beside `MAP` and `CONCAT`, which follow from the fields.
    pub flags: u32,
    /// The most elements it takes; 0 for no limit.
    pub size: u32,
    /// For people.
    pub comment: &'static str,
}

/// An element to add or to delete.
#[derive(Clone, Debug, Default)]
pub struct Element<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The end of the interval in a set with several fields.
    pub key_end: Option<&'a [u8]>,
    /// In an interval set with one field: the key is the first one behind the interval.
    pub interval_end: bool,
    /// What a data map holds.
    pub data: Option<&'a [u8]>,
    /// What a verdict map holds.
    pub verdict: Option<&'a Verdict>,
    /// For people; empty for none.
    pub comment: &'a str,
}

/// The longest comment that nft itself can read back, without its NUL.
const LONGEST_COMMENT: usize = 127;

/// The types of user data (`NFTNL_UDATA_…` of libnftnl).
mod user_data {
    pub(super) const COMMENT: u8 = 0; // of tables, rules, elements
    pub(super) const SET_KEY_BYTE_ORDER: u8 = 0;
    pub(super) const SET_DATA_BYTE_ORDER: u8 = 1;
    pub(super) const SET_COMMENT: u8 = 7;
}

/// `text` cut at a character boundary so that nft can read it.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(LONGEST_COMMENT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn push_user_data(bytes: &mut Vec<u8>, kind: u8, value: &[u8]) {
    bytes.push(kind);
    bytes.push(u8::try_from(value.len()).unwrap_or(u8::MAX));
    bytes.extend_from_slice(value);
}

fn push_comment(bytes: &mut Vec<u8>, kind: u8, text: &str) {
    let mut value = cut(text).as_bytes().to_vec();
    value.push(0);
    push_user_data(bytes, kind, &value);
}

fn write_comment(w: &mut Writer, attribute: u16, comment: &str) {
    if !comment.is_empty() {
        let mut bytes = Vec::with_capacity(comment.len() + 3);
        push_comment(&mut bytes, user_data::COMMENT, comment);
        w.attribute(attribute, &bytes);
    }
}

impl Table {
    pub(super) fn write(&self, w: &mut Writer) {
        w.string(1, self.name);
        w.be32(2, self.flags);
        write_comment(w, 6, self.comment);
    }
}

impl Chain {
    pub(super) fn write(&self, table: &str, w: &mut Writer) {
        w.string(1, table);
        w.string(3, &self.name);
        if let Some(base) = self.base {
            w.nested(4, |w| {
                w.be32(1, base.hook as u32);
                w.be32(2, base.priority.cast_unsigned());
            });
            w.string(7, base.kind);
            w.be32(5, 1); // policy: NF_ACCEPT
        }
    }
}

impl Rule {
    pub(super) fn write(&self, table: &str, chain: &str, w: &mut Writer) {
        w.string(1, table);
        w.string(2, chain);
        self.write_expressions(w);
        write_comment(w, 7, self.comment);
    }

    /// `NFTA_RULE_EXPRESSIONS`.
    pub(super) fn write_expressions(&self, w: &mut Writer) {
        w.nested(4, |w| {
            for expression in &self.expressions {
                expression.write(w);
            }
        });
    }
}

impl SetSpec {
    /// All its flags.
    pub(super) fn all_flags(&self) -> u32 {
        let map = if self.data == Data::None { 0 } else { set_flag::MAP };
        let concat = if self.key.len() > 1 { set_flag::CONCAT } else { 0 };
        self.flags | map | concat
    }

    /// The numbers and lengths of key and data, as the kernel keeps them for `nft`.
    pub(super) fn types(&self) -> [u32; 4] {
        let (key, key_length) = DataType::concatenation(self.key);
        let (data, data_length) = match self.data {
            Data::None => (0, 0),
            Data::Fields(fields) => DataType::concatenation(fields),
            Data::Verdict => (0xffff_ff00, 0), // NFT_DATA_VERDICT
        };
        [key, key_length, data, data_length]
    }

    pub(super) fn write(&self, table: &str, id: u32, w: &mut Writer) {
        let [key, key_length, data, data_length] = self.types();
        w.string(1, table);
        w.string(2, self.name);
        w.be32(3, self.all_flags());
        w.be32(4, key);
        w.be32(5, key_length);
        if self.data != Data::None {
            w.be32(6, data);
            w.be32(7, data_length);
        }
        if self.size > 0 || self.key.len() > 1 {
            w.nested(9, |w| self.write_description(w));
        }
        w.be32(10, id);
        w.attribute(13, &self.user_data());
    }

    fn write_description(&self, w: &mut Writer) {
        if self.size > 0 {
            w.be32(1, self.size);
        }
        if self.key.len() > 1 {
            w.nested(2, |w| {
                for field in self.key {
                    w.nested(1, |w| w.be32(1, u32::try_from(field.length()).unwrap_or(0)));
                }
            });
        }
    }

    /// Tells nft which numbers are in host byte order: those of a plain mark. Without it, it prints them swapped.
    fn user_data(&self) -> Vec<u8> {
        let order = |fields: &[DataType]| u32::from(fields == [DataType::Mark]).to_ne_bytes();
        let mut bytes = Vec::new();
        push_user_data(&mut bytes, user_data::SET_KEY_BYTE_ORDER, &order(self.key));
        match self.data {
            Data::None => {}
            Data::Fields(fields) => {
                push_user_data(&mut bytes, user_data::SET_DATA_BYTE_ORDER, &order(fields));
            }
            Data::Verdict => push_user_data(&mut bytes, user_data::SET_DATA_BYTE_ORDER, &order(&[])),
        }
        push_comment(&mut bytes, user_data::SET_COMMENT, self.comment);
        bytes
    }
}

impl Element<'_> {
    /// An upper bound of the bytes it takes, to keep a list within what an attribute can hold.
    pub(super) fn size_bound(&self) -> usize {
        80 + self.key.len()
            + self.key_end.map_or(0, <[u8]>::len)
            + self.data.map_or(0, <[u8]>::len)
            + cut(self.comment).len()
            + if self.verdict.is_some() { 160 } else { 0 }
    }

    pub(super) fn write(&self, w: &mut Writer) {
        w.nested(super::expression::LIST_ITEM, |w| {
            write_value(w, 1, self.key);
            if let Some(data) = self.data {
                write_value(w, 2, data);
            }
            if let Some(verdict) = self.verdict {
                write_verdict(w, 2, verdict);
            }
            if self.interval_end {
                w.be32(3, 1); // NFT_SET_ELEM_INTERVAL_END
            }
            write_comment(w, 6, self.comment);
            if let Some(end) = self.key_end {
                write_value(w, 10, end);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_cut_at_a_character_boundary() {
        let long = "ä".repeat(100);
        assert_eq!(cut(&long).len(), 126);
        assert_eq!(cut("short"), "short");
    }

    #[test]
    fn concatenations_are_numbered_as_nft_does() {
        // ipv4_addr . inet_proto . inet_service, as `nft --debug=netlink` shows it
        assert_eq!(
            DataType::concatenation(&[DataType::Ipv4Addr, DataType::InetProto, DataType::InetService]),
            (0x7000 + 0x300 + 13, 12)
        );
    }
}
