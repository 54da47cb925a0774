//! Writes the settings of workload interfaces.

use super::super::{KernelHandle, KernelObservation, OperationResult, PerformOperation};
use super::{SysctlOperation, SysctlReconciler};
use crate::sysctl;

impl PerformOperation for SysctlReconciler {
    async fn perform(
        operation: &SysctlOperation,
        kernel: &mut KernelHandle,
        observed: &mut Vec<KernelObservation>,
    ) -> OperationResult {
        let result = sysctl::write(&kernel.netns, operation.settings.clone()).await;
        // Read the interface even after an error: earlier settings may have been written.
        observed.extend(kernel.read_link(operation.index).await);
        Ok(result?)
    }
}
