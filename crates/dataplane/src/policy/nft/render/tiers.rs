//! Renders the evaluation order of the tiers and profiles of one endpoint as a list of jumps.

use super::super::rule::{NftAction, NftRule};
use super::dispatch::{DispatchedRules, JumpRenderer, PolicyJump, port_keys};
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
    /// First part of the names of maps and chains that the rules of one list refer to.
    pub prefix: &'static str,
}

impl TierRenderer<'_> {
    /// Returns a renderer for the lists of host endpoints, whose objects are separate from those of workloads.
    pub fn for_hosts(self) -> Self {
        TierRenderer { prefix: "host-", ..self }
    }

    /// Returns the rules for all tiers, followed by the profiles. Packets that none of them allows are denied at the
    /// end.
    pub fn with_profiles(
        &self,
        tiers: &[EndpointTier],
        profiles: &[String],
        direction: PolicyDirection,
    ) -> DispatchedRules {
        let (mut rendered, ended) = self.tiers(tiers, direction, PolicyStage::Normal);
        if ended {
            return rendered;
        }
        for name in profiles {
            let Some(profile) = self.profiles.get(name) else {
                let end = self.end(PolicyStage::Normal).says(format!("profile {name} is missing"));
                rendered.rules.push(end);
                return rendered;
            };
            if !profile.rules(direction).is_empty() {
                let jump = NftAction::Jump(names::profile(name, direction));
                rendered.rules.push(NftRule::new(Vec::new(), vec![jump]));
            }
        }
        rendered.rules.push(self.end(PolicyStage::Normal).says(NO_PROFILE_COMMENT));
        rendered
    }

    /// Returns the rules for all tiers; packets without a decision continue behind them.
    pub fn only(
        &self,
        tiers: &[EndpointTier],
        direction: PolicyDirection,
        stage: PolicyStage,
    ) -> DispatchedRules {
        self.tiers(tiers, direction, stage).0
    }

    fn end(&self, stage: PolicyStage) -> NftRule {
        NftRule::new(Vec::new(), vec![NftAction::Count, deny(stage, self.settings)])
    }

    /// Returns the jumps, and whether they decide about every packet.
    fn tiers(
        &self,
        tiers: &[EndpointTier],
        direction: PolicyDirection,
        stage: PolicyStage,
    ) -> (DispatchedRules, bool) {
        let jumps = JumpRenderer { prefix: self.prefix, direction, passed: self.settings.marks.passed };
        let mut rendered = DispatchedRules::default();
        for tier in tiers {
            let policies = self.jumps(tier.policies(direction), direction, stage);
            let may_have_passed = jumps.add_policies(&policies, &mut rendered);
            let enforced = tier.policies(direction).iter().any(|id| !id.kind.is_staged());
            let denies = tier.end == TierDefaultAction::Deny
                && matches!(stage, PolicyStage::Normal | PolicyStage::Forward);
            if enforced && denies {
                let mut end = self.end(stage).says(format!("{TIER_END_COMMENT}{}", tier.name));
                end.matches = jumps.unless_passed(may_have_passed);
                rendered.rules.push(end);
                if !may_have_passed {
                    return (rendered, true);
                }
            }
            if may_have_passed {
                let clear = NftAction::ClearMark(self.settings.marks.passed);
                rendered.rules.push(NftRule::new(Vec::new(), vec![clear]));
            }
        }
        (rendered, false)
    }

    /// Returns the jumps to the policies that have rules.
    fn jumps(&self, ids: &[PolicyId], direction: PolicyDirection, stage: PolicyStage) -> Vec<PolicyJump> {
        let mut jumps = Vec::new();
        for id in ids {
            let Some(policy) = self.policies.get(id) else { continue };
            let rules = policy.rules(direction);
            if rules.is_empty() {
                continue;
            }
            let shared = stage == PolicyStage::Forward && !has_proxy_rule(rules);
            let chain_stage = if shared { PolicyStage::Normal } else { stage };
            jumps.push(PolicyJump {
                chain: names::policy(id, direction, chain_stage),
                keys: port_keys(rules),
                may_pass: !id.kind.is_staged() && has_pass_rule(rules),
            });
        }
        jumps
    }
}
