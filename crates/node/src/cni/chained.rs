//! Chained mode: another plugin earlier in the plugin list has created the container's interface, and we enforce
//! policy on it. Addresses, routes and the interface itself remain under the control of the other plugin.

use super::config::NetworkConfig;
use super::result::CniResult;
use std::net::IpAddr;
use tortie_cni::{CniError, code};

/// The result of the plugins before us.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ChainedInterface {
    pub result: CniResult,
    /// Name of the interface on the host.
    pub host_interface: String,
    /// MAC address of the interface in the container.
    pub mac: String,
}

impl ChainedInterface {
    /// Parses `prevResult`. Returns None for the first plugin of a list. `prefixes` are the name prefixes of workload
    /// interfaces.
    pub fn from_config(
        config: &NetworkConfig,
        ifname: &str,
        prefixes: &[String],
    ) -> Result<Option<ChainedInterface>, CniError> {
        let Some(previous) = &config.previous else { return Ok(None) };
        let result = CniResult::parse(previous).map_err(|error| refuse_previous_result(error.to_string()))?;
        // The bridge plugin lists the bridge before its port.
        let mut interfaces = result.interfaces.iter().rev();
        let outside = interfaces.find(|interface| interface.sandbox.is_empty() && !interface.name.is_empty());
        let Some(outside) = outside else {
            return Err(refuse_previous_result("it names no interface of the host".to_owned()));
        };
        if !prefixes.iter().any(|prefix| outside.name.starts_with(prefix.as_str())) {
            return Err(refuse_previous_result(format!(
                "policy is enforced on interfaces that begin with {}, which {} does not: set interfacePrefix \
                 (FELIX_INTERFACEPREFIX)",
                prefixes.join(" or "),
                outside.name
            )));
        }
        if result.ips.is_empty() {
            return Err(refuse_previous_result("the container has no address".to_owned()));
        }
        let inside = result.interfaces.iter().find(|interface| interface.name == ifname);
        let mac = inside.map(|interface| interface.mac.clone()).unwrap_or_default();
        let host_interface = outside.name.clone();
        Ok(Some(ChainedInterface { result, host_interface, mac }))
    }

    pub fn addresses(&self) -> Vec<IpAddr> {
        self.result.ips.iter().map(|ip| ip.address.addr()).collect()
    }
}

fn refuse_previous_result(reason: String) -> CniError {
    CniError::new(code::NETWORK_CONFIG, "prevResult cannot be used").with(reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn chained(previous: Value) -> Result<Option<ChainedInterface>, CniError> {
        let config = NetworkConfig { previous: Some(previous), ..NetworkConfig::default() };
        ChainedInterface::from_config(&config, "eth0", &["cali".to_owned(), "veth".to_owned()])
    }

    #[test]
    fn results_of_ptp_and_bridge_name_the_interface() {
        let ptp = json!({"cniVersion": "1.0.0", "dns": {},
            "interfaces": [{"name": "veth1a2b", "mac": "aa:00:00:00:00:01"},
                {"name": "eth0", "mac": "aa:00:00:00:00:02", "sandbox": "/run/netns/x"}],
            "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 1}, {"address": "fd00::2/64", "interface": 1}]});
        let found = chained(ptp).unwrap().unwrap();
        assert_eq!((found.host_interface.as_str(), found.mac.as_str()), ("veth1a2b", "aa:00:00:00:00:02"));
        assert_eq!(found.addresses(), ["10.0.0.2".parse::<IpAddr>().unwrap(), "fd00::2".parse().unwrap()]);
        let bridge = json!({"interfaces": [{"name": "cni0"}, {"name": "vethx"}, {"name": "eth0", "sandbox": "/x"}],
            "ips": [{"address": "10.0.0.2/24"}]});
        assert_eq!(chained(bridge).unwrap().unwrap().host_interface, "vethx");
    }

    #[test]
    fn interfaces_without_policy_are_refused_by_name() {
        for (previous, reason) in [
            (
                json!({"interfaces": [{"name": "eth0", "sandbox": "/x"}], "ips": [{"address": "10.0.0.2/24"}]}),
                "no interface",
            ),
            (json!({"interfaces": [{"name": "eni7"}], "ips": [{"address": "10.0.0.2/24"}]}), "eni7 does not"),
            (json!({"interfaces": [{"name": "veth7"}], "ips": []}), "no address"),
            (json!({"interfaces": [{"name": "veth7"}], "ips": [{"address": "x"}]}), "not a CIDR"),
        ] {
            let error = chained(previous).unwrap_err();
            assert_eq!(error.code, code::NETWORK_CONFIG);
            assert!(error.to_string().contains(reason), "{error}");
        }
        assert_eq!(ChainedInterface::from_config(&NetworkConfig::default(), "eth0", &[]).unwrap(), None);
    }
}
