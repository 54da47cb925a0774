//! Measures programming of routes from a cold start, compared with `ip -batch`.

use crate::measure::{growth, table, time, times};
use crate::namespace::{BenchResult, NamespaceGroup, check, ip};
use crate::{SuiteResult, plain};
use ipnet::{IpNet, Ipv4Net};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use tortie_dataplane::{DataplaneHandle, Netns};
use tortie_plan::{DataplaneSettings, NodePlan, Route, RouteKey};

/// Number of repetitions, alternating between the two. The best result counts, since disturbances only add time.
const REPETITIONS: usize = 3;
const ROUTE_COUNTS: [u32; 3] = [1_000, 10_000, 100_000];
/// Routes of each node.
const BLOCKS_PER_NODE: u32 = 10;

pub fn run() -> SuiteResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(compare()).map_err(plain)
}

async fn compare() -> BenchResult<()> {
    let mut rows = Vec::new();
    let mut first = [0.0; 2];
    for count in ROUTE_COUNTS {
        let routes: Vec<(Ipv4Net, Ipv4Addr)> = (0..count).map(route).collect::<BenchResult<_>>()?;
        let mut best = [f64::INFINITY; 2];
        for _ in 0..REPETITIONS {
            check()?;
            for (best, took) in best.iter_mut().zip([batch(&routes)?, dataplane(&routes).await?]) {
                *best = best.min(took.as_secs_f64());
            }
        }
        let [theirs, ours] = best;
        rows.push(vec![
            format!("{count} routes"),
            time(theirs * 1e9),
            time(ours * 1e9),
            times(ours / theirs),
            format!("{:.0}/s", f64::from(count) / ours),
            growth(theirs, first[0]),
            growth(ours, first[1]),
        ]);
        if first == [0.0; 2] {
            first = best;
        }
    }
    let header = ["", "ip -batch", "ours", "ours/ip", "ours a second", "growth ip", "growth ours"];
    table("Routes to the blocks of other nodes, from a cold start", &header, &rows);
    Ok(())
}

/// Returns a block of another node and the address of that node, which is on the same link.
fn route(number: u32) -> BenchResult<(Ipv4Net, Ipv4Addr)> {
    let node = 2 + number / BLOCKS_PER_NODE;
    let block = Ipv4Net::new(Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + number * 64), 26)?;
    Ok((block, Ipv4Addr::from_bits(Ipv4Addr::new(172, 30, 0, 0).to_bits() + node)))
}

fn batch(routes: &[(Ipv4Net, Ipv4Addr)]) -> BenchResult<Duration> {
    let host = NamespaceGroup::host()?;
    let lines: Vec<String> = routes
        .iter()
        .map(|(net, via)| format!("route add {net} via {via} dev eth0 proto 80 onlink"))
        .collect();
    let start = Instant::now();
    ip(Some(host.name(0)), lines)?;
    let took = start.elapsed();
    expect(&host, routes.len())?;
    Ok(took)
}

/// Measures the time from an empty dataplane until all routes are in the kernel.
async fn dataplane(routes: &[(Ipv4Net, Ipv4Addr)]) -> BenchResult<Duration> {
    let host = NamespaceGroup::host()?;
    let wanted: BTreeMap<RouteKey, Route> =
        routes.iter().map(|(net, via)| (IpNet::V4(*net).into(), Route::via((*via).into()))).collect();
    let plan = NodePlan { routes: wanted, ..NodePlan::default() };
    let start = Instant::now();
    let (dataplane, _reports) =
        DataplaneHandle::start(Netns::open(host.path(0))?, DataplaneSettings::default()).await?;
    dataplane.replace(plan).await?;
    let took = start.elapsed();
    expect(&host, routes.len())?;
    Ok(took)
}

fn expect(host: &NamespaceGroup, count: usize) -> BenchResult<()> {
    match crate::namespace::routes(host.name(0))? {
        found if found == count => Ok(()),
        found => Err(format!("{found} routes are there instead of {count}").into()),
    }
}
