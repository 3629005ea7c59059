//! A YAML or JSON document as a tree, and a reader of its mappings that knows where it is.
//!
//! Every problem is noted with the path of its field: a wrong type as a mistake, an unknown or repeated field
//! as a warning. So one pass is strict and lenient at once, and none of it stops at the first problem.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::DuplicateKeyPolicy;

use crate::duration::GoDuration;
use crate::findings::Findings;

/// A value of a document, with the keys of a mapping in order and repeated ones kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// The first document of a text, and whether more follow it.
///
/// # Errors
/// The text is not YAML (line and column are named) or holds no document.
pub(crate) fn first_document(text: &str) -> Result<(Node, bool), String> {
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::PassThrough };
    let mut bytes = text.as_bytes();
    let mut documents = serde_saphyr::read_with_options::<_, Node>(&mut bytes, options);
    match documents.next() {
        None => Err("it is empty".into()),
        Some(Err(error)) => Err(with_line(&error, text)),
        Some(Ok(node)) => Ok((node, documents.next().is_some())),
    }
}

/// The parser's words and the line they are about, as one line.
fn with_line(error: &serde_saphyr::Error, text: &str) -> String {
    let words = error.without_snippet().to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let number = error.location().map_or(0, |location| location.line());
    let line = usize::try_from(number).ok().and_then(|n| text.lines().nth(n.checked_sub(1)?));
    match line {
        Some(line) => format!("{words}: {:?}", line.chars().take(100).collect::<String>()),
        None => words,
    }
}

/// Reads the fields of one mapping and notes what is wrong with them.
pub(crate) struct Section<'a> {
    path: String,
    entries: Vec<(String, Node)>,
    asked: Vec<&'static str>,
    findings: &'a mut Findings,
}

impl<'a> Section<'a> {
    /// Reads `entries`, the mapping at `path` (empty for the top level), with `read`, then notes unknown fields.
    pub(crate) fn read(
        path: &str,
        entries: Vec<(String, Node)>,
        findings: &'a mut Findings,
        read: impl FnOnce(&mut Section<'_>),
    ) {
        let mut unique: Vec<(String, Node)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            if let Some(earlier) = unique.iter_mut().find(|(k, _)| *k == key) {
                let field = join(path, &key);
                findings.warn(format!("configuration field {field} is given twice: the last value is used"));
                earlier.1 = value;
            } else {
                unique.push((key, value));
            }
        }
        let mut section = Section { path: path.to_owned(), entries: unique, asked: Vec::new(), findings };
        read(&mut section);
        section.note_unknown_fields();
    }

    fn note_unknown_fields(self) {
        for (key, _) in &self.entries {
            let hint = match self.asked.iter().find(|name| name.eq_ignore_ascii_case(key)) {
                Some(name) => format!(" (did you mean {name}?)"),
                None => String::new(),
            };
            let field = join(&self.path, key);
            self.findings.warn(format!("unknown configuration field {field} is ignored{hint}"));
        }
    }

    /// Takes a field out; `None` when it is absent or null.
    fn take(&mut self, key: &'static str) -> Option<Node> {
        self.asked.push(key);
        let at = self.entries.iter().position(|(k, _)| k == key)?;
        Some(self.entries.remove(at).1).filter(|node| *node != Node::Null)
    }

    fn wrong(&mut self, key: &str, node: &Node, wanted: &str) {
        self.findings.mistake(join(&self.path, key), node, format!("must be {wanted}"));
    }

    /// A mapping below this one.
    pub(crate) fn section(&mut self, key: &'static str, read: impl FnOnce(&mut Section<'_>)) {
        match self.take(key) {
            None => {}
            Some(Node::Map(entries)) => {
                Section::read(&join(&self.path, key), entries, &mut *self.findings, read);
            }
            Some(other) => self.wrong(key, &other, "a mapping of fields"),
        }
    }

    /// A text. An absent or null field leaves `target` as it is, here and in all methods below.
    pub(crate) fn text(&mut self, key: &'static str, target: &mut String) {
        match self.take(key) {
            None => {}
            Some(Node::Text(text)) => *target = text,
            Some(other) => self.wrong(key, &other, "a text: put it into quotes"),
        }
    }

    /// A text of which the empty one means "not set".
    pub(crate) fn nonempty_text(&mut self, key: &'static str, target: &mut String) {
        let mut text = String::new();
        self.text(key, &mut text);
        if !text.is_empty() {
            *target = text;
        }
    }

    /// `true` or `false`.
    pub(crate) fn bool(&mut self, key: &'static str, target: &mut bool) {
        match self.take(key) {
            None => {}
            Some(Node::Bool(value)) => *target = value,
            Some(other) => self.wrong(key, &other, "true or false, without quotes"),
        }
    }

    /// A whole number of 32 bits.
    pub(crate) fn int(&mut self, key: &'static str, target: &mut i32) {
        match self.take(key) {
            None => {}
            Some(Node::Int(value)) if i32::try_from(value).is_ok() => {
                *target = i32::try_from(value).unwrap_or_default();
            }
            Some(other) => self.wrong(key, &other, "a whole number of 32 bits, without quotes"),
        }
    }

    /// A whole number of 32 bits of which 0 means "not set".
    pub(crate) fn nonzero_int(&mut self, key: &'static str, target: &mut i32) {
        let mut value = 0;
        self.int(key, &mut value);
        if value != 0 {
            *target = value;
        }
    }

    /// A whole number that is not negative.
    pub(crate) fn unsigned(&mut self, key: &'static str, target: &mut u32) {
        match self.take(key) {
            None => {}
            Some(Node::Int(value)) if u32::try_from(value).is_ok() => {
                *target = u32::try_from(value).unwrap_or_default();
            }
            Some(other) => self.wrong(key, &other, "a whole number of 32 bits, 0 or more, without quotes"),
        }
    }

    /// A number of which 0 means "not set".
    pub(crate) fn nonzero_float(&mut self, key: &'static str, target: &mut f32) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // a rate: near is enough
        let value = match self.take(key) {
            None => return,
            Some(Node::Int(value)) => value as f32,
            Some(Node::Float(value)) => value as f32,
            Some(other) => return self.wrong(key, &other, "a number, without quotes"),
        };
        if value != 0.0 {
            *target = value;
        }
    }

    /// A duration in Go's form.
    pub(crate) fn duration(&mut self, key: &'static str, target: &mut GoDuration) {
        match self.take(key) {
            None => {}
            Some(Node::Text(text)) => match text.parse() {
                Ok(value) => *target = value,
                Err(reason) => self.findings.mistake(join(&self.path, key), format!("{text:?}"), reason),
            },
            Some(other) => self.wrong(key, &other, "a duration with a unit, such as 250ms, 30s or 1h0m0s"),
        }
    }

    /// A duration of which 0 means "not set", because `0s` is what tools write for that.
    pub(crate) fn period(&mut self, key: &'static str, target: &mut GoDuration) {
        let mut value = GoDuration::ZERO;
        self.duration(key, &mut value);
        if value != GoDuration::ZERO {
            *target = value;
        }
    }

    /// As [`Self::period`], but a plain number stands for nanoseconds (the logging section only).
    pub(crate) fn period_or_nanos(&mut self, key: &'static str, target: &mut GoDuration) {
        self.asked.push(key);
        match self.entries.iter().position(|(k, node)| k == key && matches!(node, Node::Int(_))) {
            None => self.period(key, target),
            Some(at) => {
                if let (_, Node::Int(nanos @ (i64::MIN..=-1 | 1..))) = self.entries.remove(at) {
                    *target = GoDuration::from_nanos(nanos);
                }
            }
        }
    }

    /// A list of texts.
    pub(crate) fn texts(&mut self, key: &'static str, target: &mut Vec<String>) {
        let Some(items) = self.list(key, "a list of texts") else { return };
        target.clear();
        for (i, item) in items.into_iter().enumerate() {
            match item {
                Node::Text(text) => target.push(text),
                other => self.wrong(&format!("{key}[{i}]"), &other, "a text: put it into quotes"),
            }
        }
    }

    /// A list of mappings, each read by `read`.
    pub(crate) fn sections(&mut self, key: &'static str, mut read: impl FnMut(&mut Section<'_>)) {
        let Some(items) = self.list(key, "a list of mappings") else { return };
        for (i, item) in items.into_iter().enumerate() {
            let key = format!("{key}[{i}]");
            match item {
                Node::Map(entries) => {
                    Section::read(&join(&self.path, &key), entries, &mut *self.findings, &mut read);
                }
                other => self.wrong(&key, &other, "a mapping of fields"),
            }
        }
    }

    fn list(&mut self, key: &'static str, wanted: &str) -> Option<Vec<Node>> {
        match self.take(key)? {
            Node::List(items) => Some(items),
            other => {
                self.wrong(key, &other, wanted);
                None
            }
        }
    }

    /// A mapping of names to `true` or `false`.
    pub(crate) fn bools(&mut self, key: &'static str, mut put: impl FnMut(String, bool)) {
        let entries = match self.take(key) {
            None => return,
            Some(Node::Map(entries)) => entries,
            Some(other) => return self.wrong(key, &other, "a mapping of names to true or false"),
        };
        for (name, node) in entries {
            match node {
                Node::Bool(value) => put(name, value),
                other => self.wrong(&format!("{key}.{name}"), &other, "true or false, without quotes"),
            }
        }
    }

    /// A field that lost its meaning: whatever it holds is put aside with one warning.
    pub(crate) fn without_effect(&mut self, key: &'static str, instead: &str) {
        if self.take(key).is_some() {
            let field = join(&self.path, key);
            self.findings.warn(format!("configuration field {field} has no effect: {instead}"));
        }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Self::Map(entries) => {
                f.write_str("{")?;
                for (i, (key, value)) in entries.iter().enumerate() {
                    write!(f, "{}{key}: {value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        // Only ever reported as too large, so the nearest value will do.
        Ok(Node::Int(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some((key, value)) = entries.next_entry::<Node, Node>()? {
            let key = if let Node::Text(text) = key { text } else { key.to_string() };
            map.push((key, value));
        }
        Ok(Node::Map(map))
    }
}
