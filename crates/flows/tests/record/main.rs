//! The recorder with events as the kernel sends them, in any order.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cases;
mod histories;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tortie_flows::proto::{Action, Flow, Reporter};
use tortie_flows::record::{AddressBook, FlowRecorder, PolicyView, RecorderLimits};
use tortie_plan::flow::*;
use tortie_plan::*;

pub const A: &str = "10.0.0.1";
pub const B: &str = "10.0.0.2";
pub const OUTSIDE: &str = "198.51.100.7";
/// Seconds since 1970 at which recorders of tests start.
pub const START: i64 = 1_700_000_010;

pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn policy_id(text: &str) -> PolicyId {
    text.parse().unwrap()
}

/// Returns a rule for a TCP port.
pub fn to_port(action: RuleAction, port: u16) -> PlannedRule {
    let mut rule = PlannedRule { protocol: Some(6), ..PlannedRule::new(action) };
    rule.destination.ports = vec![PortInterval { first: port, last: port }];
    rule
}

/// A node with the workloads shop/a and shop/b, whose profile allows everything.
pub struct TestNode {
    pub plan: NodePlan,
    settings: DataplaneSettings,
    pub book: AddressBook,
    pub revision: u64,
    pub recorder: FlowRecorder,
    pub now: i64,
}

impl Default for TestNode {
    fn default() -> TestNode {
        TestNode::with_limits(RecorderLimits::default())
    }
}

impl TestNode {
    pub fn with_limits(limits: RecorderLimits) -> TestNode {
        let mut plan = NodePlan::default();
        let open = vec![PlannedRule::new(RuleAction::Allow)];
        let profile = ProfileRules { ingress: open.clone(), egress: open };
        plan.profiles.insert("kns.shop".into(), Arc::new(profile));
        let mut book = AddressBook::default();
        for (name, own) in [("a", A), ("b", B)] {
            let id = WorkloadId {
                orchestrator: "k8s".into(),
                workload: format!("shop/{name}"),
                endpoint: "eth0".into(),
            };
            let workload = WorkloadPolicy {
                interface: format!("cali-{name}"),
                up: true,
                addresses: vec![address(own)],
                profiles: vec!["kns.shop".into()],
                ..WorkloadPolicy::default()
            };
            plan.workload_policies.insert(id, workload);
            let identity = AddressIdentity {
                kind: IdentityKind::Workload,
                namespace: "shop".into(),
                name: format!("{name}-*"),
                labels: vec![format!("app={name}")],
            };
            book.objects.insert(address(own), identity);
        }
        let recorder = FlowRecorder::new(limits, START);
        TestNode { plan, settings: DataplaneSettings::default(), book, revision: 1, recorder, now: START }
    }

    /// Applies policies of the tier `default`, with the same rules in both directions, to all workloads.
    pub fn set_policies(&mut self, policies: &[(&str, &[PlannedRule])]) {
        let ids: Vec<PolicyId> = policies.iter().map(|(id, _)| policy_id(id)).collect();
        for ((_, rules), id) in policies.iter().zip(&ids) {
            let policy =
                PlannedPolicy { ingress: rules.to_vec(), egress: rules.to_vec(), ..PlannedPolicy::default() };
            self.plan.policies.insert(id.clone(), Arc::new(policy));
        }
        for workload in self.plan.workload_policies.values_mut() {
            workload.tiers = vec![EndpointTier {
                name: "default".into(),
                end: TierDefaultAction::Deny,
                ingress: ids.as_slice().into(),
                egress: ids.as_slice().into(),
            }];
        }
        self.revision += 1;
    }

    fn with_view<T>(&mut self, run: impl FnOnce(&mut FlowRecorder, &PolicyView<'_>, &AddressBook) -> T) -> T {
        let TestNode { plan, settings, book, revision, recorder, .. } = self;
        let view = PolicyView::new(plan, settings, HostEndpointAssignment::default(), "n1", *revision, true);
        run(recorder, &view, book)
    }

    pub fn handle(&mut self, event: &FlowEvent) -> Vec<Flow> {
        let (mut out, now) = (Vec::new(), self.now);
        self.with_view(|recorder, view, book| recorder.handle(event, view, book, now, &mut out));
        out
    }

    pub fn tick(&mut self, seconds: i64) -> Vec<Flow> {
        self.now += seconds;
        let (mut out, now) = (Vec::new(), self.now);
        self.with_view(|recorder, view, book| recorder.tick(view, book, now, &mut out));
        out
    }

    pub fn reevaluate(&mut self) -> Vec<Flow> {
        let (mut out, now) = (Vec::new(), self.now);
        self.with_view(|recorder, view, _| recorder.reevaluate(view, now, &mut out));
        out
    }

    /// Returns the addresses that the recorder wants to know for an event.
    pub fn wanted(&self, event: &FlowEvent) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let (mut objects, mut services) = Default::default();
        self.recorder.list_addresses(event, &mut objects, &mut services);
        (objects.into_iter().collect(), services.into_iter().collect())
    }
}

pub fn rule_cause(owner: &str, direction: PolicyDirection, position: usize) -> FlowCause {
    FlowCause::Rule(RuleId { owner: owner.parse().unwrap(), direction, index: RuleIndex::at(position) })
}

/// Returns the decision of the profiles of both workloads.
pub fn open_decision() -> FlowDecision {
    FlowDecision {
        allowed: true,
        egress: Some(rule_cause("profile/kns.shop", PolicyDirection::Egress, 0)),
        ingress: Some(rule_cause("profile/kns.shop", PolicyDirection::Ingress, 0)),
        ..FlowDecision::default()
    }
}

/// Returns a key for TCP.
pub fn key(source: &str, destination: &str, port: u16, decision: FlowDecision) -> FlowKey {
    let tuple = FlowTuple {
        source: address(source),
        destination: address(destination),
        protocol: 6,
        destination_port: port,
    };
    FlowKey { tuple, decision }
}

pub fn connection(key: &FlowKey, source_port: u16) -> ConnectionTuple {
    ConnectionTuple { flow: key.tuple, source_port, original_destination: None }
}

fn interface(own: IpAddr) -> Option<String> {
    let name = match own {
        own if own == address(A) => "cali-a",
        own if own == address(B) => "cali-b",
        _ => "eth0",
    };
    Some(name.to_owned())
}

/// Returns the event of the first packet of a key.
pub fn first_packet(key: &FlowKey, source_port: u16) -> FlowEvent {
    let opening = FlowOpening {
        key: key.clone(),
        connection: connection(key, source_port),
        at: UNIX_EPOCH + Duration::from_secs(START as u64),
        interfaces: Some(FlowInterfaces {
            input: interface(key.tuple.source),
            output: interface(key.tuple.destination),
        }),
        generation: PolicyGeneration(1),
    };
    if key.decision.allowed { FlowEvent::Opened(opening) } else { FlowEvent::Denied(opening) }
}

pub fn counted(key: &FlowKey, count: u64) -> FlowEvent {
    FlowEvent::Counted { key: key.clone(), count, generation: PolicyGeneration(1) }
}

/// Returns a connection record with so many packets in each direction, of 100 bytes each.
pub fn transfer(key: &FlowKey, source_port: u16, sent: u64, received: u64) -> ConnectionRecord {
    let counters = |packets| FlowCounters { packets, bytes: 100 * packets };
    ConnectionRecord {
        connection: connection(key, source_port),
        decision: None,
        sent: counters(sent),
        received: counters(received),
        started: Some(UNIX_EPOCH + Duration::from_secs(START as u64 + 1)),
        stopped: None,
        outcome: None,
    }
}

pub fn live(key: &FlowKey, source_port: u16, sent: u64, received: u64) -> FlowEvent {
    let decision = Some(key.decision.clone());
    FlowEvent::Live(ConnectionRecord { decision, ..transfer(key, source_port, sent, received) })
}

pub fn ended(key: &FlowKey, source_port: u16, sent: u64, received: u64) -> FlowEvent {
    let outcome = Some(ConnectionOutcome::Established);
    FlowEvent::Ended(ConnectionRecord { outcome, ..transfer(key, source_port, sent, received) })
}

/// Returns the flow of a side.
pub fn of_side(flows: &[Flow], reporter: Reporter) -> &Flow {
    let mut of_side = flows.iter().filter(|flow| flow.key.as_ref().unwrap().reporter() == reporter);
    let flow = of_side.next().unwrap_or_else(|| panic!("no record of {reporter:?} in {flows:?}"));
    assert_eq!(of_side.next(), None, "one record for each side");
    flow
}

/// Describes hits as `KIND NAME ACTION RULE`.
pub fn describe_hits(flow: &Flow, pending: bool) -> Vec<String> {
    let trace = flow.key.clone().unwrap().policies.unwrap();
    let hits = if pending { trace.pending_policies } else { trace.enforced_policies };
    hits.iter()
        .map(|hit| {
            let name = match &hit.trigger {
                Some(trigger) => format!("{} after {}", hit.tier, trigger.name),
                None => hit.name.clone(),
            };
            format!("{:?} {name} {:?} {}", hit.kind(), hit.action(), hit.rule_index)
        })
        .collect()
}

pub fn action(flow: &Flow) -> Action {
    flow.key.as_ref().unwrap().action()
}
