//! Evaluates selectors against labels.

use super::{LabelComparison, SelectorNode};
use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};

/// A set of labels that a selector can be evaluated against.
pub trait LabelLookup {
    fn get(&self, key: &str) -> Option<&str>;
}

impl<K: Borrow<str> + Ord, V: AsRef<str>> LabelLookup for BTreeMap<K, V> {
    fn get(&self, key: &str) -> Option<&str> {
        BTreeMap::get(self, key).map(AsRef::as_ref)
    }
}

impl<K: Borrow<str> + Eq + Hash, V: AsRef<str>, S: BuildHasher> LabelLookup for HashMap<K, V, S> {
    fn get(&self, key: &str) -> Option<&str> {
        HashMap::get(self, key).map(AsRef::as_ref)
    }
}

impl SelectorNode {
    pub(super) fn matches<L: LabelLookup + ?Sized>(&self, labels: &L) -> bool {
        match self {
            SelectorNode::All | SelectorNode::Global => true,
            SelectorNode::Has(key) => labels.get(key).is_some(),
            SelectorNode::Compare { key, comparison, value } => comparison.holds(labels.get(key), value),
            SelectorNode::Member { key, negated, values } => {
                let found = labels.get(key).is_some_and(|label| contains(values, label));
                found != *negated
            }
            SelectorNode::Not(inner) => !inner.matches(labels),
            SelectorNode::And(operands) => operands.iter().all(|node| node.matches(labels)),
            SelectorNode::Or(operands) => operands.iter().any(|node| node.matches(labels)),
        }
    }
}

impl LabelComparison {
    /// Evaluates the comparison. For an absent label, only `NotEqual` holds.
    fn holds(self, label: Option<&str>, value: &str) -> bool {
        match (self, label) {
            (LabelComparison::NotEqual, label) => label != Some(value),
            (_, None) => false,
            (LabelComparison::Equal, Some(label)) => label == value,
            (LabelComparison::Contains, Some(label)) => label.contains(value),
            (LabelComparison::StartsWith, Some(label)) => label.starts_with(value),
            (LabelComparison::EndsWith, Some(label)) => label.ends_with(value),
        }
    }
}

fn contains(sorted: &[Box<str>], value: &str) -> bool {
    sorted.binary_search_by(|candidate| candidate.as_ref().cmp(value)).is_ok()
}
