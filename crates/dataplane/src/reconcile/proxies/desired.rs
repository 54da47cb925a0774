//! Determines the interfaces on which each proxied address is answered: those whose subnet contains it, as hosts send
//! ARP or ND requests only for addresses of their subnet.

use super::super::ReconcileContext;
use crate::kernel::{KernelLink, NeighbourKey};
use crate::sysctl::SysctlSetting;
use ipnet::IpNet;
use std::collections::BTreeSet;

pub fn desired_proxies(context: &ReconcileContext) -> BTreeSet<NeighbourKey> {
    let mut desired = BTreeSet::new();
    if context.plan.proxied().is_empty() || !context.settings.program_routes {
        return desired;
    }
    for link in context.links.iter().filter(|link| receives_requests(link, context)) {
        let subnets: Vec<IpNet> = context
            .links
            .nets_of(link.index)
            .filter(|net| net.prefix_len() < net.max_prefix_len())
            .filter(|net| net.addr().is_ipv4() || context.settings.ipv6)
            .collect();
        for address in context.plan.proxied() {
            // The kernel itself answers for an interface's own address.
            if subnets.iter().any(|net| net.contains(address) && net.addr() != *address) {
                desired.insert(NeighbourKey { device: link.index, address: *address });
            }
        }
    }
    desired
}

/// Returns whether the interface is on a link with hosts that may send requests.
fn receives_requests(link: &KernelLink, context: &ReconcileContext) -> bool {
    let has_mac = link.mac.is_some_and(|mac| mac != [0; 6]);
    link.enabled && has_mac && !link.is_tunnel() && !context.is_workload(&link.name)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProxyFamily {
    V4,
    V6,
}

/// Returns the settings that proxying changes, on an interface or on `default`, the template for new interfaces.
pub fn changed_settings(interface: &str, family: ProxyFamily) -> Vec<String> {
    let mut changed = vec![proxy_delay(interface, family)];
    changed.extend((family == ProxyFamily::V6).then(|| proxy_ndp(interface)));
    changed
}

/// Returns the settings that an interface needs for proxying. `is_first` adds those whose values the kernel does not
/// report.
pub fn needed_settings(link: &KernelLink, family: ProxyFamily, is_first: bool) -> Vec<SysctlSetting> {
    let name = &link.name;
    let mut settings = Vec::new();
    if is_first {
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
