//! Routes of workloads, of the blocks of other nodes, and of BGP.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

#[cfg(test)]
pub(super) use diff::RouteOperation;
pub(super) use diff::RouteOwnership;
pub(super) use observed::ObservedRoutes;

use std::time::Duration;

/// How long a route on a new workload interface is kept until the workload is in the plan.
const NEW_ROUTE_GRACE_PERIOD: Duration = Duration::from_secs(10);
const PROTOCOL_KERNEL: u8 = 2;
const PROTOCOL_BOOT: u8 = 3;
pub(crate) const PROTOCOL_BIRD: u8 = 12;
pub(crate) const PROTOCOL_OURS: u8 = 80;
