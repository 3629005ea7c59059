//! Netlink messages (`include/uapi/linux/netlink.h`): one flat buffer written front to back, and readers that
//! never look outside of what they were given.

/// Length of `struct nlmsghdr`.
pub const HEADER: usize = 16;

/// `NLMSG_ERROR`: an acknowledgement, or an error when its code is not 0.
pub const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
pub const DONE: u16 = 3;

/// `NLM_F_REQUEST`.
pub const REQUEST: u16 = 1;
/// `NLM_F_MULTI`.
pub const MULTI: u16 = 2;
/// `NLM_F_ACK`.
pub const ACK: u16 = 4;
/// `NLM_F_DUMP_INTR`: objects changed while they were listed.
pub const DUMP_INTERRUPTED: u16 = 0x10;
/// `NLM_F_ACK_TLVS`: an error carries attributes.
pub const ACK_TLVS: u16 = 0x200;
/// `NLM_F_DUMP` (`ROOT | MATCH`).
pub const DUMP: u16 = 0x300;
/// `NLM_F_REPLACE`.
pub const REPLACE: u16 = 0x100;
/// `NLM_F_EXCL`.
pub const EXCL: u16 = 0x200;
/// `NLM_F_CREATE`.
pub const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`.
pub const APPEND: u16 = 0x800;

const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3fff;

const fn align(length: usize) -> usize {
    (length + 3) & !3
}

/// Messages, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

/// An open message or nested attribute; give it back to [`Writer::end_message`] or [`Writer::end`].
#[derive(Debug)]
#[must_use = "the length is written when it is ended"]
pub struct Open(usize);

impl Writer {
    /// What has been written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets what has been written, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Starts a message; `header` is the fixed part of the protocol that follows the netlink header.
    pub fn message(&mut self, kind: u16, flags: u16, sequence: u32, header: &[u8]) -> Open {
        let open = Open(self.bytes.len());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(header);
        self.pad();
        open
    }

    /// Ends a message.
    #[allow(clippy::needless_pass_by_value)] // ended once
    pub fn end_message(&mut self, open: Open) {
        let length = u32::try_from(self.bytes.len() - open.0).unwrap_or(u32::MAX);
        self.bytes[open.0..open.0 + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Adds flags to the message with this sequence number.
    pub fn add_flags(&mut self, sequence: u32, flags: u16) {
        let mut at = 0;
        while let Some(length) = u32_at(&self.bytes, at) {
            if u32_at(&self.bytes, at + 8) == Some(sequence)
                && let Some(old) = u16_at(&self.bytes, at + 6)
            {
                self.bytes[at + 6..at + 8].copy_from_slice(&(old | flags).to_ne_bytes());
            }
            at += align(length as usize);
        }
    }

    /// Starts a nested attribute.
    pub fn nest(&mut self, kind: u16) -> Open {
        let open = Open(self.bytes.len());
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        open
    }

    /// Ends a nested attribute.
    ///
    /// # Panics
    /// When the content is longer than an attribute can be (65,535 bytes): callers split before that.
    #[allow(clippy::needless_pass_by_value)] // ended once
    pub fn end(&mut self, open: Open) {
        let length = self.bytes.len() - open.0;
        let Ok(length) = u16::try_from(length) else { panic!("netlink attribute of {length} bytes") };
        self.bytes[open.0..open.0 + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// A nested attribute written by `content`.
    pub fn nested(&mut self, kind: u16, content: impl FnOnce(&mut Self)) {
        let open = self.nest(kind);
        content(self);
        self.end(open);
    }

    /// An attribute.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        let open = self.nest(kind);
        // a plain attribute is a nested one without the flag
        self.bytes[open.0 + 2..open.0 + 4].copy_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.end(open);
        self.pad();
    }

    /// A NUL-terminated string.
    pub fn string(&mut self, kind: u16, value: &str) {
        let mut bytes = Vec::with_capacity(value.len() + 1);
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
        self.attribute(kind, &bytes);
    }

    /// A number in network byte order, as netfilter has them.
    pub fn be32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// A number in network byte order, as netfilter has them.
    pub fn be64(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// A number in host byte order, as rtnetlink has them.
    pub fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.bytes.resize(align(self.bytes.len()), 0);
    }
}

/// One received message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// `nlmsg_seq`.
    pub sequence: u32,
    /// `nlmsg_pid`: in an event, the port of the socket that caused it.
    pub port: u32,
    /// What follows the header.
    pub payload: &'a [u8],
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The messages of a received datagram; ends at the first one that is not whole.
pub fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = u32_at(rest, 0)? as usize;
        let payload = rest.get(HEADER..length)?;
        let message = Message {
            kind: u16_at(rest, 4)?,
            flags: u16_at(rest, 6)?,
            sequence: u32_at(rest, 8)?,
            port: u32_at(rest, 12)?,
            payload,
        };
        rest = rest.get(align(length)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes in `bytes`, without the flag bits of their types; ends at the first one that is not whole.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    raw_attributes(bytes).map(|(kind, value)| (kind & TYPE_MASK, value))
}

fn raw_attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)?;
        let value = rest.get(4..length)?;
        rest = rest.get(align(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Every attribute of `wanted` is in `found` with the same value, nested ones likewise. Attributes that repeat (lists)
/// are compared in order.
pub fn contains(found: &[u8], wanted: &[u8]) -> bool {
    let wanted: Vec<_> = raw_attributes(wanted).collect();
    wanted.iter().enumerate().all(|(at, (kind, value))| {
        let repeats = wanted[..at].iter().filter(|(earlier, _)| earlier == kind).count();
        let twin = attributes(found).filter(|(other, _)| *other == kind & TYPE_MASK).nth(repeats);
        match twin {
            Some((_, found)) if kind & NESTED != 0 => contains(found, value),
            Some((_, found)) => found == *value,
            None => false,
        }
    })
}

/// The first attribute of type `kind`.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// A number in network byte order.
pub fn read_be32(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.get(..4)?.try_into().ok()?))
}

/// A number in host byte order.
pub fn read_u32(value: &[u8]) -> Option<u32> {
    u32_at(value, 0)
}

/// A NUL-terminated string; bytes that are not UTF-8 are replaced.
pub fn read_string(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = Writer::default();
        for sequence in 1..=2 {
            let open = writer.message(7, REQUEST, sequence, &[9; 4]);
            writer.string(1, "abc");
            writer.nested(2, |w| {
                w.be32(1, 5);
                w.u32(2, 6);
            });
            writer.end_message(open);
        }
        let got: Vec<_> = messages(writer.bytes()).collect();
        assert_eq!(
            got.iter().map(|m| (m.kind, m.flags, m.sequence)).collect::<Vec<_>>(),
            [(7, 1, 1), (7, 1, 2)]
        );
        let body = &got[1].payload[4..];
        assert_eq!(read_string(find(body, 1).unwrap()), "abc");
        let nested = find(body, 2).unwrap();
        assert_eq!(read_be32(find(nested, 1).unwrap()), Some(5));
        assert_eq!(read_u32(find(nested, 2).unwrap()), Some(6));
    }

    #[test]
    fn broken_input_ends_the_iteration() {
        let mut writer = Writer::default();
        let open = writer.message(7, REQUEST, 1, &[]);
        writer.string(1, "abcdef");
        writer.end_message(open);
        for cut in 0..writer.bytes().len() {
            assert_eq!(messages(&writer.bytes()[..cut]).count(), 0);
            let _ = attributes(&writer.bytes()[cut..]).count();
        }
        assert_eq!(attributes(&[0, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
    }
}
