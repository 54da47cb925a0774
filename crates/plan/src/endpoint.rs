//! Endpoints as policy sees them: which policies and profiles apply to whom, in which order.

use crate::policy::{Direction, PolicyId};
use crate::workload::WorkloadId;
use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;

/// The policies of one tier that concern one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    pub name: String,
    /// What becomes of a packet that a policy of this tier governs and no rule matches.
    pub end: TierEnd,
    /// In the order of evaluation; staged policies are among them and decide nothing. Endpoints with the same policies share them.
    pub ingress: Arc<[PolicyId]>,
    pub egress: Arc<[PolicyId]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TierEnd {
    #[default]
    Deny,
    Pass,
}

impl Tier {
    pub fn policies(&self, direction: Direction) -> &[PolicyId] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// The policy of a local workload. Its interface drops everything while this is not in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadPolicy {
    pub interface: String,
    /// An endpoint that is administratively down passes nothing.
    pub up: bool,
    pub addresses: Vec<IpAddr>,
    /// Sources it may use besides its own addresses.
    pub allowed_sources: Vec<IpNet>,
    pub tiers: Vec<Tier>,
    /// In the order of evaluation.
    pub profiles: Vec<String>,
}

/// A host endpoint of this node. Which interface it is about depends on the host's addresses: see [`crate::assign`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostEndpoint {
    /// An interface, `*` for all, or empty: the interface that has one of the expected addresses.
    pub interface: String,
    pub expected: Vec<IpAddr>,
    /// For what ends or begins at the host itself.
    pub tiers: Vec<Tier>,
    pub profiles: Vec<String>,
    pub untracked: Vec<Tier>,
    pub pre_dnat: Vec<Tier>,
    pub forward: Vec<Tier>,
    /// What the host sends out of the cluster by its expected addresses carries this code point.
    pub dscp: Option<u8>,
}

/// Who an endpoint is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointId {
    Workload(WorkloadId),
    /// By the name of the resource.
    Host(String),
}
