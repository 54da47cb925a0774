//! The order in which the policies in force are evaluated.
//!
//! Each policy has a number that defines its position; a new policy gets one between those of its neighbours, so that
//! no other policy moves.

use super::ids::PolicySlot;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::ops::Bound;
use tortie_plan::PolicyId;

/// Position of a policy. Policies of tiers that do not exist come last. Tiers are sorted by order, then name; the
/// policies of a tier by order, then name, namespace and kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PolicySortKey {
    missing_tier: bool,
    tier_order: u64,
    tier: String,
    order: u64,
    text: String,
}

impl PolicySortKey {
    /// Creates a sort key. `tier_order` is `None` if the tier does not exist; a policy without an order comes last.
    pub fn new(tier: &str, tier_order: Option<f64>, order: Option<f64>, id: &PolicyId) -> PolicySortKey {
        PolicySortKey {
            missing_tier: tier_order.is_none(),
            tier_order: tier_order.map_or(0, encode_sortable),
            tier: tier.to_owned(),
            order: encode_sortable(order.unwrap_or(f64::INFINITY)),
            text: format!("{}/{}/{}", id.name, id.namespace, id.kind.name()),
        }
    }
}

/// Returns an integer that compares as the float does.
fn encode_sortable(number: f64) -> u64 {
    // Both zeros are equal.
    let bits = (number + 0.0).to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

#[derive(Debug, Default)]
pub(super) struct PolicyOrder {
    policies: BTreeMap<PolicySortKey, PolicySlot>,
    /// Sort key and number of each policy.
    positions: HashMap<PolicySlot, (PolicySortKey, u64)>,
}

impl PolicyOrder {
    /// Puts a policy at its position. Returns whether the position changed.
    pub fn insert(&mut self, policy: PolicySlot, key: PolicySortKey) -> bool {
        if self.positions.get(&policy).is_some_and(|(old, _)| *old == key) {
            return false;
        }
        self.remove(policy);
        let before = self.policies.range(..&key).next_back();
        let after = self.policies.range((Bound::Excluded(&key), Bound::Unbounded)).next();
        let low = before.map_or(0, |(_, policy)| self.number(*policy));
        let high = after.map_or(u64::MAX, |(_, policy)| self.number(*policy));
        // At the end, leave room for many more policies behind it.
        let number_here = if after.is_none() { low.saturating_add(1 << 32) } else { low + (high - low) / 2 };
        self.policies.insert(key.clone(), policy);
        self.positions.insert(policy, (key, number_here));
        if number_here <= low || number_here >= high {
            self.renumber();
        }
        true
    }

    pub fn remove(&mut self, policy: PolicySlot) {
        if let Some((key, _)) = self.positions.remove(&policy) {
            self.policies.remove(&key);
        }
    }

    /// Returns the number of a policy; it is greater for policies that are evaluated later.
    pub fn number(&self, policy: PolicySlot) -> u64 {
        self.positions.get(&policy).map_or(u64::MAX, |(_, number)| *number)
    }

    fn renumber(&mut self) {
        let step = u64::MAX / (self.policies.len() as u64 + 1);
        for (nth, policy) in self.policies.values().enumerate() {
            if let Some((_, number)) = self.positions.get_mut(policy) {
                *number = step * (nth as u64 + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ids::TableId;
    use super::*;
    use proptest::prelude::*;
    use tortie_plan::PolicyKind;

    fn id(namespace: &str, name: &str) -> PolicyId {
        let kind =
            if namespace.is_empty() { PolicyKind::GlobalNetworkPolicy } else { PolicyKind::NetworkPolicy };
        PolicyId { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn places_compare_as_the_reference_compares() {
        let key = |tier, tier_order, order, id| PolicySortKey::new(tier, tier_order, order, &id);
        let default = |order, id| key("default", Some(1e6), order, id);
        let sorted = [
            key("early", Some(-1.5), None, id("", "z")),
            key("x", Some(10.0), Some(-0.0), id("", "a")),
            key("x", Some(10.0), Some(0.0), id("", "b")),
            default(Some(5.0), id("ns1", "a")),
            default(Some(5.0), id("ns2", "a")),
            default(Some(5.0), id("", "b")),
            default(Some(100.0), id("", "b")),
            default(None, id("", "a")),
            key("named-after", Some(1e6), Some(1.0), id("", "a")),
            key("aa-gone", None, Some(1.0), id("", "a")),
            key("gone", None, Some(0.0), id("", "a")),
        ];
        assert!(sorted.is_sorted(), "{sorted:#?}");
    }

    proptest! {
        #[test]
        fn numbers_follow_places(steps in prop::collection::vec((0u32..40, 0u16..500, any::<bool>()), 0..300)) {
            let mut order = PolicyOrder::default();
            let mut model: BTreeMap<PolicySlot, PolicySortKey> = BTreeMap::new();
            for (number, at, add) in steps {
                let policy = PolicySlot::new(number);
                if add {
                    let key = PolicySortKey::new("t", Some(1.0), Some(f64::from(at)), &id("", &number.to_string()));
                    order.insert(policy, key.clone());
                    model.insert(policy, key);
                } else {
                    order.remove(policy);
                    model.remove(&policy);
                }
            }
            let mut by_place: Vec<PolicySlot> = model.keys().copied().collect();
            by_place.sort_by_key(|policy| model[policy].clone());
            let numbers: Vec<u64> = by_place.iter().map(|policy| order.number(*policy)).collect();
            prop_assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", numbers);
        }
    }
}
