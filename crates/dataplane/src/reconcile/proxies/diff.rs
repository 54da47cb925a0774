//! Computes the missing proxy entries and our surplus ones.

use super::super::DataplaneCore;
use super::desired::{ProxyFamily, settings};
use crate::failure::{AffectedWorkloads, KernelFailure, KernelObject};
use crate::kernel::{NeighbourKey, ProxyEntry};
use crate::sysctl::SysctlSetting;
use std::collections::BTreeSet;

/// Operations that are due, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ProxyChanges {
    pub unwanted: Vec<ProxyEntry>,
    /// Interfaces that have no entry of a family left after the removals.
    pub released: Vec<(u32, ProxyFamily)>,
    pub settings: Vec<(u32, ProxyFamily, Vec<SysctlSetting>)>,
    pub missing: Vec<ProxyEntry>,
}

impl DataplaneCore {
    pub fn proxy_work(&self) -> ProxyChanges {
        if !self.uses_proxies() {
            return ProxyChanges::default();
        }
        let wanted = self.wanted_proxies();
        let there: BTreeSet<NeighbourKey> = self.proxies.there.iter().map(|entry| entry.key).collect();
        let protocol = self.own_protocol();
        let ours = self.proxies.there.iter().filter(|entry| entry.protocol == protocol);
        let ours = ours.filter(|_| self.in_sync && self.settings.program_routes);
        let unwanted: Vec<ProxyEntry> = ours.filter(|entry| !wanted.contains(&entry.key)).copied().collect();
        let gone: BTreeSet<NeighbourKey> = unwanted.iter().map(|entry| entry.key).collect();
        let stays: BTreeSet<(u32, ProxyFamily)> =
            there.difference(&gone).chain(&wanted).map(|key| (key.device, ProxyFamily::of(key))).collect();
        let released: BTreeSet<(u32, ProxyFamily)> = gone
            .iter()
            .map(|key| (key.device, ProxyFamily::of(key)))
            .filter(|end| !stays.contains(end))
            .collect();
        let ends: BTreeSet<(u32, ProxyFamily)> =
            wanted.iter().map(|key| (key.device, ProxyFamily::of(key))).collect();
        let settings = ends.into_iter().filter_map(|(device, family)| {
            let first = !self.proxies.prepared.contains(&(device, family));
            Some((device, family, settings(self.links.get(device)?, family, first)))
        });
        ProxyChanges {
            unwanted,
            released: released.into_iter().collect(),
            settings: settings.filter(|(_, _, settings)| !settings.is_empty()).collect(),
            missing: wanted.difference(&there).map(|key| ProxyEntry { key: *key, protocol }).collect(),
        }
    }

    pub fn proxy_is(&mut self, entry: ProxyEntry, present: bool) {
        if present {
            self.proxies.there.insert(entry);
        } else {
            self.proxies.there.remove(&entry);
        }
    }

    pub fn proxies_prepared(&mut self, device: u32, family: ProxyFamily) {
        self.proxies.prepared.insert((device, family));
    }

    /// Whether an interface has no entry of a family left, so that its settings can be reset to the defaults.
    pub fn proxies_released(&mut self, device: u32, family: ProxyFamily) -> bool {
        let mut keys = self.proxies.there.iter().map(|entry| &entry.key);
        let released = !keys.any(|key| (key.device, ProxyFamily::of(key)) == (device, family));
        if released {
            self.proxies.prepared.remove(&(device, family));
        }
        released
    }

    pub fn proxies_refused(&mut self, refused: Vec<(KernelObject, String)>) {
        self.proxies.refused = refused;
    }

    /// Returns the addresses that are answered, by interface.
    pub fn proxied(&self) -> Vec<NeighbourKey> {
        let wanted = self.wanted_proxies();
        self.proxies.there.iter().map(|entry| entry.key).filter(|key| wanted.contains(key)).collect()
    }

    pub fn proxy_failures(&self) -> Vec<KernelFailure> {
        let failure = |(object, reason): &(KernelObject, String)| KernelFailure {
            object: object.clone(),
            concerns: AffectedWorkloads::nobody(),
            reason: reason.clone(),
        };
        self.proxies.refused.iter().map(failure).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{KernelLink, KernelSnapshot, LinkSettings};
    use regex::Regex;
    use std::net::IpAddr;
    use std::time::Duration;
    use tortie_plan::{DataplaneSettings, NodePlan, PlanUpdate};

    const OURS: u8 = 80;

    fn link(index: u32, name: &str, kind: Option<&str>) -> KernelLink {
        let conf = LinkSettings { proxy_ndp: Some(0), ..LinkSettings::default() };
        let mac = Some([2, 0, 0, 0, 0, 1]);
        KernelLink {
            index,
            name: name.into(),
            enabled: true,
            kind: kind.map(Into::into),
            mac,
            conf,
            ..KernelLink::default()
        }
    }

    fn entry(device: u32, address: &str, protocol: u8) -> ProxyEntry {
        ProxyEntry { key: NeighbourKey { device, address: address.parse().unwrap() }, protocol }
    }

    fn core(proxies: Vec<ProxyEntry>) -> DataplaneCore {
        let links = vec![
            link(2, "eth0", None),
            link(3, "eth1", None),
            link(4, "vxlan0", Some("vxlan")),
            link(5, "cali1", None),
        ];
        let nets = [
            (2, "192.0.2.1/24"),
            (2, "fd00::1/64"),
            (3, "198.51.100.1/24"),
            (4, "192.0.2.9/24"),
            (5, "192.0.2.8/24"),
        ];
        let addresses = nets.map(|(device, net)| (device, net.parse().unwrap())).into();
        let snapshot = KernelSnapshot { links, addresses, proxies, ..KernelSnapshot::default() };
        DataplaneCore::new(
            DataplaneSettings::default(),
            Regex::new("^eth").unwrap(),
            1,
            snapshot,
            Duration::ZERO,
        )
    }

    fn proxied(addresses: &[&str]) -> BTreeSet<IpAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn an_interface_answers_for_what_its_own_subnet_has() {
        let mut core = core(vec![]);
        core.replace(NodePlan {
            proxied: proxied(&["192.0.2.77", "fd00::77", "10.0.0.1", "192.0.2.1"]),
            ..NodePlan::default()
        });
        let work = core.proxy_work();
        assert_eq!(work.missing, [entry(2, "192.0.2.77", OURS), entry(2, "fd00::77", OURS)]);
        let keys: Vec<&str> = work
            .settings
            .iter()
            .flat_map(|(_, _, settings)| settings)
            .map(|setting| setting.key.as_str())
            .collect();
        let delay = |family: &str| format!("net/{family}/neigh/eth0/proxy_delay");
        assert_eq!(keys, [delay("ipv4").as_str(), delay("ipv6").as_str(), "net/ipv6/conf/eth0/proxy_ndp"]);
    }

    #[test]
    fn ours_come_and_go_and_those_of_others_stay() {
        let mut core = core(vec![entry(2, "192.0.2.50", OURS), entry(3, "198.51.100.9", 0)]);
        assert_eq!(core.proxy_work(), ProxyChanges::default(), "before the first plan");
        core.replace(NodePlan { proxied: proxied(&["198.51.100.9"]), ..NodePlan::default() });
        let work = core.proxy_work();
        assert_eq!(work.unwanted, [entry(2, "192.0.2.50", OURS)], "an old one of ours");
        assert_eq!(work.missing, [], "somebody else's does as well");
        assert_eq!(work.released, [(2, ProxyFamily::V4)], "the interface has no other");
        core.proxy_is(entry(2, "192.0.2.50", OURS), false);
        assert!(core.proxies_released(2, ProxyFamily::V4) && !core.proxies_released(3, ProxyFamily::V4));
        core.apply(PlanUpdate::Proxied(BTreeSet::new()));
        assert_eq!(core.proxy_work().unwanted, []);
        core.proxy_is(entry(3, "198.51.100.9", 0), false);
        assert!(!core.uses_proxies());
    }
}
