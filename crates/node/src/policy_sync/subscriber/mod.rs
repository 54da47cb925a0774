//! The messages for one subscriber, in the order in which its client has to receive them. Pure.
//!
//! A subscriber keeps references to the objects that its client has and notes changes of their sets; it does not queue
//! messages. When the client is ready, [`Subscriber::take_messages`] compares them with the plan. A slow client thus
//! costs no more memory than a fast one, and receives only the newest state.

#[cfg(test)]
mod tests;

use super::sync_plan::SyncPlan;
use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};
use std::sync::Arc;
use tortie_plan::{
    AddressSet, PeerLabels, PlanUpdate, PlannedPolicy, PlannedRule, PolicyDirection, PolicyId, ProfileRules,
    ServiceAccountId, SetId, SetMember, WorkloadId, WorkloadPolicy,
};
use tortie_policysync::proto::InSync;
use tortie_policysync::proto::to_dataplane::Payload;
use tortie_policysync::{
    encode_endpoint, encode_members, encode_namespace, encode_policy, encode_profile, encode_service_account,
    encode_set_part, encode_set_removal,
};

/// Maximum number of changed members that a subscriber notes while its client does not read. If there are more, the
/// client receives the changed sets again. They fit into one message.
pub const MAX_NOTED_MEMBERS: usize = 65_536;

/// Maximum number of changed namespaces and service accounts that a subscriber notes while its client does not read. If
/// there are more, the subscriber compares all namespaces and accounts, so that names do not accumulate.
pub const MAX_NOTED_PEERS: usize = 8_192;

/// One change for the client, by reference. It is encoded when the client is ready.
#[derive(Clone, Debug)]
pub enum OutgoingMessage {
    /// A whole set, or the rest of it after this member.
    Set {
        id: SetId,
        set: Arc<AddressSet>,
        after: Option<SetMember>,
    },
    Members {
        id: SetId,
        added: Vec<SetMember>,
        removed: Vec<SetMember>,
    },
    SetRemoval(SetId),
    Policy(PolicyId, Option<Arc<PlannedPolicy>>),
    Profile(String, Option<Arc<ProfileRules>>),
    Endpoint(WorkloadId, Option<Box<WorkloadPolicy>>),
    ServiceAccount(ServiceAccountId, Option<PeerLabels>),
    Namespace(String, Option<PeerLabels>),
    InSync,
}

impl OutgoingMessage {
    /// Returns the message, and the rest of the object if it needs several messages.
    pub fn encode(self) -> (Payload, Option<OutgoingMessage>) {
        let payload = match self {
            OutgoingMessage::Set { id, set, after } => {
                let (payload, rest) = encode_set_part(&id, &set, after);
                let rest = rest.map(|last| OutgoingMessage::Set { id, set, after: Some(last) });
                return (payload, rest);
            }
            OutgoingMessage::Members { id, added, removed } => {
                // The number of noted members is bounded, so the first message contains all of them.
                let encoded = encode_members(&id, &added, &removed).next();
                encoded.unwrap_or_else(|| Payload::IpsetDeltaUpdate(Default::default()))
            }
            OutgoingMessage::SetRemoval(id) => encode_set_removal(&id),
            OutgoingMessage::Policy(id, policy) => encode_policy(&id, policy.as_deref()),
            OutgoingMessage::Profile(name, profile) => encode_profile(&name, profile.as_deref()),
            OutgoingMessage::Endpoint(id, endpoint) => encode_endpoint(&id, endpoint.as_deref(), None),
            OutgoingMessage::ServiceAccount(id, labels) => encode_service_account(&id, labels.as_ref()),
            OutgoingMessage::Namespace(name, labels) => encode_namespace(&name, labels.as_ref()),
            OutgoingMessage::InSync => Payload::InSync(InSync {}),
        };
        (payload, None)
    }
}

/// A set that the client has.
#[derive(Debug)]
enum SentSet {
    /// Members that have been added (true) or removed since the client received the set.
    Changed(BTreeMap<SetMember, bool>),
    /// The client has to receive the whole set again.
    Outdated,
}

/// The objects that one workload references.
#[derive(Debug, Default)]
struct ReferencedObjects {
    sets: BTreeSet<SetId>,
    policies: BTreeMap<PolicyId, Arc<PlannedPolicy>>,
    profiles: BTreeMap<String, Arc<ProfileRules>>,
}

/// The client of one workload.
#[derive(Debug)]
pub struct Subscriber {
    workload: WorkloadId,
    // The state of the client once it has received all messages that were taken.
    sets: BTreeMap<SetId, SentSet>,
    policies: BTreeMap<PolicyId, Arc<PlannedPolicy>>,
    profiles: BTreeMap<String, Arc<ProfileRules>>,
    endpoint: Option<WorkloadPolicy>,
    /// Whether the plan has lost the endpoint since. A new one is sent even if it is equal.
    endpoint_removed: bool,
    namespaces: BTreeMap<String, PeerLabels>,
    service_accounts: BTreeMap<ServiceAccountId, PeerLabels>,
    in_sync: bool,
    /// Number of members in `sets`.
    noted_members: usize,
    /// Whether the endpoint or an object that it references may differ from the plan.
    policy_changed: bool,
    /// Namespaces and accounts that may differ from the plan.
    changed_namespaces: BTreeSet<String>,
    changed_accounts: BTreeSet<ServiceAccountId>,
    /// Whether any namespace or account may differ from the plan; then the changed ones are not noted.
    peers_outdated: bool,
}

impl Subscriber {
    pub fn new(workload: WorkloadId) -> Subscriber {
        Subscriber {
            workload,
            sets: BTreeMap::new(),
            policies: BTreeMap::new(),
            profiles: BTreeMap::new(),
            endpoint: None,
            endpoint_removed: false,
            namespaces: BTreeMap::new(),
            service_accounts: BTreeMap::new(),
            in_sync: false,
            noted_members: 0,
            policy_changed: true,
            changed_namespaces: BTreeSet::new(),
            changed_accounts: BTreeSet::new(),
            // The first messages contain all namespaces and accounts.
            peers_outdated: true,
        }
    }

    pub fn workload(&self) -> &WorkloadId {
        &self.workload
    }

    /// Returns whether there are messages to take.
    pub fn has_messages(&self) -> bool {
        !self.in_sync || self.policy_changed || self.peers_outdated || self.count_noted_peers() > 0
    }

    fn count_noted_peers(&self) -> usize {
        self.changed_namespaces.len() + self.changed_accounts.len()
    }

    /// Notes a change of the plan. Returns whether too much has changed since the client read its last message: then it
    /// receives the changed sets again, or all namespaces and accounts are compared.
    pub fn note_update(&mut self, update: &PlanUpdate) -> bool {
        match update {
            PlanUpdate::Set(id, _) => self.outdate_set(id),
            PlanUpdate::Members { set, added, removed } => return self.note_members(set, added, removed),
            PlanUpdate::Policy(id, _) => self.policy_changed |= self.policies.contains_key(id),
            PlanUpdate::Profile(name, _) => self.policy_changed |= self.profiles.contains_key(name),
            PlanUpdate::WorkloadPolicy(id, endpoint) if *id == self.workload => {
                self.policy_changed = true;
                self.endpoint_removed |= endpoint.is_none();
            }
            PlanUpdate::Namespace(name, _) if !self.peers_outdated => {
                self.changed_namespaces.insert(name.clone());
                return self.limit_noted_peers();
            }
            PlanUpdate::ServiceAccount(id, _) if !self.peers_outdated => {
                self.changed_accounts.insert(id.clone());
                return self.limit_noted_peers();
            }
            _ => {}
        }
        false
    }

    /// Notes that everything may have changed: the plan has been replaced by this one.
    pub fn note_replacement(&mut self, plan: &SyncPlan) {
        self.outdate_sets();
        self.policy_changed = true;
        self.endpoint_removed |= !plan.endpoints.contains_key(&self.workload);
        self.outdate_peers();
    }

    fn limit_noted_peers(&mut self) -> bool {
        let too_many = self.count_noted_peers() > MAX_NOTED_PEERS;
        if too_many {
            self.outdate_peers();
        }
        too_many
    }

    fn outdate_peers(&mut self) {
        self.changed_namespaces.clear();
        self.changed_accounts.clear();
        self.peers_outdated = true;
    }

    fn outdate_set(&mut self, id: &SetId) {
        if let Some(set) = self.sets.get_mut(id) {
            if let SentSet::Changed(changes) = std::mem::replace(set, SentSet::Outdated) {
                self.noted_members -= changes.len();
            }
            self.policy_changed = true;
        }
    }

    fn outdate_sets(&mut self) {
        self.sets.values_mut().for_each(|set| *set = SentSet::Outdated);
        self.noted_members = 0;
    }

    fn note_members(&mut self, id: &SetId, added: &[SetMember], removed: &[SetMember]) -> bool {
        let Some(set) = self.sets.get_mut(id) else { return false };
        self.policy_changed = true;
        let SentSet::Changed(changes) = set else { return false };
        let before = changes.len();
        let added = added.iter().map(|member| (*member, true));
        for (member, present) in added.chain(removed.iter().map(|member| (*member, false))) {
            match changes.entry(member) {
                // The client still has the state before both changes.
                Entry::Occupied(entry) if *entry.get() != present => {
                    entry.remove();
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(entry) => {
                    entry.insert(present);
                }
            }
        }
        self.noted_members = self.noted_members - before + changes.len();
        if self.noted_members <= MAX_NOTED_MEMBERS {
            return false;
        }
        self.outdate_changed_sets();
        true
    }

    fn outdate_changed_sets(&mut self) {
        let changed = self.sets.values_mut();
        changed
            .filter(|set| matches!(set, SentSet::Changed(changes) if !changes.is_empty()))
            .for_each(|set| *set = SentSet::Outdated);
        self.noted_members = 0;
    }

    /// Returns the messages that bring the client to the state of the plan, in Calico's order: an object is sent after
    /// all objects that it references, and removed after all that reference it.
    pub fn take_messages(&mut self, plan: &SyncPlan) -> Vec<OutgoingMessage> {
        let mut messages = Vec::new();
        if std::mem::take(&mut self.policy_changed) {
            self.take_policy(plan, &mut messages);
        }
        if std::mem::take(&mut self.peers_outdated) {
            let accounts = self.service_accounts.keys().chain(plan.service_accounts.keys());
            self.changed_accounts = accounts.cloned().collect();
            let namespaces = self.namespaces.keys().chain(plan.namespaces.keys());
            self.changed_namespaces = namespaces.cloned().collect();
        }
        self.take_peers(plan, &mut messages);
        if !std::mem::replace(&mut self.in_sync, true) {
            messages.push(OutgoingMessage::InSync);
        }
        messages
    }

    fn take_policy(&mut self, plan: &SyncPlan, messages: &mut Vec<OutgoingMessage>) {
        let endpoint = plan.endpoints.get(&self.workload).map(without_proxy_state);
        let referenced = endpoint.as_ref().map(|endpoint| collect_references(endpoint, plan));
        let ReferencedObjects { sets, policies, profiles } = referenced.unwrap_or_default();
        self.take_sets(plan, &sets, messages);
        for (id, policy) in &policies {
            if self.policies.get(id) != Some(policy) {
                messages.push(OutgoingMessage::Policy(id.clone(), Some(policy.clone())));
            }
        }
        for (name, profile) in &profiles {
            if self.profiles.get(name) != Some(profile) {
                messages.push(OutgoingMessage::Profile(name.clone(), Some(profile.clone())));
            }
        }
        let created_again = std::mem::take(&mut self.endpoint_removed) && endpoint.is_some();
        if endpoint != self.endpoint || created_again {
            let sent = endpoint.clone().map(Box::new);
            messages.push(OutgoingMessage::Endpoint(self.workload.clone(), sent));
            self.endpoint = endpoint;
        }
        let gone = self.policies.keys().filter(|id| !policies.contains_key(*id));
        messages.extend(gone.map(|id| OutgoingMessage::Policy(id.clone(), None)));
        let gone = self.profiles.keys().filter(|name| !profiles.contains_key(*name));
        messages.extend(gone.map(|name| OutgoingMessage::Profile(name.clone(), None)));
        self.policies = policies;
        self.profiles = profiles;
        let gone = self.sets.extract_if(.., |id, _| !sets.contains(id));
        messages.extend(gone.map(|(id, _)| OutgoingMessage::SetRemoval(id)));
        self.noted_members = 0;
    }

    /// Sends referenced sets that the client does not have, and changes of the others.
    fn take_sets(&mut self, plan: &SyncPlan, wanted: &BTreeSet<SetId>, messages: &mut Vec<OutgoingMessage>) {
        for id in wanted {
            let Some(set) = plan.sets.get(id) else { continue };
            let known = self.sets.insert(id.clone(), SentSet::Changed(BTreeMap::new()));
            match known {
                Some(SentSet::Changed(changes)) if changes.is_empty() => {}
                Some(SentSet::Changed(changes)) => {
                    let of = |present: bool| {
                        changes.iter().filter(move |(_, now)| **now == present).map(|(member, _)| *member)
                    };
                    let (added, removed) = (of(true).collect(), of(false).collect());
                    messages.push(OutgoingMessage::Members { id: id.clone(), added, removed });
                }
                Some(SentSet::Outdated) | None => {
                    messages.push(OutgoingMessage::Set { id: id.clone(), set: set.clone(), after: None });
                }
            }
        }
    }

    fn take_peers(&mut self, plan: &SyncPlan, messages: &mut Vec<OutgoingMessage>) {
        for id in std::mem::take(&mut self.changed_accounts) {
            let labels = plan.service_accounts.get(&id).cloned();
            if replace_if_changed(&mut self.service_accounts, &id, &labels) {
                messages.push(OutgoingMessage::ServiceAccount(id, labels));
            }
        }
        for name in std::mem::take(&mut self.changed_namespaces) {
            let labels = plan.namespaces.get(&name).cloned();
            if replace_if_changed(&mut self.namespaces, &name, &labels) {
                messages.push(OutgoingMessage::Namespace(name, labels));
            }
        }
    }
}

/// Sets or removes an entry. Returns whether that changed it.
fn replace_if_changed<K: Ord + Clone, V: Clone + PartialEq>(
    map: &mut BTreeMap<K, V>,
    key: &K,
    value: &Option<V>,
) -> bool {
    if map.get(key) == value.as_ref() {
        return false;
    }
    match value {
        Some(value) => map.insert(key.clone(), value.clone()),
        None => map.remove(key),
    };
    true
}

/// Returns an endpoint without the state of its proxy, which the protocol does not contain: it must not cause messages.
fn without_proxy_state(endpoint: &WorkloadPolicy) -> WorkloadPolicy {
    WorkloadPolicy { http_proxy: false, ..endpoint.clone() }
}

fn collect_references(endpoint: &WorkloadPolicy, plan: &SyncPlan) -> ReferencedObjects {
    const DIRECTIONS: [PolicyDirection; 2] = [PolicyDirection::Ingress, PolicyDirection::Egress];
    let mut referenced = ReferencedObjects::default();
    for tier in &endpoint.tiers {
        for id in DIRECTIONS.into_iter().flat_map(|direction| tier.policies(direction)) {
            if let Some(policy) = plan.policies.get(id)
                && referenced.policies.insert(id.clone(), policy.clone()).is_none()
            {
                DIRECTIONS.iter().for_each(|direction| referenced.add_sets(policy.rules(*direction)));
            }
        }
    }
    for name in &endpoint.profiles {
        if let Some(profile) = plan.profiles.get(name) {
            DIRECTIONS.iter().for_each(|direction| referenced.add_sets(profile.rules(*direction)));
            referenced.profiles.insert(name.clone(), profile.clone());
        }
    }
    referenced
}

impl ReferencedObjects {
    fn add_sets(&mut self, rules: &[PlannedRule]) {
        self.sets.extend(rules.iter().flat_map(PlannedRule::sets).cloned());
    }
}
