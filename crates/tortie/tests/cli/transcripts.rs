//! The command line as users see it: each file under transcripts/ is a session on a fresh datastore, run for real and
//! compared word for word, on etcd and on the embedded datastore.
//!
//! A line `$ command` is run in a shell, with `> ` continuing it; the lines after it are its standard output, then
//! its standard error with `! ` before each line, then `[exit N]` unless it succeeded. A line that ends in spaces is
//! shown with a bar after them. Identifiers, times, revisions and paths differ from run to run and are replaced by
//! placeholders.
//!
//! TRANSCRIPTS=write cargo test -p tortie --test cli writes the actual output into the files, to be reviewed and
//! committed.

use crate::lab::{CalicoctlLab, LabBackend, repository, strangers};
use regex::Regex;
use std::fmt::Write;
use std::path::Path;

macro_rules! transcripts {
    ($($module:ident($folder:literal) { $($name:ident)* })*) => {
        mod etcd {
            $(mod $module { $(#[test] fn $name() {
                crate::transcripts::replay($folder, stringify!($name), crate::lab::LabBackend::Etcd);
            })* })*
        }
        mod embedded {
            $(mod $module { $(#[test] fn $name() {
                crate::transcripts::replay($folder, stringify!($name), crate::lab::LabBackend::Embedded);
            })* })*
        }
        const TOLD: &[(&str, &str)] = &[$($(($folder, stringify!($name)),)*)*];
    };
}

transcripts! {
    sessions("") {
        input
        namespaces
        verbs
        results
        tables
        formats
        patch
        label
        validate
        connection
        permissions
        versions
        migration
        policy_names
        ipam
        arguments
        explain
        explain_http
        diff
    }
    bad_input("bad_input/") {
        malformed_yaml
        unknown_kind
        wrong_types
        huge_document
        duplicate_keys
        invalid_selector
        overlapping_pools
        names_against_the_rules
        conflicting_revisions
        endpoint_down
        store_answers_garbage
    }
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transcripts"))
}

#[test]
fn every_transcript_is_run() {
    for (sub, _) in TOLD.iter().filter(|(_, name)| *name == "input" || *name == "malformed_yaml") {
        for entry in std::fs::read_dir(folder().join(sub)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if let Some(name) = name.strip_suffix(".txt") {
                assert!(TOLD.contains(&(sub, name)), "{sub}{name}.txt is not run by any test");
            }
        }
    }
}

#[test]
fn examples_in_the_docs_are_what_was_printed() {
    let said = ["explain", "diff"]
        .map(|name| std::fs::read_to_string(folder().join(format!("{name}.txt"))).unwrap());
    let page = std::fs::read_to_string(repository().join("docs/policy.md")).unwrap();
    let examples: Vec<&str> =
        page.split("```console\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();
    assert!(examples.len() > 3);
    for example in examples {
        assert!(said.iter().any(|text| text.contains(example)), "no transcript has this:\n{example}");
    }
}

fn replay(sub: &str, name: &str, backend: LabBackend) {
    let file = folder().join(format!("{sub}{name}.txt"));
    let expected = std::fs::read_to_string(&file).unwrap();
    let lab = CalicoctlLab::on(backend);
    let mut actual = String::new();
    for step in steps(&expected) {
        match step {
            TranscriptStep::Comment(line) => writeln!(actual, "{line}").unwrap(),
            TranscriptStep::Command(lines) => {
                for (first, line) in lines.iter().enumerate() {
                    writeln!(actual, "{} {line}", if first == 0 { "$" } else { ">" }).unwrap();
                }
                let ran = lab.shell(&lines.join("\n"));
                for line in normalise(&ran.out, &lab).lines() {
                    writeln!(actual, "{}", visible(line)).unwrap();
                }
                for line in normalise(&ran.err, &lab).lines() {
                    writeln!(actual, "{}", visible(&format!("! {line}"))).unwrap();
                }
                if ran.code != Some(0) {
                    writeln!(actual, "[exit {}]", ran.code.unwrap_or(-1)).unwrap();
                }
                actual.push('\n');
            }
        }
    }
    if std::env::var("TRANSCRIPTS").is_ok_and(|v| v == "write") {
        std::fs::write(&file, actual).unwrap();
    } else if actual != expected {
        panic!("{name} went otherwise on {backend:?}:\n{}", difference(&expected, &actual));
    }
}

enum TranscriptStep<'a> {
    Comment(&'a str),
    Command(Vec<&'a str>),
}

/// Returns the commands of a transcript and the comments before them, without the output.
fn steps(text: &str) -> Vec<TranscriptStep<'_>> {
    let mut steps = Vec::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(TranscriptStep::Command(vec![command]));
        } else if let Some(TranscriptStep::Command(lines)) = steps.last_mut()
            && let Some(more) = line.strip_prefix('>')
        {
            lines.push(more.strip_prefix(' ').unwrap_or(more));
        } else if line.starts_with("# ") {
            steps.push(TranscriptStep::Comment(line));
        }
    }
    steps
}

fn visible(line: &str) -> String {
    if line.ends_with(' ') { format!("{line}|") } else { line.to_owned() }
}

fn normalise(text: &str, lab: &CalicoctlLab) -> String {
    let mut text = text
        .replace(&lab.endpoint(), "http://ENDPOINT")
        .replace(lab.endpoint().trim_start_matches("http://"), "ENDPOINT")
        .replace(&strangers().silent, "http://SILENT")
        .replace(&strangers().other, "http://OTHER")
        .replace(&lab.work().display().to_string(), "WORK");
    for (pattern, name) in [
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
        // YAML quotes a UID that could be parsed as another type.
        (r#"uid: "UID""#, "uid: UID"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME"),
        (r#"(resourceVersion"?: )"\d+""#, "${1}\"REVISION\""),
        // As wide as the value that it replaces, so that tables stay aligned.
        (r"\b[0-9a-f]{32}\b", "GUID----------------------------"),
        (r"(Git commit: +)\S+", "${1}COMMIT"),
    ] {
        text = Regex::new(pattern).unwrap().replace_all(&text, name).into_owned();
    }
    text
}

/// Formats the lines that differ between the expected and the actual output.
fn difference(expected: &str, actual: &str) -> String {
    let (expected, actual): (Vec<_>, Vec<_>) = (expected.lines().collect(), actual.lines().collect());
    let same = expected.iter().zip(&actual).take_while(|(a, b)| a == b).count();
    let tail =
        expected[same..].iter().rev().zip(actual[same..].iter().rev()).take_while(|(a, b)| a == b).count();
    let mut text = format!("from line {}:\n", same + 1);
    for line in &expected[same..expected.len() - tail] {
        writeln!(text, "- {line}").unwrap();
    }
    for line in &actual[same..actual.len() - tail] {
        writeln!(text, "+ {line}").unwrap();
    }
    text
}
