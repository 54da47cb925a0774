//! Policy for containers that another plugin attaches: Debian's `ptp`, and `bridge` with one bridge per container.

use crate::world::{NodeFixture, TestNamespace, eventually};
use serde_json::{Value, json};
use tortie_testkit::output;

const PLUGIN_DIRECTORY: &str = "/usr/lib/cni";
const POLICY_ONLY_ENVIRONMENT: [(&str, &str); 3] = [
    ("CALICO_NETWORKING_BACKEND", "none"),
    ("FELIX_INTERFACEPREFIX", "veth,cbr"),
    ("FELIX_ROUTESYNCDISABLED", "true"),
];

/// A container attached by another plugin.
struct ForeignContainer {
    namespace: TestNamespace,
    interface: String,
    addresses: Vec<String>,
    /// The complete result of the other plugin.
    result: Value,
}

fn wire(world: &NodeFixture, name: &str, config: Value) -> ForeignContainer {
    let namespace = world.container();
    let plugin = format!("{PLUGIN_DIRECTORY}/{}", config["type"].as_str().unwrap());
    let mut command = world.host.command(&plugin);
    for (variable, value) in [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", name),
        ("CNI_NETNS", &namespace.path()),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", PLUGIN_DIRECTORY),
    ] {
        command.env(variable, value);
    }
    let output = output(&mut command, &config.to_string());
    assert!(output.status.success(), "{plugin}: {}", String::from_utf8_lossy(&output.stdout));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let interface = result["interfaces"][0]["name"].as_str().unwrap().to_owned();
    let address = |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
    let addresses = result["ips"].as_array().unwrap().iter().map(address).collect();
    ForeignContainer { namespace, interface, addresses, result }
}

fn network(world: &NodeFixture, plugin: &str, number: u8) -> Value {
    let subnets = [format!("10.55.{number}.0/24"), format!("fd55:{number}::/64")];
    let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    json!({
        "cniVersion": "0.4.0", "name": format!("net{number}"), "type": plugin,
        "bridge": format!("cbr{number}"), "isGateway": true,
        "ipam": {
            "type": "host-local", "dataDir": world.path("host-local"), "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        },
    })
}

/// Returns the endpoint that the program that attached the container would store.
fn endpoint(wired: &ForeignContainer, name: &str) -> String {
    let networks: Vec<String> = wired
        .addresses
        .iter()
        .map(|address| format!("{address}/{}", if address.contains(':') { 128 } else { 32 }))
        .collect();
    json!({
        "apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint",
        "metadata": {"name": format!("n1-cni-{name}-eth0"), "namespace": "default", "labels": {"name": name}},
        "spec": {
            "node": "n1", "orchestrator": "cni", "containerID": name, "endpoint": "eth0",
            "interfaceName": wired.interface, "ipNetworks": networks, "profiles": ["open"],
        },
    })
    .to_string()
}

fn policy(rules: Value) -> String {
    json!({
        "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "guard"},
        "spec": {"selector": "name in {'b', 'd'}", "types": ["Ingress"], "ingress": rules},
    })
    .to_string()
}

/// Returns the routes, neighbours, sysctls and links of the other plugin and the kernel, without parts that change by
/// themselves.
fn theirs(world: &NodeFixture, wired: &[ForeignContainer]) -> Vec<String> {
    let mut theirs = Vec::new();
    for family in ["-4", "-6"] {
        theirs.extend(world.host.ip(&[family, "route", "show", "table", "all"]).lines().map(str::to_owned));
    }
    theirs.extend(world.host.ip("neigh show nud permanent").lines().map(str::to_owned));
    for wired in wired {
        for key in [
            "ipv4/conf/IF/proxy_arp",
            "ipv4/conf/IF/rp_filter",
            "ipv6/conf/IF/accept_ra",
            "ipv6/conf/IF/proxy_ndp",
        ] {
            let key = format!("net/{}", key.replace("IF", &wired.interface));
            theirs.push(format!("{key} = {}", world.host.sysctl(&key)));
        }
        let link = &world.host.json(&format!("link show dev {}", wired.interface))[0];
        theirs.push(format!("{} {} {}", link["ifname"], link["address"], link["mtu"]));
    }
    // The kernel adds and removes multicast, link-local and anycast routes on its own.
    theirs.retain(|line| !line.contains("multicast") && !line.contains("fe80") && !line.contains("anycast"));
    theirs.sort();
    theirs
}

#[test]
fn policy_only_leaves_foreign_containers_unchanged() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    for switch in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
        world.host.exec(&["sysctl", "-qw", switch]);
    }
    let wired = [
        wire(&world, "a", network(&world, "ptp", 1)),
        wire(&world, "b", network(&world, "ptp", 2)),
        wire(&world, "c", network(&world, "bridge", 3)),
        wire(&world, "d", network(&world, "bridge", 4)),
    ];
    let [a, b, c, d] = &wired;
    assert!(a.interface.starts_with("veth") && c.interface == "cbr3", "{} {}", a.interface, c.interface);
    let reaches = |from: &ForeignContainer, to: &ForeignContainer| -> Vec<bool> {
        let pings = |address: &String| from.namespace.reaches(address);
        to.addresses.iter().map(pings).collect()
    };
    let all = |from: &ForeignContainer, to: &ForeignContainer, expected: bool, why: &str| {
        eventually(why, || reaches(from, to) == [expected, expected]);
    };
    all(a, b, true, "without us they reach each other");
    all(a, d, true, "without us they reach each other");
    all(c, d, true, "without us they reach each other");
    let before = theirs(&world, &wired);

    world.start(&POLICY_ONLY_ENVIRONMENT);
    all(a, b, false, "an interface with our prefix and no endpoint is closed");
    let open = "{apiVersion: projectcalico.org/v3, kind: Profile, metadata: {name: open}, spec: {ingress: [{action: Allow}], egress: [{action: Allow}]}}";
    world.calicoctl(&["apply", "-f", "-"], open);
    for (wired, name) in wired.iter().zip(["a", "b", "c", "d"]) {
        world.calicoctl(&["apply", "-f", "-"], &endpoint(wired, name));
    }
    for (from, to) in [(a, b), (b, a), (a, d), (c, d), (d, c)] {
        all(from, to, true, "their profile opens them");
    }
    world.calicoctl(
        &["apply", "-f", "-"],
        &policy(json!([{"action": "Allow", "source": {"selector": "name == 'c'"}}])),
    );
    all(a, b, false, "b is closed to a");
    all(a, d, false, "d is closed to a");
    all(c, b, true, "and open to c");
    all(c, d, true, "and open to c");
    all(b, a, true, "a is guarded by nothing");

    // A container can send only from its own addresses.
    a.namespace.ip("addr add 10.55.1.99/32 dev eth0");
    let ping = |source: &str| {
        let words = ["ping", "-n", "-c", "1", "-w", "2", "-I", source, &c.addresses[0]];
        a.namespace.try_exec(&words).status.success()
    };
    eventually("its own source is good", || ping(&a.addresses[0]));
    assert!(!ping("10.55.1.99"), "a source that is not its own");

    world.stop();
    all(a, b, false, "a daemon that is gone opens nothing");
    world.start(&POLICY_ONLY_ENVIRONMENT);
    all(c, b, true, "a daemon that is back closes nothing");
    all(a, d, false, "nor opens anything");
    assert_eq!(theirs(&world, &wired), before, "{}", world.log());
}

/// Chained after the plugin that attaches the containers, our plugin only enforces policy.
#[test]
fn chained_plugin_enforces_only_policy() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    for switch in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
        world.host.exec(&["sysctl", "-qw", switch]);
    }
    world.start(&POLICY_ONLY_ENVIRONMENT);
    let wired = [wire(&world, "a", network(&world, "ptp", 1)), wire(&world, "b", network(&world, "ptp", 2))];
    let [a, b] = &wired;
    eventually("the kernel believes that the gateways' addresses are nobody else's", || {
        let lines = theirs(&world, &wired);
        ["local fd55:1::1 ", "local fd55:2::1 "]
            .iter()
            .all(|start| lines.iter().any(|line| line.starts_with(start)))
    });
    let before = theirs(&world, &wired);
    let base = world.config();
    let config = |wired: &ForeignContainer, name: &str| {
        let mut config = base.clone();
        config["cniVersion"] = "0.4.0".into();
        config["ipam"] = Value::Null;
        config["tortie_labels"] = json!({ "name": name });
        config["prevResult"] = wired.result.clone();
        config
    };
    let reaches = |expected: bool, why: &str| {
        let pings = |address: &String| a.namespace.reaches(address);
        eventually(why, || b.addresses.iter().all(|address| pings(address) == expected));
    };
    reaches(false, "they are closed until policy is in force");
    for (wired, name) in [(a, "a"), (b, "b")] {
        let said = world.must("ADD", name, &wired.namespace.path(), &config(wired, name));
        assert_eq!(said.addresses(), wired.addresses);
        assert_eq!(said.json["interfaces"][0]["name"], wired.interface.as_str());
    }
    reaches(true, "the profile of their network opens them");
    world.calicoctl(&["apply", "-f", "-"], &policy(json!([])));
    reaches(false, "b is closed by a policy");
    world.stop();
    world.start(&POLICY_ONLY_ENVIRONMENT);
    reaches(false, "a daemon that is back knows whose interface it is");
    world.calicoctl(&["delete", "gnp", "guard"], "");
    reaches(true, "and lets pass what may");
    assert_eq!(theirs(&world, &wired), before, "{}", world.log());

    world.must("CHECK", "a", &a.namespace.path(), &config(a, "a"));
    let mut stranger = config(a, "c");
    stranger["prevResult"]["interfaces"][0]["name"] = "eni1".into();
    let refused = world.cni("ADD", "c", &a.namespace.path(), &stranger);
    assert!(refused.json["details"].as_str().is_some_and(|text| text.contains("eni1")), "{}", refused.json);
    for (wired, name) in [(a, "a"), (b, "b")] {
        world.must("DEL", name, &wired.namespace.path(), &config(wired, name));
        // The interface belongs to the other plugin and must stay.
        world.host.json(&format!("link show dev {}", wired.interface));
    }
    assert_eq!(theirs(&world, &wired), before, "{}", world.log());
    reaches(false, "what is no workload any more is closed");
    world.assert_clean("DEL");
}
