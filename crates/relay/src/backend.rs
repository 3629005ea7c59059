//! Listening in on a data plane.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use dataplane::{Backend, Facts, Report, Services, SyncError};
use model::{Family, Frontend, ObjectKey, Policy, Protocol, ResolvedPort, ResolvedService};

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
        let report = self.inner.rebuild(services, facts)?;
        let mut gone = std::mem::take(&mut self.told);
        services(&mut |service| {
            let ports = node_ports(&service);
            if !ports.is_empty() {
                gone.remove(&service.key);
                self.tell(service.key, ports);
            }
        });
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
        let address =
            |backend: &model::Backend| SocketAddr::new(backend.endpoint.address, backend.endpoint.port);
        Some(NodePort { transport, number, endpoints: backends.iter().map(address).collect(), affinity })
    };
    service.ports.iter().filter_map(of_port).collect()
}

#[cfg(test)]
mod tests {}
