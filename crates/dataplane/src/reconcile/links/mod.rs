//! Interfaces: their state, the workloads that they belong to, and the tunnel devices, which this module creates.
//! Interfaces of workloads are created by `pod`.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

#[cfg(test)]
pub(super) use diff::LinkOperation;
pub(super) use diff::TunnelError;
pub(super) use observed::ObservedLinks;
