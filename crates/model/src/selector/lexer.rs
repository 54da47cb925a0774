//! Lexer of the selector language. Tokens are read on demand, because their meaning depends on the preceding
//! token.

use super::parser::SelectorParseError;

pub(crate) const MAX_KEY_BYTES: usize = 512;
const MAX_SNIPPET_CHARS: usize = 20;

/// A position in the text of a selector.
pub(super) struct SelectorLexer<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> SelectorLexer<'a> {
    pub(super) fn new(text: &'a str) -> SelectorLexer<'a> {
        SelectorLexer { text, offset: 0 }
    }

    /// Returns the remaining text after skipping blanks. Only space and tab separate tokens; a newline is an
    /// error.
    fn rest(&mut self) -> &'a str {
        let rest = self.text.get(self.offset..).unwrap_or_default();
        let trimmed = rest.trim_start_matches(is_blank);
        self.offset += rest.len() - trimmed.len();
        trimmed
    }

    pub(super) fn at_end(&mut self) -> bool {
        self.rest().is_empty()
    }

    /// Consumes a symbol such as `&&` if it comes next.
    pub(super) fn symbol(&mut self, symbol: &str) -> bool {
        let found = self.rest().starts_with(symbol);
        if found {
            self.offset += symbol.len();
        }
        found
    }

    /// Consumes a word operator such as `in`, which must not be the prefix of a longer word. The words of an
    /// operator may be written together: `notin`.
    pub(super) fn operator(&mut self, words: &[&str]) -> bool {
        let mut rest = self.rest();
        for word in words {
            match rest.trim_start_matches(is_blank).strip_prefix(word) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        let found = !rest.starts_with(is_key_char);
        if found {
            self.offset = self.text.len() - rest.len();
        }
        found
    }

    /// Consumes `name()`. The parenthesis must follow the name directly; otherwise the name is a label key.
    pub(super) fn call(&mut self, name: &str) -> bool {
        let start = self.offset;
        if self.open_call(name) && self.symbol(")") {
            return true;
        }
        self.offset = start;
        false
    }

    /// Consumes `name(`.
    pub(super) fn open_call(&mut self, name: &str) -> bool {
        let found = self.rest().strip_prefix(name).is_some_and(|after| after.starts_with('('));
        if found {
            self.offset += name.len() + 1;
        }
        found
    }

    /// Consumes a label key; `expected` describes the alternatives for the error message.
    pub(super) fn key(&mut self, expected: &str) -> Result<&'a str, SelectorParseError> {
        let rest = self.rest();
        let len = rest.find(|c| !is_key_char(c)).unwrap_or(rest.len());
        match rest.get(..len) {
            None | Some("") => Err(self.unexpected(expected)),
            Some(key) if len <= MAX_KEY_BYTES => {
                self.offset += len;
                Ok(key)
            }
            Some(_) => {
                Err(self.unexpected(&format!("a label key of at most {MAX_KEY_BYTES} bytes (it has {len})")))
            }
        }
    }

    /// Consumes a quoted string. There are no escapes: it ends at the next quote of the same kind.
    pub(super) fn literal(&mut self, expected: &str) -> Result<&'a str, SelectorParseError> {
        let rest = self.rest();
        let mut chars = rest.chars();
        let Some(quote @ ('"' | '\'')) = chars.next() else { return Err(self.unexpected(expected)) };
        match chars.as_str().split_once(quote) {
            Some((value, _)) => {
                self.offset += value.len() + 2;
                Ok(value)
            }
            None => {
                let start = self.offset;
                self.offset = self.text.len();
                Err(self.unexpected(&format!("a closing {quote} for the string that starts at byte {start}")))
            }
        }
    }

    /// Returns the error for an unexpected token at the current position.
    pub(super) fn unexpected(&mut self, expected: &str) -> SelectorParseError {
        let rest = self.rest();
        let snippet: String = rest.chars().take(MAX_SNIPPET_CHARS).collect();
        let cut = snippet.len() < rest.len();
        let found = match snippet.as_str() {
            "" => "the end".to_owned(),
            _ => format!("`{}{}`", snippet.escape_debug(), if cut { "..." } else { "" }),
        };
        SelectorParseError { offset: self.offset, expected: expected.to_owned(), found }
    }
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t')
}

fn is_key_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-')
}
