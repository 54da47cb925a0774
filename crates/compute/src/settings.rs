//! How kernel state is written, from the parameters.

use crate::parameters::Parameters;
use crate::routes::Policy;
use tortie_plan::{DenyAction, EndpointToHost, LogLimit, PolicySettings, Settings};

impl Parameters {
    pub fn settings(&self) -> Settings {
        let usual = Settings::default();
        let prefixes: Vec<String> = self
            .text("interfacePrefix")
            .split(',')
            .map(str::trim)
            .filter(|prefix| !prefix.is_empty())
            .map(str::to_owned)
            .collect();
        let priority = |key, usual| u32::try_from(self.number(key)).unwrap_or(usual);
        Settings {
            interface_prefixes: if prefixes.is_empty() { usual.interface_prefixes } else { prefixes },
            device_route_protocol: u8::try_from(self.number("deviceRouteProtocol"))
                .unwrap_or(usual.device_route_protocol),
            ipv4_route_priority: priority("ipv4NormalRoutePriority", usual.ipv4_route_priority),
            ipv6_route_priority: priority("ipv6NormalRoutePriority", usual.ipv6_route_priority),
            remove_external_routes: self.flag("removeExternalRoutes"),
            ip_forwarding: self.text("ipForwarding") != "Disabled",
            ipv6: self.flag("ipv6Support"),
            mtu: None,
            mtu_interface_pattern: self.text("mtuIfacePattern"),
            policy: self.policy_settings(),
        }
    }

    fn policy_settings(&self) -> PolicySettings {
        let usual = PolicySettings::default();
        // Whoever moves here from iptables has set the older of the two.
        let deny = match self.is_set("nftablesFilterDenyAction") {
            true => "nftablesFilterDenyAction",
            false => "iptablesFilterDenyAction",
        };
        PolicySettings {
            endpoint_to_host: match self.text("defaultEndpointToHostAction").to_ascii_lowercase().as_str() {
                "accept" => EndpointToHost::Accept,
                "return" => EndpointToHost::Return,
                _ => EndpointToHost::Drop,
            },
            deny: match self.text(deny).eq_ignore_ascii_case("reject") {
                true => DenyAction::Reject,
                false => DenyAction::Drop,
            },
            drop_invalid: !self.flag("disableConntrackInvalidCheck"),
            vxlan_port: u16::try_from(self.number("vxlanPort")).unwrap_or(usual.vxlan_port),
            vxlan_from_workloads: self.flag("allowVXLANPacketsFromWorkloads"),
            ipip_from_workloads: self.flag("allowIPIPPacketsFromWorkloads"),
            failsafe_inbound: self.failsafes("failsafeInboundHostPorts"),
            failsafe_outbound: self.failsafes("failsafeOutboundHostPorts"),
            log_prefix: self.text("logPrefix"),
            log_limit: self.log_limit(),
            cut_denied_flows: self.flag("cutDeniedFlows"),
            service_loop: match self.text("serviceLoopPrevention").to_ascii_lowercase().as_str() {
                "disabled" => None,
                "reject" => Some(DenyAction::Reject),
                _ => Some(DenyAction::Drop),
            },
        }
    }

    /// `10/second`, or nothing.
    fn log_limit(&self) -> Option<LogLimit> {
        let text = self.text("logActionRateLimit");
        let (packets, unit) = text.split_once('/')?;
        let seconds = match unit {
            "second" => 1,
            "minute" => 60,
            "hour" => 60 * 60,
            "day" => 24 * 60 * 60,
            _ => return None,
        };
        let burst = u32::try_from(self.number("logActionRateLimitBurst")).ok()?;
        Some(LogLimit { packets: packets.parse().ok()?, seconds, burst })
    }

    /// Who writes which routes. Unless told otherwise, unencapsulated ones are left to BGP where the node speaks it.
    pub(crate) fn route_policy(&self, speaks_bgp: bool) -> Policy {
        let wanted = self.text("programClusterRoutes");
        let (no_encap, ipip) = match wanted.as_str() {
            "Enabled" => (true, true),
            "Disabled" => (false, false),
            "EnabledNoEncapOnly" => (true, false),
            _ if self.is_set("programClusterRoutes") => (false, true),
            _ => (!speaks_bgp, true),
        };
        Policy { no_encap, ipip, by_workload: self.text("routeSource") == "WorkloadIPs" }
    }

    pub(crate) fn may_spoof(&self) -> bool {
        self.text("workloadSourceSpoofing").eq_ignore_ascii_case("any")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;
    use std::collections::BTreeMap;
    use tortie_model::ObjectMeta;
    use tortie_model::kinds::{FelixConfiguration, FelixConfigurationSpec, ProtoPort};
    use tortie_plan::Failsafe;

    fn with(name: &str, value: &str) -> Parameters {
        let none: [FelixConfiguration; 0] = [];
        let environment = Environment::new([(format!("FELIX_{name}"), value.to_owned())]);
        Parameters::resolve("n1", &BTreeMap::new(), &none, &environment)
    }

    #[test]
    fn nothing_configured_means_the_plan_s_defaults() {
        assert_eq!(Parameters::default().settings(), Settings::default());
    }

    #[test]
    fn settings_follow_the_parameters() {
        assert_eq!(with("InterfacePrefix", "cali, tap").settings().interface_prefixes, ["cali", "tap"]);
        assert_eq!(with("DeviceRouteProtocol", "80").settings().device_route_protocol, 80);
        assert_eq!(with("DeviceRouteProtocol", "999").settings().device_route_protocol, 3);
        assert!(!with("IPForwarding", "Disabled").settings().ip_forwarding);
        assert!(!with("Ipv6Support", "false").settings().ipv6);
    }

    #[test]
    fn policy_settings_follow_the_parameters() {
        let policy = |name: &str, value: &str| with(name, value).settings().policy;
        let to_host = |value| policy("DefaultEndpointToHostAction", value).endpoint_to_host;
        assert_eq!(to_host("ACCEPT"), EndpointToHost::Accept);
        assert_eq!(to_host("Return"), EndpointToHost::Return);
        assert_eq!(to_host("nonsense"), EndpointToHost::Drop);
        assert_eq!(policy("IptablesFilterDenyAction", "REJECT").deny, DenyAction::Reject);
        assert_eq!(policy("NftablesFilterDenyAction", "Reject").deny, DenyAction::Reject);
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
    }

    #[test]
    fn failsafe_ports_are_read_from_text_and_from_objects() {
        let inbound =
            |value: &str| with("FailsafeInboundHostPorts", value).settings().policy.failsafe_inbound;
        let port = |protocol, port, net: &str| Failsafe { protocol, port, net: net.parse().ok() };
        assert_eq!(
            inbound("tcp:22, udp:10.1.2.0/24:68,sctp:[fd00::/8]:9"),
            [port(6, 22, ""), port(17, 68, "10.1.2.0/24"), port(132, 9, "fd00::/8")]
        );
        assert_eq!(inbound("none"), []);
        assert_eq!(inbound("tcp:http"), PolicySettings::default().failsafe_inbound, "not half of a list");
        let listed = |ports: Vec<ProtoPort>| {
            let spec = FelixConfigurationSpec {
                failsafe_outbound_host_ports: Some(ports),
                ..FelixConfigurationSpec::default()
            };
            let meta = ObjectMeta { name: "default".into(), ..ObjectMeta::default() };
            let configuration = FelixConfiguration::new(meta, spec);
            let none = Environment::default();
            let parameters = Parameters::resolve("n1", &BTreeMap::new(), [&configuration], &none);
            parameters.settings().policy.failsafe_outbound
        };
        assert_eq!(listed(vec![]), []);
        let entry = ProtoPort { protocol: String::new(), port: 53, net: "192.0.2.7/32".into() };
        assert_eq!(listed(vec![entry]), [port(6, 53, "192.0.2.7/32")]);
    }

    #[test]
    fn unencapsulated_routes_are_ours_unless_somebody_says_otherwise() {
        let policy = |value: &str| {
            let policy = with("ProgramClusterRoutes", value).route_policy(true);
            (policy.no_encap, policy.ipip)
        };
        for speaks_bgp in [false, true] {
            let unset = Parameters::default().route_policy(speaks_bgp);
            assert_eq!((unset.no_encap, unset.ipip), (!speaks_bgp, true));
        }
        assert_eq!(policy("EnabledIPIPOnly"), (false, true));
        assert_eq!(policy("EnabledNoEncapOnly"), (true, false));
        assert_eq!(policy("Disabled"), (false, false));
        assert_eq!(policy("Enabled"), (true, true));
    }
}
