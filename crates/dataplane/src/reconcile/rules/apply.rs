//! Writes rules, and removes those that are not wanted any more.

use crate::engine::Engine;
use crate::kernel::RefusalKind;

impl Engine {
    pub(crate) async fn apply_rules(&mut self) {
        for entry in self.core.missing_rules() {
            match self.kernel.add_rule(entry).await {
                Ok(()) => self.core.rule_is(entry, true),
                Err(refusal) => {
                    // Our picture of the kernel was wrong: look again.
                    self.stale.rules |= refusal.kind == RefusalKind::Exists;
                    self.core.rule_failed(entry, refusal.reason);
                }
            }
        }
    }

    pub(crate) async fn remove_rules(&mut self) {
        for entry in self.core.unwanted_rules() {
            match self.kernel.delete_rule(entry).await {
                Ok(()) => self.core.rule_is(entry, false),
                Err(refusal) if refusal.kind == RefusalKind::Missing => self.core.rule_is(entry, false),
                Err(refusal) => {
                    let priority = entry.rule.priority;
                    tracing::warn!(
                        priority,
                        reason = refusal.reason,
                        "a routing rule that is not needed is not removed; will try again"
                    );
                }
            }
        }
    }
}
