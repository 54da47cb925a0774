//! A node and the paths of packets through it.

use super::cause::{Cause, Trace};
use super::index::Index;
use super::packet::{Connection, Packet};
use super::walk::Walk;
use crate::assign::Assignment;
use crate::change::Plan;
use crate::endpoint::{HostEndpoint, WorkloadPolicy};
use crate::settings::{PolicySettings, Settings};
use crate::workload::WorkloadId;
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::ControlFlow;

/// Where a packet enters or leaves a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place<'a> {
    /// The host itself sends or receives the packet.
    Host,
    Interface(&'a str),
}

/// The path of a packet through a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Way<'a> {
    pub from: Place<'a>,
    pub to: Place<'a>,
    pub connection: Connection,
    /// Destination address and port before DNAT.
    pub original_destination: Option<(IpAddr, u16)>,
}

impl<'a> Way<'a> {
    pub fn new(from: Place<'a>, to: Place<'a>) -> Way<'a> {
        Way { from, to, connection: Connection::New, original_destination: None }
    }
}

/// The verdict on a packet, and the last cause that decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement<'p> {
    pub allowed: bool,
    pub cause: Cause<'p>,
}

/// A node with all state that its verdicts depend on.
#[derive(Clone, Debug)]
pub struct Node<'p> {
    index: Index<'p>,
    settings: &'p Settings,
    assignment: Assignment,
    workloads: HashMap<&'p str, (&'p WorkloadId, &'p WorkloadPolicy)>,
}

impl<'p> Node<'p> {
    pub fn new(plan: &'p Plan, settings: &'p Settings, assignment: Assignment) -> Node<'p> {
        let workloads = plan
            .workload_policies
            .iter()
            .map(|(id, workload_policy)| (workload_policy.interface.as_str(), (id, workload_policy)));
        Node { index: Index::new(plan), settings, assignment, workloads: workloads.collect() }
    }

    pub fn index(&self) -> &Index<'p> {
        &self.index
    }

    pub fn judge(&self, packet: &Packet, way: &Way<'_>, trace: Option<&mut Trace<'p>>) -> Judgement<'p> {
        let (destination, destination_port) =
            way.original_destination.unwrap_or((packet.destination, packet.destination_port));
        let original = Packet { destination, destination_port, ..*packet };
        let mut walk = Walk::new(self, *packet, original, way.connection, trace);
        let end = match (way.from, way.to) {
            (Place::Interface(from), Place::Host) => walk.input(from),
            (Place::Interface(from), Place::Interface(to)) => walk.forward(from, to),
            (Place::Host, Place::Interface(to)) => walk.output(to),
            (Place::Host, Place::Host) => walk.loopback(),
        };
        match end {
            ControlFlow::Continue(cause) => Judgement { allowed: true, cause },
            ControlFlow::Break(cause) => Judgement { allowed: false, cause },
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
    pub(super) fn host_endpoint(&self, interface: &str) -> Option<(&'p str, &'p HostEndpoint)> {
        self.host_endpoint_named(self.assignment.of(interface)?)
    }

    /// Returns the host endpoint of this specific interface, ignoring the one for all interfaces.
    pub(super) fn own_host_endpoint(&self, interface: &str) -> Option<(&'p str, &'p HostEndpoint)> {
        self.host_endpoint_named(self.assignment.specific.get(interface)?)
    }

    fn host_endpoint_named(&self, name: &str) -> Option<(&'p str, &'p HostEndpoint)> {
        let (name, endpoint) = self.index.plan.host_endpoints.get_key_value(name)?;
        Some((name, endpoint))
    }
}
