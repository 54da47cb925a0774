//! Compares one hub that serves thousands of clients with as many direct watches on the same etcd: memory and CPU time
//! of the server, the time until the last client has a change, snapshots, and simultaneous reconnection of all clients.
//! Then repeats the changes next to clients that do not read, and estimates the savings of filtering.

mod client;
mod cluster;
mod direct;
mod filtering;
mod slow;

use crate::measure::{Latencies, table, time, times};
use crate::namespace::BenchResult;
use crate::process::BenchProcess;
use crate::{SuiteResult, plain};
use client::HubClients;
use cluster::HubCluster;
use direct::EtcdWatchers;
use slow::SlowClients;
use std::time::{Duration, Instant};

/// Numbers of clients. `TORTIE_BENCH_CLIENTS=100,200` overrides them for a quick run.
const CLIENT_COUNTS: &[usize] = &[1_000, 2_000, 5_000];
/// Number of changes in a run, and the delay between them.
const CHANGE_COUNT: usize = 1_000;
const CHANGE_INTERVAL: Duration = Duration::from_millis(10);
/// Number of clients that read nothing, and of those that read one byte per second.
const SLOW_CLIENT_COUNT: usize = 50;
/// Time for the server to free temporary memory.
const SETTLE_TIME: Duration = Duration::from_secs(2);

pub fn run() -> SuiteResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure()).map_err(plain)?;
    filtering::measure().map_err(plain)
}

/// Result of one run.
struct HubFigures {
    clients: usize,
    /// Until all clients have the snapshot. `None` for watches, which start at the current revision.
    snapshot: Option<Duration>,
    /// Memory of the server per client, in bytes.
    memory: u64,
    /// CPU time of the server and of etcd, per change.
    processor: [Duration; 2],
    /// From a write until the last client has received it.
    latencies: Latencies,
    /// Bytes sent by etcd per change.
    etcd_bytes: u64,
    /// Bytes sent by the server to each client for the snapshot.
    snapshot_bytes: Option<u64>,
    /// Bytes sent by the server to each client per change.
    change_bytes: Option<u64>,
    /// Until all clients follow again after all were disconnected.
    reconnect: Option<Duration>,
}

/// Figures that exist only for a hub.
struct HubOnlyFigures {
    snapshot: Duration,
    snapshot_bytes: u64,
    change_bytes: u64,
    reconnect: Duration,
}

async fn measure() -> BenchResult<()> {
    let cluster = HubCluster::start().await?;
    let mut rows = Vec::new();
    for clients in sizes()? {
        crate::namespace::check()?;
        let ours = with_hub(&cluster, clients).await?;
        let theirs = with_watches(&cluster, clients).await?;
        rows.extend([row("hub", ours, Some(&theirs)), row("direct watches", theirs, None)]);
    }
    let header = [
        "clients",
        "served by",
        "all have all after",
        "bytes each",
        "bytes of a change",
        "memory each",
        "processor time per change",
        "of etcd",
        "etcd sends per change",
        "median to the last",
        "p99 to the last",
        "all reconnect in",
    ];
    let title = format!(
        "{} endpoints and {} policies in etcd, {CHANGE_COUNT} changes, one each {CHANGE_INTERVAL:?}",
        cluster::ENDPOINT_COUNT,
        cluster::POLICY_COUNT
    );
    table(&title, &header, &rows);
    beside_slow_clients(&cluster, sizes()?.first().copied().unwrap_or_default()).await
}

/// Measures latencies at one hub with and without clients that do not read.
async fn beside_slow_clients(cluster: &HubCluster, count: usize) -> BenchResult<()> {
    let hub = cluster.start_hub().await?;
    let clients = HubClients::connect(hub.address, count).await?;
    clients.follow().await?;
    let mut rows = Vec::new();
    let mut slow = None;
    for name in [
        "nobody".to_owned(),
        format!("{SLOW_CLIENT_COUNT} that read nothing and {SLOW_CLIENT_COUNT} that read a byte a second"),
    ] {
        let mut latencies = Latencies::default();
        for (revision, at) in cluster.changes().await? {
            latencies.0.push(clients.last_arrival(revision).await?.saturating_duration_since(at));
        }
        let shown = |duration: Duration| time(duration.as_nanos() as f64);
        let (median, p99) = (latencies.quantile(0.5), latencies.quantile(0.99));
        rows.push(vec![count.to_string(), name, shown(median), shown(p99)]);
        if slow.is_none() {
            slow = Some(SlowClients::connect(hub.address, SLOW_CLIENT_COUNT).await?);
        }
    }
    table("Clients that do not read", &["clients", "beside", "median to the last", "p99 to the last"], &rows);
    Ok(())
}

fn sizes() -> BenchResult<Vec<usize>> {
    match std::env::var("TORTIE_BENCH_CLIENTS") {
        Ok(sizes) => {
            Ok(sizes.split(',').map(|size| size.trim().parse()).collect::<std::result::Result<_, _>>()?)
        }
        Err(_) => Ok(CLIENT_COUNTS.to_vec()),
    }
}

fn row(name: &str, mut figures: HubFigures, than: Option<&HubFigures>) -> Vec<String> {
    let span = |duration: Duration| time(duration.as_nanos() as f64);
    let fewer = than.map_or(String::new(), |than| {
        format!(" ({} fewer)", times(than.etcd_bytes as f64 / figures.etcd_bytes.max(1) as f64))
    });
    vec![
        figures.clients.to_string(),
        name.to_owned(),
        figures.snapshot.map_or("-".to_owned(), span),
        figures.snapshot_bytes.map_or("-".to_owned(), |bytes| format!("{:.2} MB", bytes as f64 / 1e6)),
        figures.change_bytes.map_or("-".to_owned(), |bytes| format!("{bytes} B")),
        format!("{:.1} KB", figures.memory as f64 / 1e3),
        span(figures.processor[0]),
        span(figures.processor[1]),
        format!("{:.1} KB{fewer}", figures.etcd_bytes as f64 / 1e3),
        span(figures.latencies.quantile(0.5)),
        span(figures.latencies.quantile(0.99)),
        figures.reconnect.map_or("-".to_owned(), span),
    ]
}

/// Resource usage of the process that serves the clients.
struct ServerUsage {
    memory: u64,
    processor: [Duration; 2],
    etcd_bytes: u64,
}

impl ServerUsage {
    async fn look(server: &BenchProcess, cluster: &HubCluster) -> BenchResult<ServerUsage> {
        tokio::time::sleep(SETTLE_TIME).await;
        Ok(ServerUsage {
            memory: server.memory()?.resident << 10,
            processor: [server.processor_time()?, cluster.etcd_time()?],
            etcd_bytes: cluster.etcd_sent().await?,
        })
    }
}

async fn with_hub(cluster: &HubCluster, count: usize) -> BenchResult<HubFigures> {
    let hub = cluster.start_hub().await?;
    let empty = ServerUsage::look(&hub.process, cluster).await?;
    let began = Instant::now();
    let mut clients = HubClients::connect(hub.address, count).await?;
    clients.follow().await?;
    let snapshot = began.elapsed();
    let snapshot_bytes = clients.received() / count as u64;
    let before = ServerUsage::look(&hub.process, cluster).await?;
    let mut latencies = Latencies::default();
    for (revision, at) in cluster.changes().await? {
        latencies.0.push(clients.last_arrival(revision).await?.saturating_duration_since(at));
    }
    let after = ServerUsage::look(&hub.process, cluster).await?;
    let change_bytes = (clients.received() / count as u64 - snapshot_bytes) / CHANGE_COUNT as u64;
    let began = Instant::now();
    clients.reconnect(hub.address).await?;
    clients.follow().await?;
    let of_hub = HubOnlyFigures { snapshot, snapshot_bytes, change_bytes, reconnect: began.elapsed() };
    Ok(figures(count, Some(of_hub), [empty, before, after], latencies))
}

async fn with_watches(cluster: &HubCluster, count: usize) -> BenchResult<HubFigures> {
    let empty = ServerUsage::look(cluster.etcd(), cluster).await?;
    let watchers = EtcdWatchers::start(cluster.endpoint(), count).await?;
    let before = ServerUsage::look(cluster.etcd(), cluster).await?;
    let mut latencies = Latencies::default();
    for (revision, at) in cluster.changes().await? {
        latencies.0.push(watchers.last_arrival(revision).await?.saturating_duration_since(at));
    }
    let after = ServerUsage::look(cluster.etcd(), cluster).await?;
    Ok(figures(count, None, [empty, before, after], latencies))
}

fn figures(
    clients: usize,
    of_hub: Option<HubOnlyFigures>,
    [empty, before, after]: [ServerUsage; 3],
    latencies: Latencies,
) -> HubFigures {
    let changes = CHANGE_COUNT as u32;
    HubFigures {
        clients,
        snapshot: of_hub.as_ref().map(|of_hub| of_hub.snapshot),
        memory: before.memory.saturating_sub(empty.memory) / clients as u64,
        processor: [0, 1].map(|index| (after.processor[index] - before.processor[index]) / changes),
        latencies,
        etcd_bytes: (after.etcd_bytes - before.etcd_bytes) / u64::from(changes),
        snapshot_bytes: of_hub.as_ref().map(|of_hub| of_hub.snapshot_bytes),
        change_bytes: of_hub.as_ref().map(|of_hub| of_hub.change_bytes),
        reconnect: of_hub.map(|of_hub| of_hub.reconnect),
    }
}
