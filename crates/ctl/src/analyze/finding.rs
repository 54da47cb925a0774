//! One likely mistake, in words.

use serde::Serialize;
use std::fmt::Write;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// As `calicoctl` names it: `NetworkPolicy(shop/web)`.
    pub object: String,
    /// Which check found it.
    pub check: &'static str,
    pub reason: String,
    /// What to do about it.
    pub advice: String,
}

pub fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { object, reason, advice, .. } in findings {
        let _ = writeln!(text, "{object}: {reason}\n  {advice}");
    }
    let _ = match findings.len() {
        0 => writeln!(text, "No mistakes found."),
        1 => writeln!(text, "1 finding."),
        count => writeln!(text, "{count} findings."),
    };
    text
}
