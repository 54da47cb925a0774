//! Renders the chain of one policy or profile in one direction, which all its endpoints share.
//!
//! An Allow ends the base chain, and with it only the decision of that chain (may this workload send the packet?); the
//! next decision (may the other workload receive it?) is another base chain at the same hook. So no verdict has to be
//! stored, except that a packet was passed to the next tier: that is a bit of its mark.

use super::super::rule::{NftAction, NftRule};
use super::super::table::NftChain;
use super::{KnownSets, PolicyStage, criteria, flow, names};
use tortie_plan::{
    self as plan, DenyAction, PolicyDirection, PolicyId, PolicySettings, RuleId, RuleIndex, RuleOwner,
};

/// The kernel's limit for a log prefix, minus the characters that the kernel adds.
const MAX_LOG_PREFIX_BYTES: usize = 120;

/// Owner of the rules.
#[derive(Clone, Copy, Debug)]
pub enum PolicyOrProfile<'p> {
    Policy { id: &'p PolicyId, tier: &'p str },
    Profile(&'p str),
}

impl PolicyOrProfile<'_> {
    pub fn chain_name(self, direction: PolicyDirection, stage: PolicyStage) -> String {
        match self {
            PolicyOrProfile::Policy { id, .. } => names::policy(id, direction, stage),
            PolicyOrProfile::Profile(name) => names::profile(name, direction),
        }
    }

    fn is_staged(self) -> bool {
        matches!(self, PolicyOrProfile::Policy { id, .. } if id.kind.is_staged())
    }

    fn rule_owner(self) -> RuleOwner {
        match self {
            PolicyOrProfile::Policy { id, .. } => RuleOwner::Policy(id.clone()),
            PolicyOrProfile::Profile(name) => RuleOwner::Profile(name.to_owned()),
        }
    }

    fn log_prefix(self, template: &str) -> String {
        let (tier, kind, name, full) = match self {
            PolicyOrProfile::Policy { id, tier } => {
                let full = match id.namespace.as_str() {
                    "" => id.name.clone(),
                    namespace => format!("{namespace}/{}", id.name),
                };
                (tier, id.kind.short_name(), id.name.as_str(), full)
            }
            PolicyOrProfile::Profile(name) => ("", "pro", name, name.to_owned()),
        };
        let text = template.replace("%t", tier).replace("%k", kind).replace("%n", name).replace("%p", &full);
        let mut prefix = format!("{text}: ");
        while prefix.len() > MAX_LOG_PREFIX_BYTES {
            prefix.pop();
        }
        prefix
    }
}

/// Returns whether one of the rules matches only at workloads with a proxy.
pub fn has_proxy_rule(rules: &[plan::PlannedRule]) -> bool {
    rules.iter().any(plan::PlannedRule::needs_proxy)
}

/// Returns whether forwarded packets cannot share the chain of the normal stage: a rule depends on the proxy of a
/// workload, or decisions about flows are recorded per stage.
pub fn needs_forward_chain(rules: &[plan::PlannedRule], settings: &PolicySettings) -> bool {
    has_proxy_rule(rules) || settings.flows.is_some()
}

/// Returns whether one of the rules passes packets to the next tier.
pub fn has_pass_rule(rules: &[plan::PlannedRule]) -> bool {
    rules.iter().any(|rule| rule.action == plan::RuleAction::Pass)
}

/// Renders the rules of policies and profiles.
#[derive(Clone, Copy)]
pub struct RuleRenderer<'s> {
    pub sets: &'s KnownSets,
    pub settings: &'s PolicySettings,
}

impl RuleRenderer<'_> {
    /// Returns the chain of the rules; `None` without rules.
    pub fn chain(
        self,
        owner: PolicyOrProfile<'_>,
        rules: &[plan::PlannedRule],
        direction: PolicyDirection,
        stage: PolicyStage,
    ) -> Option<NftChain> {
        let mut chain = NftChain::default();
        for (index, rule) in rules.iter().enumerate() {
            let id = RuleId { owner: owner.rule_owner(), direction, index: RuleIndex::at(index) };
            let actions = actions(owner, rule, &id, stage, self.settings);
            let comment = format!("{} {index}", id.owner);
            for matches in criteria::alternatives(rule, direction, stage, self.sets) {
                chain.rules.push(NftRule::new(matches, actions.clone()).says(comment.clone()));
            }
        }
        (!rules.is_empty()).then_some(chain)
    }
}

fn actions(
    owner: PolicyOrProfile<'_>,
    rule: &plan::PlannedRule,
    id: &RuleId,
    stage: PolicyStage,
    settings: &PolicySettings,
) -> Vec<NftAction> {
    let mut actions = vec![NftAction::Count];
    match rule.action {
        plan::RuleAction::Log if owner.is_staged() => {}
        plan::RuleAction::Log => {
            actions.extend(settings.log_limit.map(NftAction::Limit));
            let prefix = owner.log_prefix(&settings.log_prefix);
            actions.push(NftAction::Log {
                prefix,
                rule: names::fitting_in(MAX_LOG_PREFIX_BYTES, id.to_string()),
            });
        }
        // Staged policies only count packets.
        _ if owner.is_staged() => actions.push(NftAction::Return),
        plan::RuleAction::Allow => {
            actions.extend(flow::label_of_rule(settings, stage, id, rule));
            match stage {
                PolicyStage::Normal | PolicyStage::Forward => {}
                PolicyStage::PreDnat => actions.push(NftAction::SetMark(settings.marks.accepted)),
                PolicyStage::Untracked => {
                    actions.extend([NftAction::Untrack, NftAction::SetMark(settings.marks.accepted)])
                }
            }
            actions.push(NftAction::Accept);
        }
        plan::RuleAction::Deny => {
            let label = flow::label_of_rule(settings, stage, id, rule);
            actions.extend(flow::deny_labelled(deny(stage, settings), label));
        }
        plan::RuleAction::Pass => {
            if let PolicyOrProfile::Policy { .. } = owner {
                actions.push(NftAction::SetMark(settings.marks.passed));
            }
            actions.push(NftAction::Return);
        }
    }
    actions
}

/// Returns the action for denied packets.
pub(super) fn deny(stage: PolicyStage, settings: &PolicySettings) -> NftAction {
    match (stage, settings.deny) {
        (PolicyStage::Normal | PolicyStage::Forward, DenyAction::Reject) => NftAction::Reject,
        _ => NftAction::Drop,
    }
}
