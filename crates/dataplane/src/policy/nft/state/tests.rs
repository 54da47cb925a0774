use super::super::flow::FlowIdentities;
use super::super::render::PolicyStage;
use super::super::rule::NftAction;
use super::*;
use std::collections::BTreeSet;
use tortie_plan::{
    EndpointTier, HttpMatch, PlannedRule, PolicyKind, RuleAction, TierDefaultAction, WorkloadPolicy,
};

/// Returns the chains of policies.
fn chains(state: &mut PolicyTableState) -> BTreeSet<String> {
    state.render();
    let of_policies = state.tables.policy.wanted().chains.keys().filter(|name| name.contains("guard"));
    of_policies.cloned().collect()
}

#[test]
fn policies_have_chains_for_their_listed_stages() {
    let id = PolicyId {
        kind: PolicyKind::GlobalNetworkPolicy,
        namespace: String::new(),
        name: "guard".to_owned(),
    };
    let name = |stage| names::policy(&id, PolicyDirection::Ingress, stage);
    let (normal, pre_dnat, untracked) =
        (name(PolicyStage::Normal), name(PolicyStage::PreDnat), name(PolicyStage::Untracked));
    let listing = || {
        let (ingress, egress) = ([id.clone()].into(), [].into());
        vec![EndpointTier { name: "default".to_owned(), end: TierDefaultAction::Deny, ingress, egress }]
    };
    let host = |pre_dnat: bool, untracked: bool| {
        let given = |given: bool| given.then(listing).unwrap_or_default();
        let host = HostEndpointPolicy {
            pre_dnat: given(pre_dnat),
            untracked: given(untracked),
            tiers: listing(),
            ..HostEndpointPolicy::default()
        };
        PlanUpdate::HostEndpoint("eth0".to_owned(), Some(host))
    };
    let policy =
        PlannedPolicy { ingress: vec![PlannedRule::new(RuleAction::Allow)], ..PlannedPolicy::default() };
    let present = PlanUpdate::Policy(id.clone(), Some(Arc::new(policy)));

    let mut state = PolicyTableState::new(DataplaneSettings::default(), FlowIdentities::default());
    state.apply(&present);
    assert_eq!(chains(&mut state), BTreeSet::from([normal.clone()]));
    state.apply(&host(true, false));
    assert_eq!(chains(&mut state), BTreeSet::from([normal.clone(), pre_dnat.clone()]));
    state.apply(&host(true, true));
    assert_eq!(chains(&mut state), BTreeSet::from([normal.clone(), pre_dnat, untracked]));
    state.apply(&host(false, false));
    assert_eq!(chains(&mut state), BTreeSet::from([normal.clone()]));
    state.apply(&host(true, true));
    state.render();
    state.apply(&PlanUpdate::Policy(id.clone(), None));
    assert_eq!(chains(&mut state), BTreeSet::new());
    state.apply(&present);
    assert_eq!(chains(&mut state).len(), 3);
    state.apply(&PlanUpdate::HostEndpoint("eth0".to_owned(), None));
    assert_eq!(chains(&mut state), BTreeSet::from([normal]));
}

#[test]
fn forwarded_packets_match_no_http_rule() {
    let id = PolicyId {
        kind: PolicyKind::GlobalNetworkPolicy,
        namespace: String::new(),
        name: "guard".to_owned(),
    };
    let tier = EndpointTier {
        name: "default".to_owned(),
        end: TierDefaultAction::Deny,
        ingress: [id.clone()].into(),
        egress: [].into(),
    };
    let host = HostEndpointPolicy {
        interface: "eth0".to_owned(),
        forward: vec![tier],
        ..HostEndpointPolicy::default()
    };
    let http = Some(Box::new(HttpMatch { methods: vec!["GET".to_owned()], ..HttpMatch::default() }));
    let with_http = PlannedRule { http, ..PlannedRule::new(RuleAction::Allow) };
    let policy = |rule: PlannedRule| {
        let policy = PlannedPolicy { ingress: vec![rule], ..PlannedPolicy::default() };
        PlanUpdate::Policy(id.clone(), Some(Arc::new(policy)))
    };
    let name = |stage| names::policy(&id, PolicyDirection::Ingress, stage);
    let (normal, forward) = (name(PolicyStage::Normal), name(PolicyStage::Forward));

    let mut state = PolicyTableState::new(DataplaneSettings::default(), FlowIdentities::default());
    state.set_interfaces(BTreeMap::from([("eth0".to_owned(), Vec::new())]));
    state.apply(&PlanUpdate::HostEndpoint("eth0".to_owned(), Some(host)));
    state.apply(&policy(PlannedRule::new(RuleAction::Allow)));
    assert_eq!(chains(&mut state), BTreeSet::from([normal.clone()]));
    state.apply(&policy(with_http));
    assert_eq!(chains(&mut state), BTreeSet::from([normal.clone(), forward.clone()]));
    let table = state.tables.policy.wanted();
    assert!(table.chains[&forward].rules.is_empty());
    assert!(table.chains[&normal].rules[0].refers_to(names::PROXIED_WORKLOADS_SET));
    let jumps = |chain: &str| {
        let rules = table.chains.values().flat_map(|chain| &chain.rules);
        rules.filter(|rule| rule.actions.contains(&NftAction::Jump(chain.to_owned()))).count()
    };
    assert_eq!((jumps(&normal), jumps(&forward)), (0, 1));
    state.apply(&policy(PlannedRule::new(RuleAction::Allow)));
    assert_eq!(chains(&mut state), BTreeSet::from([normal]));
    assert!(!state.tables.policy.wanted().sets.contains_key(names::PROXIED_WORKLOADS_SET));
}

fn policy_number(number: usize) -> PolicyId {
    PolicyId { kind: PolicyKind::GlobalNetworkPolicy, namespace: String::new(), name: format!("p{number}") }
}

fn workload(number: usize, tiers: Vec<EndpointTier>) -> PlanUpdate {
    let id = WorkloadId {
        orchestrator: "k8s".to_owned(),
        workload: format!("w{number}"),
        endpoint: "eth0".to_owned(),
    };
    let policy =
        WorkloadPolicy { interface: format!("cali{number}"), up: true, tiers, ..WorkloadPolicy::default() };
    PlanUpdate::WorkloadPolicy(id, Some(policy))
}

/// Returns a tier whose policies in one direction are these.
fn tier_with(policies: impl Iterator<Item = usize>) -> EndpointTier {
    let ingress = policies.map(policy_number).collect();
    EndpointTier { name: "default".to_owned(), end: TierDefaultAction::Deny, ingress, egress: [].into() }
}

fn port_policy(ports: [u16; 2]) -> Arc<PlannedPolicy> {
    let mut rule = PlannedRule::new(RuleAction::Allow);
    rule.protocol = Some(6);
    rule.destination.ports = vec![tortie_plan::PortInterval { first: ports[0], last: ports[1] }];
    Arc::new(PlannedPolicy { ingress: vec![rule], ..PlannedPolicy::default() })
}

/// Returns the numbers of chains and rules, without the base chains.
fn count_chains(state: &mut PolicyTableState, prefix: &str) -> (usize, usize) {
    state.render();
    let chains = state.tables.policy.wanted().chains.iter().filter(|(name, _)| name.starts_with(prefix));
    chains.fold((0, 0), |(chains, rules), (_, chain)| (chains + 1, rules + chain.rules.len()))
}

#[test]
fn workloads_with_the_same_policies_share_rules() {
    let mut state = PolicyTableState::new(DataplaneSettings::default(), FlowIdentities::default());
    for number in 0..1000 {
        // Every second policy is for all ports, so that no map is used.
        let ports = if number % 2 == 0 { [0, 65535] } else { [80, 80] };
        state.apply(&PlanUpdate::Policy(policy_number(number), Some(port_policy(ports))));
    }
    for number in 0..100 {
        state.apply(&workload(number, vec![tier_with(0..1000)]));
    }
    assert_eq!(count_chains(&mut state, "policies-in-"), (1, 1001));
    assert_eq!(count_chains(&mut state, "policies-out-"), (1, 1));
    let (chains, rules) = count_chains(&mut state, "to-cali");
    assert_eq!(chains, 100);
    assert!(rules <= 500, "{rules} rules in the chains of workloads");

    // Another list has its own chain, until no workload uses it any more.
    state.apply(&workload(0, vec![tier_with(1..1000)]));
    assert_eq!(count_chains(&mut state, "policies-in-"), (2, 2001));
    state.apply(&workload(0, vec![tier_with(0..1000)]));
    assert_eq!(count_chains(&mut state, "policies-in-"), (1, 1001));
    for number in 0..100 {
        let PlanUpdate::WorkloadPolicy(id, _) = workload(number, Vec::new()) else { panic!() };
        state.apply(&PlanUpdate::WorkloadPolicy(id, None));
    }
    assert_eq!(count_chains(&mut state, "policies-"), (0, 0));
}

#[test]
fn port_maps_follow_policies_and_are_shared() {
    let names = |state: &mut PolicyTableState| -> (Vec<String>, Vec<String>) {
        state.render();
        let table = state.tables.policy.wanted();
        let maps = table.sets.keys().filter(|name| name.starts_with("ports-"));
        let chains = table.chains.keys().filter(|name| name.starts_with("candidates-"));
        (maps.cloned().collect(), chains.cloned().collect())
    };
    let mut state = PolicyTableState::new(DataplaneSettings::default(), FlowIdentities::default());
    for number in 0..20u16 {
        let port = 8000 + number / 2;
        let policy = port_policy([port, port]);
        state.apply(&PlanUpdate::Policy(policy_number(number.into()), Some(policy)));
    }
    state.apply(&workload(0, vec![tier_with(0..20)]));
    state.apply(&workload(1, vec![EndpointTier { name: "other".to_owned(), ..tier_with(0..20) }]));
    assert_eq!(count_chains(&mut state, "policies-in-").0, 2, "the names of the tiers differ");
    let (maps, chains) = names(&mut state);
    assert_eq!((maps.len(), chains.len()), (1, 10), "two policies for each port");

    // A rule changes without another port: nothing but the policy changes.
    let mut same_port = PlannedPolicy::clone(&port_policy([8000, 8000]));
    same_port.ingress[0].action = RuleAction::Deny;
    state.apply(&PlanUpdate::Policy(policy_number(0), Some(Arc::new(same_port))));
    assert_eq!(names(&mut state), (maps.clone(), chains.clone()));

    // A port changes: there is another map, and the chain of the port that only one policy is left for is removed.
    state.apply(&PlanUpdate::Policy(policy_number(0), Some(port_policy([9000, 9000]))));
    let (new_maps, new_chains) = names(&mut state);
    assert_eq!((new_maps.len(), new_chains.len()), (1, 9));
    assert!(maps != new_maps && new_chains.iter().all(|chain| chains.contains(chain)));

    // One of the lists becomes too short for a map; the other still uses it.
    state.apply(&workload(1, vec![tier_with(0..10)]));
    assert_eq!(names(&mut state), (new_maps, new_chains));
    state.apply(&workload(0, vec![tier_with(0..10)]));
    assert_eq!(names(&mut state), (Vec::new(), Vec::new()));
}
