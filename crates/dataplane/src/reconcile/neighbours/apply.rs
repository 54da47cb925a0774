//! Writes neighbour entries, and removes those of removed workloads and nodes.

use super::super::{ExecuteOperations, Execution, KernelHandle};
use super::{NeighbourOperation, NeighbourReconciler};
use crate::kernel::{RejectionKind, tolerate};

impl ExecuteOperations for NeighbourReconciler {
    async fn execute(
        operations: Vec<NeighbourOperation>,
        kernel: &mut KernelHandle,
    ) -> Execution<NeighbourOperation> {
        let kernel = &kernel.rtnetlink;
        let mut execution = Execution::default();
        for operation in operations {
            let result = match &operation {
                NeighbourOperation::Set { key, mac, interface } => {
                    kernel.set_neighbour(*key, interface, *mac).await
                }
                NeighbourOperation::Delete(key) => {
                    tolerate(RejectionKind::Missing, kernel.delete_neighbour(*key).await)
                }
            };
            execution.results.push((operation, result.map_err(Into::into)));
        }
        execution
    }
}
