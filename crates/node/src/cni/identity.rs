//! The names of an attachment: in the datastore, on the host and in IPAM.

use super::request::CniRequest;
use serde_json::Value;
use sha1::{Digest, Sha1};
use std::collections::BTreeMap;

pub const CALICO_IPAM: &str = "calico-ipam";
const NAMESPACE_LABEL: &str = "projectcalico.org/namespace";
const HASH_DIGITS: usize = 11;
/// Maximum number of characters of a network name that are used in the name of its profile.
const MAX_NETWORK_NAME_CHARS: usize = 100;

/// The identity of a container in its orchestrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerIdentity {
    pub orchestrator: &'static str,
    pub namespace: String,
    /// Empty for containers that are not pods.
    pub pod: String,
    pub labels: BTreeMap<String, String>,
}

impl ContainerIdentity {
    pub fn from_request(request: &CniRequest) -> ContainerIdentity {
        let mut labels = read_mesos_labels(&request.config.args);
        labels.extend(request.config.tortie_labels.clone());
        let args = &request.args;
        if !args.pod_namespace.is_empty() && !args.pod_name.is_empty() {
            let namespace = args.pod_namespace.clone();
            return ContainerIdentity { orchestrator: "k8s", namespace, pod: args.pod_name.clone(), labels };
        }
        let namespace = labels.get(NAMESPACE_LABEL).cloned().unwrap_or_else(|| "default".to_owned());
        ContainerIdentity { orchestrator: "cni", namespace, pod: String::new(), labels }
    }

    /// Returns the default name of the host interface, the same as Calico's.
    pub fn derive_host_interface(&self, prefix: &str, container_id: &str) -> String {
        if self.orchestrator == "k8s" {
            return hash_name(prefix, &format!("{}.{}", self.namespace, self.pod));
        }
        let id: String = container_id.chars().take(HASH_DIGITS).collect();
        format!("cali{id}")
    }

    /// Returns a name for another host interface of a container, if another interface has the default name.
    pub fn derive_other_host_interface(&self, prefix: &str, container_id: &str, ifname: &str) -> String {
        hash_name(prefix, &format!("{}.{container_id}.{ifname}", self.namespace))
    }
}

/// Returns the profile name of a network: its own name if that is valid, else a name derived from it with a hash, so
/// that two networks do not share a profile.
pub fn derive_profile_name(network: &str) -> String {
    if tortie_model::names::check_name(tortie_model::Kind::Profile, network).is_ok() {
        return network.to_owned();
    }
    let words = network.chars().take(MAX_NETWORK_NAME_CHARS);
    let words: String = words
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' })
        .collect();
    let words: Vec<&str> = words.split(['.', '-']).filter(|word| !word.is_empty()).collect();
    let hash = hash_name("", network);
    [&words[..], &[hash.as_str()]].concat().join("-")
}

/// Returns the IPAM handle of the container's addresses.
pub fn derive_handle(network: &str, container_id: &str) -> String {
    format!("{network}.{container_id}")
}

/// Returns the IPAM handle that old versions of Calico used.
pub fn derive_legacy_handle(identity: &ContainerIdentity, container_id: &str) -> String {
    match identity.orchestrator {
        "k8s" => format!("{}.{}", identity.namespace, identity.pod),
        _ => container_id.to_owned(),
    }
}

fn hash_name(prefix: &str, text: &str) -> String {
    let digest = Sha1::digest(text.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{prefix}{}", &hex[..HASH_DIGITS])
}

fn read_mesos_labels(args: &Value) -> BTreeMap<String, String> {
    let listed = args
        .get("org.apache.mesos")
        .and_then(|mesos| mesos.pointer("/network_info/labels/labels"))
        .and_then(Value::as_array);
    let mut labels = BTreeMap::new();
    for label in listed.into_iter().flatten() {
        if let (Some(key), Some(value)) = (label["key"].as_str(), label["value"].as_str()) {
            labels.insert(key.to_owned(), sanitise_label_value(value));
        }
    }
    labels
}

/// Converts a text to a label value: `/` becomes `.`, other invalid characters become `-`, runs of dots and dashes
/// that contain a dot become one dot, and the ends are trimmed.
fn sanitise_label_value(text: &str) -> String {
    let mut out = String::new();
    let mut run = String::new();
    let mut invalid = false;
    for c in text.chars() {
        let mapped = if c == '/' { '.' } else { c };
        if mapped.is_ascii_alphanumeric() || mapped == '_' {
            out.push_str(if run.contains('.') { "." } else { &run });
            run.clear();
            out.push(mapped);
            invalid = false;
        } else if mapped == '.' || mapped == '-' {
            run.push(mapped);
            invalid = false;
        } else if !invalid {
            run.push('-');
            invalid = true;
        }
    }
    out.trim_matches(['.', '-', '_']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(namespace: &str, pod: &str) -> ContainerIdentity {
        ContainerIdentity {
            orchestrator: "k8s",
            namespace: namespace.into(),
            pod: pod.into(),
            labels: BTreeMap::new(),
        }
    }

    #[test]
    fn host_interface_names_match_calico() {
        assert_eq!(pod("default", "web-0").derive_host_interface("cali", "x"), "cali0d7763386da");
        assert_eq!(pod("kube-system", "coredns-abc12").derive_host_interface("cali", "x"), "cali8e1d9638c60");
        assert_eq!(pod("shop", "cart-7d9f-x2kq4").derive_host_interface("cali", "x"), "calif3fcd31e183");
        let plain = ContainerIdentity { orchestrator: "cni", ..pod("default", "") };
        assert_eq!(plain.derive_host_interface("cali", "0123456789abcdef"), "cali0123456789a");
        let other = plain.derive_other_host_interface("cali", "0123456789abcdef", "eth1");
        assert!(other.len() == 15 && other.starts_with("cali"), "{other}");
    }

    #[test]
    fn profile_names_are_valid_and_distinct() {
        for name in ["net", "k8s-pod-network", "a.b"] {
            assert_eq!(derive_profile_name(name), name);
        }
        let derived =
            ["any_name", "any-name_", "Any_Name", "_", "-x-", &"y_".repeat(200)].map(derive_profile_name);
        for name in &derived {
            let checked = tortie_model::names::check_name(tortie_model::Kind::Profile, name);
            assert_eq!(checked, Ok(()), "{name}");
        }
        assert!(derived[0].starts_with("any-name-"), "{}", derived[0]);
        let different: std::collections::BTreeSet<&String> = derived.iter().collect();
        assert_eq!(different.len(), derived.len());
    }

    #[test]
    fn mesos_labels_are_sanitised() {
        let args = json!({"org.apache.mesos": {"network_info": {"labels": {"labels": [
            {"key": "app", "value": "a/b  c"}, {"key": "x", "value": "-./.-y!"}, {"key": 1},
        ]}}}});
        let labels = read_mesos_labels(&args);
        assert_eq!(labels["app"], "a.b-c");
        assert_eq!(labels["x"], "y");
        assert_eq!(labels.len(), 2);
        assert!(read_mesos_labels(&Value::Null).is_empty());
    }
}
