//! Reads and writes policy routing rules.

use super::types::RuleEntry;
use super::{KernelRejection, RtnetlinkClient, decode};
use crate::error::{DataplaneResult, kernel_error};
use crate::failure::KernelObject;
use nlink::netlink::rule::RuleBuilder;
use tortie_plan::RoutingRule;

impl RtnetlinkClient {
    /// Returns the rules that have the form of those that we write.
    pub async fn rules(&self) -> DataplaneResult<Vec<RuleEntry>> {
        let messages = self.connection.get_rules().await.map_err(kernel_error("list of routing rules"))?;
        Ok(messages.iter().filter_map(decode::rule).collect())
    }

    pub async fn add_rule(&self, entry: RuleEntry) -> Result<(), KernelRejection> {
        self.faults.check(|| KernelObject::RoutingRule { priority: entry.rule.priority })?;
        Ok(self.connection.add_rule(build_rule(entry.rule).protocol(entry.protocol)).await?)
    }

    pub async fn delete_rule(&self, entry: RuleEntry) -> Result<(), KernelRejection> {
        let rule = build_rule(entry.rule);
        // In a delete request, protocol 0 matches rules of any protocol.
        let rule = if entry.protocol == 0 { rule } else { rule.protocol(entry.protocol) };
        Ok(self.connection.del_rule(rule).await?)
    }
}

/// Creates a rule for packets without the mark.
fn build_rule(rule: RoutingRule) -> RuleBuilder {
    let builder = if rule.is_ipv4 { RuleBuilder::v4() } else { RuleBuilder::v6() };
    builder.priority(rule.priority).invert().fwmark_mask(rule.mark, rule.mark).table(rule.table.0)
}
