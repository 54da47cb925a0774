//! Computes the operations for one destination, after which the kernel has the desired route and none of our other
//! routes.

use super::super::DataplaneCore;
use crate::kernel::{KernelRoute, KernelRouteTarget};
use std::net::IpAddr;
use std::time::Duration;
use tortie_plan::RouteKey;

/// Whether an undesired route may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteOwnership {
    Foreign,
    /// Left by the program that did our work before: our route may replace it, but it is not removed otherwise.
    Predecessor,
    Ours,
    /// Ours, but the workload that it belongs to may not have been reported yet.
    InGrace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RouteOperation {
    Add(KernelRoute),
    /// Replaces one of our routes.
    Replace {
        old: KernelRoute,
        new: KernelRoute,
    },
    Delete(KernelRoute),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteDifference {
    /// In order of execution: additions before removals.
    pub operations: Vec<RouteOperation>,
    /// A foreign route with the same key as ours.
    pub obstacle: Option<KernelRoute>,
    /// Whether a route has to be removed when its grace period is over.
    pub later: bool,
}

pub(crate) fn difference(
    wanted: Option<&KernelRoute>,
    actual: &[KernelRoute],
    may_remove: bool,
    ownership: impl Fn(&KernelRoute) -> RouteOwnership,
) -> RouteDifference {
    let mut difference = RouteDifference::default();
    let mut replaced = None;
    if let Some(wanted) = wanted.filter(|wanted| !actual.contains(wanted)) {
        let mut in_place = actual.iter().filter(|entry| entry.same_place(wanted));
        match in_place.next() {
            None => difference.operations.push(RouteOperation::Add(wanted.clone())),
            Some(old) if ownership(old) == RouteOwnership::Foreign => difference.obstacle = Some(old.clone()),
            Some(old) => {
                replaced = Some(old);
                difference.operations.push(RouteOperation::Replace { old: old.clone(), new: wanted.clone() });
            }
        }
    }
    for entry in actual {
        if Some(entry) == wanted || Some(entry) == replaced {
            continue;
        }
        match ownership(entry) {
            RouteOwnership::Ours if may_remove => {
                difference.operations.push(RouteOperation::Delete(entry.clone()));
            }
            RouteOwnership::InGrace if may_remove => difference.later = true,
            _ => {}
        }
    }
    difference
}

/// Route changes returned by [`DataplaneCore::route_work`].
#[derive(Debug, Default)]
pub(crate) struct RouteChanges {
    pub operations: Vec<RouteOperation>,
    /// Destinations whose routes cannot be written now, and the reasons.
    pub failures: Vec<(RouteKey, String)>,
}

impl DataplaneCore {
    /// Returns the route changes that are due.
    pub fn route_work(&mut self, now: Duration) -> RouteChanges {
        let mut work = RouteChanges::default();
        for key in std::mem::take(&mut self.dirty) {
            self.succeeded(&key);
            let wanted = self.wanted(&key).unwrap_or_else(|reason| {
                work.failures.push((key, reason));
                None
            });
            if let Some(KernelRouteTarget::Device(device)) = wanted.as_ref().map(|entry| &entry.target) {
                self.settled.insert(*device);
            }
            // Keep the existing route while the desired one cannot be written.
            let unknown = work.failures.last().is_some_and(|(failed, _)| *failed == key);
            let change =
                difference(wanted.as_ref(), self.routes.at(&key), self.in_sync && !unknown, |entry| {
                    self.ownership(entry, now)
                });
            work.operations.extend(change.operations);
            if change.later {
                self.later.insert(key);
            }
            if let Some(obstacle) = change.obstacle {
                let reason = format!(
                    "a route that is not ours is in its place (protocol {}, metric {}, interface {}); remove it",
                    obstacle.protocol,
                    obstacle.metric,
                    obstacle.target.device().map_or_else(|| "none".into(), |device| self.name(device)),
                );
                work.failures.push((key, reason));
            }
        }
        for (key, reason) in &work.failures {
            self.failed(*key, reason.clone());
        }
        work
    }

    /// Records that an operation succeeded.
    pub fn done(&mut self, operation: &RouteOperation) {
        match operation {
            RouteOperation::Add(entry) => self.routes.set(entry.clone()),
            RouteOperation::Replace { old, new } => {
                self.routes.remove(old);
                self.routes.set(new.clone());
            }
            RouteOperation::Delete(entry) => self.routes.remove(entry),
        }
    }

    /// Returns the address that an operation moves to another interface, if it was on a workload interface.
    pub fn moves(&self, operation: &RouteOperation) -> Option<IpAddr> {
        let RouteOperation::Replace { old, new } = operation else { return None };
        let destination = old.destination();
        let single = destination.prefix_len() == destination.max_prefix_len();
        let device = old.target.device()?;
        let workload = self.links.get(device).is_some_and(|link| self.is_workload(&link.name));
        (single && workload && new.target.device() != Some(device)).then(|| destination.addr())
    }

    /// Returns the addresses that were removed from workloads since the last call: those that another workload has now,
    /// and the others.
    pub fn take_departed(&mut self) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let departed = std::mem::take(&mut self.departed);
        departed.into_iter().partition(|address| self.plan.at_address(*address).next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(metric: u32, protocol: u8, device: u32) -> KernelRoute {
        let destination: ipnet::IpNet = "10.0.0.1/32".parse().unwrap();
        KernelRoute::new(destination, metric, protocol, KernelRouteTarget::Device(device))
    }

    fn ownership(entry: &KernelRoute) -> RouteOwnership {
        match entry.protocol {
            80 => RouteOwnership::Ours,
            3 => RouteOwnership::InGrace,
            12 => RouteOwnership::Predecessor,
            _ => RouteOwnership::Foreign,
        }
    }

    fn any_entry() -> impl Strategy<Value = KernelRoute> {
        (0u32..3, prop_oneof![Just(80u8), Just(3), Just(2), Just(12)], 1u32..4)
            .prop_map(|(metric, protocol, device)| entry(metric, protocol, device))
    }

    /// Applies an operation to a model of the kernel, and panics if the kernel would reject it.
    fn perform(kernel: &mut Vec<KernelRoute>, operation: &RouteOperation) {
        match operation {
            RouteOperation::Add(new) => {
                assert!(!kernel.iter().any(|entry| entry.same_place(new)), "the place is taken");
                kernel.push(new.clone());
            }
            RouteOperation::Replace { old, new } => {
                let place = kernel.iter().position(|entry| entry == old).expect("there is one to replace");
                kernel[place] = new.clone();
            }
            RouteOperation::Delete(old) => {
                let place = kernel.iter().position(|entry| entry == old).expect("there is one to delete");
                kernel.remove(place);
            }
        }
    }

    proptest! {
        #[test]
        fn the_kernel_ends_up_with_what_is_wanted_and_keeps_what_is_not_ours(
            wanted in proptest::option::of(any_entry()),
            actual in proptest::collection::btree_map((0u32..3, 0u8..2), any_entry(), 0..4),
            may_remove: bool,
        ) {
            // At most one route per key and metric, as in the kernel.
            let actual: Vec<KernelRoute> = actual
                .into_iter()
                .filter(|((_, second), _)| *second == 0)
                .map(|((metric, _), mut entry)| { entry.metric = metric; entry })
                .collect();
            let change = difference(wanted.as_ref(), &actual, may_remove, ownership);
            let mut kernel = actual.clone();
            for operation in &change.operations {
                perform(&mut kernel, operation);
            }
            for entry in actual.iter().filter(|entry| ownership(entry) == RouteOwnership::Foreign) {
                prop_assert!(kernel.contains(entry), "a foreign route was touched");
            }
            if let Some(wanted) = &wanted {
                prop_assert_eq!(kernel.contains(wanted), change.obstacle.is_none());
            }
            if may_remove {
                for entry in &kernel {
                    prop_assert!(Some(entry) == wanted.as_ref() || ownership(entry) != RouteOwnership::Ours);
                }
            } else {
                let deletes = change.operations.iter().any(|op| matches!(op, RouteOperation::Delete(_)));
                prop_assert!(!deletes);
            }
            let again = difference(wanted.as_ref(), &kernel, may_remove, ownership);
            prop_assert_eq!(again.operations, Vec::new(), "a second look finds nothing to do");
        }
    }

    #[test]
    fn the_plugins_own_route_goes_only_after_ours_is_there() {
        let (plugins, ours) = (entry(0, 80, 7), entry(1024, 80, 7));
        let change = difference(Some(&ours), std::slice::from_ref(&plugins), true, ownership);
        assert_eq!(change.operations, [RouteOperation::Add(ours), RouteOperation::Delete(plugins)]);
    }
}
