//! Determines the interfaces on which each proxied address is answered: those whose subnet contains it, as hosts send
//! ARP or ND requests only for addresses of their subnet.

use super::super::DataplaneCore;
use crate::kernel::{KernelLink, NeighbourKey};
use crate::sysctl::SysctlSetting;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;

impl DataplaneCore {
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
            // The kernel itself answers for an interface's own address.
            let asked =
                |address: &IpAddr| subnets.iter().any(|net| net.contains(address) && net.addr() != *address);
            let addresses = self.plan.proxied().iter().filter(|address| asked(address));
            wanted.extend(addresses.map(|address| NeighbourKey { device: link.index, address: *address }));
        }
        wanted
    }

    /// Whether the interface is on a link with hosts that may send requests.
    fn is_asked(&self, link: &KernelLink) -> bool {
        let has_mac = link.mac.is_some_and(|mac| mac != [0; 6]);
        link.enabled && has_mac && !link.is_tunnel() && !self.is_workload(&link.name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProxyFamily {
    V4,
    V6,
}

impl ProxyFamily {
    pub fn of(key: &NeighbourKey) -> ProxyFamily {
        if key.address.is_ipv4() { ProxyFamily::V4 } else { ProxyFamily::V6 }
    }
}

/// Returns the settings that proxying changes, on an interface or on `default`, the template for new interfaces.
pub(super) fn changed(interface: &str, family: ProxyFamily) -> Vec<String> {
    let mut changed = vec![proxy_delay(interface, family)];
    changed.extend((family == ProxyFamily::V6).then(|| proxy_ndp(interface)));
    changed
}

/// Returns the settings that an interface needs for proxying. `first` adds those whose values the kernel does not
/// report.
pub(super) fn settings(link: &KernelLink, family: ProxyFamily, first: bool) -> Vec<SysctlSetting> {
    let name = &link.name;
    let mut settings = Vec::new();
    if first {
        // By default the kernel delays proxy replies at random, in case the owner answers itself.
        settings.push(SysctlSetting::lenient(proxy_delay(name, family), 0));
    }
    if family == ProxyFamily::V6 && link.conf.proxy_ndp != Some(1) {
        settings.push(SysctlSetting::new(proxy_ndp(name), 1));
    }
    settings
}

fn proxy_delay(interface: &str, family: ProxyFamily) -> String {
    let version = if family == ProxyFamily::V4 { "ipv4" } else { "ipv6" };
    format!("net/{version}/neigh/{interface}/proxy_delay")
}

fn proxy_ndp(interface: &str) -> String {
    format!("net/ipv6/conf/{interface}/proxy_ndp")
}
