//! Measures programming of tunnels to all other nodes from a cold start and the move of one node, compared with `ip
//! -batch` and `bridge -batch` with the same entries.

use super::{block, resource};
use crate::heap;
use crate::measure::{table, time, times};
use crate::namespace::{BenchResult, NamespaceGroup, check, ip};
use serde_json::json;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tortie_compute::{ParameterEnvironment, PlanCompute};
use tortie_dataplane::{DataplaneHandle, Netns};
use tortie_model::{Kind, StoreKey, StoreValue};
use tortie_plan::NodePlan;

/// Number of repetitions, alternating between the two. The best result counts, since disturbances only add time.
const REPETITIONS: usize = 3;
const NODE_COUNTS: [u32; 3] = [100, 500, 2_000];
/// Number of node moves.
const MOVE_COUNT: u32 = 20;

/// Result of one run of Tortie's dataplane.
struct ProgrammingTimes {
    /// From the resources to the plan.
    planned: Duration,
    /// From the plan to the kernel.
    programmed: Duration,
    /// From one changed Node to the kernel.
    moved: Duration,
    megabytes: f64,
}

pub async fn compare() -> BenchResult<()> {
    let mut rows = Vec::new();
    for nodes in NODE_COUNTS {
        let mut by_hand = Duration::MAX;
        let mut ours: Option<ProgrammingTimes> = None;
        for _ in 0..REPETITIONS {
            check()?;
            by_hand = by_hand.min(batch(nodes)?);
            let run = dataplane(nodes).await?;
            ours = Some(match ours {
                None => run,
                Some(best) => ProgrammingTimes {
                    planned: best.planned.min(run.planned),
                    programmed: best.programmed.min(run.programmed),
                    moved: best.moved.min(run.moved),
                    megabytes: best.megabytes.min(run.megabytes),
                },
            });
        }
        let Some(ours) = ours else { continue };
        let text = |took: Duration| time(took.as_secs_f64() * 1e9);
        rows.push(vec![
            format!("{nodes} nodes"),
            text(by_hand),
            text(ours.programmed),
            times(ours.programmed.as_secs_f64() / by_hand.as_secs_f64()),
            text(ours.planned),
            text(ours.moved),
            format!("{:.2} MB", ours.megabytes),
        ]);
    }
    let header = ["", "ip, bridge -batch", "ours", "ours/theirs", "plan of it", "one node moves", "heap"];
    table("VXLAN: neighbours, forwarding entries and routes of other nodes", &header, &rows);
    Ok(())
}

fn outside(node: u32) -> String {
    format!("172.30.{}.{}", node / 250, 2 + node % 250)
}

fn inside(node: u32) -> String {
    format!("10.{}.{}.1", node / 250, node % 250)
}

fn mac(node: u32) -> String {
    format!("66:00:00:00:{:02x}:{:02x}", node / 256, node % 256)
}

/// Programs the same entries with the command line tools, from a cold start.
fn batch(nodes: u32) -> BenchResult<Duration> {
    let host = NamespaceGroup::host()?;
    let start = Instant::now();
    let device = [
        "link add vxlan.calico type vxlan id 4096 dstport 4789 local 172.30.0.1 dev eth0 nolearning"
            .to_owned(),
        "link set vxlan.calico up".to_owned(),
    ];
    let neighbours = (1..=nodes).map(|node| {
        format!("neigh add {} lladdr {} dev vxlan.calico nud permanent", inside(node), mac(node))
    });
    let routes = (1..=nodes).map(|node| {
        let block = format!("10.{}.{}.0/26", node / 250, node % 250);
        format!("route add {block} via {} dev vxlan.calico proto 80 onlink", inside(node))
    });
    ip(Some(host.name(0)), device.into_iter().chain(neighbours).chain(routes))?;
    let mut bridge =
        Command::new("bridge").args(["-n", host.name(0), "-batch", "-"]).stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = bridge.stdin.take() {
        for node in 1..=nodes {
            writeln!(input, "fdb add {} dst {} dev vxlan.calico self permanent", mac(node), outside(node))?;
        }
    }
    if !bridge.wait()?.success() {
        return Err("bridge -batch failed".into());
    }
    let took = start.elapsed();
    expect(&host, nodes)?;
    Ok(took)
}

fn node(name: &str, outside: &str, inside: &str) -> BenchResult<(StoreKey, StoreValue)> {
    let spec = json!({"bgp": {"ipv4Address": format!("{outside}/16")}, "ipv4VXLANTunnelAddr": inside});
    resource(Kind::Node, "", name, spec)
}

/// Measures the time from the resources of a cluster to the kernel, and of one more change.
async fn dataplane(nodes: u32) -> BenchResult<ProgrammingTimes> {
    let host = NamespaceGroup::host()?;
    let mut entries = vec![
        resource(
            Kind::IPPool,
            "",
            "pool",
            json!({"cidr": "10.0.0.0/8", "blockSize": 26, "vxlanMode": "Always"}),
        )?,
        node("self", "172.30.0.1", "10.255.0.1")?,
    ];
    for number in 1..=nodes {
        entries.push(node(&format!("n{number}"), &outside(number), &inside(number))?);
        entries.push(block(&format!("10.{}.{}.0/26", number / 250, number % 250), &format!("n{number}"))?);
    }
    let before = heap::live();
    let start = Instant::now();
    let mut compute = PlanCompute::new("self", ParameterEnvironment::default());
    entries.iter().for_each(|(key, value)| compute.put(key, value));
    let mut plan = NodePlan::default();
    compute.flush().into_iter().for_each(|update| plan.apply(update));
    let planned = start.elapsed();

    let start = Instant::now();
    let settings = compute.settings().clone();
    let (dataplane, _reports) = DataplaneHandle::start(Netns::open(host.path(0))?, settings).await?;
    let outcome = dataplane.replace(plan).await?;
    let programmed = start.elapsed();
    if let Some(failure) = outcome.failures.first() {
        return Err(failure.to_string().into());
    }
    let megabytes = heap::live() - before;
    expect(&host, nodes)?;

    let mut moved = Duration::MAX;
    for number in 1..=MOVE_COUNT.min(nodes) {
        let (key, value) = node(&format!("n{number}"), &format!("172.30.200.{number}"), &inside(number))?;
        let start = Instant::now();
        compute.put(&key, &value);
        dataplane.apply(compute.flush()).await?;
        moved = moved.min(start.elapsed());
    }
    Ok(ProgrammingTimes { planned, programmed, moved, megabytes })
}

/// Checks that every node has its forwarding entry and its route.
fn expect(host: &NamespaceGroup, nodes: u32) -> BenchResult<()> {
    let output =
        Command::new("bridge").args(["-n", host.name(0), "fdb", "show", "dev", "vxlan.calico"]).output()?;
    let entries = String::from_utf8(output.stdout)?.lines().filter(|line| line.contains(" dst ")).count();
    let routes = crate::namespace::routes(host.name(0))?;
    match (entries, routes) == (nodes as usize, nodes as usize) {
        true => Ok(()),
        false => {
            Err(format!("{entries} forwarding entries and {routes} routes instead of {nodes} each").into())
        }
    }
}
