//! Prints the canonical text of a selector.

use super::{Comparison, Node, Selector};
use std::fmt::{self, Display, Formatter};

impl Display for Selector {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.node.fmt(f)
    }
}

impl Display for Node {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Node::All => f.write_str("all()"),
            Node::Global => f.write_str("global()"),
            Node::Has(key) => write!(f, "has({key})"),
            Node::Compare { key, comparison, value } => write!(f, "{key} {comparison} {}", Quoted(value)),
            Node::Member { key, negated, values } => {
                write!(f, "{key} {} {{", if *negated { "not in" } else { "in" })?;
                join(f, values.iter().map(|value| Quoted(value)), ", ")?;
                f.write_str("}")
            }
            Node::Not(inner) => write!(f, "!{inner}"),
            Node::And(operands) => group(f, operands, " && "),
            Node::Or(operands) => group(f, operands, " || "),
        }
    }
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Comparison::Equal => "==",
            Comparison::NotEqual => "!=",
            Comparison::Contains => "contains",
            Comparison::StartsWith => "starts with",
            Comparison::EndsWith => "ends with",
        })
    }
}

struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let quote = if self.0.contains('"') { '\'' } else { '"' };
        write!(f, "{quote}{}{quote}", self.0)
    }
}

fn group(f: &mut Formatter<'_>, operands: &[Node], separator: &str) -> fmt::Result {
    f.write_str("(")?;
    join(f, operands, separator)?;
    f.write_str(")")
}

fn join<T: Display>(
    f: &mut Formatter<'_>,
    items: impl IntoIterator<Item = T>,
    separator: &str,
) -> fmt::Result {
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            f.write_str(separator)?;
        }
        item.fmt(f)?;
    }
    Ok(())
}
