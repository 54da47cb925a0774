//! Prints YAML the way Go's YAML library does: keys sorted, lists at the indentation of their key, and
//! strings quoted wherever a YAML 1.1 or 1.2 parser would read them as another type.

use serde_json::{Map, Value};
use std::fmt::Write;

/// Renders a value as a YAML document with sorted keys and a final newline.
pub fn to_yaml(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(fields) if !fields.is_empty() => mapping(&mut out, fields, 0),
        Value::Array(items) if !items.is_empty() => sequence(&mut out, items, 0),
        scalar => {
            inline(&mut out, scalar, 0);
            out.push('\n');
        }
    }
    out
}

fn indent(out: &mut String, depth: usize) {
    out.extend(std::iter::repeat_n("  ", depth));
}

/// Writes the fields of a mapping: the first at the cursor, each of the others on a new line at `depth`.
fn mapping(out: &mut String, fields: &Map<String, Value>, depth: usize) {
    let mut sorted: Vec<(&String, &Value)> = fields.iter().collect();
    sorted.sort_by_key(|(key, _)| key.as_str());
    for (position, (key, value)) in sorted.into_iter().enumerate() {
        if position > 0 {
            indent(out, depth);
        }
        key_text(out, key, depth);
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                out.push('\n');
                indent(out, depth + 1);
                mapping(out, fields, depth + 1);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                indent(out, depth);
                sequence(out, items, depth);
            }
            scalar => {
                out.push(' ');
                inline(out, scalar, depth + 1);
                out.push('\n');
            }
        }
    }
}

fn sequence(out: &mut String, items: &[Value], depth: usize) {
    for (position, item) in items.iter().enumerate() {
        if position > 0 {
            indent(out, depth);
        }
        out.push_str("- ");
        match item {
            Value::Object(fields) if !fields.is_empty() => mapping(out, fields, depth + 1),
            Value::Array(items) if !items.is_empty() => sequence(out, items, depth + 1),
            scalar => {
                inline(out, scalar, depth + 1);
                out.push('\n');
            }
        }
    }
}

/// Maximum length of an implicit key. Longer keys need the explicit form with `?`.
const MAX_SIMPLE_KEY_BYTES: usize = 128;

fn key_text(out: &mut String, key: &str, depth: usize) {
    let mut text = String::new();
    if key.contains('\n') || needs_escapes(key) {
        double_quoted(&mut text, key)
    } else {
        one_line(&mut text, key)
    };
    if text.len() > MAX_SIMPLE_KEY_BYTES {
        let _ = writeln!(out, "? {text}");
        indent(out, depth);
    } else {
        out.push_str(&text);
    }
    out.push(':');
}

/// Writes a scalar or an empty collection; `depth` is the indentation of the lines of a block scalar.
fn inline(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::String(text) if fits_block(text) => block(out, text, depth),
        Value::String(text) if text.contains('\n') || needs_escapes(text) => double_quoted(out, text),
        Value::String(text) => one_line(out, text),
        Value::Array(_) => out.push_str("[]"),
        Value::Object(_) => out.push_str("{}"),
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

/// Returns whether a literal block scalar reproduces this multi-line text exactly.
fn fits_block(text: &str) -> bool {
    text.contains('\n')
        && !needs_escapes(text)
        && !text.starts_with([' ', '\n', '\t'])
        && !text.ends_with("\n\n")
        && text.trim_end_matches('\n').lines().all(|line| !line.ends_with([' ', '\t']))
}

fn block(out: &mut String, text: &str, depth: usize) {
    out.push_str(if text.ends_with('\n') { "|" } else { "|-" });
    for line in text.lines() {
        out.push('\n');
        if !line.is_empty() {
            indent(out, depth.max(1));
            out.push_str(line);
        }
    }
}

/// Returns whether the text contains characters that only a double-quoted scalar can represent.
fn needs_escapes(text: &str) -> bool {
    text.chars().any(|c| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
    })
}

fn double_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\0' => out.push_str("\\0"),
            c if needs_escapes(c.encode_utf8(&mut [0; 4])) => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn one_line(out: &mut String, text: &str) {
    if text.is_empty() || reads_as_something_else(text) {
        double_quoted(out, text);
    } else if is_plain(text) {
        out.push_str(text);
    } else {
        let _ = write!(out, "'{}'", text.replace('\'', "''"));
    }
}

/// Returns whether the text is valid as a plain scalar, in both block and flow context.
fn is_plain(text: &str) -> bool {
    const INDICATORS: &[char] = &[
        '-', '?', ':', ',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '\'', '"', '%', '@', '`', ' ',
        '=', '<',
    ];
    !text.starts_with(INDICATORS)
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        && !text.contains(['[', ']', '{', '}', ','])
        && !text.starts_with("...")
}

/// Returns whether any YAML version reads the unquoted text as null, a boolean, a number or a date.
fn reads_as_something_else(text: &str) -> bool {
    const WORDS: &[&str] =
        &["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nil", "~", "<<", "="];
    if WORDS.iter().any(|word| word.eq_ignore_ascii_case(text)) {
        return true;
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = unsigned.to_ascii_lowercase();
    if matches!(lower.as_str(), ".inf" | ".nan" | "inf" | "nan" | "infinity") {
        return true;
    }
    let first = unsigned.strip_prefix('.').unwrap_or(unsigned);
    // Numbers in any base, with exponents, separators or sexagesimal parts, dates and times all begin with a
    // digit and use only the characters below. An address such as 10.0.0.0/8 contains a character that none
    // of them uses.
    first.starts_with(|c: char| c.is_ascii_digit())
        && (lower.starts_with("0x") && lower[2..].bytes().all(|b| b.is_ascii_hexdigit() || b == b'_')
            || lower.bytes().all(|b| {
                b.is_ascii_digit()
                    || matches!(b, b'e' | b'o' | b'b' | b'_' | b'.' | b':' | b'-' | b'+' | b't' | b'z' | b' ')
            }) && !is_address_like(unsigned))
}

/// Returns whether the text consists of digits and more than one dot. No number has more than one dot.
fn is_address_like(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text.bytes().filter(|b| *b == b'.').count() > 1
}
