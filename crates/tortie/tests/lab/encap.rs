//! Encapsulated pod traffic between subnets, across a router that has no routes to pods.

use crate::capture::{CapturedPacket, PacketCapture, PacketEncapsulation};
use crate::pinger::{ContinuousPing, restart_under};
use crate::stream::{STREAM_BYTES, stream};
use crate::{TestLab, family};
use serde_json::Value;
use std::net::IpAddr;
use std::process::Command;
use std::time::Instant;

fn eventually(lab: &TestLab, what: &str, so: impl FnMut() -> bool) {
    tortie_testkit::eventually_showing(what, so, || {
        let show = |node: &str| {
            lab.run(&[
                "exec",
                node,
                "--",
                "sh",
                "-c",
                "ip -d link show type vxlan; ip route; ip -6 route; bridge fdb show | grep dst",
            ])
        };
        format!("{}\n{}\n{}", lab.picture(), show("node1"), show("node2"))
    });
}

impl TestLab {
    fn shell(&self, node: &str, script: &str) -> String {
        self.run(&["exec", node, "--", "sh", "-c", script])
    }

    /// Sets the VXLAN mode of both pools.
    fn vxlan_mode(&self, mode: &str) {
        for pool in ["lab-ipv4-1", "lab-ipv6-2"] {
            let patch = format!(r#"{{"spec": {{"vxlanMode": "{mode}"}}}}"#);
            self.run(&["ctl", "patch", "ippool", pool, "-p", &patch]);
        }
    }
}

/// Adds pods `one` to `three` on nodes 1 to 3; node 3 is in another rack.
fn pods(lab: &TestLab) -> Vec<(&'static str, Vec<String>)> {
    [("one", "node1"), ("two", "node2"), ("three", "node3")]
        .map(|(pod, node)| (pod, lab.add(pod, node, &[])))
        .into()
}

fn all_reach_all(lab: &TestLab, pods: &[(&str, Vec<String>)]) {
    for (from, _) in pods {
        for address in pods.iter().filter(|(to, _)| to != from).flat_map(|(_, addresses)| addresses) {
            eventually(lab, &format!("{from} reaches {address}"), || lab.pings(from, address));
        }
    }
}

#[test]
fn vxlan_survives_restarts_and_leaving_nodes() {
    let lab = TestLab::up(&["--nodes", "3", "--topology", "l3", "--encap", "vxlan"]);
    let mut pods = pods(&lab);
    all_reach_all(&lab, &pods);
    let host_to_pod = family(&pods[2].1, false).to_owned();
    eventually(&lab, "a node reaches pods in another rack", || lab.pings("node1", &host_to_pod));
    let node = lab.node("node3");
    let end = node["spec"]["ipv4VXLANTunnelAddr"].as_str().unwrap().to_owned();
    let link = lab.shell("node1", "ip -d link show vxlan.calico");
    assert!(link.contains("vxlan id 4096 local 10.10.1.1 dev eth0"), "{link}");
    assert!(
        link.contains("dstport 4789") && link.contains("nolearning") && link.contains("mtu 1450"),
        "{link}"
    );
    let routes = lab.shell("node1", "ip route");
    assert!(routes.contains(&format!("via {end} dev vxlan.calico proto 80 onlink")), "{routes}");
    assert_eq!(routes.matches("blackhole ").count(), 1, "{routes}");
    let fabric = format!("tortie-{}-net", lab.name);
    let router = tortie_testkit::run(Command::new("ip").args(["-n", &fabric, "route"]));
    assert!(!router.contains("10.244."), "the router knows nothing of pods: {router}");
    lab.addresses_are_accounted_for();

    // Stop and restart daemons while packets are in flight.
    let talks = [("one", 2, false), ("one", 2, true), ("three", 0, false), ("three", 0, true)];
    let pingers: Vec<ContinuousPing> = talks
        .iter()
        .map(|(from, to, v6)| ContinuousPing::start(&lab, from, family(&pods[*to].1, *v6)))
        .collect();
    pingers.iter().for_each(|pinger| pinger.wait_for_more(20));
    for node in ["node1", "node3"] {
        restart_under(&lab, &pingers, node, 20);
    }
    pingers.iter().for_each(ContinuousPing::none_lost);
    drop(pingers);

    // A node leaves: the other nodes remove all its entries.
    lab.run(&["pod", "del", "three"]);
    lab.run(&["node", "stop", "node3"]);
    lab.run(&["ctl", "delete", "node", "node3"]);
    let of_node3 = |address: &str| {
        let seen = lab.shell("node1", "bridge fdb show; ip neigh; ip -6 neigh; ip route; ip -6 route");
        seen.lines()
            .any(|line| line.contains(&format!("dst {address} ")) || line.starts_with(&format!("{end} ")))
            || seen.contains(&format!("via {end} "))
    };
    eventually(&lab, "the others forget the node", || !of_node3("10.10.2.3") && !of_node3("fd00:10:10:2::3"));

    // The node returns with another address.
    lab.shell(
        "node3",
        "ip -4 addr flush dev eth0 && ip addr add 10.10.2.77/24 dev eth0 && ip route replace default via 10.10.2.254",
    );
    lab.run(&["node", "start", "node3"]);
    pods[2].1 = lab.add("three", "node3", &[]);
    eventually(&lab, "the others know where it is", || {
        lab.shell("node1", "bridge fdb show dev vxlan.calico").contains("dst 10.10.2.77 ")
    });
    all_reach_all(&lab, &pods);
    lab.addresses_are_accounted_for();
}

#[test]
fn cross_subnet_encapsulates_only_between_racks() {
    let lab = TestLab::up(&["--nodes", "3", "--topology", "l3", "--encap", "vxlan-cross"]);
    let pods = pods(&lab);
    all_reach_all(&lab, &pods);
    let capture = PacketCapture::start(&format!("tortie-{}-node1", lab.name), "eth0");
    let link = lab.run(&["exec", "one", "--", "ip", "-j", "link", "show", "dev", "eth0"]);
    let mtu = serde_json::from_str::<Value>(&link).unwrap()[0]["mtu"].as_u64().unwrap();
    for v6 in [false, true] {
        let address = |pod: usize| -> IpAddr { family(&pods[pod].1, v6).parse().unwrap() };
        capture.packets();
        lab.ping("one", &address(1).to_string());
        lab.ping("one", &address(2).to_string());
        let seen = capture.packets();
        let between = |other: IpAddr| -> Vec<CapturedPacket> {
            let ends = [address(0), other];
            seen.iter()
                .filter(|p| ends.contains(&p.source) && ends.contains(&p.destination))
                .copied()
                .collect()
        };
        let (within, across) = (between(address(1)), between(address(2)));
        assert!(
            within.len() >= 2 && within.iter().all(|packet| packet.wrap == PacketEncapsulation::None),
            "within a rack: {within:?}"
        );
        assert!(
            across.len() >= 2 && across.iter().all(|packet| packet.wrap == PacketEncapsulation::Vxlan),
            "between racks: {across:?}"
        );

        // The largest packets that pods may send arrive unfragmented, alone and in a stream.
        for (name, pod, wrap) in
            [("two", 1, PacketEncapsulation::None), ("three", 2, PacketEncapsulation::Vxlan)]
        {
            let (headers, address) = (if v6 { 48 } else { 28 }, address(pod));
            let ping = |size: u64| {
                let (size, address) = (size.to_string(), address.to_string());
                let words = ["exec", "one", "--", "ping", "-n", "-c", "1", "-W", "10", "-M", "do", "-s"];
                lab.output(&[&words[..], &[&size, &address]].concat()).status.success()
            };
            assert!(ping(mtu - headers), "{address} is sent {mtu} bytes");
            assert!(!ping(mtu - headers + 1), "{address} is sent more than {mtu} bytes");
            let namespace = |pod: &str| format!("tortie-{}-pod-{pod}", lab.name);
            assert_eq!(stream(&namespace("one"), &namespace(name), address), STREAM_BYTES);
            let ends = [address, family(&pods[0].1, v6).parse().unwrap()];
            let of_both = |p: &CapturedPacket| ends.contains(&p.source) && ends.contains(&p.destination);
            let packets: Vec<CapturedPacket> = capture.packets().into_iter().filter(of_both).collect();
            let right = |packet: &CapturedPacket| packet.wrap == wrap && !packet.is_fragment;
            assert!(packets.len() > 10 && packets.iter().all(right), "{name}: {packets:?}");
        }
    }
}

#[test]
fn a_pool_changes_its_mode_under_traffic() {
    let lab = TestLab::up(&["--nodes", "2"]);
    let one = lab.add("one", "node1", &[]);
    let two = lab.add("two", "node2", &[]);
    let pingers: Vec<ContinuousPing> =
        [("one", &two, false), ("one", &two, true), ("two", &one, false), ("two", &one, true)]
            .iter()
            .map(|(from, to, v6)| ContinuousPing::start(&lab, from, family(to, *v6)))
            .collect();
    pingers.iter().for_each(|pinger| pinger.wait_for_more(50));
    let through_tunnels = |node: &str| {
        let routes = lab.shell(node, "ip route; ip -6 route");
        let through = |family: &str, device: &str| {
            routes.lines().any(|line| line.starts_with(family) && line.contains(&format!("dev {device}")))
        };
        (through("10.244.", "vxlan.calico"), through("fd00:10:244:", "vxlan-v6.calico"))
    };
    let has_devices = |node: &str| lab.shell(node, "ip -o link show type vxlan").lines().count();
    for (mode, wrapped) in
        [("Always", true), ("CrossSubnet", false), ("Never", false), ("Always", true), ("Never", false)]
    {
        let before: usize = pingers.iter().map(ContinuousPing::lost).sum();
        lab.vxlan_mode(mode);
        let begun = Instant::now();
        let devices = if mode == "Never" { 0 } else { 2 };
        for node in ["node1", "node2"] {
            eventually(&lab, &format!("{node} does as the pool says: {mode}"), || {
                let through = through_tunnels(node);
                let routed = if wrapped { through == (true, true) } else { !through.0 };
                routed && has_devices(node) == devices
            });
        }
        let took = begun.elapsed();
        pingers.iter().for_each(|pinger| pinger.wait_for_more(50));
        let after: usize = pingers.iter().map(ContinuousPing::lost).sum();
        println!(
            "vxlanMode {mode}: after {took:.1?}, {} packets of {} talks at 200 a second lost",
            after - before,
            pingers.len()
        );
    }
    let spec = lab.node("node1")["spec"].clone();
    assert_eq!((&spec["ipv4VXLANTunnelAddr"], &spec["ipv6VXLANTunnelAddr"]), (&Value::Null, &Value::Null));
    lab.addresses_are_accounted_for();
}

/// Returns whether the kernel has devices of a kind.
fn kernel_has(kind: &str) -> bool {
    let namespace = tortie_testkit::TestNamespace::new("kind");
    let added = namespace.try_exec(&["ip", "link", "add", "kind0", "type", kind]);
    // The module of IPIP creates a device that conflicts with another one without addresses.
    added.status.success() || String::from_utf8_lossy(&added.stderr).contains("File exists")
}

#[test]
fn modes_without_kernel_support_are_refused() {
    for (mode, kind) in [("wireguard", "wireguard"), ("ipip", "ipip"), ("ipip-cross", "ipip")] {
        if kernel_has(kind) {
            println!("this kernel has {kind}");
            continue;
        }
        let lab = TestLab::new();
        let refusal = lab.refused(&["up", "--nodes", "1", "--encap", mode]);
        assert!(refusal.contains(&format!("this kernel has no {kind} devices")), "{refusal}");
        assert!(refusal.contains("--encap"), "{refusal}");
        assert_eq!(lab.traces(), Vec::<String>::new());
    }
}

#[test]
fn missing_kernel_support_is_reported_and_tolerated() {
    let lab = TestLab::up(&["--nodes", "2", "--encap", "vxlan"]);
    lab.run(&[
        "ctl",
        "patch",
        "ippool",
        "lab-ipv4-1",
        "-p",
        r#"{"spec": {"vxlanMode": "Never", "ipipMode": "Always"}}"#,
    ]);
    lab.run(&[
        "ctl",
        "patch",
        "felixconfiguration",
        "default",
        "-p",
        r#"{"spec": {"wireguardEnabled": true}}"#,
    ]);
    let one = lab.add("one", "node1", &[]);
    let two = lab.add("two", "node2", &[]);
    eventually(&lab, "IPv6 goes through VXLAN all the same", || lab.pings("one", family(&two, true)));
    eventually(&lab, "the tunnel has an address", || {
        lab.node("node1")["spec"]["bgp"]["ipv4IPIPTunnelAddr"].is_string()
    });
    lab.addresses_are_accounted_for();
    let health = || {
        let output = lab.output(&["exec", "node1", "--", "tortie", "health"]);
        assert!(output.status.success(), "a missing mode does not make the node unready");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let analyze = || {
        let output = lab.output(&["exec", "node1", "--", "tortie", "analyze"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    if kernel_has("wireguard") {
        eventually(&lab, "no mode is missing", || !analyze().contains("WireGuard"));
    } else {
        let missing =
            "WireGuard: configured but not in force: interface wireguard.cali: this kernel has no wireguard";
        eventually(&lab, "health names WireGuard", || health().contains(missing));
        eventually(&lab, "analyze names WireGuard", || analyze().contains(missing));
    }
    if kernel_has("ipip") {
        eventually(&lab, "pods reach each other by IPIP or WireGuard", || {
            lab.pings("one", family(&two, false)) && lab.pings("two", family(&one, false))
        });
        let routes = lab.shell("node1", "ip route");
        assert!(routes.contains("via 10.10.1.2 dev tunl0 proto 80 onlink"), "{routes}");
    } else {
        let missing = "IPIP: configured but not in force: interface tunl0: this kernel has no ipip devices";
        eventually(&lab, "health names IPIP", || health().contains(missing));
        eventually(&lab, "analyze names IPIP and both nodes", || {
            let text = analyze();
            text.contains(missing) && text.contains("(on node1, node2)")
        });
    }
    lab.run(&[
        "ctl",
        "patch",
        "ippool",
        "lab-ipv4-1",
        "-p",
        r#"{"spec": {"ipipMode": "Never", "vxlanMode": "Always"}}"#,
    ]);
    lab.run(&[
        "ctl",
        "patch",
        "felixconfiguration",
        "default",
        "-p",
        r#"{"spec": {"wireguardEnabled": false}}"#,
    ]);
    eventually(&lab, "a mode that is not configured is not missing", || {
        !health().contains("not in force") && !analyze().contains("not in force")
    });
}

#[test]
fn pools_without_routes_are_reported() {
    let lab = TestLab::up(&["--nodes", "2", "--bgp", "mesh"]);
    let one = lab.add("one", "node1", &[]);
    let two = lab.add("two", "node2", &[]);
    let both = || lab.pings("one", family(&two, false)) && lab.pings("two", family(&one, false));
    eventually(&lab, "the mesh connects the pods", both);
    let health = |node: &str| {
        let output = lab.output(&["exec", node, "--", "tortie", "health"]);
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let analyze = || {
        let output = lab.output(&["exec", "node1", "--", "tortie", "analyze"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(
        !health("node1").1.contains("warning    routes: ") && !analyze().contains("IPPool"),
        "{}",
        analyze()
    );

    lab.apply(
        "{apiVersion: projectcalico.org/v3, kind: BGPConfiguration, metadata: {name: default}, spec: {nodeToNodeMeshEnabled: false}}",
    );
    eventually(&lab, "without the mesh pods are disconnected", || !both());
    let unrouted = "IPPool(lab-ipv4-1): pods on other nodes are unreachable: the pool has no encapsulation";
    for node in ["node1", "node2"] {
        eventually(&lab, "health names the pool and the node stays ready", || {
            let (healthy, text) = health(node);
            let line = text.lines().find(|line| line.starts_with("warning    routes: "));
            healthy && line.is_some_and(|line| line.contains(unrouted) && line.contains("BGP has no peers"))
        });
    }
    eventually(&lab, "analyze names the pool once for both nodes", || {
        let text = analyze();
        text.matches(unrouted).count() == 1 && text.contains("(on node1, node2)")
    });
    // The first of the settings that the advice names.
    lab.vxlan_mode("Always");
    eventually(&lab, "the advice connects the pods", both);
    eventually(&lab, "nothing is reported any more", || {
        !health("node1").1.contains("warning    routes: ") && !analyze().contains("IPPool")
    });
}
