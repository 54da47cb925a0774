//! The network configuration that a runtime passes on standard input, limited to the keys that the node uses.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use tortie_cni::{CniError, SUPPORTED_VERSIONS, code};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NetworkConfig {
    #[serde(rename = "cniVersion")]
    pub cni_version: String,
    pub name: String,
    pub nodename: String,
    pub mtu: i64,
    pub num_queues: i64,
    pub device_type: String,
    pub ipam: CniIpamConfig,
    pub policy: PolicyConfig,
    pub kubernetes: KubernetesConfig,
    pub include_default_routes: bool,
    pub container_settings: ContainerSettings,
    pub feature_control: FeatureControl,
    pub dataplane_options: DataplaneOptions,
    pub policy_setup_timeout_seconds: i64,
    /// URLs that must respond successfully before a container is attached.
    pub readiness_gates: Vec<String>,
    /// Mesos labels: `args."org.apache.mesos".network_info.labels.labels[]`.
    pub args: Value,
    /// Labels of the endpoint, for runtimes that do not pass any.
    pub tortie_labels: BTreeMap<String, String>,
    #[serde(rename = "prevResult")]
    pub previous: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments")]
    pub valid_attachments: Option<Vec<ValidAttachment>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CniIpamConfig {
    #[serde(rename = "type")]
    pub kind: String,
    pub assign_ipv4: Option<String>,
    pub assign_ipv6: Option<String>,
    pub ipv4_pools: Vec<String>,
    pub ipv6_pools: Vec<String>,
    pub routes: Vec<IpamRoute>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IpamRoute {
    pub dst: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PolicyConfig {
    #[serde(rename = "type")]
    pub kind: String,
    pub k8s_api_root: String,
    pub k8s_auth_token: String,
    pub k8s_client_certificate: String,
    pub k8s_client_key: String,
    pub k8s_certificate_authority: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct KubernetesConfig {
    pub kubeconfig: String,
    pub k8s_api_root: String,
    /// The node whose pod CIDRs host-local uses.
    pub node_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerSettings {
    pub allow_ip_forwarding: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct FeatureControl {
    pub ip_addrs_no_ipam: bool,
    pub floating_ips: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DataplaneOptions {
    #[serde(rename = "type")]
    pub kind: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValidAttachment {
    #[serde(rename = "containerID")]
    pub container_id: String,
    pub ifname: String,
}

/// The version that applies if the configuration does not state one.
const DEFAULT_CNI_VERSION: &str = "0.2.0";

fn config_error(message: String) -> Result<(), CniError> {
    Err(CniError::new(code::NETWORK_CONFIG, message))
}

fn decode_error(error: serde_json::Error) -> CniError {
    CniError::new(code::DECODE, "failed to decode the network configuration").with(error.to_string())
}

impl NetworkConfig {
    /// Parses a configuration. Returns the keys that the node uses, and the whole object for delegated plugins.
    pub fn parse(text: &str) -> Result<(NetworkConfig, Map<String, Value>), CniError> {
        let whole: Map<String, Value> = serde_json::from_str(text).map_err(decode_error)?;
        let mut config: NetworkConfig =
            serde_json::from_value(without_nulls(whole.clone())).map_err(decode_error)?;
        if config.name.is_empty() {
            return Err(CniError::new(code::NETWORK_CONFIG, "missing network name"));
        }
        if !config.name.bytes().all(|c| c.is_ascii_alphanumeric() || b"_.-".contains(&c)) {
            let message = format!("invalid characters found in network name {:?}", config.name);
            return Err(CniError::new(code::NETWORK_CONFIG, message));
        }
        if config.cni_version.is_empty() {
            config.cni_version = DEFAULT_CNI_VERSION.to_owned();
        }
        if !SUPPORTED_VERSIONS.contains(&config.cni_version.as_str()) {
            let details =
                format!("config is {:?}, plugin supports {SUPPORTED_VERSIONS:?}", config.cni_version);
            return Err(CniError::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions").with(details));
        }
        Ok((config, whole))
    }

    /// Returns whether the CNI version is at least this one.
    pub fn is_at_least(&self, version: &str) -> bool {
        let position = |version: &str| SUPPORTED_VERSIONS.iter().position(|known| *known == version);
        position(&self.cni_version) >= position(version)
    }

    /// Returns an error if the configuration cannot be used for an attachment.
    pub fn check(&self, node: &str) -> Result<(), CniError> {
        if !self.nodename.is_empty() && self.nodename != node {
            return config_error(format!("nodename is {:?}, but this is node {node:?}", self.nodename));
        }
        // 68 is the minimum MTU of IPv4, 65535 the maximum of a veth.
        if self.mtu != 0 && !(68..=65535).contains(&self.mtu) {
            return config_error(format!(
                "mtu {} is out of range: it must be between 68 and 65535",
                self.mtu
            ));
        }
        match self.device_type.as_str() {
            "" | "veth" => {}
            "netkit" => {
                return config_error("device_type \"netkit\" is not supported yet: use \"veth\"".to_owned());
            }
            other => {
                return config_error(format!(
                    "unknown device_type {other:?} in CNI config (supported: \"veth\")"
                ));
            }
        }
        if self.policy_setup_timeout_seconds < 0 {
            return config_error("policy_setup_timeout_seconds must not be negative".to_owned());
        }
        if !self.dataplane_options.kind.is_empty() {
            return config_error(format!(
                "dataplane_options.type {:?} is not supported",
                self.dataplane_options.kind
            ));
        }
        // In chained mode the earlier plugin assigns the addresses.
        if self.ipam.kind.is_empty() && self.previous.is_none() {
            return config_error("ipam.type is missing: use calico-ipam, or a plugin in CNI_PATH".to_owned());
        }
        Ok(())
    }
}

/// Returns the keys of a configuration that specify a datastore. They have no effect, because the daemon has its own
/// connection.
pub fn find_ignored_keys(whole: &Map<String, Value>) -> Vec<&str> {
    let is_ignored = |key: &str| key == "datastore_type" || key.starts_with("etcd_");
    let is_set = |value: &Value| value.as_str().is_none_or(|text| !text.is_empty()) && !value.is_null();
    whole
        .iter()
        .filter(|(key, value)| is_ignored(key) && is_set(value))
        .map(|(key, _)| key.as_str())
        .collect()
}

/// Removes keys whose value is `null`, which counts as absent.
fn without_nulls(map: Map<String, Value>) -> Value {
    Value::Object(map.into_iter().filter(|(_, value)| !value.is_null()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_error_code(text: &str) -> u32 {
        NetworkConfig::parse(text).unwrap_err().code
    }

    #[test]
    fn parse_errors_have_cni_codes() {
        assert_eq!(parse_error_code(""), code::DECODE);
        assert_eq!(parse_error_code("[]"), code::DECODE);
        assert_eq!(parse_error_code(r#"{"name":"n","mtu":"x"}"#), code::DECODE);
        assert_eq!(parse_error_code(&"[".repeat(100_000)), code::DECODE);
        assert_eq!(parse_error_code("{}"), code::NETWORK_CONFIG);
        assert_eq!(parse_error_code(r#"{"name":"a b"}"#), code::NETWORK_CONFIG);
        assert_eq!(parse_error_code(r#"{"name":"n","cniVersion":"2.0.0"}"#), code::INCOMPATIBLE_VERSION);
    }

    #[test]
    fn keys_of_the_datastore_are_found() {
        let text = r#"{"name":"n","datastore_type":"etcdv3","etcd_endpoints":"http://e","etcd_key_file":"",
            "etcd_authority":null,"log_level":"info"}"#;
        let (_, whole) = NetworkConfig::parse(text).unwrap();
        assert_eq!(find_ignored_keys(&whole), ["datastore_type", "etcd_endpoints"]);
    }

    #[test]
    fn cni_versions_are_ordered() {
        let (config, _) = NetworkConfig::parse(r#"{"name":"n","cniVersion":"0.4.0"}"#).unwrap();
        assert!(config.is_at_least("0.3.1") && config.is_at_least("0.4.0") && !config.is_at_least("1.0.0"));
        let (without_version, _) = NetworkConfig::parse(r#"{"name":"n","ipam":null}"#).unwrap();
        assert_eq!(without_version.cni_version, "0.2.0");
    }

    #[test]
    fn invalid_configurations_are_rejected() {
        let check = |rest: &str| {
            let text = format!(r#"{{"name":"n","ipam":{{"type":"calico-ipam"}}{rest}}}"#);
            NetworkConfig::parse(&text).unwrap().0.check("n1").map_err(|error| error.code)
        };
        assert_eq!(check(""), Ok(()));
        assert_eq!(check(r#","mtu":1450,"nodename":"n1","device_type":"veth""#), Ok(()));
        for bad in [
            r#","mtu":67"#,
            r#","mtu":70000"#,
            r#","nodename":"n2""#,
            r#","device_type":"tap""#,
            r#","device_type":"netkit""#,
            r#","policy_setup_timeout_seconds":-1"#,
            r#","dataplane_options":{"type":"grpc"}"#,
        ] {
            assert_eq!(check(bad), Err(code::NETWORK_CONFIG), "{bad}");
        }
    }
}
