//! What all label sets that a selector matches have in common, key by key.
//!
//! An index of labels looks up candidates by these and evaluates the selector only on them.

use super::{Comparison, Node};
use std::collections::BTreeMap;

/// Necessary, not sufficient: a label set that breaks one of these does not match, one that fulfils all may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirements<'a> {
    /// Nothing can match, whatever the labels.
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

    /// A negated alternative is a conjunction of negations, so one walk with the sign carried along sees both.
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
    /// Both at once; none if they exclude each other.
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
