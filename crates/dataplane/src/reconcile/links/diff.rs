//! What has to be looked at again when an interface changes.

use super::super::Core;
use crate::kernel::Link;
use ipnet::IpNet;
use std::time::Duration;

impl Core {
    /// An interface was set down, whatever it is by now.
    pub fn link_was_down(&mut self, index: u32) {
        let touched = self.routes.drop_ipv4_of(index);
        self.dirty.extend(touched);
    }

    pub fn link_is(&mut self, index: u32, link: Option<Link>, now: Duration) {
        let old = self.links.get(index).cloned();
        if old == link {
            return;
        }
        self.unchecked.insert(index);
        let known = |link: &Option<Link>| link.as_ref().map(|link| (link.name.clone(), link.is_up()));
        let same = known(&old) == known(&link);
        match link {
            Some(link) => {
                self.first_seen.entry(index).or_insert(now);
                self.links.set(link);
            }
            None => {
                self.links.remove(index);
                self.kernel_neighbours.drop_of(index);
                let touched = self.routes.drop_of(index);
                self.dirty.extend(touched);
                self.first_seen.remove(&index);
                self.settled.remove(&index);
                self.conf_errors.remove(&index);
            }
        }
        if same {
            return;
        }
        self.prepared.remove(&index);
        for name in [old.map(|old| old.name), self.links.get(index).map(|link| link.name.clone())] {
            let workload = name.as_deref().and_then(|name| self.plan.active(name));
            if let Some((_, workload)) = workload {
                self.dirty.extend(workload.addresses.iter().map(|address| IpNet::from(*address)));
            } else {
                self.lookups_stale = true;
            }
        }
        if self.lookups_stale {
            self.next_hops_dirty();
        }
    }
}
