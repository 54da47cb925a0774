//! On which interfaces which addresses are answered for: where the interface's own subnet has them, since only there
//! anybody asks.

use super::super::Core;
use crate::kernel::{Link, NeighbourKey};
use crate::sysctl::Setting;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;

impl Core {
    pub(in crate::reconcile) fn wanted_proxies(&self) -> BTreeSet<NeighbourKey> {
        let mut wanted = BTreeSet::new();
        if self.plan.proxied().is_empty() || !self.settings.program_routes {
            return wanted;
        }
        for link in self.links.iter().filter(|link| self.is_asked(link)) {
            let subnets =
                self.links.nets_of(link.index).filter(|net| net.prefix_len() < net.max_prefix_len());
            let subnets: Vec<IpNet> =
                subnets.filter(|net| net.addr().is_ipv4() || self.settings.ipv6).collect();
            // For an address of its own the kernel answers anyway.
            let asked =
                |address: &IpAddr| subnets.iter().any(|net| net.contains(address) && net.addr() != *address);
            let addresses = self.plan.proxied().iter().filter(|address| asked(address));
            wanted.extend(addresses.map(|address| NeighbourKey { device: link.index, address: *address }));
        }
        wanted
    }

    /// Whether hosts are on a link of it that may ask for addresses.
    fn is_asked(&self, link: &Link) -> bool {
        let has_mac = link.mac.is_some_and(|mac| mac != [0; 6]);
        link.enabled && has_mac && !link.is_tunnel() && !self.is_workload(&link.name)
    }
}

/// What an interface needs to answer for others. `first`: also what the kernel does not report.
pub(super) fn settings(link: &Link, v6: bool, first: bool) -> Vec<Setting> {
    let name = &link.name;
    let mut settings = Vec::new();
    if first {
        // The kernel answers for others after a random delay, in case they answer themselves.
        settings.push(Setting::lenient(format!("net/ipv4/neigh/{name}/proxy_delay"), 0));
        if v6 {
            settings.push(Setting::lenient(format!("net/ipv6/neigh/{name}/proxy_delay"), 0));
        }
    }
    if v6 && link.conf.proxy_ndp != Some(1) {
        settings.push(Setting::new(format!("net/ipv6/conf/{name}/proxy_ndp"), 1));
    }
    settings
}
