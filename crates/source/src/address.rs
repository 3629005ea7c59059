//! Addresses and networks, read as leniently as the API server of old stored them.

use std::net::IpAddr;

use ipnet::IpNet;

/// Parses an address. Leading zeros of IPv4 octets are tolerated and decimal, and IPv4 in IPv6 is IPv4, both as in
/// Go's `netutils.ParseIPSloppy`: objects stored by old API servers may have them.
pub(crate) fn parse_ip(text: &str) -> Option<IpAddr> {
    let parsed = text.parse().or_else(|_| without_leading_zeros(text).parse::<IpAddr>());
    Some(parsed.ok()?.to_canonical())
}

/// Parses `ADDRESS/LENGTH` with the same tolerance, surrounding space included. Host bits are cleared.
pub(crate) fn parse_net(text: &str) -> Option<IpNet> {
    let (address, length) = text.trim().split_once('/')?;
    if !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let address = address.parse().or_else(|_| without_leading_zeros(address).parse()).ok()?;
    Some(IpNet::new(address, length.parse().ok()?).ok()?.trunc())
}

/// Whether packets can be sent to one host by this address.
pub(crate) fn is_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !address.is_unspecified() && !address.is_multicast() && !broadcast
}

/// Whether other hosts can send to it: neither loopback nor link-local. The API server takes no others as endpoints and
/// external IPs (`ValidateNonSpecialIP`).
pub(crate) fn is_reachable(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    is_host(address) && !address.is_loopback() && !link_local
}

/// The dotted part, which is all or the end of the text, without leading zeros in its octets.
fn without_leading_zeros(text: &str) -> String {
    let (front, dotted) = match text.rfind(':') {
        Some(colon) => text.split_at(colon + 1),
        None => ("", text),
    };
    let octets: Vec<&str> = dotted
        .split('.')
        .map(|octet| match octet.trim_start_matches('0') {
            "" if !octet.is_empty() => "0",
            digits => digits,
        })
        .collect();
    format!("{front}{}", octets.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_go_reads_them() {
        for (text, expected) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("192.000.002.001", Some("192.0.2.1")),
            ("010.0.0.010", Some("10.0.0.10")),
            ("0.0.0.0", Some("0.0.0.0")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("2001:0DB8:0:0::01", Some("2001:db8::1")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("::ffff:192.00.2.01", Some("192.0.2.1")),
            ("192.0.2", None),
            ("192.0.2.256", None),
            ("192.0.2.", None),
            ("192.0.2.1 ", None),
            ("fe80::1%eth0", None),
            ("0x7f.0.0.1", None),
            ("", None),
            (".", None),
        ] {
            let expected = expected.map(|address| address.parse::<IpAddr>().unwrap());
            assert_eq!(parse_ip(text), expected, "{text:?}");
        }
    }

    #[test]
    fn networks_are_trimmed_and_lose_their_host_bits() {
        for (text, expected) in [
            ("192.0.2.0/24", Some("192.0.2.0/24")),
            (" 192.0.2.7/24\n", Some("192.0.2.0/24")),
            ("192.000.2.0/024", Some("192.0.2.0/24")),
            ("2001:db8::1/64", Some("2001:db8::/64")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("192.0.2.0", None),
            ("192.0.2.0/33", None),
            ("192.0.2.0/+8", None),
            ("192.0.2.0/", None),
            ("/24", None),
        ] {
            let expected = expected.map(|net| net.parse::<IpNet>().unwrap());
            assert_eq!(parse_net(text), expected, "{text:?}");
        }
    }

    #[test]
    fn wildcards_and_groups_are_no_hosts() {
        for text in ["0.0.0.0", "::", "255.255.255.255", "224.0.0.1", "ff02::1"] {
            assert!(!is_host(text.parse().unwrap()), "{text}");
        }
        for text in ["192.0.2.1", "127.0.0.1", "2001:db8::1", "fe80::1"] {
            assert!(is_host(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn loopback_and_link_local_addresses_are_not_reached_from_elsewhere() {
        for text in ["127.0.0.1", "127.9.9.9", "::1", "169.254.1.1", "fe80::1", "0.0.0.0", "ff02::1"] {
            assert!(!is_reachable(text.parse().unwrap()), "{text}");
        }
        for text in ["192.0.2.1", "2001:db8::1", "169.253.0.1", "fec0::1"] {
            assert!(is_reachable(text.parse().unwrap()), "{text}");
        }
    }
}
