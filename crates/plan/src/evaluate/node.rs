//! A node and the paths of packets through it.

use super::cause::{EvaluationTrace, VerdictCause};
use super::index::EvaluationIndex;
use super::packet::{ConntrackState, Packet};
use super::walk::PacketWalk;
use crate::assign::HostEndpointAssignment;
use crate::change::NodePlan;
use crate::endpoint::{HostEndpointPolicy, WorkloadPolicy};
use crate::settings::{DataplaneSettings, PolicySettings};
use crate::workload::WorkloadId;
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::ControlFlow;

/// Where a packet enters or leaves a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathPlace<'a> {
    /// The host itself sends or receives the packet.
    Host,
    Interface(&'a str),
}

/// The path of a packet through a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketPath<'a> {
    pub from: PathPlace<'a>,
    pub to: PathPlace<'a>,
    pub connection: ConntrackState,
    /// Destination address and port before DNAT.
    pub original_destination: Option<(IpAddr, u16)>,
}

impl<'a> PacketPath<'a> {
    pub fn new(from: PathPlace<'a>, to: PathPlace<'a>) -> PacketPath<'a> {
        PacketPath { from, to, connection: ConntrackState::New, original_destination: None }
    }
}

/// The verdict on a packet, and the last cause that decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeVerdict<'p> {
    pub allowed: bool,
    pub cause: VerdictCause<'p>,
}

/// A node with all state that its verdicts depend on.
#[derive(Clone, Debug)]
pub struct NodeEvaluator<'p> {
    plan: &'p NodePlan,
    index: EvaluationIndex<'p>,
    settings: &'p DataplaneSettings,
    assignment: HostEndpointAssignment,
    workloads: HashMap<&'p str, (&'p WorkloadId, &'p WorkloadPolicy)>,
}

impl<'p> NodeEvaluator<'p> {
    pub fn new(
        plan: &'p NodePlan,
        settings: &'p DataplaneSettings,
        assignment: HostEndpointAssignment,
    ) -> NodeEvaluator<'p> {
        let workloads = plan
            .workload_policies
            .iter()
            .map(|(id, workload_policy)| (workload_policy.interface.as_str(), (id, workload_policy)));
        NodeEvaluator {
            plan,
            index: EvaluationIndex::new(plan),
            settings,
            assignment,
            workloads: workloads.collect(),
        }
    }

    /// Returns the evaluator of the same node as if its staged policies were enforced.
    pub fn with_staged_enforced(&self) -> NodeEvaluator<'p> {
        let mut evaluator = self.clone();
        evaluator.index.enforce_staged(true);
        evaluator
    }

    pub fn plan(&self) -> &'p NodePlan {
        self.plan
    }

    pub fn index(&self) -> &EvaluationIndex<'p> {
        &self.index
    }

    pub fn judge(
        &self,
        packet: &Packet,
        way: &PacketPath<'_>,
        trace: Option<&mut EvaluationTrace<'p>>,
    ) -> NodeVerdict<'p> {
        let mut original = *packet;
        if let Some((destination, port)) = way.original_destination {
            original.destination = destination;
            original.destination_port = port;
        }
        let mut walk = PacketWalk::new(self, *packet, original, way.connection, trace);
        let end = match (way.from, way.to) {
            (PathPlace::Interface(from), PathPlace::Host) => walk.input(from),
            (PathPlace::Interface(from), PathPlace::Interface(to)) => walk.forward(from, to),
            (PathPlace::Host, PathPlace::Interface(to)) => walk.output(to),
            (PathPlace::Host, PathPlace::Host) => walk.loopback(),
        };
        match end {
            ControlFlow::Continue(cause) => NodeVerdict { allowed: true, cause },
            ControlFlow::Break(cause) => NodeVerdict { allowed: false, cause },
        }
    }

    pub(super) fn policy(&self) -> &'p PolicySettings {
        &self.settings.policy
    }

    pub(super) fn leads_to_workload(&self, interface: &str) -> bool {
        self.settings.interface_prefixes.iter().any(|prefix| interface.starts_with(prefix.as_str()))
            || self.workloads.contains_key(interface)
    }

    pub(super) fn workload(&self, interface: &str) -> Option<(&'p WorkloadId, &'p WorkloadPolicy)> {
        self.workloads.get(interface).copied()
    }

    /// Returns the host endpoint that applies to an interface.
    pub(super) fn host_endpoint(&self, interface: &str) -> Option<(&'p str, &'p HostEndpointPolicy)> {
        self.host_endpoint_named(self.assignment.of(interface)?)
    }

    /// Returns the host endpoint of this specific interface, ignoring the one for all interfaces.
    pub(super) fn own_host_endpoint(&self, interface: &str) -> Option<(&'p str, &'p HostEndpointPolicy)> {
        self.host_endpoint_named(self.assignment.specific.get(interface)?)
    }

    fn host_endpoint_named(&self, name: &str) -> Option<(&'p str, &'p HostEndpointPolicy)> {
        let (name, endpoint) = self.plan.host_endpoints.get_key_value(name)?;
        Some((name, endpoint))
    }
}
