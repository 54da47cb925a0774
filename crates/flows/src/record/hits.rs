//! Hits of policies in the form of the protocol.

use crate::proto::{Action, PolicyHit, PolicyKind as HitKind};
use tortie_plan::evaluate::{RuleHolder, RulePosition};
use tortie_plan::flow::FlowCause;
use tortie_plan::{NodePlan, PolicyId, PolicyKind, RuleAction, RuleId, RuleOwner, TierDefaultAction};

/// Index of the rule of a hit that no rule made.
const NO_RULE: i64 = -1;

fn hit_kind(kind: PolicyKind) -> HitKind {
    match kind {
        PolicyKind::NetworkPolicy => HitKind::CalicoNetworkPolicy,
        PolicyKind::GlobalNetworkPolicy => HitKind::GlobalNetworkPolicy,
        PolicyKind::StagedNetworkPolicy => HitKind::StagedNetworkPolicy,
        PolicyKind::StagedGlobalNetworkPolicy => HitKind::StagedGlobalNetworkPolicy,
        PolicyKind::StagedKubernetesNetworkPolicy => HitKind::StagedKubernetesNetworkPolicy,
        PolicyKind::KubernetesNetworkPolicy => HitKind::NetworkPolicy,
        PolicyKind::KubernetesClusterNetworkPolicy => HitKind::ClusterNetworkPolicy,
    }
}

fn action_of(allowed: bool) -> Action {
    if allowed { Action::Allow } else { Action::Deny }
}

fn policy_hit(tier: &str, id: &PolicyId, action: Action, rule: i64) -> PolicyHit {
    PolicyHit {
        kind: hit_kind(id.kind).into(),
        namespace: id.namespace.clone(),
        name: id.name.clone(),
        tier: tier.to_owned(),
        action: action.into(),
        rule_index: rule,
        ..PolicyHit::default()
    }
}

fn profile_hit(name: &str, action: Action, rule: i64) -> PolicyHit {
    PolicyHit {
        kind: HitKind::Profile.into(),
        name: name.to_owned(),
        action: action.into(),
        rule_index: rule,
        ..PolicyHit::default()
    }
}

/// Returns the hit of a rule that matched.
pub fn rule_hit(at: &RulePosition<'_>) -> PolicyHit {
    let action = match at.rule.action {
        RuleAction::Allow => Action::Allow,
        RuleAction::Deny => Action::Deny,
        RuleAction::Pass | RuleAction::Log => Action::Pass,
    };
    let rule = at.index.position() as i64;
    match at.holder {
        RuleHolder::Policy { tier, id } => policy_hit(tier, id, action, rule),
        RuleHolder::Profile(name) => profile_hit(name, action, rule),
    }
}

/// Returns the hit of the end of a tier; `trigger` is the last enforced policy of the tier.
pub fn tier_end_hit(tier: &str, end: TierDefaultAction, trigger: Option<&PolicyId>) -> PolicyHit {
    let action = match end {
        TierDefaultAction::Deny => Action::Deny,
        TierDefaultAction::Pass => Action::Pass,
    };
    PolicyHit {
        kind: HitKind::EndOfTier.into(),
        tier: tier.to_owned(),
        action: action.into(),
        rule_index: NO_RULE,
        trigger: trigger.map(|id| Box::new(policy_hit(tier, id, action, NO_RULE))),
        ..PolicyHit::default()
    }
}

/// Returns the hit of a verdict that neither a rule nor a tier decided. Its kind is unspecified: the protocol has none.
pub fn other_hit(cause: &FlowCause, allowed: bool) -> PolicyHit {
    PolicyHit {
        name: cause.to_string(),
        action: action_of(allowed).into(),
        rule_index: NO_RULE,
        ..PolicyHit::default()
    }
}

/// Returns the hit of a decision of the kernel, if the evaluation does not explain it. The tier of a policy is looked up in
/// `plan`.
pub fn cause_hit(cause: &FlowCause, allowed: bool, plan: &NodePlan) -> PolicyHit {
    match cause {
        FlowCause::Rule(RuleId { owner: RuleOwner::Policy(id), index, .. }) => {
            let tier = find_tier(plan, id).unwrap_or_default();
            policy_hit(tier, id, action_of(allowed), index.position() as i64)
        }
        FlowCause::Rule(RuleId { owner: RuleOwner::Profile(name), index, .. }) => {
            profile_hit(name, action_of(allowed), index.position() as i64)
        }
        FlowCause::TierEnd { tier, .. } => tier_end_hit(tier, TierDefaultAction::Deny, None),
        other => other_hit(other, allowed),
    }
}

fn find_tier<'p>(plan: &'p NodePlan, id: &PolicyId) -> Option<&'p str> {
    let workloads = plan.workload_policies.values().flat_map(|workload| &workload.tiers);
    let hosts = plan
        .host_endpoints
        .values()
        .flat_map(|host| host.tiers.iter().chain(&host.forward).chain(&host.untracked).chain(&host.pre_dnat));
    let mut tiers = workloads.chain(hosts);
    tiers.find(|tier| tier.ingress.contains(id) || tier.egress.contains(id)).map(|tier| tier.name.as_str())
}

/// Returns the hits with their positions.
pub fn number_hits(mut hits: Vec<PolicyHit>) -> Vec<PolicyHit> {
    for (position, hit) in hits.iter_mut().enumerate() {
        hit.policy_index = position as i64;
        if let Some(trigger) = &mut hit.trigger {
            trigger.policy_index = position as i64;
        }
    }
    hits
}
