//! Sets of fields, as trees.

use crate::merge_schema::MergeSchema;
use crate::path::{FieldPath, PathElement};
use std::collections::{BTreeMap, BTreeSet};

/// A set of fields. A field can be in the set itself (a member), have children in the set, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    pub(crate) members: BTreeSet<PathElement>,
    pub(crate) children: BTreeMap<PathElement, FieldSet>,
}

impl FieldSet {
    /// Creates a set from paths of plain field names.
    pub fn from_names(paths: &[&[&str]]) -> FieldSet {
        let mut set = FieldSet::default();
        for path in paths {
            let path: Vec<PathElement> = path.iter().map(|name| PathElement::field(name)).collect();
            set.insert(&path);
        }
        set
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(FieldSet::is_empty)
    }

    /// Adds a path. The empty path is ignored: the object itself has no owner.
    pub fn insert(&mut self, path: &[PathElement]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    pub fn contains(&self, path: &[PathElement]) -> bool {
        match path {
            [] => true,
            [last] => self.members.contains(last),
            [first, rest @ ..] => self.children.get(first).is_some_and(|child| child.contains(rest)),
        }
    }

    /// Returns the part of the set below an element.
    pub fn below(&self, element: &PathElement) -> Option<&FieldSet> {
        self.children.get(element).filter(|child| !child.is_empty())
    }

    pub fn union(&self, other: &FieldSet) -> FieldSet {
        let mut all = self.clone();
        all.extend(other);
        all
    }

    /// Adds the members of another set.
    pub(crate) fn extend(&mut self, other: &FieldSet) {
        self.members.extend(other.members.iter().cloned());
        for (element, child) in &other.children {
            self.children.entry(element.clone()).or_default().extend(child);
        }
    }

    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        let children = self.children.iter().filter_map(|(element, child)| {
            let common = child.intersection(other.children.get(element)?);
            (!common.is_empty()).then(|| (element.clone(), common))
        });
        FieldSet {
            members: self.members.intersection(&other.members).cloned().collect(),
            children: children.collect(),
        }
    }

    /// Returns the set without the members of the other set.
    pub fn difference(&self, other: &FieldSet) -> FieldSet {
        let members = self.members.difference(&other.members).cloned().collect();
        FieldSet { members, children: self.children_without(other, FieldSet::difference) }
    }

    /// Returns the set without the members of the other set and everything below them.
    pub fn recursive_difference(&self, other: &FieldSet) -> FieldSet {
        let members = self.members.difference(&other.members).cloned().collect();
        let mut children = self.children_without(other, FieldSet::recursive_difference);
        children.retain(|element, _| !other.members.contains(element));
        FieldSet { members, children }
    }

    fn children_without(
        &self,
        other: &FieldSet,
        without: fn(&FieldSet, &FieldSet) -> FieldSet,
    ) -> BTreeMap<PathElement, FieldSet> {
        let children = self.children.iter().filter_map(|(element, child)| {
            let left = match other.children.get(element) {
                Some(other) => without(child, other),
                None => child.clone(),
            };
            (!left.is_empty()).then(|| (element.clone(), left))
        });
        children.collect()
    }

    /// Adds the fields that the shape names as members if anything below them is in the set: the owner of a part of a
    /// field also owns the existence of the field. Keys of maps and elements of lists are not added.
    pub fn with_named_fields(&self, shape: &MergeSchema) -> FieldSet {
        let mut set = FieldSet { members: self.members.clone(), children: BTreeMap::new() };
        for (element, child) in &self.children {
            let below = match (element, shape) {
                (PathElement::Field(name), MergeSchema::Map { fields, rest, .. }) => match fields.get(name) {
                    Some(field) => {
                        set.members.insert(element.clone());
                        field
                    }
                    None => rest.as_deref().unwrap_or(&MergeSchema::Any),
                },
                (PathElement::Key(_), MergeSchema::List { item, .. }) => item,
                _ => &MergeSchema::Any,
            };
            set.children.insert(element.clone(), child.with_named_fields(below));
        }
        set
    }

    /// Returns every member, in order.
    pub fn paths(&self) -> Vec<FieldPath> {
        let mut paths = Vec::new();
        self.collect(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect(&self, at: &mut Vec<PathElement>, paths: &mut Vec<FieldPath>) {
        for member in &self.members {
            let mut path = at.clone();
            path.push(member.clone());
            paths.push(FieldPath(path));
        }
        for (element, child) in &self.children {
            at.push(element.clone());
            child.collect(at, paths);
            at.pop();
        }
    }
}
