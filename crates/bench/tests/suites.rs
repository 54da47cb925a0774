//! Runs the benchmark program from the command line.
#![allow(clippy::unwrap_used)]

use std::process::Command;

#[test]
fn an_unknown_suite_lists_the_known_ones() {
    let output = Command::new(env!("CARGO_BIN_EXE_tortie-bench")).arg("nothing").output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("tortie-bench: no suite nothing; there are: model, "), "{said}");
    assert!(said.trim_end().ends_with(", api"), "{said}");
}
