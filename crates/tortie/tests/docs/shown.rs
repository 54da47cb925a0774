//! Compares the output of a command with the output that the page shows.

use regex::Regex;

/// Returns whether the output matches: a line `...` matches any lines, `[...]` any text within a line. The amount of
/// space between words depends on the length of addresses and is not compared.
pub fn matches(shown: &[String], printed: &str) -> bool {
    let patterns: Vec<Option<Regex>> = trimmed(shown.iter().map(String::as_str))
        .into_iter()
        .map(|line| (line != "...").then(|| pattern(&line)))
        .collect();
    from_here(&patterns, &trimmed(printed.lines()))
}

fn from_here(patterns: &[Option<Regex>], lines: &[String]) -> bool {
    match patterns.split_first() {
        None => lines.is_empty(),
        Some((Some(pattern), rest)) => {
            lines.split_first().is_some_and(|(line, more)| pattern.is_match(line) && from_here(rest, more))
        }
        Some((None, rest)) => (0..=lines.len()).any(|skipped| from_here(rest, &lines[skipped..])),
    }
}

fn pattern(line: &str) -> Regex {
    let text = regex::escape(line).replace(r"\[\.\.\.\]", ".*");
    Regex::new(&format!("^{text}$")).unwrap()
}

/// Removes empty lines at both ends and reduces whitespace between words to one space.
fn trimmed<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut lines: Vec<String> =
        lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    let first = lines.iter().position(|line| !line.is_empty()).unwrap_or(lines.len());
    lines.split_off(first)
}

#[test]
fn what_may_differ_and_what_may_not() {
    let shown = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(matches(&shown("NAME  CIDR\npods [...]/26\n"), "\nNAME   CIDR\npods   10.0.0.0/26\n"));
    assert!(!matches(&shown("pods [...]/26"), "pods 10.0.0.0/25"));
    assert!(matches(&shown("a\n...\nz"), "a\nb\nc\nz"));
    assert!(matches(&shown("a\n...\nz"), "a\nz"));
    assert!(!matches(&shown("a\n...\nz"), "a\nb"));
    assert!(!matches(&shown("a"), "a\nb"));
    assert!(matches(&shown("(1+1).* [x]"), "(1+1).* [x]"));
}
