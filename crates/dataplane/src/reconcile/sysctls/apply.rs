//! Writes the settings of workload interfaces.

use super::super::{ExecuteOperations, Execution, KernelHandle, KernelObservation};
use super::{SysctlOperation, SysctlReconciler};
use crate::sysctl;

impl ExecuteOperations for SysctlReconciler {
    async fn execute(
        operations: Vec<SysctlOperation>,
        kernel: &mut KernelHandle,
    ) -> Execution<SysctlOperation> {
        let mut execution = Execution::default();
        for operation in operations {
            let index = operation.index;
            let result = sysctl::write(&kernel.netns, operation.settings.clone()).await;
            if let Ok(link) = kernel.rtnetlink.link(index).await {
                execution.observed.push(KernelObservation::Link { index, link });
            }
            execution.results.push((operation, result.map_err(Into::into)));
        }
        execution
    }
}
