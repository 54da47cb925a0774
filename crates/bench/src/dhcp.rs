//! DHCP servers of a compute host: `tortie dhcp` next to dnsmasq, configured as Calico's agent configures it. Machines
//! send DHCPDISCOVER as fast as they get offers.

use crate::SuiteResult;
use crate::measure::{Latencies, table, time, times};
use crate::namespace::{BenchResult, NamespaceGroup, check, ip};
use crate::plain;
use crate::process::{BenchProcess, tortie};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tortie_dataplane::{FilterInstruction, HostLink, LinkMonitor, Netns, PacketSocket};
use tortie_model::{Kind, StoreKey, StoreValue};
use tortie_store::{StoreClient, StoreConfig};
use tortie_testkit::DatastoreProcess;

/// Endpoints of the host. Those without an interface only fill the tables.
const LEASES: u16 = 10_000;
/// Machines that send requests.
const MACHINES: u16 = 50;
const MEASURE_TIME: Duration = Duration::from_secs(5);
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// A request without an offer after this time is sent again.
const OFFER_TIMEOUT: Duration = Duration::from_secs(1);
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
const ETHERTYPE_IPV4: u16 = 0x0800;
/// Offset of the transaction in a frame, behind the headers of Ethernet, IPv4 and UDP.
const TRANSACTION_OFFSET: usize = 14 + 20 + 8 + 4;
const ACCEPT_ALL: [FilterInstruction; 1] = [(6, 0, 0, 0xffff)];

pub fn run() -> SuiteResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ours = runtime.block_on(measure_ours()).map_err(plain)?;
    let theirs = runtime.block_on(measure_dnsmasq()).map_err(plain)?;
    let rate = |latencies: &Latencies| latencies.0.len() as f64 / MEASURE_TIME.as_secs_f64();
    let baseline = rate(&theirs);
    let rows = [("tortie dhcp", ours), ("dnsmasq", theirs)].map(|(server, mut latencies)| {
        let offers = rate(&latencies);
        let mut quantile = |quantile| time(latencies.quantile(quantile).as_nanos() as f64);
        let (median, tail) = (quantile(0.5), quantile(0.99));
        vec![server.to_owned(), format!("{offers:.0}"), median, tail, times(offers / baseline.max(1.0))]
    });
    table(
        &format!("DHCPv4 offers to {MACHINES} machines, {LEASES} leases"),
        &["server", "offers per second", "p50", "p99", "rate"],
        &rows,
    );
    Ok(())
}

/// A host with the interfaces of machines, whose other ends are in a second namespace.
struct ComputeHost {
    namespaces: NamespaceGroup,
    machines: Vec<(Netns, HostLink, u16)>,
}

impl ComputeHost {
    async fn build() -> BenchResult<ComputeHost> {
        let namespaces = NamespaceGroup::new(2)?;
        let machines = namespaces.name(1).to_owned();
        let links = (0..MACHINES).flat_map(|number| {
            let mac = format_mac(number);
            [
                format!(
                    "link add tap{number} type veth peer name eth{number} address {mac} netns {machines}"
                ),
                format!("link set tap{number} up"),
            ]
        });
        // dnsmasq answers with the addresses of this interface. A veth pair, as not every kernel has dummy devices.
        let gateway = [
            "link add ns-bench type veth peer name wire0",
            "addr add 10.64.0.1/16 dev ns-bench",
            "link set ns-bench up",
            "link set wire0 up",
        ];
        ip(Some(namespaces.name(0)), links.chain(gateway.map(str::to_owned)))?;
        ip(Some(&machines), (0..MACHINES).map(|number| format!("link set eth{number} up")))?;
        let netns = Netns::open(namespaces.path(1))?;
        let mut links: BTreeMap<String, HostLink> = LinkMonitor::open(&netns).await?.links().await?;
        let found = (0..MACHINES)
            .filter_map(|number| Some((netns.clone(), links.remove(&format!("eth{number}"))?, number)));
        Ok(ComputeHost { machines: found.collect(), namespaces })
    }

    /// Waits until every machine gets offers, then measures.
    async fn measure(&self) -> BenchResult<Latencies> {
        self.request_all(None).await?;
        self.request_all(Some(MEASURE_TIME)).await
    }

    /// Sends requests from all machines, for a time or until the first offer.
    async fn request_all(&self, duration: Option<Duration>) -> BenchResult<Latencies> {
        let mut tasks = JoinSet::new();
        for (netns, link, number) in &self.machines {
            let socket =
                PacketSocket::open(netns, link, ETHERTYPE_IPV4, &ACCEPT_ALL, RECEIVE_BUFFER_BYTES).await?;
            tasks.spawn(request_offers(socket, *number, duration));
        }
        let mut all = Latencies::default();
        while let Some(latencies) = tasks.join_next().await {
            all.extend(latencies??);
        }
        Ok(all)
    }
}

async fn request_offers(
    socket: PacketSocket,
    number: u16,
    duration: Option<Duration>,
) -> BenchResult<Latencies> {
    let start = Instant::now();
    let mut latencies = Latencies::default();
    let mut transaction = u32::from(number) << 20;
    loop {
        check()?;
        transaction += 1;
        let sent = Instant::now();
        socket.send(&build_discover(number, transaction))?;
        match tokio::time::timeout(OFFER_TIMEOUT, wait_for_offer(&socket, transaction)).await {
            Ok(received) => {
                received?;
                latencies.0.push(sent.elapsed());
            }
            Err(_) if start.elapsed() > START_TIMEOUT => return Err("a machine gets no offer".into()),
            Err(_) => continue,
        }
        if duration.is_none_or(|duration| start.elapsed() >= duration) {
            return Ok(latencies);
        }
    }
}

async fn wait_for_offer(socket: &PacketSocket, transaction: u32) -> BenchResult<()> {
    let mut buffer = [0; 2048];
    loop {
        socket.readable().await?;
        while let Some(frame) = socket.receive(&mut buffer)? {
            let place = TRANSACTION_OFFSET..TRANSACTION_OFFSET + 4;
            if frame.get(place) == Some(&transaction.to_be_bytes()[..]) {
                return Ok(());
            }
        }
    }
}

fn mac(number: u16) -> [u8; 6] {
    let [high, low] = number.to_be_bytes();
    [0xfa, 0x16, 0x3e, 0, high, low]
}

fn format_mac(number: u16) -> String {
    mac(number).map(|byte| format!("{byte:02x}")).join(":")
}

fn format_address(number: u16) -> String {
    let [high, low] = (number + 16).to_be_bytes();
    format!("10.64.{high}.{low}")
}

fn build_discover(number: u16, transaction: u32) -> Vec<u8> {
    const OPTIONS: [u8; 13] = [99, 130, 83, 99, 53, 1, 1, 55, 3, 1, 3, 6, 255];
    let mut message = [&[1, 1, 6, 0][..], &transaction.to_be_bytes(), &[0; 20], &mac(number)].concat();
    message.resize(236, 0);
    message.extend(OPTIONS);
    message.resize(300, 0);
    // Lengths of 300 bytes behind the headers of UDP and IPv4; dnsmasq needs the checksum of the latter.
    let udp = [0, 68, 0, 67, 1, 52, 0, 0];
    let mut header = [0x45, 0, 1, 72, 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255];
    let words =
        header.chunks(2).map(|pair| pair.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)));
    let sum: u32 = words.sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or_default();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&[0xff; 6][..], &mac(number), &[8, 0], &header, &udp, &message].concat()
}

async fn measure_ours() -> BenchResult<Latencies> {
    let host = ComputeHost::build().await?;
    let dir = tempfile::tempdir()?;
    let program = tortie()?;
    // A socket in the file system is reachable from the namespace of the host.
    let listen = format!("unix://{}", dir.path().join("store.sock").display());
    let _store = DatastoreProcess::start(&program.display().to_string(), dir.path(), &[&listen], &[]);
    let client = StoreClient::connect(&StoreConfig::at(&*listen)).await?;
    write_entries(&client).await?;
    let mut command = BenchProcess::command("ip");
    command.args(["netns", "exec", host.namespaces.name(0)]).arg(program);
    command.args(["dhcp", "--host", "bench", "--max-requests", "10000"]);
    command.env("ETCD_ENDPOINTS", &listen).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = BenchProcess(command.spawn()?);
    host.measure().await
}

/// Writes the subnet and all endpoints.
async fn write_entries(client: &StoreClient) -> BenchResult<()> {
    let subnet = json!({"network_id": "n1", "cidr": "10.64.0.0/16", "gateway_ip": "10.64.0.1", "host_routes": [],
        "dns_servers": ["9.9.9.9"]});
    write_entry(client, StoreKey::DhcpSubnet { region: String::new(), id: "s1".to_owned() }, &subnet).await?;
    for number in 0..LEASES {
        let name = format!("bench-openstack-vm{number}-p{number}");
        let endpoint = json!({
            "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": name, "namespace": "openstack"},
            "spec": {"orchestrator": "openstack", "node": "bench", "workload": format!("vm{number}"),
                "endpoint": format!("p{number}"), "interfaceName": format!("tap{number}"),
                "mac": format_mac(number), "ipNetworks": [format!("{}/32", format_address(number))]},
        });
        write_entry(client, StoreKey::resource(Kind::WorkloadEndpoint, "openstack", &name), &endpoint)
            .await?;
    }
    Ok(())
}

async fn write_entry(client: &StoreClient, key: StoreKey, value: &serde_json::Value) -> BenchResult<()> {
    let value = StoreValue::decode(&key, value.to_string().as_bytes())?;
    client.apply(&key, &value, None).await?;
    Ok(())
}

async fn measure_dnsmasq() -> BenchResult<Latencies> {
    let host = ComputeHost::build().await?;
    let dir = tempfile::tempdir()?;
    let hosts = dir.path().join("hosts");
    let mut lines = String::new();
    for number in 0..LEASES {
        writeln!(lines, "{},host-{number},{}", format_mac(number), format_address(number))?;
    }
    std::fs::write(&hosts, lines)?;
    let bridge = (0..MACHINES).map(|number| format!(",tap{number}")).collect::<String>();
    let mut command = BenchProcess::command("ip");
    command.args(["netns", "exec", host.namespaces.name(0), "dnsmasq"]);
    command.args(["--keep-in-foreground", "--user=root", "--conf-file=/dev/null", "--pid-file=", "--port=0"]);
    command.args([
        "--no-hosts",
        "--no-resolv",
        "--no-ping",
        "--quiet-dhcp",
        "--bind-dynamic",
        "--except-interface=lo",
    ]);
    command.args([
        "--dhcp-authoritative",
        "--leasefile-ro",
        "--dhcp-lease-max=16777216",
        "--interface=ns-bench",
    ]);
    command
        .args(["--dhcp-range=10.64.0.0,static,255.255.0.0,86400s", "--dhcp-option=option:router,10.64.0.1"]);
    command.arg("--dhcp-option=option:dns-server,9.9.9.9");
    command.arg(format!("--dhcp-hostsfile={}", hosts.display()));
    command.arg(format!("--bridge-interface=ns-bench{bridge}"));
    command.args((0..MACHINES).map(|number| format!("--interface=tap{number}")));
    let _server = BenchProcess(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    host.measure().await
}
