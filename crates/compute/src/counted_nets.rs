//! The nets of a set in the plan, each with the number of objects that claim it.

use ipnet::IpNet;
use std::collections::BTreeMap;
use tortie_plan::SetMember;

#[derive(Debug, Default)]
pub(crate) struct CountedNets {
    counts: BTreeMap<IpNet, usize>,
    /// Nets that may have changed since the last call of `take_changes`, and whether they were present then.
    touched: BTreeMap<IpNet, bool>,
}

impl CountedNets {
    pub fn add(&mut self, net: IpNet) {
        let count = self.counts.entry(net).or_default();
        if *count == 0 {
            self.touched.entry(net).or_insert(false);
        }
        *count += 1;
    }

    pub fn remove(&mut self, net: IpNet) {
        let Some(count) = self.counts.get_mut(&net) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&net);
            self.touched.entry(net).or_insert(true);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    pub fn has_changes(&self) -> bool {
        !self.touched.is_empty()
    }

    pub fn members(&self) -> Vec<SetMember> {
        self.counts.keys().copied().map(SetMember::Net).collect()
    }

    /// Returns the nets that were added and removed since the last call.
    pub fn take_changes(&mut self) -> (Vec<SetMember>, Vec<SetMember>) {
        let mut added = Vec::new();
        let mut removed = Vec::new();
        for (net, was_present) in std::mem::take(&mut self.touched) {
            match (was_present, self.counts.contains_key(&net)) {
                (false, true) => added.push(SetMember::Net(net)),
                (true, false) => removed.push(SetMember::Net(net)),
                _ => {}
            }
        }
        (added, removed)
    }
}
