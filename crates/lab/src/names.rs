//! What somebody may have meant by a name that nothing has.

/// `" (did you mean web?)"`, or nothing. A slip is a letter that is wrong, missing, too much or in the wrong order; of three
/// letters one may be.
pub fn alike(name: &str, known: impl Iterator<Item = String>) -> String {
    let rated = known.map(|known| (strsim::damerau_levenshtein(&known, name), known));
    match rated.min() {
        Some((slips, known)) if slips * 3 <= known.len().max(3) => format!(" (did you mean {known}?)"),
        _ => String::new(),
    }
}

#[test]
fn a_slip_is_recognised() {
    let known = || ["node1", "web", "client"].map(str::to_owned).into_iter();
    assert_eq!(alike("clinet", known()), " (did you mean client?)");
    assert_eq!(alike("wbe", known()), " (did you mean web?)");
    assert_eq!(alike("nod1", known()), " (did you mean node1?)");
    assert_eq!(alike("database", known()), "");
}
