//! Interfaces: which there are, which lead to workloads, and the tunnel devices, which are made here. Those of workloads
//! are made by `pod`.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

pub(super) use diff::TunnelError;
pub(super) use observed::Links;
