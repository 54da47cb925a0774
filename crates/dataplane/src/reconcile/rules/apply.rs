//! Writes routing rules, and removes those that are no longer needed.

use crate::engine::DataplaneEngine;
use crate::kernel::RejectionKind;

impl DataplaneEngine {
    pub(crate) async fn apply_rules(&mut self) {
        for entry in self.core.missing_rules() {
            match self.kernel.add_rule(entry).await {
                Ok(()) => self.core.rule_is(entry, true),
                Err(refusal) => {
                    // The known state of the kernel was wrong: read it again.
                    self.stale.rules |= refusal.kind == RejectionKind::Exists;
                    self.core.rule_failed(entry, refusal.reason);
                }
            }
        }
    }

    pub(crate) async fn remove_rules(&mut self) {
        for entry in self.core.unwanted_rules() {
            match self.kernel.delete_rule(entry).await {
                Ok(()) => self.core.rule_is(entry, false),
                Err(refusal) if refusal.kind == RejectionKind::Missing => self.core.rule_is(entry, false),
                Err(refusal) => {
                    let priority = entry.rule.priority;
                    tracing::warn!(
                        priority,
                        reason = refusal.reason,
                        "cannot remove a routing rule that is no longer needed; will retry"
                    );
                }
            }
        }
    }
}
