//! Configuration of the hub: environment variables TYPHA_<NAME> and the file typha.cfg, with Typha's names. Variables
//! take precedence.

use crate::balance::ConnectionBalancer;
use crate::certificates::CertificateSecret;
use crate::server::HubServerOptions;
use crate::tls::{HubTlsIdentity, IncompleteTlsIdentity};
use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;
use tortie_store::StoreConfig;

pub const DEFAULT_TYPHA_CONFIG_FILE: &str = "/etc/calico/typha.cfg";
const VARIABLE_PREFIX: &str = "typha_";
const DEFAULT_HUB_PORT: u16 = 5473;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HubSettingError {
    #[error("{name} (TYPHA_{}): {value:?} {reason}", name.to_uppercase())]
    Value { name: &'static str, value: String, reason: &'static str },
    #[error("ServerKeyFile, ServerCertFile, CAFile, ClientCN, ClientURISAN: {0}")]
    Tls(#[from] IncompleteTlsIdentity),
}

/// Typha settings that are accepted and have no effect.
const IGNORED_TYPHA_SETTINGS: &[&str] = &[
    "LogFilePath",
    "LogSeverityFile",
    "LogSeverityScreen",
    "LogSeveritySys",
    "DebugHost",
    "DebugPort",
    "DebugMemoryProfilePath",
    "DebugDisableLogDropping",
    "PrometheusGoMetricsEnabled",
    "PrometheusProcessMetricsEnabled",
    "SnapshotCacheMaxBatchSize",
    "ServerMaxMessageSize",
    "ServerMaxFallBehindSecs",
    "ServerNewClientFallBehindGracePeriod",
    "ServerMinBatchingAgeThresholdSecs",
];

/// Address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubListenAddress {
    pub host: String,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq)]
pub struct HubSettings {
    pub server: HubListenAddress,
    pub options: HubServerOptions,
    pub health: Option<HubListenAddress>,
    pub metrics: Option<HubListenAddress>,
    /// Time within which all clients are asked to disconnect before the hub ends.
    pub shutdown: Duration,
    /// Maximum delay between two of these requests.
    pub shutdown_interval: Duration,
    pub datastore: DatastoreOverride,
    pub tls: Option<HubTlsIdentity>,
    /// Secret in which hubs store the certificates that they issue, if no files are configured.
    pub certificates: Option<CertificateSecret>,
    pub balance: Option<ConnectionBalancer>,
}

/// Datastore configured in the hub's own settings, if any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatastoreOverride {
    kind: Option<String>,
    etcd: Option<EtcdOverride>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct EtcdOverride {
    endpoints: String,
    key_file: String,
    cert_file: String,
    ca_file: String,
}

impl DatastoreOverride {
    /// Overrides the general datastore configuration with the hub's own settings.
    pub fn apply(&self, mut config: StoreConfig) -> StoreConfig {
        if let Some(kind) = &self.kind {
            config.datastore_type = kind.clone();
        }
        if let Some(etcd) = &self.etcd {
            config.etcd_endpoints = etcd.endpoints.clone();
            config.etcd_key_file = etcd.key_file.clone();
            config.etcd_cert_file = etcd.cert_file.clone();
            config.etcd_ca_cert_file = etcd.ca_file.clone();
        }
        config
    }
}

impl HubSettings {
    /// Reads the settings from environment variables and the lines of the file.
    pub fn read(
        variables: impl IntoIterator<Item = (String, String)>,
        file: Vec<(String, String)>,
    ) -> Result<HubSettings, HubSettingError> {
        let mut source = SettingValues::default();
        source.0.extend(file.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)));
        for (name, value) in variables {
            if let Some(name) = name.to_ascii_lowercase().strip_prefix(VARIABLE_PREFIX) {
                source.0.insert(name.to_owned(), value);
            }
        }
        let settings = source.read_all()?;
        for name in IGNORED_TYPHA_SETTINGS {
            source.0.remove(&name.to_ascii_lowercase());
        }
        for name in source.0.keys() {
            tracing::warn!("unknown hub setting {name}; ignored");
        }
        Ok(settings)
    }
}

/// Setting values by lower-case name.
#[derive(Debug, Default)]
struct SettingValues(BTreeMap<String, String>);

impl SettingValues {
    /// Removes a setting and returns it; `None` if it is missing or empty.
    fn take(&mut self, name: &str) -> Option<String> {
        self.0
            .remove(&name.to_ascii_lowercase())
            .map(|value| value.trim().to_owned())
            .filter(|value| !value.is_empty())
    }

    fn take_text(&mut self, name: &str, default: &str) -> String {
        self.take(name).unwrap_or_else(|| default.to_owned())
    }

    fn take_number<T: FromStr>(&mut self, name: &'static str, default: T) -> Result<T, HubSettingError> {
        match self.take(name) {
            Some(value) => value.parse().map_err(|_| HubSettingError::Value {
                name,
                value,
                reason: "is not a number in the valid range",
            }),
            None => Ok(default),
        }
    }

    /// Parses a number of seconds greater than zero.
    fn take_seconds(&mut self, name: &'static str, default: Duration) -> Result<Duration, HubSettingError> {
        let Some(value) = self.take(name) else { return Ok(default) };
        let seconds = value.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
        let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        duration.ok_or(HubSettingError::Value {
            name,
            value,
            reason: "is not a number of seconds greater than zero",
        })
    }

    /// Parses a Boolean; `false` if it is not set.
    fn take_switch(&mut self, name: &'static str) -> Result<bool, HubSettingError> {
        let Some(value) = self.take(name) else { return Ok(false) };
        match value.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "y" | "t" => Ok(true),
            "false" | "0" | "no" | "n" | "f" => Ok(false),
            _ => Err(HubSettingError::Value { name, value, reason: "is neither true nor false" }),
        }
    }

    /// Returns the address of a listener. `names` are the settings that enable it and that hold its host and port.
    /// Returns `None` if the listener is disabled.
    fn take_listen_address(
        &mut self,
        names: [&'static str; 3],
        host: &str,
        port: u16,
    ) -> Result<Option<HubListenAddress>, HubSettingError> {
        let [switch, host_name, port_name] = names;
        let address = HubListenAddress {
            host: self.take_text(host_name, host),
            port: self.take_number(port_name, port)?,
        };
        Ok(self.take_switch(switch)?.then_some(address))
    }

    fn read_all(&mut self) -> Result<HubSettings, HubSettingError> {
        let default = HubServerOptions::default();
        let port = match self.take_number("ServerPort", 0)? {
            0 => DEFAULT_HUB_PORT,
            port => port,
        };
        let namespace = self.take_text("K8sNamespace", "kube-system");
        let ping = self.take_seconds("ServerPingIntervalSecs", default.ping)?;
        let pong = self.take_seconds("ServerPongTimeoutSecs", default.pong)?;
        let options = HubServerOptions {
            connections: self.take_number("MaxConnectionsUpperLimit", default.connections)?,
            connections_per_source: self
                .take_number("MaxConnectionsPerSource", default.connections_per_source)?,
            buffers: self.take_number("MaxBufferBytes", default.buffers)?,
            handshake: self.take_seconds("ServerHandshakeTimeoutSecs", default.handshake)?,
            write: self.take_seconds("ServerWriteTimeoutSecs", default.write)?,
            ping,
            // As in Typha: a shorter timeout would close healthy connections.
            pong: if pong <= ping * 2 { ping * 6 } else { pong },
            ..default
        };
        let balance = self.read_balancer(options.connections, &namespace)?;
        let tls = self.read_tls_identity()?;
        let secret = self.take("CertificateSecret").filter(|_| tls.is_none());
        let certificates = secret.map(|name| CertificateSecret { namespace, name });
        Ok(HubSettings {
            server: HubListenAddress { host: self.take_text("ServerHost", ""), port },
            options,
            health: self.take_listen_address(
                ["HealthEnabled", "HealthHost", "HealthPort"],
                "localhost",
                9098,
            )?,
            metrics: self.take_listen_address(
                ["PrometheusMetricsEnabled", "PrometheusMetricsHost", "PrometheusMetricsPort"],
                "",
                9093,
            )?,
            shutdown: self.take_seconds("ShutdownTimeoutSecs", Duration::from_secs(300))?,
            shutdown_interval: self
                .take_seconds("ShutdownConnectionDropIntervalMaxSecs", Duration::from_secs(1))?,
            datastore: self.read_datastore_override()?,
            tls,
            certificates,
            balance,
        })
    }

    fn read_balancer(
        &mut self,
        max_clients: usize,
        namespace: &str,
    ) -> Result<Option<ConnectionBalancer>, HubSettingError> {
        let name = "ConnectionRebalancingMode";
        let mode = self.take_text(name, "none");
        let balance = ConnectionBalancer {
            namespace: namespace.to_owned(),
            service: self.take_text("K8sServiceName", "calico-typha"),
            port_name: self.take_text("K8sPortName", "calico-typha"),
            count_interval: self.take_seconds("K8sServicePollIntervalSecs", Duration::from_secs(30))?,
            leave_interval: self.take_seconds("ConnectionDropIntervalSecs", Duration::from_secs(1))?,
            min_clients: self.take_number("MaxConnectionsLowerLimit", 400)?,
            max_clients,
        };
        match mode.to_ascii_lowercase().as_str() {
            "none" => Ok(None),
            "kubernetes" => Ok(Some(balance)),
            _ => Err(HubSettingError::Value { name, value: mode, reason: "is neither none nor kubernetes" }),
        }
    }

    fn read_tls_identity(&mut self) -> Result<Option<HubTlsIdentity>, HubSettingError> {
        let names = ["ServerKeyFile", "ServerCertFile", "CAFile", "ClientCN", "ClientURISAN"];
        let [key, certificate, ca, name, uri] = names.map(|name| self.take_text(name, ""));
        Ok(HubTlsIdentity::new(&key, &certificate, &ca, &name, &uri)?)
    }

    fn read_datastore_override(&mut self) -> Result<DatastoreOverride, HubSettingError> {
        let kind = self.take("DatastoreType");
        if let Some(value) = kind.clone().filter(|kind| !["etcdv3", "kubernetes"].contains(&kind.as_str())) {
            return Err(HubSettingError::Value {
                name: "DatastoreType",
                value,
                reason: "is neither etcdv3 nor kubernetes",
            });
        }
        let scheme = self.take_text("EtcdScheme", "http");
        let address = self.take("EtcdAddr").map(|address| format!("{scheme}://{address}"));
        let endpoints = self.take("EtcdEndpoints").or(address);
        let [key_file, cert_file, ca_file] =
            ["EtcdKeyFile", "EtcdCertFile", "EtcdCaFile"].map(|name| self.take_text(name, ""));
        let etcd = endpoints.map(|endpoints| EtcdOverride { endpoints, key_file, cert_file, ca_file });
        Ok(DatastoreOverride { kind, etcd })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)], file: &[(&str, &str)]) -> Result<HubSettings, HubSettingError> {
        let to_owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        HubSettings::read(to_owned(variables), to_owned(file))
    }

    #[test]
    fn defaults_are_those_of_typha() {
        let settings = read(&[("PATH", "/bin")], &[]).unwrap();
        assert_eq!(settings.server, HubListenAddress { host: String::new(), port: 5473 });
        assert_eq!(settings.options, HubServerOptions::default());
        assert_eq!((settings.health, settings.metrics, settings.certificates), (None, None, None));
        assert_eq!(settings.shutdown, Duration::from_secs(300));
        let config = StoreConfig::at("http://10.0.0.1:2379");
        assert_eq!(settings.datastore.apply(config.clone()), config);
    }

    #[test]
    fn variables_take_precedence_and_case_is_ignored() {
        let file = [
            ("ServerPort", "1"),
            ("healthenabled", "true"),
            ("EtcdAddr", "10.0.0.1:2379"),
            ("EtcdScheme", "https"),
        ];
        let variables =
            [("TYPHA_SERVERPORT", "7000"), ("Typha_HealthPort", "99"), ("TYPHA_SERVERPONGTIMEOUTSECS", "5")];
        let settings = read(&variables, &file).unwrap();
        assert_eq!(settings.server.port, 7000);
        assert_eq!(settings.health, Some(HubListenAddress { host: "localhost".to_owned(), port: 99 }));
        assert_eq!(settings.options.pong, Duration::from_secs(60), "six pings");
        let config = settings.datastore.apply(StoreConfig::at("http://elsewhere:1"));
        assert_eq!(config.etcd_endpoints, "https://10.0.0.1:2379");
    }

    #[test]
    fn an_invalid_setting_is_named_with_its_value() {
        for (name, value) in [
            ("ServerPort", "70000"),
            ("ServerWriteTimeoutSecs", "0"),
            ("ServerWriteTimeoutSecs", "NaN"),
            ("HealthEnabled", "perhaps"),
            ("DatastoreType", "etcdv2"),
            ("MaxConnectionsUpperLimit", "-1"),
            ("MaxConnectionsPerSource", "few"),
            ("MaxBufferBytes", "1G"),
            ("ConnectionRebalancingMode", "mesos"),
        ] {
            let error = read(&[], &[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }

    #[test]
    fn configured_certificates_take_precedence() {
        let issued = read(&[("TYPHA_CERTIFICATESECRET", "hubs")], &[]).unwrap().certificates;
        assert_eq!(
            issued,
            Some(CertificateSecret { namespace: "kube-system".to_owned(), name: "hubs".to_owned() })
        );
        let given = [
            ("ServerKeyFile", "k"),
            ("ServerCertFile", "c"),
            ("CAFile", "a"),
            ("ClientCN", "n"),
            ("CertificateSecret", "hubs"),
        ];
        let settings = read(&[], &given).unwrap();
        assert!(settings.tls.is_some() && settings.certificates.is_none());
    }
}
