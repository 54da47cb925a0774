//! Deletes established flows that policy no longer allows, if the settings request it.
//!
//! Connection tracking knows addresses but not interfaces: a flow is evaluated for the workloads that have its
//! addresses, by the packet that opened it. Flows from the host to its own workloads are not subject to policy and are
//! not deleted; flows that end at the host are evaluated only for the workload that sent them.

use crate::error::DataplaneResult;
use crate::kernel;
use crate::netns::Netns;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;
use tortie_plan::evaluate::{EvaluationIndex, Packet, PolicyOutcome};
use tortie_plan::{
    NodePlan, PlanUpdate, PlannedRule, PolicyDirection, PolicyId, SetId, WorkloadId, WorkloadPolicy,
};

/// Minimum interval between two dumps of all connections; policy may change more often.
const CONNTRACK_DUMP_INTERVAL: Duration = Duration::from_secs(1);
/// Delay after a failed dump.
const CONNTRACK_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The policy part of the plan, and its changes since flows were last evaluated.
#[derive(Default)]
pub struct DeniedFlows {
    plan: NodePlan,
    changed: ChangedPolicy,
    not_before: Duration,
}

#[derive(Default)]
struct ChangedPolicy {
    everything: bool,
    workload_policies: BTreeSet<WorkloadId>,
    policies: BTreeSet<PolicyId>,
    profiles: BTreeSet<String>,
    sets: BTreeSet<SetId>,
}

impl ChangedPolicy {
    fn any(&self) -> bool {
        let ChangedPolicy { everything, workload_policies, policies, profiles, sets } = self;
        let none =
            workload_policies.is_empty() && policies.is_empty() && profiles.is_empty() && sets.is_empty();
        *everything || !none
    }

    /// Returns whether a changed set is referenced by one of the rules.
    fn concern_rules(&self, rules: &[PlannedRule]) -> bool {
        !self.sets.is_empty() && rules.iter().flat_map(PlannedRule::sets).any(|set| self.sets.contains(set))
    }
}

impl DeniedFlows {
    pub fn replace(&mut self, plan: &NodePlan) {
        self.plan = NodePlan {
            sets: plan.sets.clone(),
            policies: plan.policies.clone(),
            profiles: plan.profiles.clone(),
            workload_policies: plan.workload_policies.clone(),
            ..NodePlan::default()
        };
        self.changed.everything = true;
    }

    pub fn apply(&mut self, update: &PlanUpdate) {
        match update {
            PlanUpdate::WorkloadPolicy(id, _) => drop(self.changed.workload_policies.insert(id.clone())),
            PlanUpdate::Policy(id, _) => drop(self.changed.policies.insert(id.clone())),
            PlanUpdate::Profile(name, _) => drop(self.changed.profiles.insert(name.clone())),
            PlanUpdate::Set(id, _) | PlanUpdate::Members { set: id, .. } => {
                self.changed.sets.insert(id.clone());
            }
            _ => return,
        }
        self.plan.apply(update.clone());
    }

    pub fn is_due(&self, now: Duration) -> bool {
        self.changed.any() && now >= self.not_before
    }

    /// Deletes the flows that the plan denies. The kernel already has that plan, so that deleted flows do not come
    /// back.
    pub async fn delete(
        &mut self,
        netns: &Netns,
        host: &BTreeSet<IpAddr>,
        now: Duration,
    ) -> DataplaneResult<usize> {
        let parties = FlowParties::new(&self.plan, &self.changed);
        if parties.concerned.is_empty() {
            self.changed = ChangedPolicy::default();
            return Ok(0);
        }
        let outcome = kernel::delete_denied_flows(netns, |packet| parties.deny(packet, host)).await;
        match outcome {
            Ok(_) => {
                (self.changed, self.not_before) = (ChangedPolicy::default(), now + CONNTRACK_DUMP_INTERVAL)
            }
            Err(_) => self.not_before = now + CONNTRACK_RETRY_DELAY,
        }
        outcome
    }
}

/// The workloads that flows may belong to.
struct FlowParties<'p> {
    index: EvaluationIndex<'p>,
    by_address: HashMap<IpAddr, Vec<&'p WorkloadPolicy>>,
    /// Workloads that may send from source addresses other than their own.
    with_nets: Vec<&'p WorkloadPolicy>,
    /// Interfaces of the workloads that the change affects.
    concerned: HashSet<&'p str>,
}

impl<'p> FlowParties<'p> {
    fn new(plan: &'p NodePlan, changed: &ChangedPolicy) -> FlowParties<'p> {
        let policies: HashSet<&PolicyId> = plan
            .policies
            .iter()
            .filter(|(id, policy)| {
                changed.policies.contains(id)
                    || changed.concern_rules(&policy.ingress)
                    || changed.concern_rules(&policy.egress)
            })
            .map(|(id, _)| id)
            .collect();
        let profiles: HashSet<&String> = plan
            .profiles
            .iter()
            .filter(|(name, profile)| {
                changed.profiles.contains(*name)
                    || changed.concern_rules(&profile.ingress)
                    || changed.concern_rules(&profile.egress)
            })
            .map(|(name, _)| name)
            .collect();
        let mut parties = FlowParties {
            index: EvaluationIndex::new(plan),
            by_address: HashMap::new(),
            with_nets: Vec::new(),
            concerned: HashSet::new(),
        };
        for (id, workload) in &plan.workload_policies {
            let mut listed =
                workload.tiers.iter().flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter()));
            if changed.everything
                || changed.workload_policies.contains(id)
                || listed.any(|id| policies.contains(id))
                || workload.profiles.iter().any(|name| profiles.contains(name))
            {
                parties.concerned.insert(&workload.interface);
            }
            for address in &workload.addresses {
                parties.by_address.entry(*address).or_default().push(workload);
            }
            if !workload.allowed_sources.is_empty() {
                parties.with_nets.push(workload);
            }
        }
        parties
    }

    fn deny(&self, packet: &Packet, host: &BTreeSet<IpAddr>) -> bool {
        let mut senders = self.at_address(packet.source).to_vec();
        if senders.is_empty() {
            senders.extend(
                self.with_nets.iter().filter(|workload| {
                    workload.allowed_sources.iter().any(|net| net.contains(&packet.source))
                }),
            );
        }
        let receivers = if host.contains(&packet.source) { &[] } else { self.at_address(packet.destination) };
        self.all_deny(&senders, PolicyDirection::Egress, packet)
            || self.all_deny(receivers, PolicyDirection::Ingress, packet)
    }

    fn at_address(&self, address: IpAddr) -> &[&'p WorkloadPolicy] {
        self.by_address.get(&address).map(Vec::as_slice).unwrap_or_default()
    }

    /// If several workloads claim an address, the owner of the flow is unknown: all of them have to deny it.
    fn all_deny(
        &self,
        workload_policies: &[&'p WorkloadPolicy],
        direction: PolicyDirection,
        packet: &Packet,
    ) -> bool {
        workload_policies.iter().any(|workload| self.concerned.contains(workload.interface.as_str()))
            && workload_policies.iter().all(|workload| {
                !workload.up
                    || self.index.workload(workload, direction, packet, None).outcome == PolicyOutcome::Deny
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tortie_plan::{
        EndpointTier, HttpMatch, PlannedPolicy, PolicyKind, ProfileRules, RuleAction, TierDefaultAction,
    };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn packet(source: &str, destination: &str) -> Packet {
        let (source, destination) = (address(source), address(destination));
        Packet { source, destination, protocol: 6, source_port: 4000, destination_port: 80, icmp: None }
    }

    fn id(name: &str) -> WorkloadId {
        WorkloadId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() }
    }

    fn policy() -> PolicyId {
        PolicyId { kind: PolicyKind::GlobalNetworkPolicy, namespace: String::new(), name: "closed".into() }
    }

    /// Workload one may do everything; no client may reach workload two.
    fn flows() -> DeniedFlows {
        let open = vec![PlannedRule::new(RuleAction::Allow)];
        let workload = |interface: &str, own: &str| WorkloadPolicy {
            interface: interface.into(),
            up: true,
            addresses: vec![address(own)],
            profiles: vec!["open".into()],
            ..WorkloadPolicy::default()
        };
        let mut two = workload("cali2", "10.0.0.2");
        let ingress = [policy()].into();
        two.tiers = vec![EndpointTier {
            name: "t".into(),
            end: TierDefaultAction::Deny,
            ingress,
            egress: Arc::default(),
        }];
        let mut plan = NodePlan::default();
        plan.profiles.insert("open".into(), Arc::new(ProfileRules { ingress: open.clone(), egress: open }));
        plan.policies.insert(policy(), Arc::default());
        plan.workload_policies.extend([(id("one"), workload("cali1", "10.0.0.1")), (id("two"), two)]);
        let mut flows = DeniedFlows::default();
        flows.replace(&plan);
        flows
    }

    fn denied(flows: &DeniedFlows, packet: &Packet) -> bool {
        let host = BTreeSet::from([address("192.0.2.1")]);
        FlowParties::new(&flows.plan, &flows.changed).deny(packet, &host)
    }

    #[test]
    fn a_flow_is_judged_by_who_opened_it() {
        let flows = flows();
        assert!(denied(&flows, &packet("10.0.0.1", "10.0.0.2")));
        assert!(denied(&flows, &packet("198.51.100.1", "10.0.0.2")));
        assert!(!denied(&flows, &packet("10.0.0.2", "10.0.0.1")), "two may open what it likes");
        assert!(!denied(&flows, &packet("10.0.0.2", "192.0.2.1")));
        assert!(!denied(&flows, &packet("192.0.2.1", "10.0.0.2")), "the host reaches its workloads");
    }

    #[test]
    fn only_whom_a_change_concerns_is_looked_at() {
        let mut flows = flows();
        flows.changed = ChangedPolicy::default();
        assert!(!flows.is_due(Duration::ZERO));
        flows.apply(&PlanUpdate::WorkloadPolicy(
            id("one"),
            flows.plan.workload_policies.get(&id("one")).cloned(),
        ));
        assert!(flows.is_due(Duration::ZERO));
        assert!(!denied(&flows, &packet("198.51.100.1", "10.0.0.2")));
        flows.apply(&PlanUpdate::Policy(policy(), Some(Arc::default())));
        assert!(denied(&flows, &packet("198.51.100.1", "10.0.0.2")));
    }

    #[test]
    fn flows_of_a_lost_proxy_are_denied() {
        let mut flows = flows();
        let http = Some(Box::new(HttpMatch { methods: vec!["GET".to_owned()], ..HttpMatch::default() }));
        let rule = PlannedRule { http, ..PlannedRule::new(RuleAction::Allow) };
        let with_http = PlannedPolicy { ingress: vec![rule], ..PlannedPolicy::default() };
        flows.apply(&PlanUpdate::Policy(policy(), Some(Arc::new(with_http))));
        for http_proxy in [true, false] {
            flows.changed = ChangedPolicy::default();
            let two = WorkloadPolicy { http_proxy, ..flows.plan.workload_policies[&id("two")].clone() };
            flows.apply(&PlanUpdate::WorkloadPolicy(id("two"), Some(two)));
            assert_eq!(denied(&flows, &packet("10.0.0.1", "10.0.0.2")), !http_proxy);
        }
    }

    #[test]
    fn shared_addresses_are_cut_if_all_deny() {
        let mut flows = flows();
        let mut twin = flows.plan.workload_policies[&id("one")].clone();
        (twin.interface, twin.addresses) = ("cali3".into(), vec![address("10.0.0.2")]);
        flows.apply(&PlanUpdate::WorkloadPolicy(id("twin"), Some(twin.clone())));
        assert!(!denied(&flows, &packet("10.0.0.1", "10.0.0.2")));
        twin.up = false;
        flows.apply(&PlanUpdate::WorkloadPolicy(id("twin"), Some(twin)));
        assert!(denied(&flows, &packet("10.0.0.1", "10.0.0.2")));
    }

    #[test]
    fn allowed_sources_belong_to_the_workload() {
        let mut flows = flows();
        let mut one = flows.plan.workload_policies[&id("one")].clone();
        (one.allowed_sources, one.up) = (vec!["203.0.113.0/24".parse().unwrap()], false);
        flows.apply(&PlanUpdate::WorkloadPolicy(id("one"), Some(one)));
        assert!(denied(&flows, &packet("203.0.113.7", "198.51.100.1")));
        assert!(!denied(&flows, &packet("203.0.112.7", "198.51.100.1")));
    }
}
