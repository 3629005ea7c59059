//! nf_tables over netlink (`include/uapi/linux/netfilter/nf_tables.h`).
//!
//! - [`Expression`]: what rules are made of;
//! - [`Table`], [`Chain`], [`Rule`], [`SetSpec`], [`Element`]: the objects;
//! - [`Transaction`]: a list of changes that the kernel takes whole or not at all;
//! - [`list`]: what the kernel holds;
//! - [`monitor`]: what others change.
//!
//! Registers are the sixteen of four bytes, `NFT_REG32_00` to `NFT_REG32_15`, numbered 0 to 15.

mod expression;
pub mod list;
pub mod monitor;
mod object;
mod transaction;

pub use expression::{Compare, Expression, FibSelect, Hook, Verdict, ct, dynset, meta, payload};
pub use object::{Chain, ChainBase, Data, DataType, Element, Rule, SetSpec, Table, set_flag, table_flag};
pub use transaction::{Refusal, Transaction, TransactionError};

/// `NFPROTO_IPV4`.
pub const IPV4: u8 = 2;
/// `NFPROTO_IPV6`.
pub const IPV6: u8 = 10;

/// `NFT_MSG_…`, the low byte of the message type.
mod msg {
    pub(super) const NEW_TABLE: u16 = 0;
    pub(super) const GET_TABLE: u16 = 1;
    pub(super) const DEL_TABLE: u16 = 2;
    pub(super) const NEW_CHAIN: u16 = 3;
    pub(super) const GET_CHAIN: u16 = 4;
    pub(super) const DEL_CHAIN: u16 = 5;
    pub(super) const NEW_RULE: u16 = 6;
    pub(super) const GET_RULE: u16 = 7;
    pub(super) const DEL_RULE: u16 = 8;
    pub(super) const NEW_SET: u16 = 9;
    pub(super) const GET_SET: u16 = 10;
    pub(super) const NEW_ELEMENT: u16 = 12;
    pub(super) const GET_ELEMENT: u16 = 13;
    pub(super) const DEL_ELEMENT: u16 = 14;
    pub(super) const NEW_GENERATION: u16 = 15;
    pub(super) const GET_GENERATION: u16 = 16;
}

/// `NFNL_SUBSYS_NFTABLES`, the high byte of the message type.
const SUBSYSTEM: u16 = 10;

const fn message_type(message: u16) -> u16 {
    SUBSYSTEM << 8 | message
}

/// `struct nfgenmsg`.
const fn header(family: u8) -> [u8; 4] {
    [family, 0, 0, 0]
}
