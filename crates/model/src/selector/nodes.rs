//! Selectors of nodes.
//!
//! A selector of a rule selects nodes exactly if it requires the label `projectcalico.org/kind` with the value `Node`, and
//! then it selects nothing else. Other selectors, such as `all()`, never match a node: they mean endpoints and network
//! sets. So no label of an endpoint can make it a node.

use super::Selector;
use super::eval::LabelLookup;
use super::requirements::LabelCondition;
use std::collections::BTreeMap;

/// The label with the kind of an object that is not an endpoint.
pub const KIND_LABEL: &str = "projectcalico.org/kind";
/// The value of [`KIND_LABEL`] of nodes.
pub const NODE_KIND: &str = "Node";

/// The labels of a node, as selectors of nodes see them: its own, and [`KIND_LABEL`].
#[derive(Clone, Copy, Debug)]
pub struct NodeLabels<'a>(pub &'a BTreeMap<String, String>);

impl LabelLookup for NodeLabels<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            KIND_LABEL => Some(NODE_KIND),
            _ => self.0.get(key).map(String::as_str),
        }
    }
}

impl Selector {
    /// Returns whether the selector selects nodes instead of endpoints and network sets.
    pub fn selects_nodes(&self) -> bool {
        let conditions = self.requirements();
        matches!(conditions.labels.get(KIND_LABEL), Some(LabelCondition::OneOf(values)) if values[..] == [NODE_KIND])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_selectors_that_require_the_kind_select_nodes() {
        for (text, expected) in [
            ("projectcalico.org/kind == 'Node'", true),
            ("zone == 'a' && (has(x) && projectcalico.org/kind in {'Node'})", true),
            ("projectcalico.org/kind == 'Node' && !(a == 'b')", true),
            ("projectcalico.org/kind == 'Node' || a == 'b'", false),
            ("projectcalico.org/kind in {'Node', 'Pod'}", false),
            ("projectcalico.org/kind != 'Node'", false),
            ("has(projectcalico.org/kind)", false),
            ("all()", false),
        ] {
            assert_eq!(Selector::parse(text).unwrap().selects_nodes(), expected, "{text}");
        }
    }

    #[test]
    fn a_node_cannot_change_its_kind() {
        let labels =
            BTreeMap::from([(KIND_LABEL.to_owned(), "Pod".to_owned()), ("zone".to_owned(), "a".to_owned())]);
        let matches = |text: &str| Selector::parse(text).unwrap().matches(&NodeLabels(&labels));
        assert!(matches("projectcalico.org/kind == 'Node' && zone == 'a'"));
        assert!(!matches("projectcalico.org/kind == 'Node' && zone == 'b'"));
    }
}
