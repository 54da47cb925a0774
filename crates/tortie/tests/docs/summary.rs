//! Checks that the table of contents of the site lists every page.

use crate::links::{normal, targets};
use crate::{pages, read};
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn every_page_is_in_the_table_of_contents() {
    let listed: Vec<String> = targets(&read("docs/SUMMARY.md"))
        .iter()
        .map(|target| normal(&Path::new("docs").join(target)).display().to_string())
        .collect();
    let unique: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(unique.len(), listed.len(), "docs/SUMMARY.md lists a page twice: {listed:?}");
    let missing: Vec<String> = pages()
        .into_iter()
        .filter(|page| page.starts_with("docs/") && page != "docs/SUMMARY.md" && !unique.contains(page))
        .collect();
    assert!(missing.is_empty(), "add a line to docs/SUMMARY.md for each of\n{}", missing.join("\n"));
}
