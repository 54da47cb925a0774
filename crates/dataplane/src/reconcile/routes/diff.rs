//! Computes the changes for one destination, after which the kernel has the desired route and none of our other
//! routes.

use super::ownership::RouteOwnership;
use crate::kernel::KernelRoute;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteChange {
    Add(KernelRoute),
    /// Replaces one of our routes.
    Replace {
        old: KernelRoute,
        new: KernelRoute,
    },
    Delete(KernelRoute),
}

impl RouteChange {
    /// Returns the route that is written or deleted.
    pub fn route(&self) -> &KernelRoute {
        match self {
            RouteChange::Add(entry)
            | RouteChange::Delete(entry)
            | RouteChange::Replace { new: entry, .. } => entry,
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct RouteDifference {
    /// In order of execution: additions before removals.
    pub changes: Vec<RouteChange>,
    /// A foreign route with the same key as ours.
    pub obstacle: Option<KernelRoute>,
    /// Whether a route has to be removed when its grace period is over.
    pub later: bool,
}

pub fn difference(
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
            None => difference.changes.push(RouteChange::Add(wanted.clone())),
            Some(old) if ownership(old) == RouteOwnership::Foreign => difference.obstacle = Some(old.clone()),
            Some(old) => {
                replaced = Some(old);
                difference.changes.push(RouteChange::Replace { old: old.clone(), new: wanted.clone() });
            }
        }
    }
    for entry in actual {
        if Some(entry) == wanted || Some(entry) == replaced {
            continue;
        }
        match ownership(entry) {
            RouteOwnership::Ours if may_remove => {
                difference.changes.push(RouteChange::Delete(entry.clone()));
            }
            RouteOwnership::InGrace if may_remove => difference.later = true,
            _ => {}
        }
    }
    difference
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::KernelRouteTarget;
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

    /// Applies a change to a model of the kernel, and panics if the kernel would reject it.
    fn perform(kernel: &mut Vec<KernelRoute>, change: &RouteChange) {
        match change {
            RouteChange::Add(new) => {
                assert!(!kernel.iter().any(|entry| entry.same_place(new)), "the place is taken");
                kernel.push(new.clone());
            }
            RouteChange::Replace { old, new } => {
                let place = kernel.iter().position(|entry| entry == old).expect("there is one to replace");
                kernel[place] = new.clone();
            }
            RouteChange::Delete(old) => {
                let place = kernel.iter().position(|entry| entry == old).expect("there is one to delete");
                kernel.remove(place);
            }
        }
    }

    proptest! {
        #[test]
        fn a_destination_converges_and_foreign_routes_stay(
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
            for operation in &change.changes {
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
                let deletes = change.changes.iter().any(|op| matches!(op, RouteChange::Delete(_)));
                prop_assert!(!deletes);
            }
            let again = difference(wanted.as_ref(), &kernel, may_remove, ownership);
            prop_assert_eq!(again.changes, Vec::new(), "a second look finds nothing to do");
        }
    }

    #[test]
    fn the_plugins_route_is_deleted_after_ours_exists() {
        let (plugins, ours) = (entry(0, 80, 7), entry(1024, 80, 7));
        let change = difference(Some(&ours), std::slice::from_ref(&plugins), true, ownership);
        assert_eq!(change.changes, [RouteChange::Add(ours), RouteChange::Delete(plugins)]);
    }
}
