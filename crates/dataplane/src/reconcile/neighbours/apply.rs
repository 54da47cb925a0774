//! Writes neighbour entries, and removes those of removed workloads and nodes.

use super::super::{KernelHandle, KernelObservation, OperationResult, PerformOperation};
use super::{NeighbourOperation, NeighbourReconciler};
use crate::kernel::{RejectionKind, tolerate};

impl PerformOperation for NeighbourReconciler {
    async fn perform(
        operation: &NeighbourOperation,
        kernel: &mut KernelHandle,
        _: &mut Vec<KernelObservation>,
    ) -> OperationResult {
        let kernel = &kernel.rtnetlink;
        Ok(match operation {
            NeighbourOperation::Set { key, mac, interface } => {
                kernel.set_neighbour(*key, interface, *mac).await
            }
            NeighbourOperation::Delete(key) => {
                tolerate(RejectionKind::Missing, kernel.delete_neighbour(*key).await)
            }
        }?)
    }
}
