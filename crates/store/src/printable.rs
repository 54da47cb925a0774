//! Escaping of untrusted text for output. Names, labels and messages of objects and clients may contain terminal escape
//! sequences or line breaks.

use std::borrow::Cow;
use std::fmt::Write;

/// Replaces control characters by `\n`, `\t` or `\u001b`, so that text stays on its line and cannot control a terminal.
pub fn escape_controls(text: &str) -> Cow<'_, str> {
    escape_except(text, |_| false)
}

/// Like `escape_controls`, but keeps line breaks and tabs, for text of several lines.
pub fn escape_line_controls(text: &str) -> Cow<'_, str> {
    escape_except(text, |character| matches!(character, '\n' | '\t'))
}

fn escape_except(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(|character: char| character.is_control() && !is_kept(character)) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            _ if !character.is_control() || is_kept(character) => escaped.push(character),
            '\n' => escaped.push_str("\\n"),
            '\t' => escaped.push_str("\\t"),
            // Writing to a string cannot fail.
            _ => drop(write!(escaped, "\\u{:04x}", u32::from(character))),
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_visible() {
        assert!(matches!(escape_controls("größe 猫"), Cow::Borrowed("größe 猫")));
        assert_eq!(
            escape_controls("a\x1b[2J\r\nb\t\x07\x7f\u{9b}1m"),
            "a\\u001b[2J\\u000d\\nb\\t\\u0007\\u007f\\u009b1m"
        );
        assert_eq!(escape_line_controls("a\n\tb\x1b]0;x\x07"), "a\n\tb\\u001b]0;x\\u0007");
    }
}
