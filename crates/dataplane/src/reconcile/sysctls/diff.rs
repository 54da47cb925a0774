//! Computes the settings that differ from the desired ones.

use super::super::DataplaneCore;
use super::desired::{SysctlInputs, unreported, wanted};
use crate::failure::KernelObject;
use crate::kernel::LinkSettings;
use crate::sysctl::SysctlSetting;
use tortie_plan::PlannedWorkload;

/// Returns the settings that differ from the desired ones. `first` adds those that the kernel does not report.
fn missing(
    interface: &str,
    conf: &LinkSettings,
    workload: &PlannedWorkload,
    needs: SysctlInputs,
    first: bool,
) -> Vec<SysctlSetting> {
    let differs = |reported: Option<i32>, wanted: i32| match reported {
        Some(value) => value != wanted,
        None => first,
    };
    let mut missing: Vec<SysctlSetting> = wanted(interface, conf, workload, needs)
        .into_iter()
        .filter(|(reported, setting)| differs(*reported, setting.value))
        .map(|(_, setting)| setting)
        .collect();
    if first {
        missing.push(unreported(interface));
    }
    missing
}

impl DataplaneCore {
    /// Returns the pending settings of workload interfaces.
    pub fn conf_work(&self) -> Vec<(u32, Vec<SysctlSetting>)> {
        let mut work = Vec::new();
        if !self.settings.program_routes {
            return work;
        }
        for (link, workload) in self.unchecked.iter().filter_map(|index| self.leads_to(*index)) {
            let first = !self.prepared.contains(&link.index);
            let rp_filter = if workload.may_spoof { 0 } else { self.rp_filter };
            let answers = self.settings.policy.metadata;
            let needs = SysctlInputs {
                rp_filter,
                v6: self.settings.ipv6,
                loopback: answers.is_some_and(|metadata| metadata.address.is_loopback()),
            };
            let settings = missing(&link.name, &link.conf, workload, needs, first);
            if !settings.is_empty() {
                work.push((link.index, settings));
            }
        }
        work
    }

    pub fn conf_written(&mut self, index: u32, outcome: Result<(), (KernelObject, String)>) {
        match outcome {
            Ok(()) => {
                self.prepared.insert(index);
                self.conf_errors.remove(&index);
            }
            Err(reason) => {
                self.conf_errors.insert(index, reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: LinkSettings = LinkSettings {
        v4_forwarding: Some(1),
        proxy_arp: Some(1),
        rp_filter: Some(1),
        route_localnet: Some(0),
        v6_forwarding: Some(1),
        proxy_ndp: Some(1),
        accept_ra: Some(0),
    };

    fn keys(conf: LinkSettings, rp_filter: i32, first: bool) -> Vec<String> {
        keys_with(conf, SysctlInputs { rp_filter, v6: true, loopback: false }, first)
    }

    fn keys_with(conf: LinkSettings, needs: SysctlInputs, first: bool) -> Vec<String> {
        let workload = PlannedWorkload { interface: "cali1".into(), ..PlannedWorkload::default() };
        let missing = missing("cali1", &conf, &workload, needs, first);
        missing.into_iter().map(|setting| format!("{}={}", setting.key, setting.value)).collect()
    }

    #[test]
    fn only_what_differs_is_written() {
        assert_eq!(keys(RIGHT, 1, false), [""; 0]);
        assert_eq!(keys(RIGHT, 0, false), ["net/ipv4/conf/cali1/rp_filter=0"]);
        let conf = LinkSettings { proxy_arp: Some(0), accept_ra: Some(1), ..RIGHT };
        assert_eq!(
            keys(conf, 1, false),
            ["net/ipv4/conf/cali1/proxy_arp=1", "net/ipv6/conf/cali1/accept_ra=0"]
        );
    }

    #[test]
    fn the_loopback_is_routed_to_only_where_something_there_answers() {
        let needs = SysctlInputs { rp_filter: 1, v6: true, loopback: true };
        assert_eq!(keys_with(RIGHT, needs, false), ["net/ipv4/conf/cali1/route_localnet=1"]);
        assert_eq!(
            keys(LinkSettings { route_localnet: Some(1), ..RIGHT }, 1, false),
            [""; 0],
            "somebody else's"
        );
    }

    #[test]
    fn what_cannot_be_read_back_is_written_once() {
        assert_eq!(keys(RIGHT, 1, true), ["net/ipv4/neigh/cali1/proxy_delay=0"]);
        assert_eq!(keys(LinkSettings { proxy_ndp: None, ..RIGHT }, 1, false), [""; 0]);
    }
}
