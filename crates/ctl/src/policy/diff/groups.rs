//! Groups of subjects that no rule of either plan distinguishes.

use super::subject::{PlanState, TrafficSubject, rules};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::evaluate::AddressSets;
use tortie_plan::{EndpointId, NodePlan, SetKind, SetMember};

#[derive(Clone, Debug)]
pub struct SubjectGroup {
    /// Never empty.
    pub members: Vec<TrafficSubject>,
}

impl SubjectGroup {
    /// Returns the member that represents the group.
    pub fn first(&self) -> &TrafficSubject {
        &self.members[0]
    }
}

/// Groups the subjects, sorted by the names of the groups' first members.
pub fn groups(subjects: Vec<TrafficSubject>, states: &[&PlanState<'_>]) -> Vec<SubjectGroup> {
    let marks: Vec<AddressSignature> = states.iter().map(|state| AddressSignature::new(state.plan)).collect();
    let mut groups: BTreeMap<Vec<u8>, SubjectGroup> = BTreeMap::new();
    for subject in subjects {
        let mut signature = Vec::new();
        for (state, marks) in states.iter().zip(&marks) {
            marks.sign(state, &subject, &mut signature);
        }
        groups.entry(signature).or_insert_with(|| SubjectGroup { members: Vec::new() }).members.push(subject);
    }
    let mut groups: Vec<SubjectGroup> = groups.into_values().collect();
    for group in &mut groups {
        group.members.sort_by(|a, b| a.name.cmp(&b.name));
        // Two subjects represent the two ends of one net.
        group.members.dedup_by(|a, b| a.endpoint.is_none() && a.name == b.name);
    }
    groups.sort_by_cached_key(|group| (group.first().endpoint.is_none(), group.first().name.clone()));
    groups
}

/// The properties of an address that rules can match.
struct AddressSignature {
    nets: Vec<IpNet>,
    /// Named ports, by address.
    ports: BTreeMap<IpAddr, Vec<String>>,
}

impl AddressSignature {
    fn new(plan: &NodePlan) -> AddressSignature {
        let sides = rules(plan).flat_map(|rule| [&rule.source, &rule.destination]);
        let nets: BTreeSet<IpNet> =
            sides.flat_map(|side| side.nets.iter().chain(&side.not_nets).copied()).collect();
        let mut ports: BTreeMap<IpAddr, Vec<String>> = BTreeMap::new();
        for (id, set) in &plan.sets {
            for member in &set.members {
                if let SetMember::Port { address, protocol, port } = member {
                    ports.entry(*address).or_default().push(format!("{id} {protocol} {port}"));
                }
            }
        }
        AddressSignature { nets: nets.into_iter().collect(), ports }
    }

    fn sign(&self, state: &PlanState<'_>, subject: &TrafficSubject, signature: &mut Vec<u8>) {
        let own = match &subject.endpoint {
            Some(EndpointId::Workload(id)) => {
                state.plan.workload_policies.get(id).map(|workload_policy| {
                    format!("{:?}{:?}", workload_policy.tiers, workload_policy.profiles)
                })
            }
            Some(EndpointId::Host(name)) => state
                .plan
                .host_endpoints
                .get(name)
                .map(|endpoint| format!("host{:?}{:?}", endpoint.tiers, endpoint.profiles)),
            None => None,
        };
        push_text(signature, &own.unwrap_or_default());
        for v4 in [true, false] {
            // The first address of each family represents the others, as in the evaluation.
            let address = subject.address(v4);
            signature.push(if address.is_some() { b'/' } else { b'-' });
            let Some(address) = address else { continue };
            for net in &self.nets {
                signature.push(u8::from(net.contains(&address)));
            }
            for (id, set) in &state.plan.sets {
                if set.kind == SetKind::Nets {
                    signature.push(u8::from(state.index.has_address(id, address)));
                }
            }
            for port in self.ports.get(&address).into_iter().flatten() {
                push_text(signature, port);
            }
        }
    }
}

/// Appends a text with a terminator, which separates it from the data that follow it.
fn push_text(signature: &mut Vec<u8>, text: &str) {
    signature.extend(text.bytes().chain([0]));
}
