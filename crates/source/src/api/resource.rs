//! The four collections that are watched, and how they are asked for.

use model::Kind;

/// Objects of a page of a list. What the clients of the reference ask for.
const PAGE: u32 = 500;

/// A collection of the API.
#[derive(Debug)]
pub(super) struct Resource {
    pub(super) kind: Kind,
    /// The plural, for messages.
    pub(super) plural: &'static str,
    pub(super) path: &'static str,
    selector: String,
    /// The API server may not have it, or not let us see it: then there are none.
    pub(super) optional: bool,
}

/// Services with a cluster IP that no other proxy has claimed.
pub(super) fn services() -> Resource {
    Resource {
        kind: Kind::Service,
        plural: "services",
        path: "/api/v1/services",
        selector: selector(Some("!service.kubernetes.io/service-proxy-name"), Some("spec.clusterIP!=None")),
        optional: false,
    }
}

/// Slices of services that are not headless.
pub(super) fn slices() -> Resource {
    Resource {
        kind: Kind::Slice,
        plural: "endpointslices",
        path: "/apis/discovery.k8s.io/v1/endpointslices",
        selector: selector(
            Some("!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name"),
            None,
        ),
        optional: false,
    }
}

/// The one Node of this name.
pub(super) fn node(name: &str) -> Resource {
    Resource {
        kind: Kind::Node,
        plural: "nodes",
        path: "/api/v1/nodes",
        selector: selector(None, Some(&format!("metadata.name={name}"))),
        optional: false,
    }
}

/// ServiceCIDRs, which API servers before 1.33 need not have.
pub(super) fn service_cidrs() -> Resource {
    Resource {
        kind: Kind::ServiceCidr,
        plural: "servicecidrs",
        path: "/apis/networking.k8s.io/v1/servicecidrs",
        selector: String::new(),
        optional: true,
    }
}

impl Resource {
    /// A watch of changes after `version`.
    pub(super) fn watch(&self, version: &str, seconds: u64) -> String {
        let version = escape(version);
        self.uri(&format!(
            "watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}"
        ))
    }

    /// A watch that begins with all objects (KEP-3157).
    pub(super) fn watch_list(&self, seconds: u64) -> String {
        self.uri(&format!(
            "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
             &timeoutSeconds={seconds}"
        ))
    }

    /// A page of a list. `cached`: what the API server has in memory will do, however old.
    pub(super) fn list(&self, cached: bool, next: Option<&str>) -> String {
        match next {
            Some(next) => self.uri(&format!("limit={PAGE}&continue={}", escape(next))),
            None if cached => self.uri(&format!("limit={PAGE}&resourceVersion=0")),
            None => self.uri(&format!("limit={PAGE}")),
        }
    }

    fn uri(&self, query: &str) -> String {
        format!("{}?{query}{}", self.path, self.selector)
    }
}

fn selector(labels: Option<&str>, fields: Option<&str>) -> String {
    let parameter = |(name, selector): (&str, Option<&str>)| Some(format!("&{name}={}", escape(selector?)));
    let given = [("labelSelector", labels), ("fieldSelector", fields)].into_iter().filter_map(parameter);
    given.collect::<Vec<_>>().concat()
}

/// Percent-encodes all but the unreserved characters of RFC 3986.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.extend(format!("%{byte:02X}").chars()),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_leave_out_what_is_not_ours() {
        let services = services().watch("7", 300);
        assert!(services.ends_with(
            "&labelSelector=%21service.kubernetes.io%2Fservice-proxy-name&fieldSelector=spec.clusterIP%21%3DNone"
        ));
        assert!(
            slices()
                .watch_list(300)
                .contains("&labelSelector=%21service.kubernetes.io%2Fheadless%2C%21service")
        );
        assert!(
            node("a&b").list(true, None).ends_with("resourceVersion=0&fieldSelector=metadata.name%3Da%26b")
        );
    }

    #[test]
    fn a_later_page_is_asked_for_by_its_token_alone() {
        let page = service_cidrs().list(true, Some("a+b="));
        assert_eq!(page, "/apis/networking.k8s.io/v1/servicecidrs?limit=500&continue=a%2Bb%3D");
    }
}
