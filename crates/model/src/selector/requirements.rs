//! Conditions per label key that all label sets matching a selector satisfy.
//!
//! A label index finds candidates by these conditions and evaluates the selector only on the candidates.

use super::{LabelComparison, SelectorNode};
use std::collections::BTreeMap;

/// Necessary, not sufficient, conditions: a label set that violates one does not match; one that satisfies
/// all may match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelConditions<'a> {
    /// Whether no label set can match.
    pub impossible: bool,
    pub labels: BTreeMap<&'a str, LabelCondition<'a>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelCondition<'a> {
    Present,
    Absent,
    /// Present with one of these values, which are sorted.
    OneOf(Vec<&'a str>),
}

impl<'a> LabelConditions<'a> {
    pub(super) fn of(node: &'a SelectorNode) -> LabelConditions<'a> {
        let mut requirements = LabelConditions::default();
        requirements.add(node, false);
        requirements
    }

    /// Adds the requirements of a node. By De Morgan's laws a negated disjunction is a conjunction of
    /// negations, so one walk that tracks negation handles both.
    fn add(&mut self, node: &'a SelectorNode, negated: bool) {
        match (node, negated) {
            (SelectorNode::All | SelectorNode::Global, false) => {}
            (SelectorNode::All | SelectorNode::Global, true) => self.impossible = true,
            (SelectorNode::Has(key), false) => self.require(key, LabelCondition::Present),
            (SelectorNode::Has(key), true) => self.require(key, LabelCondition::Absent),
            (SelectorNode::Compare { key, comparison: LabelComparison::Equal, value }, false)
            | (SelectorNode::Compare { key, comparison: LabelComparison::NotEqual, value }, true) => {
                self.require(key, LabelCondition::OneOf(vec![value]));
            }
            (
                SelectorNode::Compare {
                    comparison: LabelComparison::Equal | LabelComparison::NotEqual, ..
                },
                _,
            ) => {}
            (SelectorNode::Compare { key, .. }, false) => self.require(key, LabelCondition::Present),
            (SelectorNode::Compare { .. }, true) => {}
            (SelectorNode::Member { key, negated, values }, sign) if *negated == sign => {
                self.require(key, LabelCondition::OneOf(values.iter().map(AsRef::as_ref).collect()));
            }
            (SelectorNode::Member { .. }, _) => {}
            (SelectorNode::Not(inner), sign) => self.add(inner, !sign),
            (SelectorNode::And(operands), false) | (SelectorNode::Or(operands), true) => {
                operands.iter().for_each(|operand| self.add(operand, negated));
            }
            (SelectorNode::And(_), true) | (SelectorNode::Or(_), false) => {}
        }
    }

    fn require(&mut self, key: &'a str, new: LabelCondition<'a>) {
        let both = match self.labels.remove(key) {
            Some(old) => old.and(new),
            None => Some(new),
        };
        match both {
            Some(LabelCondition::OneOf(values)) if values.is_empty() => self.impossible = true,
            Some(requirement) => {
                self.labels.insert(key, requirement);
            }
            None => self.impossible = true,
        }
    }
}

impl<'a> LabelCondition<'a> {
    /// Combines two requirements; returns `None` if they exclude each other.
    fn and(self, other: LabelCondition<'a>) -> Option<LabelCondition<'a>> {
        match (self, other) {
            (LabelCondition::Absent, LabelCondition::Absent) => Some(LabelCondition::Absent),
            (LabelCondition::Absent, _) | (_, LabelCondition::Absent) => None,
            (LabelCondition::Present, stricter) | (stricter, LabelCondition::Present) => Some(stricter),
            (LabelCondition::OneOf(mut values), LabelCondition::OneOf(others)) => {
                values.retain(|value| others.binary_search(value).is_ok());
                Some(LabelCondition::OneOf(values))
            }
        }
    }
}
