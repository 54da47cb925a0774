//! Measures the controllers on a real API server: the time until they have read everything and scanned all addresses,
//! their requests until then and when idle, and the time until leaked addresses are released.

use crate::measure::{table, time};
use crate::namespace::{BenchResult, check};
use crate::process::{BenchProcess, tortie};
use crate::{SuiteResult, plain};
use ipnet::IpNet;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tortie_ipam::owner::attribute;
use tortie_ipam::reservation::ReservedRanges;
use tortie_ipam::{AddressHolder, Allocator, AssignRequest, BlockOwner, block};
use tortie_model::{StoreKey, StoreValue};
use tortie_store::{StoreClient, StoreConfig};
use tortie_testkit::{ApiServer, CalicoGroup, free_port};

const NODE_COUNT: u32 = 1_000;
/// Environment variable that overrides the number of nodes.
const NODES_VARIABLE: &str = "TORTIE_BENCH_NODES";
/// Allocated addresses of each node.
const ADDRESSES_PER_NODE: u32 = 50;
/// Addresses that belong to pods. The others do not, and are never considered leaked.
const PODS_PER_NODE: u32 = 10;
/// Number of addresses of nonexistent pods on existing nodes.
const LEAK_COUNT: u32 = 100;
const LEAK_GRACE_PERIOD: Duration = Duration::from_secs(5);
const IDLE_PERIOD: Duration = Duration::from_secs(60);
const CONTROLLER_TIMEOUT: Duration = Duration::from_secs(300);
const CONCURRENT_WRITES: usize = 16;

pub fn run() -> SuiteResult {
    measure().map_err(plain)
}

fn measure() -> BenchResult<()> {
    let nodes = match std::env::var(NODES_VARIABLE) {
        Ok(given) => given.parse().map_err(|error| format!("{NODES_VARIABLE}={given}: {error}"))?,
        Err(_) => NODE_COUNT,
    };
    let server = ApiServer::start();
    server.install(CalicoGroup::V3);
    let port = free_port()?;
    fill(&server, nodes, port);
    let runtime = tokio::runtime::Runtime::new()?;
    let client = runtime.block_on(StoreClient::connect(&config(&server)))?;
    runtime.block_on(write_blocks(&client, nodes))?;
    check()?;

    let began = Instant::now();
    let process = start(&server)?;
    until("scan all addresses", || Ok(metric(port, "tortie_controllers_gc_scans_total")? >= 1.0))?;
    let (synced, first) = (began.elapsed(), server.requests_of_node().len());
    let memory = process.memory()?;
    // The initial writes are finished by then.
    std::thread::sleep(LEAK_GRACE_PERIOD);
    let settled = server.requests_of_node().len();
    std::thread::sleep(IDLE_PERIOD);
    let idle = server.requests_of_node().split_off(settled);
    let renewals = idle.iter().filter(|(_, path)| path.contains("/leases/")).count();
    let scan = metric(port, "tortie_controllers_gc_scan_seconds")?;

    let leaked = runtime.block_on(leak(&client, nodes.min(LEAK_COUNT)))?;
    let asked = server.requests_of_node().len();
    let began = Instant::now();
    until("release what leaked", || {
        let blocks = runtime.block_on(leaked.records().blocks(None))?;
        let held = blocks.iter().flat_map(|found| block::allocations(&found.value));
        Ok(held
            .filter(|allocation| {
                allocation.handle().is_some_and(|handle| handle.starts_with(LEAKED_HANDLE_PREFIX))
            })
            .count()
            == 0)
    })?;
    let released = began.elapsed();
    let requests = server.requests_of_node().len() - asked;

    let mib = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
    let seconds = |duration: Duration| time(duration.as_nanos() as f64);
    let rows = [
        ("start until all are scanned", seconds(synced)),
        ("requests until then", first.to_string()),
        ("peak memory", mib(memory.peak)),
        ("one scan", time(scan * 1e9)),
        ("requests of an idle minute", format!("{} ({renewals} of the Lease)", idle.len())),
        (
            "leaks until all are released",
            format!("{} for {} after {LEAK_GRACE_PERIOD:?}", seconds(released), nodes.min(LEAK_COUNT)),
        ),
        ("requests for that", requests.to_string()),
    ];
    let rows = rows.map(|(what, figure)| vec![what.to_owned(), figure]);
    let title = format!(
        "Controllers on an API server with {} pods and {} addresses on {nodes} nodes",
        nodes * PODS_PER_NODE,
        nodes * ADDRESSES_PER_NODE
    );
    table(&title, &["what", "figure"], &rows);
    Ok(())
}

fn config(server: &ApiServer) -> StoreConfig {
    StoreConfig {
        datastore_type: "kubernetes".to_owned(),
        kubeconfig: server.kubeconfig().display().to_string(),
        calico_api_group: CalicoGroup::V3.api_version().to_owned(),
        ..StoreConfig::default()
    }
}

fn start(server: &ApiServer) -> BenchResult<BenchProcess> {
    let mut command = BenchProcess::command(tortie()?);
    command
        .args(["controllers", "--identity", "bench", "--status-file"])
        .arg(server.path("status.json"))
        .envs(server.environment(CalicoGroup::V3))
        .env("KUBECONFIG", server.node_kubeconfig());
    Ok(BenchProcess(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
}

/// Creates nodes, pods, a pool and the configuration.
fn fill(server: &ApiServer, nodes: u32, metrics_port: u16) {
    let group = format!("/apis/{}", CalicoGroup::V3.api_version());
    let object = |kind: &str, name: &str, spec: Json| json!({"apiVersion": CalicoGroup::V3.api_version(), "kind": kind, "metadata": {"name": name}, "spec": spec});
    server.add_namespace("ns", json!({}));
    let pool =
        json!({"cidr": "10.0.0.0/12", "blockSize": 26, "nodeSelector": "all()", "allowedUses": ["Workload"]});
    server.create(&format!("{group}/ippools"), &object("IPPool", "pods", pool));
    let controllers = json!({"node": {"leakGracePeriod": format!("{}s", LEAK_GRACE_PERIOD.as_secs())}});
    let settings = json!({"controllers": controllers, "prometheusMetricsPort": metrics_port});
    let settings = object("KubeControllersConfiguration", "default", settings);
    server.create(&format!("{group}/kubecontrollersconfigurations"), &settings);
    let node = |number: u32| {
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node_name(number)}});
        ("/api/v1/nodes".to_owned(), object)
    };
    server.create_all(&(0..nodes).map(node).collect::<Vec<_>>());
    let pod = |number: u32| {
        let (node, pod) = (number / PODS_PER_NODE, number % PODS_PER_NODE);
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod_name(node, pod),
                "annotations": {"cni.projectcalico.org/podIPs": format!("{}/32", address(node, pod))}},
            "spec": {"nodeName": node_name(node), "containers": [{"name": "c", "image": "registry.example/app:1"}]},
        });
        ("/api/v1/namespaces/ns/pods".to_owned(), object)
    };
    server.create_all(&(0..nodes * PODS_PER_NODE).map(pod).collect::<Vec<_>>());
}

fn node_name(number: u32) -> String {
    format!("node-{number}")
}

fn pod_name(node: u32, pod: u32) -> String {
    format!("pod-{node}-{pod}")
}

fn address(node: u32, place: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + node * 64 + place)
}

/// Writes one block with all its addresses for each node.
async fn write_blocks(client: &StoreClient, nodes: u32) -> BenchResult<()> {
    let mut writing = JoinSet::new();
    for number in 0..nodes {
        let cidr: IpNet = format!("{}/26", address(number, 0)).parse()?;
        let node = node_name(number);
        let mut records = block::fresh(cidr, &BlockOwner::host(&node), None, jiff::Timestamp::now());
        for place in 0..ADDRESSES_PER_NODE {
            let name = pod_name(number, place);
            let attributes = match place < PODS_PER_NODE {
                true => vec![
                    (attribute::POD_ATTRIBUTE, name.as_str()),
                    (attribute::NAMESPACE_ATTRIBUTE, "ns"),
                    (attribute::NODE_ATTRIBUTE, &node),
                ],
                false => vec![(attribute::NODE_ATTRIBUTE, node.as_str())],
            };
            let attributes: BTreeMap<String, String> =
                attributes.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let holder = AddressHolder::new(Some(&format!("k8s-pod-network.{name}")), attributes);
            block::allocate(&mut records, 1, &holder, &ReservedRanges::new([]));
        }
        let client = client.clone();
        writing.spawn(
            async move { client.create(&StoreKey::Block { cidr }, &StoreValue::Block(records)).await },
        );
        if writing.len() >= CONCURRENT_WRITES
            && let Some(written) = writing.join_next().await
        {
            written??;
        }
    }
    while let Some(written) = writing.join_next().await {
        written??;
    }
    Ok(())
}

const LEAKED_HANDLE_PREFIX: &str = "k8s-pod-network.leaked";

/// Allocates addresses for pods that never existed.
async fn leak(client: &StoreClient, count: u32) -> BenchResult<Allocator> {
    let allocator = Allocator::new(client.clone(), BlockOwner::host(&node_name(0)));
    for number in 0..count {
        let (pod, node) = (format!("leaked-{number}"), node_name(0));
        let attributes = [
            (attribute::POD_ATTRIBUTE, pod.as_str()),
            (attribute::NAMESPACE_ATTRIBUTE, "ns"),
            (attribute::NODE_ATTRIBUTE, &node),
        ];
        let attributes = attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let holder = AddressHolder::new(Some(&format!("{LEAKED_HANDLE_PREFIX}-{number}")), attributes);
        allocator.auto_assign(&AssignRequest::new(holder, 1, 0)).await?;
    }
    Ok(allocator)
}

/// Returns a metric of the controllers; 0 if it is not reported yet.
fn metric(port: u16, name: &str) -> BenchResult<f64> {
    let output = Command::new("curl").args(["-s", &format!("http://127.0.0.1:{port}/metrics")]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
    Ok(line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0.0))
}

fn until(what: &str, mut so: impl FnMut() -> BenchResult<bool>) -> BenchResult<()> {
    let began = Instant::now();
    while !so()? {
        check()?;
        if began.elapsed() > CONTROLLER_TIMEOUT {
            return Err(format!("the controllers do not {what}").into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
