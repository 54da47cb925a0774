//! What packets between pods of two nodes pay for a tunnel: ours, beside plain routing and a tunnel of the same shape made by
//! hand. The wire between the nodes is a pair of virtual interfaces, so that all of it is the processor's work. Where the
//! kernel lacks some of the tunnels, a guest with another kernel measures too: slower, but the same for all.

use super::wireguard::{self, End};
use super::{block, resource, with_status};
use crate::measure::{table, times};
use crate::namespace::{Namespaces, Result, check, ip};
use crate::policy::inside;
use crate::policy::traffic::{self, Rates};
use serde_json::json;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tortie_compute::{Compute, Environment};
use tortie_dataplane::{Dataplane, Netns, Report, Reports};
use tortie_model::Kind;
use tortie_plan::{Plan, TunnelKind};
use tortie_testkit::vm::{Machine, is_guest};

/// Each measurement is taken this many times, the candidates in turn; the best counts.
const ROUNDS: usize = 6;
const INTERFACE: &str = "cali0";
/// For a device to have its key.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the guest needs for tunnels and policy.
const MODULES: [&str; 20] = [
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Plain,
    Vxlan,
    Ipip,
    Wireguard,
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::Plain, Mode::Vxlan, Mode::Ipip, Mode::Wireguard];

    fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Vxlan => "VXLAN",
            Mode::Ipip => "IPIP",
            Mode::Wireguard => "WireGuard",
        }
    }

    fn overhead(self) -> u32 {
        match self {
            Mode::Plain => 0,
            Mode::Vxlan => 50,
            Mode::Ipip => 20,
            Mode::Wireguard => 60,
        }
    }

    /// Whether the kernel here has such tunnels.
    fn is_there(self) -> Result<bool> {
        let words = match self {
            Mode::Plain => return Ok(true),
            Mode::Vxlan => "link add try type vxlan id 1 dstport 4789",
            Mode::Ipip => "link add try type ipip local 192.0.2.1 remote 192.0.2.2",
            Mode::Wireguard => "link add try type wireguard",
        };
        let place = Namespaces::new(1)?;
        let made = Command::new("ip").args(["-n", place.name(0)]).args(words.split(' ')).output()?;
        Ok(made.status.success())
    }
}

/// Two nodes with a wire between them and a pod on each.
struct Pair {
    nodes: Namespaces,
    pods: Namespaces,
    /// At work as long as packets are.
    _dataplanes: Vec<(Dataplane, Reports)>,
}

fn node(number: u8) -> String {
    format!("172.30.0.{}", number + 1)
}

fn pod(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 65, number, 10)
}

/// The end of a node's tunnel.
fn end(number: u8) -> String {
    format!("10.65.{number}.1")
}

fn cidr(number: u8) -> String {
    format!("10.65.{number}.0/26")
}

impl Pair {
    fn wired(mode: Mode) -> Result<Pair> {
        let (nodes, pods) = (Namespaces::new(2)?, Namespaces::new(2)?);
        ip(Some(nodes.name(0)), [format!("link add eth0 type veth peer name eth0 netns {}", nodes.name(1))])?;
        for (place, number) in [(0, 0_u8), (1, 1)] {
            let of_node = [
                "link set lo up".to_owned(),
                format!("addr add {}/24 dev eth0", node(number)),
                "link set eth0 up".to_owned(),
                format!("link add {INTERFACE} type veth peer name eth0 netns {}", pods.name(place)),
                format!("link set {INTERFACE} up"),
            ];
            ip(Some(nodes.name(place)), of_node)?;
            let of_pod = [
                "link set lo up".to_owned(),
                format!("link set eth0 mtu {} up", 1500 - mode.overhead()),
                format!("addr add {}/32 dev eth0", pod(number)),
                "route add 169.254.1.1 dev eth0".to_owned(),
                "route add default via 169.254.1.1".to_owned(),
            ];
            ip(Some(pods.name(place)), of_pod)?;
        }
        Ok(Pair { nodes, pods, _dataplanes: Vec::new() })
    }

    async fn by_hand(mode: Mode) -> Result<Pair> {
        let pair = Pair::wired(mode)?;
        if mode == Mode::Wireguard {
            let end = |place: usize, number: u8| -> Result<End> {
                ip(Some(pair.nodes.name(place)), ["link add wg0 type wireguard"])?;
                Ok(End {
                    netns: pair.nodes.path(place),
                    endpoint: format!("{}:51820", node(number)).parse()?,
                    allowed: cidr(number).parse()?,
                })
            };
            wireguard::connect("wg0", &[end(0, 0)?, end(1, 1)?]).await?;
        }
        for (place, number) in [(0, 0_u8), (1, 1)] {
            inside(&pair.nodes.path(place), || {
                std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
                Ok(std::fs::write(format!("/proc/sys/net/ipv4/conf/{INTERFACE}/proxy_arp"), "1")?)
            })?;
            let (other, name) = (1 - number, pair.nodes.name(place));
            let mut lines = vec![
                format!("route add {} dev {INTERFACE}", pod(number)),
                // Without a way out the node does not answer for the gateway of its pods.
                format!("route add default via {}", node(other)),
            ];
            match mode {
                Mode::Plain => lines.push(format!("route add {} via {}", cidr(other), node(other))),
                Mode::Vxlan => lines.extend([
                    format!(
                        "link add vx0 address 66:00:00:00:00:0{number} type vxlan id 4096 dstport 4789 local {} dev eth0 nolearning",
                        node(number)
                    ),
                    "link set vx0 mtu 1450 up".to_owned(),
                    format!("addr add {}/32 dev vx0", end(number)),
                    format!("neigh add {} lladdr 66:00:00:00:00:0{other} dev vx0 nud permanent", end(other)),
                    format!("route add {} via {} dev vx0 onlink", cidr(other), end(other)),
                ]),
                Mode::Ipip => lines.extend([
                    "link set tunl0 mtu 1480 up".to_owned(),
                    format!("addr add {}/32 dev tunl0", end(number)),
                    format!("route add {} via {} dev tunl0 onlink", cidr(other), node(other)),
                ]),
                Mode::Wireguard => lines.extend([
                    "link set wg0 mtu 1440 up".to_owned(),
                    format!("route add {} dev wg0", cidr(other)),
                ]),
            }
            ip(Some(name), lines)?;
            if mode == Mode::Vxlan {
                let entry = format!("66:00:00:00:00:0{other} dst {} dev vx0 self permanent", node(other));
                let output = Command::new("bridge")
                    .args(["-n", name, "fdb", "add"])
                    .args(entry.split(' '))
                    .output()?;
                if !output.status.success() {
                    return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
                }
            }
        }
        Ok(pair)
    }

    /// With policy that allows everything, as a cluster has it where nobody has written any.
    async fn ours(mode: Mode) -> Result<Pair> {
        let mut pair = Pair::wired(mode)?;
        let mut computes = Vec::new();
        let mut keys: [String; 2] = Default::default();
        for (place, number) in [(0, 0_u8), (1, 1)] {
            ip(Some(pair.nodes.name(place)), [format!("route add default via {}", node(1 - number))])?;
            let mut compute = Compute::new(&format!("n{number}"), Environment::default());
            for (key, value) in entries(mode)? {
                compute.put(&key, &value);
            }
            let mut plan = Plan::default();
            compute.flush().into_iter().for_each(|update| plan.apply(update));
            let netns = Netns::open(pair.nodes.path(place))?;
            let mut started = Dataplane::start(netns, compute.settings().clone()).await?;
            let outcome = started.0.replace(plan).await?;
            if let Some(failure) = outcome.failures.first() {
                return Err(failure.to_string().into());
            }
            if mode == Mode::Wireguard {
                keys[place] = tokio::time::timeout(PATIENCE, public_key(&mut started.1)).await??;
            }
            pair._dataplanes.push(started);
            computes.push(compute);
        }
        // Each node hears of the other's key as soon as it is there.
        for (compute, (dataplane, _)) in computes.iter_mut().zip(&pair._dataplanes) {
            for number in [0, 1].into_iter().filter(|_| mode == Mode::Wireguard) {
                let (key, value) = node_with_key(number, &keys[usize::from(number)])?;
                compute.put(&key, &value);
            }
            dataplane.apply(compute.flush()).await?;
        }
        Ok(pair)
    }

    fn rates(&self) -> Result<Rates> {
        traffic::between(&self.pods.path(0), &self.pods.path(1), pod(1))
    }
}

/// Of the device of a dataplane.
async fn public_key(reports: &mut Reports) -> Result<String> {
    while let Some(report) = reports.next().await {
        if let Report::PublicKeys(keys) = report
            && let Some(key) = keys.get(&TunnelKind::WireguardV4)
        {
            return Ok(key.clone());
        }
    }
    Err("the dataplane has stopped".into())
}

fn node_with_key(number: u8, key: &str) -> Result<(tortie_model::Key, tortie_model::Value)> {
    let bgp = json!({"ipv4Address": format!("{}/24", node(number)), "ipv4IPIPTunnelAddr": end(number)});
    let spec = json!({
        "bgp": bgp, "ipv4VXLANTunnelAddr": end(number), "wireguard": {"interfaceIPv4Address": end(number)},
    });
    with_status(Kind::Node, "", &format!("n{number}"), spec, json!({"wireguardPublicKey": key}))
}

fn entries(mode: Mode) -> Result<Vec<(tortie_model::Key, tortie_model::Value)>> {
    let wraps = |wanted: Mode| if mode == wanted { "Always" } else { "Never" };
    let (vxlan, ipip) = (wraps(Mode::Vxlan), wraps(Mode::Ipip));
    let allow = json!([{"action": "Allow"}]);
    let mut entries = vec![
        resource(
            Kind::IPPool,
            "",
            "pool",
            json!({"cidr": "10.65.0.0/16", "vxlanMode": vxlan, "ipipMode": ipip}),
        )?,
        resource(Kind::Profile, "", "open", json!({"ingress": allow, "egress": allow}))?,
        resource(
            Kind::FelixConfiguration,
            "",
            "default",
            json!({"wireguardEnabled": mode == Mode::Wireguard}),
        )?,
    ];
    for number in [0, 1] {
        let name = format!("n{number}");
        entries.push(node_with_key(number, "")?);
        entries.push(block(&cidr(number), &name)?);
        let endpoint = json!({
            "orchestrator": "cni", "node": name, "containerID": format!("c{number}"), "endpoint": "eth0",
            "interfaceName": INTERFACE, "ipNetworks": [format!("{}/32", pod(number))], "profiles": ["open"],
        });
        let id = format!("{name}-cni-c{number}-eth0");
        entries.push(resource(Kind::WorkloadEndpoint, "default", &id, endpoint)?);
    }
    Ok(entries)
}

pub async fn compare() -> Result<()> {
    let plain = Pair::by_hand(Mode::Plain).await?;
    let mut rows = Vec::new();
    let mut is_complete = true;
    for mode in Mode::ALL {
        if !mode.is_there()? {
            println!("{}: this kernel has no such tunnels", mode.name());
            is_complete = false;
            continue;
        }
        let (by_hand, ours) = (Pair::by_hand(mode).await?, Pair::ours(mode).await?);
        let mut best = [Rates::default(); 3];
        for _ in 0..ROUNDS {
            check()?;
            for (best, pair) in best.iter_mut().zip([&plain, &by_hand, &ours]) {
                let rates = tokio::task::block_in_place(|| pair.rates())?;
                best.bytes = best.bytes.max(rates.bytes);
                best.requests = best.requests.max(rates.requests);
                best.connections = best.connections.max(rates.connections);
            }
        }
        let mut row = |what: &str, rate: fn(&Rates) -> f64, shown: fn(f64) -> String| {
            let [plain, by_hand, ours] = best.each_ref().map(rate);
            let mut row = vec![format!("{}: {what}", mode.name())];
            row.extend([plain, by_hand, ours].map(shown));
            row.extend([times(ours / plain), times(ours / by_hand)]);
            rows.push(row);
        };
        row("throughput", |rates| rates.bytes, |bytes| format!("{:.2} Gbit/s", bytes * 8e-9));
        row("requests and answers", |rates| rates.requests, |rate| format!("{rate:.0}/s"));
        row("new connections", |rates| rates.connections, |rate| format!("{rate:.0}/s"));
    }
    let header =
        ["", "plain routes by hand", "the same by hand", "ours, with policy", "ours/plain", "ours/by hand"];
    table("Tunnels: TCP between pods of two nodes", &header, &rows);
    if !is_complete && !is_guest() {
        println!("\nThe same in a guest of QEMU without KVM, where only the ratios mean something:\n");
        let said = tokio::task::block_in_place(in_guest);
        let rows: Vec<&str> = said.lines().filter(|line| line.starts_with('|')).collect();
        if rows.is_empty() {
            return Err(format!("the guest has measured nothing:\n{said}").into());
        }
        rows.into_iter().for_each(|row| println!("{row}"));
    }
    Ok(())
}

/// What a guest with all kinds of tunnels prints.
fn in_guest() -> String {
    let machine = Machine {
        sources: Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
        programs: ["ip", "bridge"].map(str::to_owned).to_vec(),
        modules: MODULES.to_vec(),
    };
    machine.run_with("tunnels-traffic")
}
