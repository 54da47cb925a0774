//! Sets of fields, as trees.

use crate::path::{Element, Path};
use crate::shape::Shape;
use std::collections::{BTreeMap, BTreeSet};

/// A field can be in the set itself (a member), have parts of it in the set (a child), or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    pub(crate) members: BTreeSet<Element>,
    pub(crate) children: BTreeMap<Element, Set>,
}

impl Set {
    /// Of paths of plain field names.
    pub fn of(paths: &[&[&str]]) -> Set {
        let mut set = Set::default();
        for path in paths {
            let path: Vec<Element> = path.iter().map(|name| Element::field(name)).collect();
            set.insert(&path);
        }
        set
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(Set::is_empty)
    }

    /// The empty path is nothing that anybody could own.
    pub fn insert(&mut self, path: &[Element]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    pub fn contains(&self, path: &[Element]) -> bool {
        match path {
            [] => true,
            [last] => self.members.contains(last),
            [first, rest @ ..] => self.children.get(first).is_some_and(|child| child.contains(rest)),
        }
    }

    /// What is in the set below an element.
    pub fn below(&self, element: &Element) -> Option<&Set> {
        self.children.get(element).filter(|child| !child.is_empty())
    }

    pub fn union(&self, other: &Set) -> Set {
        let mut all = self.clone();
        all.extend(other);
        all
    }

    /// Adds the members of another set.
    pub(crate) fn extend(&mut self, other: &Set) {
        self.members.extend(other.members.iter().cloned());
        for (element, child) in &other.children {
            self.children.entry(element.clone()).or_default().extend(child);
        }
    }

    pub fn intersection(&self, other: &Set) -> Set {
        let children = self.children.iter().filter_map(|(element, child)| {
            let common = child.intersection(other.children.get(element)?);
            (!common.is_empty()).then(|| (element.clone(), common))
        });
        Set {
            members: self.members.intersection(&other.members).cloned().collect(),
            children: children.collect(),
        }
    }

    /// Without exactly what is in the other set.
    pub fn difference(&self, other: &Set) -> Set {
        let members = self.members.difference(&other.members).cloned().collect();
        Set { members, children: self.children_without(other, Set::difference) }
    }

    /// Without what is in the other set and all that is below it.
    pub fn recursive_difference(&self, other: &Set) -> Set {
        let members = self.members.difference(&other.members).cloned().collect();
        let mut children = self.children_without(other, Set::recursive_difference);
        children.retain(|element, _| !other.members.contains(element));
        Set { members, children }
    }

    fn children_without(&self, other: &Set, without: fn(&Set, &Set) -> Set) -> BTreeMap<Element, Set> {
        let children = self.children.iter().filter_map(|(element, child)| {
            let left = match other.children.get(element) {
                Some(other) => without(child, other),
                None => child.clone(),
            };
            (!left.is_empty()).then(|| (element.clone(), left))
        });
        children.collect()
    }

    /// Fields that the shape names are members if anything below them is in the set: whoever owns a part of a field owns that it is
    /// there. Keys of maps and elements of lists are not.
    pub fn with_named_fields(&self, shape: &Shape) -> Set {
        let mut set = Set { members: self.members.clone(), children: BTreeMap::new() };
        for (element, child) in &self.children {
            let below = match (element, shape) {
                (Element::Field(name), Shape::Map { fields, rest, .. }) => match fields.get(name) {
                    Some(field) => {
                        set.members.insert(element.clone());
                        field
                    }
                    None => rest.as_deref().unwrap_or(&Shape::Any),
                },
                (Element::Key(_), Shape::List { item, .. }) => item,
                _ => &Shape::Any,
            };
            set.children.insert(element.clone(), child.with_named_fields(below));
        }
        set
    }

    /// Every member, in order.
    pub fn paths(&self) -> Vec<Path> {
        let mut paths = Vec::new();
        self.collect(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect(&self, at: &mut Vec<Element>, paths: &mut Vec<Path>) {
        for member in &self.members {
            let mut path = at.clone();
            path.push(member.clone());
            paths.push(Path(path));
        }
        for (element, child) in &self.children {
            at.push(element.clone());
            child.collect(at, paths);
            at.pop();
        }
    }
}
