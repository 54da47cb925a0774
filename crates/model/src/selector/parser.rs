//! Parser of the selector language. `||` has the lowest precedence, then `&&`, then `!`.
//!
//! The parser uses an explicit stack, so that a malicious selector cannot overflow the stack of the thread.

use super::lexer::SelectorLexer;
use super::{LabelComparison, SelectorNode};

/// Maximum nesting depth of parentheses, both in the input and in the canonical text, which may contain more
/// of them. A selector of the 1024 characters that the API accepts cannot reach it.
const MAX_PARSER_DEPTH: usize = 1000;

const EXPECTED_ATOM: &str = "a label key, has(), all(), global(), ! or (";

/// Reason why a text is not a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected} at byte {offset}, found {found}")]
pub struct SelectorParseError {
    /// Byte offset in the text.
    pub offset: usize,
    /// Description of the expected token.
    pub expected: String,
    /// The first few characters of the token found instead.
    pub found: String,
}

/// An unclosed parenthesis, or the whole selector.
struct OpenGroup {
    /// Whether it is preceded by an odd number of `!`.
    negated: bool,
    /// Index of the first operand of its alternatives.
    first: usize,
    /// Index of the first operand of the conjunction that is being parsed.
    conjunction: usize,
}

/// A complete node with the nesting depth of `And` and `Or` in it.
struct ParsedOperand {
    node: SelectorNode,
    depth: usize,
}

struct SelectorParser<'a> {
    lexer: SelectorLexer<'a>,
    /// Operands that await their `&&` or `||`; operands of an outer group precede those of an inner one.
    operands: Vec<ParsedOperand>,
    open: Vec<OpenGroup>,
}

pub(super) fn parse(text: &str) -> Result<SelectorNode, SelectorParseError> {
    let mut parser =
        SelectorParser { lexer: SelectorLexer::new(text), operands: Vec::new(), open: Vec::new() };
    if parser.lexer.at_end() {
        return Ok(SelectorNode::All);
    }
    let mut group = OpenGroup { negated: false, first: 0, conjunction: 0 };
    loop {
        let negated = parser.negations();
        if parser.lexer.symbol("(") {
            if parser.open.len() == MAX_PARSER_DEPTH {
                return Err(parser.too_deep());
            }
            parser.open.push(group);
            let start = parser.operands.len();
            group = OpenGroup { negated, first: start, conjunction: start };
            continue;
        }
        let atom = ParsedOperand { node: parser.atom()?, depth: 0 };
        parser.operand(atom, negated);
        while !parser.open.is_empty() && parser.lexer.symbol(")") {
            let inner = parser.close(&group)?;
            parser.operand(inner, group.negated);
            if let Some(outer) = parser.open.pop() {
                group = outer;
            }
        }
        if parser.lexer.symbol("&&") {
            continue;
        }
        if parser.lexer.symbol("||") {
            parser.join(group.conjunction, SelectorNode::And)?;
            group.conjunction = parser.operands.len();
            continue;
        }
        if !parser.open.is_empty() {
            return Err(parser.lexer.unexpected("&&, || or )"));
        }
        if !parser.lexer.at_end() {
            return Err(parser.lexer.unexpected("&&, || or the end"));
        }
        return parser.close(&group).map(|whole| whole.node);
    }
}

impl SelectorParser<'_> {
    fn negations(&mut self) -> bool {
        let mut negated = false;
        while self.lexer.symbol("!") {
            negated = !negated;
        }
        negated
    }

    fn operand(&mut self, ParsedOperand { node, depth }: ParsedOperand, negated: bool) {
        let node = if negated { node.negate() } else { node };
        self.operands.push(ParsedOperand { node, depth });
    }

    /// Replaces the operands from `start` on with a single one.
    fn join(
        &mut self,
        start: usize,
        node: fn(Box<[SelectorNode]>) -> SelectorNode,
    ) -> Result<(), SelectorParseError> {
        if self.operands.len() < start + 2 {
            return Ok(());
        }
        let mut depth = 0;
        let nodes = self.operands.drain(start..).map(|operand| {
            depth = depth.max(operand.depth);
            operand.node
        });
        let node = node(nodes.collect());
        if depth == MAX_PARSER_DEPTH {
            return Err(self.too_deep());
        }
        self.operands.push(ParsedOperand { node, depth: depth + 1 });
        Ok(())
    }

    /// Combines the operands of the group into one and removes it from the stack.
    fn close(&mut self, group: &OpenGroup) -> Result<ParsedOperand, SelectorParseError> {
        self.join(group.conjunction, SelectorNode::And)?;
        self.join(group.first, SelectorNode::Or)?;
        Ok(self.operands.pop().unwrap_or(ParsedOperand { node: SelectorNode::All, depth: 0 }))
    }

    fn too_deep(&mut self) -> SelectorParseError {
        self.lexer.unexpected(&format!("at most {MAX_PARSER_DEPTH} levels of nesting"))
    }

    fn atom(&mut self) -> Result<SelectorNode, SelectorParseError> {
        let lexer = &mut self.lexer;
        if lexer.open_call("has") {
            let key = lexer.key("a label key")?;
            if !lexer.symbol(")") {
                return Err(lexer.unexpected(")"));
            }
            return Ok(SelectorNode::Has(key.into()));
        }
        if lexer.call("all") {
            return Ok(SelectorNode::All);
        }
        if lexer.call("global") {
            return Ok(SelectorNode::Global);
        }
        let key = lexer.key(EXPECTED_ATOM)?;
        if lexer.symbol("==") {
            self.compare(key, LabelComparison::Equal)
        } else if lexer.symbol("!=") {
            self.compare(key, LabelComparison::NotEqual)
        } else if lexer.operator(&["contains"]) {
            self.compare(key, LabelComparison::Contains)
        } else if lexer.operator(&["starts", "with"]) {
            self.compare(key, LabelComparison::StartsWith)
        } else if lexer.operator(&["ends", "with"]) {
            self.compare(key, LabelComparison::EndsWith)
        } else if lexer.operator(&["not", "in"]) {
            self.member(key, true)
        } else if lexer.operator(&["in"]) {
            self.member(key, false)
        } else {
            Err(lexer.unexpected("an operator (==, !=, in, not in, contains, starts with, ends with)"))
        }
    }

    fn compare(
        &mut self,
        key: &str,
        comparison: LabelComparison,
    ) -> Result<SelectorNode, SelectorParseError> {
        let value = self.lexer.literal("a quoted string")?;
        Ok(SelectorNode::Compare { key: key.into(), comparison, value: value.into() })
    }

    fn member(&mut self, key: &str, negated: bool) -> Result<SelectorNode, SelectorParseError> {
        if !self.lexer.symbol("{") {
            return Err(self.lexer.unexpected("a set such as {\"a\", \"b\"}"));
        }
        let mut values = Vec::new();
        while !self.lexer.symbol("}") {
            values.push(self.lexer.literal("a quoted string or }")?.into());
            if self.lexer.symbol(",") {
                continue;
            }
            if !self.lexer.symbol("}") {
                return Err(self.lexer.unexpected(", or }"));
            }
            break;
        }
        Ok(SelectorNode::member(key, negated, values))
    }
}
