//! Which service has an address and port that several ask for.
//!
//! In: what each service claims. Out: who holds each claim, and whose share changed. The oldest service has a site, of
//! equally old ones that with the smaller `namespace/name`, within a service the first port; so every node comes to the
//! same answer, in whatever order it was told. The cost of a change is the logarithm of the number of claims.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::ops::Bound;

use crate::{Family, Frontend, ObjectKey, Protocol};

/// Where connections arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// At this address.
    Address(IpAddr),
    /// At the node's addresses of this family.
    Node(Family),
}

/// What only one service port can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// Address, or the node's addresses.
    pub place: Place,
    /// Protocol of the connections.
    pub protocol: Protocol,
    /// Port they arrive at.
    pub port: u16,
}

impl Site {
    /// The family of the connections that arrive there.
    pub fn family(&self) -> Family {
        match self.place {
            Place::Address(address) => Family::of(address),
            Place::Node(family) => family,
        }
    }
}

/// A service port wants a site. The order is that of precedence: of the claims to one site the smallest holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    pub(crate) site: Site,
    /// Not as a cluster IP: nobody can take over the cluster IP of another service (CVE-2020-8554).
    pub(crate) external: bool,
    /// When the service was created, seconds since 1970.
    pub(crate) created: i64,
    pub(crate) service: ObjectKey,
    /// Which of its ports.
    pub(crate) index: u16,
}

/// All claims of all services.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    all: BTreeSet<Claim>,
    /// Those that began not to hold since [`Claims::take_lost`].
    lost: BTreeSet<Claim>,
}

impl Claims {
    /// Whether the claim has its site.
    pub(crate) fn holds(&self, claim: &Claim) -> bool {
        self.before(claim).is_none()
    }

    /// The claim that has the site.
    pub(crate) fn holder(&self, site: Site) -> Option<&Claim> {
        let service = ObjectKey::new("", "");
        let first = Claim { site, external: false, created: i64::MIN, service, index: 0 };
        self.all.range(first..).next().filter(|claim| claim.site == site)
    }

    /// One service's claims, sorted, change from `old` to `new`. Adds to `affected` the services that win or lose a
    /// site by that.
    pub(crate) fn replace(&mut self, old: &[Claim], new: &[Claim], affected: &mut BTreeSet<ObjectKey>) {
        for claim in old.iter().filter(|claim| new.binary_search(claim).is_err()) {
            self.remove(claim, affected);
        }
        for claim in new.iter().filter(|claim| old.binary_search(claim).is_err()) {
            self.insert(claim, affected);
        }
    }

    /// The claims that began not to hold since the last call and still do not, each with the one that holds.
    pub(crate) fn take_lost(&mut self) -> Vec<(Claim, Claim)> {
        let mut holder: Option<Claim> = None;
        let mut pairs = Vec::new();
        for lost in std::mem::take(&mut self.lost) {
            if holder.as_ref().is_none_or(|holder| holder.site != lost.site) {
                holder =
                    self.all.range(..&lost).rev().take_while(|claim| claim.site == lost.site).last().cloned();
            }
            if let Some(holder) = &holder {
                pairs.push((lost, holder.clone()));
            }
        }
        pairs
    }

    fn insert(&mut self, claim: &Claim, affected: &mut BTreeSet<ObjectKey>) {
        self.all.insert(claim.clone());
        if !self.holds(claim) {
            self.lost.insert(claim.clone());
        } else if let Some(displaced) = self.after(claim).cloned() {
            affected.insert(displaced.service.clone());
            self.lost.insert(displaced);
        }
    }

    fn remove(&mut self, claim: &Claim, affected: &mut BTreeSet<ObjectKey>) {
        if self.holds(claim)
            && let Some(heir) = self.after(claim).cloned()
        {
            self.lost.remove(&heir);
            affected.insert(heir.service);
        }
        self.all.remove(claim);
        self.lost.remove(claim);
    }

    /// The claim to the same site that comes just before.
    fn before(&self, claim: &Claim) -> Option<&Claim> {
        self.all.range(..claim).next_back().filter(|other| other.site == claim.site)
    }

    /// The claim to the same site that comes just after.
    fn after(&self, claim: &Claim) -> Option<&Claim> {
        let behind = (Bound::Excluded(claim), Bound::Unbounded);
        self.all.range::<Claim, _>(behind).next().filter(|other| other.site == claim.site)
    }
}

/// A service port goes without one of its frontends, because another has it. Its text is a sentence for the operator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The service that goes without.
    pub service: ObjectKey,
    /// The name of its port, may be empty.
    pub port_name: Box<str>,
    /// What it goes without.
    pub frontend: Frontend,
    /// Protocol of the frontend.
    pub protocol: Protocol,
    /// Port of the frontend.
    pub port: u16,
    /// The service that has it.
    pub holder: ObjectKey,
    /// Why that one has it.
    pub reason: Precedence,
}

/// Why one claim goes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precedence {
    /// It is its cluster IP, and the other one's external or load balancer IP.
    ClusterIp,
    /// Its service was created earlier.
    Older,
    /// Both services were created in the same second, and its `namespace/name` is the smaller one.
    Name,
    /// Both are of one service, and its port is listed earlier.
    PortOrder,
}

impl Precedence {
    /// Why `holder` goes before `other`.
    pub(crate) fn between(holder: &Claim, other: &Claim) -> Self {
        if holder.service == other.service {
            Self::PortOrder
        } else if holder.external != other.external {
            Self::ClusterIp
        } else if holder.created == other.created {
            Self::Name
        } else {
            Self::Older
        }
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service {}", self.service)?;
        if !self.port_name.is_empty() {
            write!(f, " port {}", self.port_name)?;
        }
        match self.frontend {
            Frontend::NodePort(_) => f.write_str(": node port ")?,
            Frontend::ClusterIp(address) => write!(f, ": cluster IP {address} port ")?,
            Frontend::ExternalIp(address) => write!(f, ": external IP {address} port ")?,
            Frontend::LoadBalancerIp(address) => write!(f, ": load balancer IP {address} port ")?,
        }
        write!(f, "{}/{} is already taken by ", self.port, self.protocol)?;
        match self.reason {
            Precedence::ClusterIp => write!(f, "{} (its cluster IP); skipped", self.holder),
            Precedence::Older => write!(f, "{} (created earlier); skipped", self.holder),
            Precedence::Name => write!(f, "{} (as old, and its name sorts first); skipped", self.holder),
            Precedence::PortOrder => f.write_str("an earlier port of the same service; skipped"),
        }
    }
}
