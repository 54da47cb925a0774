//! The set of all workloads in Istio's ambient mesh.

use super::sets::{NeededSet, NeededSetContents};
use tortie_model::selector::Selector;
use tortie_plan::{AMBIENT_WORKLOADS_SET, SetId};

/// Workloads that have the label, and those whose namespace has it unless they opt out.
const AMBIENT_SELECTOR: &str = "istio.io/dataplane-mode == 'ambient' || \
                                (pcns.istio.io/dataplane-mode == 'ambient' && istio.io/dataplane-mode != 'none')";

/// Returns the set. A test verifies that there is one.
pub(super) fn ambient_set() -> Option<NeededSet> {
    let selector = Selector::parse(AMBIENT_SELECTOR).ok()?;
    Some(NeededSet {
        id: SetId::new(AMBIENT_WORKLOADS_SET),
        contents: NeededSetContents::Workloads(selector),
    })
}

#[cfg(test)]
mod tests {
    use super::ambient_set;

    #[test]
    fn the_selector_can_be_parsed() {
        assert!(ambient_set().is_some());
    }
}
