//! Tiers, actions, staged policies and profiles.

use super::*;
use PolicyOutcome::{Allow, Deny, NoMatch};

const POD: &str = "10.0.0.1";

/// Returns the policy of a workload whose profile allows everything.
fn workload_policy(tiers: &[EndpointTier]) -> WorkloadPolicy {
    WorkloadPolicy {
        up: true,
        tiers: tiers.to_vec(),
        profiles: vec!["kns.shop".into()],
        ..WorkloadPolicy::default()
    }
}

fn plan(policies: &[(PolicyId, &[PlannedRule])]) -> NodePlan {
    let mut plan = NodePlan::default();
    plan.profiles.insert("kns.shop".into(), profile(&[allow()]));
    plan.policies.extend(policies.iter().map(|(id, rules)| (id.clone(), policy(rules))));
    plan
}

fn judge<'p>(plan: &'p NodePlan, workload_policy: &'p WorkloadPolicy, port: u16) -> PolicyDecision<'p> {
    let index = EvaluationIndex::new(plan);
    let packet = tcp("10.0.0.9", POD, port);
    let mut trace = EvaluationTrace::default();
    let quiet = index.workload(workload_policy, PolicyDirection::Ingress, &packet, None);
    let loud = index.workload(workload_policy, PolicyDirection::Ingress, &packet, Some(&mut trace));
    assert_eq!(quiet, loud, "asking why changes nothing");
    quiet
}

fn web(action: RuleAction) -> PlannedRule {
    to_port(action, 6, 80)
}

#[test]
fn without_policies_the_profiles_decide() {
    let plan = plan(&[]);
    let workload_policy = workload_policy(&[]);
    assert_eq!(judge(&plan, &workload_policy, 80).outcome, Allow);
    let alone = WorkloadPolicy { profiles: vec![], ..workload_policy.clone() };
    assert_eq!(judge(&plan, &alone, 80), PolicyDecision { outcome: Deny, cause: VerdictCause::NoProfile });
    let missing = WorkloadPolicy { profiles: vec!["gone".into(), "kns.shop".into()], ..workload_policy };
    assert_eq!(
        judge(&plan, &missing, 80),
        PolicyDecision { outcome: Deny, cause: VerdictCause::MissingProfile("gone") }
    );
}

#[test]
fn profiles_are_asked_in_order() {
    let mut plan = plan(&[]);
    plan.profiles.insert("no-web".into(), profile(&[web(RuleAction::Deny)]));
    plan.profiles.insert("web".into(), profile(&[web(RuleAction::Allow)]));
    let ordered = |names: &[&str]| WorkloadPolicy {
        profiles: names.iter().map(|name| (*name).to_owned()).collect(),
        ..workload_policy(&[])
    };
    assert_eq!(judge(&plan, &ordered(&["no-web", "web"]), 80).outcome, Deny);
    assert_eq!(judge(&plan, &ordered(&["web", "no-web"]), 80).outcome, Allow);
    assert_eq!(judge(&plan, &ordered(&["web", "no-web"]), 81).cause, VerdictCause::NoProfile);
}

#[test]
fn pass_in_a_profile_leaves_that_profile() {
    let mut plan = plan(&[]);
    plan.profiles.insert("passes".into(), profile(&[PlannedRule::new(RuleAction::Pass), deny()]));
    let both = WorkloadPolicy { profiles: vec!["passes".into(), "kns.shop".into()], ..workload_policy(&[]) };
    assert_eq!(judge(&plan, &both, 80).outcome, Allow);
    let alone = WorkloadPolicy { profiles: vec!["passes".into()], ..workload_policy(&[]) };
    assert_eq!(judge(&plan, &alone, 80).cause, VerdictCause::NoProfile);
}

#[test]
fn the_first_rule_that_matches_decides() {
    let plan = plan(&[(global("a"), &[web(RuleAction::Deny), allow()])]);
    let workload_policy = workload_policy(&[tier("default", TierDefaultAction::Deny, &[global("a")])]);
    assert_eq!(judge(&plan, &workload_policy, 80).outcome, Deny);
    let PolicyDecision { outcome: Allow, cause: VerdictCause::Rule(at) } = judge(&plan, &workload_policy, 81)
    else {
        panic!()
    };
    assert_eq!((at.index.number(), at.holder), (2, RuleHolder::Policy { tier: "default", id: &global("a") }));
}

#[test]
fn policies_apply_in_order_before_the_tier_end() {
    let plan = plan(&[(global("a"), &[web(RuleAction::Allow)]), (global("b"), &[web(RuleAction::Deny)])]);
    let ordered =
        |policies: &[PolicyId]| workload_policy(&[tier("default", TierDefaultAction::Deny, policies)]);
    assert_eq!(judge(&plan, &ordered(&[global("a"), global("b")]), 80).outcome, Allow);
    assert_eq!(judge(&plan, &ordered(&[global("b"), global("a")]), 80).outcome, Deny);
    let both = ordered(&[global("a"), global("b")]);
    assert_eq!(
        judge(&plan, &both, 81),
        PolicyDecision { outcome: Deny, cause: VerdictCause::TierEnd("default") }
    );
}

#[test]
fn pass_leaves_the_tier() {
    let plan = plan(&[
        (global("passes"), &[web(RuleAction::Pass)]),
        (global("denies"), &[deny()]),
        (global("next"), &[deny()]),
    ]);
    let first = tier("first", TierDefaultAction::Deny, &[global("passes"), global("denies")]);
    // The profiles follow the last tier.
    assert_eq!(judge(&plan, &workload_policy(std::slice::from_ref(&first)), 80).outcome, Allow);
    assert_eq!(judge(&plan, &workload_policy(std::slice::from_ref(&first)), 81).outcome, Deny);
    let second = tier("second", TierDefaultAction::Deny, &[global("next")]);
    let both = workload_policy(&[first, second]);
    let VerdictCause::Rule(at) = judge(&plan, &both, 80).cause else { panic!() };
    assert_eq!(at.holder, RuleHolder::Policy { tier: "second", id: &global("next") });
}

#[test]
fn a_tier_that_ends_in_pass_goes_on() {
    let plan = plan(&[(global("a"), &[web(RuleAction::Deny)])]);
    let workload_policy = workload_policy(&[tier("first", TierDefaultAction::Pass, &[global("a")])]);
    assert_eq!(judge(&plan, &workload_policy, 80).outcome, Deny);
    assert_eq!(judge(&plan, &workload_policy, 81).outcome, Allow);
}

#[test]
fn log_says_so_and_goes_on() {
    let plan = plan(&[(global("a"), &[PlannedRule::new(RuleAction::Log), web(RuleAction::Allow)])]);
    let workload_policy = workload_policy(&[tier("default", TierDefaultAction::Deny, &[global("a")])]);
    assert_eq!(judge(&plan, &workload_policy, 80).outcome, Allow);
    assert_eq!(judge(&plan, &workload_policy, 81).cause, VerdictCause::TierEnd("default"));
    let mut trace = EvaluationTrace::default();
    EvaluationIndex::new(&plan).workload(
        &workload_policy,
        PolicyDirection::Ingress,
        &tcp("10.0.0.9", POD, 81),
        Some(&mut trace),
    );
    let logged = |step: &TraceStep<'_>| matches!(step, TraceStep::Rule { at, misses } if at.rule.action == RuleAction::Log && misses.is_empty());
    assert_eq!(trace.steps.iter().filter(|step| logged(step)).count(), 1);
}

#[test]
fn staged_policies_decide_nothing_and_end_no_tier() {
    let plan = plan(&[(staged("s"), &[web(RuleAction::Deny)]), (global("a"), &[])]);
    let only = workload_policy(&[tier("default", TierDefaultAction::Deny, &[staged("s")])]);
    assert_eq!(judge(&plan, &only, 80).outcome, Allow);
    let both = workload_policy(&[tier("default", TierDefaultAction::Deny, &[staged("s"), global("a")])]);
    assert_eq!(judge(&plan, &both, 80).cause, VerdictCause::TierEnd("default"));
    let mut trace = EvaluationTrace::default();
    EvaluationIndex::new(&plan).workload(
        &only,
        PolicyDirection::Ingress,
        &tcp("10.0.0.9", POD, 80),
        Some(&mut trace),
    );
    let Some(TraceStep::Staged { would: Some(at), .. }) = trace.steps.first() else { panic!("{trace:?}") };
    assert_eq!((at.index.number(), at.rule.action), (1, RuleAction::Deny));
}

#[test]
fn staged_policies_decide_if_they_are_enforced() {
    let plan = plan(&[
        (staged("s"), &[web(RuleAction::Deny)]),
        (staged("t"), &[]),
        (global("a"), &[web(RuleAction::Allow)]),
    ]);
    let decide = |tiers: &[EndpointTier], port| {
        let endpoint = workload_policy(tiers);
        let mut index = EvaluationIndex::new(&plan);
        index.enforce_staged(true);
        let decision = index.workload(&endpoint, PolicyDirection::Ingress, &tcp("10.0.0.9", POD, port), None);
        (decision.outcome, format!("{:?}", decision.cause))
    };
    let before = [tier("default", TierDefaultAction::Deny, &[staged("s"), global("a")])];
    let (outcome, cause) = decide(&before, 80);
    assert_eq!(outcome, Deny);
    assert!(cause.contains("StagedGlobalNetworkPolicy"), "{cause}");
    let after = [tier("default", TierDefaultAction::Deny, &[global("a"), staged("s")])];
    assert_eq!(decide(&after, 80).0, Allow, "an earlier policy decides");
    let alone = [tier("default", TierDefaultAction::Deny, &[staged("t")])];
    assert_eq!(decide(&alone, 80), (Deny, "TierEnd(\"default\")".to_owned()), "it also ends its tier");
}

#[test]
fn policies_apply_only_in_their_listed_directions() {
    let plan = plan(&[(global("a"), &[])]);
    let ingress =
        EndpointTier { egress: Arc::default(), ..tier("default", TierDefaultAction::Deny, &[global("a")]) };
    let workload_policy = workload_policy(&[ingress]);
    let index = EvaluationIndex::new(&plan);
    let outcome =
        |direction| index.workload(&workload_policy, direction, &tcp("10.0.0.9", POD, 80), None).outcome;
    assert_eq!((outcome(PolicyDirection::Ingress), outcome(PolicyDirection::Egress)), (Deny, Allow));
}

#[test]
fn missing_policies_fail_closed() {
    let plan = plan(&[]);
    let workload_policy = workload_policy(&[tier("default", TierDefaultAction::Deny, &[global("gone")])]);
    assert_eq!(judge(&plan, &workload_policy, 80).cause, VerdictCause::TierEnd("default"));
}

#[test]
fn the_lists_of_a_host_endpoint_end_differently() {
    let plan = plan(&[(global("a"), &[web(RuleAction::Allow)])]);
    let list = vec![tier("default", TierDefaultAction::Deny, &[global("a")])];
    let endpoint = HostEndpointPolicy {
        tiers: list.clone(),
        forward: list.clone(),
        untracked: list.clone(),
        pre_dnat: list,
        profiles: vec!["kns.shop".into()],
        ..HostEndpointPolicy::default()
    };
    let index = EvaluationIndex::new(&plan);
    let at = |stage, port| {
        index.host(&endpoint, stage, PolicyDirection::Ingress, &tcp("10.0.0.9", POD, port), None).outcome
    };
    for stage in [
        EvaluationStage::Normal,
        EvaluationStage::Forward,
        EvaluationStage::Untracked,
        EvaluationStage::PreDnat,
    ] {
        assert_eq!(at(stage, 80), Allow, "{stage:?}");
    }
    assert_eq!([EvaluationStage::Normal, EvaluationStage::Forward].map(|stage| at(stage, 81)), [Deny, Deny]);
    assert_eq!(
        [EvaluationStage::Untracked, EvaluationStage::PreDnat].map(|stage| at(stage, 81)),
        [NoMatch, NoMatch]
    );
    // Without policies, only the normal stage evaluates the profiles.
    let bare = HostEndpointPolicy { profiles: vec!["kns.shop".into()], ..HostEndpointPolicy::default() };
    let at =
        |stage| index.host(&bare, stage, PolicyDirection::Ingress, &tcp("10.0.0.9", POD, 80), None).outcome;
    assert_eq!((at(EvaluationStage::Normal), at(EvaluationStage::Forward)), (Allow, NoMatch));
}
