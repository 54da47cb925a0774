//! Evaluates selectors against labels.

use super::{Comparison, Node};
use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};

/// A set of labels that a selector can be evaluated against.
pub trait Labels {
    fn get(&self, key: &str) -> Option<&str>;
}

impl<K: Borrow<str> + Ord, V: AsRef<str>> Labels for BTreeMap<K, V> {
    fn get(&self, key: &str) -> Option<&str> {
        BTreeMap::get(self, key).map(AsRef::as_ref)
    }
}

impl<K: Borrow<str> + Eq + Hash, V: AsRef<str>, S: BuildHasher> Labels for HashMap<K, V, S> {
    fn get(&self, key: &str) -> Option<&str> {
        HashMap::get(self, key).map(AsRef::as_ref)
    }
}

impl Node {
    pub(super) fn matches<L: Labels + ?Sized>(&self, labels: &L) -> bool {
        match self {
            Node::All | Node::Global => true,
            Node::Has(key) => labels.get(key).is_some(),
            Node::Compare { key, comparison, value } => comparison.holds(labels.get(key), value),
            Node::Member { key, negated, values } => {
                let found = labels.get(key).is_some_and(|label| contains(values, label));
                found != *negated
            }
            Node::Not(inner) => !inner.matches(labels),
            Node::And(operands) => operands.iter().all(|node| node.matches(labels)),
            Node::Or(operands) => operands.iter().any(|node| node.matches(labels)),
        }
    }
}

impl Comparison {
    /// Evaluates the comparison. For an absent label, only `NotEqual` holds.
    fn holds(self, label: Option<&str>, value: &str) -> bool {
        match (self, label) {
            (Comparison::NotEqual, label) => label != Some(value),
            (_, None) => false,
            (Comparison::Equal, Some(label)) => label == value,
            (Comparison::Contains, Some(label)) => label.contains(value),
            (Comparison::StartsWith, Some(label)) => label.starts_with(value),
            (Comparison::EndsWith, Some(label)) => label.ends_with(value),
        }
    }
}

fn contains(sorted: &[Box<str>], value: &str) -> bool {
    sorted.binary_search_by(|candidate| candidate.as_ref().cmp(value)).is_ok()
}
