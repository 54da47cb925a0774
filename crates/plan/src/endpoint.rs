//! Endpoints as policy sees them: the policies and profiles that apply to each endpoint, in order.

use crate::policy::{PolicyDirection, PolicyId};
use crate::workload::WorkloadId;
use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;

/// The policies of one tier that apply to one endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointTier {
    pub name: String,
    /// Action for packets to which a policy of this tier applies and which no rule matches.
    pub end: TierDefaultAction,
    /// In the order of evaluation. Staged policies are included and decide nothing. Endpoints with the same policies
    /// share the list.
    pub ingress: Arc<[PolicyId]>,
    pub egress: Arc<[PolicyId]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TierDefaultAction {
    #[default]
    Deny,
    Pass,
}

impl EndpointTier {
    pub fn policies(&self, direction: PolicyDirection) -> &[PolicyId] {
        match direction {
            PolicyDirection::Ingress => &self.ingress,
            PolicyDirection::Egress => &self.egress,
        }
    }
}

/// The policy of a local workload. Its interface drops all packets until this policy is in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct WorkloadPolicy {
    pub interface: String,
    /// An endpoint that is administratively down passes no packets.
    pub up: bool,
    pub addresses: Vec<IpAddr>,
    /// Source prefixes that it may use besides its own addresses.
    pub allowed_sources: Vec<IpNet>,
    pub tiers: Vec<EndpointTier>,
    /// In the order of evaluation.
    pub profiles: Vec<String>,
    /// A proxy of the workload receives its policy and is in sync, so that rules with HTTP conditions let connections
    /// pass to it.
    pub http_proxy: bool,
}

/// A host endpoint of this node. [`crate::assign`] determines its interface, which depends on the host's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HostEndpointPolicy {
    /// An interface name, `*` for all interfaces, or empty for the interface that has one of the expected addresses.
    pub interface: String,
    pub expected: Vec<IpAddr>,
    /// Policies for packets that start or end at the host itself.
    pub tiers: Vec<EndpointTier>,
    pub profiles: Vec<String>,
    pub untracked: Vec<EndpointTier>,
    pub pre_dnat: Vec<EndpointTier>,
    pub forward: Vec<EndpointTier>,
    /// DSCP of packets that the host sends out of the cluster from its expected addresses.
    pub dscp: Option<u8>,
}

/// Identifies an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointId {
    Workload(WorkloadId),
    /// The name of the HostEndpoint resource.
    Host(String),
}
