//! Measures the cost of policies for packets between two pods of one node, compared with the same rules in iptables and
//! with no rules.

use super::cluster::{self, LocalPod, ROLE_COUNT, address, group_of_endpoint, policy_for};
use super::inside;
use super::peers::{IPTABLES_LEGACY_COMMAND, IPTABLES_NFT_COMMAND, dump, rule, run, table as chains};
use super::traffic::{self, TRAFFIC_PORT, TrafficRates};
use crate::measure::{table, times};
use crate::namespace::{BenchResult, NamespaceGroup, check, ip};
use crate::node::BenchNode;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tortie_store::StoreClient;

const POLICY_COUNTS: [usize; 4] = [0, 100, 1_000, 10_000];
const ENDPOINT_COUNT: usize = 1_000;
/// Number of repetitions, alternating between the candidates. The best result counts.
const REPETITIONS: usize = 6;
/// Number of the policy that allows the traffic, which comes after all others.
const LAST_POLICY: usize = 99_999;
const POLICIES_TIMEOUT: Duration = Duration::from_secs(120);

/// Two pods of one host.
struct LocalPodPair {
    pods: NamespaceGroup,
    locals: Vec<LocalPod>,
}

impl LocalPodPair {
    fn rates(&self) -> BenchResult<TrafficRates> {
        let [client, server] = [0, 1].map(|place| -> PathBuf { self.pods.path(place) });
        let target = self.locals.get(1).ok_or("no second pod")?.address;
        traffic::between(&client, &server, target.into())
    }
}

pub fn measure() -> BenchResult<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let node = BenchNode::start()?;
    let client = runtime.block_on(StoreClient::connect(&node.store_config()))?;
    let pods = NamespaceGroup::new(2)?;
    let locals = runtime.block_on(cluster::attach(&node, &client, &pods))?;
    runtime.block_on(cluster::add_endpoints(&client, 0..ENDPOINT_COUNT))?;
    let ours = LocalPodPair { pods, locals };
    let (bare, _bare_host) = wired()?;
    let (tracked, _tracked_host) = tracked()?;
    let (mut rows, mut before) = (Vec::new(), 0);
    for policies in POLICY_COUNTS {
        // One policy allows the traffic; none of the others does.
        let others = policies.saturating_sub(1);
        let entries = (before..others).map(filler);
        runtime.block_on(cluster::add(&client, entries))?;
        if before == 0 && policies > 0 {
            let last = policy_for(LAST_POLICY, PAIR_SELECTOR, "app == 'a0'", TRAFFIC_PORT);
            runtime.block_on(cluster::add(&client, [last].into_iter()))?;
        }
        before = others;
        settle(&node, policies)?;
        let (iptables, _iptables_host) = with_iptables(IPTABLES_NFT_COMMAND, others, policies > 0)?;
        let (legacy, _legacy_host) = with_iptables(IPTABLES_LEGACY_COMMAND, others, policies > 0)?;
        let mut best = [TrafficRates::default(); 5];
        for _ in 0..REPETITIONS {
            check()?;
            for (best, pair) in best.iter_mut().zip([&bare, &tracked, &ours, &iptables, &legacy]) {
                let rates = pair.rates()?;
                best.bytes = best.bytes.max(rates.bytes);
                best.requests = best.requests.max(rates.requests);
                best.connections = best.connections.max(rates.connections);
            }
        }
        let mut row = |what: &str, rate: fn(&TrafficRates) -> f64, shown: fn(f64) -> String| {
            let rates = best.each_ref().map(rate);
            let mut row = vec![format!("{policies} policies: {what}")];
            row.extend(rates.map(shown));
            let [none, tracked, ours, iptables, legacy] = rates;
            row.extend([none, tracked, iptables, legacy].map(|theirs| times(ours / theirs)));
            rows.push(row);
        };
        row("throughput", |rates| rates.bytes, |bytes| format!("{:.2} Gbit/s", bytes * 8e-9));
        row("requests and answers", |rates| rates.requests, |rate| format!("{rate:.0}/s"));
        row("new connections", |rates| rates.connections, |rate| format!("{rate:.0}/s"));
    }
    let header = [
        "",
        "no firewall",
        "conntrack alone",
        "ours",
        "iptables-nft",
        "iptables-legacy",
        "ours/none",
        "ours/conntrack",
        "ours/iptables-nft",
        "ours/legacy",
    ];
    table("Policy: between two pods of a node, all policies select both", &header, &rows);
    Ok(())
}

const PAIR_SELECTOR: &str = "app in {'a0', 'a1'}";

/// Builds a policy that allows other endpoints.
fn filler(number: usize) -> cluster::BenchPolicyEntry {
    let role = format!("role == 'r{}'", 1 + number % ROLE_COUNT);
    policy_for(number, PAIR_SELECTOR, &role, cluster::port_of_policy(number))
}

/// Waits until all policies are in the kernel.
fn settle(node: &BenchNode, policies: usize) -> BenchResult<()> {
    let deadline = Instant::now() + POLICIES_TIMEOUT;
    while dump(&node.host.path(0))?.matches("chain in-gnp/").count() != policies {
        check()?;
        if Instant::now() > deadline {
            return Err(format!("the node does not get {policies} policies").into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Creates a host with two pods, connected as Tortie does, without rules.
fn wired() -> BenchResult<(LocalPodPair, NamespaceGroup)> {
    let (host, pods) = (NamespaceGroup::host()?, NamespaceGroup::new(2)?);
    let locals: Vec<LocalPod> = (0..2u8)
        .map(|n| LocalPod { interface: format!("cali{n}"), address: Ipv4Addr::new(10, 65, 0, 1 + n) })
        .collect();
    for (place, LocalPod { interface, address }) in locals.iter().enumerate() {
        let of_host = [
            format!("link add {interface} type veth peer name eth0 netns {}", pods.name(place)),
            format!("link set {interface} up"),
            format!("route add {address}/32 dev {interface}"),
        ];
        ip(Some(host.name(0)), of_host)?;
        let of_pod = [
            "link set lo up".to_owned(),
            "link set eth0 up".to_owned(),
            format!("addr add {address}/32 dev eth0"),
            "route add 169.254.1.1 dev eth0".to_owned(),
            "route add default via 169.254.1.1".to_owned(),
        ];
        ip(Some(pods.name(place)), of_pod)?;
    }
    inside(&host.path(0), || {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        for LocalPod { interface, .. } in &locals {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/proxy_arp"), "1")?;
        }
        Ok(())
    })?;
    Ok((LocalPodPair { pods, locals }, host))
}

/// Creates a pair with one rule that accepts everything, to measure the cost of connection tracking alone.
fn tracked() -> BenchResult<(LocalPodPair, NamespaceGroup)> {
    let (pair, host) = wired()?;
    let table = "add table inet tracked
add chain inet tracked forward { type filter hook forward priority 0; }
add rule inet tracked forward ct state established accept
";
    inside(&host.path(0), || run(&["nft", "-f", "-"], table))?;
    Ok((pair, host))
}

/// Creates a pair with the same rules in iptables.
fn with_iptables(
    restore: &[&str],
    others: usize,
    guarded: bool,
) -> BenchResult<(LocalPodPair, NamespaceGroup)> {
    let (pair, host) = wired()?;
    let from = pair.locals.first().ok_or("no first pod")?.address;
    let mut sets = format!("create pair hash:ip\nadd pair {from}\n");
    for group in 0..=ROLE_COUNT {
        writeln!(sets, "create g{group} hash:ip")?;
    }
    for endpoint in 0..ENDPOINT_COUNT {
        writeln!(sets, "add g{} {}", group_of_endpoint(endpoint), address(endpoint))?;
    }
    let mut policies: Vec<(usize, String)> = (0..others)
        .map(|number| {
            let set = format!("g{}", 1 + number % ROLE_COUNT);
            (number, rule(number, &set, cluster::port_of_policy(number)))
        })
        .collect();
    if guarded {
        policies.push((LAST_POLICY, rule(LAST_POLICY, "pair", TRAFFIC_PORT)));
    }
    let text = chains(&pair.locals, &policies, |_, _| true);
    inside(&host.path(0), || {
        run(&["ipset", "restore"], &sets)?;
        run(restore, &text)
    })?;
    Ok((pair, host))
}
