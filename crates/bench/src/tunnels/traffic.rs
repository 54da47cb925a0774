//! Measures the cost of a tunnel for packets between pods of two nodes: Tortie's, compared with plain routing and with
//! an equivalent tunnel made with command line tools. The nodes are connected by a veth pair, so the CPU is the only
//! bottleneck. If the kernel lacks some tunnels, the measurement is repeated in a guest with another kernel, which is
//! slower by the same factor for all candidates.

use super::case::EncapsulationCase;
use super::pair::NodePair;
use crate::measure::{table, time, times};
use crate::namespace::{BenchResult, check};
use crate::policy::traffic::TrafficRates;
use std::path::Path;
use tortie_testkit::vm::{GuestMachine, is_guest};

/// Number of repetitions, alternating between the candidates; the best result counts. The environment variable
/// overrides it for a quick run.
const REPETITIONS: usize = 6;
const ROUNDS_VARIABLE: &str = "TORTIE_BENCH_ROUNDS";

/// Kernel modules that the guest needs for tunnels and policy.
const GUEST_MODULES: [&str; 20] = [
    "ipip",
    "nf_conntrack_netlink",
    "nf_log_syslog",
    "nf_tables",
    "nfnetlink_log",
    "nft_chain_nat",
    "nft_ct",
    "nft_fib_inet",
    "nft_fib_ipv4",
    "nft_fib_ipv6",
    "nft_limit",
    "nft_log",
    "nft_masq",
    "nft_nat",
    "nft_reject_inet",
    "sha1_generic",
    "hmac",
    "veth",
    "vxlan",
    "wireguard",
];

pub async fn compare() -> BenchResult<()> {
    let rounds = match std::env::var(ROUNDS_VARIABLE) {
        Ok(text) => text.parse().map_err(|_| format!("{ROUNDS_VARIABLE}={text} is not a number"))?,
        Err(_) => REPETITIONS,
    };
    let mut rows = Vec::new();
    let mut is_complete = true;
    for case in EncapsulationCase::ALL {
        if !case.is_there()? {
            println!("{}: this kernel has no such tunnels", case.name);
            is_complete = false;
            continue;
        }
        let best = measure(case, rounds).await.map_err(|error| format!("{}: {error}", case.name))?;
        rows.push(row(case, "throughput", best.each_ref().map(|rates| rates.bytes), throughput));
        let trips = best.each_ref().map(|rates| 1e9 / rates.requests);
        rows.push(row(case, "round trip", trips, time));
        let connections = best.each_ref().map(|rates| rates.connections);
        rows.push(row(case, "new connections", connections, |rate| format!("{rate:.0}/s")));
    }
    let header =
        ["", "plain routes by hand", "the same by hand", "ours, with policy", "ours/plain", "ours/by hand"];
    table("Tunnels: TCP between pods of two nodes", &header, &rows);
    if !is_complete && !is_guest() {
        println!("\nThe same in a guest of QEMU without KVM, where only the ratios mean something:\n");
        let said = tokio::task::block_in_place(|| in_guest(rounds));
        let rows: Vec<&str> = said.lines().filter(|line| line.starts_with('|')).collect();
        if rows.is_empty() {
            return Err(format!("the guest has measured nothing:\n{said}").into());
        }
        rows.into_iter().for_each(|row| println!("{row}"));
    }
    Ok(())
}

/// Measures plain routing, a tunnel made with tools, and Tortie's tunnel.
async fn measure(case: EncapsulationCase, rounds: usize) -> BenchResult<[TrafficRates; 3]> {
    let pairs =
        [NodePair::by_hand(case.plain()).await?, NodePair::by_hand(case).await?, NodePair::ours(case).await?];
    let mut best = [TrafficRates::default(); 3];
    for _ in 0..rounds {
        check()?;
        for (best, pair) in best.iter_mut().zip(&pairs) {
            let rates = tokio::task::block_in_place(|| pair.rates())?;
            best.bytes = best.bytes.max(rates.bytes);
            best.requests = best.requests.max(rates.requests);
            best.connections = best.connections.max(rates.connections);
        }
    }
    Ok(best)
}

/// Formats a throughput: `1.23 Gbit/s`, or in the guest `4.5 Mbit/s`.
fn throughput(bytes: f64) -> String {
    let bits = bytes * 8.0;
    if bits < 1e9 { format!("{:.1} Mbit/s", bits / 1e6) } else { format!("{:.2} Gbit/s", bits / 1e9) }
}

fn row(
    case: EncapsulationCase,
    what: &str,
    [plain, by_hand, ours]: [f64; 3],
    shown: impl Fn(f64) -> String,
) -> Vec<String> {
    let name = format!("{}: {what}", case.name);
    vec![name, shown(plain), shown(by_hand), shown(ours), times(ours / plain), times(ours / by_hand)]
}

/// Runs the suite in a guest that supports all tunnels and returns its output.
fn in_guest(rounds: usize) -> String {
    let machine = GuestMachine {
        sources: Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
        programs: ["ip", "bridge"].map(str::to_owned).to_vec(),
        modules: GUEST_MODULES.to_vec(),
    };
    machine.run_with(&[(ROUNDS_VARIABLE, rounds.to_string())], "tunnels-traffic")
}
