//! What `nodePortAddresses` asks for: of the kernel, and of the relay on the loopback addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use config::{FeatureGates, Gate, NodePortAddress};
use dataplane::NodePortSelection;
use ipnet::IpNet;
use model::Family;
use tracing::warn;

/// What `localhost` stands for.
fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
        Family::V6 => IpNet::new_assert(Ipv6Addr::LOCALHOST.into(), 128),
    }
}

/// The keywords told apart. A family of which only loopback is named is mentioned, and does not take all addresses.
pub(crate) fn selection(addresses: &[NodePortAddress]) -> NodePortSelection {
    let mut selection = NodePortSelection::default();
    let all = [[0; 4].into(), [0; 16].into()].map(|address: IpAddr| IpNet::new_assert(address, 0));
    for address in addresses {
        match address {
            NodePortAddress::Primary => selection.primary = true,
            NodePortAddress::All => selection.networks.extend(all),
            NodePortAddress::Cidr(net) => selection.networks.push(*net),
            NodePortAddress::Localhost => selection.networks.extend([Family::V4, Family::V6].map(loopback)),
        }
    }
    selection
}

/// Whether node ports are relayed on the loopback address of the family.
pub(crate) fn relayed(addresses: &[NodePortAddress], gates: &FeatureGates, family: Family) -> bool {
    let (named, enabled) = (on_loopback(addresses, family), gates.enabled(Gate::NftablesLocalhostNodePorts));
    if named && !enabled {
        warn!(
            %family,
            "--nodeport-addresses names loopback, but node ports are not served there: feature gate \
             KubeProxyNFTablesLocalhostNodePorts is off"
        );
    }
    named && enabled
}

/// Whether 127.0.0.1 or `::1` is named: by `localhost`, or by a range of nothing but loopback addresses that has it. A
/// range that reaches further, such as all addresses, does not name it.
fn on_loopback(addresses: &[NodePortAddress], family: Family) -> bool {
    let relayed: IpAddr = match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    };
    addresses.iter().any(|address| match address {
        NodePortAddress::Localhost => true,
        NodePortAddress::Cidr(net) if loopback(family).contains(net) => {
            let named = net.contains(&relayed);
            if !named {
                warn!(
                    range = %net,
                    "On loopback, node ports are served on {relayed} alone; use localhost instead of this range in \
                     --nodeport-addresses"
                );
            }
            named
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

    fn addresses(list: &[&str]) -> Vec<NodePortAddress> {
        let address = |text: &&str| match *text {
            "primary" => NodePortAddress::Primary,
            "localhost" => NodePortAddress::Localhost,
            "all" => NodePortAddress::All,
            net => NodePortAddress::Cidr(net.parse().unwrap()),
        };
        list.iter().map(address).collect()
    }

    fn named(list: &[&str]) -> [bool; 2] {
        FAMILIES.map(|family| on_loopback(&addresses(list), family))
    }

    #[test]
    fn localhost_names_loopback_of_both_families_and_a_range_that_of_its_own() {
        assert_eq!(named(&["localhost"]), [true, true]);
        assert_eq!(named(&["primary", "localhost"]), [true, true]);
        assert_eq!(named(&["all", "localhost"]), [true, true]);
        assert_eq!(named(&["192.0.2.0/24", "127.0.0.0/8"]), [true, false]);
        assert_eq!(named(&["127.0.0.1/32"]), [true, false]);
        assert_eq!(named(&["::1/128"]), [false, true]);
    }

    #[test]
    fn what_reaches_further_or_elsewhere_does_not_name_loopback() {
        for list in [&["primary"][..], &["all"], &["0.0.0.0/0", "::/0"], &["126.0.0.0/7", "::/127"], &[]] {
            assert_eq!(named(list), [false, false], "{list:?}");
        }
        assert_eq!(named(&["127.0.0.2/32", "127.1.0.0/16"]), [false, false]);
    }

    #[test]
    fn localhost_alone_opens_no_other_address_of_any_family() {
        let selection = selection(&addresses(&["localhost"]));
        let interfaces: Vec<IpAddr> =
            ["192.0.2.10", "127.0.0.1", "::1", "2001:db8::1"].map(|a| a.parse().unwrap()).into();
        assert_eq!(FAMILIES.map(|family| selection.takes_all(family)), [false, false]);
        assert_eq!(selection.select(&interfaces, &interfaces), [] as [IpAddr; 0]);
        assert!(!selection.needs_interfaces());
    }

    #[test]
    fn localhost_takes_nothing_away_from_the_others_in_the_list() {
        let primary = selection(&addresses(&["primary", "localhost"]));
        let node: IpAddr = "192.0.2.10".parse().unwrap();
        assert_eq!(primary.select(&[node], &[]), [node]);
        let all = selection(&addresses(&["all", "localhost"]));
        assert_eq!(FAMILIES.map(|family| all.takes_all(family)), [true, true]);
    }
}
