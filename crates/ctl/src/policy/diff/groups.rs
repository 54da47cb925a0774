//! Subjects that no rule of either plan tells apart.

use super::subject::{State, Subject, rules};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::{EndpointId, Member, Plan, SetKind};

#[derive(Clone, Debug)]
pub struct Group {
    /// At least one.
    pub members: Vec<Subject>,
}

impl Group {
    /// Stands for all of them.
    pub fn first(&self) -> &Subject {
        &self.members[0]
    }
}

/// Groups with at least one member each, in the order of their first members' names.
pub fn groups(subjects: Vec<Subject>, states: &[&State<'_>]) -> Vec<Group> {
    let marks: Vec<Marks> = states.iter().map(|state| Marks::new(state.plan)).collect();
    let mut groups: BTreeMap<Vec<u8>, Group> = BTreeMap::new();
    for subject in subjects {
        let mut signature = Vec::new();
        for (state, marks) in states.iter().zip(&marks) {
            marks.sign(state, &subject, &mut signature);
        }
        groups.entry(signature).or_insert_with(|| Group { members: Vec::new() }).members.push(subject);
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    for group in &mut groups {
        group.members.sort_by(|a, b| a.name.cmp(&b.name));
        // Both ends of one net.
        group.members.dedup_by(|a, b| a.endpoint.is_none() && a.name == b.name);
    }
    groups.sort_by(|a, b| {
        let (a, b) = (a.first(), b.first());
        a.endpoint.is_none().cmp(&b.endpoint.is_none()).then_with(|| a.name.cmp(&b.name))
    });
    groups
}

/// What rules can ask about an address.
struct Marks {
    nets: Vec<IpNet>,
    /// Ports that a name stands for, by address.
    ports: BTreeMap<IpAddr, Vec<String>>,
}

impl Marks {
    fn new(plan: &Plan) -> Marks {
        let sides = rules(plan).flat_map(|rule| [&rule.source, &rule.destination]);
        let nets: BTreeSet<IpNet> =
            sides.flat_map(|side| side.nets.iter().chain(&side.not_nets).copied()).collect();
        let mut ports: BTreeMap<IpAddr, Vec<String>> = BTreeMap::new();
        for (id, set) in &plan.sets {
            for member in &set.members {
                if let Member::Port { address, protocol, port } = member {
                    ports.entry(*address).or_default().push(format!("{id} {protocol} {port}"));
                }
            }
        }
        Marks { nets: nets.into_iter().collect(), ports }
    }

    fn sign(&self, state: &State<'_>, subject: &Subject, signature: &mut Vec<u8>) {
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
        // Nothing of what follows a text is taken for a part of it.
        let text = |signature: &mut Vec<u8>, text: &str| signature.extend(text.bytes().chain([0]));
        text(signature, &own.unwrap_or_default());
        for v4 in [true, false] {
            // Of several addresses of one family the first stands for all, as it does when it is judged.
            let address = subject.addresses.iter().find(|address| address.is_ipv4() == v4);
            signature.push(if address.is_some() { b'/' } else { b'-' });
            let Some(address) = address else { continue };
            for net in &self.nets {
                signature.push(u8::from(net.contains(address)));
            }
            for (id, set) in &state.plan.sets {
                if set.kind == SetKind::Nets {
                    signature.push(u8::from(state.index.has_address(id, *address)));
                }
            }
            for port in self.ports.get(address).into_iter().flatten() {
                text(signature, port);
            }
        }
    }
}
