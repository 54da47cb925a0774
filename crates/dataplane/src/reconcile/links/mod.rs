//! Interfaces: which there are, which lead to workloads, and the tunnel devices, which are made here. Those of workloads
//! are made by `pod`.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

#[cfg(test)]
pub(super) use diff::LinkOperation;
pub(super) use diff::TunnelError;
pub(super) use observed::Links;
