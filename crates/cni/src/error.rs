//! Errors in the JSON form of the CNI specification.

use std::fmt::Write;

/// CNI error codes. The specification defines the codes below 100; plugins choose their own from 100 on.
pub mod code {
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    pub const UNSUPPORTED: u32 = 2;
    pub const UNKNOWN_CONTAINER: u32 = 3;
    pub const ENVIRONMENT: u32 = 4;
    pub const IO: u32 = 5;
    pub const DECODE: u32 = 6;
    pub const NETWORK_CONFIG: u32 = 7;
    pub const SAME_NAMESPACE: u32 = 8;
    pub const TRY_AGAIN: u32 = 11;
    pub const NOT_AVAILABLE: u32 = 50;
    pub const CONNECTION_TEST: u32 = 100;
    pub const FAILED: u32 = 999;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniError {
    pub code: u32,
    pub message: String,
    pub details: String,
}

impl CniError {
    pub fn new(code: u32, message: impl Into<String>) -> CniError {
        CniError { code, message: message.into(), details: String::new() }
    }

    pub fn with(mut self, details: impl Into<String>) -> CniError {
        self.details = details.into();
        self
    }

    pub fn to_json(&self) -> String {
        let mut text =
            format!("{{\n    \"code\": {},\n    \"msg\": {}", self.code, quote_json(&self.message));
        if !self.details.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(text, ",\n    \"details\": {}", quote_json(&self.details));
        }
        text + "\n}"
    }
}

impl std::fmt::Display for CniError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        if self.details.is_empty() { Ok(()) } else { write!(f, ": {}", self.details) }
    }
}

impl std::error::Error for CniError {}

/// Returns the text as a quoted and escaped JSON string.
pub(crate) fn quote_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_json_whatever_they_say() {
        let error = CniError::new(code::TRY_AGAIN, "a \"b\"\n\u{1}\\").with("c");
        assert_eq!(
            error.to_json(),
            "{\n    \"code\": 11,\n    \"msg\": \"a \\\"b\\\"\\n\\u0001\\\\\",\n    \"details\": \"c\"\n}"
        );
        assert!(!CniError::new(1, "x").to_json().contains("details"));
    }
}
