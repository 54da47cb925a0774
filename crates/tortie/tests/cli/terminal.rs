//! Long operations print progress on a terminal and nothing in a pipe.

use crate::lab::{CalicoctlLab, LabBackend};
use std::fmt::Write;

#[test]
fn progress_is_for_terminals() {
    let lab = CalicoctlLab::on(LabBackend::Embedded);
    let mut sets = String::new();
    for number in 0..120 {
        writeln!(
            sets,
            "---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\nmetadata: {{name: set-{number}}}"
        )
        .unwrap();
    }
    std::fs::write(lab.work().join("sets.yaml"), sets).unwrap();
    let piped = lab.shell("calicoctl apply -f sets.yaml");
    assert_eq!(piped.out, "Successfully applied 120 'GlobalNetworkSet' resource(s)\n");
    assert_eq!(piped.err, "");
    // `script` runs a command on its own terminal and copies the output.
    let shown = lab.shell("script -qec 'calicoctl apply -f sets.yaml' /dev/null");
    assert!(shown.out.contains("\r\u{1b}[KApplying: 1 of 120 (0 %)"), "{shown:?}");
    assert!(shown.out.contains("Successfully applied 120 'GlobalNetworkSet' resource(s)"), "{shown:?}");
}
