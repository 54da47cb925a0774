//! Runs the lab's datastore and creates the resources that exist before the first node starts.

use crate::cluster::{LabCluster, LabDatastore};
use crate::encap::PodEncapsulation;
use crate::error::{LabError, LabResult};
use crate::kube;
use crate::place::LabPaths;
use crate::process::LabDaemon;
use crate::topology;
use ipnet::IpNet;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use tortie_model::{API_VERSION, Kind, Resource};
use tortie_store::{ResourceClient, StoreClient, StoreConfig};

/// etcd creates Unix sockets in its working directory and requires a name that looks like host:port.
const ETCD_SOCKET: &str = "etcd.sock:0";
const ETCD_PEER_URL: &str = "http://127.0.0.1:2380";
/// TCP port for nodes of Kubernetes, at the address of the first rack's router.
const STORE_PORT: u16 = 12379;

pub fn daemon(place: &LabPaths) -> LabDaemon {
    LabDaemon::in_dir("the store", &dir(place))
}

fn dir(place: &LabPaths) -> PathBuf {
    place.dir().join("store")
}

pub fn endpoint(place: &LabPaths, datastore: LabDatastore) -> String {
    let socket = match datastore {
        LabDatastore::Embedded => "datastore.sock",
        LabDatastore::Etcd => ETCD_SOCKET,
        LabDatastore::Kubernetes => return kube::admin(place).display().to_string(),
    };
    format!("unix://{}", dir(place).join(socket).display())
}

/// Returns the URL at which nodes of Kubernetes reach a datastore that is not the Kubernetes API.
pub fn store_url() -> String {
    format!("http://{}:{STORE_PORT}", topology::gateway(1).ipv4)
}

/// Connects to the datastore. The Kubernetes API is reachable only from the fabric's namespace
/// ([`crate::enter::reach_store`]).
pub async fn client(cluster: &LabCluster) -> LabResult<ResourceClient> {
    let config = match cluster.datastore {
        LabDatastore::Embedded | LabDatastore::Etcd => StoreConfig::at(&cluster.endpoint),
        LabDatastore::Kubernetes => StoreConfig {
            datastore_type: "kubernetes".to_owned(),
            kubeconfig: cluster.endpoint.clone(),
            ..StoreConfig::default()
        },
    };
    Ok(ResourceClient::new(StoreClient::connect(&config).await?))
}

/// Starts the datastore in the fabric's namespace, where its ports cannot conflict with the host's, and waits until it
/// is ready.
pub async fn start(place: &LabPaths, cluster: &LabCluster) -> LabResult<ResourceClient> {
    let dir = dir(place);
    std::fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    let data = dir.join("data");
    let command = match cluster.datastore {
        LabDatastore::Embedded => {
            let mut command = Command::new(place.bin().join("tortie"));
            command.arg("datastore").arg("--data-dir").arg(data).args(["--listen", &cluster.endpoint]);
            if cluster.kubernetes.is_some() {
                command.args(["--listen", &store_url(), "--allow-plaintext"]);
            }
            command
        }
        LabDatastore::Etcd => {
            let mut clients = format!("unix://{ETCD_SOCKET}");
            if cluster.kubernetes.is_some() {
                clients += &format!(",{}", store_url());
            }
            let mut command = Command::new("etcd");
            command
                .current_dir(&dir)
                .args(["--name", "lab", "--data-dir", "data"])
                .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
                .args(["--listen-peer-urls", ETCD_PEER_URL, "--initial-advertise-peer-urls", ETCD_PEER_URL])
                .args(["--initial-cluster", &format!("lab={ETCD_PEER_URL}")]);
            command
        }
        // Started with the control plane.
        LabDatastore::Kubernetes => return client(cluster).await,
    };
    let started = daemon(place).start(&place.fabric(), command)?;
    let resources = client(cluster).await?;
    started.ready(async || resources.list(Kind::IPPool, None).await.map(drop)).await?;
    Ok(resources)
}

/// Creates a resource from its JSON form.
pub async fn create(resources: &ResourceClient, object: Value) -> LabResult<()> {
    let resource = Resource::from_user(object).map_err(|error| LabError::refused(error.to_string()))?;
    resources.create(resource).await?;
    Ok(())
}

/// Creates the IP pools that the lab itself must create, and the WireGuard settings.
pub async fn seed(resources: &ResourceClient, cluster: &LabCluster) -> LabResult<()> {
    if cluster.encap == PodEncapsulation::Wireguard {
        let object = json!({
            "apiVersion": API_VERSION,
            "kind": "FelixConfiguration",
            "metadata": {"name": "default"},
            "spec": {"wireguardEnabled": true, "wireguardEnabledV6": cluster.has_family(true)},
        });
        create(resources, object).await?;
    }
    let pools = match cluster.kubernetes {
        Some(_) => cluster.further_pools(),
        None => cluster.pools.clone(),
    };
    for (number, pool) in (1..).zip(&pools) {
        let (ipip, vxlan) = cluster.encap.modes(pool);
        let object = json!({
            "apiVersion": API_VERSION,
            "kind": "IPPool",
            "metadata": {"name": format!("lab-{}-{number}", family(pool))},
            "spec": {"cidr": pool.to_string(), "blockSize": block_size(pool), "ipipMode": ipip, "vxlanMode": vxlan},
        });
        create(resources, object).await?;
    }
    Ok(())
}

fn family(pool: &IpNet) -> &'static str {
    match pool {
        IpNet::V4(_) => "ipv4",
        IpNet::V6(_) => "ipv6",
    }
}

/// Returns the default block size, or the size of the pool if that is smaller.
fn block_size(pool: &IpNet) -> u8 {
    match pool {
        IpNet::V4(pool) => pool.prefix_len().max(26),
        IpNet::V6(pool) => pool.prefix_len().max(122),
    }
}
