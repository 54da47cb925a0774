//! Conformance cases of policy: computes the plan of the given resources and evaluates packets against it.

// Test helpers may panic like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_compute::{ParameterEnvironment, PlanCompute};
use tortie_model::{Resource, StoreKey, StoreValue};
use tortie_plan::evaluate::{
    ConntrackState, EvaluationTrace, NodeEvaluator, Packet, PacketPath, PathPlace, RuleHolder, TraceStep,
    VerdictCause,
};
use tortie_plan::{NodePlan, RuleAction, assign};
use tortie_testkit::conformance::{ConformanceCase, ConformancePacket, ExpectedVerdict, cases, world};

const UPLINK: &str = "eth0";

/// One node of the case's cluster.
struct ConformanceNode {
    compute: PlanCompute,
    plan: NodePlan,
    resources: BTreeMap<StoreKey, Resource>,
    allowed_flows: BTreeSet<String>,
}

fn key(resource: &Resource) -> StoreKey {
    let meta = resource.metadata();
    StoreKey::resource(resource.kind(), &meta.namespace, &meta.name)
}

impl ConformanceNode {
    fn new() -> ConformanceNode {
        let compute = PlanCompute::new("n1", ParameterEnvironment::default());
        let mut cluster = ConformanceNode {
            compute,
            plan: NodePlan::default(),
            resources: BTreeMap::new(),
            allowed_flows: BTreeSet::new(),
        };
        cluster.write(world(), &[]);
        cluster
    }

    fn write(&mut self, applied: Vec<Resource>, deleted: &[Resource]) {
        for resource in applied {
            self.compute.put(&key(&resource), &StoreValue::Resource(resource.clone()));
            self.resources.insert(key(&resource), resource);
        }
        for resource in deleted {
            self.compute.delete(&key(resource));
            self.resources.remove(&key(resource)).expect("what is deleted was there");
        }
        for update in self.compute.flush() {
            self.plan.apply(update);
        }
        assert_eq!(self.compute.problems(), BTreeMap::new());
    }

    /// Returns the place of an endpoint or address as seen from the node, and its addresses.
    fn find(&self, name: &str) -> (PathPlace<'_>, Vec<IpAddr>) {
        if let Ok(address) = name.parse() {
            return (PathPlace::Interface(UPLINK), vec![address]);
        }
        let address = |text: &str| text.split('/').next().unwrap().parse().unwrap();
        for resource in self.resources.values() {
            match resource {
                Resource::WorkloadEndpoint(endpoint)
                    if format!("{}/{}", endpoint.metadata.namespace, endpoint.spec.pod) == name =>
                {
                    let addresses = endpoint.spec.ip_networks.iter().map(|text| address(text));
                    return (PathPlace::Interface(&endpoint.spec.interface_name), addresses.collect());
                }
                Resource::Node(node) if node.metadata.name == name => {
                    let bgp = node.spec.bgp.as_ref().unwrap();
                    return (PathPlace::Host, vec![address(&bgp.ipv4_address), address(&bgp.ipv6_address)]);
                }
                _ => {}
            }
        }
        panic!("nobody is called {name}");
    }

    fn check(&mut self, case: &ConformanceCase, sent: &ConformancePacket) {
        let (from, sources) = self.find(&sent.from);
        let (to, destinations) = self.find(&sent.to);
        let packet = packet(sent, &sources, &destinations);
        let known = sent.flow.as_ref().is_some_and(|flow| self.allowed_flows.contains(flow));
        let connection = if known { ConntrackState::Established } else { ConntrackState::New };
        let way = PacketPath { connection, ..PacketPath::new(from, to) };
        let interfaces = BTreeMap::from([(UPLINK.to_owned(), vec![])]);
        let assignment = assign(&self.plan.host_endpoints, &interfaces);
        let node = NodeEvaluator::new(&self.plan, self.compute.settings(), assignment);
        let mut trace = EvaluationTrace::default();
        let judgement = node.judge(&packet, &way, Some(&mut trace));
        let context = format!("case {} ({}): {sent:?}\n{trace:#?}", case.number, case.title);
        let verdict = if judgement.allowed { ExpectedVerdict::Allow } else { ExpectedVerdict::Deny };
        assert_eq!(verdict, sent.verdict, "{context}");
        if let Some(by) = &sent.by {
            assert_eq!(describe(judgement.cause), *by, "{context}");
        }
        assert_eq!(trace.steps.iter().any(logs), sent.logged, "{context}");
        if judgement.allowed {
            self.allowed_flows.extend(sent.flow.clone());
        }
    }
}

fn logs(step: &TraceStep<'_>) -> bool {
    matches!(step, TraceStep::Rule { at, misses } if at.rule.action == RuleAction::Log && misses.is_empty())
}

fn describe(cause: VerdictCause<'_>) -> String {
    match cause {
        VerdictCause::Rule(at) => match at.holder {
            RuleHolder::Policy { id, .. } => id.to_string(),
            RuleHolder::Profile(name) => format!("profile {name}"),
        },
        VerdictCause::TierEnd(tier) => format!("end of tier {tier}"),
        VerdictCause::Connection(_) => "connection".to_owned(),
        VerdictCause::Encapsulation => "encapsulation".to_owned(),
        VerdictCause::EndpointToHost(_) => "endpoint to host".to_owned(),
        other => format!("{other:?}"),
    }
}

fn packet(sent: &ConformancePacket, sources: &[IpAddr], destinations: &[IpAddr]) -> Packet {
    // An address outside of the cluster determines the family.
    let literal = [sources, destinations].into_iter().find(|addresses| addresses.len() == 1);
    let v4 = literal.map_or(sent.family != Some(6), |addresses| addresses[0].is_ipv4());
    let of = |addresses: &[IpAddr]| *addresses.iter().find(|address| address.is_ipv4() == v4).unwrap();
    let (protocol, number) = sent.port.split_once('/').unwrap();
    let number: u16 = number.parse().unwrap();
    let protocol = match protocol {
        "tcp" => Packet::TCP,
        "udp" => Packet::UDP,
        "icmp" => Packet::ICMP,
        "icmpv6" => Packet::ICMPV6,
        other => panic!("{other}"),
    };
    let icmp = [Packet::ICMP, Packet::ICMPV6].contains(&protocol);
    Packet {
        source: of(sources),
        destination: of(destinations),
        protocol,
        source_port: if icmp { 0 } else { 40000 },
        destination_port: if icmp { 0 } else { number },
        icmp: icmp.then(|| (u8::try_from(number).unwrap(), 0)),
    }
}

#[test]
fn every_conformance_case() {
    for case in cases() {
        let mut cluster = ConformanceNode::new();
        for step in &case.steps {
            cluster.write(step.applied(), &step.deleted());
            step.packets.iter().for_each(|sent| cluster.check(&case, sent));
        }
    }
}
