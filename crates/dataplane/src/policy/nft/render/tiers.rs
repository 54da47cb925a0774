//! Renders the evaluation order of the tiers and profiles of one endpoint as a list of jumps.

use super::super::rule::{NftAction, NftRule};
use super::dispatch::{DispatchedRules, JumpRenderer, PolicyJump, port_keys};
use super::policy::{deny, has_pass_rule, needs_forward_chain};
use super::{PolicyStage, flow, names};
use std::collections::BTreeMap;
use std::sync::Arc;
use tortie_plan::flow::FlowCause;
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
                let cause = FlowCause::MissingProfile { profile: name.clone(), direction };
                let end = self.end(PolicyStage::Normal, direction, &cause);
                let end = end.says(format!("profile {name} is missing"));
                rendered.rules.push(end);
                return rendered;
            };
            if !profile.rules(direction).is_empty() {
                let jump = NftAction::Jump(names::profile(name, direction));
                rendered.rules.push(NftRule::new(Vec::new(), vec![jump]));
            }
        }
        let end = self.end(PolicyStage::Normal, direction, &FlowCause::NoProfile(direction));
        rendered.rules.push(end.says(NO_PROFILE_COMMENT));
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

    fn end(&self, stage: PolicyStage, direction: PolicyDirection, cause: &FlowCause) -> NftRule {
        let label = flow::label_of_end(self.settings, stage, direction, cause);
        let denial = flow::deny_labelled(deny(stage, self.settings), label);
        NftRule::new(Vec::new(), [vec![NftAction::Count], denial].concat())
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
                let cause = FlowCause::TierEnd { tier: tier.name.clone(), direction };
                let mut end =
                    self.end(stage, direction, &cause).says(format!("{TIER_END_COMMENT}{}", tier.name));
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
            let shared = stage == PolicyStage::Forward && !needs_forward_chain(rules, self.settings);
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
