//! Runs the benchmark program from the command line.
#![allow(clippy::unwrap_used)]

use std::process::Command;

#[test]
fn a_suite_that_is_not_there_is_answered_with_those_that_are() {
    let output = Command::new(env!("CARGO_BIN_EXE_tortie-bench")).arg("nothing").output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("tortie-bench: no suite nothing; there are: model, "), "{said}");
    assert!(said.trim_end().ends_with(", api"), "{said}");
}
