//! Policies and profiles: one chain for each direction and stage, shared by all endpoints.

use super::super::diff::TableDiff;
use super::super::render::{
    PolicyOrProfile, PolicyStage, PortKey, RuleRenderer, TierRenderer, has_pass_rule, has_proxy_rule, names,
    needs_forward_chain, port_keys,
};
use super::hosts::HostEndpoints;
use super::{DIRECTIONS, put};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_plan::{PlannedPolicy, PlannedRule, PolicyId, PolicySettings, ProfileRules, SetId};

#[derive(Default)]
pub struct PolicyChains {
    policies: BTreeMap<PolicyId, Arc<PlannedPolicy>>,
    profiles: BTreeMap<String, Arc<ProfileRules>>,
    /// Policies that host endpoints list in stages other than the normal one.
    listed: BTreeSet<PolicyId>,
    /// Number of policies and profiles with rules that match only at workloads with a proxy.
    with_proxy_rules: usize,
    stale_policies: BTreeSet<PolicyId>,
    stale_profiles: BTreeSet<String>,
}

impl PolicyChains {
    pub fn policies(&self) -> &BTreeMap<PolicyId, Arc<PlannedPolicy>> {
        &self.policies
    }

    pub fn profiles(&self) -> &BTreeMap<String, Arc<ProfileRules>> {
        &self.profiles
    }

    /// Returns whether a rule matches only at workloads with a proxy.
    pub fn refer_to_proxies(&self) -> bool {
        self.with_proxy_rules > 0
    }

    pub fn tier_renderer<'p>(&'p self, settings: &'p PolicySettings) -> TierRenderer<'p> {
        TierRenderer { policies: &self.policies, profiles: &self.profiles, settings, prefix: "" }
    }

    /// Sets or removes a policy. Returns whether the chains of its endpoints are stale.
    pub fn put_policy(&mut self, id: &PolicyId, policy: Option<&Arc<PlannedPolicy>>) -> bool {
        let old = put(&mut self.policies, id, policy.cloned());
        self.with_proxy_rules += usize::from(policy.is_some_and(|policy| policy.has_unproxied_rules()));
        self.with_proxy_rules -= usize::from(old.as_ref().is_some_and(|policy| policy.has_unproxied_rules()));
        self.stale_policies.insert(id.clone());
        old.as_deref().map(policy_shape) != policy.map(AsRef::as_ref).map(policy_shape)
    }

    /// Sets or removes a profile. Returns whether the chains of its endpoints are stale.
    pub fn put_profile(&mut self, name: &String, profile: Option<&Arc<ProfileRules>>) -> bool {
        let old = put(&mut self.profiles, name, profile.cloned());
        self.with_proxy_rules += usize::from(profile.is_some_and(|profile| profile.has_unproxied_rules()));
        self.with_proxy_rules -=
            usize::from(old.as_ref().is_some_and(|profile| profile.has_unproxied_rules()));
        self.stale_profiles.insert(name.clone());
        old.as_deref().map(profile_shape) != profile.map(AsRef::as_ref).map(profile_shape)
    }

    /// Schedules policies whose chains may change, because a host endpoint now lists them in other stages.
    pub fn mark_policies(&mut self, ids: impl IntoIterator<Item = PolicyId>) {
        self.stale_policies.extend(ids);
    }

    /// Schedules all policies and profiles.
    pub fn mark_all(&mut self) {
        self.stale_policies.extend(self.policies.keys().cloned());
        self.stale_profiles.extend(self.profiles.keys().cloned());
    }

    /// Schedules the policies and profiles that refer to a set.
    pub fn mark_users_of_set(&mut self, set: &SetId) {
        for (id, policy) in &self.policies {
            if refer_to(&policy.ingress, set) || refer_to(&policy.egress, set) {
                self.stale_policies.insert(id.clone());
            }
        }
        for (name, profile) in &self.profiles {
            if refer_to(&profile.ingress, set) || refer_to(&profile.egress, set) {
                self.stale_profiles.insert(name.clone());
            }
        }
    }

    /// Renders the chains of changed policies and profiles.
    pub fn render(&mut self, diff: &mut TableDiff, renderer: RuleRenderer<'_>, hosts: &HostEndpoints) {
        for id in std::mem::take(&mut self.stale_policies) {
            self.render_policy(&id, diff, renderer, hosts);
        }
        for name in std::mem::take(&mut self.stale_profiles) {
            let profile = self.profiles.get(&name);
            let owner = PolicyOrProfile::Profile(&name);
            for direction in DIRECTIONS {
                let rules = profile.map(|profile| profile.rules(direction)).unwrap_or_default();
                let chain = renderer.chain(owner, rules, direction, PolicyStage::Normal);
                diff.set_chain(owner.chain_name(direction, PolicyStage::Normal), chain);
            }
        }
    }

    fn render_policy(
        &mut self,
        id: &PolicyId,
        diff: &mut TableDiff,
        renderer: RuleRenderer<'_>,
        hosts: &HostEndpoints,
    ) {
        let policy = self.policies.get(id);
        let stages = policy.map(|_| hosts.stages_of_policy(id)).unwrap_or_default();
        // Host endpoints list few policies in these stages: skip the chains of the stages for the other policies.
        let was_listed =
            if stages.is_empty() { self.listed.remove(id) } else { !self.listed.insert(id.clone()) };
        for stage in [PolicyStage::Normal, PolicyStage::Forward, PolicyStage::PreDnat, PolicyStage::Untracked]
        {
            let policy = policy.filter(|_| stage == PolicyStage::Normal || stages.contains(&stage));
            if policy.is_none() && stage != PolicyStage::Normal && !was_listed {
                continue;
            }
            for direction in DIRECTIONS {
                // Forwarded packets usually share the chain of the normal stage.
                let own = policy.filter(|policy| {
                    let rules = policy.rules(direction);
                    stage != PolicyStage::Forward || needs_forward_chain(rules, renderer.settings)
                });
                let chain = own.and_then(|policy| {
                    let owner = PolicyOrProfile::Policy { id, tier: &policy.tier };
                    renderer.chain(owner, policy.rules(direction), direction, stage)
                });
                diff.set_chain(names::policy(id, direction, stage), chain);
            }
        }
    }
}

/// Properties of a policy in one direction that chains of endpoints depend on.
#[derive(PartialEq, Eq)]
struct PolicyShape {
    is_empty: bool,
    has_pass_rule: bool,
    has_proxy_rule: bool,
    port_keys: Option<BTreeSet<PortKey>>,
}

/// Returns the properties of a policy that chains of endpoints depend on.
fn policy_shape(policy: &PlannedPolicy) -> [PolicyShape; 2] {
    DIRECTIONS.map(|direction| {
        let rules = policy.rules(direction);
        PolicyShape {
            is_empty: rules.is_empty(),
            has_pass_rule: has_pass_rule(rules),
            has_proxy_rule: has_proxy_rule(rules),
            port_keys: port_keys(rules),
        }
    })
}

/// Returns the properties of a profile that chains of endpoints depend on.
fn profile_shape(profile: &ProfileRules) -> [bool; 2] {
    DIRECTIONS.map(|direction| profile.rules(direction).is_empty())
}

/// Returns whether one of the rules refers to a set.
fn refer_to(rules: &[PlannedRule], set: &SetId) -> bool {
    rules.iter().flat_map(PlannedRule::sets).any(|id| id == set)
}
