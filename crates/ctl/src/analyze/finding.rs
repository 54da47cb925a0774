//! A likely mistake in the configuration, with a description.

use serde::Serialize;
use std::fmt::Write;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct AnalysisFinding {
    /// The object as `calicoctl` prints it: `NetworkPolicy(shop/web)`.
    pub object: String,
    /// The name of the check.
    pub check: &'static str,
    pub reason: String,
    /// The recommended action.
    pub advice: String,
}

pub fn render(findings: &[AnalysisFinding]) -> String {
    let mut text = String::new();
    for AnalysisFinding { object, reason, advice, .. } in findings {
        let _ = writeln!(text, "{object}: {reason}\n  {advice}");
    }
    let _ = match findings.len() {
        0 => writeln!(text, "No mistakes found."),
        1 => writeln!(text, "1 finding."),
        count => writeln!(text, "{count} findings."),
    };
    text
}
