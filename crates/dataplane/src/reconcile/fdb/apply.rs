//! Writes forwarding entries, and removes those of removed nodes.

use super::super::{KernelHandle, KernelObservation, OperationResult, PerformOperation};
use super::{FdbOperation, FdbReconciler};
use crate::kernel::{RejectionKind, tolerate};

impl PerformOperation for FdbReconciler {
    async fn perform(
        operation: &FdbOperation,
        kernel: &mut KernelHandle,
        _: &mut Vec<KernelObservation>,
    ) -> OperationResult {
        let kernel = &kernel.rtnetlink;
        Ok(match operation {
            FdbOperation::Set { key, node, interface } => {
                kernel.set_forwarding_entry(*key, interface, *node).await
            }
            // If the MAC has another node now, the new entry has replaced this one.
            FdbOperation::Delete { key, node } => {
                tolerate(RejectionKind::Missing, kernel.delete_forwarding_entry(*key, *node).await)
            }
        }?)
    }
}
