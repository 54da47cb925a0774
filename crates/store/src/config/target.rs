//! The datastore selected by the configuration: etcd (or the embedded store) or the Kubernetes API, with addresses and
//! credentials.

use super::{EtcdEndpoint, StoreConfig};
use crate::backend::{BackendCapabilities, etcd, kubernetes};
use crate::{StoreError, StoreResult};

/// The configured datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreTarget {
    Etcd(EtcdTarget),
    Kubernetes(KubernetesTarget),
}

/// Connection settings for the Kubernetes API; empty means not set. If none is set, the service account of the pod is
/// used.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KubernetesTarget {
    /// Colon-separated list of files.
    pub kubeconfig: String,
    pub inline: String,
    pub context: String,
    pub endpoint: String,
    pub ca_file: String,
    pub cert_file: String,
    pub key_file: String,
    pub token: String,
    pub insecure: bool,
    pub api_group: String,
    pub use_pod_cidr: bool,
    /// Prefix of the interface names of workloads.
    pub interface_prefix: String,
}

/// Environment variable that Kubernetes sets in every pod.
const IN_CLUSTER_VARIABLE: &str = "KUBERNETES_SERVICE_HOST";
/// Environment variable with a comma-separated list, of which the first item is the prefix of interface names.
const INTERFACE_PREFIX_VARIABLE: &str = "FELIX_INTERFACEPREFIX";
const DEFAULT_INTERFACE_PREFIX: &str = "cali";

/// Connection settings for etcd, checked for consistency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdTarget {
    pub endpoints: EndpointSource,
    pub credentials: Option<EtcdCredentials>,
    pub tls: TlsSettings,
    pub tls_policy: TlsPolicy,
}

/// TLS restrictions from the environment variables `TLS_MIN_VERSION` and `TLS_CIPHER_SUITES`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPolicy {
    pub min_version: String,
    pub cipher_suites: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointSource {
    Given(Vec<EtcdEndpoint>),
    /// Domain whose SRV records name the endpoints.
    Srv(String),
}

#[derive(Clone, PartialEq, Eq)]
pub struct EtcdCredentials {
    pub username: String,
    pub password: String,
}

/// PEM, read from files or given inline.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TlsSettings {
    pub ca: Option<Vec<u8>>,
    /// Certificate chain and key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl StoreConfig {
    /// Checks the settings for consistency and reads the certificate files.
    pub fn target(&self) -> StoreResult<StoreTarget> {
        if self.is_kubernetes()? {
            return Ok(StoreTarget::Kubernetes(self.kubernetes()));
        }
        Ok(StoreTarget::Etcd(EtcdTarget {
            endpoints: self.endpoint_source()?,
            credentials: self.credentials(),
            tls: self.tls()?,
            tls_policy: TlsPolicy {
                min_version: std::env::var("TLS_MIN_VERSION").unwrap_or_default(),
                cipher_suites: std::env::var("TLS_CIPHER_SUITES").unwrap_or_default(),
            },
        }))
    }

    /// Returns the connection settings for Kubernetes, if there are any or this runs in a pod. Independent of the
    /// datastore.
    pub fn orchestrator(&self) -> Option<KubernetesTarget> {
        let given = [&self.kubeconfig, &self.kubeconfig_inline, &self.k8s_api_endpoint];
        let any = given.iter().any(|setting| !setting.is_empty());
        let is_pod = std::env::var_os(IN_CLUSTER_VARIABLE).is_some();
        (any || is_pod).then(|| self.kubernetes())
    }

    fn kubernetes(&self) -> KubernetesTarget {
        KubernetesTarget {
            kubeconfig: self.kubeconfig.clone(),
            inline: self.kubeconfig_inline.clone(),
            context: self.k8s_current_context.clone(),
            endpoint: self.k8s_api_endpoint.clone(),
            ca_file: self.k8s_ca_file.clone(),
            cert_file: self.k8s_cert_file.clone(),
            key_file: self.k8s_key_file.clone(),
            token: self.k8s_api_token.clone(),
            insecure: self.k8s_insecure_skip_tls_verify,
            api_group: self.calico_api_group.clone(),
            use_pod_cidr: self.use_pod_cidr,
            interface_prefix: interface_prefix(&std::env::var(INTERFACE_PREFIX_VARIABLE).unwrap_or_default()),
        }
    }

    /// Returns the capabilities of the configured datastore.
    pub fn capabilities(&self) -> StoreResult<BackendCapabilities> {
        Ok(if self.is_kubernetes()? { kubernetes::CAPABILITIES } else { etcd::CAPABILITIES })
    }

    /// Returns whether the datastore is the Kubernetes API. Without a type, etcd takes precedence if its endpoints are
    /// set.
    fn is_kubernetes(&self) -> StoreResult<bool> {
        let etcd = !self.etcd_endpoints.is_empty() || !self.etcd_discovery_srv.is_empty();
        let kubernetes = [&self.kubeconfig, &self.kubeconfig_inline, &self.k8s_api_endpoint];
        match self.datastore_type.as_str() {
            "etcdv3" => Ok(false),
            "kubernetes" => Ok(true),
            "" if etcd => Ok(false),
            "" if kubernetes.iter().any(|setting| !setting.is_empty()) => Ok(true),
            "" if std::env::var_os(IN_CLUSTER_VARIABLE).is_some() => Ok(true),
            "" => Err(StoreError::Config(format!(
                "no datastore is configured: set ETCD_ENDPOINTS (etcdEndpoints in {}) or KUBECONFIG (kubeconfig), or start \
                 the embedded datastore, whose socket is {}",
                StoreConfig::DEFAULT_FILE,
                StoreConfig::DEFAULT_SOCKET
            ))),
            other => Err(StoreError::Config(format!(
                "unknown datastore type '{other}' (datastoreType, DATASTORE_TYPE): expected etcdv3 or kubernetes"
            ))),
        }
    }

    fn endpoint_source(&self) -> StoreResult<EndpointSource> {
        match (self.etcd_endpoints.is_empty(), self.etcd_discovery_srv.is_empty()) {
            (false, false) => Err(StoreError::Config(
                "etcdEndpoints (ETCD_ENDPOINTS) and etcdDiscoverySrv (ETCD_DISCOVERY_SRV) exclude each other"
                    .into(),
            )),
            (true, true) => Err(StoreError::Config(
                "no etcd endpoints specified: set etcdEndpoints (ETCD_ENDPOINTS) or etcdDiscoverySrv \
                 (ETCD_DISCOVERY_SRV)"
                    .into(),
            )),
            (true, false) => Ok(EndpointSource::Srv(self.etcd_discovery_srv.clone())),
            (false, true) => {
                let mut endpoints = Vec::new();
                for text in self.etcd_endpoints.split(',').map(str::trim) {
                    endpoints.push(EtcdEndpoint::parse(text).map_err(|reason| {
                        StoreError::Config(format!(
                            "invalid etcdEndpoints (ETCD_ENDPOINTS) '{text}': {reason}"
                        ))
                    })?);
                }
                Ok(EndpointSource::Given(endpoints))
            }
        }
    }

    /// Returns the credentials only if both user and password are set, as in Calico.
    fn credentials(&self) -> Option<EtcdCredentials> {
        (!self.etcd_username.is_empty() && !self.etcd_password.is_empty()).then(|| EtcdCredentials {
            username: self.etcd_username.clone(),
            password: self.etcd_password.clone(),
        })
    }

    fn tls(&self) -> StoreResult<TlsSettings> {
        let files = [&self.etcd_key_file, &self.etcd_cert_file, &self.etcd_ca_cert_file];
        let inline = [&self.etcd_key, &self.etcd_cert, &self.etcd_ca_cert];
        let from_file = files.iter().any(|setting| !setting.is_empty());
        if from_file && inline.iter().any(|setting| !setting.is_empty()) {
            return Err(StoreError::Config(
                "etcdKeyFile, etcdCertFile, etcdCACertFile cannot be mixed with inline etcdKey, etcdCert, etcdCACert"
                    .into(),
            ));
        }
        let [key, cert, ca] = if from_file { files } else { inline };
        if key.is_empty() != cert.is_empty() {
            let names = if from_file { "etcdKeyFile and etcdCertFile" } else { "etcdKey and etcdCert" };
            return Err(StoreError::Config(format!("{names} must be given together")));
        }
        let key = load_pem("etcdKeyFile", key, from_file)?;
        let cert = load_pem("etcdCertFile", cert, from_file)?;
        Ok(TlsSettings { ca: load_pem("etcdCACertFile", ca, from_file)?, identity: cert.zip(key) })
    }
}

/// Returns the PEM of a setting, which is the name of a file or the PEM itself; `None` if it is not set.
fn load_pem(setting: &str, value: &str, is_file: bool) -> StoreResult<Option<Vec<u8>>> {
    if value.is_empty() {
        return Ok(None);
    }
    if !is_file {
        return Ok(Some(value.as_bytes().to_vec()));
    }
    std::fs::read(value)
        .map(Some)
        .map_err(|error| StoreError::Config(format!("cannot read {setting} '{value}': {error}")))
}

/// Returns the first item of the list of prefixes.
fn interface_prefix(prefixes: &str) -> String {
    let prefix = prefixes.split(',').next().filter(|prefix| !prefix.is_empty());
    prefix.unwrap_or(DEFAULT_INTERFACE_PREFIX).to_owned()
}

/// Omits the token.
impl std::fmt::Debug for KubernetesTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubernetesTarget")
            .field("kubeconfig", &self.kubeconfig)
            .field("endpoint", &self.endpoint)
            .field("api_group", &self.api_group)
            .finish_non_exhaustive()
    }
}

/// Omits the password.
impl std::fmt::Debug for EtcdCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// Omits the key.
impl std::fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsSettings")
            .field("ca", &self.ca.is_some())
            .field("identity", &self.identity.is_some())
            .finish()
    }
}
