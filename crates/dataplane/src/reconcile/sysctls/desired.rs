//! The desired settings of a workload's interface.

use crate::kernel::LinkSettings;
use crate::sysctl::SysctlSetting;
use tortie_plan::PlannedWorkload;

/// Inputs besides the workload itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct SysctlInputs {
    pub rp_filter: i32,
    pub v6: bool,
    /// Whether a service for the workload listens on the loopback of the host.
    pub loopback: bool,
}

/// Returns each setting with its current value, if the kernel reports it.
pub(super) fn wanted(
    interface: &str,
    conf: &LinkSettings,
    workload: &PlannedWorkload,
    needs: SysctlInputs,
) -> Vec<(Option<i32>, SysctlSetting)> {
    let SysctlInputs { rp_filter, v6: with_v6, loopback } = needs;
    let v4 = |name: &str| format!("net/ipv4/conf/{interface}/{name}");
    let v6 = |name: &str| format!("net/ipv6/conf/{interface}/{name}");
    let mut wanted = vec![
        (conf.proxy_arp, SysctlSetting::new(v4("proxy_arp"), 1)),
        (conf.v4_forwarding, SysctlSetting::new(v4("forwarding"), 1)),
        (conf.rp_filter, SysctlSetting::new(v4("rp_filter"), rp_filter)),
        // Even if IPv6 is disabled in the settings: a workload must not configure its host by router advertisements.
        (conf.accept_ra, SysctlSetting::lenient(v6("accept_ra"), 0)),
    ];
    if loopback {
        wanted.push((conf.route_localnet, SysctlSetting::new(v4("route_localnet"), 1)));
    }
    if with_v6 {
        // A kernel without IPv6 is an error only for workloads with an IPv6 address.
        let needed = workload.addresses.iter().any(|address| address.is_ipv6());
        let setting = if needed { SysctlSetting::new } else { SysctlSetting::lenient };
        wanted.push((conf.proxy_ndp, setting(v6("proxy_ndp"), 1)));
        wanted.push((conf.v6_forwarding, setting(v6("forwarding"), 1)));
    }
    wanted
}

/// Returns the setting that the kernel does not report at all; it is written once.
pub(super) fn unreported(interface: &str) -> SysctlSetting {
    SysctlSetting::lenient(format!("net/ipv4/neigh/{interface}/proxy_delay"), 0)
}
