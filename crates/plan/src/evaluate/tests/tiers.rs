//! Tiers, actions, staged policies and profiles.

use super::*;
use Outcome::{Allow, Deny, NoMatch};

const POD: &str = "10.0.0.1";

/// Returns the policy of a workload whose profile allows everything.
fn workload_policy(tiers: &[Tier]) -> WorkloadPolicy {
    WorkloadPolicy {
        up: true,
        tiers: tiers.to_vec(),
        profiles: vec!["kns.shop".into()],
        ..WorkloadPolicy::default()
    }
}

fn plan(policies: &[(PolicyId, &[Rule])]) -> Plan {
    let mut plan = Plan::default();
    plan.profiles.insert("kns.shop".into(), profile(&[allow()]));
    plan.policies.extend(policies.iter().map(|(id, rules)| (id.clone(), policy(rules))));
    plan
}

fn judge<'p>(plan: &'p Plan, workload_policy: &'p WorkloadPolicy, port: u16) -> Decision<'p> {
    let index = Index::new(plan);
    let packet = tcp("10.0.0.9", POD, port);
    let mut trace = Trace::default();
    let quiet = index.workload(workload_policy, Direction::Ingress, &packet, None);
    let loud = index.workload(workload_policy, Direction::Ingress, &packet, Some(&mut trace));
    assert_eq!(quiet, loud, "asking why changes nothing");
    quiet
}

fn web(action: Action) -> Rule {
    to_port(action, 6, 80)
}

#[test]
fn without_policies_the_profiles_decide() {
    let plan = plan(&[]);
    let workload_policy = workload_policy(&[]);
    assert_eq!(judge(&plan, &workload_policy, 80).outcome, Allow);
    let alone = WorkloadPolicy { profiles: vec![], ..workload_policy.clone() };
    assert_eq!(judge(&plan, &alone, 80), Decision { outcome: Deny, cause: Cause::NoProfile });
    let missing = WorkloadPolicy { profiles: vec!["gone".into(), "kns.shop".into()], ..workload_policy };
    assert_eq!(judge(&plan, &missing, 80), Decision { outcome: Deny, cause: Cause::MissingProfile("gone") });
}

#[test]
fn profiles_are_asked_in_order() {
    let mut plan = plan(&[]);
    plan.profiles.insert("no-web".into(), profile(&[web(Action::Deny)]));
    plan.profiles.insert("web".into(), profile(&[web(Action::Allow)]));
    let ordered = |names: &[&str]| WorkloadPolicy {
        profiles: names.iter().map(|name| (*name).to_owned()).collect(),
        ..workload_policy(&[])
    };
    assert_eq!(judge(&plan, &ordered(&["no-web", "web"]), 80).outcome, Deny);
    assert_eq!(judge(&plan, &ordered(&["web", "no-web"]), 80).outcome, Allow);
    assert_eq!(judge(&plan, &ordered(&["web", "no-web"]), 81).cause, Cause::NoProfile);
}

#[test]
fn pass_in_a_profile_leaves_that_profile() {
    let mut plan = plan(&[]);
    plan.profiles.insert("passes".into(), profile(&[Rule::new(Action::Pass), deny()]));
    let both = WorkloadPolicy { profiles: vec!["passes".into(), "kns.shop".into()], ..workload_policy(&[]) };
    assert_eq!(judge(&plan, &both, 80).outcome, Allow);
    let alone = WorkloadPolicy { profiles: vec!["passes".into()], ..workload_policy(&[]) };
    assert_eq!(judge(&plan, &alone, 80).cause, Cause::NoProfile);
}

#[test]
fn the_first_rule_that_matches_decides() {
    let plan = plan(&[(global("a"), &[web(Action::Deny), allow()])]);
    let workload_policy = workload_policy(&[tier("default", TierEnd::Deny, &[global("a")])]);
    assert_eq!(judge(&plan, &workload_policy, 80).outcome, Deny);
    let Decision { outcome: Allow, cause: Cause::Rule(at) } = judge(&plan, &workload_policy, 81) else {
        panic!()
    };
    assert_eq!((at.index.number(), at.holder), (2, Holder::Policy { tier: "default", id: &global("a") }));
}

#[test]
fn policies_are_asked_in_order_and_the_tier_ends_after_the_last() {
    let plan = plan(&[(global("a"), &[web(Action::Allow)]), (global("b"), &[web(Action::Deny)])]);
    let ordered = |policies: &[PolicyId]| workload_policy(&[tier("default", TierEnd::Deny, policies)]);
    assert_eq!(judge(&plan, &ordered(&[global("a"), global("b")]), 80).outcome, Allow);
    assert_eq!(judge(&plan, &ordered(&[global("b"), global("a")]), 80).outcome, Deny);
    let both = ordered(&[global("a"), global("b")]);
    assert_eq!(judge(&plan, &both, 81), Decision { outcome: Deny, cause: Cause::TierEnd("default") });
}

#[test]
fn pass_leaves_the_tier() {
    let plan = plan(&[
        (global("passes"), &[web(Action::Pass)]),
        (global("denies"), &[deny()]),
        (global("next"), &[deny()]),
    ]);
    let first = tier("first", TierEnd::Deny, &[global("passes"), global("denies")]);
    // The profiles follow the last tier.
    assert_eq!(judge(&plan, &workload_policy(std::slice::from_ref(&first)), 80).outcome, Allow);
    assert_eq!(judge(&plan, &workload_policy(std::slice::from_ref(&first)), 81).outcome, Deny);
    let second = tier("second", TierEnd::Deny, &[global("next")]);
    let both = workload_policy(&[first, second]);
    let Cause::Rule(at) = judge(&plan, &both, 80).cause else { panic!() };
    assert_eq!(at.holder, Holder::Policy { tier: "second", id: &global("next") });
}

#[test]
fn a_tier_that_ends_in_pass_goes_on() {
    let plan = plan(&[(global("a"), &[web(Action::Deny)])]);
    let workload_policy = workload_policy(&[tier("first", TierEnd::Pass, &[global("a")])]);
    assert_eq!(judge(&plan, &workload_policy, 80).outcome, Deny);
    assert_eq!(judge(&plan, &workload_policy, 81).outcome, Allow);
}

#[test]
fn log_says_so_and_goes_on() {
    let plan = plan(&[(global("a"), &[Rule::new(Action::Log), web(Action::Allow)])]);
    let workload_policy = workload_policy(&[tier("default", TierEnd::Deny, &[global("a")])]);
    assert_eq!(judge(&plan, &workload_policy, 80).outcome, Allow);
    assert_eq!(judge(&plan, &workload_policy, 81).cause, Cause::TierEnd("default"));
    let mut trace = Trace::default();
    Index::new(&plan).workload(
        &workload_policy,
        Direction::Ingress,
        &tcp("10.0.0.9", POD, 81),
        Some(&mut trace),
    );
    let logged = |step: &Step<'_>| matches!(step, Step::Rule { at, misses } if at.rule.action == Action::Log && misses.is_empty());
    assert_eq!(trace.steps.iter().filter(|step| logged(step)).count(), 1);
}

#[test]
fn staged_policies_decide_nothing_and_end_no_tier() {
    let plan = plan(&[(staged("s"), &[web(Action::Deny)]), (global("a"), &[])]);
    let only = workload_policy(&[tier("default", TierEnd::Deny, &[staged("s")])]);
    assert_eq!(judge(&plan, &only, 80).outcome, Allow);
    let both = workload_policy(&[tier("default", TierEnd::Deny, &[staged("s"), global("a")])]);
    assert_eq!(judge(&plan, &both, 80).cause, Cause::TierEnd("default"));
    let mut trace = Trace::default();
    Index::new(&plan).workload(&only, Direction::Ingress, &tcp("10.0.0.9", POD, 80), Some(&mut trace));
    let Some(Step::Staged { would: Some(at), .. }) = trace.steps.first() else { panic!("{trace:?}") };
    assert_eq!((at.index.number(), at.rule.action), (1, Action::Deny));
}

#[test]
fn a_policy_governs_only_the_directions_it_is_listed_for() {
    let plan = plan(&[(global("a"), &[])]);
    let ingress = Tier { egress: Arc::default(), ..tier("default", TierEnd::Deny, &[global("a")]) };
    let workload_policy = workload_policy(&[ingress]);
    let index = Index::new(&plan);
    let outcome =
        |direction| index.workload(&workload_policy, direction, &tcp("10.0.0.9", POD, 80), None).outcome;
    assert_eq!((outcome(Direction::Ingress), outcome(Direction::Egress)), (Deny, Allow));
}

#[test]
fn a_policy_that_is_not_in_the_plan_fails_closed() {
    let plan = plan(&[]);
    let workload_policy = workload_policy(&[tier("default", TierEnd::Deny, &[global("gone")])]);
    assert_eq!(judge(&plan, &workload_policy, 80).cause, Cause::TierEnd("default"));
}

#[test]
fn the_lists_of_a_host_endpoint_end_differently() {
    let plan = plan(&[(global("a"), &[web(Action::Allow)])]);
    let list = vec![tier("default", TierEnd::Deny, &[global("a")])];
    let endpoint = HostEndpoint {
        tiers: list.clone(),
        forward: list.clone(),
        untracked: list.clone(),
        pre_dnat: list,
        profiles: vec!["kns.shop".into()],
        ..HostEndpoint::default()
    };
    let index = Index::new(&plan);
    let at = |stage, port| {
        index.host(&endpoint, stage, Direction::Ingress, &tcp("10.0.0.9", POD, port), None).outcome
    };
    for stage in [Stage::Normal, Stage::Forward, Stage::Untracked, Stage::PreDnat] {
        assert_eq!(at(stage, 80), Allow, "{stage:?}");
    }
    assert_eq!([Stage::Normal, Stage::Forward].map(|stage| at(stage, 81)), [Deny, Deny]);
    assert_eq!([Stage::Untracked, Stage::PreDnat].map(|stage| at(stage, 81)), [NoMatch, NoMatch]);
    // Without policies, only the normal stage evaluates the profiles.
    let bare = HostEndpoint { profiles: vec!["kns.shop".into()], ..HostEndpoint::default() };
    let at = |stage| index.host(&bare, stage, Direction::Ingress, &tcp("10.0.0.9", POD, 80), None).outcome;
    assert_eq!((at(Stage::Normal), at(Stage::Forward)), (Allow, NoMatch));
}
