//! Prints the canonical text of a selector.

use super::{LabelComparison, Selector, SelectorNode};
use std::fmt::{self, Display, Formatter};

impl Display for Selector {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.node.fmt(f)
    }
}

impl Display for SelectorNode {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            SelectorNode::All => f.write_str("all()"),
            SelectorNode::Global => f.write_str("global()"),
            SelectorNode::Has(key) => write!(f, "has({key})"),
            SelectorNode::Compare { key, comparison, value } => {
                write!(f, "{key} {comparison} {}", QuotedValue(value))
            }
            SelectorNode::Member { key, negated, values } => {
                write!(f, "{key} {} {{", if *negated { "not in" } else { "in" })?;
                join(f, values.iter().map(|value| QuotedValue(value)), ", ")?;
                f.write_str("}")
            }
            SelectorNode::Not(inner) => write!(f, "!{inner}"),
            SelectorNode::And(operands) => group(f, operands, " && "),
            SelectorNode::Or(operands) => group(f, operands, " || "),
        }
    }
}

impl Display for LabelComparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LabelComparison::Equal => "==",
            LabelComparison::NotEqual => "!=",
            LabelComparison::Contains => "contains",
            LabelComparison::StartsWith => "starts with",
            LabelComparison::EndsWith => "ends with",
        })
    }
}

struct QuotedValue<'a>(&'a str);

impl Display for QuotedValue<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let quote = if self.0.contains('"') { '\'' } else { '"' };
        write!(f, "{quote}{}{quote}", self.0)
    }
}

fn group(f: &mut Formatter<'_>, operands: &[SelectorNode], separator: &str) -> fmt::Result {
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
