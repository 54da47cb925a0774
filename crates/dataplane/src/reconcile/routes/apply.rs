//! Writes routes, and deletes the connection tracking entries of addresses that move.

use super::super::{ExecuteOperations, Execution, KernelHandle};
use super::{RouteChange, RouteOperation, RouteReconciler};
use crate::kernel::{KernelRejection, KernelRoute, KernelRouteTarget};
use std::collections::{BTreeMap, BTreeSet};

impl ExecuteOperations for RouteReconciler {
    async fn execute(
        operations: Vec<RouteOperation>,
        kernel: &mut KernelHandle,
    ) -> Execution<RouteOperation> {
        let mut adds = Vec::new();
        let mut replaces = Vec::new();
        let mut deletes = Vec::new();
        let mut moving = BTreeSet::new();
        let mut leaving = BTreeSet::new();
        for operation in operations {
            match operation {
                RouteOperation::EndFlows { moving: moved, leaving: left } => {
                    moving.extend(moved);
                    leaving.extend(left);
                }
                RouteOperation::Change(change) => match change {
                    RouteChange::Add(_) => adds.push(change),
                    RouteChange::Replace { .. } => replaces.push(change),
                    RouteChange::Delete(_) => deletes.push(change),
                },
            }
        }
        // The new owner of an address must not receive packets of connections to the old one, nor lose its own connections
        // to a later cleanup.
        kernel.conntrack.later(moving.iter().copied());
        moving.extend(adds.iter().filter_map(|change| change.route().single_address()));
        kernel.conntrack.finish(&kernel.netns, &moving).await;
        // Add routes through gateways last: the gateway must not resolve to another interface when its route is added.
        adds.sort_by_key(|change| matches!(change.route().target, KernelRouteTarget::Gateway { .. }));
        let mut execution = Execution::default();
        let failures = kernel.rtnetlink.add_routes(&routes(&adds)).await;
        record(&mut execution, adds, failures);
        for change in replaces {
            let result = kernel.rtnetlink.replace_route(change.route()).await;
            execution.results.push((RouteOperation::Change(change), result.map_err(Into::into)));
        }
        let failures = kernel.rtnetlink.delete_routes(&routes(&deletes)).await;
        record(&mut execution, deletes, failures);
        kernel.conntrack.later(leaving);
        execution
    }
}

fn routes(changes: &[RouteChange]) -> Vec<&KernelRoute> {
    changes.iter().map(RouteChange::route).collect()
}

/// Records the results of changes, given the failures by position.
fn record(
    execution: &mut Execution<RouteOperation>,
    changes: Vec<RouteChange>,
    failures: Vec<(usize, KernelRejection)>,
) {
    let mut failures: BTreeMap<usize, KernelRejection> = failures.into_iter().collect();
    for (position, change) in changes.into_iter().enumerate() {
        let result = failures.remove(&position).map_or(Ok(()), |rejection| Err(rejection.into()));
        execution.results.push((RouteOperation::Change(change), result));
    }
}
