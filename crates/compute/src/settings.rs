//! Derives the settings for programming kernel state from the parameters.

use crate::nat::NatPolicy;
use crate::parameters::{
    ClusterRoutes, FlowOffload, NatExclusions, NodeParameters, RouteSource, SourceSpoofing,
};
use crate::routes::RoutePolicy;
use crate::tunnels::TunnelSettings;
use crate::wireguard::{WireguardDeviceSettings, WireguardSettings};
use crate::workloads::EndpointPermissions;
use std::time::Duration;
use tortie_plan::flow::FlowSourceSettings;
use tortie_plan::{DataplaneSettings, LogLimit, MetadataService, NatSettings, PolicySettings, TunnelKind};

impl NodeParameters {
    pub fn settings(&self) -> DataplaneSettings {
        DataplaneSettings {
            interface_prefixes: self.interface_prefix.clone(),
            device_route_protocol: self.device_route_protocol,
            device_route_source_v4: self.device_route_source_address,
            device_route_source_v6: self.device_route_source_address_ipv6,
            ipv4_route_priority: self.ipv4_normal_route_priority,
            ipv6_route_priority: self.ipv6_normal_route_priority,
            ipv4_elevated_priority: self.ipv4_elevated_route_priority,
            ipv6_elevated_priority: self.ipv6_elevated_route_priority,
            remove_external_routes: self.remove_external_routes,
            program_routes: !self.route_sync_disabled,
            ip_forwarding: self.ip_forwarding,
            ipv6: self.ipv6_support,
            excluded_interfaces: self.interface_exclude.clone(),
            audit_routes: choose_shortest([self.route_refresh_interval, self.interface_refresh_interval]),
            audit_policy: choose_shortest([
                *self.nftables_refresh_interval.get().unwrap_or(&self.iptables_refresh_interval),
                self.ipsets_refresh_interval,
            ]),
            mtu_interface_pattern: self.mtu_iface_pattern.clone(),
            clamp_mss: self.clamp_mss,
            nat: self.nat_settings(),
            announce_proxied: Some(self.local_subnet_l2_reachability_refresh_interval)
                .filter(|interval| !interval.is_zero()),
            host_encryption: self.wireguard_host_encryption_enabled,
            policy: self.policy_settings(),
        }
    }

    fn policy_settings(&self) -> PolicySettings {
        let rate = self.log_action_rate_limit;
        PolicySettings {
            endpoint_to_host: self.default_endpoint_to_host_action,
            // Users who migrate from iptables have set the older of the two parameters.
            deny: *self.nftables_filter_deny_action.get().unwrap_or(&self.iptables_filter_deny_action),
            filter_allow: *self
                .nftables_filter_allow_action
                .get()
                .unwrap_or(&self.iptables_filter_allow_action),
            mangle_allow: *self
                .nftables_mangle_allow_action
                .get()
                .unwrap_or(&self.iptables_mangle_allow_action),
            drop_invalid: !self.disable_conntrack_invalid_check,
            vxlan_port: self.vxlan_port,
            vxlan_from_workloads: self.allow_vxlan_packets_from_workloads,
            ipip_from_workloads: self.allow_ipip_packets_from_workloads,
            failsafe_inbound: self.failsafe_inbound_host_ports.clone(),
            failsafe_outbound: self.failsafe_outbound_host_ports.clone(),
            log_prefix: self.log_prefix.clone(),
            log_limit: rate.map(|rate| LogLimit {
                packets: rate.packets,
                seconds: rate.seconds,
                burst: self.log_action_rate_limit_burst,
            }),
            cut_denied_flows: self.cut_denied_flows,
            // The kernel does not allow offloaded connections to be deleted.
            flow_offload: self.nftables_flow_table_offload == FlowOffload::All && !self.cut_denied_flows,
            service_loop: self.service_loop_prevention,
            marks: self.marks(),
            metadata: self.metadata(),
            ambient_dscp: self.istio_ambient_mode.then_some(self.istio_dscp_mark.0),
            flows: self.records_flows().then(FlowSourceSettings::default),
        }
    }

    /// Returns whether the node records flows.
    pub fn records_flows(&self) -> bool {
        !self.flow_logs_goldmane_server.is_empty() || self.flow_logs_local_reporter
    }

    /// Returns the metadata service. Only OpenStack has one; the interfaces of its virtual machines have the prefix `tap`.
    fn metadata(&self) -> Option<MetadataService> {
        let openstack = self.interface_prefix.iter().any(|prefix| prefix == "tap");
        let address = self.metadata_addr.filter(|_| openstack)?;
        Some(MetadataService { address, port: self.metadata_port })
    }

    fn nat_settings(&self) -> NatSettings {
        let filter = &self.iptables_nat_outgoing_interface_filter;
        NatSettings {
            ports: self.nat_port_range,
            address: self.nat_outgoing_address,
            out_interface: (!filter.is_empty()).then(|| filter.clone()),
        }
    }

    pub(crate) fn nat_policy(&self) -> NatPolicy {
        NatPolicy {
            exclude_hosts: self.nat_outgoing_exclusions == NatExclusions::PoolsAndHosts,
            external_nodes: self.external_nodes_list.clone(),
        }
    }

    /// Returns the routes that this node writes. `unencapsulated` decides about unencapsulated routes if
    /// `programClusterRoutes` is not set.
    pub(crate) fn route_policy(&self, unencapsulated: bool) -> RoutePolicy {
        let (no_encap, ipip) = match self.program_cluster_routes.get() {
            Some(ClusterRoutes::Enabled) => (true, true),
            Some(ClusterRoutes::Disabled) => (false, false),
            Some(ClusterRoutes::NoEncapOnly) => (true, false),
            Some(ClusterRoutes::IpipOnly) => (false, true),
            None => (unencapsulated, true),
        };
        RoutePolicy {
            no_encap,
            ipip: ipip && self.ipip_enabled.get() != Some(&false),
            vxlan: self.vxlan_enabled.get() != Some(&false),
            by_workload: self.route_source == RouteSource::WorkloadIps,
        }
    }

    pub(crate) fn tunnel_settings(&self) -> TunnelSettings {
        TunnelSettings {
            vxlan: self.vxlan_enabled.get().copied(),
            ipip: self.ipip_enabled.get().copied(),
            vni: self.vxlan_vni,
            port: self.vxlan_port,
            vxlan_mtu: read_mtu(self.vxlan_mtu),
            vxlan_mtu_v6: read_mtu(self.vxlan_mtu_v6),
            ipip_mtu: read_mtu(self.ipip_mtu),
            external: self.external_nodes_list.clone(),
        }
    }

    pub(crate) fn wireguard_settings(&self) -> WireguardSettings {
        WireguardSettings {
            v4: WireguardDeviceSettings {
                enabled: self.wireguard_enabled,
                name: choose_device_name(TunnelKind::WireguardV4, &self.wireguard_interface_name),
                port: self.wireguard_listening_port,
                mtu: read_mtu(self.wireguard_mtu),
            },
            v6: WireguardDeviceSettings {
                enabled: self.wireguard_enabled_v6 && self.ipv6_support,
                name: choose_device_name(TunnelKind::WireguardV6, &self.wireguard_interface_name_v6),
                port: self.wireguard_listening_port_v6,
                mtu: read_mtu(self.wireguard_mtu_v6),
            },
            // The older of the two parameters applies if it is set.
            table: self.route_table_range.get().unwrap_or(&self.route_table_ranges).0,
            priority: self.wireguard_routing_rule_priority,
            hosts: self.wireguard_host_encryption_enabled,
            keepalive: u16::try_from(self.wireguard_keep_alive.as_secs()).unwrap_or(u16::MAX),
            threaded: self.wireguard_threading_enabled,
            mark: self.marks().wireguard.unwrap_or_default(),
        }
    }

    pub(crate) fn permissions(&self) -> EndpointPermissions {
        EndpointPermissions { spoofing: self.workload_source_spoofing == SourceSpoofing::Any }
    }
}

/// Returns an MTU unless it is 0, which means that it is not configured.
fn read_mtu(mtu: u32) -> Option<u32> {
    Some(mtu).filter(|mtu| *mtu != 0)
}

fn choose_device_name(kind: TunnelKind, configured: &str) -> String {
    if configured.is_empty() { kind.device().to_owned() } else { configured.to_owned() }
}

/// Returns the shortest interval that is not zero; zero disables an interval.
fn choose_shortest(intervals: [Duration; 2]) -> Option<Duration> {
    intervals.into_iter().filter(|interval| !interval.is_zero()).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ParameterEnvironment;
    use std::collections::BTreeMap;
    use tortie_model::kinds::FelixConfiguration;
    use tortie_plan::{AllowAction, DenyAction, EndpointToHostAction, PortInterval};

    fn with(name: &str, value: &str) -> NodeParameters {
        let none: [FelixConfiguration; 0] = [];
        let environment = ParameterEnvironment::new([(format!("FELIX_{name}"), value.to_owned())], []);
        NodeParameters::resolve("n1", &BTreeMap::new(), &none, &environment)
    }

    #[test]
    fn nothing_configured_means_the_plan_s_defaults() {
        assert_eq!(NodeParameters::default().settings(), DataplaneSettings::default());
    }

    #[test]
    fn settings_follow_the_parameters() {
        assert_eq!(with("InterfacePrefix", "cali, tap").settings().interface_prefixes, ["cali", "tap"]);
        assert_eq!(with("DeviceRouteProtocol", "80").settings().device_route_protocol, 80);
        assert_eq!(with("DeviceRouteProtocol", "999").settings().device_route_protocol, 3);
        assert!(!with("IPForwarding", "Disabled").settings().ip_forwarding);
        assert!(!with("Ipv6Support", "false").settings().ipv6);
        assert!(!with("RouteSyncDisabled", "true").settings().program_routes);
        let excluded = with("InterfaceExclude", "docker0, /^br-/").settings().excluded_interfaces;
        assert_eq!(excluded, ["docker0", "/^br-/"]);
        let routes = |name, value| with(name, value).settings().audit_routes.map(|span| span.as_secs());
        assert_eq!(routes("RouteRefreshInterval", "20"), Some(20));
        assert_eq!(routes("InterfaceRefreshInterval", "0"), Some(90), "the other one still holds");
        let policy = |name, value| with(name, value).settings().audit_policy.map(|span| span.as_secs());
        assert_eq!(policy("IptablesRefreshInterval", "30"), Some(30));
        assert_eq!(policy("NftablesRefreshInterval", "40"), Some(40));
        assert_eq!(policy("IpsetsRefreshInterval", "0"), Some(180));
    }

    #[test]
    fn policy_settings_follow_the_parameters() {
        let policy = |name: &str, value: &str| with(name, value).settings().policy;
        let to_host = |value| policy("DefaultEndpointToHostAction", value).endpoint_to_host;
        assert_eq!(to_host("ACCEPT"), EndpointToHostAction::Accept);
        assert_eq!(to_host("Return"), EndpointToHostAction::Return);
        assert_eq!(to_host("nonsense"), EndpointToHostAction::Drop);
        assert_eq!(policy("IptablesFilterDenyAction", "REJECT").deny, DenyAction::Reject);
        assert_eq!(policy("NftablesFilterDenyAction", "Reject").deny, DenyAction::Reject);
        for name in ["IptablesFilterAllowAction", "NftablesFilterAllowAction"] {
            assert_eq!(policy(name, "RETURN").filter_allow, AllowAction::Return);
        }
        for name in ["IptablesMangleAllowAction", "NftablesMangleAllowAction"] {
            let mangle = policy(name, "return");
            assert_eq!(
                (mangle.filter_allow, mangle.mangle_allow),
                (AllowAction::Accept, AllowAction::Return)
            );
        }
        assert!(!policy("DisableConntrackInvalidCheck", "true").drop_invalid);
        assert_eq!(policy("VXLANPort", "8472").vxlan_port, 8472);
        assert!(policy("AllowVXLANPacketsFromWorkloads", "true").vxlan_from_workloads);
        assert!(policy("AllowIPIPPacketsFromWorkloads", "true").ipip_from_workloads);
        assert_eq!(policy("LogPrefix", "%t %n").log_prefix, "%t %n");
        let limit = LogLimit { packets: 10, seconds: 60, burst: 5 };
        assert_eq!(policy("LogActionRateLimit", "10/minute").log_limit, Some(limit));
        assert_eq!(policy("LogActionRateLimit", "").log_limit, None);
        assert!(policy("CutDeniedFlows", "true").cut_denied_flows);
        assert_eq!(policy("ServiceLoopPrevention", "Reject").service_loop, Some(DenyAction::Reject));
        assert_eq!(policy("ServiceLoopPrevention", "disabled").service_loop, None);
        assert_eq!(policy("IstioDSCPMark", "20").ambient_dscp, None);
        assert_eq!(policy("IstioAmbientMode", "Enabled").ambient_dscp, Some(23));
    }

    #[test]
    fn machines_of_openstack_find_their_metadata() {
        let with = |variables: &[(&str, &str)]| {
            let variables =
                variables.iter().map(|(name, value)| (format!("FELIX_{name}"), (*value).to_owned()));
            let none: [FelixConfiguration; 0] = [];
            let environment = ParameterEnvironment::new(variables, []);
            NodeParameters::resolve("n1", &BTreeMap::new(), &none, &environment).settings().policy.metadata
        };
        let at = |address: &str, port| Some(MetadataService { address: address.parse().unwrap(), port });
        assert_eq!(with(&[("METADATAADDR", "192.0.2.1")]), None, "there is no OpenStack");
        assert_eq!(with(&[("INTERFACEPREFIX", "cali,tap")]), at("127.0.0.1", 8775));
        let elsewhere = [("INTERFACEPREFIX", "tap"), ("METADATAADDR", "192.0.2.1"), ("METADATAPORT", "9000")];
        assert_eq!(with(&elsewhere), at("192.0.2.1", 9000));
        assert_eq!(with(&[("INTERFACEPREFIX", "tap"), ("METADATAADDR", "none")]), None);
    }

    #[test]
    fn marks_follow_the_mask() {
        let bits = |name: &str, value: &str| with(name, value).marks();
        assert_eq!(bits("IptablesMarkMask", "0xff").accepted, 1);
        assert_eq!(bits("NftablesMarkMask", "0xff00").passed, 0x200);
        assert_eq!(with("NftablesMarkMask", "0xff00").wireguard_settings().mark, 0x2000);
        assert_eq!(bits("NftablesMarkMask", "nonsense").accepted, 0x10000);
        // The bits in use stay in use.
        let old = with("NftablesMarkMask", "0xff");
        let mut new = with("NftablesMarkMask", "0x8");
        let named = "nftablesMarkMask (environment): 0x8 has 1 bits and policy needs 2; the previous bits stay in use";
        assert_eq!(new.warnings(), [named]);
        new.keep_marks(&old);
        assert_eq!(new.settings().policy.marks, old.marks());
    }

    #[test]
    fn nat_follows_the_parameters() {
        let nat = |name: &str, value: &str| with(name, value).settings().nat;
        assert_eq!(
            nat("NATPortRange", "32768:60999").ports,
            Some(PortInterval { first: 32768, last: 60999 })
        );
        assert_eq!(nat("NATPortRange", "4000").ports, Some(PortInterval { first: 4000, last: 4000 }));
        for wrong in ["0", "0:80", "http", "9:3", "70000"] {
            let parameters = with("NATPortRange", wrong);
            assert_eq!((parameters.settings().nat.ports, parameters.warnings().len()), (None, 1), "{wrong}");
        }
        assert_eq!(nat("NATOutgoingAddress", "192.0.2.1").address, "192.0.2.1".parse().ok());
        assert_eq!(nat("NATOutgoingAddress", "fd00::1").address, None);
        let filter = nat("IptablesNATOutgoingInterfaceFilter", "eth+").out_interface;
        assert_eq!(filter.as_deref(), Some("eth+"));
        assert!(with("NATOutgoingExclusions", "IPPoolsAndHostIPs").nat_policy().exclude_hosts);
        assert!(!with("NATOutgoingExclusions", "IPPoolsOnly").nat_policy().exclude_hosts);
        let external =
            with("ExternalNodesCIDRList", "192.0.2.1, 198.51.100.0/24").nat_policy().external_nodes;
        assert_eq!(external, ["192.0.2.1/32".parse().unwrap(), "198.51.100.0/24".parse().unwrap()]);
    }

    #[test]
    fn unencapsulated_routes_are_whose_the_settings_say() {
        let policy = |value: &str| {
            let policy = with("ProgramClusterRoutes", value).route_policy(false);
            (policy.no_encap, policy.ipip)
        };
        for unencapsulated in [false, true] {
            let unset = NodeParameters::default().route_policy(unencapsulated);
            assert_eq!((unset.no_encap, unset.ipip), (unencapsulated, true));
        }
        assert_eq!(policy("EnabledIPIPOnly"), (false, true));
        assert_eq!(policy("EnabledNoEncapOnly"), (true, false));
        assert_eq!(policy("Disabled"), (false, false));
        assert_eq!(policy("Enabled"), (true, true));
    }
}
