//! Lines of a watch and items of a list.

use std::sync::Arc;

use model::{Event, Kind};
use serde_json::Value;

use super::{Object, object_name, value};
use crate::Counters;
use crate::complaints::{Complaints, Fault};
use crate::wire::{self, Meta, Status, text};

/// What one line of a watch means.
#[derive(Debug)]
pub(crate) enum Line {
    /// An object has changed; `None` when nothing is to be told of it.
    Object(Option<Event>),
    /// Only the version has moved; `true` when all initial objects have been sent.
    Bookmark(bool),
    /// The watch has failed.
    Error(Status),
    /// Not a line of a watch: the stream is broken.
    Torn,
}

/// Decodes the objects of one kind, and warns of bad ones.
pub(crate) struct Decoder {
    kind: Kind,
    own_node: String,
    counters: Arc<Counters>,
    complaints: Complaints,
}

impl Decoder {
    pub(crate) fn new(kind: Kind, own_node: &str, counters: Arc<Counters>) -> Self {
        Self { kind, own_node: own_node.to_owned(), counters, complaints: Complaints::default() }
    }

    /// Decodes one line of a watch. `version` becomes the object's version.
    pub(crate) fn line(&mut self, bytes: &[u8], version: &mut String) -> Line {
        match self.kind {
            Kind::Service => self.typed_line::<wire::Service<'_>>(bytes, version),
            Kind::Slice => self.typed_line::<wire::Slice<'_>>(bytes, version),
            Kind::Node => self.typed_line::<wire::Node<'_>>(bytes, version),
            Kind::ServiceCidr => self.typed_line::<wire::ServiceCidr<'_>>(bytes, version),
        }
    }

    /// Decodes one item of a list.
    pub(crate) fn item(&mut self, bytes: &[u8]) -> Option<Event> {
        match self.kind {
            Kind::Service => self.typed_item::<wire::Service<'_>>(bytes),
            Kind::Slice => self.typed_item::<wire::Slice<'_>>(bytes),
            Kind::Node => self.typed_item::<wire::Node<'_>>(bytes),
            Kind::ServiceCidr => self.typed_item::<wire::ServiceCidr<'_>>(bytes),
        }
    }

    fn typed_line<'a, T: Object<'a>>(&mut self, bytes: &'a [u8], version: &mut String) -> Line {
        let Ok(line) = serde_json::from_slice::<wire::Line<'a, T>>(bytes) else {
            return self.odd_line::<T>(bytes, version);
        };
        let meta = line.object.meta();
        match &*line.kind {
            "ADDED" | "MODIFIED" => {
                set_version(version, meta);
                Line::Object(self.told(&line.object))
            }
            "DELETED" => {
                set_version(version, meta);
                self.settle(meta, &[]);
                Line::Object(T::removal(meta, &self.own_node))
            }
            "BOOKMARK" => {
                set_version(version, meta);
                let annotations = meta.annotations.as_ref();
                let end = annotations.and_then(|annotations| annotations.initial_events_end.as_ref());
                Line::Bookmark(text(end) == "true")
            }
            _ => self.odd_line::<T>(bytes, version),
        }
    }

    fn typed_item<'a, T: Object<'a>>(&mut self, bytes: &'a [u8]) -> Option<Event> {
        match serde_json::from_slice::<T>(bytes) {
            Ok(object) => self.told(&object),
            Err(error) => match serde_json::from_slice::<Value>(bytes) {
                Ok(object) => self.spoilt(&object),
                Err(_) => self.unreadable(&error),
            },
        }
    }

    fn told<'a, T: Object<'a>>(&mut self, object: &T) -> Option<Event> {
        let mut faults = Vec::new();
        let event = object.event(&self.own_node, &mut faults);
        self.settle(object.meta(), &faults);
        event
    }

    /// A line that is an error, or whose object has a field of the wrong type, or that is no line at all.
    fn odd_line<'a, T: Object<'a>>(&mut self, bytes: &'a [u8], version: &mut String) -> Line {
        let Ok(line) = serde_json::from_slice::<wire::Line<'_, Value>>(bytes) else { return Line::Torn };
        let meta = identity(&line.object);
        match &*line.kind {
            "ERROR" => Line::Error(serde_json::from_value(line.object).unwrap_or_default()),
            "ADDED" | "MODIFIED" => {
                set_version(version, &meta);
                Line::Object(self.spoilt(&line.object))
            }
            "DELETED" => {
                set_version(version, &meta);
                self.settle(&meta, &[]);
                Line::Object(T::removal(&meta, &self.own_node))
            }
            _ => Line::Torn,
        }
    }

    /// An object that is JSON, but not of the shape of its kind.
    fn spoilt(&mut self, object: &Value) -> Option<Event> {
        let mut faults = Vec::new();
        let event = value(self.kind, object, &self.own_node, &mut faults);
        self.settle(&identity(object), &faults);
        event
    }

    fn unreadable(&mut self, error: &serde_json::Error) -> Option<Event> {
        self.settle(&Meta::default(), &[Fault::new("item of a list", error.to_string())]);
        None
    }

    /// Counts and tells what is wrong with an object.
    fn settle(&mut self, meta: &Meta<'_>, faults: &[Fault]) {
        if !faults.is_empty() {
            self.counters.skip(self.kind);
        } else if self.complaints.is_empty() {
            return;
        }
        self.complaints.warn(&object_name(self.kind, meta), faults);
    }
}

/// Name, namespace and version of an object that could not be decoded as its kind.
fn identity(object: &Value) -> Meta<'_> {
    let field = |name: &str| {
        let text = object.get("metadata")?.get(name)?.as_str()?;
        Some(wire::Text(text.into()))
    };
    Meta {
        name: field("name"),
        namespace: field("namespace"),
        resource_version: field("resourceVersion"),
        ..Meta::default()
    }
}

fn set_version(version: &mut String, meta: &Meta<'_>) {
    if let Some(new) = meta.resource_version.as_ref().filter(|new| !new.is_empty()) {
        version.clear();
        version.push_str(new);
    }
}
