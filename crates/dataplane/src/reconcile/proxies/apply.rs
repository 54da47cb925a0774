//! Writes proxy entries and announces them on their links, and removes surplus ones.

use super::super::{ExecuteOperations, Execution, KernelHandle};
use super::desired::{ProxyFamily, changed_settings};
use super::{ProxyInterface, ProxyOperation, ProxyReconciler};
use crate::announce;
use crate::kernel::{RejectionKind, tolerate};
use crate::netns::Netns;
use crate::sysctl::{self, SysctlSetting};
use std::collections::BTreeSet;
use std::net::IpAddr;

impl ExecuteOperations for ProxyReconciler {
    async fn execute(
        operations: Vec<ProxyOperation>,
        kernel: &mut KernelHandle,
    ) -> Execution<ProxyOperation> {
        let mut execution = Execution::default();
        let mut in_use = BTreeSet::new();
        let mut added = Vec::new();
        for operation in operations {
            let result = match &operation {
                ProxyOperation::Delete { entry, .. } => {
                    let deleted = kernel.rtnetlink.delete_proxy(*entry).await;
                    let deleted = tolerate(RejectionKind::Missing, deleted);
                    if deleted.is_err() {
                        in_use.insert(ProxyInterface::from(&entry.key));
                    }
                    deleted.map_err(Into::into)
                }
                ProxyOperation::ResetSettings { interface, .. } if in_use.contains(interface) => continue,
                ProxyOperation::ResetSettings { interface, name } => {
                    reset_settings(&kernel.netns, name, interface.family).await;
                    execution.observed.extend(kernel.read_link(interface.device).await);
                    Ok(())
                }
                ProxyOperation::WriteSettings { interface, settings } => {
                    let written = sysctl::write(&kernel.netns, settings.clone()).await;
                    execution.observed.extend(kernel.read_link(interface.device).await);
                    written.map_err(Into::into)
                }
                ProxyOperation::Add { entry, name } => {
                    let result = kernel.rtnetlink.add_proxy(*entry, name).await;
                    if result.is_ok() {
                        added.push((name.clone(), entry.key.address));
                    }
                    result.map_err(Into::into)
                }
            };
            execution.results.push((operation, result));
        }
        announce(&kernel.netns, added).await;
        execution
    }
}

/// Resets the settings to those of a new interface: their previous values are not known after a restart.
async fn reset_settings(netns: &Netns, interface: &str, family: ProxyFamily) {
    let mut settings = Vec::new();
    let untouched = changed_settings("default", family).into_iter().zip(changed_settings("lo", family));
    for (key, (default, lo)) in changed_settings(interface, family).into_iter().zip(untouched) {
        let value = match sysctl::read(netns, &default).await {
            Ok(Some(value)) => Some(value),
            // Not every namespace has its own defaults; these settings of `lo` are not usually changed.
            _ => sysctl::read(netns, &lo).await.ok().flatten(),
        };
        settings.extend(value.map(|value| SysctlSetting::lenient(key, value)));
    }
    if let Err(error) = sysctl::write(netns, settings).await {
        tracing::warn!(%error, interface, "cannot reset the proxy ARP/NDP settings of an interface");
    }
}

/// Announces addresses on interfaces, so that hosts with another MAC for one update their cache.
pub async fn announce(netns: &Netns, addresses: Vec<(String, IpAddr)>) {
    if addresses.is_empty() {
        return;
    }
    if let Err(error) = announce::send(netns, addresses).await {
        tracing::warn!(%error, "cannot send gratuitous ARP/NA for proxied addresses; ARP and ND requests are still answered");
    }
}
