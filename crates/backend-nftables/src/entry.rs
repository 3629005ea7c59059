//! Elements of the sets and maps, as bytes, and the difference of two lists of them.

use std::cmp::Ordering;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use model::{Endpoint, Protocol};
use netlink::nftables::Element;

use crate::layout::Set;

/// The longest key: IPv6 address, protocol, port, IPv6 address.
const LONGEST: usize = 40;

/// A short byte string: a key, or what a map holds for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Bytes {
    length: u8,
    bytes: [u8; LONGEST],
}

impl Bytes {
    pub(crate) const EMPTY: Self = Self { length: 0, bytes: [0; LONGEST] };

    /// What the kernel listed; longer strings than ours can be are cut, and so never equal one of ours.
    pub(crate) fn of(slice: &[u8]) -> Self {
        let mut bytes = Self::EMPTY;
        bytes.push(&slice[..slice.len().min(LONGEST)]);
        bytes
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    fn push(&mut self, slice: &[u8]) {
        let start = usize::from(self.length);
        self.bytes[start..start + slice.len()].copy_from_slice(slice);
        self.length += u8::try_from(slice.len()).unwrap_or(0);
    }

    /// A mark: host byte order.
    pub(crate) fn mark(mut self, value: u32) -> Self {
        self.push(&value.to_ne_bytes());
        self
    }

    pub(crate) fn address(mut self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.push(&address.octets()),
            IpAddr::V6(address) => self.push(&address.octets()),
        }
        self
    }

    /// Padded to four bytes, as fields of a concatenation are.
    pub(crate) fn protocol(mut self, protocol: Protocol) -> Self {
        let number = match protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        };
        self.push(&[number, 0, 0, 0]);
        self
    }

    /// Network byte order, padded to four bytes.
    pub(crate) fn port(mut self, port: u16) -> Self {
        let [high, low] = port.to_be_bytes();
        self.push(&[high, low, 0, 0]);
        self
    }

    pub(crate) fn endpoint(self, endpoint: Endpoint) -> Self {
        self.address(endpoint.address).port(endpoint.port)
    }

    /// The mark at this place, when it is there.
    pub(crate) fn mark_at(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.as_slice().get(at..at + 4)?.try_into().ok()?))
    }

    /// The endpoint that [`Bytes::endpoint`] wrote.
    pub(crate) fn to_endpoint(self) -> Option<Endpoint> {
        let (address, port) = self.as_slice().split_at_checked(usize::from(self.length).checked_sub(4)?)?;
        let address = match address.len() {
            4 => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
            16 => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
            _ => return None,
        };
        Some(Endpoint { address, port: u16::from_be_bytes([port[0], port[1]]) })
    }
}

impl Ord for Bytes {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl PartialOrd for Bytes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What people read beside an element: a service port, and which of its lists.
pub(crate) type Comment = (Arc<str>, &'static str);

/// One element of one set. Comments are for people and make no difference.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) set: Set,
    pub(crate) key: Bytes,
    /// What a map holds; in an interval set the end of the interval.
    pub(crate) data: Bytes,
    pub(crate) comment: Option<Comment>,
}

/// In the interval set with one field: the key is the first address behind an interval.
pub(crate) const INTERVAL_END: Bytes = Bytes { length: 1, bytes: [0; LONGEST] };

impl Entry {
    pub(crate) fn new(set: Set, key: Bytes, data: Bytes) -> Self {
        Self { set, key, data, comment: None }
    }

    pub(crate) fn with_comment(
        set: Set,
        key: Bytes,
        data: Bytes,
        name: &Arc<str>,
        which: &'static str,
    ) -> Self {
        Self { comment: Some((Arc::clone(name), which)), ..Self::new(set, key, data) }
    }

    /// Set and key: what at most one element can have.
    pub(crate) fn place(&self) -> (Set, Bytes) {
        (self.set, self.key)
    }

    /// The element to write; `comment` is where its text is put together.
    pub(crate) fn element<'a>(&'a self, comment: &'a str) -> Element<'a> {
        let key = self.key.as_slice();
        let data = self.data.as_slice();
        match self.set {
            Set::ServiceCidrs => {
                Element { key, interval_end: self.data == INTERVAL_END, ..Element::default() }
            }
            Set::FirewallSources => Element { key, key_end: Some(data), ..Element::default() },
            _ => Element { key, data: (!data.is_empty()).then_some(data), comment, ..Element::default() },
        }
    }

    /// The text of its comment.
    pub(crate) fn comment_text(&self) -> String {
        self.comment.as_ref().map(|(name, which)| format!("{name}{which}")).unwrap_or_default()
    }
}

/// Sorts for [`difference`].
pub(crate) fn sort(entries: &mut [Entry]) {
    entries.sort_unstable_by_key(Entry::place);
}

/// What has to be deleted and added to get from `old` to `new`, both sorted. A changed value is deleted and added, and if one
/// interval of service addresses changes all are: the kernel refuses a new boundary within an interval that keeps its
/// start and its end (seen on 6.18).
pub(crate) fn difference<'a>(old: &'a [Entry], new: &'a [Entry]) -> (Vec<&'a Entry>, Vec<&'a Entry>) {
    let (mut deletes, mut adds) = changed(old, new);
    let is_boundary = |entry: &&Entry| entry.set == Set::ServiceCidrs;
    if deletes.iter().chain(&adds).any(is_boundary) {
        for (some, all) in [(&mut deletes, old), (&mut adds, new)] {
            some.retain(|entry| !is_boundary(entry));
            some.extend(all.iter().filter(is_boundary));
        }
    }
    (deletes, adds)
}

fn changed<'a>(old: &'a [Entry], new: &'a [Entry]) -> (Vec<&'a Entry>, Vec<&'a Entry>) {
    let (mut deletes, mut adds) = (Vec::new(), Vec::new());
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return (deletes, adds),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.place().cmp(&new.place()),
        };
        let gone = if order.is_le() { old.next() } else { None };
        let come = if order.is_ge() { new.next() } else { None };
        if let (Some(gone), Some(come)) = (gone, come)
            && gone.data == come.data
        {
            continue;
        }
        deletes.extend(gone);
        adds.extend(come);
    }
}
