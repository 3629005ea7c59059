//! Which of the node's addresses take node port traffic.

use std::net::IpAddr;

use ipnet::IpNet;
use model::Family;

/// `nodePortAddresses`, its keywords told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortSelection {
    /// The node's primary address of each family (keyword `primary`).
    pub primary: bool,
    /// Addresses within these networks. A network of all addresses (keyword `all`, `0.0.0.0/0`, `::/0`) is one of them.
    pub networks: Vec<IpNet>,
}

impl NodePortSelection {
    /// All addresses of the family but loopback. A family that the selection does not mention takes all, as with the
    /// original.
    pub fn takes_all(&self, family: Family) -> bool {
        let mut own = self.networks.iter().filter(|net| Family::of_net(net) == family).peekable();
        let unmentioned = own.peek().is_none() && !self.primary;
        unmentioned || own.any(|net| net.prefix_len() == 0)
    }

    /// The selection depends on the addresses of the node's interfaces.
    pub fn needs_interfaces(&self) -> bool {
        self.networks.iter().any(|net| net.prefix_len() > 0 && !net.network().is_loopback())
    }

    /// The selected ones of the node's addresses, sorted. `primary` has at most one a family.
    pub fn select(&self, primary: &[IpAddr], interfaces: &[IpAddr]) -> Vec<IpAddr> {
        let primary = primary.iter().filter(|_| self.primary);
        let within =
            interfaces.iter().filter(|address| self.networks.iter().any(|net| net.contains(*address)));
        let mut selected: Vec<_> =
            primary.chain(within).filter(|address| !address.is_loopback()).copied().collect();
        selected.sort_unstable();
        selected.dedup();
        selected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(primary: bool, networks: &[&str]) -> NodePortSelection {
        NodePortSelection { primary, networks: networks.iter().map(|net| net.parse().unwrap()).collect() }
    }

    #[test]
    fn nothing_selected_means_all_addresses() {
        assert!(selection(false, &[]).takes_all(Family::V4));
    }

    #[test]
    fn a_family_that_is_not_mentioned_takes_all_addresses() {
        let v4_only = selection(false, &["192.0.2.0/24"]);
        assert!(!v4_only.takes_all(Family::V4) && v4_only.takes_all(Family::V6));
    }

    #[test]
    fn primary_without_an_address_of_a_family_opens_nothing_in_it() {
        let primary = selection(true, &[]);
        assert!(!primary.takes_all(Family::V6));
        let addresses = ["192.0.2.10".parse().unwrap()];
        assert_eq!(primary.select(&addresses, &[]), addresses);
    }

    #[test]
    fn networks_select_interface_addresses_and_never_loopback() {
        let interfaces: Vec<IpAddr> = ["192.0.2.11", "127.0.0.1", "198.51.100.1", "2001:db8::1"]
            .iter()
            .map(|a| a.parse().unwrap())
            .collect();
        let selected =
            selection(false, &["192.0.2.0/24", "127.0.0.0/8", "2001:db8::/32"]).select(&[], &interfaces);
        assert_eq!(selected, [interfaces[0], interfaces[3]]);
    }
}
