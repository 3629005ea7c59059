//! What objects may be called: an API server refuses other names, and a table of the kernel should not hold them either.

use model::Kind;

use super::kind_name;
use crate::complaints::Fault;
use crate::wire::{Meta, text};

/// Longest label and longest subdomain (RFC 1123).
const LABEL: usize = 63;
const SUBDOMAIN: usize = 253;

/// What a label is, for messages.
pub(super) const A_LABEL: &str =
    "at most 63 lower case letters, digits and '-' (RFC 1123), with no '-' at an end";
const A_SUBDOMAIN: &str = "at most 253 lower case letters, digits, '-' and '.' (RFC 1123), with no '-' or '.' at an end or beside a '.'";

/// What is wrong with the name or the namespace of an object.
pub(super) fn fault(kind: Kind, meta: &Meta<'_>) -> Option<Fault> {
    let wrong = |field: &str, name: &str, is_allowed: fn(&str) -> bool, allowed: &str| {
        let problem = match name {
            "" => "is missing; the object is skipped".to_owned(),
            _ if is_allowed(name) => return None,
            _ => {
                let of = kind_name(kind);
                format!("{name:?} cannot be the {field} of a {of}, which is {allowed}; the object is skipped")
            }
        };
        Some(Fault::new(format!("metadata.{field}"), problem))
    };
    let (name, namespace) = (text(meta.name.as_ref()), text(meta.namespace.as_ref()));
    let in_namespace = || wrong("namespace", namespace, is_label, A_LABEL);
    match kind {
        Kind::Service => wrong("name", name, is_label, A_LABEL).or_else(in_namespace),
        Kind::Slice => wrong("name", name, is_subdomain, A_SUBDOMAIN).or_else(in_namespace),
        Kind::Node | Kind::ServiceCidr => wrong("name", name, is_subdomain, A_SUBDOMAIN),
    }
}

pub(super) fn is_label(name: &str) -> bool {
    name.len() <= LABEL && is_part(name)
}

fn is_subdomain(name: &str) -> bool {
    name.len() <= SUBDOMAIN && name.split('.').all(is_part)
}

fn is_part(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.bytes().all(allowed) && !name.starts_with('-') && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Text;

    /// The field that is wrong with an object of this name in this namespace.
    fn wrong(kind: Kind, name: &str, namespace: &str) -> Option<String> {
        let meta = Meta {
            name: Some(Text(name.into())),
            namespace: Some(Text(namespace.into())),
            ..Meta::default()
        };
        fault(kind, &meta).map(|fault| fault.field)
    }

    #[test]
    fn names_are_those_that_an_api_server_takes() {
        let (longest_label, longest) = ("a".repeat(63), format!("{}a", "a.".repeat(126)));
        for (name, is_label, is_subdomain) in [
            ("", false, false),
            ("web", true, true),
            ("0-9", true, true),
            (&*longest_label, true, true),
            (&*format!("{longest_label}a"), false, true),
            ("web.shop", false, true),
            (&*longest, false, true),
            (&*format!("{longest}a"), false, false),
            ("Web", false, false),
            ("web_shop", false, false),
            ("-web", false, false),
            ("web-", false, false),
            ("web..shop", false, false),
            (".", false, false),
            ("web shop", false, false),
            ("web/shop", false, false),
            ("web\n", false, false),
            ("wéb", false, false),
        ] {
            let name_is_wrong = |wrong: bool| wrong.then(|| "metadata.name".to_owned());
            assert_eq!(wrong(Kind::Service, name, "ns"), name_is_wrong(!is_label), "{name:?}");
            for kind in [Kind::Slice, Kind::Node, Kind::ServiceCidr] {
                assert_eq!(wrong(kind, name, "ns"), name_is_wrong(!is_subdomain), "{kind:?} {name:?}");
            }
            let namespace = (!is_label).then(|| "metadata.namespace".to_owned());
            assert_eq!(wrong(Kind::Slice, "web", name), namespace, "{name:?}");
        }
    }
}
