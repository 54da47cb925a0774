//! Compares the embedded datastore with Debian's etcd: both durable on the same disk, driven by the same client.

mod client;
pub mod server;

use crate::SuiteResult;
use crate::measure::{Latencies, table, times};
use crate::process::before;
use client::WriteLoad;
use server::BenchStoreServer;
use std::time::Duration;

/// Number of repetitions, alternating between the two servers.
const REPETITIONS: usize = 3;
const ROUND_DURATION: Duration = Duration::from_millis(1500);
const CLIENT_COUNTS: [usize; 3] = [1, 16, 64];
/// Number of keys in a list, and how often it is read.
const LIST_SIZES: [(usize, usize); 3] = [(1_000, 200), (10_000, 40), (100_000, 9)];
const WATCHER_COUNTS: [usize; 2] = [1, 500];
/// Environment variable that selects one part: `writes`, `watches` or `lists`.
const PART_VARIABLE: &str = "TORTIE_BENCH_STORE";

pub fn run() -> SuiteResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let part = std::env::var(PART_VARIABLE).ok();
    runtime.block_on(async {
        match part.as_deref() {
            None => {
                writes().await?;
                watches().await?;
                lists().await
            }
            Some("writes") => writes().await,
            Some("watches") => watches().await,
            Some("lists") => lists().await,
            Some(other) => {
                Err(format!("{PART_VARIABLE}: {other:?} is no part of it: writes, watches, lists").into())
            }
        }
    })
}

/// Starts the server to compare with, and the embedded datastore.
async fn both() -> Result<[BenchStoreServer; 2], Box<dyn std::error::Error>> {
    let peer = match before() {
        Some(program) => BenchStoreServer::build(program).await?,
        None => BenchStoreServer::etcd().await?,
    };
    Ok([peer, BenchStoreServer::embedded().await?])
}

fn peer() -> &'static str {
    if before().is_some() { "before" } else { "etcd" }
}

async fn writes() -> SuiteResult {
    let mut rows = Vec::new();
    for load in [WriteLoad::Put, WriteLoad::CompareAndPut] {
        for clients in CLIENT_COUNTS {
            let servers = both().await?;
            let mut rates = [0.0, 0.0];
            let mut costs = [0.0, 0.0];
            for _ in 0..REPETITIONS {
                for (number, server) in servers.iter().enumerate() {
                    let before = server.processor_time()?;
                    let done = client::drive(&server.url, load, clients, ROUND_DURATION).await?;
                    let spent = server.processor_time()?.saturating_sub(before);
                    let requests = done.requests.max(1) as f64;
                    rates[number] += requests / done.time.as_secs_f64() / REPETITIONS as f64;
                    costs[number] += spent.as_secs_f64() * 1e6 / requests / REPETITIONS as f64;
                }
            }
            rows.push(vec![
                format!("{load}, {clients} clients"),
                format!("{:.0}/s", rates[0]),
                format!("{:.0}/s", rates[1]),
                times(rates[1] / rates[0]),
                format!("{:.0} µs", costs[0]),
                format!("{:.0} µs", costs[1]),
                times(costs[1] / costs[0]),
            ]);
        }
    }
    let cost = format!("CPU a write, {}", peer());
    let header = ["", peer(), "embedded", "ratio", &cost, "CPU, embedded", "ratio"];
    table("Writes: 512 bytes on 10,000 keys, durable", &header, &rows);
    Ok(())
}

async fn watches() -> SuiteResult {
    let mut rows = Vec::new();
    for watchers in WATCHER_COUNTS {
        let servers = both().await?;
        let mut latencies = [Latencies::default(), Latencies::default()];
        for _ in 0..REPETITIONS {
            for (server, latencies) in servers.iter().zip(&mut latencies) {
                latencies.extend(client::watch_latency(&server.url, watchers).await?);
            }
        }
        let [etcd, ours] = &mut latencies;
        for (name, quantile) in [("p50", 0.50), ("p99", 0.99)] {
            let (etcd, ours) = (etcd.quantile(quantile), ours.quantile(quantile));
            rows.push(vec![
                format!("{watchers} watchers, {name}"),
                format!("{etcd:.2?}"),
                format!("{ours:.2?}"),
                times(ours.as_secs_f64() / etcd.as_secs_f64()),
            ]);
        }
    }
    table("Watch: from sending a put to seeing its event", &["", peer(), "embedded", "ratio"], &rows);
    Ok(())
}

async fn lists() -> SuiteResult {
    let mut rows = Vec::new();
    let servers = both().await?;
    let mut before = [0.0, 0.0];
    let mut previous = 0;
    for (keys, rounds) in LIST_SIZES {
        let mut seconds = [0.0, 0.0];
        let mut costs = [0.0, 0.0];
        for server in &servers {
            client::fill(&server.url, previous..keys).await?;
        }
        previous = keys;
        for _ in 0..rounds {
            for (number, server) in servers.iter().enumerate() {
                let spent = server.processor_time()?;
                seconds[number] += client::list(&server.url, keys).await?.as_secs_f64() / rounds as f64;
                let spent = server.processor_time()?.saturating_sub(spent);
                costs[number] += spent.as_secs_f64() / rounds as f64;
            }
        }
        let [etcd, ours] = seconds;
        let growth = |now: f64, before: f64| if before > 0.0 { times(now / before) } else { String::new() };
        rows.push(vec![
            format!("list of {keys} keys"),
            format!("{:.2} ms", etcd * 1e3),
            format!("{:.2} ms", ours * 1e3),
            times(ours / etcd),
            growth(etcd, before[0]),
            growth(ours, before[1]),
        ]);
        before = seconds;
        rows.push(vec![
            format!("processor time of a list of {keys} keys"),
            format!("{:.2} ms", costs[0] * 1e3),
            format!("{:.2} ms", costs[1] * 1e3),
            times(costs[1] / costs[0]),
            String::new(),
            String::new(),
        ]);
        let [etcd, ours] = [servers[0].memory()?, servers[1].memory()?];
        for (name, etcd, ours) in [("resident", etcd.resident, ours.resident), ("own", etcd.own, ours.own)] {
            rows.push(vec![
                format!("{name} memory with {keys} keys"),
                format!("{:.1} MiB", etcd as f64 / 1024.0),
                format!("{:.1} MiB", ours as f64 / 1024.0),
                times(ours as f64 / etcd as f64),
                String::new(),
                String::new(),
            ]);
        }
    }
    let growth = format!("growth {}", peer());
    let header = ["", peer(), "embedded", "ratio", &growth, "growth embedded"];
    table("Lists and memory: 512 bytes a key", &header, &rows);
    Ok(())
}
