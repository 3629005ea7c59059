//! Rule expressions and their wire form.

use crate::message::Writer;

/// Bases of a payload load (`enum nft_payload_bases`).
pub mod payload {
    /// The network header.
    pub const NETWORK: u32 = 1;
    /// The transport header.
    pub const TRANSPORT: u32 = 2;
}

/// Keys of a meta expression (`enum nft_meta_keys`).
pub mod meta {
    /// The packet mark, host byte order.
    pub const MARK: u32 = 3;
    /// Name of the input interface, 16 bytes.
    pub const INPUT_INTERFACE_NAME: u32 = 6;
    /// The transport protocol number, one byte.
    pub const L4PROTO: u32 = 16;
}

/// Keys and bits of a ct expression (`enum nft_ct_keys`).
pub mod ct {
    /// The state, a bit mask.
    pub const STATE: u32 = 0;
    /// The status, a bit mask.
    pub const STATUS: u32 = 2;
    /// State bit: first packet of a connection.
    pub const STATE_NEW: u32 = 8;
    /// State bit: packets went in both directions before.
    pub const STATE_ESTABLISHED: u32 = 2;
    /// Whether the packet goes as the first one of its connection did: one byte, 0 if so.
    pub const DIRECTION: u32 = 1;
    /// Source port; of a direction.
    pub const PROTO_SRC: u32 = 11;
    /// IPv4 source address; of a direction.
    pub const SRC_IP: u32 = 19;
    /// IPv6 source address; of a direction.
    pub const SRC_IP6: u32 = 21;
    /// `IPS_DST_NAT`.
    pub const STATUS_DNAT: u32 = 32;
}

/// Operations of a dynset expression (`enum nft_dynset_ops`).
pub mod dynset {
    /// Adds, or renews the time of what is there.
    pub const UPDATE: u32 = 1;
    /// Deletes.
    pub const DELETE: u32 = 2;
}

/// A comparison (`enum nft_cmp_ops`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Equal.
    Equal = 0,
    /// Not equal.
    NotEqual = 1,
}

/// Which address a fib lookup is for (`NFTA_FIB_F_…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibSelect {
    /// The source address.
    Source = 1,
    /// The destination address.
    Destination = 2,
}

/// A netfilter hook of the IP families (`enum nf_inet_hooks`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named by the kernel
pub enum Hook {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
}

/// What a rule or a verdict map decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Drops the packet.
    Drop,
    /// Goes on in another chain and comes back.
    Jump(String),
    /// Goes on in another chain for good.
    Goto(String),
}

/// One expression. A failed match or lookup ends the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are named as in the kernel's header
pub enum Expression {
    /// Loads bytes of the packet.
    Payload { base: u32, offset: u32, length: u32, dreg: u8 },
    /// Loads packet metadata.
    MetaLoad { key: u32, dreg: u8 },
    /// Sets packet metadata.
    MetaSet { key: u32, sreg: u8 },
    /// Loads connection tracking data.
    Ct { key: u32, dreg: u8 },
    /// Loads connection tracking data of the reply direction.
    CtReply { key: u32, dreg: u8 },
    /// `reg = (reg & mask) ^ xor`.
    Bitwise { reg: u8, mask: Vec<u8>, xor: Vec<u8> },
    /// Compares as many bytes as `data` has.
    Compare { sreg: u8, op: Compare, data: Vec<u8> },
    /// Is the key in the set (or, inverted, not)?
    Lookup { set: &'static str, sreg: u8, invert: bool },
    /// Loads what the map holds for the key.
    LookupMap { map: &'static str, sreg: u8, dreg: u8 },
    /// Does what the verdict map holds for the key.
    LookupVerdict { map: &'static str, sreg: u8 },
    /// A random number below `modulus`.
    Random { modulus: u32, dreg: u8 },
    /// Changes a map from the packet path; `timeout` in milliseconds, 0 for none.
    Dynset { map: &'static str, op: u32, key: u8, data: u8, timeout: u64 },
    /// Translates the destination to the address and port in these registers. Ends the rule.
    Dnat { family: u8, address: u8, port: u8 },
    /// Translates the source to an address of the outgoing interface, with a fully random port. Ends the rule.
    Masquerade,
    /// The type of route to an address (`RTN_…`).
    FibType { select: FibSelect, dreg: u8 },
    /// Refuses with an ICMP or ICMPv6 port unreachable, or for TCP with a reset.
    Reject { family: u8, tcp_reset: bool },
    /// Decides.
    Verdict(Verdict),
}

const NAME: u16 = 1; // NFTA_EXPR_NAME
const DATA: u16 = 2; // NFTA_EXPR_DATA
pub(super) const LIST_ITEM: u16 = 1; // NFTA_LIST_ELEM
const VALUE: u16 = 1; // NFTA_DATA_VALUE
const VERDICT: u16 = 2; // NFTA_DATA_VERDICT

/// The kernel lists a register at the start of 16 bytes by its old name (`NFT_REG_1` …), so it is written so.
fn register(number: u8) -> u32 {
    let number = u32::from(number);
    if number.is_multiple_of(4) { 1 + number / 4 } else { 8 + number } // NFT_REG_1, NFT_REG32_00
}

pub(super) fn write_value(writer: &mut Writer, kind: u16, value: &[u8]) {
    writer.nested(kind, |w| w.attribute(VALUE, value));
}

pub(super) fn write_verdict(writer: &mut Writer, kind: u16, verdict: &Verdict) {
    let (code, chain) = match verdict {
        Verdict::Drop => (0, None),
        Verdict::Jump(chain) => (-3, Some(chain)),
        Verdict::Goto(chain) => (-4, Some(chain)),
    };
    writer.nested(kind, |w| {
        w.nested(VERDICT, |w| {
            w.be32(1, i32::cast_unsigned(code));
            if let Some(chain) = chain {
                w.string(2, chain);
            }
        });
    });
}

impl Expression {
    /// Writes the expression as an item of a list.
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.nested(LIST_ITEM, |w| {
            w.string(NAME, self.name());
            w.nested(DATA, |w| self.write_data(w));
        });
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Payload { .. } => "payload",
            Self::MetaLoad { .. } | Self::MetaSet { .. } => "meta",
            Self::Ct { .. } | Self::CtReply { .. } => "ct",
            Self::Bitwise { .. } => "bitwise",
            Self::Compare { .. } => "cmp",
            Self::Lookup { .. } | Self::LookupMap { .. } | Self::LookupVerdict { .. } => "lookup",
            Self::Random { .. } => "numgen",
            Self::Dynset { .. } => "dynset",
            Self::Dnat { .. } => "nat",
            Self::Masquerade => "masq",
            Self::FibType { .. } => "fib",
            Self::Reject { .. } => "reject",
            Self::Verdict(_) => "immediate",
        }
    }

    /// The attributes are those of `enum nft_NAME_attributes`, in their order.
    fn write_data(&self, w: &mut Writer) {
        match self {
            Self::Payload { base, offset, length, dreg } => {
                w.be32(1, register(*dreg));
                w.be32(2, *base);
                w.be32(3, *offset);
                w.be32(4, *length);
            }
            Self::MetaLoad { key, dreg } | Self::Ct { key, dreg } => {
                w.be32(1, register(*dreg));
                w.be32(2, *key);
            }
            Self::CtReply { key, dreg } => {
                w.be32(1, register(*dreg));
                w.be32(2, *key);
                w.attribute(3, &[1]); // IP_CT_DIR_REPLY
            }
            Self::MetaSet { key, sreg } => {
                w.be32(2, *key);
                w.be32(3, register(*sreg));
            }
            Self::Bitwise { reg, mask, xor } => {
                w.be32(1, register(*reg));
                w.be32(2, register(*reg));
                w.be32(3, u32::try_from(mask.len()).unwrap_or(0));
                w.be32(6, 0); // NFT_BITWISE_MASK_XOR
                write_value(w, 4, mask);
                write_value(w, 5, xor);
            }
            Self::Compare { sreg, op, data } => {
                w.be32(1, register(*sreg));
                w.be32(2, *op as u32);
                write_value(w, 3, data);
            }
            Self::Lookup { set, sreg, invert } => {
                w.string(1, set);
                w.be32(2, register(*sreg));
                if *invert {
                    w.be32(5, 1); // NFT_LOOKUP_F_INV
                }
            }
            Self::LookupMap { map, sreg, dreg } => {
                w.string(1, map);
                w.be32(2, register(*sreg));
                w.be32(3, register(*dreg));
            }
            Self::LookupVerdict { map, sreg } => {
                w.string(1, map);
                w.be32(2, register(*sreg));
                w.be32(3, 0); // NFT_REG_VERDICT
            }
            Self::Random { modulus, dreg } => {
                w.be32(1, register(*dreg));
                w.be32(2, *modulus);
                w.be32(3, 1); // NFT_NG_RANDOM
                w.be32(4, 0);
            }
            Self::Dynset { map, op, key, data, timeout } => {
                w.string(1, map);
                w.be32(3, *op);
                w.be32(4, register(*key));
                w.be32(5, register(*data));
                if *timeout > 0 {
                    w.be64(6, *timeout);
                }
            }
            Self::Dnat { family, address, port } => {
                w.be32(1, 1); // NFT_NAT_DNAT
                w.be32(2, u32::from(*family));
                w.be32(3, register(*address));
                w.be32(5, register(*port));
                w.be32(7, 2 | 1); // NF_NAT_RANGE_PROTO_SPECIFIED | NF_NAT_RANGE_MAP_IPS
            }
            Self::Masquerade => w.be32(1, 16), // NF_NAT_RANGE_PROTO_RANDOM_FULLY
            Self::FibType { select, dreg } => {
                w.be32(1, register(*dreg));
                w.be32(2, 3); // NFT_FIB_RESULT_ADDRTYPE
                w.be32(3, *select as u32);
            }
            Self::Reject { family, tcp_reset } => {
                w.be32(1, u32::from(*tcp_reset)); // NFT_REJECT_ICMP_UNREACH or NFT_REJECT_TCP_RST
                if !tcp_reset {
                    let port_unreachable = if *family == super::IPV4 { 3 } else { 4 };
                    w.attribute(2, &[port_unreachable]);
                }
            }
            Self::Verdict(verdict) => {
                w.be32(1, 0); // NFT_REG_VERDICT
                write_verdict(w, 2, verdict);
            }
        }
    }
}
