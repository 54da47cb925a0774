//! Compares projectcalico.org/v3 served by Tortie's API server behind kube-apiserver with the same objects as plain
//! custom resources of the same kube-apiserver: request rate, latency, many watchers, and the memory of Tortie's
//! server.

mod client;
mod watchers;
mod world;

use crate::measure::{Latencies, table, time, times};
use crate::namespace::{BenchResult, check};
use crate::{SuiteResult, plain};
use client::{HttpRequest, KubernetesClient, load};
use serde_json::json;
use std::time::Duration;
use watchers::ApiWatchers;
use world::{API_GROUPS, ApiSetup, policies};

const POLICY_COUNTS: [usize; 2] = [1_000, 10_000];
/// Environment variable that overrides the numbers of policies, comma-separated.
const POLICIES_VARIABLE: &str = "TORTIE_BENCH_POLICIES";
const WATCHER_COUNT: usize = 1_000;
/// Environment variable that overrides the number of watchers.
const WATCHERS_VARIABLE: &str = "TORTIE_BENCH_WATCHERS";
/// Requests sent one after the other, to measure latency.
const GET_COUNT: usize = 2_000;
const LIST_COUNT: usize = 30;
const CREATE_COUNT: usize = 500;
/// Concurrent clients, to measure throughput.
const CONCURRENT_CLIENTS: usize = 16;
const CONCURRENT_LISTS: usize = 4;
const CHANGE_COUNT: usize = 20;

pub fn run() -> SuiteResult {
    measure().map_err(plain)
}

/// Builds the request with a given number to an API group.
type MakeRequest = Box<dyn Fn(&str, usize) -> HttpRequest>;

/// A load that is put on each group.
struct ApiLoad {
    what: String,
    /// Requests of the single client; the concurrent clients send as many in total.
    count: usize,
    clients: usize,
    request: MakeRequest,
}

/// Request rate with concurrent clients, and latencies of a single client.
struct LoadFigures {
    rate: f64,
    latencies: Latencies,
}

fn measure() -> BenchResult<()> {
    let sizes = numbers(POLICIES_VARIABLE)?.unwrap_or(POLICY_COUNTS.to_vec());
    let watchers =
        numbers(WATCHERS_VARIABLE)?.and_then(|given| given.first().copied()).unwrap_or(WATCHER_COUNT);
    let world = ApiSetup::start()?;
    let idle = world.ours.memory()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let (mut rows, mut made) = (Vec::new(), 0);
    for size in &sizes {
        for group in API_GROUPS {
            world.server.create_all(&policies(group, made..*size));
        }
        made = made.max(*size);
        // A list of the newest version, as users request it, and one from the watch cache, as controllers request it.
        for (what, query) in [("list", ""), ("list, any version", "?resourceVersion=0")] {
            let list =
                move |group: &str, _: usize| HttpRequest::get(format!("{}{query}", policies_path(group)));
            let load = ApiLoad {
                what: format!("{what}: {size}"),
                count: LIST_COUNT,
                clients: CONCURRENT_LISTS,
                request: Box::new(list),
            };
            rows.push(compare(&world, &runtime, &load)?);
        }
    }
    let there = made.max(1);
    let get = move |group: &str, number: usize| {
        HttpRequest::get(format!("{}/policy-{}", policies_path(group), number % there))
    };
    let load = ApiLoad {
        what: "get".to_owned(),
        count: GET_COUNT,
        clients: CONCURRENT_CLIENTS,
        request: Box::new(get),
    };
    rows.push(compare(&world, &runtime, &load)?);
    let create = |group: &str, number: usize| {
        let (path, object) = world::policy(group, &format!("created-{number}"));
        HttpRequest::post(path, &object)
    };
    let load = ApiLoad {
        what: "create".to_owned(),
        count: CREATE_COUNT,
        clients: CONCURRENT_CLIENTS,
        request: Box::new(create),
    };
    rows.push(compare(&world, &runtime, &load)?);
    let header =
        ["what", "ours/s", "CRDs/s", "ratio", "ours p50", "CRDs p50", "added p50", "ours p99", "CRDs p99"];
    table(&format!("Policies of one kube-apiserver, {made} of them"), &header, &rows);

    let mut rows = Vec::new();
    for group in API_GROUPS {
        check()?;
        rows.push(runtime.block_on(watch(&world, group, watchers))?);
    }
    let header = ["group", "watchers", "events/s", "p50", "p99", "last of all, p50"];
    table("A change of a policy until its watchers hear of it", &header, &rows);
    let memory = world.ours.memory()?;
    let mib = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
    let rows = [("idle", idle.resident), ("in the end", memory.resident), ("at most", memory.peak)]
        .map(|(when, kib)| vec![when.to_owned(), mib(kib)]);
    table("Memory of our API server", &["when", "resident"], &rows);
    Ok(())
}

/// Parses the numbers in an environment variable, if it is set.
fn numbers(variable: &str) -> BenchResult<Option<Vec<usize>>> {
    let Ok(given) = std::env::var(variable) else { return Ok(None) };
    let numbers = given.split(',').map(str::parse).collect::<std::result::Result<Vec<usize>, _>>();
    numbers.map(Some).map_err(|error| format!("{variable}={given}: {error}").into())
}

fn policies_path(group: &str) -> String {
    format!("/apis/{group}/v3/globalnetworkpolicies")
}

/// Puts the same load on both groups, one after the other.
fn compare(world: &ApiSetup, runtime: &tokio::runtime::Runtime, load: &ApiLoad) -> BenchResult<Vec<String>> {
    check()?;
    let mut figures = Vec::new();
    for group in API_GROUPS {
        let request = |number: usize| (load.request)(group, number);
        // Warm up: the first requests fill caches.
        let count = load.count;
        runtime.block_on(self::load(world, 1, count.div_ceil(10), request))?;
        let alone = runtime.block_on(self::load(world, 1, count, |number| request(count + number)))?;
        let together =
            runtime.block_on(self::load(world, load.clients, count, |number| request(2 * count + number)))?;
        figures.push(LoadFigures { rate: count as f64 / together.0.as_secs_f64(), latencies: alone.1 });
    }
    let [ours, plain] = figures.as_mut_slice() else { return Err("two groups are compared".into()) };
    let rate = |rate: f64| format!("{rate:.0}");
    let shown = |duration: Duration| time(duration.as_nanos() as f64);
    let p50 = [ours.latencies.quantile(0.5), plain.latencies.quantile(0.5)];
    let added = p50[0].as_nanos() as f64 - p50[1].as_nanos() as f64;
    let added = if added < 0.0 { format!("-{}", time(-added)) } else { time(added) };
    Ok(vec![
        load.what.clone(),
        rate(ours.rate),
        rate(plain.rate),
        times(ours.rate / plain.rate),
        shown(p50[0]),
        shown(p50[1]),
        added,
        shown(ours.latencies.quantile(0.99)),
        shown(plain.latencies.quantile(0.99)),
    ])
}

/// Changes one policy repeatedly, each time after all watchers have received the previous change.
async fn watch(world: &ApiSetup, group: &str, count: usize) -> BenchResult<Vec<String>> {
    let path = policies_path(group);
    let mut watchers = ApiWatchers::start(world, &path, count).await?;
    let client = KubernetesClient::connect(world).await?;
    let (mut all, mut last, mut total) = (Latencies::default(), Latencies::default(), Duration::ZERO);
    for number in 0..CHANGE_COUNT {
        let patch = json!({"metadata": {"labels": {"change": number.to_string()}}});
        let began = std::time::Instant::now();
        client.send(&HttpRequest::merge(format!("{path}/policy-0"), &patch)).await?;
        let arrivals = watchers.arrivals().await?;
        let took = |arrival: &std::time::Instant| arrival.saturating_duration_since(began);
        let slowest = arrivals.iter().map(took).max().unwrap_or_default();
        total += slowest;
        last.0.push(slowest);
        all.0.extend(arrivals.iter().map(took));
    }
    let shown = |duration: Duration| time(duration.as_nanos() as f64);
    Ok(vec![
        group.to_owned(),
        count.to_string(),
        format!("{:.0}", (count * CHANGE_COUNT) as f64 / total.as_secs_f64()),
        shown(all.quantile(0.5)),
        shown(all.quantile(0.99)),
        shown(last.quantile(0.5)),
    ])
}
