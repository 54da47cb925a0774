//! The sidecar of a pod that enforces HTTP policies: Envoy in front of the pod's server, and `tortie l7 serve`, which
//! answers Envoy with the policies that the node sends over its policy-sync socket.
//!
//! Both processes run in the pod's network namespace, so they end with the pod. Envoy forwards to a server on the
//! loopback of the pod, which no other pod reaches.

use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::files;
use crate::place::LabPaths;
use crate::pod::LabPod;
use crate::process::LabDaemon;
use crate::store;
use serde::Serialize;
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tortie_model::ObjectMeta;
use tortie_model::kinds::{FelixConfiguration, FelixConfigurationSpec};
use tortie_store::StoreError;

/// Port of the pod on which Envoy accepts requests.
pub const INBOUND_PORT: u16 = 80;
/// Port on the pod's loopback to which Envoy forwards them.
pub const SERVER_PORT: u16 = 8080;
/// Time after which Envoy denies a request that it has no verdict for. The server answers earlier.
const VERDICT_TIMEOUT: &str = "2s";
/// Maximum length of the path of a Unix socket.
const MAX_SOCKET_PATH_LENGTH: usize = 107;
/// Length of the id of a workload in policy sync, short because it is part of the path of a Unix socket.
const WORKLOAD_ID_LENGTH: usize = 12;
/// Response header that names the rule to a client whose request is denied.
const DENIAL_HEADER: &str = "x-denied-by";
const ENVOY_NAME: &str = "envoy";
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Processes of a sidecar. `None` if a process is not running.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SidecarStatus {
    pub envoy: Option<u32>,
    pub l7: Option<u32>,
}

/// Directories and processes of the sidecar of one pod.
pub struct PodSidecar<'p> {
    place: &'p LabPaths,
    pod: &'p LabPod,
}

/// Finds Envoy: the given file, or the first on the PATH.
pub fn find_envoy(given: Option<&Path>) -> LabResult<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = match given {
        Some(file) => Some(std::path::absolute(file).map_err(LabError::file(file))?),
        None => std::env::split_paths(&path).map(|dir| dir.join(ENVOY_NAME)).find(|file| file.is_file()),
    };
    match found {
        Some(file) if file.is_file() => Ok(file),
        Some(file) => Err(LabError::refused(format!(
            "there is no Envoy at {}: `scripts/envoy` fetches it and prints its path, for --envoy-program or the \
             variable ENVOY",
            file.display()
        ))),
        None => Err(LabError::refused(
            "Envoy is not on the PATH: `scripts/envoy` fetches it and prints its path, for --envoy-program or the \
             variable ENVOY",
        )),
    }
}

impl<'p> PodSidecar<'p> {
    pub fn new(place: &'p LabPaths, pod: &'p LabPod) -> PodSidecar<'p> {
        PodSidecar { place, pod }
    }

    /// Starts the processes and waits until Envoy accepts requests and the server is in sync with the node.
    pub async fn start(&self, cluster: &LabCluster, envoy: &Path) -> LabResult<()> {
        let dir = self.dir();
        let policy_socket = self.policy_socket();
        for socket in [&policy_socket, &self.admin_socket(), &self.authorization_socket()] {
            if socket.as_os_str().len() > MAX_SOCKET_PATH_LENGTH {
                return Err(LabError::refused(format!(
                    "the socket {} would have more than {MAX_SOCKET_PATH_LENGTH} bytes: use a shorter name for the pod \
                     or a shorter --dir",
                    socket.display()
                )));
            }
        }
        let prefix = enable_policy_sync(self.place, cluster, &self.pod.node).await?;
        for part in [dir.clone(), dir.join("envoy"), dir.join("l7"), prefix.join("creds")] {
            fs::create_dir_all(&part).map_err(LabError::file(&part))?;
        }
        let id = self.workload_id();
        files::replace(
            &self.credentials(&prefix),
            &json!({
                "UID": id,
                "Workload": self.pod.name,
                "Namespace": self.pod.namespace,
                "ServiceAccount": "default",
            }),
        )?;
        self.start_server(&policy_socket).await?;
        self.start_envoy(envoy).await
    }

    async fn start_server(&self, policy_socket: &Path) -> LabResult<()> {
        let tortie = self.place.bin().join("tortie");
        let socket = self.authorization_socket();
        let mut command = Command::new(&tortie);
        command.args(["l7", "serve", "--listen"]).arg(&socket).arg("--dial").arg(policy_socket);
        // For people who try a policy: every decision with its rule, in the log and for denied clients.
        command.args(["--access-log", "all", "--denial-header", DENIAL_HEADER]);
        let started = self.server().start(&self.place.pod_netns(&self.pod.name), command)?;
        started
            .ready(async || {
                let mut health = tokio::process::Command::new(&tortie);
                health.args(["l7", "health", "readiness", "--dial-path"]).arg(&socket);
                let output = health.stdin(Stdio::null()).kill_on_drop(true).output();
                let output = tokio::time::timeout(PROBE_TIMEOUT, output).await.map_err(io::Error::from)??;
                if output.status.success() {
                    return Ok(());
                }
                let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(io::Error::other(format!("it is not in sync with the node: {reason}")))
            })
            .await
    }

    async fn start_envoy(&self, envoy: &Path) -> LabResult<()> {
        let config = self.dir().join("envoy.json");
        files::replace(&config, &self.envoy_config())?;
        let mut command = Command::new(envoy);
        command.arg("--config-path").arg(config);
        command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]);
        let started = self.envoy().start(&self.place.pod_netns(&self.pod.name), command)?;
        let socket = self.admin_socket();
        started.ready(async || probe_envoy(&socket).await).await
    }

    /// Builds Envoy's configuration: the authorization server decides about each request, and Envoy denies the request
    /// if the server does not answer.
    fn envoy_config(&self) -> Value {
        const TYPES: &str = "type.googleapis.com/envoy.extensions";
        let filter = |name: &str, kind: &str, config: Value| {
            let mut typed = config;
            typed["@type"] = json!(format!("{TYPES}.{kind}"));
            json!({"name": name, "typed_config": typed})
        };
        let address = |host: &str| json!({"socket_address": {"address": host, "port_value": INBOUND_PORT}});
        let authorization = filter(
            "envoy.filters.http.ext_authz",
            "filters.http.ext_authz.v3.ExtAuthz",
            json!({
                "transport_api_version": "V3",
                "failure_mode_allow": false,
                "include_peer_certificate": true,
                "grpc_service": {"timeout": VERDICT_TIMEOUT, "envoy_grpc": {"cluster_name": "authorization"}},
            }),
        );
        let router = filter("envoy.filters.http.router", "filters.http.router.v3.Router", json!({}));
        let requests = filter(
            "envoy.filters.network.http_connection_manager",
            "filters.network.http_connection_manager.v3.HttpConnectionManager",
            json!({
                "stat_prefix": "inbound",
                "route_config": {"virtual_hosts": [{
                    "name": "server",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "server"}}],
                }]},
                "http_filters": [authorization, router],
            }),
        );
        let server = json!({"socket_address": {"address": "127.0.0.1", "port_value": SERVER_PORT}});
        let mut authorization_cluster =
            static_cluster("authorization", json!({"pipe": {"path": self.authorization_socket()}}));
        authorization_cluster["typed_extension_protocol_options"] = json!({
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": format!("{TYPES}.upstreams.http.v3.HttpProtocolOptions"),
                "explicit_http_config": {"http2_protocol_options": {}},
            },
        });
        json!({
            "admin": {"address": {"pipe": {"path": self.admin_socket()}}},
            "static_resources": {
                "listeners": [{
                    "name": "inbound",
                    "address": address("0.0.0.0"),
                    "additional_addresses": [{"address": address("::")}],
                    "filter_chains": [{"filters": [requests]}],
                }],
                "clusters": [static_cluster("server", server), authorization_cluster],
            },
        })
    }

    /// Removes the credentials, which closes the node's socket, and all files. The processes have ended.
    pub fn remove(&self) -> LabResult<()> {
        let credentials = self.credentials(&policy_sync_dir(self.place, &self.pod.node));
        accept_missing(&credentials, fs::remove_file(&credentials))?;
        let dir = self.dir();
        accept_missing(&dir, fs::remove_dir_all(&dir))
    }

    pub fn status(&self) -> SidecarStatus {
        SidecarStatus { envoy: self.envoy().running(), l7: self.server().running() }
    }

    pub fn envoy(&self) -> LabDaemon {
        LabDaemon::in_dir(&format!("Envoy of {}", self.pod.name), &self.dir().join("envoy"))
    }

    pub fn server(&self) -> LabDaemon {
        LabDaemon::in_dir(&format!("the HTTP policy server of {}", self.pod.name), &self.dir().join("l7"))
    }

    fn dir(&self) -> PathBuf {
        self.place.pods().join(&self.pod.name)
    }

    fn authorization_socket(&self) -> PathBuf {
        self.dir().join("authz.sock")
    }

    fn admin_socket(&self) -> PathBuf {
        self.dir().join("admin.sock")
    }

    /// Returns the socket that the node creates for the pod once the credentials exist.
    fn policy_socket(&self) -> PathBuf {
        let prefix = policy_sync_dir(self.place, &self.pod.node);
        prefix.join("mount").join(self.workload_id()).join("socket")
    }

    fn workload_id(&self) -> &str {
        self.pod.container_id.get(..WORKLOAD_ID_LENGTH).unwrap_or(&self.pod.container_id)
    }

    fn credentials(&self, prefix: &Path) -> PathBuf {
        prefix.join("creds").join(format!("{}.json", self.workload_id()))
    }
}

/// Returns the directory of the policy-sync sockets and credentials of a node.
fn policy_sync_dir(place: &LabPaths, node: &str) -> PathBuf {
    place.node_dir(node).join("policysync")
}

/// Sets `policySyncPathPrefix` in the node's FelixConfiguration and returns it. The running daemon applies the setting.
async fn enable_policy_sync(place: &LabPaths, cluster: &LabCluster, node: &str) -> LabResult<PathBuf> {
    let dir = policy_sync_dir(place, node);
    let prefix = dir.display().to_string();
    let name = format!("node.{node}");
    let resources = store::client(cluster).await?;
    let changed = resources.modify("", &name, |stored: Result<FelixConfiguration, StoreError>| {
        let mut configuration = match stored {
            Ok(stored) if stored.spec.policy_sync_path_prefix == prefix => return Ok::<_, StoreError>(None),
            Ok(stored) => stored,
            Err(StoreError::DoesNotExist { .. }) => {
                let metadata = ObjectMeta { name: name.clone(), ..ObjectMeta::default() };
                FelixConfiguration::new(metadata, FelixConfigurationSpec::default())
            }
            Err(error) => return Err(error),
        };
        configuration.spec.policy_sync_path_prefix = prefix.clone();
        Ok(Some(configuration))
    });
    changed.await?;
    Ok(dir)
}

fn static_cluster(name: &str, address: Value) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    })
}

/// Asks Envoy's administration interface whether all listeners accept connections.
async fn probe_envoy(socket: &Path) -> io::Result<()> {
    let asked = async {
        let mut stream = UnixStream::connect(socket).await?;
        stream.write_all(b"GET /ready HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n").await?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response).await?;
        Ok::<_, io::Error>(response)
    };
    let response = tokio::time::timeout(PROBE_TIMEOUT, asked).await.map_err(io::Error::from)??;
    if response.starts_with(b"HTTP/1.1 200 ") {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&response).lines().last().unwrap_or_default().to_owned()))
}

/// Converts the result of a removal; a path that does not exist is not an error.
fn accept_missing(path: &Path, removed: io::Result<()>) -> LabResult<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(LabError::file(path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_envoy_names_its_source() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("envoy");
        let error = find_envoy(Some(&file)).unwrap_err().to_string();
        assert!(error.contains("scripts/envoy") && error.contains("ENVOY"), "{error}");
        fs::write(&file, "").unwrap();
        assert_eq!(find_envoy(Some(&file)).unwrap(), file);
    }

    #[test]
    fn socket_paths_of_usual_names_fit() {
        let place = LabPaths::new("twentyletterslabname", None).unwrap();
        let pod = LabPod::new(&"p".repeat(40), "node100", "default", Default::default()).unwrap();
        let sidecar = PodSidecar::new(&place, &pod);
        for socket in [sidecar.policy_socket(), sidecar.admin_socket(), sidecar.authorization_socket()] {
            assert!(socket.as_os_str().len() <= MAX_SOCKET_PATH_LENGTH, "{}", socket.display());
        }
    }
}
