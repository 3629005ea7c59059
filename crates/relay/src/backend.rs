//! Listening in on a data plane.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use dataplane::{Backend, Facts, Report, Services, SyncError};
use model::{Endpoint, Family, Frontend, ObjectKey, Policy, Protocol, ResolvedPort, ResolvedService};

use crate::{Handle, NodePort, Transport};

/// A data plane that also tells the relay which node ports services have, each time it has written them.
pub struct LocalhostNodePorts {
    inner: Box<dyn Backend + Send>,
    relay: Handle,
    /// The services whose ports the relay was told.
    told: BTreeSet<ObjectKey>,
}

impl LocalhostNodePorts {
    /// Everything is passed on to `inner`; `relay` learns what succeeded.
    pub fn new(inner: Box<dyn Backend + Send>, relay: Handle) -> Self {
        Self { inner, relay, told: BTreeSet::new() }
    }

    fn tell(&mut self, service: ObjectKey, ports: Vec<NodePort>) {
        let known = if ports.is_empty() {
            self.told.remove(&service)
        } else {
            self.told.insert(service.clone());
            true
        };
        if known {
            self.relay.set(self.inner.family(), service, ports);
        }
    }
}

impl Backend for LocalhostNodePorts {
    fn family(&self) -> Family {
        self.inner.family()
    }

    fn rebuild(&mut self, services: &Services<'_>, facts: &Facts) -> Result<Report, SyncError> {
        let wanted = RefCell::new(Vec::new());
        let overheard = |each: &mut dyn FnMut(ResolvedService)| {
            wanted.borrow_mut().clear();
            services(&mut |service| {
                let ports = node_ports(&service);
                if !ports.is_empty() {
                    wanted.borrow_mut().push((service.key.clone(), ports));
                }
                each(service);
            });
        };
        let report = self.inner.rebuild(&overheard, facts)?;
        let mut gone = std::mem::take(&mut self.told);
        for (service, ports) in wanted.into_inner() {
            gone.remove(&service);
            self.tell(service, ports);
        }
        for service in gone {
            self.relay.set(self.inner.family(), service, Vec::new());
        }
        Ok(report)
    }

    fn update(
        &mut self,
        changes: Vec<(ObjectKey, Option<ResolvedService>)>,
        facts: &Facts,
    ) -> Result<Report, SyncError> {
        let of_change = |(key, service): &(ObjectKey, Option<ResolvedService>)| {
            (key.clone(), service.as_ref().map(node_ports).unwrap_or_default())
        };
        let wanted: Vec<_> = changes.iter().map(of_change).collect();
        let report = self.inner.update(changes, facts)?;
        for (service, ports) in wanted {
            self.tell(service, ports);
        }
        Ok(report)
    }
}

/// The node ports of a service that can be relayed.
fn node_ports(service: &ResolvedService) -> Vec<NodePort> {
    let affinity = service.affinity_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    let of_port = |port: &ResolvedPort| {
        let transport = match port.protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            Protocol::Sctp => return None,
        };
        let number = port.frontends.iter().find_map(|frontend| match frontend {
            Frontend::NodePort(number) => Some(*number),
            _ => None,
        })?;
        let backends = match service.external_policy {
            Policy::Cluster => &port.cluster,
            Policy::Local => &port.local,
        };
        let address = |endpoint: &Endpoint| SocketAddr::new(endpoint.address, endpoint.port);
        let endpoints = backends.iter().map(|backend| address(&backend.endpoint)).collect();
        let departed = port.departed.iter().map(address).collect();
        Some(NodePort { transport, number, endpoints, departed, affinity })
    };
    service.ports.iter().filter_map(of_port).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::Told;

    /// A data plane that refuses everything while this is set.
    struct Plane(Arc<AtomicBool>);

    impl Plane {
        fn outcome(&self) -> Result<Report, SyncError> {
            let error = SyncError { what: "writing".into(), cause: "refused".into(), service: None };
            if self.0.load(Ordering::SeqCst) {
                Err(error)
            } else {
                Ok(Report { written: 7, ..Report::default() })
            }
        }
    }

    impl Backend for Plane {
        fn family(&self) -> Family {
            Family::V6
        }

        fn rebuild(&mut self, services: &Services<'_>, _: &Facts) -> Result<Report, SyncError> {
            services(&mut |_| ());
            self.outcome()
        }

        fn update(
            &mut self,
            _: Vec<(ObjectKey, Option<ResolvedService>)>,
            _: &Facts,
        ) -> Result<Report, SyncError> {
            self.outcome()
        }
    }

    struct Test {
        backend: LocalhostNodePorts,
        refuses: Arc<AtomicBool>,
        inbox: UnboundedReceiver<Told>,
    }

    impl Test {
        fn new() -> Self {
            let (sender, inbox) = unbounded_channel();
            let refuses = Arc::new(AtomicBool::new(false));
            let plane = Box::new(Plane(Arc::clone(&refuses)));
            Self { backend: LocalhostNodePorts::new(plane, Handle(sender)), refuses, inbox }
        }

        fn update(&mut self, changes: Vec<(ObjectKey, Option<ResolvedService>)>) -> bool {
            let report = self.backend.update(changes, &Facts::default());
            report.is_ok_and(|report| report.written == 7)
        }

        fn rebuild(&mut self, services: &[ResolvedService]) -> bool {
            let all = |tell: &mut dyn FnMut(ResolvedService)| services.iter().cloned().for_each(tell);
            let report = self.backend.rebuild(&all, &Facts::default());
            report.is_ok_and(|report| report.written == 7)
        }

        /// Names, and of each port the endpoints, the departed ones after a dagger.
        fn told(&mut self) -> Vec<(String, Vec<Vec<String>>)> {
            let mut all = Vec::new();
            while let Ok(told) = self.inbox.try_recv() {
                assert_eq!(told.family, Family::V6);
                let hosts = |port: &NodePort| {
                    let departed = port.departed.iter().map(|endpoint| format!("†{endpoint}"));
                    port.endpoints.iter().map(ToString::to_string).chain(departed).collect()
                };
                all.push((told.service.name().to_owned(), told.ports.iter().map(hosts).collect()));
            }
            all
        }
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("default", name)
    }

    fn backend(host: u16, local: bool) -> model::Backend {
        let address = [0x2001, 0xdb8, 0, 0, 0, 0, 0, host].into();
        model::Backend { endpoint: Endpoint { address, port: 80 }, local }
    }

    /// A service with one TCP port, one endpoint on this node and one elsewhere.
    fn service(name: &str, frontends: Vec<Frontend>) -> ResolvedService {
        let port = ResolvedPort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
            frontends,
            cluster: vec![backend(1, true), backend(2, false)],
            local: vec![backend(1, true)],
            any_endpoint: true,
            departed: vec![],
        };
        ResolvedService {
            key: key(name),
            ports: vec![port],
            affinity_seconds: None,
            internal_policy: Policy::Cluster,
            external_policy: Policy::Cluster,
            source_ranges: vec![],
            health_check_node_port: None,
        }
    }

    fn change(service: &ResolvedService) -> Vec<(ObjectKey, Option<ResolvedService>)> {
        vec![(service.key.clone(), Some(service.clone()))]
    }

    const ONE: &str = "[2001:db8::1]:80";
    const TWO: &str = "[2001:db8::2]:80";

    #[test]
    fn the_relay_gets_the_endpoints_that_the_external_policy_allows_and_those_that_departed() {
        let mut test = Test::new();
        let mut web = service("web", vec![Frontend::NodePort(30080)]);
        assert!(test.update(change(&web)));
        assert_eq!(test.told(), [("web".into(), vec![vec![ONE.into(), TWO.into()]])]);
        web.external_policy = Policy::Local;
        assert!(test.update(change(&web)));
        assert_eq!(test.told(), [("web".into(), vec![vec![ONE.into()]])]);
        web.ports[0].local.clear();
        web.ports[0].departed = vec![backend(1, true).endpoint];
        assert!(test.update(change(&web)));
        assert_eq!(test.told(), [("web".into(), vec![vec![format!("†{ONE}")]])]);
    }

    #[test]
    fn services_without_a_node_port_for_tcp_or_udp_are_not_told_of() {
        let mut test = Test::new();
        let inside = service("inside", vec![Frontend::ClusterIp([0; 16].into())]);
        let mut sctp = service("sctp", vec![Frontend::NodePort(30080)]);
        sctp.ports[0].protocol = Protocol::Sctp;
        assert!(test.update(change(&inside)) && test.update(change(&sctp)));
        assert!(test.rebuild(&[inside, sctp]));
        assert_eq!(test.told(), []);
    }

    #[test]
    fn a_service_that_loses_its_node_port_or_goes_is_withdrawn_once() {
        let mut test = Test::new();
        for gone in [Some(service("web", vec![])), None] {
            assert!(test.update(change(&service("web", vec![Frontend::NodePort(30080)]))));
            test.told();
            for _ in 0..2 {
                assert!(test.update(vec![(key("web"), gone.clone())]));
            }
            assert_eq!(test.told(), [("web".into(), vec![])]);
        }
    }

    #[test]
    fn a_rebuild_tells_of_all_services_and_withdraws_the_others() {
        let mut test = Test::new();
        let [a, b] = ["a", "b"].map(|name| service(name, vec![Frontend::NodePort(30080)]));
        assert!(test.rebuild(&[a.clone(), b]));
        assert_eq!(test.told().len(), 2);
        assert!(test.rebuild(&[a]));
        assert_eq!(test.told(), [("a".into(), vec![vec![ONE.into(), TWO.into()]]), ("b".into(), vec![])]);
    }

    #[test]
    fn a_rebuild_resolves_services_as_often_as_the_data_plane_wants_them() {
        let mut test = Test::new();
        let resolved = Cell::new(0);
        let all = |tell: &mut dyn FnMut(ResolvedService)| {
            resolved.set(resolved.get() + 1);
            tell(service("web", vec![Frontend::NodePort(30080)]));
        };
        test.backend.rebuild(&all, &Facts::default()).unwrap();
        assert_eq!(test.told().len(), 1);
        assert_eq!(resolved.get(), 1);
    }

    #[test]
    fn what_the_data_plane_refuses_is_not_told() {
        let mut test = Test::new();
        let web = service("web", vec![Frontend::NodePort(30080)]);
        test.refuses.store(true, Ordering::SeqCst);
        assert!(!test.update(change(&web)) && !test.rebuild(std::slice::from_ref(&web)));
        assert_eq!(test.told(), []);
        test.refuses.store(false, Ordering::SeqCst);
        assert!(test.update(change(&web)));
        test.refuses.store(true, Ordering::SeqCst);
        assert!(!test.update(vec![(key("web"), None)]) && !test.rebuild(&[]));
        assert_eq!(test.told().len(), 1, "the listeners stay as the rules do");
    }
}
