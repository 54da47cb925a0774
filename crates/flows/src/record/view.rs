//! The policy in force, as records need it: it evaluates flows with and without staged policies.

use super::decision::{EvaluatedFlow, SideHits};
use crate::proto::PolicyHit;
use std::collections::HashMap;
use std::net::IpAddr;
use tortie_plan::evaluate::{ConntrackState, EvaluationTrace, NodeEvaluator, Packet, PacketPath, PathPlace};
use tortie_plan::flow::{ConnectionTuple, FlowCause, FlowDecision, FlowTuple};
use tortie_plan::{DataplaneSettings, HostEndpointAssignment, NodePlan};

/// The policy in force.
#[derive(Debug)]
pub struct PolicyView<'p> {
    /// Increases with every change.
    pub revision: u64,
    /// Name of the node.
    pub host: &'p str,
    enforced: NodeEvaluator<'p>,
    /// Evaluates staged policies like enforced ones; `None` without staged policies.
    pending: Option<NodeEvaluator<'p>>,
    /// Whether records have pending traces.
    evaluates_pending: bool,
    /// The interfaces of local workloads.
    interfaces: HashMap<IpAddr, &'p str>,
}

/// Where a packet entered or left the node, as the kernel reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownPlace {
    Host,
    Interface(String),
}

/// A flow to evaluate.
#[derive(Clone, Copy, Debug)]
pub struct FlowQuestion<'a> {
    pub tuple: FlowTuple,
    /// The connection that is known, if any: source port, and destination before DNAT.
    pub connection: Option<&'a ConnectionTuple>,
    /// Where the packet entered and left the node, if it is known.
    pub path: Option<(&'a KnownPlace, &'a KnownPlace)>,
    pub kernel: &'a FlowDecision,
}

/// The pending hits of a flow, which depend on staged policies.
pub type PendingHits = SideHits;

impl<'p> PolicyView<'p> {
    /// Creates the view of a plan. `evaluates_pending` is the setting flowLogsPolicyEvaluationMode.
    pub fn new(
        plan: &'p NodePlan,
        settings: &'p DataplaneSettings,
        assignment: HostEndpointAssignment,
        host: &'p str,
        revision: u64,
        evaluates_pending: bool,
    ) -> PolicyView<'p> {
        let enforced = NodeEvaluator::new(plan, settings, assignment);
        let has_staged = plan.policies.keys().any(|id| id.kind.is_staged());
        let pending = (evaluates_pending && has_staged).then(|| enforced.with_staged_enforced());
        let workloads = plan.workload_policies.values();
        let interfaces = workloads
            .flat_map(|workload| workload.addresses.iter().map(|own| (*own, workload.interface.as_str())))
            .collect();
        PolicyView { revision, host, enforced, pending, evaluates_pending, interfaces }
    }

    pub fn plan(&self) -> &'p NodePlan {
        self.enforced.plan()
    }

    /// Returns whether pending verdicts can differ from those in force.
    pub fn has_staged(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns whether a workload of this node has the address.
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.interfaces.contains_key(&address)
    }

    /// Evaluates a flow under the enforced policies.
    pub fn evaluate(&self, question: &FlowQuestion<'_>) -> EvaluatedFlow {
        let (from, to) = self.find_path(question);
        self.run(&self.enforced, question, from, to)
    }

    /// Evaluates a flow as if staged policies were enforced. `enforced` are its hits without them.
    pub fn evaluate_pending(&self, question: &FlowQuestion<'_>, enforced: &SideHits) -> PendingHits {
        if !self.evaluates_pending {
            return PendingHits::default();
        }
        let Some(pending) = &self.pending else { return enforced.clone() };
        let (from, to) = self.find_path(question);
        let mut hits = self.run(pending, question, from, to).hits;
        // A staged policy of the source ends the evaluation, but the destination is judged on its own.
        if hits.ingress.is_empty() && !enforced.ingress.is_empty() {
            hits.ingress = self.run(pending, question, PathPlace::Interface(""), to).hits.ingress;
        }
        hits
    }

    fn run(
        &self,
        evaluator: &NodeEvaluator<'p>,
        question: &FlowQuestion<'_>,
        from: PathPlace<'_>,
        to: PathPlace<'_>,
    ) -> EvaluatedFlow {
        let packet = build_packet(question);
        let mut path = PacketPath::new(from, to);
        path.original_destination =
            question.connection.and_then(|connection| connection.original_destination);
        if is_invalid(question.kernel) {
            path.connection = ConntrackState::Invalid;
        }
        let mut trace = EvaluationTrace::default();
        let verdict = evaluator.judge(&packet, &path, Some(&mut trace));
        EvaluatedFlow::read(&trace, &verdict, from)
    }

    /// Returns the path that the kernel reported, or derives it: local workloads have an interface, and a decision about
    /// another address concerns the host itself.
    fn find_path<'a>(&self, question: &FlowQuestion<'a>) -> (PathPlace<'a>, PathPlace<'a>)
    where
        'p: 'a,
    {
        if let Some((from, to)) = question.path {
            return (from.as_place(), to.as_place());
        }
        let place = |address: IpAddr, decision: &Option<FlowCause>| match self.interfaces.get(&address) {
            Some(interface) => PathPlace::Interface(interface),
            None if decision.is_some() => PathPlace::Host,
            None => PathPlace::Interface(""),
        };
        let kernel = question.kernel;
        let from = place(question.tuple.source, &kernel.egress);
        if matches!(kernel.ingress, Some(FlowCause::HostToWorkload)) {
            return (PathPlace::Host, place(question.tuple.destination, &kernel.ingress));
        }
        (from, place(question.tuple.destination, &kernel.ingress))
    }
}

impl KnownPlace {
    pub fn new(interface: Option<&str>) -> KnownPlace {
        interface.map_or(KnownPlace::Host, |name| KnownPlace::Interface(name.to_owned()))
    }

    fn as_place(&self) -> PathPlace<'_> {
        match self {
            KnownPlace::Host => PathPlace::Host,
            KnownPlace::Interface(name) => PathPlace::Interface(name),
        }
    }
}

/// Returns whether the kernel dropped a packet because of its connection state.
fn is_invalid(decision: &FlowDecision) -> bool {
    let causes = [&decision.egress, &decision.ingress, &decision.host_ingress, &decision.host_egress];
    causes.into_iter().any(|cause| matches!(cause, Some(FlowCause::InvalidConnection)))
}

fn build_packet(question: &FlowQuestion<'_>) -> Packet {
    let FlowTuple { source, destination, protocol, destination_port } = question.tuple;
    let is_icmp = matches!(protocol, Packet::ICMP | Packet::ICMPV6);
    let [kind, code] = destination_port.to_be_bytes();
    Packet {
        source,
        destination,
        protocol,
        source_port: question.connection.filter(|_| !is_icmp).map_or(0, |connection| connection.source_port),
        destination_port: if is_icmp { 0 } else { destination_port },
        icmp: is_icmp.then_some((kind, code)),
    }
}

/// Returns the side's hits in the form of a record.
pub fn build_trace(enforced: &[PolicyHit], pending: &[PolicyHit]) -> crate::proto::PolicyTrace {
    crate::proto::PolicyTrace {
        enforced_policies: super::hits::number_hits(enforced.to_vec()),
        pending_policies: super::hits::number_hits(pending.to_vec()),
    }
}
