//! Writes routing rules, and removes those that are no longer needed.

use super::super::{ExecuteOperations, Execution, KernelHandle};
use super::{RuleOperation, RuleReconciler};
use crate::kernel::{RejectionKind, tolerate};

impl ExecuteOperations for RuleReconciler {
    async fn execute(operations: Vec<RuleOperation>, kernel: &mut KernelHandle) -> Execution<RuleOperation> {
        let kernel = &kernel.rtnetlink;
        let mut execution = Execution::default();
        for operation in operations {
            let result = match operation {
                RuleOperation::Add(entry) => kernel.add_rule(entry).await,
                RuleOperation::Delete(entry) => {
                    tolerate(RejectionKind::Missing, kernel.delete_rule(entry).await)
                }
            };
            execution.results.push((operation, result.map_err(Into::into)));
        }
        execution
    }
}
