//! Addresses as the flags and the file write them: `10.0.0.1`, `10.0.0.0/8`, `[::]:10256`.
//!
//! IPv4 parts with leading zeros are read as decimal, as the original does, because old files contain them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;

/// Reads an IP address; an IPv4 address written as IPv6 (`::ffff:192.0.2.1`) becomes IPv4.
pub(crate) fn ip(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|ip: IpAddr| ip.to_canonical()).or_else(|| decimal_v4(text))
}

fn decimal_v4(text: &str) -> Option<IpAddr> {
    let mut parts = [0; 4];
    let mut given = text.split('.');
    for part in &mut parts {
        let digits = given.next().filter(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))?;
        *part = digits.parse().ok()?;
    }
    given.next().is_none().then(|| Ipv4Addr::from(parts).into())
}

/// Reads an address range; bits beyond the prefix are cleared.
pub(crate) fn cidr(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    if length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // The range keeps the family it is written in, so no canonical form here.
    let address = address.parse().ok().or_else(|| decimal_v4(address))?;
    IpNet::new(address, length.parse().ok()?).ok().map(|net| net.trunc())
}

/// Reads `IP` or `IP:port`; without a port `default_port` is used. Port 0 is not a port.
///
/// # Errors
/// Says which part is wrong, without repeating the whole value.
pub(crate) fn ip_port(text: &str, default_port: u16) -> Result<SocketAddr, String> {
    if let Some(ip) = ip(text) {
        return Ok(SocketAddr::new(ip, default_port));
    }
    let shape = "must be an IP address or IP:port, such as 127.0.0.1:10249 or [::1]:10249";
    let (host, port) = text.rsplit_once(':').ok_or(shape)?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or(shape)?,
        None if host.contains(':') => return Err(shape.into()),
        None => host,
    };
    let ip = ip(host).ok_or_else(|| format!("{host:?} is not an IP address; {shape}"))?;
    let port = port.bytes().all(|b| b.is_ascii_digit()).then(|| port.parse().ok()).flatten();
    let port = port.filter(|port| *port != 0).ok_or("the port must be within 1 to 65535")?;
    Ok(SocketAddr::new(ip, port))
}
