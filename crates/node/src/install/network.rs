//! The configuration of the network: the built-in one or one that is given, with the values of this node in it.

use crate::startup::Variables;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The text of a list of plugins in which `__NAMES__` stand for values.
#[derive(Debug)]
pub struct Network(String);

/// What the names stand for.
#[derive(Debug)]
pub struct Values(BTreeMap<&'static str, String>);

/// Names whose values come from variables of the same name, and what they are without.
const PLAIN: [(&str, &str); 13] = [
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
/// The files of a client of etcd.
const TLS: [&str; 3] = ["ETCD_CERT_FILE", "ETCD_CA_CERT_FILE", "ETCD_KEY_FILE"];

impl Network {
    /// What CNI_NETWORK_CONFIG_FILE or CNI_NETWORK_CONFIG say, else the default one; `kubernetes` says whether there is one
    /// to ask about pods.
    pub fn read(variables: &Variables, kubernetes: bool) -> Result<Network, String> {
        let file = variables.get("CNI_NETWORK_CONFIG_FILE");
        if !file.is_empty() {
            let read = std::fs::read_to_string(file);
            return read.map(Network).map_err(|error| format!("CNI_NETWORK_CONFIG_FILE {file}: {error}"));
        }
        match variables.get("CNI_NETWORK_CONFIG") {
            "" => Ok(Network(stock(variables, kubernetes).to_string())),
            given => Ok(Network(given.to_owned())),
        }
    }

    pub fn fill(&self, values: &Values) -> Result<String, String> {
        let mut text = self.0.clone();
        for (name, value) in &values.0 {
            text = text.replace(&format!("__{name}__"), &escaped(value));
        }
        let list: Value = serde_json::from_str(&text).map_err(|error| {
            format!("the network configuration is not JSON once its names are filled in: {error}")
        })?;
        let pretty = serde_json::to_string_pretty(&list).map_err(|error| error.to_string())?;
        Ok(pretty + "\n")
    }
}

impl Values {
    pub fn new(variables: &Variables, node: &str, kubernetes_datastore: bool, kubeconfig: &Path) -> Values {
        let given = |name: &str, default: &str| match variables.get(name) {
            "" => default.to_owned(),
            value => value.to_owned(),
        };
        let mut values: BTreeMap<&'static str, String> =
            PLAIN.iter().map(|(name, default)| (*name, given(name, default))).collect();
        values.extend(TLS.iter().map(|name| (*name, variables.get(name).to_owned())));
        let datastore = if kubernetes_datastore { "kubernetes" } else { "etcdv3" };
        values.insert("DATASTORE_TYPE", datastore.to_owned());
        values.insert("KUBERNETES_NODE_NAME", given("KUBERNETES_NODE_NAME", node));
        values.insert("KUBECONFIG_FILEPATH", kubeconfig.display().to_string());
        Values(values)
    }
}

/// The stock configuration of Calico; without Kubernetes, without what is about it.
fn stock(variables: &Variables, kubernetes: bool) -> Value {
    let both = variables.flag("CNI_ASSIGN_IPV6", false);
    let mut plugin = json!({
        "type": "calico",
        "log_level": "__LOG_LEVEL__",
        "log_file_path": "__LOG_FILE_PATH__",
        "datastore_type": "__DATASTORE_TYPE__",
        "nodename": "__KUBERNETES_NODE_NAME__",
        "mtu": variables.get("CNI_MTU").parse::<u32>().unwrap_or(0),
        "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": both.to_string()},
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

/// Fit to stand between quotation marks.
fn escaped(value: &str) -> String {
    let quoted = Value::String(value.to_owned()).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        Variables(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    fn filled(pairs: &[(&str, &str)], kubernetes: bool) -> Result<Value, String> {
        let variables = variables(pairs);
        let values = Values::new(&variables, "n1", kubernetes, Path::new("/etc/cni/net.d/calico-kubeconfig"));
        let text = Network::read(&variables, kubernetes)?.fill(&values)?;
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
    fn a_given_network_is_filled_in_and_must_be_json() {
        let text = r#"{"name":"x","plugins":[{"type":"calico","mtu":__CNI_MTU__,"etcd_endpoints":"__ETCD_ENDPOINTS__"}]}"#;
        let list = filled(&[("CNI_NETWORK_CONFIG", text), ("ETCD_ENDPOINTS", "http://a\"b")], false).unwrap();
        assert_eq!(list["plugins"][0]["mtu"], 0);
        assert_eq!(list["plugins"][0]["etcd_endpoints"], "http://a\"b");
        let error = filled(&[("CNI_NETWORK_CONFIG", "{")], false).unwrap_err();
        assert!(error.contains("is not JSON"), "{error}");
        assert!(filled(&[("CNI_NETWORK_CONFIG_FILE", "/nonexistent")], false).is_err());
    }
}
