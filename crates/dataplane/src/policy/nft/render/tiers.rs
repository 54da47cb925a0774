//! Renders the evaluation order of the tiers and profiles of one endpoint as a list of jumps.

use super::super::rule::{NftAction, NftMatch, NftRule};
use super::policy::{deny, has_pass_rule, has_proxy_rule};
use super::{PolicyStage, names};
use std::collections::BTreeMap;
use std::sync::Arc;
use tortie_plan::{
    EndpointTier, PlannedPolicy, PolicyDirection, PolicyId, PolicySettings, ProfileRules, TierDefaultAction,
};

/// Comments by which the counters of packets denied at the end of a tier or of all profiles are recognised.
pub const TIER_END_COMMENT: &str = "end of tier ";
pub const NO_PROFILE_COMMENT: &str = "no profile allows it";

/// The policies and profiles that tiers refer to.
#[derive(Clone, Copy)]
pub struct TierRenderer<'p> {
    pub policies: &'p BTreeMap<PolicyId, Arc<PlannedPolicy>>,
    pub profiles: &'p BTreeMap<String, Arc<ProfileRules>>,
    pub settings: &'p PolicySettings,
}

impl TierRenderer<'_> {
    /// Returns the rules for all tiers, followed by the profiles. Packets that none of them allows are denied at the
    /// end.
    pub fn with_profiles(
        &self,
        tiers: &[EndpointTier],
        profiles: &[String],
        direction: PolicyDirection,
    ) -> Vec<NftRule> {
        let (mut rules, ended) = self.tiers(tiers, direction, PolicyStage::Normal);
        if ended {
            return rules;
        }
        for name in profiles {
            let Some(profile) = self.profiles.get(name) else {
                rules.push(self.end(PolicyStage::Normal).says(format!("profile {name} is missing")));
                return rules;
            };
            if !profile.rules(direction).is_empty() {
                let jump = NftAction::Jump(names::profile(name, direction));
                rules.push(NftRule::new(Vec::new(), vec![jump]));
            }
        }
        rules.push(self.end(PolicyStage::Normal).says(NO_PROFILE_COMMENT));
        rules
    }

    /// Returns the rules for all tiers; packets without a decision continue behind them.
    pub fn only(
        &self,
        tiers: &[EndpointTier],
        direction: PolicyDirection,
        stage: PolicyStage,
    ) -> Vec<NftRule> {
        self.tiers(tiers, direction, stage).0
    }

    fn end(&self, stage: PolicyStage) -> NftRule {
        NftRule::new(Vec::new(), vec![NftAction::Count, deny(stage, self.settings)])
    }

    /// Returns the condition that excludes packets which an earlier policy of the tier may have passed.
    fn unless_passed(&self, may_have_passed: bool) -> Vec<NftMatch> {
        if may_have_passed { vec![NftMatch::mark(self.settings.marks.passed).not()] } else { Vec::new() }
    }

    /// Returns the jumps, and whether they decide about every packet.
    fn tiers(
        &self,
        tiers: &[EndpointTier],
        direction: PolicyDirection,
        stage: PolicyStage,
    ) -> (Vec<NftRule>, bool) {
        let mut rules = Vec::new();
        for tier in tiers {
            // Policies after one with Pass rules must skip the packets that it passed.
            let mut may_have_passed = false;
            let mut enforced = false;
            for id in tier.policies(direction) {
                enforced |= !id.kind.is_staged();
                let of_policy =
                    self.policies.get(id).map(|policy| policy.rules(direction)).unwrap_or_default();
                if of_policy.is_empty() {
                    continue;
                }
                let shared = stage == PolicyStage::Forward && !has_proxy_rule(of_policy);
                let chain_stage = if shared { PolicyStage::Normal } else { stage };
                let jump = NftAction::Jump(names::policy(id, direction, chain_stage));
                rules.push(NftRule::new(self.unless_passed(may_have_passed), vec![jump]));
                may_have_passed |= !id.kind.is_staged() && has_pass_rule(of_policy);
            }
            let denies = tier.end == TierDefaultAction::Deny
                && matches!(stage, PolicyStage::Normal | PolicyStage::Forward);
            if enforced && denies {
                let mut end = self.end(stage).says(format!("{TIER_END_COMMENT}{}", tier.name));
                end.matches = self.unless_passed(may_have_passed);
                rules.push(end);
                if !may_have_passed {
                    return (rules, true);
                }
            }
            if may_have_passed {
                rules.push(NftRule::new(Vec::new(), vec![NftAction::ClearMark(self.settings.marks.passed)]));
            }
        }
        (rules, false)
    }
}
