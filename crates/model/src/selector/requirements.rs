//! Conditions per label key that all label sets matching a selector satisfy.
//!
//! A label index finds candidates by these conditions and evaluates the selector only on the candidates.

use super::{Comparison, Node};
use std::collections::BTreeMap;

/// Necessary, not sufficient, conditions: a label set that violates one does not match; one that satisfies
/// all may match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirements<'a> {
    /// Whether no label set can match.
    pub impossible: bool,
    pub labels: BTreeMap<&'a str, Requirement<'a>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement<'a> {
    Present,
    Absent,
    /// Present with one of these values, which are sorted.
    OneOf(Vec<&'a str>),
}

impl<'a> Requirements<'a> {
    pub(super) fn of(node: &'a Node) -> Requirements<'a> {
        let mut requirements = Requirements::default();
        requirements.add(node, false);
        requirements
    }

    /// Adds the requirements of a node. By De Morgan's laws a negated disjunction is a conjunction of
    /// negations, so one walk that tracks negation handles both.
    fn add(&mut self, node: &'a Node, negated: bool) {
        match (node, negated) {
            (Node::All | Node::Global, false) => {}
            (Node::All | Node::Global, true) => self.impossible = true,
            (Node::Has(key), false) => self.require(key, Requirement::Present),
            (Node::Has(key), true) => self.require(key, Requirement::Absent),
            (Node::Compare { key, comparison: Comparison::Equal, value }, false)
            | (Node::Compare { key, comparison: Comparison::NotEqual, value }, true) => {
                self.require(key, Requirement::OneOf(vec![value]));
            }
            (Node::Compare { comparison: Comparison::Equal | Comparison::NotEqual, .. }, _) => {}
            (Node::Compare { key, .. }, false) => self.require(key, Requirement::Present),
            (Node::Compare { .. }, true) => {}
            (Node::Member { key, negated, values }, sign) if *negated == sign => {
                self.require(key, Requirement::OneOf(values.iter().map(AsRef::as_ref).collect()));
            }
            (Node::Member { .. }, _) => {}
            (Node::Not(inner), sign) => self.add(inner, !sign),
            (Node::And(operands), false) | (Node::Or(operands), true) => {
                operands.iter().for_each(|operand| self.add(operand, negated));
            }
            (Node::And(_), true) | (Node::Or(_), false) => {}
        }
    }

    fn require(&mut self, key: &'a str, new: Requirement<'a>) {
        let both = match self.labels.remove(key) {
            Some(old) => old.and(new),
            None => Some(new),
        };
        match both {
            Some(Requirement::OneOf(values)) if values.is_empty() => self.impossible = true,
            Some(requirement) => {
                self.labels.insert(key, requirement);
            }
            None => self.impossible = true,
        }
    }
}

impl<'a> Requirement<'a> {
    /// Combines two requirements; returns `None` if they exclude each other.
    fn and(self, other: Requirement<'a>) -> Option<Requirement<'a>> {
        match (self, other) {
            (Requirement::Absent, Requirement::Absent) => Some(Requirement::Absent),
            (Requirement::Absent, _) | (_, Requirement::Absent) => None,
            (Requirement::Present, stricter) | (stricter, Requirement::Present) => Some(stricter),
            (Requirement::OneOf(mut values), Requirement::OneOf(others)) => {
                values.retain(|value| others.binary_search(value).is_ok());
                Some(Requirement::OneOf(values))
            }
        }
    }
}
