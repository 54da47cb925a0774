//! The server with real clients.

use crate::host::{ComputeHost, Machine};
use crate::samples::{CLIENT_MAC, Client4};
use serde_json::json;
use tortie_dataplane::{LinkMonitor, Netns, PacketSocket};
use tortie_testkit::{TestProcess, eventually, eventually_showing};

const ETHERTYPE_IPV4: u16 = 0x0800;

fn has(environment: &[String], line: &str) -> bool {
    environment.iter().any(|known| known == line)
}

/// Returns whether a lease is as expected after a change, for which it is requested until it is.
fn eventually_leased(host: &ComputeHost, machine: &Machine, line: &str) {
    eventually(line, || host.udhcpc(machine, 5).is_some_and(|lease| has(&lease, line)));
}

#[test]
fn udhcpc_follows_the_store() {
    let mut host = ComputeHost::start();
    let machine = host.boot();
    let lease = host.udhcpc(&machine, 20).expect("a lease");
    for line in [
        "ip=10.65.0.2",
        "mask=24",
        "router=10.65.0.1",
        "dns=9.9.9.9",
        "domain=cloud.example",
        "hostname=p2",
        "mtu=1450",
        "lease=3600",
        "serverid=10.65.0.1",
    ] {
        assert!(has(&lease, line), "{line}: {lease:#?}");
    }
    host.namespace.ip(&format!("link set {} mtu 1400", machine.tap));
    eventually_leased(&host, &machine, "mtu=1400");
    host.put_subnet4(json!({"dns_servers": ["1.1.1.1", "8.8.8.8"],
        "host_routes": [{"destination": "192.0.2.0/24", "nexthop": "10.65.0.9"}]}));
    eventually_leased(&host, &machine, "dns=1.1.1.1 8.8.8.8");
    eventually_leased(&host, &machine, "staticroutes=192.0.2.0/24 10.65.0.9 0.0.0.0/0 10.65.0.1");
    host.put_endpoint(&machine, &["10.65.0.77/32"]);
    eventually_leased(&host, &machine, "ip=10.65.0.77");
    // A subnet that cannot be read changes nothing; one without DHCP has no leases.
    host.etcd.ctl(&["put", "/calico/dhcp/v2/no-region/subnet/s4", "{"]).unwrap();
    eventually("the fault is counted", || host.metric("tortie_dhcp_unreadable_entries") == Some(1));
    assert!(host.udhcpc(&machine, 20).is_some());
    host.stop_server();
    host.put_subnet4(json!({}));
    host.start_server();
    eventually("the interface is served again", || host.metric("tortie_dhcp_interfaces") == Some(1));
    assert!(has(&host.udhcpc(&machine, 20).expect("a lease"), "ip=10.65.0.77"), "after a restart");
    // The datastore fails: leases stay in force.
    host.etcd.kill();
    assert!(host.udhcpc(&machine, 20).is_some(), "without the datastore");
    host.etcd.restart().unwrap();
    host.delete_endpoint(&machine);
    eventually("the interface is closed", || host.metric("tortie_dhcp_interfaces") == Some(0));
    assert!(host.udhcpc(&machine, 1).is_none());
    assert!(host.page("/liveness").unwrap().contains("main-loop: alive"));
    assert_eq!(host.page("/readiness").unwrap(), "ready\n");
}

#[test]
fn ipv6_by_dhclient_and_by_the_kernel() {
    let host = ComputeHost::start();
    let machine = host.boot();
    let (script, record) = host.recorder("dhclient");
    let leases = host.dir.path().join("dhclient.leases");
    let pid = host.dir.path().join("dhclient.pid");
    machine.namespace.ip("link set eth0 up");
    let default_routes = || machine.namespace.ip("-6 route show default dev eth0");
    eventually_showing(
        "a default route by router advertisement",
        || default_routes().contains("proto ra"),
        default_routes,
    );
    assert!(default_routes().contains("mtu 1450"), "{}", default_routes());
    // In the foreground, so that it ends with the closure.
    let dhclient = |family: &str, event: &str| {
        let mut command = machine.namespace.command("dhclient");
        command.args([family, "-1", "-d", "-sf"]).arg(&script).arg("-lf").arg(&leases).arg("-pf").arg(&pid);
        let _client = TestProcess::quiet(command.arg("eth0"));
        let path = format!("{}.{event}", record.display());
        eventually(event, || std::path::Path::new(&path).exists());
        std::fs::read_to_string(path).unwrap()
    };
    let bound = dhclient("-6", "BOUND6");
    for line in [
        "new_ip6_address=fd00:65::2",
        "new_dhcp6_name_servers=2620:fe::fe",
        "new_dhcp6_domain_search=cloud.example.",
    ] {
        assert!(bound.lines().any(|known| known == line), "{line}: {bound}");
    }
    let bound = dhclient("-4", "BOUND");
    assert!(bound.lines().any(|line| line == "new_ip_address=10.65.0.2"), "{bound}");
    // The same network with addresses from the prefix.
    let modes = json!({"ipv6_ra_mode": "slaac", "ipv6_address_mode": "slaac"});
    host.put_subnet6(modes);
    let addresses = || machine.namespace.ip("-6 addr show dev eth0");
    eventually_showing(
        "an address from the prefix",
        || addresses().contains("fd00:65::f816:3eff:fe00:2/64"),
        addresses,
    );
    let on_link = machine.namespace.ip("-6 route show fd00:65::/64 dev eth0");
    assert_eq!(on_link, "", "the prefix is not on-link");
}

#[test]
fn a_hostile_machine_starves_only_itself() {
    let host = ComputeHost::start();
    let hostile = host.boot();
    let victim = host.boot();
    hostile.namespace.ip("link set eth0 up");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let netns = Netns::open(hostile.namespace.path()).unwrap();
        let links = LinkMonitor::open(&netns).await.unwrap().links().await.unwrap();
        let accept_all = [(6, 0, 0, 0xffff)];
        let socket =
            PacketSocket::open(&netns, &links["eth0"], ETHERTYPE_IPV4, &accept_all, 64 << 10).await.unwrap();
        for number in 0_u32..10_000 {
            let [_, a, b, c] = number.to_be_bytes();
            let mac = [2, 0, 0, a, b, c];
            let _ = socket.send(&Client4 { mac, chaddr: mac, ..Client4::new(1) }.frame());
        }
        // The victim's own address, by another machine: its MAC address is not that of this interface.
        let stolen = Client4 {
            mac: [0xfa, 0x16, 0x3e, 0, 0, 3],
            chaddr: [0xfa, 0x16, 0x3e, 0, 0, 3],
            ..Client4::new(1)
        };
        let _ = socket.send(&stolen.frame());
        assert_ne!(CLIENT_MAC[5], 3);
    });
    assert!(has(&host.udhcpc(&victim, 20).expect("the victim's lease"), "ip=10.65.0.3"));
    let rejected = || host.metric("tortie_dhcp_rejected_frames_total{reason=\"foreign-mac\"}").unwrap();
    eventually("frames are rejected", || rejected() > 0);
    eventually("frames are throttled", || host.metric("tortie_dhcp_throttled_frames_total").unwrap() > 0);
    assert!(rejected() < 5_000, "most are dropped unread: {}", rejected());
    let offers = host.metric("tortie_dhcp_replies_total{protocol=\"dhcpv4\",type=\"offer\"}").unwrap();
    assert!((1..100).contains(&offers), "{offers}");
    eventually("the hostile machine gets its own lease when it behaves", || {
        host.udhcpc(&hostile, 3).is_some_and(|lease| has(&lease, "ip=10.65.0.2"))
    });
}
