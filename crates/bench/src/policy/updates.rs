//! Measures the time from a write to the datastore until the kernel announces that it is in force, compared with the
//! kernel's own tools with the same table and the same change.

use super::cluster::{self, Entry, PODS, address, group_of_endpoint};
use super::inside;
use super::monitor::{Done, Monitor};
use super::peers::{IPTABLES, Iptables, LEGACY, Load, Nft, dump, run};
use crate::measure::{Latencies, growth, table, time, times};
use crate::namespace::{Namespaces, Result, check};
use crate::node::Node;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tortie_model::Key;
use tortie_store::Client;

/// Number of endpoints in the cluster and of policies on the node.
const SIZES: [(usize, usize); 5] =
    [(1_000, 1_000), (10_000, 1_000), (100_000, 1_000), (100_000, 10_000), (100_000, 10)];
const SAMPLES: usize = 300;
/// Limits for the other tools: a maximum number of samples, a time after which sampling stops, and a minimum number.
const SAMPLES_OF_PEERS: usize = 100;
const TIME_OF_PEERS: Duration = Duration::from_secs(2);
const FEWEST: usize = 7;
/// Delay between changes.
const PAUSE: Duration = Duration::from_millis(2);
const LIMIT: Duration = Duration::from_secs(120);

/// Number of the endpoint whose label changes, and of a policy that allows its group.
const LABELLED: usize = 7;
/// Number of the policy whose rule changes.
const CHANGED: usize = 5;
/// Number of the policy that allows all endpoints.
const CROWD: usize = 0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// An endpoint leaves a group or joins it again.
    Label,
    /// The port of a rule changes.
    Port,
    /// One more endpoint joins the group of all endpoints.
    Member,
}

impl Change {
    const ALL: [(Change, &str); 3] = [
        (Change::Label, "label of an endpoint"),
        (Change::Port, "port of a rule"),
        (Change::Member, "new endpoint in the largest set"),
    ];

    /// Returns the entry to write the n-th time, and the kernel notification to expect.
    fn write(self, n: usize, endpoints: usize) -> (Entry, Done, Vec<u8>) {
        match self {
            Change::Label => {
                let present = n % 2 == 1;
                let role = present.then(|| group_of_endpoint(LABELLED));
                let done = if present { Done::ElementAdded } else { Done::ElementRemoved };
                (cluster::endpoint(LABELLED, role), done, address(LABELLED).octets().to_vec())
            }
            Change::Port => {
                let port = port(n);
                // Netlink attribute of six bytes with the port as its value.
                let [size, kind] = [6u16, 1].map(u16::to_ne_bytes);
                let bytes = [size, kind, port.to_be_bytes()].concat();
                (cluster::policy(CHANGED, port), Done::Rule, bytes)
            }
            Change::Member => {
                let number = endpoints + n;
                (cluster::endpoint(number, None), Done::ElementAdded, address(number).octets().to_vec())
            }
        }
    }
}

fn port(n: usize) -> u16 {
    if n.is_multiple_of(2) { 9001 } else { 9002 }
}

/// Latencies of changes: in total, until the datastore responds, and after that; and the daemon's own metrics.
#[derive(Default)]
struct Ours {
    whole: Latencies,
    store: Latencies,
    after: Latencies,
    compute: f64,
    kernel: f64,
}

/// One kind of change in a cluster of one size.
struct Case {
    what: String,
    ours: Ours,
    /// Latencies of nft, of iptables-nft with ipset, and of iptables-legacy for changes of chains.
    theirs: [Latencies; 3],
}

pub fn measure() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let node = Node::start()?;
    let client = runtime.block_on(Client::connect(&node.store_config()))?;
    let pods = Namespaces::new(PODS)?;
    let locals = runtime.block_on(cluster::attach(&node, &client, &pods))?;
    let harness = Harness { runtime, client, monitor: Monitor::open(&node.host.path(0))?, node };
    let (mut cases, mut before) = (Vec::new(), (0, 0));
    for (endpoints, policies) in SIZES {
        harness.grow(before, (endpoints, policies))?;
        before = (endpoints, policies);
        cases.extend(harness.cases(Load { locals: &locals, endpoints, policies })?);
    }
    compare(&mut cases);
    explain(&mut cases);
    Ok(())
}

fn compare(cases: &mut [Case]) {
    let (mut rows, mut firsts) = (Vec::new(), Vec::new());
    for (place, Case { what, ours, theirs }) in cases.iter_mut().enumerate() {
        let [p50, p99] = quantiles(&mut ours.whole);
        // The first case of the same kind.
        let first = firsts.get(place % Change::ALL.len()).copied().unwrap_or_default();
        firsts.push(p50);
        let mut row = vec![what.clone(), time(p50 * 1e9), time(p99 * 1e9), growth(p50, first)];
        for theirs in theirs {
            let took = quantiles(theirs);
            let shown = [both(took), times(took[0] / p50)];
            row.extend(if theirs.0.is_empty() { Default::default() } else { shown });
        }
        rows.push(row);
    }
    let header = [
        "",
        "ours p50",
        "ours p99",
        "growth",
        "nft -f",
        "nft/ours",
        "iptables-nft, ipset",
        "theirs/ours",
        "iptables-legacy",
        "theirs/ours",
    ];
    let title =
        "Policy: from the write to the kernel; of the tools, from their start to their end (p50 / p99)";
    table(title, &header, &rows);
}

fn explain(cases: &mut [Case]) {
    let mut rows = Vec::new();
    for Case { what, ours, theirs: [nft, iptables, _] } in cases {
        let after = quantiles(&mut ours.after);
        let mut row = vec![what.clone(), both(quantiles(&mut ours.store)), both(after)];
        row.extend([ours.compute, ours.kernel].map(|mean| time(mean * 1e9)));
        row.extend([nft, iptables].map(|theirs| times(quantiles(theirs)[0] / after[0])));
        rows.push(row);
    }
    let header = [
        "",
        "until the store answers",
        "from there to the kernel",
        "compute (mean)",
        "dataplane (mean)",
        "nft/without store",
        "iptables/without store",
    ];
    table("Policy: where the time of a change goes (p50 / p99)", &header, &rows);
}

/// Returns median and 99th percentile in seconds.
fn quantiles(latencies: &mut Latencies) -> [f64; 2] {
    [0.50, 0.99].map(|quantile| latencies.quantile(quantile).as_secs_f64())
}

fn both(seconds: [f64; 2]) -> String {
    seconds.map(|seconds| time(seconds * 1e9)).join(" / ")
}

struct Harness {
    runtime: Runtime,
    client: Client,
    monitor: Monitor,
    node: Node,
}

impl Harness {
    /// Grows the cluster to this size and waits until the node has received it.
    fn grow(&self, before: (usize, usize), to: (usize, usize)) -> Result<()> {
        self.runtime.block_on(async {
            cluster::add_endpoints(&self.client, before.0..to.0).await?;
            match before.1 < to.1 {
                true => cluster::add_policies(&self.client, before.1..to.1).await,
                false => cluster::remove_policies(&self.client, to.1).await,
            }
        })?;
        let deadline = Instant::now() + LIMIT;
        let netns = self.node.host.path(0);
        let known = || -> Result<bool> {
            let metrics = metrics(&netns)?;
            let endpoints = (to.0 + PODS) as f64;
            Ok(value(&metrics, "felix_cluster_num_workload_endpoints") == endpoints
                && value(&metrics, "felix_cluster_num_policies") == to.1 as f64)
        };
        while !known()? {
            check()?;
            if Instant::now() > deadline {
                return Err(format!("the node does not hear of {to:?} endpoints and policies").into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Measures every kind of change, with Tortie and with the other tools.
    fn cases(&self, load: Load<'_>) -> Result<Vec<Case>> {
        let Load { endpoints, policies, .. } = load;
        let nft = Nft::load(dump(&self.node.host.path(0))?)?;
        let (iptables, legacy) = (Iptables::load(IPTABLES, load)?, Iptables::load(LEGACY, load)?);
        let case = |(change, what): (Change, &str)| {
            let what = format!("{what}; {policies} policies, {endpoints} endpoints");
            let ours = self.ours(change, endpoints)?;
            let of_nft = of_peer(&nft.host.path(0), |n| match change {
                Change::Label => nft.element(LABELLED, LABELLED, n % 2 == 1),
                Change::Port => nft.port(CHANGED, port(n)),
                Change::Member => nft.element(CROWD, endpoints + n, true),
            })?;
            let of_legacy = match change {
                Change::Port => of_iptables(&legacy, change, endpoints)?,
                Change::Label | Change::Member => Latencies::default(),
            };
            Ok(Case { what, ours, theirs: [of_nft, of_iptables(&iptables, change, endpoints)?, of_legacy] })
        };
        Change::ALL.into_iter().map(case).collect()
    }

    fn ours(&self, change: Change, endpoints: usize) -> Result<Ours> {
        // The first changes also wait until everything before them is in the kernel.
        self.monitor.skip()?;
        for n in 0..2 {
            self.one(change, n, endpoints)?;
        }
        let netns = self.node.host.path(0);
        let (mut ours, before) = (Ours::default(), metrics(&netns)?);
        for n in 0..SAMPLES {
            check()?;
            std::thread::sleep(PAUSE);
            let (whole, store) = self.one(change, n, endpoints)?;
            ours.whole.0.push(whole);
            ours.store.0.push(store);
            ours.after.0.push(whole.saturating_sub(store));
        }
        let after = metrics(&netns)?;
        let mean_of = |name: &str| {
            let grown = |part: &str| {
                value(&after, &format!("{name}_{part}")) - value(&before, &format!("{name}_{part}"))
            };
            grown("sum") / grown("count")
        };
        ours.compute = mean_of("felix_calc_graph_update_time_seconds");
        ours.kernel = mean_of("felix_int_dataplane_apply_time_seconds");
        Ok(ours)
    }

    /// Makes one change. Returns the time until the kernel has it, and until the datastore responded.
    fn one(&self, change: Change, n: usize, endpoints: usize) -> Result<(Duration, Duration)> {
        let ((key, value), done, bytes) = change.write(n, endpoints);
        let (client, written) = (self.client.clone(), key.clone());
        let write = self.runtime.spawn(async move {
            let sent = Instant::now();
            let outcome = client.apply(&written, &value, None).await;
            (sent, sent.elapsed(), outcome)
        });
        let enforced = self.monitor.wait(done, &bytes)?;
        let (sent, store, outcome) = self.runtime.block_on(write)?;
        outcome?;
        if change == Change::Member {
            self.remove(&key, &bytes)?;
        }
        Ok((enforced.saturating_duration_since(sent), store))
    }

    fn remove(&self, key: &Key, bytes: &[u8]) -> Result<()> {
        self.runtime.block_on(self.client.delete(key, None))?;
        self.monitor.wait(Done::ElementRemoved, bytes)?;
        Ok(())
    }
}

fn of_iptables(peer: &Iptables, change: Change, endpoints: usize) -> Result<Latencies> {
    of_peer(&peer.host.path(0), |n| {
        Ok(match change {
            Change::Label => peer.element(LABELLED, LABELLED, n % 2 == 1),
            Change::Port => peer.port(CHANGED, port(n)),
            Change::Member => peer.element(CROWD, endpoints + n, true),
        })
    })
}

fn of_peer(
    netns: &Path,
    command: impl Fn(usize) -> Result<(&'static [&'static str], String)> + Sync,
) -> Result<Latencies> {
    inside(netns, || {
        let (mut took, start) = (Latencies::default(), Instant::now());
        for n in 0..SAMPLES_OF_PEERS {
            if n >= FEWEST && start.elapsed() > TIME_OF_PEERS {
                break;
            }
            let (command, input) = command(n)?;
            took.0.push(run(command, &input)?);
        }
        Ok(took)
    })
}

/// Fetches the daemon's metrics.
fn metrics(netns: &Path) -> Result<String> {
    inside(netns, || {
        let mut stream = TcpStream::connect("127.0.0.1:9091")?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    })
}

fn value(metrics: &str, name: &str) -> f64 {
    let of = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
    metrics.lines().find_map(of).unwrap_or_default()
}
