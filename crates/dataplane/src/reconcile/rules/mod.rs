//! Policy routing rules, which select packets that are routed by a separate table.

mod apply;
#[cfg(test)]
mod tests;

use super::{OperationResult, ReconcileContext, ReconcileOperations, ReconcileStep, Reconciler};
use crate::failure::{AffectedWorkloads, FailureReason, KernelFailure, KernelObject};
use crate::kernel::{KernelSnapshot, RuleEntry};
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::RoutingRule;

#[derive(Debug, Default)]
pub struct RuleReconciler {
    /// The rules in the kernel that may be ours.
    observed: BTreeSet<RuleEntry>,
    /// Whether the rules have to be read again.
    stale: bool,
    /// Rules that have been desired at any time. They count as ours, regardless of which program wrote them.
    ever_desired: BTreeSet<RoutingRule>,
    /// Rules that the kernel rejected.
    errors: BTreeMap<RoutingRule, FailureReason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOperation {
    Add(RuleEntry),
    Delete(RuleEntry),
}

impl RuleReconciler {
    pub fn invalidate(&mut self) {
        self.stale = true;
    }

    pub fn is_stale(&self) -> bool {
        self.stale
    }

    pub fn replace_observed(&mut self, rules: Vec<RuleEntry>) {
        self.observed = rules.into_iter().collect();
        self.stale = false;
    }

    /// Returns the missing rules.
    fn missing(&mut self, context: &ReconcileContext) -> Vec<RuleEntry> {
        let desired = desired_rules(context);
        self.ever_desired.extend(desired.iter().copied());
        let observed: BTreeSet<RoutingRule> = self.observed.iter().map(|entry| entry.rule).collect();
        let protocol = context.own_protocol();
        desired.difference(&observed).map(|rule| RuleEntry { rule: *rule, protocol }).collect()
    }

    /// Returns our rules that are no longer needed.
    fn surplus(&self, context: &ReconcileContext) -> Vec<RuleEntry> {
        if !context.in_sync || !context.settings.program_routes {
            return Vec::new();
        }
        let desired = desired_rules(context);
        let ours = self.observed.iter().filter(|entry| {
            entry.protocol == context.own_protocol() || self.ever_desired.contains(&entry.rule)
        });
        ours.filter(|entry| !desired.contains(&entry.rule)).copied().collect()
    }
}

/// Returns the rules of the plan, unless the settings forbid writing routes.
fn desired_rules(context: &ReconcileContext) -> BTreeSet<RoutingRule> {
    if !context.settings.program_routes {
        return BTreeSet::new();
    }
    let rules = context.plan.routing_rules().iter();
    rules.filter(|rule| rule.is_ipv4 || context.settings.ipv6).copied().collect()
}

impl Reconciler for RuleReconciler {
    fn resync(&mut self, snapshot: &mut KernelSnapshot, _: &ReconcileContext) {
        self.replace_observed(std::mem::take(&mut snapshot.rules));
    }

    fn failures(&self, context: &ReconcileContext) -> Vec<KernelFailure> {
        let errors = self.errors.iter().filter(|(rule, _)| context.plan.routing_rules().contains(rule));
        let failures = errors.map(|(rule, reason)| {
            let object = KernelObject::RoutingRule { priority: rule.priority };
            KernelFailure::new(object, AffectedWorkloads::none(), reason)
        });
        failures.collect()
    }
}

impl ReconcileOperations for RuleReconciler {
    type Operation = RuleOperation;

    fn operations(&mut self, step: ReconcileStep, context: &ReconcileContext) -> Vec<RuleOperation> {
        match step {
            ReconcileStep::Write => self.missing(context).into_iter().map(RuleOperation::Add).collect(),
            ReconcileStep::Remove => self.surplus(context).into_iter().map(RuleOperation::Delete).collect(),
        }
    }

    fn record(&mut self, operation: RuleOperation, result: OperationResult, _: &ReconcileContext) {
        match (operation, result) {
            (RuleOperation::Add(entry), Ok(())) => {
                self.errors.remove(&entry.rule);
                self.observed.insert(entry);
            }
            (RuleOperation::Delete(entry), Ok(())) => {
                self.errors.remove(&entry.rule);
                self.observed.remove(&entry);
            }
            (RuleOperation::Add(entry), Err(error)) => {
                // If the rule exists, the known state of the kernel was wrong.
                self.stale |= error.is_exists();
                self.errors.insert(entry.rule, error.reason());
            }
            (RuleOperation::Delete(entry), Err(error)) => {
                let priority = entry.rule.priority;
                tracing::warn!(priority, reason = %error, "cannot remove a routing rule that is no longer needed; retrying");
            }
        }
    }
}
