//! Configuration of the datastore, from a CalicoAPIConfig file or from the environment, and its interpretation.

mod endpoint;
mod env;
mod file;
mod limits;
pub mod settings_file;
mod target;

pub use endpoint::EtcdEndpoint;
pub use limits::StoreLimits;
pub use target::{
    EndpointSource, EtcdCredentials, EtcdTarget, KubernetesTarget, StoreTarget, TlsPolicy, TlsSettings,
};

use crate::{StoreError, StoreResult};
use serde::Deserialize;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// `spec` of a CalicoAPIConfig. Every field except the inline ones also has an environment variable. Empty means not
/// set.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct StoreConfig {
    pub datastore_type: String,
    pub etcd_endpoints: String,
    pub etcd_discovery_srv: String,
    pub etcd_username: String,
    pub etcd_password: String,
    pub etcd_key_file: String,
    pub etcd_cert_file: String,
    #[serde(rename = "etcdCACertFile")]
    pub etcd_ca_cert_file: String,
    pub etcd_key: String,
    pub etcd_cert: String,
    #[serde(rename = "etcdCACert")]
    pub etcd_ca_cert: String,
    pub kubeconfig: String,
    pub kubeconfig_inline: String,
    #[serde(rename = "k8sAPIEndpoint")]
    pub k8s_api_endpoint: String,
    #[serde(rename = "k8sKeyFile")]
    pub k8s_key_file: String,
    #[serde(rename = "k8sCertFile")]
    pub k8s_cert_file: String,
    #[serde(rename = "k8sCAFile")]
    pub k8s_ca_file: String,
    #[serde(rename = "k8sAPIToken")]
    pub k8s_api_token: String,
    #[serde(rename = "k8sInsecureSkipTLSVerify")]
    pub k8s_insecure_skip_tls_verify: bool,
    #[serde(rename = "k8sDisableNodePoll")]
    pub k8s_disable_node_poll: bool,
    #[serde(rename = "usePodCIDR", alias = "k8sUsePodCIDR")]
    pub use_pod_cidr: bool,
    #[serde(rename = "k8sClientQPS")]
    pub k8s_client_qps: f32,
    #[serde(rename = "k8sClientBurst")]
    pub k8s_client_burst: u32,
    #[serde(rename = "k8sCurrentContext")]
    pub k8s_current_context: String,
    #[serde(rename = "calicoAPIGroup")]
    pub calico_api_group: String,
}

impl StoreConfig {
    /// Default configuration file.
    pub const DEFAULT_FILE: &'static str = "/etc/calico/calicoctl.cfg";
    /// Default socket of the embedded store.
    pub const DEFAULT_SOCKET: &'static str = "/run/tortie/datastore.sock";
    /// Environment variable that overrides the default socket.
    pub const SOCKET_VARIABLE: &'static str = "TORTIE_DATASTORE_SOCKET";

    /// Reads the configuration from `file`, or from the environment if `file` is the default path and unreadable. If
    /// nothing is configured and the default socket of the embedded store exists, that is used.
    pub fn load(file: &Path) -> StoreResult<StoreConfig> {
        StoreConfig::load_with(file, &read_variable)
    }

    fn load_with(file: &Path, variable: &dyn Fn(&str) -> Option<String>) -> StoreResult<StoreConfig> {
        let config = match std::fs::read_to_string(file) {
            Ok(text) => file::parse(&text, file)?,
            Err(_) if file == Path::new(StoreConfig::DEFAULT_FILE) => env::read(variable)?,
            Err(_) => {
                return Err(StoreError::Config(format!("Error reading config file: {}", file.display())));
            }
        };
        Ok(config.or_socket(variable))
    }

    /// Reads the configuration from the environment only. If nothing is configured, uses the socket of the embedded
    /// store.
    pub fn from_env() -> StoreResult<StoreConfig> {
        Ok(env::read(&read_variable)?.or_socket(&read_variable))
    }

    /// Returns the names of the environment variables that [`StoreConfig::from_env`] reads.
    pub fn recognised_variables() -> Vec<String> {
        let names = RefCell::new(Vec::new());
        let record = |name: &str| -> Option<String> {
            names.borrow_mut().push(name.to_owned());
            None
        };
        // Without values there is nothing to reject.
        if let Ok(config) = env::read(&record) {
            config.or_socket(&record);
        }
        names.into_inner()
    }

    /// Returns the configuration of a store at this URL, or comma-separated URLs, without credentials.
    pub fn at(endpoints: impl Into<String>) -> StoreConfig {
        StoreConfig { etcd_endpoints: endpoints.into(), ..StoreConfig::default() }
    }

    fn or_socket(mut self, variable: &dyn Fn(&str) -> Option<String>) -> StoreConfig {
        let places = [
            &self.datastore_type,
            &self.etcd_endpoints,
            &self.etcd_discovery_srv,
            &self.kubeconfig,
            &self.kubeconfig_inline,
            &self.k8s_api_endpoint,
        ];
        if places.iter().all(|place| place.is_empty()) {
            let socket = variable(StoreConfig::SOCKET_VARIABLE).filter(|path| !path.is_empty());
            let socket = PathBuf::from(socket.as_deref().unwrap_or(StoreConfig::DEFAULT_SOCKET));
            if socket.exists() {
                self.etcd_endpoints = format!("unix://{}", socket.display());
            }
        }
        self
    }
}

fn read_variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Omits the secrets.
impl std::fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("datastore_type", &self.datastore_type)
            .field("etcd_endpoints", &self.etcd_endpoints)
            .field("etcd_discovery_srv", &self.etcd_discovery_srv)
            .field("etcd_username", &self.etcd_username)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
