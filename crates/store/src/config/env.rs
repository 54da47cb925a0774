//! Configuration from the environment: each setting is `CALICO_<NAME>` or `<NAME>`; the former takes precedence.

use super::StoreConfig;
use crate::{StoreError, StoreResult};
use std::str::FromStr;

pub(super) fn read(variable: &dyn Fn(&str) -> Option<String>) -> StoreResult<StoreConfig> {
    let text = |name: &str| {
        let names = [format!("CALICO_{name}"), name.to_owned()];
        let mut values = names.iter().filter_map(|name| variable(name));
        values.find(|value| !value.is_empty()).unwrap_or_default()
    };
    Ok(StoreConfig {
        datastore_type: text("DATASTORE_TYPE"),
        etcd_endpoints: text("ETCD_ENDPOINTS"),
        etcd_discovery_srv: text("ETCD_DISCOVERY_SRV"),
        etcd_username: text("ETCD_USERNAME"),
        etcd_password: text("ETCD_PASSWORD"),
        etcd_key_file: text("ETCD_KEY_FILE"),
        etcd_cert_file: text("ETCD_CERT_FILE"),
        etcd_ca_cert_file: text("ETCD_CA_CERT_FILE"),
        kubeconfig: text("KUBECONFIG"),
        k8s_api_endpoint: text("K8S_API_ENDPOINT"),
        k8s_key_file: text("K8S_KEY_FILE"),
        k8s_cert_file: text("K8S_CERT_FILE"),
        k8s_ca_file: text("K8S_CA_FILE"),
        k8s_api_token: variable("CALICO_K8SAPITOKEN").unwrap_or_default(),
        k8s_insecure_skip_tls_verify: switch("K8S_INSECURE_SKIP_TLS_VERIFY", &text)?,
        k8s_disable_node_poll: switch("K8S_DISABLE_NODE_POLL", &text)?,
        use_pod_cidr: switch("USE_POD_CIDR", &text)?,
        k8s_client_qps: number("K8S_CLIENT_QPS", &text)?,
        k8s_client_burst: number("K8S_CLIENT_BURST", &text)?,
        k8s_current_context: text("K8S_CURRENT_CONTEXT"),
        calico_api_group: variable("CALICO_API_GROUP").unwrap_or_default(),
        // Inline data is only supported in files.
        etcd_key: String::new(),
        etcd_cert: String::new(),
        etcd_ca_cert: String::new(),
        kubeconfig_inline: String::new(),
    })
}

fn switch(name: &str, text: &dyn Fn(&str) -> String) -> StoreResult<bool> {
    match text(name).as_str() {
        "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        other => {
            Err(StoreError::Config(format!("environment variable {name} = '{other}' is not true or false")))
        }
    }
}

fn number<T: FromStr + Default>(name: &str, text: &dyn Fn(&str) -> String) -> StoreResult<T> {
    match text(name).as_str() {
        "" => Ok(T::default()),
        value => value.parse().map_err(|_| {
            StoreError::Config(format!("environment variable {name} = '{value}' is not a number"))
        }),
    }
}
