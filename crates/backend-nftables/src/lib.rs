//! nftables.
