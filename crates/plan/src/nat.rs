//! NAT: which packets leave the cluster with the address of their node, and the floating IPs of workloads.

use crate::change::NodePlan;
use crate::policy::PortInterval;
use crate::set::{SetId, SetMember};
use std::net::{IpAddr, Ipv4Addr};

/// Source addresses that are translated: those of pools with `natOutgoing`. Without this set no packet is translated.
pub const NAT_SOURCES_SET: &str = "masq-ipam-pools";
/// Destinations for which packets are not translated: all pools and, if so configured, the addresses of nodes.
pub const NAT_EXCLUSIONS_SET: &str = "masq-exclusions";

/// All pools. In the plan while any endpoint sets the DSCP of packets that leave the cluster.
pub const ALL_POOLS_SET: &str = "network-ip-pools";

/// A floating IP: an external address that maps to one of a workload's own addresses of the same family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FloatingIp {
    pub external: IpAddr,
    pub internal: IpAddr,
}

/// NAT settings from FelixConfiguration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NatSettings {
    /// Source ports for translated TCP and UDP packets; any port if `None`.
    pub ports: Option<PortInterval>,
    /// Source address for translated IPv4 packets; that of the outgoing interface if `None`.
    pub address: Option<Ipv4Addr>,
    /// Only packets that leave by this interface are translated; a trailing `+` matches any interface with that
    /// prefix.
    pub out_interface: Option<String>,
}

impl NatSettings {
    /// Returns whether packets that leave by an interface may be translated.
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

impl NodePlan {
    /// Returns whether the first packet of a connection gets another source address when it leaves by an interface.
    pub fn is_translated(
        &self,
        source: IpAddr,
        destination: IpAddr,
        interface: &str,
        settings: &NatSettings,
    ) -> bool {
        self.set_contains(NAT_SOURCES_SET, source)
            && !self.set_contains(NAT_EXCLUSIONS_SET, destination)
            && settings.leaves_by(interface)
    }

    fn set_contains(&self, set: &str, address: IpAddr) -> bool {
        let members = self.sets.get(&SetId::new(set)).into_iter().flat_map(|set| &set.members);
        members.into_iter().any(|member| matches!(member, SetMember::Net(net) if net.contains(&address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AddressSet, SetKind};

    fn plan(sources: &[&str], exclusions: &[&str]) -> NodePlan {
        let set = |nets: &[&str]| {
            let members = nets.iter().map(|net| SetMember::Net(net.parse().unwrap())).collect();
            AddressSet { kind: SetKind::Nets, members }
        };
        let mut plan = NodePlan::default();
        plan.sets.insert(SetId::new(NAT_SOURCES_SET), set(sources));
        plan.sets.insert(SetId::new(NAT_EXCLUSIONS_SET), set(exclusions));
        plan
    }

    #[test]
    fn only_packets_that_leave_all_pools_are_translated() {
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
        assert!(!NodePlan::default().is_translated(
            "10.0.0.1".parse().unwrap(),
            "198.51.100.1".parse().unwrap(),
            "eth0",
            &settings
        ));
    }

    #[test]
    fn nat_interface_matches_by_name_or_prefix() {
        let by = |filter: &str| NatSettings { out_interface: Some(filter.into()), ..NatSettings::default() };
        assert!(NatSettings::default().leaves_by("eth0"));
        assert!(by("eth0").leaves_by("eth0") && !by("eth0").leaves_by("eth01"));
        assert!(by("eth+").leaves_by("eth01") && !by("eth+").leaves_by("ens1"));
        assert!(by("+").leaves_by("anything"));
    }
}
