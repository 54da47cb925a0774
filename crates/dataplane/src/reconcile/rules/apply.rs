//! Writes routing rules, and removes those that are no longer needed.

use super::super::{KernelHandle, KernelObservation, OperationResult, PerformOperation};
use super::{RuleOperation, RuleReconciler};
use crate::kernel::{RejectionKind, tolerate};

impl PerformOperation for RuleReconciler {
    async fn perform(
        operation: &RuleOperation,
        kernel: &mut KernelHandle,
        _: &mut Vec<KernelObservation>,
    ) -> OperationResult {
        let kernel = &kernel.rtnetlink;
        Ok(match *operation {
            RuleOperation::Add(entry) => kernel.add_rule(entry).await,
            RuleOperation::Delete(entry) => tolerate(RejectionKind::Missing, kernel.delete_rule(entry).await),
        }?)
    }
}
