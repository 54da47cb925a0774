//! The path of a packet through a node: from where it enters, through every endpoint it concerns, to where it leaves.

use super::cause::{EvaluationTrace, TraceStep, VerdictCause};
use super::failsafe::{is_failsafe, is_failsafe_reply};
use super::node::NodeEvaluator;
use super::packet::{ConntrackState, Packet};
use super::tiers::{EvaluationStage, PolicyDecision, PolicyOutcome, TraceSink, record_step};
use crate::endpoint::{HostEndpointPolicy, WorkloadPolicy};
use crate::policy::{IpVersion, PolicyDirection};
use crate::set::SetMember;
use crate::settings::EndpointToHostAction;
use crate::tunnel::TunnelKind;
use crate::workload::{WorkloadId, link_local};
use std::net::IpAddr;
use std::ops::ControlFlow;

/// `Break` denies the packet with a cause; `Continue` lets it go on.
type WalkResult<'p, T = VerdictCause<'p>> = ControlFlow<VerdictCause<'p>, T>;

/// The evaluation of one packet on its path.
pub(super) struct PacketWalk<'w, 'p> {
    node: &'w NodeEvaluator<'p>,
    packet: Packet,
    /// The packet before DNAT.
    original: Packet,
    connection: ConntrackState,
    /// A host endpoint has accepted the packet before connection tracking or DNAT.
    accepted: bool,
    trace: TraceSink<'w, 'p>,
}

impl<'w, 'p> PacketWalk<'w, 'p> {
    pub fn new(
        node: &'w NodeEvaluator<'p>,
        packet: Packet,
        original: Packet,
        connection: ConntrackState,
        trace: Option<&'w mut EvaluationTrace<'p>>,
    ) -> PacketWalk<'w, 'p> {
        PacketWalk { node, packet, original, connection, accepted: false, trace }
    }

    pub fn input(&mut self, from: &str) -> WalkResult<'p> {
        self.enter(from)?;
        let tunnel = self.tunnel(self.packet.source);
        if tunnel == Some(false) {
            return self.refuse(VerdictCause::UnknownTunnel);
        }
        if self.node.leads_to_workload(from) {
            self.workload_to_host(from)
        } else if tunnel.is_some() {
            self.grant(VerdictCause::Tunnel)
        } else if self.accepted {
            self.grant(VerdictCause::AcceptedBefore)
        } else {
            self.host(from, PolicyDirection::Ingress)
        }
    }

    pub fn forward(&mut self, from: &str, to: &str) -> WalkResult<'p> {
        self.enter(from)?;
        let mut last = VerdictCause::AcceptedBefore;
        if !self.accepted {
            last = self.forwarded(from, PolicyDirection::Ingress)?;
        }
        if self.node.leads_to_workload(from) {
            if is_link_local(self.packet.destination) {
                return self.refuse(VerdictCause::LinkLocal);
            }
            last = self.workload(from, PolicyDirection::Egress)?;
        }
        if self.node.leads_to_workload(to) {
            last = self.workload(to, PolicyDirection::Ingress)?;
        }
        if let rule @ VerdictCause::Rule(_) = self.forwarded(to, PolicyDirection::Egress)? {
            last = rule;
        }
        if self.goes_round() {
            return self.refuse(VerdictCause::ServiceLoop);
        }
        ControlFlow::Continue(last)
    }

    /// Returns whether the packet is still addressed to a service range: DNAT would have rewritten the address of a
    /// service.
    fn goes_round(&self) -> bool {
        let mut ranges = self.node.plan().service_ranges.iter();
        self.node.policy().service_loop.is_some()
            && !self.connection.is_known()
            && ranges.any(|range| range.contains(&self.packet.destination))
    }

    pub fn output(&mut self, to: &str) -> WalkResult<'p> {
        if self.node.leads_to_workload(to) {
            return self.grant(VerdictCause::HostToWorkload);
        }
        self.forget_tunnel(self.packet.destination);
        self.untracked(to, PolicyDirection::Egress)?;
        if self.accepted {
            return self.grant(VerdictCause::AcceptedBefore);
        }
        if self.node.host_endpoint(to).is_some() && self.tunnel(self.packet.destination) == Some(true) {
            return self.grant(VerdictCause::Tunnel);
        }
        self.host(to, PolicyDirection::Egress)
    }

    /// Marks packets of VXLAN as untracked.
    fn forget_tunnel(&mut self, peer: IpAddr) {
        if let Some(kind) = self.tunnel_kind(peer)
            && kind != TunnelKind::Ipip
            && !kind.is_wireguard()
        {
            self.connection = ConntrackState::Untracked;
        }
    }

    /// Returns the tunnel of this node that the packet belongs to.
    fn tunnel_kind(&self, peer: IpAddr) -> Option<TunnelKind> {
        let tunnels = &self.node.plan().tunnels;
        let mut kinds = tunnels.iter().filter(|(kind, device)| {
            peer.is_ipv4() == kind.is_ipv4() && self.packet.is_encapsulated(device.protocol)
        });
        kinds.next().map(|(kind, _)| *kind)
    }

    /// Returns whether the node at the other end is known, or `None` if the packet belongs to no tunnel of this node.
    fn tunnel(&self, peer: IpAddr) -> Option<bool> {
        let Some(peers) = self.tunnel_kind(peer)?.peers() else { return Some(true) };
        let peers = self.node.plan().sets.get(&peers).into_iter().flat_map(|set| &set.members);
        let mut nets = peers.filter_map(|member| match member {
            SetMember::Net(net) => Some(net),
            SetMember::Port { .. } => None,
        });
        Some(nets.any(|net| net.contains(&peer)))
    }

    /// Evaluates a packet from the host to itself: out of `lo`, and in again.
    pub fn loopback(&mut self) -> WalkResult<'p> {
        self.output("lo")?;
        self.accepted = false;
        self.input("lo")
    }

    /// Evaluates the stages that every incoming packet passes, wherever it goes.
    fn enter(&mut self, from: &str) -> WalkResult<'p, ()> {
        if self.node.leads_to_workload(from) {
            self.genuine(from)?;
        } else {
            self.forget_tunnel(self.packet.source);
            self.untracked(from, PolicyDirection::Ingress)?;
        }
        self.pre_dnat(from)
    }

    /// Checks that a known workload sent the packet from one of the workload's addresses.
    fn genuine(&mut self, from: &str) -> WalkResult<'p, ()> {
        let (id, workload_policy) = self.open(from, PolicyDirection::Egress)?;
        let source = self.packet.source;
        let mac = self.node.plan().workloads.get(id).and_then(|workload| workload.mac);
        let own = workload_policy.addresses.contains(&source)
            || workload_policy.allowed_sources.iter().any(|net| net.contains(&source))
            || is_on_link(source, mac);
        let mut cause = VerdictCause::Spoofed;
        if self.original.destination.is_loopback() || source.is_loopback() {
            cause = VerdictCause::Loopback;
        } else if own {
            return ControlFlow::Continue(());
        }
        record_step(&mut self.trace, || TraceStep::Workload { id, direction: PolicyDirection::Egress });
        self.refuse(cause)
    }

    /// Returns the workload of an interface. Denies the packet if the workload is unknown or down.
    fn open(
        &mut self,
        interface: &str,
        direction: PolicyDirection,
    ) -> WalkResult<'p, (&'p WorkloadId, &'p WorkloadPolicy)> {
        match self.node.workload(interface) {
            Some((id, workload_policy)) if workload_policy.up => ControlFlow::Continue((id, workload_policy)),
            Some((id, _)) => {
                record_step(&mut self.trace, || TraceStep::Workload { id, direction });
                self.refuse(VerdictCause::Down)
            }
            None => self.refuse(VerdictCause::UnknownWorkload),
        }
    }

    /// Evaluates untracked policy. Only host endpoints of a specific interface have it.
    fn untracked(&mut self, interface: &str, direction: PolicyDirection) -> WalkResult<'p, ()> {
        let Some((name, endpoint)) = self.node.own_host_endpoint(interface) else {
            return ControlFlow::Continue(());
        };
        // Replies to failsafes of the other direction count too: conntrack, which would recognise them, has not seen
        // the flow.
        let packet = self.original;
        let policy = self.node.policy();
        let safe = is_failsafe(policy, direction, &packet) || is_failsafe_reply(policy, direction, &packet);
        if endpoint.untracked.is_empty() || safe {
            return ControlFlow::Continue(());
        }
        let decision = self.ask_host(name, endpoint, EvaluationStage::Untracked, direction, &packet);
        if self.unless_denied(decision)?.outcome == PolicyOutcome::Allow {
            self.accepted = true;
            self.connection = ConntrackState::Untracked;
        }
        ControlFlow::Continue(())
    }

    fn pre_dnat(&mut self, from: &str) -> WalkResult<'p, ()> {
        let Some((name, endpoint)) = self.node.host_endpoint(from) else {
            return ControlFlow::Continue(());
        };
        if endpoint.pre_dnat.is_empty() || self.accepted || self.tracked()?.is_some() {
            return ControlFlow::Continue(());
        }
        let packet = self.original;
        if is_failsafe(self.node.policy(), PolicyDirection::Ingress, &packet) {
            return ControlFlow::Continue(());
        }
        let decision =
            self.ask_host(name, endpoint, EvaluationStage::PreDnat, PolicyDirection::Ingress, &packet);
        self.accepted = self.unless_denied(decision)?.outcome == PolicyOutcome::Allow;
        ControlFlow::Continue(())
    }

    /// Evaluates a packet that starts or ends at the host itself.
    fn host(&mut self, interface: &str, direction: PolicyDirection) -> WalkResult<'p> {
        let Some((name, endpoint)) = self.node.host_endpoint(interface) else {
            return self.grant(VerdictCause::NoHostEndpoint);
        };
        if let Some(cause) = self.tracked()? {
            return self.grant(cause);
        }
        let packet = self.packet;
        if is_failsafe(self.node.policy(), direction, &packet) {
            return self.grant(VerdictCause::Failsafe);
        }
        let decision = self.ask_host(name, endpoint, EvaluationStage::Normal, direction, &packet);
        self.unless_denied(decision).map_continue(|decision| decision.cause)
    }

    /// Evaluates a packet that the host forwards; it passes if no tier decides.
    fn forwarded(&mut self, interface: &str, direction: PolicyDirection) -> WalkResult<'p> {
        let Some((name, endpoint)) = self.node.host_endpoint(interface) else {
            return ControlFlow::Continue(VerdictCause::NoHostEndpoint);
        };
        if let Some(cause) = self.tracked()? {
            return ControlFlow::Continue(cause);
        }
        if endpoint.forward.is_empty() {
            return ControlFlow::Continue(VerdictCause::NoForwardPolicy);
        }
        let packet = self.packet;
        let decision = self.ask_host(name, endpoint, EvaluationStage::Forward, direction, &packet);
        self.unless_denied(decision).map_continue(|decision| decision.cause)
    }

    fn workload(&mut self, interface: &str, direction: PolicyDirection) -> WalkResult<'p> {
        let (id, workload_policy) = self.open(interface, direction)?;
        record_step(&mut self.trace, || TraceStep::Workload { id, direction });
        if let Some(cause) = self.tracked()? {
            return self.grant(cause);
        }
        let packet = self.packet;
        if direction == PolicyDirection::Egress && self.is_encapsulation(&packet) {
            return self.refuse(VerdictCause::Encapsulation);
        }
        let decision =
            self.node.index().workload(workload_policy, direction, &packet, self.trace.as_deref_mut());
        self.unless_denied(decision).map_continue(|decision| decision.cause)
    }

    fn workload_to_host(&mut self, from: &str) -> WalkResult<'p> {
        if self.tracked()?.is_none() && is_neighbour_discovery(&self.packet) {
            return self.grant(VerdictCause::NeighbourDiscovery);
        }
        match self.workload(from, PolicyDirection::Egress)? {
            known @ VerdictCause::Connection(_) => ControlFlow::Continue(known),
            _ => match self.node.policy().endpoint_to_host {
                EndpointToHostAction::Drop => {
                    self.refuse(VerdictCause::EndpointToHost(EndpointToHostAction::Drop))
                }
                action => self.grant(VerdictCause::EndpointToHost(action)),
            },
        }
    }

    /// Returns the verdict of connection tracking, if that alone decides.
    fn tracked(&mut self) -> WalkResult<'p, Option<VerdictCause<'p>>> {
        match self.connection {
            known if known.is_known() => ControlFlow::Continue(Some(VerdictCause::Connection(known))),
            ConntrackState::Invalid if self.node.policy().drop_invalid => {
                self.refuse(VerdictCause::Connection(ConntrackState::Invalid))
            }
            _ => ControlFlow::Continue(None),
        }
    }

    fn ask_host(
        &mut self,
        name: &'p str,
        endpoint: &'p HostEndpointPolicy,
        stage: EvaluationStage,
        direction: PolicyDirection,
        packet: &Packet,
    ) -> PolicyDecision<'p> {
        record_step(&mut self.trace, || TraceStep::Host { name, stage, direction });
        self.node.index().host(endpoint, stage, direction, packet, self.trace.as_deref_mut())
    }

    fn unless_denied(&mut self, decision: PolicyDecision<'p>) -> WalkResult<'p, PolicyDecision<'p>> {
        match decision.outcome {
            PolicyOutcome::Deny => self.refuse(decision.cause),
            PolicyOutcome::Allow | PolicyOutcome::NoMatch => {
                self.grant(decision.cause).map_continue(|_| decision)
            }
        }
    }

    fn grant(&mut self, cause: VerdictCause<'p>) -> WalkResult<'p> {
        record_step(&mut self.trace, || TraceStep::Decided { allowed: true, cause });
        ControlFlow::Continue(cause)
    }

    fn refuse<T>(&mut self, cause: VerdictCause<'p>) -> WalkResult<'p, T> {
        record_step(&mut self.trace, || TraceStep::Decided { allowed: false, cause });
        ControlFlow::Break(cause)
    }

    fn is_encapsulation(&self, packet: &Packet) -> bool {
        let policy = self.node.policy();
        let vxlan = packet.protocol == Packet::UDP && packet.destination_port == policy.vxlan_port;
        let ipip = packet.protocol == Packet::IPIP;
        (vxlan && !policy.vxlan_from_workloads) || (ipip && !policy.ipip_from_workloads)
    }
}

/// Returns whether a workload may use an address on its link besides its own: the link-local address derived from its
/// MAC, or the unspecified address during duplicate address detection.
fn is_on_link(address: IpAddr, mac: Option<[u8; 6]>) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unspecified() || mac.is_some_and(|mac| link_local(mac) == address),
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Returns whether a packet is a multicast listener query, report or done, a router or neighbour solicitation, or a
/// neighbour advertisement.
fn is_neighbour_discovery(packet: &Packet) -> bool {
    packet.version() == IpVersion::V6
        && packet.own_icmp().is_some_and(|(kind, _)| matches!(kind, 130..=133 | 135 | 136))
}
