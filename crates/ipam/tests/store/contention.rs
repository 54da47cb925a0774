//! Many processes competing for the same pools, some of them killed.
//!
//! Each worker is this test executable started again. While a worker holds an address, a file marks it: creating the
//! file fails if another worker holds the address too, so an address with two holders is always detected.

use crate::support::{IpamTestStore, TestBackend, connect, ip, request};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tortie_ipam::{Allocator, BlockOwner, IpamError};

const WORKER_COUNT: usize = 64;
const WORKER_VARIABLE: &str = "TORTIE_IPAM_WORKER";

/// A worker process, killed on drop.
struct ContentionWorker(Child);

impl Drop for ContentionWorker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl ContentionWorker {
    /// Starts a worker that runs until the file `stop` appears in `dir`.
    fn start(store: &IpamTestStore, dir: &Path, name: &str) -> ContentionWorker {
        let settings = format!("{} {} {name}", store.endpoint, dir.display());
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "contention::worker", "--nocapture"])
            .env(WORKER_VARIABLE, settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(dir.join(format!("{name}.log"))).unwrap())
            .spawn()
            .unwrap();
        ContentionWorker(child)
    }
}

fn seconds() -> u64 {
    std::env::var("TORTIE_CONTENTION_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

fn mark(dir: &Path, address: IpAddr) -> PathBuf {
    dir.join("held").join(address.to_string())
}

/// Returns the marked addresses and the workers that hold them.
fn held(dir: &Path) -> BTreeMap<IpAddr, String> {
    let entries = fs::read_dir(dir.join("held")).unwrap();
    entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let address = path.file_name().unwrap().to_str().unwrap();
            (ip(address), fs::read_to_string(&path).unwrap_or_default())
        })
        .collect()
}

async fn crowded(backend: TestBackend) -> (IpamTestStore, tempfile::TempDir, Vec<String>) {
    let names: Vec<String> = (0..WORKER_COUNT).map(|n| format!("node-{n}")).collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    let pools = [
        // Fewer blocks than workers and fewer addresses than requested, so that claiming, borrowing and exhaustion all
        // occur.
        ("p4", json!({"cidr": "10.0.0.0/24", "blockSize": 29})),
        ("p6", json!({"cidr": "fd00::/116", "blockSize": 122})),
    ];
    let store = IpamTestStore::with(backend, &pools, &nodes).await;
    let dir = tempfile::Builder::new().prefix("tortie-crowd-").tempdir().unwrap();
    fs::create_dir(dir.path().join("held")).unwrap();
    (store, dir, names)
}

fn logs(dir: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let log = fs::read_to_string(&path).unwrap_or_default();
        if log.contains("panicked") {
            text.push_str(&format!("{}: {log}\n", path.display()));
        }
    }
    text
}

async fn nobody_gets_an_address_twice(backend: TestBackend) {
    let (store, dir, names) = crowded(backend).await;
    let mut workers: Vec<ContentionWorker> =
        names.iter().map(|name| ContentionWorker::start(&store, dir.path(), name)).collect();
    tokio::time::sleep(Duration::from_secs(seconds())).await;
    fs::write(dir.path().join("stop"), "").unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    for worker in &mut workers {
        while worker.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "a worker does not stop: {}", logs(dir.path()));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let status = worker.0.wait().unwrap();
        assert!(status.success(), "{status}: {}", logs(dir.path()));
    }
    let held = held(dir.path());
    let total: u64 = names
        .iter()
        .map(|name| {
            fs::read_to_string(dir.path().join(format!("{name}.count"))).unwrap().parse::<u64>().unwrap()
        })
        .sum();
    println!("{backend:?}: {total} addresses handed out, {} held at the end", held.len());
    assert!(total > WORKER_COUNT as u64, "too little happened: {total}");
    store.assert_consistent(&held.keys().copied().collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_gets_an_address_twice_on_etcd() {
    nobody_gets_an_address_twice(TestBackend::Etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_store_assigns_no_address_twice() {
    nobody_gets_an_address_twice(TestBackend::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_gets_an_address_twice_without_transactions() {
    nobody_gets_an_address_twice(TestBackend::StepByStep).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handles_release_the_addresses_of_killed_processes() {
    let (store, dir, names) = crowded(TestBackend::Etcd).await;
    let mut rng = rand::rngs::SmallRng::from_os_rng();
    let mut workers: BTreeMap<&str, ContentionWorker> = BTreeMap::new();
    for _ in 0..25 {
        for name in &names[..6] {
            workers.entry(name).or_insert_with(|| ContentionWorker::start(&store, dir.path(), name));
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(20..400))).await;
        let victim = names[..6].choose(&mut rng).unwrap();
        drop(workers.remove(victim.as_str()));
        clean_up(&store, dir.path(), victim).await;
    }
    for name in &names[..6] {
        drop(workers.remove(name.as_str()));
        clean_up(&store, dir.path(), name).await;
    }
    assert_eq!(logs(dir.path()), "");
    store.assert_consistent(&BTreeSet::new()).await;
}

/// Releases the handles of a killed worker, as a node does for deleted containers. The worker's marks are removed
/// first, since its addresses may be assigned again as soon as they are free.
async fn clean_up(store: &IpamTestStore, dir: &Path, name: &str) {
    for (address, holder) in held(dir) {
        if holder == name {
            let _ = fs::remove_file(mark(dir, address));
        }
    }
    let allocator = store.allocator(name);
    for handle in store.records().handles().await.unwrap().into_keys() {
        if handle.starts_with(&format!("{name}.")) {
            allocator.release_by_handle(&handle).await.unwrap();
        }
    }
}

/// Not a test by itself: the main function of the worker processes started by the tests above.
#[test]
fn worker() {
    let Ok(settings) = std::env::var(WORKER_VARIABLE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let words: Vec<&str> = settings.split(' ').collect();
    let &[endpoint, dir, name] = words.as_slice() else { panic!("{settings}") };
    let count = runtime.block_on(work(endpoint, Path::new(dir), name));
    fs::write(Path::new(dir).join(format!("{name}.count")), count.to_string()).unwrap();
}

async fn work(endpoint: &str, dir: &Path, name: &str) -> u64 {
    // A mark is a hard link to this file, so that it names its owner from the moment it exists.
    fs::write(dir.join(format!("{name}.id")), name).unwrap();
    let client = connect(endpoint).await;
    let owner = BlockOwner::host(name);
    let mut rng = rand::rngs::SmallRng::from_os_rng();
    // Mix allocators with and without watches.
    let allocator =
        if rng.random() { Allocator::following(client, owner) } else { Allocator::new(client, owner) };
    let mut mine: Vec<(String, Vec<IpAddr>)> = Vec::new();
    let mut handed_out = 0;
    let mut round = 0u64;
    while !dir.join("stop").exists() {
        round += 1;
        if mine.len() < 4 && rng.random_ratio(3, 5) {
            let handle = format!("{name}.{round}-{}", std::process::id());
            let (v4, v6) = if rng.random_ratio(1, 4) { (1, 1) } else { (rng.random_range(1..3), 0) };
            let assigned = match allocator.auto_assign(&request(&handle, name, v4, v6)).await {
                Ok(assigned) => assigned,
                Err(failed) if matches!(failed.error, IpamError::TooManyRetries) => failed.assigned,
                Err(failed) => panic!("{name}: {failed}"),
            };
            let addresses: Vec<IpAddr> = assigned.addresses().map(|net| net.addr()).collect();
            for address in &addresses {
                if let Err(error) = fs::hard_link(dir.join(format!("{name}.id")), mark(dir, *address)) {
                    panic!("{name} and another both have {address}: {error}");
                }
            }
            handed_out += addresses.len() as u64;
            if !addresses.is_empty() {
                mine.push((handle, addresses));
            }
        } else if !mine.is_empty() {
            let (handle, addresses) = mine.swap_remove(rng.random_range(0..mine.len()));
            for address in &addresses {
                fs::remove_file(mark(dir, *address)).unwrap();
            }
            let mut released = allocator.release_by_handle(&handle).await.unwrap();
            released.sort_unstable();
            let mut expected = addresses;
            expected.sort_unstable();
            assert_eq!(released, expected, "{name}");
        }
    }
    handed_out
}
