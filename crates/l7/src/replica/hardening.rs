//! Makes rules fail closed that refer to a set or a selector that the replica does not have.
//!
//! The node sends sets before policies that use them. If it does not, a rule that allows or passes matches nothing, and
//! a rule that denies ignores the condition, so that it denies more rather than less.

use std::sync::Arc;
use tortie_plan::{PeerMatch, PlannedPolicy, PlannedRule, ProfileRules, RuleAction, RuleSide, SetId};

/// Knowledge of the replica that rules depend on.
pub trait RuleDependencies {
    fn has_set(&self, set: &SetId) -> bool;
    /// Returns whether the selector can be parsed.
    fn has_selector(&self, text: &str) -> bool;
}

/// Returns the policy to enforce instead, or `None` if all rules can be enforced as they are.
pub fn harden_policy(policy: &PlannedPolicy, known: &impl RuleDependencies) -> Option<Arc<PlannedPolicy>> {
    let rules = policy.ingress.iter().chain(&policy.egress);
    if !are_unknown(rules, known) {
        return None;
    }
    let harden = |rules: &[PlannedRule]| rules.iter().map(|rule| harden_rule(rule, known)).collect();
    let (ingress, egress) = (harden(&policy.ingress), harden(&policy.egress));
    Some(Arc::new(PlannedPolicy { ingress, egress, ..policy.clone() }))
}

/// Does the same for a profile.
pub fn harden_profile(profile: &ProfileRules, known: &impl RuleDependencies) -> Option<Arc<ProfileRules>> {
    let rules = profile.ingress.iter().chain(&profile.egress);
    if !are_unknown(rules, known) {
        return None;
    }
    let harden = |rules: &[PlannedRule]| rules.iter().map(|rule| harden_rule(rule, known)).collect();
    Some(Arc::new(ProfileRules { ingress: harden(&profile.ingress), egress: harden(&profile.egress) }))
}

/// Returns the selectors that are compared with authenticated peers.
pub fn peer_selectors(peer: &PeerMatch) -> impl Iterator<Item = &str> {
    [&peer.namespace_selector, &peer.service_account_selector]
        .into_iter()
        .map(String::as_str)
        .filter(|text| !text.is_empty())
}

/// Returns the sides of a rule.
pub fn sides(rule: &PlannedRule) -> [&RuleSide; 2] {
    [&rule.source, &rule.destination]
}

fn are_unknown<'r>(mut rules: impl Iterator<Item = &'r PlannedRule>, known: &impl RuleDependencies) -> bool {
    rules.any(|rule| !rule.sets().all(|set| known.has_set(set)) || !has_selectors(rule, known))
}

fn has_selectors(rule: &PlannedRule, known: &impl RuleDependencies) -> bool {
    let peers = sides(rule).into_iter().filter_map(|side| side.peer.as_deref());
    peers.flat_map(peer_selectors).all(|text| known.has_selector(text))
}

fn harden_rule(rule: &PlannedRule, known: &impl RuleDependencies) -> PlannedRule {
    if !are_unknown(std::iter::once(rule), known) {
        return rule.clone();
    }
    let mut hardened = rule.clone();
    if rule.action == RuleAction::Deny {
        widen_side(&mut hardened.source, known);
        widen_side(&mut hardened.destination, known);
        return hardened;
    }
    PlannedRule { annotations: rule.annotations.clone(), ..PlannedRule::never(rule.action) }
}

/// Removes conditions that cannot be checked.
fn widen_side(side: &mut RuleSide, known: &impl RuleDependencies) {
    side.sets.retain(|set| known.has_set(set));
    side.not_sets.retain(|set| known.has_set(set));
    if !side.named_ports.iter().all(|set| known.has_set(set)) {
        side.named_ports.clear();
        side.ports.clear();
    }
    side.not_named_ports.retain(|set| known.has_set(set));
    if side.service.as_ref().is_some_and(|set| !known.has_set(set)) {
        side.service = None;
    }
    if side.peer.as_deref().is_some_and(|peer| !peer_selectors(peer).all(|text| known.has_selector(text))) {
        side.peer = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    struct KnownNames(BTreeSet<&'static str>);

    impl RuleDependencies for KnownNames {
        fn has_set(&self, set: &SetId) -> bool {
            self.0.contains(&*set.0)
        }

        fn has_selector(&self, text: &str) -> bool {
            self.0.contains(text)
        }
    }

    fn policy(action: RuleAction, change: impl FnOnce(&mut PlannedRule)) -> PlannedPolicy {
        let mut rule = PlannedRule::new(action);
        change(&mut rule);
        PlannedPolicy { ingress: vec![rule], ..PlannedPolicy::default() }
    }

    #[test]
    fn rules_with_known_dependencies_stay() {
        let known = KnownNames(BTreeSet::from(["s:a", "a == 'b'"]));
        let whole = policy(RuleAction::Allow, |rule| {
            rule.source.sets = vec![SetId::new("s:a")];
            let namespace_selector = "a == 'b'".to_owned();
            rule.source.peer = Some(Box::new(PeerMatch { namespace_selector, ..PeerMatch::default() }));
        });
        assert_eq!(harden_policy(&whole, &known), None);
    }

    #[test]
    fn unknown_sets_never_allow_and_always_deny() {
        let known = KnownNames(BTreeSet::new());
        let set = || vec![SetId::new("s:gone")];
        let places: [fn(&mut RuleSide, Vec<SetId>); 5] = [
            |side, sets| side.sets = sets,
            |side, sets| side.not_sets = sets,
            |side, sets| side.named_ports = sets,
            |side, sets| side.not_named_ports = sets,
            |side, sets| side.service = sets.into_iter().next(),
        ];
        for place in places {
            for action in [RuleAction::Allow, RuleAction::Pass] {
                let hardened = harden_policy(&policy(action, |rule| place(&mut rule.source, set())), &known);
                assert_eq!(hardened.unwrap().ingress, [PlannedRule::never(action)]);
            }
            let denies = policy(RuleAction::Deny, |rule| place(&mut rule.destination, set()));
            let hardened = harden_policy(&denies, &known).unwrap();
            assert_eq!(hardened.ingress, [PlannedRule::new(RuleAction::Deny)]);
        }
    }

    #[test]
    fn unparsable_selectors_never_allow() {
        let known = KnownNames(BTreeSet::new());
        let service_account_selector = "a ==".to_owned();
        let peer = PeerMatch { service_account_selector, ..PeerMatch::default() };
        let allows = policy(RuleAction::Allow, |rule| rule.source.peer = Some(Box::new(peer.clone())));
        let hardened = harden_policy(&allows, &known).unwrap();
        assert_eq!(hardened.ingress, [PlannedRule::never(RuleAction::Allow)]);
        let denies = policy(RuleAction::Deny, |rule| rule.source.peer = Some(Box::new(peer)));
        let hardened = harden_policy(&denies, &known).unwrap();
        assert_eq!(hardened.ingress, [PlannedRule::new(RuleAction::Deny)]);
    }
}
