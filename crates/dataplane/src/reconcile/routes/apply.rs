//! Writes routes, and deletes the connection tracking entries of addresses that move.

use super::diff::RouteOperation;
use crate::engine::DataplaneEngine;
use crate::failure::KernelFailure;
use crate::kernel::{KernelRejection, KernelRoute, KernelRouteTarget, RejectionKind};
use std::collections::BTreeMap;
use std::net::IpAddr;

impl DataplaneEngine {
    pub(crate) async fn apply_routes(&mut self, failures: &mut Vec<KernelFailure>) {
        let work = self.core.route_work(self.started.elapsed());
        for (key, reason) in work.failures {
            failures.extend(self.core.route_failure(key, reason));
        }
        let (mut adds, mut replaces, mut deletes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut moving, leaving) = self.core.take_departed();
        for operation in work.operations {
            moving.extend(self.core.moves(&operation));
            match &operation {
                RouteOperation::Add(_) => adds.push(operation),
                RouteOperation::Replace { .. } => replaces.push(operation),
                RouteOperation::Delete(_) => deletes.push(operation),
            }
        }
        // The new owner of an address must not receive packets of connections to the old one, nor lose its own
        // connections to a later cleanup.
        self.conntrack.later(moving.iter().copied());
        moving.extend(adds.iter().filter_map(|operation| single(entry(operation))));
        self.conntrack.finish(&self.host, &moving.into_iter().collect()).await;
        // Add routes through gateways last: the gateway must not resolve to another interface when its route is added.
        adds.sort_by_key(|operation| matches!(entry(operation).target, KernelRouteTarget::Gateway { .. }));
        let mut results = Vec::new();
        let added = self.kernel.add_routes(&entries(&adds)).await;
        results.extend(outcomes(adds, added));
        for operation in replaces {
            let result = match &operation {
                RouteOperation::Replace { new, .. } => self.kernel.replace_route(new).await,
                _ => Ok(()),
            };
            results.push((operation, result.err()));
        }
        let deleted = self.kernel.delete_routes(&entries(&deletes)).await;
        results.extend(outcomes(deletes, deleted));
        for (operation, refusal) in results {
            match refusal {
                None => self.core.done(&operation),
                Some(refusal) => {
                    let key = entry(&operation).key;
                    // The known state of the kernel was wrong: read it again.
                    self.stale.routes |= refusal.kind == RejectionKind::Exists;
                    self.core.failed(key, refusal.reason.clone());
                    failures.extend(self.core.route_failure(key, refusal.reason));
                }
            }
        }
        self.conntrack.later(leaving);
        self.conntrack.go_on(&self.host, self.started.elapsed());
    }
}

/// Returns the address of a route to a single address.
fn single(entry: &KernelRoute) -> Option<IpAddr> {
    let net = entry.destination();
    (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
}

fn entries(operations: &[RouteOperation]) -> Vec<&KernelRoute> {
    operations.iter().map(entry).collect()
}

fn entry(operation: &RouteOperation) -> &KernelRoute {
    match operation {
        RouteOperation::Add(entry)
        | RouteOperation::Delete(entry)
        | RouteOperation::Replace { new: entry, .. } => entry,
    }
}

/// Pairs operations with the errors of those that failed.
fn outcomes(
    operations: Vec<RouteOperation>,
    failures: Vec<(usize, KernelRejection)>,
) -> impl Iterator<Item = (RouteOperation, Option<KernelRejection>)> {
    let mut failures: BTreeMap<usize, KernelRejection> = failures.into_iter().collect();
    operations
        .into_iter()
        .enumerate()
        .map(move |(position, operation)| (operation, failures.remove(&position)))
}
