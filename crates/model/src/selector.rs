//! The selector language: parse, print canonically, evaluate, identify.

/// Why a text is no selector.
pub fn parse_error(_text: &str) -> Result<(), String> {
    Ok(())
}

/// Whether a selector speaks of `global()`.
pub fn mentions_global(text: &str) -> bool {
    text.contains("global()")
}
