//! How kernel state is written, from the parameters.

use crate::parameters::Parameters;
use crate::routes::Policy;
use tortie_plan::Settings;

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
            policy: usual.policy,
        }
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
    use tortie_model::kinds::FelixConfiguration;

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
