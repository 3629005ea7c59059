//! What a data plane does for one address family.

use std::net::IpAddr;

use ipnet::IpNet;
use model::{Family, ObjectKey, ResolvedService};

/// What a data plane needs to know beside the services. Changes while running, unlike its own settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The networks of the ServiceCIDRs, both families.
    pub service_cidrs: Vec<IpNet>,
    /// The addresses that take node port traffic, both families, sorted. Without meaning for a family whose settings
    /// say that all do.
    pub node_port_addresses: Vec<IpAddr>,
}

/// How traffic of this node's pods is told from other traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalDetector {
    /// It is not told apart.
    None,
    /// By its source address.
    Cidr(IpNet),
    /// By the interface it comes in through.
    Interface(String),
    /// By the first characters of that interface's name.
    InterfacePrefix(String),
}

/// Tells every service, once each time it is called. A function, so that no second copy of the cluster is made.
pub type Services<'a> = dyn Fn(&mut dyn FnMut(ResolvedService)) + 'a;

/// What a sync did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Kernel objects added or deleted.
    pub written: usize,
    /// Another program may have written meanwhile, unnoticed: a full comparison of all families is due.
    pub compare_again: bool,
    /// Policy-Local cluster IPs of this family without a local endpoint, though there are endpoints elsewhere.
    pub internal_without_local_endpoints: usize,
    /// The same for the other frontends.
    pub external_without_local_endpoints: usize,
}

/// Why a sync failed. The kernel holds what it held before.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {cause}")]
pub struct SyncError {
    /// What was being done, to which object.
    pub what: String,
    /// What the kernel said, and what to do about it.
    pub cause: String,
    /// The service at fault, when it is one: the others can go on without it.
    pub service: Option<ObjectKey>,
}

/// A data plane for one address family. Owns its kernel state and knows what it last wrote.
pub trait Backend {
    /// The family it serves.
    fn family(&self) -> Family;

    /// Brings the kernel from whatever it holds to exactly these services, writing only what differs. Start and
    /// repair are both this.
    fn rebuild(&mut self, services: &Services<'_>, facts: &Facts) -> Result<Report, SyncError>;

    /// Brings the kernel from what was last written to what these changed services and `facts` want, in one
    /// transaction; `None` where a service is gone.
    fn update(
        &mut self,
        changes: Vec<(ObjectKey, Option<ResolvedService>)>,
        facts: &Facts,
    ) -> Result<Report, SyncError>;
}
