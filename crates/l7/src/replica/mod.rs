//! The policy of one workload as its node has sent it: endpoint, policies, profiles, sets, and the labels of namespaces
//! and service accounts. It does no I/O and has no clock.

mod change;
mod counters;
mod hardening;
mod memory;
mod peer;
mod sets;
#[cfg(test)]
mod tests;

pub use change::{ReplicaChange, prepare_changes};
pub use peer::ReplicaPeer;
pub use sets::{MemberIndex, ReplicaSets};

use counters::OwnerCounters;
use hardening::{RuleDependencies, harden_policy, harden_profile, peer_selectors, sides};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use thiserror::Error;
use tortie_model::selector::Selector;
use tortie_plan::evaluate::{EvaluationIndex, RuleHolder, RulePosition};
use tortie_plan::{
    PeerLabels, PlannedPolicy, PlannedRule, PolicyId, ProfileRules, RuleId, RuleOwner, SetId, WorkloadId,
    WorkloadPolicy,
};

/// A change that the replica cannot accept. The connection must be ended, because the replica misses the change.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplicaError {
    #[error("the policy needs more memory than --max-policy-bytes allows: {bytes} of {limit} bytes")]
    TooLarge { bytes: usize, limit: usize },
}

#[derive(Debug)]
pub struct Replica {
    policies: BTreeMap<PolicyId, Arc<PlannedPolicy>>,
    profiles: BTreeMap<String, Arc<ProfileRules>>,
    /// Policies and profiles as received, if the ones above were hardened because of an unknown set or selector.
    incomplete_policies: BTreeMap<PolicyId, Arc<PlannedPolicy>>,
    incomplete_profiles: BTreeMap<String, Arc<ProfileRules>>,
    sets: ReplicaSets,
    endpoint: Option<(WorkloadId, Box<WorkloadPolicy>)>,
    /// An enforced policy of the endpoint that has not been received.
    missing_policy: Option<PolicyId>,
    namespaces: HashMap<String, PeerLabels>,
    /// By namespace and name.
    service_accounts: HashMap<String, HashMap<String, PeerLabels>>,
    /// Parsed selectors by their text.
    selectors: HashMap<String, Selector>,
    /// Number of selectors after the last sweep of unused ones.
    swept_selectors: usize,
    policy_counters: HashMap<PolicyId, OwnerCounters>,
    profile_counters: HashMap<String, OwnerCounters>,
    /// Estimated memory, and its limit.
    bytes: usize,
    max_bytes: usize,
}

impl Replica {
    pub fn new(max_bytes: usize) -> Replica {
        Replica {
            policies: BTreeMap::new(),
            profiles: BTreeMap::new(),
            incomplete_policies: BTreeMap::new(),
            incomplete_profiles: BTreeMap::new(),
            sets: ReplicaSets::default(),
            endpoint: None,
            missing_policy: None,
            namespaces: HashMap::new(),
            service_accounts: HashMap::new(),
            selectors: HashMap::new(),
            swept_selectors: 0,
            policy_counters: HashMap::new(),
            profile_counters: HashMap::new(),
            bytes: 0,
            max_bytes,
        }
    }

    pub fn endpoint(&self) -> Option<&WorkloadPolicy> {
        self.endpoint.as_ref().map(|(_, endpoint)| &**endpoint)
    }

    pub fn endpoint_id(&self) -> Option<&WorkloadId> {
        self.endpoint.as_ref().map(|(id, _)| id)
    }

    /// Returns an enforced policy of the endpoint that has not been received, so that no verdict is possible.
    pub fn missing_policy(&self) -> Option<&PolicyId> {
        self.missing_policy.as_ref()
    }

    pub fn evaluation(&self) -> EvaluationIndex<'_> {
        EvaluationIndex::with_sets(&self.policies, &self.profiles, &self.sets)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the numbers of policies, profiles and sets.
    pub fn counts(&self) -> [usize; 3] {
        [self.policies.len(), self.profiles.len(), self.sets.len()]
    }

    /// Applies a change. After an error the replica must be discarded or continue without further changes.
    pub fn apply(&mut self, change: ReplicaChange) -> Result<(), ReplicaError> {
        match change {
            ReplicaChange::Set(id, members) => self.put_set(id, members),
            ReplicaChange::Members { set, added, removed } => {
                // The set stays unknown: rules that use it are hardened.
                let Some(members) = self.sets.get_mut(&set) else { return Ok(()) };
                let removed = removed.iter().filter(|member| members.remove(member)).count();
                let added = added.into_iter().filter(|member| members.insert(*member)).count();
                self.bytes =
                    (self.bytes + added * sets::MEMBER_BYTES).saturating_sub(removed * sets::MEMBER_BYTES);
            }
            ReplicaChange::Policy(id, policy) => self.put_policy(id, policy),
            ReplicaChange::Profile(name, profile) => self.put_profile(name, profile),
            ReplicaChange::Endpoint(id, endpoint) => self.put_endpoint(id, endpoint),
            ReplicaChange::Namespace(name, labels) => {
                let bytes = |labels: &PeerLabels| memory::label_bytes(name.len(), labels);
                let added = labels.as_ref().map_or(0, bytes);
                let removed = self.namespaces.get(&name).map_or(0, bytes);
                self.exchange_bytes(added, removed);
                match labels {
                    Some(labels) => drop(self.namespaces.insert(name, labels)),
                    None => drop(self.namespaces.remove(&name)),
                }
            }
            ReplicaChange::ServiceAccount(id, labels) => {
                let name_bytes = id.namespace.len() + id.name.len();
                let bytes = |labels: &PeerLabels| memory::label_bytes(name_bytes, labels);
                let added = labels.as_ref().map_or(0, bytes);
                let accounts = self.service_accounts.entry(id.namespace.clone()).or_default();
                let previous = match labels {
                    Some(labels) => accounts.insert(id.name, labels),
                    None => accounts.remove(&id.name),
                };
                if accounts.is_empty() {
                    self.service_accounts.remove(&id.namespace);
                }
                self.exchange_bytes(added, previous.as_ref().map_or(0, bytes));
            }
        }
        if self.bytes > self.max_bytes {
            return Err(ReplicaError::TooLarge { bytes: self.bytes, limit: self.max_bytes });
        }
        Ok(())
    }

    /// Counts a check that this rule decided.
    pub fn count_rule(&self, rule: &RulePosition<'_>) {
        let counters = match rule.holder {
            RuleHolder::Policy { id, .. } => self.policy_counters.get(id),
            RuleHolder::Profile(name) => self.profile_counters.get(name),
        };
        if let Some(counters) = counters {
            counters.count(rule.direction, rule.index);
        }
    }

    /// Returns the rules that decided a check, with their numbers of checks.
    pub fn counted_rules(&self) -> impl Iterator<Item = (RuleId, u64)> {
        let policies =
            self.policy_counters.iter().map(|(id, counters)| (RuleOwner::Policy(id.clone()), counters));
        let profiles =
            self.profile_counters.iter().map(|(name, counters)| (RuleOwner::Profile(name.clone()), counters));
        policies.chain(profiles).flat_map(|(owner, counters)| {
            counters.counted().map(move |(direction, index, count)| {
                (RuleId { owner: owner.clone(), direction, index }, count)
            })
        })
    }

    /// Takes the counters of unchanged policies and profiles from the replica that this one replaces.
    pub fn inherit_counters(&mut self, previous: &mut Replica) {
        for (id, counters) in &mut self.policy_counters {
            if previous.policies.get(id) == self.policies.get(id)
                && let Some(inherited) = previous.policy_counters.remove(id)
            {
                *counters = inherited;
            }
        }
        for (name, counters) in &mut self.profile_counters {
            if previous.profiles.get(name) == self.profiles.get(name)
                && let Some(inherited) = previous.profile_counters.remove(name)
            {
                *counters = inherited;
            }
        }
    }

    fn exchange_bytes(&mut self, added: usize, removed: usize) {
        self.bytes = (self.bytes + added).saturating_sub(removed);
    }

    fn put_set(&mut self, id: SetId, members: Option<MemberIndex>) {
        let id_bytes = id.0.len();
        let added = members.as_ref().map_or(0, |members| memory::set_bytes(id_bytes, members));
        let previous = match members {
            Some(members) => self.sets.insert(id.clone(), members),
            None => self.sets.remove(&id),
        };
        let existed = previous.is_some();
        self.exchange_bytes(
            added,
            previous.as_ref().map_or(0, |members| memory::set_bytes(id_bytes, members)),
        );
        match (existed, self.sets.contains_set(&id)) {
            (false, true) => self.complete_users_of(&id),
            (true, false) => self.harden_users_of(&id),
            (true, true) | (false, false) => {}
        }
    }

    /// Checks the policies and profiles again that were received before a set that they use.
    fn complete_users_of(&mut self, set: &SetId) {
        let policies =
            select_users(&self.incomplete_policies, set, |policy| [&policy.ingress, &policy.egress]);
        let profiles =
            select_users(&self.incomplete_profiles, set, |profile| [&profile.ingress, &profile.egress]);
        policies.into_iter().for_each(|(id, policy)| self.put_policy(id, Some(policy)));
        profiles.into_iter().for_each(|(name, profile)| self.put_profile(name, Some(profile)));
    }

    /// Checks the policies and profiles again that use a removed set. The node removes them first.
    fn harden_users_of(&mut self, set: &SetId) {
        let policies = select_users(&self.policies, set, |policy| [&policy.ingress, &policy.egress]);
        let profiles = select_users(&self.profiles, set, |profile| [&profile.ingress, &profile.egress]);
        for (id, policy) in policies {
            let policy = self.incomplete_policies.get(&id).cloned().unwrap_or(policy);
            self.put_policy(id, Some(policy));
        }
        for (name, profile) in profiles {
            let profile = self.incomplete_profiles.get(&name).cloned().unwrap_or(profile);
            self.put_profile(name, Some(profile));
        }
    }

    fn put_policy(&mut self, id: PolicyId, policy: Option<Arc<PlannedPolicy>>) {
        let removed = self.policy_bytes(&id);
        self.incomplete_policies.remove(&id);
        let Some(policy) = policy else {
            self.policies.remove(&id);
            self.policy_counters.remove(&id);
            self.exchange_bytes(0, removed);
            self.find_missing_policy();
            return;
        };
        self.parse_selectors(policy.ingress.iter().chain(&policy.egress));
        let enforced = match harden_policy(&policy, self) {
            Some(hardened) => {
                tracing::warn!(%id, "a rule refers to a set or a selector that is not known; it allows nothing");
                self.incomplete_policies.insert(id.clone(), policy);
                hardened
            }
            None => policy,
        };
        let previous = self.policies.insert(id.clone(), enforced.clone());
        self.exchange_bytes(self.policy_bytes(&id), removed);
        if previous.is_none_or(|previous| previous != enforced) {
            let counters = OwnerCounters::new(&enforced.ingress, &enforced.egress);
            self.policy_counters.insert(id, counters);
        }
        if self.missing_policy.is_some() {
            self.find_missing_policy();
        }
    }

    fn put_profile(&mut self, name: String, profile: Option<Arc<ProfileRules>>) {
        let removed = self.profile_bytes(&name);
        self.incomplete_profiles.remove(&name);
        let Some(profile) = profile else {
            self.profiles.remove(&name);
            self.profile_counters.remove(&name);
            self.exchange_bytes(0, removed);
            return;
        };
        self.parse_selectors(profile.ingress.iter().chain(&profile.egress));
        let enforced = match harden_profile(&profile, self) {
            Some(hardened) => {
                tracing::warn!(
                    name,
                    "a rule of a profile refers to an unknown set or selector; it allows nothing"
                );
                self.incomplete_profiles.insert(name.clone(), profile);
                hardened
            }
            None => profile,
        };
        let previous = self.profiles.insert(name.clone(), enforced.clone());
        self.exchange_bytes(self.profile_bytes(&name), removed);
        if previous.is_none_or(|previous| previous != enforced) {
            let counters = OwnerCounters::new(&enforced.ingress, &enforced.egress);
            self.profile_counters.insert(name, counters);
        }
    }

    /// Returns the memory of a policy, including the received form of a hardened one.
    fn policy_bytes(&self, id: &PolicyId) -> usize {
        let forms = self.policies.get(id).into_iter().chain(self.incomplete_policies.get(id));
        forms.map(|policy| memory::policy_bytes(id, policy)).sum()
    }

    fn profile_bytes(&self, name: &str) -> usize {
        let forms = self.profiles.get(name).into_iter().chain(self.incomplete_profiles.get(name));
        forms.map(|profile| memory::profile_bytes(name, profile)).sum()
    }

    fn put_endpoint(&mut self, id: WorkloadId, endpoint: Option<Box<WorkloadPolicy>>) {
        let bytes = |endpoint: &Option<(WorkloadId, Box<WorkloadPolicy>)>| {
            endpoint.as_ref().map_or(0, |(_, endpoint)| memory::endpoint_bytes(endpoint))
        };
        let removed = bytes(&self.endpoint);
        match endpoint {
            Some(endpoint) => self.endpoint = Some((id, endpoint)),
            None => drop(self.endpoint.take_if(|(known, _)| *known == id)),
        }
        self.exchange_bytes(bytes(&self.endpoint), removed);
        self.find_missing_policy();
    }

    fn find_missing_policy(&mut self) {
        let tiers = self.endpoint.iter().flat_map(|(_, endpoint)| &endpoint.tiers);
        let mut used = tiers.flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter()));
        let missing = used.find(|id| !id.kind.is_staged() && !self.policies.contains_key(*id));
        self.missing_policy = missing.cloned();
    }

    fn parse_selectors<'r>(&mut self, rules: impl Iterator<Item = &'r PlannedRule>) {
        let peers = rules.flat_map(sides).filter_map(|side| side.peer.as_deref());
        for text in peers.flat_map(peer_selectors) {
            if !self.selectors.contains_key(text)
                && let Ok(selector) = Selector::parse(text)
            {
                self.selectors.insert(text.to_owned(), selector);
            }
        }
        self.sweep_selectors();
    }

    /// Removes selectors that no rule uses any more, once they may be more than half of all.
    fn sweep_selectors(&mut self) {
        /// Number of unused selectors that is always tolerated.
        const MAX_UNUSED_SELECTORS: usize = 64;
        if self.selectors.len() <= 2 * self.swept_selectors + MAX_UNUSED_SELECTORS {
            return;
        }
        let policies = self.policies.values().chain(self.incomplete_policies.values());
        let profiles = self.profiles.values().chain(self.incomplete_profiles.values());
        let rules = policies.flat_map(|policy| policy.ingress.iter().chain(&policy.egress));
        let rules = rules.chain(profiles.flat_map(|profile| profile.ingress.iter().chain(&profile.egress)));
        let peers = rules.flat_map(sides).filter_map(|side| side.peer.as_deref());
        let used: std::collections::HashSet<&str> = peers.flat_map(peer_selectors).collect();
        self.selectors.retain(|text, _| used.contains(text.as_str()));
        self.swept_selectors = self.selectors.len();
    }
}

impl RuleDependencies for Replica {
    fn has_set(&self, set: &SetId) -> bool {
        self.sets.contains_set(set)
    }

    fn has_selector(&self, text: &str) -> bool {
        self.selectors.contains_key(text)
    }
}

/// Returns the owners of rules that use a set.
fn select_users<K: Clone + Ord, V>(
    owners: &BTreeMap<K, Arc<V>>,
    set: &SetId,
    rules: impl Fn(&V) -> [&Vec<PlannedRule>; 2],
) -> Vec<(K, Arc<V>)> {
    let uses = |owner: &V| rules(owner).into_iter().flatten().any(|rule| rule.sets().any(|used| used == set));
    let users = owners.iter().filter(|(_, owner)| uses(owner));
    users.map(|(key, owner)| (key.clone(), owner.clone())).collect()
}
