//! A workload adds only its own addresses to the host's neighbour table: it cannot fill the table that all workloads
//! share.

use crate::namespace::{OpenNetns, TestNamespace, eventually, plan, pod, start, workload};
use crate::plans::{POD_ONE_ADDRESSES, POD_TWO_ADDRESSES, reaches};
use crate::raw::{RawLink, udp_v6};
use std::net::{Ipv4Addr, Ipv6Addr};
use tortie_plan::PlannedWorkload;

/// More than the kernel's neighbour table holds.
const FLOOD_PACKETS: u32 = 3000;
const GATEWAY_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee);

/// Returns how many neighbour entries the node has on an interface.
fn neighbours(node: &TestNamespace, interface: &str) -> usize {
    ["-4", "-6"]
        .map(|family| node.ip(&format!("{family} neigh show nud all dev {interface}")))
        .iter()
        .map(|text| text.lines().filter(|line| !line.contains("NOARP") && !line.contains("ff02:")).count())
        .sum()
}

fn numbered(number: u32) -> Ipv6Addr {
    let [high, low] = [u16::try_from(number >> 16).unwrap(), u16::try_from(number & 0xffff).unwrap()];
    Ipv6Addr::new(0xfe80, 0, 0, 0, 7, 7, high, low)
}

#[tokio::test(flavor = "multi_thread")]
async fn workloads_cannot_fill_the_hosts_neighbour_tables() {
    let node = TestNamespace::new("node");
    let one = pod(&node, "cali1", &POD_ONE_ADDRESSES).await;
    let two = pod(&node, "cali2", &POD_TWO_ADDRESSES).await;
    let link = RawLink::open(&one, "eth0");
    let with_mac = |interface, with, mac| PlannedWorkload { mac: Some(mac), ..workload(interface, with) };
    let workloads = [
        ("one", with_mac("cali1", &POD_ONE_ADDRESSES, link.mac())),
        ("two", with_mac("cali2", &POD_TWO_ADDRESSES, RawLink::open(&two, "eth0").mac())),
    ];
    let (dataplane, _reports) = start(&node).await;
    assert_eq!(dataplane.replace(plan(&workloads, &[])).await.unwrap().failures, []);
    // With a default route, as on any host, the kernel answers for the workload's gateway and stores the sender.
    for command in [
        "link add uplink type veth peer name beyond",
        "link set uplink up",
        "link set beyond up",
        "route add default dev uplink",
    ] {
        node.ip(command);
    }
    // Disable the kernel's reverse path filter, as on many hosts.
    for interface in ["all", "cali1"] {
        node.exec(&["sysctl", "-qw", &format!("net.ipv4.conf.{interface}.rp_filter=0")]);
    }
    eventually("all know each other", || {
        ["10.65.0.3", "fd80:65::3"].iter().all(|address| reaches(&one, address))
    })
    .await;

    for number in 0..FLOOD_PACKETS {
        let claimed = Ipv4Addr::from(0x0a63_0000 + number);
        link.ask(claimed, Ipv4Addr::new(169, 254, 1, 1));
        link.solicit(numbered(number), GATEWAY_LINK_LOCAL);
        // Causes a "port unreachable" reply to an unassigned address.
        link.send_ip(&udp_v6(numbered(number), GATEWAY_LINK_LOCAL, 9));
        // Routed back to the workload's interface, to an unassigned address.
        link.send_ip(&udp_v6("fd80:65::2".parse().unwrap(), numbered(number), 9));
    }
    let count = neighbours(&node, "cali1");
    assert!(
        count <= 8,
        "{count} neighbours of a workload with three addresses:\n{}",
        node.ip("neigh show nud all")
    );

    // The workload's own addresses, including its link-local address, still work.
    assert!(reaches(&one, "10.65.0.3") && reaches(&one, "fd80:65::3"));
    assert!(reaches(&one, &format!("{GATEWAY_LINK_LOCAL}%eth0")), "the host by its link-local address");
    node.ip("neigh flush all");
    eventually("others are found again", || {
        reaches(&two, "10.65.0.2") && reaches(&two, "fd80:65::2") && node.pings("fd80:65::3")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_never_answers_for_workload_addresses() {
    let node = TestNamespace::new("node");
    let one = pod(&node, "cali1", &POD_ONE_ADDRESSES).await;
    node.ip("route add blackhole default");
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plan(&[("one", workload("cali1", &POD_ONE_ADDRESSES))], &[])).await.unwrap();
    let listing = node.exec(&["nft", "list", "table", "arp", "tortie"]);
    assert!(listing.contains("\"cali1\" . 10.65.0.2"), "{listing}");
    assert!(reaches(&one, "10.65.0.2"));

    // A table that is deleted by hand is restored; `remove_policy` removes it with the inet table.
    node.nft("delete table arp tortie");
    eventually("the table is back", || {
        node.try_exec(&["nft", "list", "table", "arp", "tortie"]).status.success()
    })
    .await;
    dataplane.stop().await;
    tortie_dataplane::remove_policy(&node.open()).await.unwrap();
    for family in ["arp", "inet"] {
        assert!(!node.try_exec(&["nft", "list", "table", family, "tortie"]).status.success(), "{family}");
    }
}
