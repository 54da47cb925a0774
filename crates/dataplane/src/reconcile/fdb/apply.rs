//! Writes forwarding entries, and removes those of removed nodes.

use super::super::{ExecuteOperations, Execution, KernelHandle};
use super::{FdbOperation, FdbReconciler};
use crate::kernel::{RejectionKind, tolerate};

impl ExecuteOperations for FdbReconciler {
    async fn execute(operations: Vec<FdbOperation>, kernel: &mut KernelHandle) -> Execution<FdbOperation> {
        let kernel = &kernel.rtnetlink;
        let mut execution = Execution::default();
        for operation in operations {
            let result = match &operation {
                FdbOperation::Set { key, node, interface } => {
                    kernel.set_forwarding_entry(*key, interface, *node).await
                }
                // If the MAC has another node now, the new entry has replaced this one.
                FdbOperation::Delete { key, node } => {
                    tolerate(RejectionKind::Missing, kernel.delete_forwarding_entry(*key, *node).await)
                }
            };
            execution.results.push((operation, result.map_err(Into::into)));
        }
        execution
    }
}
