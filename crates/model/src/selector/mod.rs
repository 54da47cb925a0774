//! The selector language: parsing, canonical printing, evaluation and identifiers.
//!
//! A selector is an expression over labels such as `role == "db" && !has(legacy)`. Its canonical text is its
//! identity: two selectors are equal exactly when their canonical texts are equal.

mod eval;
mod id;
mod lexer;
mod parser;
mod print;
mod requirements;
pub mod rewrite;

pub use eval::Labels;
pub use id::{named_port_id, service_id, service_ip_id};
pub(crate) use lexer::MAX_KEY_LEN;
pub use parser::ParseError;
pub use requirements::{Requirement, Requirements};

/// Maximum nesting depth of parentheses that validation accepts, including those of `has()`. The patterns in
/// the CRD schemas support the same depth.
pub(crate) const MAX_NESTING: usize = 32;

/// Returns the nesting depth of parentheses in the text of a selector.
pub(crate) fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest, mut quote) = (0usize, 0, None);
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
    node: Node,
}

/// Node of the syntax tree. Kept in normal form: no double negation, `And` and `Or` have at least two
/// operands, sets are sorted and free of duplicates, no value contains both kinds of quotes. The parser
/// bounds the nesting, so that recursion over nodes is safe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Node {
    All,
    Global,
    Has(Box<str>),
    Compare { key: Box<str>, comparison: Comparison, value: Box<str> },
    Member { key: Box<str>, negated: bool, values: Box<[Box<str>]> },
    Not(Box<Node>),
    And(Box<[Node]>),
    Or(Box<[Node]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Comparison {
    Equal,
    NotEqual,
    Contains,
    StartsWith,
    EndsWith,
}

impl Selector {
    /// Parses a selector; the empty text means `all()`.
    pub fn parse(text: &str) -> Result<Selector, ParseError> {
        parser::parse(text).map(|node| Selector { node })
    }

    /// Returns the selector `all()`, which matches every object.
    pub fn all() -> Selector {
        Selector { node: Node::All }
    }

    /// Returns whether the selector matches an object with these labels. Does not allocate.
    pub fn matches<L: Labels + ?Sized>(&self, labels: &L) -> bool {
        self.node.matches(labels)
    }

    /// Returns the same selector with `prefix` prepended to every key. Turns a selector of namespaces into a
    /// selector of endpoints.
    pub fn prefixed(&self, prefix: &str) -> Selector {
        Selector { node: self.node.prefixed(prefix) }
    }

    /// Returns whether the selector is `global()` and nothing else.
    pub fn is_global(&self) -> bool {
        self.node == Node::Global
    }

    /// Returns whether `global()` occurs anywhere in the selector.
    pub fn uses_global(&self) -> bool {
        self.node.any(&|node| *node == Node::Global)
    }

    /// Returns the conditions that every matching label set satisfies, for finding candidates in a label
    /// index.
    pub fn requirements(&self) -> Requirements<'_> {
        Requirements::of(&self.node)
    }
}

impl std::str::FromStr for Selector {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Selector, ParseError> {
        Selector::parse(text)
    }
}

impl Node {
    fn negate(self) -> Node {
        match self {
            Node::Not(inner) => *inner,
            other => Node::Not(Box::new(other)),
        }
    }

    fn member(key: &str, negated: bool, mut values: Vec<Box<str>>) -> Node {
        values.sort_unstable();
        values.dedup();
        Node::Member { key: key.into(), negated, values: values.into() }
    }

    fn prefixed(&self, prefix: &str) -> Node {
        let longer = |key: &str| [prefix, key].concat().into_boxed_str();
        let each = |nodes: &[Node]| nodes.iter().map(|node| node.prefixed(prefix)).collect();
        match self {
            Node::All => Node::All,
            Node::Global => Node::Global,
            Node::Has(key) => Node::Has(longer(key)),
            Node::Compare { key, comparison, value } => {
                Node::Compare { key: longer(key), comparison: *comparison, value: value.clone() }
            }
            Node::Member { key, negated, values } => {
                Node::Member { key: longer(key), negated: *negated, values: values.clone() }
            }
            Node::Not(inner) => Node::Not(Box::new(inner.prefixed(prefix))),
            Node::And(operands) => Node::And(each(operands)),
            Node::Or(operands) => Node::Or(each(operands)),
        }
    }

    fn any(&self, test: &impl Fn(&Node) -> bool) -> bool {
        test(self)
            || match self {
                Node::Not(inner) => inner.any(test),
                Node::And(operands) | Node::Or(operands) => operands.iter().any(|node| node.any(test)),
                _ => false,
            }
    }
}

#[cfg(test)]
mod tests;
