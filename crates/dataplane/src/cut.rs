//! Cuts established flows that policy no longer allows, where the settings ask for it.
//!
//! Connection tracking knows addresses, not interfaces: a flow is judged at the workloads that have its addresses, by the
//! packet that opened it. What the host itself opened to its workloads is not policed, and so not cut; what ends at the
//! host is judged at the workload that sent it alone.

use crate::error::Result;
use crate::kernel;
use crate::netns::Netns;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;
use tortie_plan::evaluate::{Index, Outcome, Packet};
use tortie_plan::{Direction, Plan, PolicyId, Rule, SetId, Update, WorkloadId, WorkloadPolicy};

/// Between two looks at all connections: policy may change more often.
const PAUSE: Duration = Duration::from_secs(1);
/// After one that failed.
const RETRY: Duration = Duration::from_secs(10);

/// Keeps the part of the plan that is policy, and what of it changed since flows were last judged.
#[derive(Default)]
pub(crate) struct Cutter {
    plan: Plan,
    news: News,
    not_before: Duration,
}

#[derive(Default)]
struct News {
    everything: bool,
    workload_policies: BTreeSet<WorkloadId>,
    policies: BTreeSet<PolicyId>,
    profiles: BTreeSet<String>,
    sets: BTreeSet<SetId>,
}

impl News {
    fn any(&self) -> bool {
        let News { everything, workload_policies, policies, profiles, sets } = self;
        let none =
            workload_policies.is_empty() && policies.is_empty() && profiles.is_empty() && sets.is_empty();
        *everything || !none
    }
}

impl Cutter {
    pub fn replace(&mut self, plan: &Plan) {
        self.plan = Plan {
            sets: plan.sets.clone(),
            policies: plan.policies.clone(),
            profiles: plan.profiles.clone(),
            workload_policies: plan.workload_policies.clone(),
            ..Plan::default()
        };
        self.news.everything = true;
    }

    pub fn apply(&mut self, update: &Update) {
        match update {
            Update::WorkloadPolicy(id, _) => drop(self.news.workload_policies.insert(id.clone())),
            Update::Policy(id, _) => drop(self.news.policies.insert(id.clone())),
            Update::Profile(name, _) => drop(self.news.profiles.insert(name.clone())),
            Update::Set(id, _) | Update::Members { set: id, .. } => drop(self.news.sets.insert(id.clone())),
            _ => return,
        }
        self.plan.apply(update.clone());
    }

    pub fn is_due(&self, now: Duration) -> bool {
        self.news.any() && now >= self.not_before
    }

    /// Cuts what the plan denies. The kernel has that plan, so nothing that is cut comes back.
    pub async fn go_on(&mut self, netns: &Netns, host: &BTreeSet<IpAddr>, now: Duration) -> Result<usize> {
        let parties = Parties::new(&self.plan, &self.news);
        if parties.concerned.is_empty() {
            self.news = News::default();
            return Ok(0);
        }
        let outcome = kernel::cut(netns, |packet| parties.deny(packet, host)).await;
        match outcome {
            Ok(_) => (self.news, self.not_before) = (News::default(), now + PAUSE),
            Err(_) => self.not_before = now + RETRY,
        }
        outcome
    }
}

/// The workloads that flows can be of.
struct Parties<'p> {
    index: Index<'p>,
    by_address: HashMap<IpAddr, Vec<&'p WorkloadPolicy>>,
    /// Those that may use sources that are not their own.
    with_nets: Vec<&'p WorkloadPolicy>,
    /// Interfaces of those for whom something changed.
    concerned: HashSet<&'p str>,
}

impl<'p> Parties<'p> {
    fn new(plan: &'p Plan, news: &News) -> Parties<'p> {
        let touched = |rules: &[Rule]| {
            !news.sets.is_empty() && rules.iter().flat_map(Rule::sets).any(|set| news.sets.contains(set))
        };
        let policies: HashSet<&PolicyId> = plan
            .policies
            .iter()
            .filter(|(id, policy)| {
                news.policies.contains(id) || touched(&policy.ingress) || touched(&policy.egress)
            })
            .map(|(id, _)| id)
            .collect();
        let profiles: HashSet<&String> = plan
            .profiles
            .iter()
            .filter(|(name, profile)| {
                news.profiles.contains(*name) || touched(&profile.ingress) || touched(&profile.egress)
            })
            .map(|(name, _)| name)
            .collect();
        let is_concerned = |id: &WorkloadId, guard: &WorkloadPolicy| {
            let mut named = guard.tiers.iter().flat_map(|tier| tier.ingress.iter().chain(&tier.egress));
            news.everything
                || news.workload_policies.contains(id)
                || named.any(|id| policies.contains(id))
                || guard.profiles.iter().any(|name| profiles.contains(name))
        };
        let mut parties = Parties {
            index: Index::new(plan),
            by_address: HashMap::new(),
            with_nets: Vec::new(),
            concerned: HashSet::new(),
        };
        for (id, guard) in &plan.workload_policies {
            if is_concerned(id, guard) {
                parties.concerned.insert(&guard.interface);
            }
            for address in &guard.addresses {
                parties.by_address.entry(*address).or_default().push(guard);
            }
            if !guard.allowed_sources.is_empty() {
                parties.with_nets.push(guard);
            }
        }
        parties
    }

    fn deny(&self, packet: &Packet, host: &BTreeSet<IpAddr>) -> bool {
        let by_address = |address| self.by_address.get(&address).map(Vec::as_slice).unwrap_or_default();
        let mut senders = by_address(packet.source).to_vec();
        if senders.is_empty() {
            let may_send = |guard: &&&WorkloadPolicy| {
                guard.allowed_sources.iter().any(|net| net.contains(&packet.source))
            };
            senders.extend(self.with_nets.iter().filter(may_send));
        }
        let receivers = if host.contains(&packet.source) { &[] } else { by_address(packet.destination) };
        self.all_deny(&senders, Direction::Egress, packet)
            || self.all_deny(receivers, Direction::Ingress, packet)
    }

    /// Where several workloads claim an address it is not known whose flow it is: all of them have to agree.
    fn all_deny(
        &self,
        workload_policies: &[&'p WorkloadPolicy],
        direction: Direction,
        packet: &Packet,
    ) -> bool {
        let denies = |guard: &&'p WorkloadPolicy| {
            !guard.up || self.index.workload(guard, direction, packet, None).outcome == Outcome::Deny
        };
        workload_policies.iter().any(|guard| self.concerned.contains(guard.interface.as_str()))
            && workload_policies.iter().all(denies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tortie_plan::{Action, PolicyKind, Profile, Tier, TierEnd};

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

    /// One may do everything, nobody may reach two.
    fn cutter() -> Cutter {
        let open = vec![Rule::new(Action::Allow)];
        let guard = |interface: &str, own: &str| WorkloadPolicy {
            interface: interface.into(),
            up: true,
            addresses: vec![address(own)],
            profiles: vec!["open".into()],
            ..WorkloadPolicy::default()
        };
        let mut two = guard("cali2", "10.0.0.2");
        let ingress = vec![policy()];
        two.tiers = vec![Tier { name: "t".into(), end: TierEnd::Deny, ingress, egress: Vec::new() }];
        let mut plan = Plan::default();
        plan.profiles.insert("open".into(), Arc::new(Profile { ingress: open.clone(), egress: open }));
        plan.policies.insert(policy(), Arc::default());
        plan.workload_policies.extend([(id("one"), guard("cali1", "10.0.0.1")), (id("two"), two)]);
        let mut cutter = Cutter::default();
        cutter.replace(&plan);
        cutter
    }

    fn denied(cutter: &Cutter, packet: &Packet) -> bool {
        let host = BTreeSet::from([address("192.0.2.1")]);
        Parties::new(&cutter.plan, &cutter.news).deny(packet, &host)
    }

    #[test]
    fn a_flow_is_judged_by_who_opened_it() {
        let cutter = cutter();
        assert!(denied(&cutter, &packet("10.0.0.1", "10.0.0.2")));
        assert!(denied(&cutter, &packet("198.51.100.1", "10.0.0.2")));
        assert!(!denied(&cutter, &packet("10.0.0.2", "10.0.0.1")), "two may open what it likes");
        assert!(!denied(&cutter, &packet("10.0.0.2", "192.0.2.1")));
        assert!(!denied(&cutter, &packet("192.0.2.1", "10.0.0.2")), "the host reaches its workloads");
    }

    #[test]
    fn only_whom_a_change_concerns_is_looked_at() {
        let mut cutter = cutter();
        cutter.news = News::default();
        assert!(!cutter.is_due(Duration::ZERO));
        cutter.apply(&Update::WorkloadPolicy(
            id("one"),
            cutter.plan.workload_policies.get(&id("one")).cloned(),
        ));
        assert!(cutter.is_due(Duration::ZERO));
        assert!(!denied(&cutter, &packet("198.51.100.1", "10.0.0.2")));
        cutter.apply(&Update::Policy(policy(), Some(Arc::default())));
        assert!(denied(&cutter, &packet("198.51.100.1", "10.0.0.2")));
    }

    #[test]
    fn a_shared_address_is_cut_only_if_all_deny() {
        let mut cutter = cutter();
        let mut twin = cutter.plan.workload_policies[&id("one")].clone();
        (twin.interface, twin.addresses) = ("cali3".into(), vec![address("10.0.0.2")]);
        cutter.apply(&Update::WorkloadPolicy(id("twin"), Some(twin.clone())));
        assert!(!denied(&cutter, &packet("10.0.0.1", "10.0.0.2")));
        twin.up = false;
        cutter.apply(&Update::WorkloadPolicy(id("twin"), Some(twin)));
        assert!(denied(&cutter, &packet("10.0.0.1", "10.0.0.2")));
    }

    #[test]
    fn sources_that_are_lent_to_a_workload_are_its_own() {
        let mut cutter = cutter();
        let mut one = cutter.plan.workload_policies[&id("one")].clone();
        (one.allowed_sources, one.up) = (vec!["203.0.113.0/24".parse().unwrap()], false);
        cutter.apply(&Update::WorkloadPolicy(id("one"), Some(one)));
        assert!(denied(&cutter, &packet("203.0.113.7", "198.51.100.1")));
        assert!(!denied(&cutter, &packet("203.0.112.7", "198.51.100.1")));
    }
}
