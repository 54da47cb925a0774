//! Creates, repairs and removes tunnel devices, and changes the addresses of interfaces.

use super::super::{KernelHandle, KernelObservation, OperationResult, PerformOperation};
use super::desired::{DesiredLink, LinkForm};
use super::{LinkOperation, LinkReconciler, PeeringReconciler, TunnelOperation};
use crate::error::DataplaneResult;
use crate::kernel::{KernelRejection, RejectionKind, RtnetlinkClient, tolerate};

impl PerformOperation for LinkReconciler {
    async fn perform(
        operation: &TunnelOperation,
        kernel: &mut KernelHandle,
        observed: &mut Vec<KernelObservation>,
    ) -> OperationResult {
        execute(&operation.change, &kernel.rtnetlink, observed).await
    }
}

impl PerformOperation for PeeringReconciler {
    async fn perform(
        operation: &LinkOperation,
        kernel: &mut KernelHandle,
        observed: &mut Vec<KernelObservation>,
    ) -> OperationResult {
        execute(operation, &kernel.rtnetlink, observed).await
    }
}

async fn execute(
    operation: &LinkOperation,
    kernel: &RtnetlinkClient,
    observed: &mut Vec<KernelObservation>,
) -> OperationResult {
    let result = change_link(operation, kernel).await;
    // Read the result even after an error: the actual state of the kernel counts.
    observed.extend(read_result(operation, kernel).await?);
    Ok(result?)
}

async fn change_link(operation: &LinkOperation, kernel: &RtnetlinkClient) -> Result<(), KernelRejection> {
    match operation {
        LinkOperation::Create(link) => {
            let created = create_link(link, kernel).await;
            let created = created.map_err(|rejection| name_module(rejection, link.kind()));
            tolerate(RejectionKind::Exists, created)
        }
        LinkOperation::Delete { index } => tolerate(RejectionKind::Missing, kernel.delete_link(*index).await),
        LinkOperation::SetUp { index } => tolerate(RejectionKind::Missing, kernel.set_link_up(*index).await),
        LinkOperation::SetMtu { index, mtu } => {
            tolerate(RejectionKind::Missing, kernel.set_link_mtu(*index, *mtu).await)
        }
        LinkOperation::AddAddress { index, interface, net } => {
            tolerate(RejectionKind::Exists, kernel.add_address(*index, interface, *net).await)
        }
        LinkOperation::RemoveAddress { index, net } => {
            tolerate(RejectionKind::Missing, kernel.delete_address(*index, *net).await)
        }
    }
}

async fn create_link(link: &DesiredLink, kernel: &RtnetlinkClient) -> Result<(), KernelRejection> {
    match &link.form {
        LinkForm::Vxlan(vxlan, mac) => kernel.create_vxlan(&link.name, vxlan, *mac, link.mtu).await,
        LinkForm::Ipip => kernel.create_ipip(&link.name).await,
        LinkForm::Wireguard => kernel.create_wireguard(&link.name, link.mtu).await,
    }
}

async fn read_result(
    operation: &LinkOperation,
    kernel: &RtnetlinkClient,
) -> DataplaneResult<Option<KernelObservation>> {
    match operation {
        LinkOperation::Create(link) => {
            let link = kernel.link_named(&link.name).await?;
            Ok(link.map(|link| KernelObservation::Link { index: link.index, link: Some(link) }))
        }
        LinkOperation::Delete { index }
        | LinkOperation::SetUp { index }
        | LinkOperation::SetMtu { index, .. } => {
            Ok(Some(KernelObservation::Link { index: *index, link: kernel.link(*index).await? }))
        }
        LinkOperation::AddAddress { index, net, .. } | LinkOperation::RemoveAddress { index, net } => {
            let present = kernel.addresses().await?.contains(&(*index, *net));
            Ok(Some(KernelObservation::Address { device: *index, net: *net, present }))
        }
    }
}

/// Names the kernel module that is missing; the kernel's own message is generic.
fn name_module(rejection: KernelRejection, kind: &str) -> KernelRejection {
    if rejection.kind != RejectionKind::Unsupported {
        return rejection;
    }
    let reason = format!(
        "this kernel has no {kind} devices; load or install its module {kind} ({})",
        rejection.reason
    );
    KernelRejection { reason, ..rejection }
}
