//! Runs the benchmark program from the command line.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

#[test]
fn an_unknown_suite_lists_the_known_ones() {
    let output = Command::new(env!("CARGO_BIN_EXE_tortie-bench")).arg("nothing").output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("tortie-bench: no suite nothing; there are: model, "), "{said}");
    assert!(said.trim_end().ends_with(", flows"), "{said}");
}

fn write_run(path: &Path, time: &str) {
    let run = format!(
        r#"{{"format":1,"suites":[{{"name":"store","seconds":1,
        "conditions":{{"load":[0,0],"steal_percent":0,"loop_milliseconds":[1,1],"loop_spread_percent":1}},
        "tables":[{{"title":"Puts","columns":["clients","ours"],"rows":[["64","{time}"]]}}]}}]}}"#
    );
    std::fs::write(path, run).unwrap();
}

#[test]
fn compare_fails_if_a_figure_became_worse() {
    let directory = tempfile::tempdir().unwrap();
    let (before, after) = (directory.path().join("before.json"), directory.path().join("after.json"));
    write_run(&before, "1.00 ms");
    write_run(&after, "1.50 ms");
    let compare = |first: &Path, second: &Path| {
        Command::new(env!("CARGO_BIN_EXE_tortie-bench"))
            .arg("compare")
            .arg(first)
            .arg(second)
            .output()
            .unwrap()
    };
    let worse = compare(&before, &after);
    let text = String::from_utf8_lossy(&worse.stdout);
    assert_eq!(worse.status.code(), Some(1), "{text}");
    assert!(text.contains("1 of 1 figures are worse by 3 % or more"), "{text}");
    assert!(text.contains("| store | Puts"), "{text}");
    assert_eq!(compare(&after, &before).status.code(), Some(0));
    let unreadable = compare(&before, &directory.path().join("none.json"));
    assert_eq!(unreadable.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unreadable.stderr).contains("none.json"));
}
