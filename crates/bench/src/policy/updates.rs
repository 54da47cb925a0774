//! Measures the time from a write to the datastore until the kernel announces that it is in force, compared with the
//! kernel's own tools with the same table and the same change.

use super::cluster::{self, BenchPolicyEntry, LOCAL_PODS, address, group_of_endpoint};
use super::inside;
use super::monitor::{RulesetChange, RulesetMonitor};
use super::peers::{
    IPTABLES_LEGACY_COMMAND, IPTABLES_NFT_COMMAND, IptablesReference, NftReference, RulesetSize, dump, run,
};
use crate::measure::{Latencies, growth, table, time, times};
use crate::namespace::{BenchResult, NamespaceGroup, check};
use crate::node::BenchNode;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tortie_model::StoreKey;
use tortie_store::StoreClient;

/// Number of endpoints in the cluster and of policies on the node.
const CLUSTER_SIZES: [(usize, usize); 5] =
    [(1_000, 1_000), (10_000, 1_000), (100_000, 1_000), (100_000, 10_000), (100_000, 10)];
const SAMPLE_COUNT: usize = 300;
/// Limits for the other tools: a maximum number of samples, a time after which sampling stops, and a minimum number.
const MAX_TOOL_SAMPLES: usize = 100;
const TOOL_SAMPLE_TIME: Duration = Duration::from_secs(2);
const MIN_TOOL_SAMPLES: usize = 7;
/// Delay between changes.
const CHANGE_INTERVAL: Duration = Duration::from_millis(2);
const SYNC_TIMEOUT: Duration = Duration::from_secs(120);

/// Number of the endpoint whose label changes, and of a policy that allows its group.
const LABELLED_ENDPOINT: usize = 7;
/// Number of the policy whose rule changes.
const CHANGED_POLICY: usize = 5;
/// Number of the policy that allows all endpoints.
const ALL_ENDPOINTS_POLICY: usize = 0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum PolicyChange {
    /// An endpoint leaves a group or joins it again.
    Label,
    /// The port of a rule changes.
    Port,
    /// One more endpoint joins the group of all endpoints.
    Member,
}

impl PolicyChange {
    const ALL: [(PolicyChange, &str); 3] = [
        (PolicyChange::Label, "label of an endpoint"),
        (PolicyChange::Port, "port of a rule"),
        (PolicyChange::Member, "new endpoint in the largest set"),
    ];

    /// Returns the entry to write the n-th time, and the kernel notification to expect.
    fn write(self, n: usize, endpoints: usize) -> (BenchPolicyEntry, RulesetChange, Vec<u8>) {
        match self {
            PolicyChange::Label => {
                let present = n % 2 == 1;
                let role = present.then(|| group_of_endpoint(LABELLED_ENDPOINT));
                let done = if present { RulesetChange::ElementAdded } else { RulesetChange::ElementRemoved };
                (
                    cluster::endpoint(LABELLED_ENDPOINT, role),
                    done,
                    address(LABELLED_ENDPOINT).octets().to_vec(),
                )
            }
            PolicyChange::Port => {
                let port = port(n);
                // Netlink attribute of six bytes with the port as its value.
                let [size, kind] = [6u16, 1].map(u16::to_ne_bytes);
                let bytes = [size, kind, port.to_be_bytes()].concat();
                (cluster::policy(CHANGED_POLICY, port), RulesetChange::Rule, bytes)
            }
            PolicyChange::Member => {
                let number = endpoints + n;
                (
                    cluster::endpoint(number, None),
                    RulesetChange::ElementAdded,
                    address(number).octets().to_vec(),
                )
            }
        }
    }
}

fn port(n: usize) -> u16 {
    if n.is_multiple_of(2) { 9001 } else { 9002 }
}

/// Latencies of changes: in total, until the datastore responds, and after that; and the daemon's own metrics.
#[derive(Default)]
struct ChangeLatencies {
    whole: Latencies,
    store: Latencies,
    after: Latencies,
    compute: f64,
    kernel: f64,
}

/// One kind of change in a cluster of one size.
struct UpdateCase {
    what: String,
    ours: ChangeLatencies,
    /// Latencies of nft, of iptables-nft with ipset, and of iptables-legacy for changes of chains.
    theirs: [Latencies; 3],
}

pub fn measure() -> BenchResult<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let node = BenchNode::start()?;
    let client = runtime.block_on(StoreClient::connect(&node.store_config()))?;
    let pods = NamespaceGroup::new(LOCAL_PODS)?;
    let locals = runtime.block_on(cluster::attach(&node, &client, &pods))?;
    let harness = UpdateHarness { runtime, client, monitor: RulesetMonitor::open(&node.host.path(0))?, node };
    let (mut cases, mut before) = (Vec::new(), (0, 0));
    for (endpoints, policies) in CLUSTER_SIZES {
        harness.grow(before, (endpoints, policies))?;
        before = (endpoints, policies);
        cases.extend(harness.cases(RulesetSize { locals: &locals, endpoints, policies })?);
    }
    compare(&mut cases);
    explain(&mut cases);
    Ok(())
}

fn compare(cases: &mut [UpdateCase]) {
    let (mut rows, mut firsts) = (Vec::new(), Vec::new());
    for (place, UpdateCase { what, ours, theirs }) in cases.iter_mut().enumerate() {
        let [p50, p99] = quantiles(&mut ours.whole);
        // The first case of the same kind.
        let first = firsts.get(place % PolicyChange::ALL.len()).copied().unwrap_or_default();
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

fn explain(cases: &mut [UpdateCase]) {
    let mut rows = Vec::new();
    for UpdateCase { what, ours, theirs: [nft, iptables, _] } in cases {
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

struct UpdateHarness {
    runtime: Runtime,
    client: StoreClient,
    monitor: RulesetMonitor,
    node: BenchNode,
}

impl UpdateHarness {
    /// Grows the cluster to this size and waits until the node has received it.
    fn grow(&self, before: (usize, usize), to: (usize, usize)) -> BenchResult<()> {
        self.runtime.block_on(async {
            cluster::add_endpoints(&self.client, before.0..to.0).await?;
            match before.1 < to.1 {
                true => cluster::add_policies(&self.client, before.1..to.1).await,
                false => cluster::remove_policies(&self.client, to.1).await,
            }
        })?;
        let deadline = Instant::now() + SYNC_TIMEOUT;
        let netns = self.node.host.path(0);
        let known = || -> BenchResult<bool> {
            let metrics = metrics(&netns)?;
            let endpoints = (to.0 + LOCAL_PODS) as f64;
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
    fn cases(&self, load: RulesetSize<'_>) -> BenchResult<Vec<UpdateCase>> {
        let RulesetSize { endpoints, policies, .. } = load;
        let nft = NftReference::load(dump(&self.node.host.path(0))?)?;
        let (iptables, legacy) = (
            IptablesReference::load(IPTABLES_NFT_COMMAND, load)?,
            IptablesReference::load(IPTABLES_LEGACY_COMMAND, load)?,
        );
        let case = |(change, what): (PolicyChange, &str)| {
            let what = format!("{what}; {policies} policies, {endpoints} endpoints");
            let ours = self.ours(change, endpoints)?;
            let of_nft = of_peer(&nft.host.path(0), |n| match change {
                PolicyChange::Label => nft.element(LABELLED_ENDPOINT, LABELLED_ENDPOINT, n % 2 == 1),
                PolicyChange::Port => nft.port(CHANGED_POLICY, port(n)),
                PolicyChange::Member => nft.element(ALL_ENDPOINTS_POLICY, endpoints + n, true),
            })?;
            let of_legacy = match change {
                PolicyChange::Port => of_iptables(&legacy, change, endpoints)?,
                PolicyChange::Label | PolicyChange::Member => Latencies::default(),
            };
            Ok(UpdateCase {
                what,
                ours,
                theirs: [of_nft, of_iptables(&iptables, change, endpoints)?, of_legacy],
            })
        };
        PolicyChange::ALL.into_iter().map(case).collect()
    }

    fn ours(&self, change: PolicyChange, endpoints: usize) -> BenchResult<ChangeLatencies> {
        // The first changes also wait until everything before them is in the kernel.
        self.monitor.skip()?;
        for n in 0..2 {
            self.one(change, n, endpoints)?;
        }
        let netns = self.node.host.path(0);
        let (mut ours, before) = (ChangeLatencies::default(), metrics(&netns)?);
        for n in 0..SAMPLE_COUNT {
            check()?;
            std::thread::sleep(CHANGE_INTERVAL);
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
    fn one(&self, change: PolicyChange, n: usize, endpoints: usize) -> BenchResult<(Duration, Duration)> {
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
        if change == PolicyChange::Member {
            self.remove(&key, &bytes)?;
        }
        Ok((enforced.saturating_duration_since(sent), store))
    }

    fn remove(&self, key: &StoreKey, bytes: &[u8]) -> BenchResult<()> {
        self.runtime.block_on(self.client.delete(key, None))?;
        self.monitor.wait(RulesetChange::ElementRemoved, bytes)?;
        Ok(())
    }
}

fn of_iptables(peer: &IptablesReference, change: PolicyChange, endpoints: usize) -> BenchResult<Latencies> {
    of_peer(&peer.host.path(0), |n| {
        Ok(match change {
            PolicyChange::Label => peer.element(LABELLED_ENDPOINT, LABELLED_ENDPOINT, n % 2 == 1),
            PolicyChange::Port => peer.port(CHANGED_POLICY, port(n)),
            PolicyChange::Member => peer.element(ALL_ENDPOINTS_POLICY, endpoints + n, true),
        })
    })
}

fn of_peer(
    netns: &Path,
    command: impl Fn(usize) -> BenchResult<(&'static [&'static str], String)> + Sync,
) -> BenchResult<Latencies> {
    inside(netns, || {
        let (mut took, start) = (Latencies::default(), Instant::now());
        for n in 0..MAX_TOOL_SAMPLES {
            if n >= MIN_TOOL_SAMPLES && start.elapsed() > TOOL_SAMPLE_TIME {
                break;
            }
            let (command, input) = command(n)?;
            took.0.push(run(command, &input)?);
        }
        Ok(took)
    })
}

/// Fetches the daemon's metrics.
fn metrics(netns: &Path) -> BenchResult<String> {
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
