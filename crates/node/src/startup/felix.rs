//! Felix settings that are needed before the datastore can be read: the location of the datastore, and the name of
//! this host.

use super::EnvironmentVariables;
use tortie_store::StoreConfig;

const FELIX_VARIABLE_PREFIX: &str = "felix_";
const KUBERNETES_DATASTORE: &str = "kubernetes";

/// Environment variables `FELIX_*` and, with lower precedence, the lines of felix.cfg. Names are case-insensitive,
/// and empty values count as unset.
#[derive(Clone, Debug, Default)]
pub struct FelixSettings {
    variables: Vec<(String, String)>,
    file: Vec<(String, String)>,
}

impl FelixSettings {
    /// Creates the settings from all variables of the environment and the lines of felix.cfg.
    pub fn new(variables: &EnvironmentVariables, file: Vec<(String, String)>) -> FelixSettings {
        let variables = variables.0.iter().filter_map(|(name, value)| {
            let name = name.to_ascii_lowercase();
            Some((name.strip_prefix(FELIX_VARIABLE_PREFIX)?.to_owned(), value.clone()))
        });
        FelixSettings { variables: variables.collect(), file }
    }

    /// Returns the configured host name, or an empty string.
    pub fn hostname(&self) -> &str {
        self.get("FelixHostname")
    }

    /// Returns the datastore of calicoctl's settings, with the etcd settings of Felix applied over it: as in Felix,
    /// these take precedence. The datastore type of Felix does not, because here one process uses both.
    pub fn datastore(&self, mut config: StoreConfig) -> StoreConfig {
        if config.datastore_type.is_empty()
            && self.get("DatastoreType").eq_ignore_ascii_case(KUBERNETES_DATASTORE)
        {
            config.datastore_type = KUBERNETES_DATASTORE.to_owned();
        }
        if config.datastore_type == KUBERNETES_DATASTORE {
            return config;
        }
        if let Some(endpoints) = self.etcd_endpoints() {
            config.etcd_discovery_srv.clear();
            config.etcd_endpoints = endpoints;
        }
        for (file, name) in [
            (&mut config.etcd_key_file, "EtcdKeyFile"),
            (&mut config.etcd_cert_file, "EtcdCertFile"),
            (&mut config.etcd_ca_cert_file, "EtcdCaFile"),
        ] {
            if !self.get(name).is_empty() {
                *file = self.get(name).to_owned();
            }
        }
        config
    }

    fn etcd_endpoints(&self) -> Option<String> {
        let endpoints = self.get("EtcdEndpoints");
        if !endpoints.is_empty() {
            return Some(endpoints.to_owned());
        }
        let scheme = if self.get("EtcdScheme").is_empty() { "http" } else { self.get("EtcdScheme") };
        let address = self.get("EtcdAddr");
        (!address.is_empty()).then(|| format!("{scheme}://{address}"))
    }

    fn get(&self, wanted: &str) -> &str {
        let mut settings = self.variables.iter().chain(&self.file);
        let found =
            settings.find(|(name, value)| name.eq_ignore_ascii_case(wanted) && !value.trim().is_empty());
        found.map(|(_, value)| value.trim()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(file: &str, variables: &[(&str, &str)]) -> FelixSettings {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("felix.cfg");
        std::fs::write(&path, file).unwrap();
        let map = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let lines = tortie_store::config::settings_file::read(&path).unwrap();
        FelixSettings::new(&EnvironmentVariables(map), lines)
    }

    #[test]
    fn felix_may_name_the_kubernetes_api() {
        let kind = |config: StoreConfig, file: &str, variable: &str| {
            settings(file, &[("FELIX_DATASTORETYPE", variable)]).datastore(config).datastore_type
        };
        let typed = |kind: &str| StoreConfig { datastore_type: kind.to_owned(), ..StoreConfig::default() };
        let etcd = || StoreConfig::at("http://127.0.0.1:2379");
        assert_eq!(kind(typed("kubernetes"), "", ""), "kubernetes");
        assert_eq!(kind(typed("etcdv3"), "DatastoreType = kubernetes\n", ""), "etcdv3");
        assert_eq!(kind(etcd(), "[global]\ndatastoretype = Kubernetes\n", ""), "kubernetes");
        assert_eq!(kind(etcd(), "DatastoreType = kubernetes\n", "etcdv3"), "");
        assert_eq!(kind(etcd(), "", "kubernetes"), "kubernetes");
        assert_eq!(kind(etcd(), "", ""), "");
    }

    #[test]
    fn felix_may_name_etcd_and_its_certificates() {
        let at = |file: &str, variables: &[(&str, &str)]| {
            settings(file, variables).datastore(StoreConfig::at("http://elsewhere:2379"))
        };
        assert_eq!(at("", &[("FELIX_ETCDENDPOINTS", " ")]).etcd_endpoints, "http://elsewhere:2379");
        assert_eq!(at("EtcdAddr = 10.0.0.1:4001\n", &[]).etcd_endpoints, "http://10.0.0.1:4001");
        let both = "etcdaddr = 10.0.0.1:4001\nEtcdScheme = https\nEtcdEndpoints = https://10.0.0.2:2379\n";
        assert_eq!(at(both, &[]).etcd_endpoints, "https://10.0.0.2:2379");
        let stronger = at(both, &[("Felix_EtcdEndpoints", "https://10.0.0.3:2379")]);
        assert_eq!(stronger.etcd_endpoints, "https://10.0.0.3:2379");
        let files = at("EtcdKeyFile = /k\nEtcdCertFile = /c\nEtcdCaFile = /a\n", &[]);
        assert_eq!([files.etcd_key_file, files.etcd_cert_file, files.etcd_ca_cert_file], ["/k", "/c", "/a"]);
        let kubernetes = StoreConfig { datastore_type: "kubernetes".to_owned(), ..StoreConfig::default() };
        assert_eq!(settings(both, &[]).datastore(kubernetes.clone()), kubernetes);
    }
}
