use super::super::render::PolicyStage;
use super::*;
use std::collections::BTreeSet;
use tortie_plan::{EndpointTier, PlannedRule, PolicyKind, RuleAction, TierDefaultAction};

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
