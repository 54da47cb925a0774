//! Compares kube-apiserver on Tortie's datastore and on the etcd version it is built for, with the same requests.

use crate::measure::{Latencies, table, time, times};
use crate::namespace::{BenchResult, check};
use crate::process::tortie;
use crate::{SuiteResult, plain};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use tortie_testkit::{ApiRequest, ApiServer, ApiServerBackend, ApiServerOptions, resident};

const POD_COUNT: usize = 5_000;
/// Environment variable that overrides the number of pods.
const PODS_VARIABLE: &str = "TORTIE_BENCH_PODS";
const BATCH_SIZE: usize = 500;
const CONCURRENT_REQUESTS: usize = 16;
const POD_COLLECTION: &str = "/api/v1/namespaces/ns/pods";

/// Requests made for every pod.
const LOAD_NAMES: [&str; 5] = ["create", "patch", "get", "list 500 from the store", "delete"];

/// Result of one load on one store.
struct StoreLoadResult {
    a_second: f64,
    latencies: Latencies,
}

struct ApiserverStoreResult {
    loads: Vec<StoreLoadResult>,
    /// In bytes.
    memory: u64,
    disk: u64,
}

pub fn run() -> SuiteResult {
    measure().map_err(plain)
}

fn measure() -> BenchResult<()> {
    let pods = match std::env::var(PODS_VARIABLE) {
        Ok(given) => {
            let last = given.rsplit(',').next().unwrap_or_default();
            last.trim().parse().map_err(|error| format!("{PODS_VARIABLE}={given}: {error}"))?
        }
        Err(_) => POD_COUNT,
    };
    let mut ours = side(ApiServerBackend::Embedded(tortie()?), pods)?;
    let mut etcd = side(ApiServerBackend::EtcdOfKubernetes, pods)?;
    let mut rows = Vec::new();
    for (name, (ours, etcd)) in LOAD_NAMES.iter().zip(ours.loads.iter_mut().zip(&mut etcd.loads)) {
        let mut row = vec![(*name).to_owned()];
        for side in [&mut *ours, &mut *etcd] {
            row.push(format!("{:.0}", side.a_second));
            for quantile in [0.5, 0.99] {
                row.push(time(side.latencies.quantile(quantile).as_nanos() as f64));
            }
        }
        row.push(times(ours.a_second / etcd.a_second));
        rows.push(row);
    }
    let header = [
        "request",
        "tortie /s",
        "p50",
        "p99",
        "etcd 3.6.5 /s",
        "p50",
        "p99",
        "requests a second, ours to etcd's",
    ];
    table(
        &format!("kube-apiserver on either store, {pods} pods, {CONCURRENT_REQUESTS} requests at a time"),
        &header,
        &rows,
    );
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let rows = [("memory", ours.memory, etcd.memory), ("disk", ours.disk, etcd.disk)];
    let rows = rows.map(|(what, ours, etcd)| {
        vec![what.to_owned(), mib(ours), mib(etcd), times(ours as f64 / etcd.max(1) as f64)]
    });
    table("What the stores needed", &["", "tortie", "etcd 3.6.5", "ours to etcd's"], &rows);
    Ok(())
}

fn side(backing: ApiServerBackend, pods: usize) -> BenchResult<ApiserverStoreResult> {
    let server = ApiServer::start_with(ApiServerOptions { backing, ..ApiServerOptions::default() });
    server.add_namespace("ns", json!({}));
    let mut side = ApiserverStoreResult { loads: Vec::new(), memory: 0, disk: 0 };
    for load in LOAD_NAMES {
        let count = if load.starts_with("list") { pods.div_ceil(50) } else { pods };
        let calls: Vec<ApiRequest> = (0..count).map(|number| call(load, number)).collect();
        let mut measured = StoreLoadResult { a_second: 0.0, latencies: Latencies::default() };
        let mut took = Duration::ZERO;
        for batch in calls.chunks(BATCH_SIZE) {
            check()?;
            let began = Instant::now();
            let answers = server.call_all(batch, CONCURRENT_REQUESTS);
            took += began.elapsed();
            if let Some((call, answer)) = batch.iter().zip(&answers).find(|(_, answer)| !answer.is_success())
            {
                return Err(format!("{} {}: {}", call.method, call.path, answer.status).into());
            }
            measured.latencies.0.extend(answers.iter().map(|answer| answer.took));
        }
        measured.a_second = count as f64 / took.as_secs_f64();
        side.loads.push(measured);
        side.memory = side.memory.max(resident(server.store_id()));
        side.disk = side.disk.max(size(&server.store_data())?);
    }
    Ok(side)
}

fn call(load: &str, number: usize) -> ApiRequest {
    let path = format!("{POD_COLLECTION}/pod-{number}");
    match load {
        "create" => {
            let environment: Vec<_> =
                (0..10).map(|n| json!({"name": format!("SETTING_{n}"), "value": "x".repeat(40)})).collect();
            let object = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": format!("pod-{number}"), "labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "registry.example/app:1", "env": environment}]},
            });
            ApiRequest::create(POD_COLLECTION, &object)
        }
        "patch" => ApiRequest::merge(&path, json!({"metadata": {"labels": {"app": format!("a{number}")}}})),
        "get" => ApiRequest::get(&path),
        "delete" => ApiRequest::delete(&format!("{path}?gracePeriodSeconds=0")),
        // A paginated list is not served from the watch cache.
        _ => ApiRequest::get(&format!("{POD_COLLECTION}?limit=500")),
    }
}

/// Returns the disk usage of a directory in bytes.
fn size(dir: &Path) -> std::io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { size(&entry.path())? } else { meta.blocks() * 512 };
    }
    Ok(bytes)
}
