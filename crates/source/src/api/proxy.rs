//! Whether the way to the API server leads through a proxy: `proxy-url` of the kubeconfig, else `HTTPS_PROXY` unless
//! `NO_PROXY` exempts the server. The rules are those of Go's `httpproxy.FromEnvironment`, which clusters are set up
//! for: kubeadm hands these variables on to the node proxy.

use std::net::IpAddr;

use http::Uri;
use ipnet::IpNet;

/// The proxy for `server`. `given` is the kubeconfig's; `environment` looks up a variable.
///
/// # Errors
/// The proxy's URL cannot be parsed; says where it was found.
pub(super) fn proxy(
    given: Option<&str>,
    server: &Uri,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, String> {
    let either = |upper: &str, lower: &str| {
        environment(upper).or_else(|| environment(lower)).filter(|value| !value.trim().is_empty())
    };
    let parsed = |origin: &str, url: &str| {
        let url = url.trim();
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        full.parse().map(Some).map_err(|error| format!("{origin}: {url} is no URL of a proxy: {error}"))
    };
    if let Some(url) = given.filter(|url| !url.is_empty()) {
        return parsed("clusters[].cluster.proxy-url", url);
    }
    let exceptions = either("NO_PROXY", "no_proxy").unwrap_or_default();
    if server.scheme_str() != Some("https") || is_exempt(server, &exceptions) {
        return Ok(None);
    }
    either("HTTPS_PROXY", "https_proxy").map_or(Ok(None), |url| parsed("variable HTTPS_PROXY", &url))
}

/// Whether `server` is reached directly: this machine, or named by `no_proxy`.
fn is_exempt(server: &Uri, no_proxy: &str) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    let port = server.port_u16().unwrap_or(443);
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    no_proxy.split(',').map(|entry| entry.trim().to_ascii_lowercase()).any(|entry| match address {
        _ if entry.is_empty() => false,
        _ if entry == "*" => true,
        Some(address) => is_address_named(address, port, &entry),
        None => is_name_named(&host, port, &entry),
    })
}

fn is_address_named(address: IpAddr, port: u16, entry: &str) -> bool {
    if let Ok(net) = entry.parse::<IpNet>() {
        return net.contains(&address);
    }
    let (host, wanted) = split_port(entry);
    host.trim_matches(['[', ']']).parse() == Ok(address) && wanted.is_none_or(|wanted| wanted == port)
}

/// `example.org` names the host and all below it, `.example.org` only those below.
fn is_name_named(host: &str, port: u16, entry: &str) -> bool {
    let (domain, wanted) = split_port(entry);
    let domain = domain.strip_prefix('*').unwrap_or(domain);
    let (domain, below_only) = domain.strip_prefix('.').map_or((domain, false), |domain| (domain, true));
    let named = match host.strip_suffix(domain) {
        Some("") => !below_only,
        Some(front) => front.ends_with('.'),
        None => false,
    };
    named && !domain.is_empty() && wanted.is_none_or(|wanted| wanted == port)
}

/// Host and port. An IPv6 address without brackets has no port.
fn split_port(entry: &str) -> (&str, Option<u16>) {
    match entry.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => match port.parse() {
            Ok(port) => (host, Some(port)),
            Err(_) => (entry, None),
        },
        _ => (entry, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(given: Option<&str>, server: &str, variables: &[(&str, &str)]) -> Option<String> {
        let lookup = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        proxy(given, &server.parse().unwrap(), lookup).unwrap().map(|uri| uri.to_string())
    }

    #[test]
    fn the_environment_counts_for_https_unless_the_kubeconfig_names_a_proxy() {
        let environment = [("HTTPS_PROXY", "proxy.example:3128")];
        let through = |given, server| found(given, server, &environment);
        assert_eq!(through(None, "https://192.0.2.1:6443").as_deref(), Some("http://proxy.example:3128/"));
        let given = through(Some("socks5://192.0.2.9:1080"), "https://192.0.2.1");
        assert_eq!(given.as_deref(), Some("socks5://192.0.2.9:1080/"));
        assert_eq!(through(None, "http://192.0.2.1:8080"), None);
        assert_eq!(found(None, "https://192.0.2.1", &[]), None);
    }

    #[test]
    fn no_proxy_exempts_as_go_has_it() {
        for (server, no_proxy, direct) in [
            ("https://192.0.2.1:6443", "", false),
            ("https://localhost:6443", "", true),
            ("https://127.0.0.1:6443", "", true),
            ("https://[::1]:6443", "", true),
            ("https://192.0.2.1:6443", "*", true),
            ("https://192.0.2.1:6443", "198.51.100.0/24, 192.0.2.0/24", true),
            ("https://192.0.2.1:6443", "198.51.100.0/24", false),
            ("https://192.0.2.1:6443", "192.0.2.1", true),
            ("https://192.0.2.1:6443", "192.0.2.1:443", false),
            ("https://[2001:db8::1]:6443", "2001:db8::1", true),
            ("https://[2001:db8::1]:6443", "[2001:db8::1]:6443", true),
            ("https://API.example.org", "example.org", true),
            ("https://example.org", "example.org", true),
            ("https://api.example.org", ".example.org", true),
            ("https://example.org", ".example.org", false),
            ("https://api.example.org", "*.example.org", true),
            ("https://badexample.org", "example.org", false),
            ("https://api.example.org", "api.example.org:443", true),
            ("https://api.example.org", ".,", false),
        ] {
            let variables = [("https_proxy", "http://proxy.example"), ("no_proxy", no_proxy)];
            assert_eq!(
                found(None, server, &variables).is_none(),
                direct,
                "{server} with NO_PROXY={no_proxy}"
            );
        }
    }

    #[test]
    fn a_proxy_that_is_no_url_is_blamed_on_its_origin() {
        let server = "https://192.0.2.1".parse().unwrap();
        let error = proxy(None, &server, |name| (name == "HTTPS_PROXY").then(|| "http://a b".to_owned()));
        assert!(error.unwrap_err().starts_with("variable HTTPS_PROXY: http://a b "));
    }
}
