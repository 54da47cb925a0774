//! Changes that one part of the computation makes to the plan.

use std::collections::BTreeMap;
use tortie_plan::PlanUpdate;

/// The updates of one part. Each list is in an order in which it can be applied by itself. [`crate::PlanCompute::flush`]
/// combines the lists of different parts: referenced objects are added first and removed last.
#[derive(Debug, Default)]
pub(crate) struct PlanChanges {
    /// New and replaced objects.
    pub added: Vec<PlanUpdate>,
    pub removed: Vec<PlanUpdate>,
}

impl PlanChanges {
    /// Adds an update of an object that is present in the plan or no longer present.
    pub fn push(&mut self, is_present: bool, update: PlanUpdate) {
        let list = if is_present { &mut self.added } else { &mut self.removed };
        list.push(update);
    }

    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}

/// Sets or removes an entry. Returns the previous value.
pub(crate) fn set_entry<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) -> Option<V> {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    }
}
