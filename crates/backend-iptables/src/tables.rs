//! What the kernel holds: tables, their chains, their rules.

use std::collections::BTreeMap;

/// A table that this program writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// Only a chain by which others are noticed that flush tables.
    Mangle,
    /// Refuses and drops.
    Filter,
    /// Translates addresses.
    Nat,
}

impl Table {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mangle => "mangle",
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

/// The chains of a table, each with its rules: as `iptables-save` prints them, without `-A` and the chain.
pub type Chains = BTreeMap<String, Vec<String>>;

/// What one family's tables hold, as far as known; chains of others included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Table mangle.
    pub mangle: Chains,
    /// Table filter.
    pub filter: Chains,
    /// Table nat.
    pub nat: Chains,
}

impl Tables {
    /// The chains of a table.
    pub fn chains(&self, table: Table) -> &Chains {
        match table {
            Table::Mangle => &self.mangle,
            Table::Filter => &self.filter,
            Table::Nat => &self.nat,
        }
    }
}
