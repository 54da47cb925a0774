//! Random changes of a plan, read by a client at random times. At no moment does the client have a dangling reference,
//! and when it has read everything, it has its part of the plan.

use super::*;
use ipnet::IpNet;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::net::IpAddr;
use tortie_plan::{EndpointTier, NodePlan, RuleAction, RuleSide, SetKind, TierDefaultAction};
use tortie_policysync::proto::ToDataplane;
use tortie_policysync::{SyncEvent, decode_message};

/// The plan of the server and a client. The client reads messages one by one.
struct TestClient {
    plan: NodePlan,
    sync_plan: SyncPlan,
    subscriber: Subscriber,
    waiting: VecDeque<OutgoingMessage>,
    replica: NodePlan,
    in_sync: bool,
    resyncs: usize,
}

fn workload() -> WorkloadId {
    WorkloadId { orchestrator: "k8s".into(), workload: "shop/web".into(), endpoint: "eth0".into() }
}

fn set_id(number: u8) -> SetId {
    SetId::new(&format!("s:{number}"))
}

fn policy_id(number: u8) -> PolicyId {
    format!("gnp/p{number}").parse().unwrap()
}

fn profile_name(number: u8) -> String {
    format!("kns.n{number}")
}

fn net(number: u32) -> SetMember {
    SetMember::Net(IpNet::from(IpAddr::from(std::net::Ipv4Addr::from(number))))
}

fn rules(sets: &[u8]) -> Vec<PlannedRule> {
    let source = RuleSide { sets: sets.iter().copied().map(set_id).collect(), ..RuleSide::default() };
    vec![PlannedRule { source, ..PlannedRule::new(RuleAction::Allow) }]
}

impl TestClient {
    fn new() -> TestClient {
        TestClient {
            plan: NodePlan::default(),
            sync_plan: SyncPlan::default(),
            subscriber: Subscriber::new(workload()),
            waiting: VecDeque::new(),
            replica: NodePlan::default(),
            in_sync: false,
            resyncs: 0,
        }
    }

    fn update(&mut self, update: PlanUpdate) {
        self.resyncs += usize::from(self.subscriber.note_update(&update));
        self.plan.apply(update.clone());
        self.sync_plan.apply(update);
    }

    /// Brings the plan from its state to this one, with objects before their references.
    fn change_to(&mut self, wanted: &TestPlan) {
        let next = wanted.plan();
        for (id, set) in &next.sets {
            let known = self.plan.sets.get(id).filter(|known| known.kind == set.kind).cloned();
            if known.is_none() {
                self.update(PlanUpdate::Set(id.clone(), Some(set.kind)));
            }
            let known = known.map(|known| known.members).unwrap_or_default();
            let added = set.members.difference(&known).copied().collect();
            let removed = known.difference(&set.members).copied().collect();
            self.update(PlanUpdate::Members { set: id.clone(), added, removed });
        }
        for (id, policy) in &next.policies {
            self.update(PlanUpdate::Policy(id.clone(), Some(policy.clone())));
        }
        for (name, profile) in &next.profiles {
            self.update(PlanUpdate::Profile(name.clone(), Some(profile.clone())));
        }
        self.update(PlanUpdate::WorkloadPolicy(workload(), next.workload_policies.get(&workload()).cloned()));
        self.remove_objects(&next);
        for name in
            self.plan.namespaces.keys().chain(next.namespaces.keys()).cloned().collect::<BTreeSet<_>>()
        {
            self.update(PlanUpdate::Namespace(name.clone(), next.namespaces.get(&name).cloned()));
        }
        assert_eq!(self.plan, next);
    }

    fn remove_objects(&mut self, next: &NodePlan) {
        for id in self.plan.policies.keys().cloned().collect::<Vec<_>>() {
            if !next.policies.contains_key(&id) {
                self.update(PlanUpdate::Policy(id, None));
            }
        }
        for name in self.plan.profiles.keys().cloned().collect::<Vec<_>>() {
            if !next.profiles.contains_key(&name) {
                self.update(PlanUpdate::Profile(name, None));
            }
        }
        for id in self.plan.sets.keys().cloned().collect::<Vec<_>>() {
            if !next.sets.contains_key(&id) {
                self.update(PlanUpdate::Set(id, None));
            }
        }
    }

    /// Reads at most this number of messages. Returns whether there are no more.
    fn read(&mut self, number: usize) -> bool {
        for _ in 0..number {
            if self.waiting.is_empty() {
                self.waiting = self.subscriber.take_messages(&self.sync_plan).into();
                assert!(!self.subscriber.has_messages());
            }
            let Some(message) = self.waiting.pop_front() else { return true };
            let (payload, rest) = message.encode();
            self.waiting.extend(rest);
            let message = ToDataplane { sequence_number: 1, payload: Some(payload) };
            let decoded = decode_message(message).unwrap();
            assert_eq!(decoded.problems, []);
            match decoded.event {
                SyncEvent::InSync => assert!(!std::mem::replace(&mut self.in_sync, true), "sent once"),
                SyncEvent::Updates(updates) => {
                    updates.into_iter().for_each(|update| self.replica.apply(update))
                }
                SyncEvent::Other => panic!("an empty message"),
            }
            self.check_references();
        }
        false
    }

    fn check_references(&self) {
        for (id, policy) in &self.replica.policies {
            for set in policy.ingress.iter().chain(&policy.egress).flat_map(PlannedRule::sets) {
                assert!(self.replica.sets.contains_key(set), "{id} refers to {set}, which was not sent");
            }
        }
        for (name, profile) in &self.replica.profiles {
            for set in profile.ingress.iter().chain(&profile.egress).flat_map(PlannedRule::sets) {
                assert!(self.replica.sets.contains_key(set), "{name} refers to {set}, which was not sent");
            }
        }
        for endpoint in self.replica.workload_policies.values() {
            for id in endpoint.tiers.iter().flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter())) {
                assert!(self.replica.policies.contains_key(id), "{id} was not sent");
            }
            for name in &endpoint.profiles {
                assert!(self.replica.profiles.contains_key(name), "{name} was not sent");
            }
        }
    }

    /// Reads everything and compares the replica with the plan's part.
    fn check_replica(&mut self) {
        while !self.read(64) {}
        assert!(self.in_sync);
        let endpoint = self.plan.workload_policies.get(&workload());
        let expected = endpoint.map(|endpoint| WorkloadPolicy { http_proxy: true, ..endpoint.clone() });
        assert_eq!(self.replica.workload_policies.get(&workload()), expected.as_ref());
        let references = endpoint.map(|endpoint| collect_references(endpoint, &self.sync_plan));
        let ReferencedObjects { sets, policies, profiles } = references.unwrap_or_default();
        assert_eq!(self.replica.policies, policies);
        assert_eq!(self.replica.profiles, profiles);
        let sets: BTreeMap<SetId, AddressSet> =
            sets.into_iter().map(|id| (id.clone(), self.plan.sets[&id].clone())).collect();
        assert_eq!(self.replica.sets, sets);
        assert_eq!(self.replica.namespaces, self.plan.namespaces);
    }
}

/// A consistent plan.
#[derive(Clone, Debug)]
struct TestPlan {
    sets: BTreeMap<u8, (bool, BTreeSet<u16>)>,
    /// The sets that each policy and profile refers to. Those that do not exist are left out.
    policies: BTreeMap<u8, Vec<u8>>,
    profiles: BTreeMap<u8, Vec<u8>>,
    endpoint: Option<(Vec<u8>, Vec<u8>, bool)>,
    namespaces: BTreeMap<u8, u8>,
}

impl TestPlan {
    fn plan(&self) -> NodePlan {
        let existing =
            |sets: &[u8]| sets.iter().copied().filter(|set| self.sets.contains_key(set)).collect::<Vec<u8>>();
        let mut plan = NodePlan::default();
        for (id, (has_ports, members)) in &self.sets {
            let kind = if *has_ports { SetKind::Ports } else { SetKind::Nets };
            let member = |number: &u16| match kind {
                SetKind::Nets => net(u32::from(*number)),
                SetKind::Ports => {
                    SetMember::Port { address: IpAddr::from([10, 0, 0, 1]), protocol: 6, port: *number }
                }
            };
            let members = members.iter().map(member).collect();
            plan.sets.insert(set_id(*id), AddressSet { kind, members });
        }
        for (id, sets) in &self.policies {
            let policy = PlannedPolicy { ingress: rules(&existing(sets)), ..PlannedPolicy::default() };
            plan.policies.insert(policy_id(*id), Arc::new(policy));
        }
        for (id, sets) in &self.profiles {
            let profile = ProfileRules { egress: rules(&existing(sets)), ..ProfileRules::default() };
            plan.profiles.insert(profile_name(*id), Arc::new(profile));
        }
        if let Some((policies, profiles, http_proxy)) = &self.endpoint {
            let policies = policies.iter().filter(|id| self.policies.contains_key(id));
            let tier = EndpointTier {
                name: "default".into(),
                end: TierDefaultAction::Deny,
                ingress: policies.map(|id| policy_id(*id)).collect(),
                egress: Arc::from([]),
            };
            let profiles = profiles.iter().filter(|id| self.profiles.contains_key(id));
            let endpoint = WorkloadPolicy {
                up: true,
                tiers: vec![tier],
                profiles: profiles.map(|id| profile_name(*id)).collect(),
                http_proxy: *http_proxy,
                ..WorkloadPolicy::default()
            };
            plan.workload_policies.insert(workload(), endpoint);
        }
        for (name, label) in &self.namespaces {
            let labels = BTreeMap::from([("label".to_owned(), label.to_string())]);
            plan.namespaces.insert(format!("n{name}"), Arc::new(labels));
        }
        plan
    }
}

fn any_plan() -> impl Strategy<Value = TestPlan> {
    let set = (any::<bool>(), proptest::collection::btree_set(0..12_u16, 0..6));
    let references = || btree_map(0..4_u8, vec(0..4_u8, 0..3), 0..4);
    let endpoint = proptest::option::weighted(0.8, (vec(0..4_u8, 0..3), vec(0..4_u8, 0..3), any::<bool>()));
    (btree_map(0..4_u8, set, 0..4), references(), references(), endpoint, btree_map(0..3_u8, 0..2_u8, 0..3))
        .prop_map(|(sets, policies, profiles, endpoint, namespaces)| TestPlan {
            sets,
            policies,
            profiles,
            endpoint,
            namespaces,
        })
}

#[derive(Clone, Debug)]
enum TestStep {
    Change(TestPlan),
    Replace(TestPlan),
    Read(usize),
}

fn any_step() -> impl Strategy<Value = TestStep> {
    prop_oneof![
        4 => any_plan().prop_map(TestStep::Change),
        1 => any_plan().prop_map(TestStep::Replace),
        4 => (0..6_usize).prop_map(TestStep::Read),
    ]
}

proptest! {
    #[test]
    fn clients_never_have_dangling_references(steps in vec(any_step(), 0..12)) {
        let mut client = TestClient::new();
        for step in steps {
            match step {
                TestStep::Change(plan) => client.change_to(&plan),
                TestStep::Replace(plan) => {
                    client.plan = plan.plan();
                    client.sync_plan = SyncPlan::from(plan.plan());
                    client.subscriber.note_replacement(&client.sync_plan);
                }
                TestStep::Read(number) => {
                    client.read(number);
                }
            }
        }
        client.check_replica();
        prop_assert_eq!(client.resyncs, 0);
    }
}

fn simple_plan(members: impl Iterator<Item = u16>) -> TestPlan {
    TestPlan {
        sets: BTreeMap::from([(0, (false, members.collect()))]),
        policies: BTreeMap::from([(0, vec![0])]),
        profiles: BTreeMap::from([(0, vec![])]),
        endpoint: Some((vec![0], vec![0], false)),
        namespaces: BTreeMap::from([(0, 0)]),
    }
}

/// Returns the kinds of messages in their order.
fn kinds(messages: &[OutgoingMessage]) -> Vec<&'static str> {
    let kind = |message: &OutgoingMessage| match message {
        OutgoingMessage::Set { .. } => "set",
        OutgoingMessage::Members { .. } => "members",
        OutgoingMessage::SetRemoval(_) => "no set",
        OutgoingMessage::Policy(_, Some(_)) => "policy",
        OutgoingMessage::Policy(_, None) => "no policy",
        OutgoingMessage::Profile(_, Some(_)) => "profile",
        OutgoingMessage::Profile(_, None) => "no profile",
        OutgoingMessage::Endpoint(_, Some(_)) => "endpoint",
        OutgoingMessage::Endpoint(_, None) => "no endpoint",
        OutgoingMessage::ServiceAccount(..) => "account",
        OutgoingMessage::Namespace(..) => "namespace",
        OutgoingMessage::InSync => "in sync",
    };
    messages.iter().map(kind).collect()
}

#[test]
fn messages_have_the_order_of_calico() {
    let mut client = TestClient::new();
    client.change_to(&simple_plan(0..3));
    let first = client.subscriber.take_messages(&client.sync_plan);
    assert_eq!(kinds(&first), ["set", "policy", "profile", "endpoint", "namespace", "in sync"]);
    client.change_to(&simple_plan(1..5));
    assert_eq!(kinds(&client.subscriber.take_messages(&client.sync_plan)), ["members"]);
    let proxied = TestPlan { endpoint: Some((vec![0], vec![0], true)), ..simple_plan(1..5) };
    client.change_to(&proxied);
    assert_eq!(kinds(&client.subscriber.take_messages(&client.sync_plan)), [""; 0], "the state of the proxy");
    client.change_to(&TestPlan { endpoint: None, ..proxied });
    let last = client.subscriber.take_messages(&client.sync_plan);
    assert_eq!(kinds(&last), ["no endpoint", "no policy", "no profile", "no set"]);
}

#[test]
fn unread_changes_are_bounded() {
    let mut client = TestClient::new();
    client.change_to(&simple_plan(0..3));
    while !client.read(64) {}
    let churn = |client: &mut TestClient, from: u32, to: u32| {
        for number in from..to {
            client.update(PlanUpdate::Members { set: set_id(0), added: vec![net(number)], removed: vec![] });
        }
    };
    let bound = u32::try_from(MAX_NOTED_MEMBERS).unwrap();
    churn(&mut client, 10, 10 + bound);
    assert_eq!(client.resyncs, 0);
    churn(&mut client, 10 + bound, 11 + bound);
    assert_eq!(client.resyncs, 1);
    churn(&mut client, 11 + bound, 11 + 2 * bound);
    assert_eq!((client.resyncs, client.subscriber.noted_members), (1, 0), "nothing more is noted");
    let messages = client.subscriber.take_messages(&client.sync_plan);
    assert_eq!(kinds(&messages), ["set"], "the whole set again");
    client.waiting = messages.into();
    client.check_replica();
}

#[test]
fn members_that_come_back_cause_no_message() {
    let mut client = TestClient::new();
    client.change_to(&simple_plan(0..3));
    while !client.read(64) {}
    client.change_to(&simple_plan(0..9));
    client.change_to(&simple_plan(0..3));
    assert_eq!(kinds(&client.subscriber.take_messages(&client.sync_plan)), [""; 0]);
    assert_eq!(client.subscriber.noted_members, 0);
}

#[test]
fn unread_namespaces_and_accounts_are_bounded() {
    let mut client = TestClient::new();
    client.change_to(&simple_plan(0..3));
    while !client.read(64) {}
    let labels = Some(Arc::new(BTreeMap::from([("a".to_owned(), "b".to_owned())])));
    let account = |number: usize| ServiceAccountId { namespace: "n".to_owned(), name: number.to_string() };
    // Each is created and deleted, as by a controller that leaves nothing behind.
    for number in 0..MAX_NOTED_PEERS / 2 {
        for labels in [labels.clone(), None] {
            client.update(PlanUpdate::Namespace(format!("churn-{number}"), labels.clone()));
            client.update(PlanUpdate::ServiceAccount(account(number), labels));
        }
    }
    assert_eq!((client.resyncs, client.subscriber.count_noted_peers()), (0, MAX_NOTED_PEERS));
    client.update(PlanUpdate::Namespace("n0".to_owned(), None));
    client.update(PlanUpdate::Namespace("kept".to_owned(), labels));
    assert_eq!((client.resyncs, client.subscriber.count_noted_peers()), (1, 0), "nothing more is noted");
    let messages = client.subscriber.take_messages(&client.sync_plan);
    assert_eq!(kinds(&messages), ["namespace", "namespace"], "what differs, and no account");
    client.waiting = messages.into();
    client.check_replica();
}
