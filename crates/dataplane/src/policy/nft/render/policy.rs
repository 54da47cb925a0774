//! Renders the chain of one policy or profile in one direction, which all its endpoints share.
//!
//! An Allow ends the base chain, and with it only the decision of that chain (may this workload send the packet?); the
//! next decision (may the other workload receive it?) is another base chain at the same hook. So no verdict has to be
//! stored, except that a packet was passed to the next tier: that is a bit of its mark.

use super::super::rule::{Action, Rule};
use super::super::table::Chain;
use super::{Sets, Stage, criteria, names};
use tortie_plan::{
    self as plan, DenyAction, Direction, PolicyId, PolicySettings, RuleId, RuleIndex, RuleOwner,
};

/// The kernel's limit for a log prefix, minus the characters that the kernel adds.
const LOG_PREFIX: usize = 120;

/// Owner of the rules.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Holder<'p> {
    Policy { id: &'p PolicyId, tier: &'p str },
    Profile(&'p str),
}

impl Holder<'_> {
    fn is_staged(self) -> bool {
        matches!(self, Holder::Policy { id, .. } if id.kind.is_staged())
    }

    fn owner(self) -> RuleOwner {
        match self {
            Holder::Policy { id, .. } => RuleOwner::Policy(id.clone()),
            Holder::Profile(name) => RuleOwner::Profile(name.to_owned()),
        }
    }

    fn log_prefix(self, template: &str) -> String {
        let (tier, kind, name, full) = match self {
            Holder::Policy { id, tier } => {
                let full = match id.namespace.as_str() {
                    "" => id.name.clone(),
                    namespace => format!("{namespace}/{}", id.name),
                };
                (tier, id.kind.short_name(), id.name.as_str(), full)
            }
            Holder::Profile(name) => ("", "pro", name, name.to_owned()),
        };
        let text = template.replace("%t", tier).replace("%k", kind).replace("%n", name).replace("%p", &full);
        let mut prefix = format!("{text}: ");
        while prefix.len() > LOG_PREFIX {
            prefix.pop();
        }
        prefix
    }
}

/// Whether one of the rules passes packets to the next tier.
pub(crate) fn passes(rules: &[plan::Rule]) -> bool {
    rules.iter().any(|rule| rule.action == plan::Action::Pass)
}

pub(crate) fn holder_chain(
    holder: Holder<'_>,
    rules: &[plan::Rule],
    direction: Direction,
    stage: Stage,
    sets: &Sets,
    settings: &PolicySettings,
) -> Chain {
    let mut chain = Chain::default();
    for (index, rule) in rules.iter().enumerate() {
        let id = RuleId { owner: holder.owner(), direction, index: RuleIndex::at(index) };
        let actions = actions(holder, rule.action, &id, stage, settings);
        let comment = format!("{} {index}", id.owner);
        for matches in criteria::alternatives(rule, sets) {
            chain.rules.push(Rule::new(matches, actions.clone()).says(comment.clone()));
        }
    }
    chain
}

fn actions(
    holder: Holder<'_>,
    action: plan::Action,
    id: &RuleId,
    stage: Stage,
    settings: &PolicySettings,
) -> Vec<Action> {
    let mut actions = vec![Action::Count];
    match action {
        plan::Action::Log if holder.is_staged() => {}
        plan::Action::Log => {
            actions.extend(settings.log_limit.map(Action::Limit));
            let prefix = holder.log_prefix(&settings.log_prefix);
            actions.push(Action::Log { prefix, rule: names::fitting_in(LOG_PREFIX, id.to_string()) });
        }
        // Staged policies only count packets.
        _ if holder.is_staged() => actions.push(Action::Return),
        plan::Action::Allow => {
            match stage {
                Stage::Normal | Stage::Forward => {}
                Stage::PreDnat => actions.push(Action::SetMark(settings.marks.accepted)),
                Stage::Untracked => {
                    actions.extend([Action::Untrack, Action::SetMark(settings.marks.accepted)])
                }
            }
            actions.push(Action::Accept);
        }
        plan::Action::Deny => actions.push(deny(stage, settings)),
        plan::Action::Pass => {
            if let Holder::Policy { .. } = holder {
                actions.push(Action::SetMark(settings.marks.passed));
            }
            actions.push(Action::Return);
        }
    }
    actions
}

/// Returns the action for denied packets.
pub(super) fn deny(stage: Stage, settings: &PolicySettings) -> Action {
    match (stage, settings.deny) {
        (Stage::Normal | Stage::Forward, DenyAction::Reject) => Action::Reject,
        _ => Action::Drop,
    }
}

impl Holder<'_> {
    pub fn chain_name(self, direction: Direction, stage: Stage) -> String {
        match self {
            Holder::Policy { id, .. } => names::policy(id, direction, stage),
            Holder::Profile(name) => names::profile(name, direction),
        }
    }
}
