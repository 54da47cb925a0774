//! Any sequence of changes must leave the same replica as one that is built from the final state.

use super::*;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tortie_plan::{
    EndpointTier, PeerMatch, PlanUpdate, PolicyKind, RuleAction, ServiceAccountId, SetKind, SetMember,
    TierDefaultAction,
};

const STEPS: usize = 4000;
const SET_NAMES: [&str; 4] = ["s:red", "s:green", "n:web", "svc:cart"];
const SELECTORS: [&str; 4] = ["", "role == 'web'", "has(a)", "broken =="];
const NAMES: [&str; 3] = ["a", "b", "c"];
const MAX_BYTES: usize = 1 << 30;

/// The objects of a replica, as the node knows them.
#[derive(Clone, Default)]
struct FinalState {
    sets: BTreeMap<SetId, (SetKind, Vec<SetMember>)>,
    policies: BTreeMap<PolicyId, Arc<PlannedPolicy>>,
    profiles: BTreeMap<String, Arc<ProfileRules>>,
    endpoint: Option<(WorkloadId, WorkloadPolicy)>,
    namespaces: BTreeMap<String, PeerLabels>,
    accounts: BTreeMap<ServiceAccountId, PeerLabels>,
}

struct ChangeGenerator {
    random: StdRng,
    state: FinalState,
}

impl ChangeGenerator {
    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of.choose(&mut self.random).unwrap().clone()
    }

    fn rules(&mut self) -> Vec<PlannedRule> {
        let count = self.random.random_range(0..3);
        (0..count).map(|_| self.rule()).collect()
    }

    fn rule(&mut self) -> PlannedRule {
        let action = self.one(&[RuleAction::Allow, RuleAction::Deny, RuleAction::Pass]);
        let mut rule = PlannedRule::new(action);
        if self.random.random_bool(0.5) {
            rule.source.sets = vec![SetId::new(self.one(&SET_NAMES))];
        }
        if self.random.random_bool(0.2) {
            rule.destination.named_ports = vec![SetId::new(self.one(&SET_NAMES))];
        }
        if self.random.random_bool(0.3) {
            let namespace_selector = self.one(&SELECTORS).to_owned();
            rule.source.peer = Some(Box::new(PeerMatch { namespace_selector, ..PeerMatch::default() }));
        }
        rule
    }

    fn members(&mut self, kind: SetKind) -> Vec<SetMember> {
        let count = self.random.random_range(0..6);
        (0..count)
            .map(|_| {
                let last: u8 = self.random.random_range(0..8);
                match kind {
                    SetKind::Nets => {
                        let length = self.one(&[32, 30, 24]);
                        let net = ipnet::IpNet::new([10, 0, 0, last].into(), length).unwrap();
                        SetMember::Net(net.trunc())
                    }
                    SetKind::Ports => {
                        SetMember::Port { address: [10, 0, 0, last].into(), protocol: 6, port: 80 }
                    }
                }
            })
            .collect()
    }

    fn labels(&mut self) -> PeerLabels {
        Arc::new(BTreeMap::from([("role".to_owned(), self.one(&NAMES).to_owned())]))
    }

    fn policy_id(&mut self) -> PolicyId {
        let name = self.one(&NAMES).to_owned();
        PolicyId { kind: PolicyKind::GlobalNetworkPolicy, namespace: String::new(), name }
    }

    fn endpoint(&mut self) -> WorkloadPolicy {
        let ingress: Vec<PolicyId> = (0..2).map(|_| self.policy_id()).collect();
        let end = TierDefaultAction::Deny;
        let tier = EndpointTier { name: "default".into(), end, ingress: ingress.into(), egress: [].into() };
        WorkloadPolicy { tiers: vec![tier], ..WorkloadPolicy::default() }
    }

    /// Changes the state and returns the update that describes it.
    fn step(&mut self) -> Vec<PlanUpdate> {
        let removes = self.random.random_bool(0.25);
        match self.random.random_range(0..10) {
            0 | 1 => self.replace_set(removes),
            2 | 3 => self.change_members(),
            4 | 5 => {
                let id = self.policy_id();
                let (ingress, egress) = (self.rules(), self.rules());
                let policy =
                    PlannedPolicy { tier: "default".into(), selector: String::new(), ingress, egress };
                let policy = (!removes).then(|| Arc::new(policy));
                put(&mut self.state.policies, &id, policy.clone());
                vec![PlanUpdate::Policy(id, policy)]
            }
            6 => {
                let name = self.one(&NAMES).to_owned();
                let profile = ProfileRules { ingress: self.rules(), egress: self.rules() };
                let profile = (!removes).then(|| Arc::new(profile));
                put(&mut self.state.profiles, &name, profile.clone());
                vec![PlanUpdate::Profile(name, profile)]
            }
            7 => {
                let name = self.one(&NAMES).to_owned();
                let labels = (!removes).then(|| self.labels());
                put(&mut self.state.namespaces, &name, labels.clone());
                vec![PlanUpdate::Namespace(name, labels)]
            }
            8 => {
                let id = ServiceAccountId {
                    namespace: self.one(&NAMES).to_owned(),
                    name: self.one(&NAMES).to_owned(),
                };
                let labels = (!removes).then(|| self.labels());
                put(&mut self.state.accounts, &id, labels.clone());
                vec![PlanUpdate::ServiceAccount(id, labels)]
            }
            _ => {
                let endpoint = (!removes).then(|| self.endpoint());
                self.state.endpoint = endpoint.clone().map(|endpoint| (workload(), endpoint));
                vec![PlanUpdate::WorkloadPolicy(workload(), endpoint)]
            }
        }
    }

    fn replace_set(&mut self, removes: bool) -> Vec<PlanUpdate> {
        let id = SetId::new(self.one(&SET_NAMES));
        if removes {
            self.state.sets.remove(&id);
            return vec![PlanUpdate::Set(id, None)];
        }
        let kind = self.one(&[SetKind::Nets, SetKind::Ports]);
        let added = self.members(kind);
        self.state.sets.insert(id.clone(), (kind, added.clone()));
        let members = PlanUpdate::Members { set: id.clone(), added, removed: Vec::new() };
        vec![PlanUpdate::Set(id, Some(kind)), members]
    }

    fn change_members(&mut self) -> Vec<PlanUpdate> {
        let id = SetId::new(self.one(&SET_NAMES));
        let Some((kind, _)) = self.state.sets.get(&id).cloned() else {
            // The set stays unknown.
            let added = self.members(SetKind::Nets);
            return vec![PlanUpdate::Members { set: id, added, removed: Vec::new() }];
        };
        let removed = self.members(kind);
        let mut added = self.members(kind);
        added.retain(|member| !removed.contains(member));
        let (_, members) = self.state.sets.get_mut(&id).unwrap();
        members.retain(|member| !removed.contains(member));
        members.extend(&added);
        vec![PlanUpdate::Members { set: id, added, removed }]
    }
}

fn put<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, key: &K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key.clone(), value),
        None => map.remove(key),
    };
}

fn workload() -> WorkloadId {
    WorkloadId { orchestrator: "k8s".into(), workload: "shop/web".into(), endpoint: "eth0".into() }
}

impl FinalState {
    /// Returns the updates in the order in which a node sends them.
    fn updates(&self) -> Vec<PlanUpdate> {
        let mut updates = Vec::new();
        for (id, (kind, members)) in &self.sets {
            updates.push(PlanUpdate::Set(id.clone(), Some(*kind)));
            let added = members.clone();
            updates.push(PlanUpdate::Members { set: id.clone(), added, removed: Vec::new() });
        }
        updates.extend(
            self.policies.iter().map(|(id, policy)| PlanUpdate::Policy(id.clone(), Some(policy.clone()))),
        );
        updates.extend(
            self.profiles.iter().map(|(name, rules)| PlanUpdate::Profile(name.clone(), Some(rules.clone()))),
        );
        updates.extend(
            self.endpoint
                .iter()
                .map(|(id, endpoint)| PlanUpdate::WorkloadPolicy(id.clone(), Some(endpoint.clone()))),
        );
        updates.extend(
            self.accounts
                .iter()
                .map(|(id, labels)| PlanUpdate::ServiceAccount(id.clone(), Some(labels.clone()))),
        );
        updates.extend(
            self.namespaces
                .iter()
                .map(|(name, labels)| PlanUpdate::Namespace(name.clone(), Some(labels.clone()))),
        );
        updates
    }
}

fn apply_updates(replica: &mut Replica, updates: Vec<PlanUpdate>) {
    for change in prepare_changes(updates) {
        replica.apply(change).unwrap();
    }
}

fn assert_same(actual: &Replica, expected: &Replica) {
    assert_eq!(actual.policies, expected.policies);
    assert_eq!(actual.incomplete_policies, expected.incomplete_policies);
    assert_eq!(actual.profiles, expected.profiles);
    assert_eq!(actual.incomplete_profiles, expected.incomplete_profiles);
    assert_eq!(actual.sets, expected.sets);
    assert_eq!(actual.endpoint, expected.endpoint);
    assert_eq!(actual.missing_policy, expected.missing_policy);
    assert_eq!(actual.namespaces, expected.namespaces);
    assert_eq!(actual.service_accounts, expected.service_accounts);
    assert_eq!(actual.bytes, expected.bytes, "estimated memory");
}

#[test]
fn any_history_equals_a_fresh_replica() {
    let seed: u64 =
        std::env::var("TORTIE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    println!("TORTIE_SEED={seed}");
    let mut generator = ChangeGenerator { random: StdRng::seed_from_u64(seed), state: FinalState::default() };
    let mut replica = Replica::new(MAX_BYTES);
    for step in 0..STEPS {
        let updates = generator.step();
        apply_updates(&mut replica, updates);
        if step % 10 == 0 {
            let mut fresh = Replica::new(MAX_BYTES);
            apply_updates(&mut fresh, generator.state.updates());
            assert_same(&replica, &fresh);
        }
    }
}

#[test]
fn memory_is_limited() {
    let mut replica = Replica::new(100_000);
    let id = SetId::new("s:big");
    let members = |range: std::ops::Range<u32>| -> Vec<SetMember> {
        range.map(|bits| SetMember::Net(std::net::IpAddr::from(bits.to_be_bytes()).into())).collect()
    };
    let add = |added| vec![PlanUpdate::Members { set: id.clone(), added, removed: Vec::new() }];
    apply_updates(&mut replica, vec![PlanUpdate::Set(id.clone(), Some(SetKind::Nets))]);
    apply_updates(&mut replica, add(members(0..2000)));
    let changes = prepare_changes(add(members(2000..4000)));
    let outcome: Result<(), ReplicaError> = changes.into_iter().try_for_each(|change| replica.apply(change));
    assert!(matches!(outcome, Err(ReplicaError::TooLarge { limit: 100_000, .. })));
    let removed = members(0..3000);
    apply_updates(&mut replica, vec![PlanUpdate::Members { set: id, added: Vec::new(), removed }]);
}

#[test]
fn names_and_hardened_policies_use_memory() {
    let limit = 100_000;
    let long = "n".repeat(limit);
    let mut rule = PlannedRule::new(RuleAction::Allow);
    // The set is unknown: the rule is replaced, and its received form is kept until the set arrives.
    rule.source.sets = vec![SetId::new("s:unknown")];
    rule.source.nets = vec!["10.0.0.0/8".parse().unwrap(); limit / 8];
    let policy = Arc::new(PlannedPolicy { ingress: vec![rule.clone()], ..PlannedPolicy::default() });
    let profile = Arc::new(ProfileRules { ingress: vec![rule], egress: Vec::new() });
    let labels = || Some(Arc::new(BTreeMap::new()));
    let account = ServiceAccountId { namespace: long.clone(), name: "a".to_owned() };
    let endpoint = WorkloadPolicy { profiles: vec![long.clone()], ..WorkloadPolicy::default() };
    let updates = [
        PlanUpdate::Policy("gnp/web".parse().unwrap(), Some(policy)),
        PlanUpdate::Policy(format!("gnp/{long}").parse().unwrap(), Some(Arc::default())),
        PlanUpdate::Profile("kns.shop".to_owned(), Some(profile)),
        PlanUpdate::Profile(long.clone(), Some(Arc::default())),
        PlanUpdate::Set(SetId::new(&long), Some(SetKind::Nets)),
        PlanUpdate::Namespace(long.clone(), labels()),
        PlanUpdate::ServiceAccount(account, labels()),
        PlanUpdate::WorkloadPolicy(workload(), Some(endpoint)),
    ];
    for update in updates {
        let shown = format!("{update:?}").chars().take(60).collect::<String>();
        let mut replica = Replica::new(limit);
        let changes = prepare_changes(vec![update]);
        let outcome: Result<(), ReplicaError> =
            changes.into_iter().try_for_each(|change| replica.apply(change));
        assert!(matches!(outcome, Err(ReplicaError::TooLarge { .. })), "{shown}");
    }
}

#[test]
fn large_changes_of_sets_are_split() {
    let members: Vec<SetMember> = (0..10_000u32)
        .map(|bits| SetMember::Net(std::net::IpAddr::from(bits.to_be_bytes()).into()))
        .collect();
    let id = SetId::new("s:big");
    let delta = PlanUpdate::Members { set: id.clone(), added: members.clone(), removed: Vec::new() };
    assert_eq!(prepare_changes(vec![delta.clone()]).len(), 3);
    // A set that is replaced is indexed before the lock is taken, so that it is one change.
    assert_eq!(prepare_changes(vec![PlanUpdate::Set(id, Some(SetKind::Nets)), delta]).len(), 1);
}

#[test]
fn unused_selectors_are_swept() {
    let mut replica = Replica::new(MAX_BYTES);
    for number in 0..1000 {
        let mut rule = PlannedRule::new(RuleAction::Allow);
        let namespace_selector = format!("a == '{number}'");
        rule.source.peer = Some(Box::new(PeerMatch { namespace_selector, ..PeerMatch::default() }));
        let policy = PlannedPolicy { ingress: vec![rule], ..PlannedPolicy::default() };
        let id = "gnp/web".parse().unwrap();
        apply_updates(&mut replica, vec![PlanUpdate::Policy(id, Some(Arc::new(policy)))]);
    }
    assert!(replica.selectors.len() < 100, "{} selectors of one rule", replica.selectors.len());
    assert!(replica.selectors.contains_key("a == '999'"));
}

#[test]
fn counters_survive_unchanged_rules() {
    let policy = || {
        let rules = vec![PlannedRule::new(RuleAction::Allow)];
        PlannedPolicy { ingress: rules, ..PlannedPolicy::default() }
    };
    let id: PolicyId = "gnp/web".parse().unwrap();
    let with_policy = |policy| {
        let mut replica = Replica::new(MAX_BYTES);
        apply_updates(&mut replica, vec![PlanUpdate::Policy(id.clone(), Some(Arc::new(policy)))]);
        replica
    };
    let mut first = with_policy(policy());
    let rule = PlannedRule::new(RuleAction::Allow);
    let position = RulePosition {
        holder: RuleHolder::Policy { tier: "default", id: &id },
        direction: tortie_plan::PolicyDirection::Ingress,
        index: tortie_plan::RuleIndex::at(0),
        rule: &rule,
    };
    first.count_rule(&position);
    first.count_rule(&position);
    let mut second = with_policy(policy());
    second.inherit_counters(&mut first);
    let counted: Vec<(String, u64)> =
        second.counted_rules().map(|(rule, count)| (rule.to_string(), count)).collect();
    assert_eq!(counted, [("gnp/web ingress rule 1".to_owned(), 2)]);
    let mut changed = policy();
    changed.ingress.insert(0, PlannedRule::new(RuleAction::Deny));
    let mut third = with_policy(changed);
    third.inherit_counters(&mut second);
    assert_eq!(third.counted_rules().count(), 0);
}
