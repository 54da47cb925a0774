//! The desired settings of a workload's interface, and those that differ from them.

use crate::kernel::LinkSettings;
use crate::sysctl::SysctlSetting;
use tortie_plan::PlannedWorkload;

/// Inputs besides the workload itself.
#[derive(Clone, Copy, Debug)]
pub struct SysctlInputs {
    pub rp_filter: i32,
    pub ipv6: bool,
    /// Whether a service for the workload listens on the loopback of the host.
    pub loopback: bool,
    /// Whether the settings that the kernel does not report have to be written too.
    pub is_first: bool,
}

/// Returns the settings that differ from the desired ones.
pub fn missing_settings(
    interface: &str,
    conf: &LinkSettings,
    workload: &PlannedWorkload,
    inputs: SysctlInputs,
) -> Vec<SysctlSetting> {
    let mut missing = Vec::new();
    for (reported, setting) in desired_settings(interface, conf, workload, inputs) {
        if reported.map_or(inputs.is_first, |value| value != setting.value) {
            missing.push(setting);
        }
    }
    if inputs.is_first {
        // The kernel does not report this setting at all.
        missing.push(SysctlSetting::lenient(format!("net/ipv4/neigh/{interface}/proxy_delay"), 0));
    }
    missing
}

/// Returns each setting with its current value, if the kernel reports it.
fn desired_settings(
    interface: &str,
    conf: &LinkSettings,
    workload: &PlannedWorkload,
    inputs: SysctlInputs,
) -> Vec<(Option<i32>, SysctlSetting)> {
    let ipv4 = format!("net/ipv4/conf/{interface}");
    let ipv6 = format!("net/ipv6/conf/{interface}");
    let mut desired = vec![
        (conf.proxy_arp, SysctlSetting::new(format!("{ipv4}/proxy_arp"), 1)),
        (conf.v4_forwarding, SysctlSetting::new(format!("{ipv4}/forwarding"), 1)),
        (conf.rp_filter, SysctlSetting::new(format!("{ipv4}/rp_filter"), inputs.rp_filter)),
        // Even if IPv6 is disabled in the settings: a workload must not configure its host by router advertisements.
        (conf.accept_ra, SysctlSetting::lenient(format!("{ipv6}/accept_ra"), 0)),
    ];
    if inputs.loopback {
        desired.push((conf.route_localnet, SysctlSetting::new(format!("{ipv4}/route_localnet"), 1)));
    }
    if inputs.ipv6 {
        // A kernel without IPv6 is an error only for workloads with an IPv6 address.
        let is_needed = workload.addresses.iter().any(|address| address.is_ipv6());
        let setting = if is_needed { SysctlSetting::new } else { SysctlSetting::lenient };
        desired.push((conf.proxy_ndp, setting(format!("{ipv6}/proxy_ndp"), 1)));
        desired.push((conf.v6_forwarding, setting(format!("{ipv6}/forwarding"), 1)));
    }
    desired
}
