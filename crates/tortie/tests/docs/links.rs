//! Checks that links between pages point to an existing file and heading.

use crate::{pages, read, repository};
use regex::Regex;
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// Returns the text of a page without code blocks and inline code.
fn prose(page: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for line in page.lines() {
        match line.trim_start().starts_with("```") {
            true => inside = !inside,
            false if !inside => {
                text += line;
                text.push('\n');
            }
            false => {}
        }
    }
    let code = Regex::new("`[^`\n]*`").unwrap();
    let headings = text.lines().map(|line| match line.starts_with('#') {
        // Code in a heading is part of its anchor.
        true => line.to_owned(),
        false => code.replace_all(line, "``").into_owned(),
    });
    headings.collect::<Vec<_>>().join("\n")
}

/// Returns the anchors of a page, as GitHub and mdBook derive them from headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in prose(page).lines().filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let name: String = heading
            .chars()
            .filter(|letter| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter))
            .map(|letter| if letter == ' ' { '-' } else { letter })
            .collect();
        let mut unique = name.clone();
        let mut number = 1;
        while !found.insert(unique.clone()) {
            unique = format!("{name}-{number}");
            number += 1;
        }
    }
    found
}

pub fn targets(page: &str) -> Vec<String> {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    link.captures_iter(&prose(page)).map(|found| found[1].to_owned()).collect()
}

/// Resolves `..`: `docs/how-to/../lab.md` becomes `docs/lab.md`.
pub fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            part => normal.push(part),
        }
    }
    normal
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    let mut checked = 0;
    for page in pages().into_iter().chain(["CHANGELOG.md".to_owned()]) {
        for target in targets(&read(&page)) {
            if target.starts_with("https://") || target.starts_with("http://") {
                continue;
            }
            checked += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = match file {
                "" => PathBuf::from(&page),
                file => normal(&Path::new(&page).parent().unwrap().join(file)),
            };
            if page.starts_with("docs/") && !path.starts_with("docs") {
                broken.push(format!("{page}: {target}: {} is not part of the site", path.display()));
            } else if !repository().join(&path).exists() {
                broken.push(format!("{page}: {target}: there is no {}", path.display()));
            } else if !anchor.is_empty() && !anchors(&read(&path.display().to_string())).contains(anchor) {
                broken.push(format!("{page}: {target}: {} has no such heading", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(checked > 50, "only {checked} links were found");
}

#[test]
fn headings_and_links_are_found() {
    let page = "# The `tortie up` page\n\n## What's new?\n\n## What's new?\n[a](b.md#c) `[no](link)`\n```\n# none\n```\n";
    let names: Vec<String> = anchors(page).into_iter().collect();
    assert_eq!(names, ["the-tortie-up-page", "whats-new", "whats-new-1"]);
    assert_eq!(targets(page), ["b.md#c"]);
}
