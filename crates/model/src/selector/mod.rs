//! The selector language: parsing, canonical printing, evaluation and identifiers.
//!
//! A selector is an expression over labels such as `role == "db" && !has(legacy)`. Its canonical text is its
//! identity: two selectors are equal exactly when their canonical texts are equal.

mod eval;
mod id;
mod lexer;
mod nodes;
mod parser;
mod print;
mod requirements;
pub mod rewrite;

pub use eval::LabelLookup;
pub use id::{named_port_id, service_id, service_ip_id};
pub(crate) use lexer::MAX_KEY_BYTES;
pub use nodes::{KIND_LABEL, NODE_KIND, NodeLabels};
pub use parser::SelectorParseError;
pub use requirements::{LabelCondition, LabelConditions};

/// Maximum nesting depth of parentheses that validation accepts, including those of `has()`. The patterns in
/// the CRD schemas support the same depth.
pub(crate) const MAX_NESTING: usize = 32;

/// Returns the nesting depth of parentheses in the text of a selector.
pub(crate) fn nesting(text: &str) -> usize {
    let mut depth = 0usize;
    let mut deepest = 0;
    let mut quote = None;
    for c in text.chars() {
        match (quote, c) {
            (Some(open), c) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(') => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            (None, ')') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
    }
    deepest
}

/// A parsed selector. `Display` prints the canonical text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selector {
    node: SelectorNode,
}

/// Node of the syntax tree. Kept in normal form: no double negation, `And` and `Or` have at least two
/// operands, sets are sorted and free of duplicates, no value contains both kinds of quotes. The parser
/// bounds the nesting, so that recursion over nodes is safe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum SelectorNode {
    All,
    Global,
    Has(Box<str>),
    Compare { key: Box<str>, comparison: LabelComparison, value: Box<str> },
    Member { key: Box<str>, negated: bool, values: Box<[Box<str>]> },
    Not(Box<SelectorNode>),
    And(Box<[SelectorNode]>),
    Or(Box<[SelectorNode]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum LabelComparison {
    Equal,
    NotEqual,
    Contains,
    StartsWith,
    EndsWith,
}

impl Selector {
    /// Parses a selector; the empty text means `all()`.
    pub fn parse(text: &str) -> Result<Selector, SelectorParseError> {
        parser::parse(text).map(|node| Selector { node })
    }

    /// Returns the selector `all()`, which matches every object.
    pub fn all() -> Selector {
        Selector { node: SelectorNode::All }
    }

    /// Returns whether the selector matches an object with these labels. Does not allocate.
    pub fn matches<L: LabelLookup + ?Sized>(&self, labels: &L) -> bool {
        self.node.matches(labels)
    }

    /// Returns the same selector with `prefix` prepended to every key. Turns a selector of namespaces into a
    /// selector of endpoints.
    pub fn prefixed(&self, prefix: &str) -> Selector {
        Selector { node: self.node.prefixed(prefix) }
    }

    /// Returns whether the selector is `global()` and nothing else.
    pub fn is_global(&self) -> bool {
        self.node == SelectorNode::Global
    }

    /// Returns whether `global()` occurs anywhere in the selector.
    pub fn uses_global(&self) -> bool {
        self.node.any(&|node| *node == SelectorNode::Global)
    }

    /// Returns the conditions that every matching label set satisfies, for finding candidates in a label
    /// index.
    pub fn requirements(&self) -> LabelConditions<'_> {
        LabelConditions::of(&self.node)
    }
}

impl std::str::FromStr for Selector {
    type Err = SelectorParseError;

    fn from_str(text: &str) -> Result<Selector, SelectorParseError> {
        Selector::parse(text)
    }
}

impl SelectorNode {
    fn negate(self) -> SelectorNode {
        match self {
            SelectorNode::Not(inner) => *inner,
            other => SelectorNode::Not(Box::new(other)),
        }
    }

    fn member(key: &str, negated: bool, mut values: Vec<Box<str>>) -> SelectorNode {
        values.sort_unstable();
        values.dedup();
        SelectorNode::Member { key: key.into(), negated, values: values.into() }
    }

    fn prefixed(&self, prefix: &str) -> SelectorNode {
        match self {
            SelectorNode::All | SelectorNode::Global => self.clone(),
            SelectorNode::Has(key) => SelectorNode::Has([prefix, key].concat().into()),
            SelectorNode::Compare { key, comparison, value } => SelectorNode::Compare {
                key: [prefix, key].concat().into(),
                comparison: *comparison,
                value: value.clone(),
            },
            SelectorNode::Member { key, negated, values } => SelectorNode::Member {
                key: [prefix, key].concat().into(),
                negated: *negated,
                values: values.clone(),
            },
            SelectorNode::Not(inner) => SelectorNode::Not(Box::new(inner.prefixed(prefix))),
            SelectorNode::And(operands) => {
                SelectorNode::And(operands.iter().map(|node| node.prefixed(prefix)).collect())
            }
            SelectorNode::Or(operands) => {
                SelectorNode::Or(operands.iter().map(|node| node.prefixed(prefix)).collect())
            }
        }
    }

    fn any(&self, test: &impl Fn(&SelectorNode) -> bool) -> bool {
        test(self)
            || match self {
                SelectorNode::Not(inner) => inner.any(test),
                SelectorNode::And(operands) | SelectorNode::Or(operands) => {
                    operands.iter().any(|node| node.any(test))
                }
                _ => false,
            }
    }
}

#[cfg(test)]
mod tests;
