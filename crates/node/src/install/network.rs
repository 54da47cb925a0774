//! The network configuration for the runtime: the built-in one or one from the operator, filled in with the values of
//! this node.

use super::InstallError;
use crate::cni::NetworkConfig;
use crate::startup::EnvironmentVariables;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use tortie_cni::CniError;

/// A plugin list (conflist) with placeholders of the form `__NAME__`.
#[derive(Debug)]
pub enum NetworkTemplate {
    /// Configured by the operator.
    Given(String),
    /// The built-in list. Settings of another installation on the host take precedence over it, except for the keys
    /// in `own`.
    Stock { list: String, own: Map<String, Value> },
}

/// The values of the placeholders.
#[derive(Debug)]
pub struct PlaceholderValues(BTreeMap<&'static str, String>);

/// Placeholders whose values come from environment variables of the same name, with their defaults.
const VARIABLE_PLACEHOLDERS: [(&str, &str); 13] = [
    ("LOG_LEVEL", "info"),
    ("LOG_FILE_PATH", "/var/log/calico/cni/cni.log"),
    ("LOG_FILE_MAX_SIZE", "100"),
    ("LOG_FILE_MAX_AGE", "30"),
    ("LOG_FILE_MAX_COUNT", "10"),
    ("CNI_MTU", "0"),
    ("KUBERNETES_SERVICE_HOST", ""),
    ("KUBERNETES_SERVICE_PORT", ""),
    ("CALICO_API_GROUP", "crd.projectcalico.org/v1"),
    ("ETCD_ENDPOINTS", ""),
    ("ETCD_DISCOVERY_SRV", ""),
    ("REQUIRE_MTU_FILE", "false"),
    ("SERVICEACCOUNT_TOKEN", ""),
];
/// Placeholders for the TLS files of an etcd client.
const ETCD_TLS_PLACEHOLDERS: [&str; 3] = ["ETCD_CERT_FILE", "ETCD_CA_CERT_FILE", "ETCD_KEY_FILE"];

impl NetworkTemplate {
    /// Reads the list from CNI_NETWORK_CONFIG_FILE or CNI_NETWORK_CONFIG, else uses the built-in one. `kubernetes` is
    /// whether there is a Kubernetes to query about pods.
    pub fn read(variables: &EnvironmentVariables, kubernetes: bool) -> Result<NetworkTemplate, InstallError> {
        if let Some(path) = variables.given("CNI_NETWORK_CONFIG_FILE") {
            let text = std::fs::read_to_string(path)
                .map_err(|source| InstallError::TemplateFile { path: path.to_owned(), source })?;
            return Ok(NetworkTemplate::Given(text));
        }
        match variables.get("CNI_NETWORK_CONFIG") {
            "" => Ok(NetworkTemplate::stock(variables, kubernetes)),
            given => Ok(NetworkTemplate::Given(given.to_owned())),
        }
    }

    fn stock(variables: &EnvironmentVariables, kubernetes: bool) -> NetworkTemplate {
        let list = build_stock_list(variables, kubernetes);
        let plugin = &list["plugins"][0];
        let mut own = vec!["nodename", "kubernetes"];
        own.extend(Some("mtu").filter(|_| !variables.get("CNI_MTU").is_empty()));
        let own = own.into_iter().filter_map(|key| Some((key.to_owned(), plugin.get(key)?.clone())));
        NetworkTemplate::Stock { own: own.collect(), list: list.to_string() }
    }

    /// Renders the configuration. `original` is the configuration of another installation on the host.
    pub fn fill(&self, values: &PlaceholderValues, original: Option<&[u8]>) -> Result<String, InstallError> {
        let list = match (self, original) {
            (NetworkTemplate::Given(text) | NetworkTemplate::Stock { list: text, .. }, None)
            | (NetworkTemplate::Given(text), _) => values.fill(text)?,
            (NetworkTemplate::Stock { own, .. }, Some(original)) => {
                let own = values.fill(&Value::Object(own.clone()).to_string())?;
                carry_over(original, own.as_object().unwrap_or(&Map::new()))?
            }
        };
        Ok(format!("{list:#}\n"))
    }
}

impl PlaceholderValues {
    pub fn new(
        variables: &EnvironmentVariables,
        node: &str,
        kubernetes_datastore: bool,
        kubeconfig: &Path,
    ) -> PlaceholderValues {
        let mut values: BTreeMap<&'static str, String> = VARIABLE_PLACEHOLDERS
            .iter()
            .map(|(name, default)| (*name, variables.get_or(name, default)))
            .collect();
        values.extend(ETCD_TLS_PLACEHOLDERS.iter().map(|name| (*name, variables.get(name).to_owned())));
        let datastore = if kubernetes_datastore { "kubernetes" } else { "etcdv3" };
        values.insert("DATASTORE_TYPE", datastore.to_owned());
        values.insert("KUBERNETES_NODE_NAME", variables.get_or("KUBERNETES_NODE_NAME", node));
        values.insert("KUBECONFIG_FILEPATH", kubeconfig.display().to_string());
        PlaceholderValues(values)
    }

    fn fill(&self, text: &str) -> Result<Value, InstallError> {
        let mut text = text.to_owned();
        for (name, value) in &self.0 {
            text = text.replace(&format!("__{name}__"), &escape_json(value));
        }
        serde_json::from_str(&text).map_err(InstallError::Template)
    }
}

/// Why the plugin list of another installation cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CarryOverError {
    #[error(transparent)]
    Json(serde_json::Error),
    #[error("it has no plugin of type calico")]
    NoCalicoPlugin,
    #[error(transparent)]
    Plugin(CniError),
}

/// Returns whether a configuration is JSON. A power failure may leave an empty or incomplete file, from which nothing
/// can be carried over.
pub fn is_readable_network(text: &[u8]) -> bool {
    serde_json::from_slice::<Value>(text).is_ok()
}

/// Returns the plugin list of another installation, with the keys in `own` set in its `calico` plugin. Everything
/// else stays: the name of the network, chained plugins, MTU, IPAM, policy and features. The node name of the other
/// installation is dropped if ours is not among the keys.
pub fn carry_over(original: &[u8], own: &Map<String, Value>) -> Result<Value, InstallError> {
    let mut list: Value = serde_json::from_slice(original).map_err(CarryOverError::Json)?;
    // The older form of a single plugin without a list.
    if list.get("plugins").is_none() && list.get("type").is_some() {
        let mut plugin = list;
        list = json!({});
        for key in ["name", "cniVersion"] {
            if let Some(value) = plugin.as_object_mut().and_then(|plugin| plugin.remove(key)) {
                list[key] = value;
            }
        }
        list["plugins"] = json!([plugin]);
    }
    let name = list["name"].clone();
    let version = list["cniVersion"].clone();
    let mut plugins = list.get_mut("plugins").and_then(Value::as_array_mut).into_iter().flatten();
    let plugin = plugins.find(|plugin| plugin["type"] == "calico").and_then(Value::as_object_mut);
    let plugin = plugin.ok_or(CarryOverError::NoCalicoPlugin)?;
    plugin.remove("nodename");
    let mut checked = plugin.clone();
    checked.insert("name".to_owned(), name);
    if !version.is_null() {
        checked.insert("cniVersion".to_owned(), version);
    }
    let parsed = NetworkConfig::parse(&Value::Object(checked).to_string());
    parsed.and_then(|(config, _)| config.check("")).map_err(CarryOverError::Plugin)?;
    for (key, value) in own {
        match (plugin.get_mut(key).and_then(Value::as_object_mut), value.as_object()) {
            (Some(existing), Some(ours)) => existing.extend(ours.clone()),
            _ => {
                plugin.insert(key.clone(), value.clone());
            }
        }
    }
    Ok(list)
}

/// Returns Calico's stock configuration. Without Kubernetes, the settings for it are left out.
fn build_stock_list(variables: &EnvironmentVariables, kubernetes: bool) -> Value {
    let assign_ipv6 = variables.flag("CNI_ASSIGN_IPV6", false);
    let mut plugin = json!({
        "type": "calico",
        "log_level": "__LOG_LEVEL__",
        "log_file_path": "__LOG_FILE_PATH__",
        "datastore_type": "__DATASTORE_TYPE__",
        "nodename": "__KUBERNETES_NODE_NAME__",
        "mtu": variables.get("CNI_MTU").parse::<u32>().unwrap_or(0),
        "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": assign_ipv6.to_string()},
    });
    if kubernetes {
        plugin["policy"] = json!({"type": "k8s"});
        plugin["kubernetes"] = json!({"kubeconfig": "__KUBECONFIG_FILEPATH__"});
    }
    json!({
        "name": "k8s-pod-network",
        "cniVersion": "1.0.0",
        "plugins": [plugin, {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}],
    })
}

/// Escapes a value for use inside a JSON string.
fn escape_json(value: &str) -> String {
    let quoted = Value::String(value.to_owned()).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> EnvironmentVariables {
        EnvironmentVariables(
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        )
    }

    fn filled(pairs: &[(&str, &str)], kubernetes: bool) -> Result<Value, InstallError> {
        filled_over(pairs, kubernetes, None)
    }

    fn filled_over(
        pairs: &[(&str, &str)],
        kubernetes: bool,
        original: Option<&[u8]>,
    ) -> Result<Value, InstallError> {
        let variables = variables(pairs);
        let values = PlaceholderValues::new(
            &variables,
            "n1",
            kubernetes,
            Path::new("/etc/cni/net.d/calico-kubeconfig"),
        );
        let text = NetworkTemplate::read(&variables, kubernetes)?.fill(&values, original)?;
        Ok(serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn the_usual_network_is_calico_s() {
        let list = filled(&[("CNI_MTU", "1450"), ("CNI_ASSIGN_IPV6", "true")], true).unwrap();
        assert_eq!((&list["name"], &list["cniVersion"]), (&json!("k8s-pod-network"), &json!("1.0.0")));
        let plugin = &list["plugins"][0];
        assert_eq!(plugin["datastore_type"], "kubernetes");
        assert_eq!(plugin["mtu"], 1450);
        assert_eq!(plugin["kubernetes"]["kubeconfig"], "/etc/cni/net.d/calico-kubeconfig");
        assert_eq!(plugin["ipam"]["assign_ipv6"], "true");
        assert_eq!(list["plugins"][1]["type"], "portmap");
        let plain = filled(&[], false).unwrap();
        assert_eq!(plain["plugins"][0].get("policy"), None);
        assert_eq!(plain["plugins"][0]["datastore_type"], "etcdv3");
    }

    #[test]
    fn a_given_network_must_be_json_when_filled() {
        let text = r#"{"name":"x","plugins":[{"type":"calico","mtu":__CNI_MTU__,"etcd_endpoints":"__ETCD_ENDPOINTS__"}]}"#;
        let list = filled(&[("CNI_NETWORK_CONFIG", text), ("ETCD_ENDPOINTS", "http://a\"b")], false).unwrap();
        assert_eq!(list["plugins"][0]["mtu"], 0);
        assert_eq!(list["plugins"][0]["etcd_endpoints"], "http://a\"b");
        let error = filled(&[("CNI_NETWORK_CONFIG", "{")], false).unwrap_err().to_string();
        assert!(error.contains("is not JSON"), "{error}");
        assert!(filled(&[("CNI_NETWORK_CONFIG_FILE", "/nonexistent")], false).is_err());
    }

    /// The configuration of an older Calico, with typical additions of operators.
    const CALICO_CONFLIST: &str = r#"{"name": "pods", "cniVersion": "0.3.1", "plugins": [
        {"type": "calico", "datastore_type": "kubernetes", "nodename": "worker-1", "mtu": 1430, "num_queues": 4,
         "ipam": {"type": "calico-ipam", "assign_ipv6": "true", "ipv4_pools": ["10.9.0.0/16"]},
         "policy": {"type": "k8s"}, "kubernetes": {"kubeconfig": "/etc/cni/calico.kubeconfig", "node_name": "w"},
         "feature_control": {"floating_ips": true}, "container_settings": {"allow_ip_forwarding": true}},
        {"type": "portmap", "snat": false, "capabilities": {"portMappings": true}},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}}, {"type": "tuning", "sysctl": {"a": "b"}}]}"#;

    #[test]
    fn settings_of_calico_are_carried_over() {
        let list = filled_over(&[], true, Some(CALICO_CONFLIST.as_bytes())).unwrap();
        let mut expected: Value = serde_json::from_str(CALICO_CONFLIST).unwrap();
        expected["plugins"][0]["nodename"] = "n1".into();
        expected["plugins"][0]["kubernetes"]["kubeconfig"] = "/etc/cni/net.d/calico-kubeconfig".into();
        assert_eq!(list, expected);
        // Settings that the operator made for this installation take precedence.
        let list = filled_over(&[("CNI_MTU", "1400")], true, Some(CALICO_CONFLIST.as_bytes())).unwrap();
        assert_eq!(list["plugins"][0]["mtu"], 1400);
        let given = [("CNI_NETWORK_CONFIG", r#"{"name":"x","plugins":[]}"#)];
        assert_eq!(filled_over(&given, true, Some(CALICO_CONFLIST.as_bytes())).unwrap()["name"], "x");
    }

    #[test]
    fn unusable_lists_are_not_carried_over() {
        for (text, reason) in [
            ("{", "EOF"),
            (r#"{"name": "x", "plugins": [{"type": "bridge"}]}"#, "no plugin of type calico"),
            (r#"{"name": "x", "plugins": [{"type": "calico", "device_type": "netkit"}]}"#, "netkit"),
            (r#"{"name": "x", "plugins": [{"type": "calico"}]}"#, "ipam.type is missing"),
            (r#"{"name": "x", "cniVersion": "9.0.0", "plugins": [{"type": "calico"}]}"#, "incompatible"),
        ] {
            let error = filled_over(&[], false, Some(text.as_bytes())).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("carry over"), "{error}");
        }
    }
}
