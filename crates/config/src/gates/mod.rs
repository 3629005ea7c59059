//! Feature gates: which exist, what they default to, and what became of retired ones.

mod foreign;

use std::collections::BTreeMap;

use crate::findings::Findings;
use foreign::FOREIGN;

/// A gate this program looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gate {
    /// Allow services with `externalIPs` (KEP-5707).
    AllowServiceExternalIps,
    /// Serve `/flagz` (KEP-4828).
    ComponentFlagz,
    /// Serve `/statusz` (KEP-4827).
    ComponentStatusz,
    /// Attach fields to log lines (KEP-3077).
    ContextualLogging,
    /// Allow the mode `ipvs` (KEP-5495).
    KubeProxyIpvs,
    /// Node ports on loopback in nftables mode, where they are asked for (KEP-6032).
    NftablesLocalhostNodePorts,
    /// Allow logging options of alpha quality: split streams and their buffers.
    LoggingAlphaOptions,
    /// Allow logging options of beta quality: the JSON format.
    LoggingBetaOptions,
    /// Talk netlink to nftables. Always the case here.
    NftablesNetlink,
    /// Fill caches by one watch instead of a list (KEP-3157).
    WatchListClient,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
    /// On or off for compatibility, not moved by `AllAlpha` and `AllBeta`.
    Fixed,
}

impl Stage {
    fn word(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Fixed => "",
        }
    }
}

/// Every gate this program looks at: its name, stage and default.
const OWN: &[(Gate, &str, Stage, bool)] = &[
    (Gate::AllowServiceExternalIps, "AllowServiceExternalIPs", Stage::Fixed, true),
    (Gate::ComponentFlagz, "ComponentFlagz", Stage::Beta, true),
    (Gate::ComponentStatusz, "ComponentStatusz", Stage::Beta, true),
    (Gate::ContextualLogging, "ContextualLogging", Stage::Beta, true),
    (Gate::KubeProxyIpvs, "KubeProxyIPVS", Stage::Fixed, true),
    (Gate::NftablesLocalhostNodePorts, "KubeProxyNFTablesLocalhostNodePorts", Stage::Alpha, true),
    (Gate::LoggingAlphaOptions, "LoggingAlphaOptions", Stage::Alpha, false),
    (Gate::LoggingBetaOptions, "LoggingBetaOptions", Stage::Beta, true),
    (Gate::NftablesNetlink, "NFTablesNetlink", Stage::Beta, true),
    (Gate::WatchListClient, "WatchListClient", Stage::Beta, true),
];

/// Gates that were once looked at by a node proxy and whose feature is now always on.
const RETIRED: &[&str] = &[
    "EndpointSlice",
    "EndpointSliceProxying",
    "EndpointSliceTerminatingCondition",
    "ExternalPolicyForExternalIP",
    "IPTablesOwnershipCleanup",
    "IPv6DualStack",
    "KubeProxyDrainingTerminatingNodes",
    "LoadBalancerIPMode",
    "MinimizeIPTablesRestore",
    "MixedProtocolLBService",
    "MultiCIDRServiceAllocator",
    "NFTablesProxyMode",
    "PreferSameTrafficDistribution",
    "ProxyTerminatingEndpoints",
    "SCTPSupport",
    "ServiceInternalTrafficPolicy",
    "ServiceLBNodePortControl",
    "ServiceTopology",
    "ServiceTrafficDistribution",
    "SupportIPVSProxyMode",
    "TopologyAwareHints",
];

/// Which gates are on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<Gate, bool>);

impl FeatureGates {
    /// Whether a gate is on.
    pub fn enabled(&self, gate: Gate) -> bool {
        self.0.get(&gate).copied().unwrap_or(false)
    }

    /// All gates this program looks at, sorted by name: name, stage (`ALPHA`, `BETA` or empty) and value.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, bool)> + '_ {
        OWN.iter().map(|(gate, name, stage, _)| (*name, stage.word(), self.enabled(*gate)))
    }
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self(OWN.iter().map(|(gate, _, _, default)| (*gate, *default)).collect())
    }
}

/// Names, stages and defaults for the documentation, sorted by name.
pub(crate) fn documented() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    OWN.iter().map(|(_, name, stage, default)| {
        let stage = match stage {
            Stage::Alpha => "alpha",
            Stage::Beta => "beta",
            Stage::Fixed => "compatibility",
        };
        (*name, stage, *default)
    })
}

/// Names of the retired gates for the documentation.
pub(crate) fn retired() -> &'static [&'static str] {
    RETIRED
}

/// Turns what the user asked for into gates. Unknown names are mistakes; retired and foreign ones warnings.
pub(crate) fn resolve(asked: &BTreeMap<String, bool>, findings: &mut Findings) -> FeatureGates {
    let mut gates = FeatureGates::default();
    for (group, stage) in [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)] {
        if let Some(value) = asked.get(group) {
            let members = OWN.iter().filter(|(_, _, own, _)| *own == stage);
            gates.0.extend(members.map(|(gate, ..)| (*gate, *value)));
        }
    }
    let mut foreign = Vec::new();
    for (name, value) in asked {
        if let Some((gate, ..)) = OWN.iter().find(|(_, own, ..)| own == name) {
            gates.0.insert(*gate, *value);
        } else if RETIRED.contains(&name.as_str()) {
            findings.warn(format!("feature gate {name} is retired and has no effect: remove it"));
        } else if FOREIGN.contains(&name.as_str()) {
            foreign.push(name.as_str());
        } else if name != "AllAlpha" && name != "AllBeta" {
            let known: Vec<_> = OWN.iter().map(|(_, own, ..)| *own).collect();
            let allowed = format!("no such feature gate, known are {}", known.join(", "));
            findings.mistake(format!("featureGates.{name}"), value, allowed);
        }
    }
    if !foreign.is_empty() {
        let names = foreign.join(", ");
        findings.warn(format!("feature gates of other components have no effect here: {names}"));
    }
    if !gates.enabled(Gate::NftablesNetlink) {
        findings.warn("feature gate NFTablesNetlink=false has no effect: nftables is only used by netlink");
    }
    gates
}
