use super::super::render::PolicyStage;
use super::super::rule::NftAction;
use super::*;
use std::collections::BTreeSet;
use tortie_plan::{EndpointTier, HttpMatch, PlannedRule, PolicyKind, RuleAction, TierDefaultAction};

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

    let mut state = PolicyTableState::new(DataplaneSettings::default());
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

    let mut state = PolicyTableState::new(DataplaneSettings::default());
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
