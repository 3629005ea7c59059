//! The labels of metrics, and what the constant ones are made from.

use model::{Family, Kind};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FamilyLabel {
    ip_family: FamilyValue,
}

impl From<Family> for FamilyLabel {
    fn from(family: Family) -> Self {
        Self { ip_family: family.into() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum FamilyValue {
    IPv4,
    IPv6,
}

impl From<Family> for FamilyValue {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::IPv4,
            Family::V6 => Self::IPv6,
        }
    }
}

/// Which of a service's traffic policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrafficPolicy {
    /// `internalTrafficPolicy`.
    Internal,
    /// `externalTrafficPolicy`.
    External,
}

impl EncodeLabelValue for TrafficPolicy {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(
            &match self {
                Self::Internal => "internal",
                Self::External => "external",
            },
            encoder,
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PolicyLabels {
    pub(super) ip_family: FamilyValue,
    pub(super) traffic_policy: TrafficPolicy,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CodeLabel {
    pub(super) code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct KindLabel {
    kind: KindValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum KindValue {
    Service,
    EndpointSlice,
    Node,
    ServiceCIDR,
}

impl From<Kind> for KindLabel {
    fn from(kind: Kind) -> Self {
        let kind = match kind {
            Kind::Service => KindValue::Service,
            Kind::Slice => KindValue::EndpointSlice,
            Kind::Node => KindValue::Node,
            Kind::ServiceCidr => KindValue::ServiceCIDR,
        };
        Self { kind }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub(super) code: String,
    pub(super) host: String,
    pub(super) method: String,
}

/// What is running, for `kubernetes_build_info`. What is not known is left empty.
#[derive(Clone, Debug, Default)]
pub struct Build {
    /// The Kubernetes release whose behaviour the program has, `v1.37.2`.
    pub version: String,
    /// The commit it was built from.
    pub commit: String,
    /// `clean` or `dirty`.
    pub tree_state: String,
    /// When it was built, RFC 3339.
    pub date: String,
}

impl Build {
    pub(super) fn labels(&self) -> BuildLabels {
        let mut numbers = self.version.trim_start_matches('v').split('.').map(str::to_owned);
        BuildLabels {
            build_date: self.date.clone(),
            compiler: "rustc",
            git_commit: self.commit.clone(),
            git_tree_state: self.tree_state.clone(),
            git_version: self.version.clone(),
            go_version: "",
            major: numbers.next().unwrap_or_default(),
            minor: numbers.next().unwrap_or_default(),
            platform: platform(),
        }
    }
}

/// Operating system and processor under Go's names, `linux/amd64`.
fn platform() -> String {
    let processor = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    };
    format!("{}/{processor}", std::env::consts::OS)
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BuildLabels {
    build_date: String,
    compiler: &'static str,
    git_commit: String,
    git_tree_state: String,
    git_version: String,
    go_version: &'static str,
    major: String,
    minor: String,
    platform: String,
}

/// A feature gate, for `kubernetes_feature_enabled`.
#[derive(Clone, Debug)]
pub struct Feature {
    /// Name of the gate.
    pub name: String,
    /// `ALPHA`, `BETA`, `DEPRECATED`, or empty when it is generally available.
    pub stage: String,
    /// Whether it is on.
    pub enabled: bool,
}

impl Feature {
    pub(super) fn labels(&self) -> FeatureLabels {
        FeatureLabels { name: self.name.clone(), stage: self.stage.clone() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FeatureLabels {
    name: String,
    stage: String,
}
