//! Creates and removes buckets, IFB devices and redirections.

use super::super::{ExecuteOperations, Execution, KernelHandle, KernelObservation, OperationError};
use super::{ShapingChange, ShapingOperation, ShapingReconciler};
use crate::error::DataplaneResult;
use crate::kernel::{KernelRejection, RejectionKind, RtnetlinkClient, tolerate};

impl ExecuteOperations for ShapingReconciler {
    async fn execute(
        operations: Vec<ShapingOperation>,
        kernel: &mut KernelHandle,
    ) -> Execution<ShapingOperation> {
        let kernel = &kernel.rtnetlink;
        let mut execution = Execution::default();
        for operation in operations {
            let changed = change(&operation, kernel).await;
            let result = match read_device(&operation.change, kernel).await {
                Ok(observation) => {
                    execution.observed.extend(observation);
                    changed.map_err(Into::into)
                }
                Err(error) => Err(OperationError::from(error)),
            };
            execution.results.push((operation, result));
        }
        match kernel.qdiscs().await {
            Ok(qdiscs) => execution.observed.push(KernelObservation::Qdiscs(qdiscs)),
            Err(error) => tracing::warn!(%error, "cannot read traffic control; will retry"),
        }
        execution
    }
}

async fn change(operation: &ShapingOperation, kernel: &RtnetlinkClient) -> Result<(), KernelRejection> {
    let interface = &operation.interface;
    match &operation.change {
        ShapingChange::SetBucket { device, bucket } => {
            let result = kernel.set_bucket(*device, interface, bucket).await;
            result.map_err(|rejection| name_module(rejection, "sch_tbf"))
        }
        ShapingChange::DeleteBucket { device } => {
            tolerate(RejectionKind::Missing, kernel.delete_bucket(*device).await)
        }
        ShapingChange::CreateDevice { name, mtu } => {
            let result = kernel.create_ifb(name, *mtu).await;
            tolerate(RejectionKind::Exists, result.map_err(|rejection| name_module(rejection, "ifb")))
        }
        ShapingChange::SetUp { device } => kernel.set_link_up(*device).await,
        ShapingChange::Redirect { device, to } => {
            let result = kernel.redirect(*device, interface, *to).await;
            result.map_err(|rejection| name_module(rejection, "cls_u32, act_mirred or sch_ingress"))
        }
        ShapingChange::DeleteRedirection { device } => {
            tolerate(RejectionKind::Missing, kernel.delete_redirection(*device).await)
        }
        ShapingChange::DeleteDevice { device } => {
            tolerate(RejectionKind::Missing, kernel.delete_link(*device).await)
        }
    }
}

/// Reads the device that a change concerns.
async fn read_device(
    change: &ShapingChange,
    kernel: &RtnetlinkClient,
) -> DataplaneResult<Option<KernelObservation>> {
    match change {
        ShapingChange::CreateDevice { name, .. } => {
            let link = kernel.link_named(name).await?;
            Ok(link.map(|link| KernelObservation::Link { index: link.index, link: Some(link) }))
        }
        ShapingChange::SetUp { device } | ShapingChange::DeleteDevice { device } => {
            let link = kernel.link(*device).await?;
            Ok(Some(KernelObservation::Link { index: *device, link }))
        }
        _ => Ok(None),
    }
}

/// Names the kernel module that may be missing; the kernel's own message is generic.
fn name_module(rejection: KernelRejection, module: &str) -> KernelRejection {
    match rejection.kind {
        RejectionKind::Unsupported | RejectionKind::Missing => KernelRejection {
            reason: format!("this kernel may lack {module}; load or install it ({})", rejection.reason),
            ..rejection
        },
        _ => rejection,
    }
}
