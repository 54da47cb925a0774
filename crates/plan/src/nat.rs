//! NAT: whose packets leave the cluster with the address of their node, and which addresses stand for those of workloads.

use crate::change::Plan;
use crate::policy::PortRange;
use crate::set::{Member, SetId};
use std::net::{IpAddr, Ipv4Addr};

/// Addresses whose packets are translated: those of pools with `natOutgoing`. Without this set nothing is.
pub const NAT_SOURCES: &str = "masq-ipam-pools";
/// Destinations to which nothing is translated: all pools and, if the settings say so, the addresses of nodes.
pub const NAT_EXCLUSIONS: &str = "masq-exclusions";

/// All pools. In the plan as long as somebody's packets are marked on their way out of the cluster.
pub const POOLS: &str = "network-ip-pools";

/// An address that stands for one of a workload's own, of the same family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FloatingIp {
    pub external: IpAddr,
    pub internal: IpAddr,
}

/// How packets are translated; from FelixConfiguration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatSettings {
    /// The source ports that TCP and UDP get; any if `None`.
    pub ports: Option<PortRange>,
    /// The source address that IPv4 packets get; that of the interface they leave by if `None`.
    pub address: Option<Ipv4Addr>,
    /// Only what leaves by this interface is translated; with `+` at its end, by those whose names begin like it.
    pub out_interface: Option<String>,
}

impl NatSettings {
    /// Whether what leaves by an interface may be translated.
    pub fn leaves_by(&self, interface: &str) -> bool {
        match self.out_interface.as_deref() {
            None => true,
            Some(filter) => match filter.strip_suffix('+') {
                Some(beginning) => interface.starts_with(beginning),
                None => interface == filter,
            },
        }
    }
}

impl Plan {
    /// Whether the first packet of a connection gets another source address when it is sent by an interface.
    pub fn is_translated(
        &self,
        source: IpAddr,
        destination: IpAddr,
        interface: &str,
        settings: &NatSettings,
    ) -> bool {
        let has = |set: &str, address: IpAddr| {
            let members = self.sets.get(&SetId::new(set)).into_iter().flat_map(|set| &set.members);
            members.into_iter().any(|member| matches!(member, Member::Net(net) if net.contains(&address)))
        };
        has(NAT_SOURCES, source) && !has(NAT_EXCLUSIONS, destination) && settings.leaves_by(interface)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Set, SetKind};

    fn plan(sources: &[&str], exclusions: &[&str]) -> Plan {
        let set = |nets: &[&str]| {
            let members = nets.iter().map(|net| Member::Net(net.parse().unwrap())).collect();
            Set { kind: SetKind::Nets, members }
        };
        let mut plan = Plan::default();
        plan.sets.insert(SetId::new(NAT_SOURCES), set(sources));
        plan.sets.insert(SetId::new(NAT_EXCLUSIONS), set(exclusions));
        plan
    }

    #[test]
    fn what_leaves_all_pools_is_translated_and_nothing_else() {
        let plan = plan(&["10.0.0.0/16", "fd00::/64"], &["10.0.0.0/15", "fd00::/48", "192.0.2.1/32"]);
        let settings = NatSettings::default();
        let translated = |source: &str, destination: &str| {
            plan.is_translated(source.parse().unwrap(), destination.parse().unwrap(), "eth0", &settings)
        };
        assert!(translated("10.0.0.1", "198.51.100.1") && translated("fd00::1", "2001:db8::1"));
        assert!(!translated("10.0.0.1", "10.0.7.1"), "the same pool");
        assert!(!translated("10.0.0.1", "10.1.0.1"), "another pool");
        assert!(!translated("10.0.0.1", "192.0.2.1"), "a node that is left out");
        assert!(!translated("10.1.0.1", "198.51.100.1"), "a pool without natOutgoing");
        assert!(!translated("fd00:0:0:1::1", "2001:db8::1") && !translated("fd00::1", "fd00:0:0:1::1"));
        assert!(!Plan::default().is_translated(
            "10.0.0.1".parse().unwrap(),
            "198.51.100.1".parse().unwrap(),
            "eth0",
            &settings
        ));
    }

    #[test]
    fn an_interface_may_be_asked_for_by_its_name_or_the_beginning_of_it() {
        let by = |filter: &str| NatSettings { out_interface: Some(filter.into()), ..NatSettings::default() };
        assert!(NatSettings::default().leaves_by("eth0"));
        assert!(by("eth0").leaves_by("eth0") && !by("eth0").leaves_by("eth01"));
        assert!(by("eth+").leaves_by("eth01") && !by("eth+").leaves_by("ens1"));
        assert!(by("+").leaves_by("anything"));
    }
}
