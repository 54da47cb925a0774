//! The possible senders and receivers: workloads, host endpoints, and external addresses that rules
//! distinguish.

use crate::policy::cluster::{EnforcedPlan, PolicyCluster};
use crate::policy::endpoint_lookup::{TrafficParty, workload_name};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_compute::{EndpointPermissions, local_workload};
use tortie_plan::evaluate::{
    EvaluationIndex, EvaluationStage, Packet, PolicyDecision, PolicyOutcome, VerdictCause, is_failsafe,
};
use tortie_plan::{EndpointId, NodePlan, PlannedRule, PolicyDirection, PolicySettings, SetMember};

/// Maximum number of nets from which external addresses are derived.
const MAX_PROBED_NETS: usize = 1000;
/// Candidates for an address that no rule mentions, by family.
const EXTERNAL_ADDRESS_CANDIDATES: [&[&str]; 2] = [
    &["203.0.113.1", "198.51.100.1", "192.0.2.1", "8.8.8.8", "1.1.1.1", "100.64.0.1"],
    &["2001:db8:ffff::1", "2001:4860::1", "2a00::1", "fd00:ffff::1"],
];

#[derive(Clone, Debug)]
pub struct TrafficSubject {
    pub name: String,
    /// `None` for an external address, to which no policy applies.
    pub endpoint: Option<EndpointId>,
    /// Empty for an external address.
    pub node: String,
    pub addresses: Vec<IpAddr>,
}

impl TrafficSubject {
    /// Returns whether policy applies between the two. It does not apply between a host and its own
    /// workloads.
    pub fn is_policed_with(&self, other: &TrafficSubject) -> bool {
        match (&self.endpoint, &other.endpoint) {
            _ if self.name == other.name => false,
            (None, None) => false,
            (Some(EndpointId::Host(_)), Some(_)) | (Some(_), Some(EndpointId::Host(_))) => {
                self.node != other.node
            }
            _ => true,
        }
    }

    /// Returns its first address of a family.
    pub fn address(&self, v4: bool) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| address.is_ipv4() == v4)
    }
}

/// One side of the comparison: a plan that contains every endpoint of the cluster.
pub struct PlanState<'p> {
    pub plan: &'p NodePlan,
    pub index: EvaluationIndex<'p>,
    pub settings: &'p PolicySettings,
}

impl<'p> PlanState<'p> {
    pub fn new(enforced: &'p EnforcedPlan) -> PlanState<'p> {
        let EnforcedPlan { plan, settings } = enforced;
        PlanState { plan, index: EvaluationIndex::new(plan), settings: &settings.policy }
    }

    /// Returns the decision of the subject's own policies and profiles; `None` for subjects without any.
    pub fn decide(
        &self,
        subject: &TrafficSubject,
        direction: PolicyDirection,
        packet: &Packet,
    ) -> Option<PolicyDecision<'p>> {
        match subject.endpoint.as_ref()? {
            EndpointId::Workload(id) => {
                let workload_policy = self.plan.workload_policies.get(id)?;
                Some(self.index.workload(workload_policy, direction, packet, None))
            }
            EndpointId::Host(name) => {
                let endpoint = self.plan.host_endpoints.get(name)?;
                if is_failsafe(self.settings, direction, packet) {
                    return Some(PolicyDecision {
                        outcome: PolicyOutcome::Allow,
                        cause: VerdictCause::Failsafe,
                    });
                }
                Some(self.index.host(endpoint, EvaluationStage::Normal, direction, packet, None))
            }
        }
    }

    /// Returns whether the subject exists in this state. Hosts exist even without a host endpoint; no policy
    /// applies to them then.
    fn has(&self, subject: &TrafficSubject) -> bool {
        match &subject.endpoint {
            Some(EndpointId::Workload(id)) => self.plan.workload_policies.contains_key(id),
            Some(EndpointId::Host(_)) | None => true,
        }
    }
}

/// Returns the subjects that exist both before and after the change, in their state after it.
pub fn subjects(
    before: &PolicyCluster,
    after: &PolicyCluster,
    states: &[&PlanState<'_>],
) -> Vec<TrafficSubject> {
    let mut subjects: Vec<TrafficSubject> = after
        .workloads()
        .filter_map(|endpoint| {
            let (id, workload) = local_workload(endpoint, EndpointPermissions::ALL).ok()?;
            Some(TrafficSubject {
                name: workload_name(endpoint),
                endpoint: Some(EndpointId::Workload(id)),
                node: endpoint.spec.node.clone(),
                addresses: workload.addresses,
            })
        })
        .collect();
    let mut hosts: BTreeMap<String, TrafficSubject> = BTreeMap::new();
    for cluster in [before, after] {
        hosts.extend(cluster.host_endpoints().map(|endpoint| {
            let TrafficParty { name, addresses, .. } = TrafficParty::from_host_endpoint(endpoint, cluster);
            let node = endpoint.spec.node.clone();
            let endpoint = Some(EndpointId::Host(name.clone()));
            (
                name.clone(),
                TrafficSubject { name: format!("host endpoint {name}"), endpoint, node, addresses },
            )
        }));
    }
    subjects.extend(hosts.into_values());
    subjects.retain(|subject| states.iter().all(|state| state.has(subject)));
    let known: BTreeSet<IpAddr> =
        subjects.iter().flat_map(|subject| subject.addresses.iter().copied()).collect();
    subjects.extend(external_subjects(states, &known));
    subjects
}

/// Returns the first and last address of every net that rules or sets mention, and one address that none of
/// them contains.
fn external_subjects(states: &[&PlanState<'_>], known: &BTreeSet<IpAddr>) -> Vec<TrafficSubject> {
    let mut nets: BTreeSet<IpNet> = BTreeSet::new();
    for state in states {
        for rule in rules(state.plan) {
            for side in [&rule.source, &rule.destination] {
                nets.extend(side.nets.iter().chain(&side.not_nets));
            }
        }
        for member in state.plan.sets.values().flat_map(|set| &set.members) {
            if let SetMember::Net(net) = member {
                nets.insert(*net);
            }
        }
    }
    nets.retain(|net| net.prefix_len() > 1);
    let mut found: BTreeMap<IpAddr, String> = BTreeMap::new();
    for net in nets.iter().take(MAX_PROBED_NETS) {
        for address in [net.network(), net.broadcast()] {
            if !known.contains(&address) {
                let single = net.prefix_len() == net.max_prefix_len();
                let name = if single { address.to_string() } else { net.to_string() };
                found.entry(address).or_insert(name);
            }
        }
    }
    let unmentioned = EXTERNAL_ADDRESS_CANDIDATES.iter().filter_map(|texts| {
        let mut addresses = texts.iter().filter_map(|text| text.parse().ok());
        addresses.find(|address| !known.contains(address) && !nets.iter().any(|net| net.contains(address)))
    });
    let elsewhere = ("anywhere else".to_owned(), unmentioned.collect());
    let found = found.into_iter().map(|(address, name)| (name, vec![address])).chain([elsewhere]);
    found
        .map(|(name, addresses)| TrafficSubject { name, endpoint: None, node: String::new(), addresses })
        .collect()
}

/// Returns every rule of a plan.
pub fn rules(plan: &NodePlan) -> impl Iterator<Item = &PlannedRule> {
    let policies = plan.policies.values().flat_map(|policy| policy.ingress.iter().chain(&policy.egress));
    let profiles = plan.profiles.values().flat_map(|profile| profile.ingress.iter().chain(&profile.egress));
    policies.chain(profiles)
}
