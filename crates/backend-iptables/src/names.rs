//! The names of a service's own chains: the original kube-proxy's, so that each takes over from the other.

use std::fmt::{self, Write as _};

use model::Protocol;
use ring::digest::{Context, SHA256};

/// What a chain of a service is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Picks one of all endpoints.
    Cluster,
    /// Picks one of the endpoints on this node.
    Local,
    /// Takes what comes to frontends other than the cluster IP.
    External,
    /// Lets in what comes from a load balancer's source ranges.
    Firewall,
    /// Translates the address to that of one endpoint.
    Endpoint,
}

impl Role {
    const ALL: [Self; 5] = [Self::Cluster, Self::Local, Self::External, Self::Firewall, Self::Endpoint];

    fn prefix(self) -> &'static str {
        match self {
            Self::Cluster => "KUBE-SVC-",
            Self::Local => "KUBE-SVL-",
            Self::External => "KUBE-EXT-",
            Self::Firewall => "KUBE-FW-",
            Self::Endpoint => "KUBE-SEP-",
        }
    }
}

/// Whether a chain of this name belongs to a service: of this version, or (`KUBE-XLB-`) of the original before 1.24.
pub(crate) fn is_of_a_service(chain: &str) -> bool {
    Role::ALL.iter().any(|role| chain.starts_with(role.prefix())) || chain.starts_with("KUBE-XLB-")
}

/// The name of a chain of a service: `KUBE-SVC-NPX46M4PTMTKRN6Y`. Small, as there are several for each endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ChainName {
    role: Role,
    digest: Digest,
}

type Digest = [u8; 10];

impl ChainName {
    /// The chain of a service port, named as in `namespace/name:port`.
    pub(crate) fn of_port(role: Role, port_name: &str, protocol: Protocol) -> Self {
        Self { role, digest: digest(&[port_name, &protocol.to_string()]) }
    }

    /// The chain of one endpoint of a service port.
    pub(crate) fn of_endpoint(port_name: &str, protocol: Protocol, endpoint: &str) -> Self {
        Self { role: Role::Endpoint, digest: digest(&[port_name, &protocol.to_string(), endpoint]) }
    }
}

fn digest(parts: &[&str]) -> Digest {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(part.as_bytes());
    }
    let mut first = Digest::default();
    first.iter_mut().zip(context.finish().as_ref()).for_each(|(to, from)| *to = *from);
    first
}

impl fmt::Display for ChainName {
    /// The prefix and the digest in base32 (RFC 4648).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        let bits = self.digest.iter().fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
        f.write_str(self.role.prefix())?;
        for place in (0..16).rev() {
            let five_bits = usize::try_from(bits >> (5 * place) & 31).unwrap_or_default();
            f.write_char(ALPHABET[five_bits].into())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_called_as_the_original_calls_them() {
        for (role, port_name, protocol, name) in [
            (Role::Cluster, "default/kubernetes:https", Protocol::Tcp, "KUBE-SVC-NPX46M4PTMTKRN6Y"),
            (Role::Cluster, "kube-system/kube-dns:dns", Protocol::Udp, "KUBE-SVC-TCOU7JCQXEZGVUNU"),
            (Role::Local, "kube-system/kube-dns:dns-tcp", Protocol::Tcp, "KUBE-SVL-ERIFXISQEP7F7OF4"),
            (Role::External, "kube-system/kube-dns:metrics", Protocol::Tcp, "KUBE-EXT-JD5MR3NA4I4DYORP"),
            (Role::Firewall, "ns1/svc1:p80", Protocol::Tcp, "KUBE-FW-XPGD46QRK7WJZT7O"),
        ] {
            assert_eq!(ChainName::of_port(role, port_name, protocol).to_string(), name);
        }
        let endpoint = ChainName::of_endpoint("ns1/svc1:p80", Protocol::Tcp, "10.180.0.1:80");
        assert_eq!(endpoint.to_string(), "KUBE-SEP-SXIVWICOYRO3J4NJ");
    }

    #[test]
    fn a_chain_of_a_service_is_told_from_others_by_its_name() {
        for (name, is_ours) in [
            ("KUBE-SEP-SXIVWICOYRO3J4NJ", true),
            ("KUBE-FW-XPGD46QRK7WJZT7O", true),
            ("KUBE-XLB-XPGD46QRK7WJZT7O", true),
            ("KUBE-SERVICES", false),
            ("KUBE-FIREWALL", false),
            ("KUBE-ROUTER-INPUT", false),
        ] {
            assert_eq!(is_of_a_service(name), is_ours, "{name}");
        }
    }
}
