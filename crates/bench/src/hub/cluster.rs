//! Runs a real etcd filled with the records of a cluster, and hubs on it.

use super::{CHANGE_COUNT, CHANGE_INTERVAL};
use crate::namespace::BenchResult;
use crate::node::ready;
use crate::process::{BenchProcess, tortie};
use crate::store::server::BenchStoreServer;
use serde_json::{Value as Json, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tortie_model::{Kind, Resource, StoreKey, StoreValue};
use tortie_store::{EntryChange, StoreClient, StoreConfig};
use tortie_testkit::free_port;

pub const ENDPOINT_COUNT: usize = 10_000;
pub const POLICY_COUNT: usize = 1_000;
pub const NODE_COUNT: usize = 500;
/// Number of entries written in one transaction.
const BATCH_SIZE: usize = 100;

pub struct HubCluster {
    server: BenchStoreServer,
    client: StoreClient,
}

pub struct BenchHubProcess {
    pub process: BenchProcess,
    pub address: SocketAddr,
}

impl HubCluster {
    pub async fn start() -> BenchResult<HubCluster> {
        let server = BenchStoreServer::etcd().await.map_err(|error| error.to_string())?;
        let client = StoreClient::connect(&StoreConfig::at(&server.url)).await?;
        let changes: Vec<EntryChange> =
            entries()?.into_iter().map(|(key, value)| EntryChange::Create { key, value }).collect();
        for batch in changes.chunks(BATCH_SIZE) {
            client.transact(batch).await?;
        }
        Ok(HubCluster { server, client })
    }

    pub fn endpoint(&self) -> &str {
        &self.server.url
    }

    pub fn etcd(&self) -> &BenchProcess {
        &self.server.process
    }

    pub fn etcd_time(&self) -> BenchResult<Duration> {
        Ok(self.server.processor_time()?)
    }

    /// Returns the number of bytes that etcd has sent to its clients.
    pub async fn etcd_sent(&self) -> BenchResult<u64> {
        let address = self.server.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
        let mut page = String::new();
        stream.read_to_string(&mut page).await?;
        let line =
            page.lines().find_map(|line| line.strip_prefix("etcd_network_client_grpc_sent_bytes_total "));
        Ok(line.ok_or("etcd does not say what it has sent")?.parse::<f64>()? as u64)
    }

    pub async fn start_hub(&self) -> BenchResult<BenchHubProcess> {
        let port = free_port()?;
        let mut command = BenchProcess::command(tortie()?);
        command
            .arg("hub")
            .env("TYPHA_SERVERHOST", "127.0.0.1")
            .env("TYPHA_SERVERPORT", port.to_string())
            .env("TYPHA_MAXCONNECTIONSPERSOURCE", "100000")
            .env("TYPHA_ETCDENDPOINTS", &self.server.url);
        Ok(BenchHubProcess { process: ready(&mut command)?, address: ([127, 0, 0, 1], port).into() })
    }

    /// Rewrites endpoints at the configured rate. Returns the revision and time of each write.
    pub async fn changes(&self) -> BenchResult<Vec<(u64, Instant)>> {
        let mut written = Vec::with_capacity(CHANGE_COUNT);
        for number in 0..CHANGE_COUNT {
            written.push((self.change(number).await?, Instant::now()));
            tokio::time::sleep(CHANGE_INTERVAL).await;
        }
        Ok(written)
    }

    /// Rewrites an endpoint and returns the revision.
    async fn change(&self, number: usize) -> BenchResult<u64> {
        let (key, value) = endpoint(number % ENDPOINT_COUNT, number + 1)?;
        let entry = self.client.apply(&key, &value, None).await?;
        Ok(entry.revision.number().ok_or("etcd counts its revisions")?)
    }
}

/// Returns everything that nodes read.
pub fn entries() -> BenchResult<Vec<(StoreKey, StoreValue)>> {
    (0..ENDPOINT_COUNT).map(|number| endpoint(number, 0)).chain((0..POLICY_COUNT).map(policy)).collect()
}

fn entry(kind: Kind, object: Json) -> BenchResult<(StoreKey, StoreValue)> {
    let resource = Resource::from_store(kind, object)?;
    let meta = resource.metadata();
    Ok((StoreKey::resource(kind, &meta.namespace, &meta.name), StoreValue::Resource(resource)))
}

fn endpoint(number: usize, version: usize) -> BenchResult<(StoreKey, StoreValue)> {
    // The pods of a namespace are spread over many nodes, and a node has pods of many namespaces.
    let place = (31 * number + number / 100) % NODE_COUNT;
    let (node, namespace) = (format!("node-{place}"), format!("ns-{}", number % 100));
    let pod = format!("pod-{number}");
    let name = format!("{}-k8s-{}-eth0", node.replace('-', "--"), pod.replace('-', "--"));
    let labels = json!({
        "app": format!("app-{}", number % 50), "tier": format!("tier-{}", number % 5), "version": version.to_string(),
        "projectcalico.org/namespace": namespace, "projectcalico.org/orchestrator": "k8s",
    });
    let address = format!("10.{}.{}.{}/32", 64 + number / 65_536, number / 256 % 256, number % 256);
    entry(
        Kind::WorkloadEndpoint,
        json!({
            "metadata": {"name": name, "namespace": namespace, "labels": labels, "uid": format!("{:032x}", number * 7919),
                "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"node": node, "orchestrator": "k8s", "pod": pod, "endpoint": "eth0", "containerID": format!("{:064x}", number * 104_729),
                "interfaceName": format!("cali{number:011x}"), "ipNetworks": [address],
                "profiles": [format!("kns.{namespace}"), format!("ksa.{namespace}.default")]},
        }),
    )
}

fn policy(number: usize) -> BenchResult<(StoreKey, StoreValue)> {
    entry(
        Kind::NetworkPolicy,
        json!({
            "metadata": {"name": format!("default.policy-{number}"), "namespace": format!("ns-{}", number % 100)},
            "spec": {"tier": "default", "order": number, "selector": format!("app == 'app-{}'", number % 50), "types": ["Ingress"],
                "ingress": [{"action": "Allow", "protocol": "TCP",
                    "source": {"selector": format!("tier == 'tier-{}' && app != 'app-{}'", number % 5, (number + 1) % 50)},
                    "destination": {"ports": [80, 443, 8000 + number % 1000]}}]},
        }),
    )
}
