//! Suggests a known name for a misspelled one.

/// Returns `" (did you mean web?)"`, or an empty string. Uses the Damerau-Levenshtein distance (a wrong, missing,
/// additional or swapped letter) and allows one edit per three letters.
pub fn suggest_name(name: &str, known: impl Iterator<Item = String>) -> String {
    let rated = known.map(|known| (strsim::damerau_levenshtein(&known, name), known));
    match rated.min() {
        Some((slips, known)) if slips * 3 <= known.len().max(3) => format!(" (did you mean {known}?)"),
        _ => String::new(),
    }
}

#[test]
fn a_slip_is_recognised() {
    let known = || ["node1", "web", "client"].map(str::to_owned).into_iter();
    assert_eq!(suggest_name("clinet", known()), " (did you mean client?)");
    assert_eq!(suggest_name("wbe", known()), " (did you mean web?)");
    assert_eq!(suggest_name("nod1", known()), " (did you mean node1?)");
    assert_eq!(suggest_name("database", known()), "");
}
