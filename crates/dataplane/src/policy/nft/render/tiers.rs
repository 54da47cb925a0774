//! Renders the evaluation order of the tiers and profiles of one endpoint as a list of jumps.

use super::super::rule::{Action, Match, Rule};
use super::policy::{deny, passes};
use super::{Stage, names};
use std::collections::BTreeMap;
use std::sync::Arc;
use tortie_plan::{Direction, Policy, PolicyId, PolicySettings, Profile, Tier, TierEnd};

/// Comments by which the counters of packets denied at the end of a tier or of all profiles are recognised.
pub(crate) const END_OF_TIER: &str = "end of tier ";
pub(crate) const NO_PROFILE: &str = "no profile allows it";

/// The policies and profiles that tiers refer to.
#[derive(Clone, Copy)]
pub(crate) struct Tiers<'p> {
    pub policies: &'p BTreeMap<PolicyId, Arc<Policy>>,
    pub profiles: &'p BTreeMap<String, Arc<Profile>>,
    pub settings: &'p PolicySettings,
}

impl Tiers<'_> {
    /// Returns the rules for all tiers, followed by the profiles. Packets that none of them allows are denied at the
    /// end.
    pub fn with_profiles(&self, tiers: &[Tier], profiles: &[String], direction: Direction) -> Vec<Rule> {
        let (mut rules, ended) = self.tiers(tiers, direction, Stage::Normal);
        if ended {
            return rules;
        }
        for name in profiles {
            let Some(profile) = self.profiles.get(name) else {
                rules.push(self.end(Stage::Normal).says(format!("profile {name} is missing")));
                return rules;
            };
            if !profile.rules(direction).is_empty() {
                let jump = Action::Jump(names::profile(name, direction));
                rules.push(Rule::new(Vec::new(), vec![jump]));
            }
        }
        rules.push(self.end(Stage::Normal).says(NO_PROFILE));
        rules
    }

    /// Returns the rules for all tiers; packets without a decision continue behind them.
    pub fn only(&self, tiers: &[Tier], direction: Direction, stage: Stage) -> Vec<Rule> {
        self.tiers(tiers, direction, stage).0
    }

    fn end(&self, stage: Stage) -> Rule {
        Rule::new(Vec::new(), vec![Action::Count, deny(stage, self.settings)])
    }

    /// Returns the jumps, and whether they decide about every packet.
    fn tiers(&self, tiers: &[Tier], direction: Direction, stage: Stage) -> (Vec<Rule>, bool) {
        let mut rules = Vec::new();
        for tier in tiers {
            // Policies after one with Pass rules must skip the packets that it passed.
            let mut may_have_passed = false;
            let unless_passed = |may_have_passed: bool| -> Vec<Match> {
                may_have_passed.then(|| Match::mark(self.settings.marks.passed).not()).into_iter().collect()
            };
            let mut enforced = false;
            for id in tier.policies(direction) {
                enforced |= !id.kind.is_staged();
                let of_policy =
                    self.policies.get(id).map(|policy| policy.rules(direction)).unwrap_or_default();
                if of_policy.is_empty() {
                    continue;
                }
                let jump = Action::Jump(names::policy(id, direction, stage));
                rules.push(Rule::new(unless_passed(may_have_passed), vec![jump]));
                may_have_passed |= !id.kind.is_staged() && passes(of_policy);
            }
            let denies = tier.end == TierEnd::Deny && matches!(stage, Stage::Normal | Stage::Forward);
            if enforced && denies {
                let mut end = self.end(stage).says(format!("{END_OF_TIER}{}", tier.name));
                end.matches = unless_passed(may_have_passed);
                rules.push(end);
                if !may_have_passed {
                    return (rules, true);
                }
            }
            if may_have_passed {
                rules.push(Rule::new(Vec::new(), vec![Action::ClearMark(self.settings.marks.passed)]));
            }
        }
        (rules, false)
    }
}
