//! Adopting containers that Calico attached. Keys, IPAM records and interfaces are identical to Calico's byte for
//! byte, so a container of Calico differs from one that Tortie attached only by the missing journal record.

use crate::world::{NodeFixture, TestNamespace, eventually};
use serde_json::json;
use tortie_testkit::TestProcess;

const ENDPOINT_WITHOUT_INTERFACE: &str = "{apiVersion: projectcalico.org/v3, kind: WorkloadEndpoint, metadata: {name: n1-cni-gone-eth0, \
    namespace: default}, spec: {node: n1, orchestrator: cni, containerID: gone, endpoint: eth0, interfaceName: caligone, \
    ipNetworks: [10.77.0.250/32], profiles: [net]}}";
/// An endpoint whose interface exists but belongs to the host.
const ENDPOINT_ON_HOST_INTERFACE: &str = "{apiVersion: projectcalico.org/v3, kind: WorkloadEndpoint, metadata: {name: n1-cni-evil-eth0, \
    namespace: default}, spec: {node: n1, orchestrator: cni, containerID: evil, endpoint: eth0, interfaceName: wire0, \
    ipNetworks: [10.77.0.251/32], profiles: [net]}}";

fn records(world: &NodeFixture) -> Vec<String> {
    let entries = std::fs::read_dir(world.path("state/attachments")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Deletes the journal, as if another program had attached all containers.
fn forget(world: &mut NodeFixture) {
    world.stop();
    std::fs::remove_dir_all(world.path("state/attachments")).unwrap();
}

#[test]
fn containers_of_calico_are_adopted_at_start() {
    let mut world = NodeFixture::new();
    let config = world.config();
    let (named, unnamed) = (world.container(), world.container());
    let added = world.must("ADD", "c1", &named.path(), &config);
    let hidden = world.must("ADD", "c2", &unnamed.path(), &config);
    // This namespace has no name: as with Docker, only a process keeps it.
    let process = TestProcess::start(unnamed.command("sleep").arg("600"));
    let netns = format!("/proc/{}/ns/net", process.id());
    eventually("the process is in the namespace", || {
        std::fs::read_to_string(format!("/proc/{}/comm", process.id()))
            .is_ok_and(|name| name.trim() == "sleep")
    });
    std::process::Command::new("ip").args(["netns", "del", unnamed.name()]).status().unwrap();
    forget(&mut world);
    for endpoint in [ENDPOINT_WITHOUT_INTERFACE, ENDPOINT_ON_HOST_INTERFACE] {
        world.calicoctl(&["apply", "-f", "-"], endpoint);
    }
    world.start(&[]);
    world.await_status();
    assert_eq!(records(&world), ["c1:eth0.json", "c2:eth0.json"], "{}", world.log());
    eventually("the endpoint with an interface of the host is reported", || {
        world.ask("health").to_string().contains("interfaceName wire0 does not begin with cali")
    });

    // A repeated ADD returns the same result and tears nothing down.
    for (container, netns, before) in [("c1", named.path(), &added), ("c2", netns.clone(), &hidden)] {
        let again = world.must("ADD", container, &netns, &config);
        assert_eq!(again.addresses(), before.addresses());
        assert_eq!(again.json["interfaces"][1]["mac"], before.json["interfaces"][1]["mac"]);
        assert_eq!(again.json["interfaces"][1]["sandbox"], json!(netns));
        world.must("CHECK", container, &netns, &config);
    }
    assert!(added.addresses().iter().all(|address| world.host.pings(address)), "{}", world.log());
    // Another network shares the interface that Calico created.
    let mut other = config.clone();
    other["name"] = json!("other");
    assert_eq!(world.must("ADD", "c1", &named.path(), &other).addresses(), added.addresses());
    world.must("DEL", "c1", &named.path(), &other);
    // Garbage collection by the runtime keeps the attachments that it lists.
    let mut garbage = config.clone();
    garbage["cni.dev/valid-attachments"] = json!([{"containerID": "c1", "ifname": "eth0"}]);
    world.must("GC", "", "", &garbage);
    assert_eq!(records(&world), ["c1:eth0.json"]);
    assert!(world.host.has_link("calic1") && !world.host.has_link("calic2"));
    world.must("DEL", "c1", &named.path(), &config);
    for name in ["n1-cni-gone-eth0", "n1-cni-evil-eth0"] {
        world.calicoctl(&["delete", "workloadendpoint", name], "");
    }
    assert!(world.host.has_link("wire0"));
    world.assert_clean("adopted containers are deleted");
}

#[test]
fn endpoints_of_other_tools_stay_theirs() {
    let world = NodeFixture::new();
    let pod: TestNamespace = world.container();
    world.host.ip(&format!("link add calitool type veth peer name eth0 netns {}", pod.name()));
    world.host.ip("link set calitool up");
    pod.ip("link set eth0 up");
    pod.ip("addr add 10.77.0.250/32 dev eth0");
    world.calicoctl(&["apply", "-f", "-"], &ENDPOINT_WITHOUT_INTERFACE.replace("caligone", "calitool"));
    eventually("the endpoint is programmed", || world.host.ip(&["route"]).contains("calitool"));
    // A request for the container checks the endpoints that may be adopted.
    let refused = world.cni("CHECK", "gone", &pod.path(), &world.config());
    assert!(!refused.success && records(&world).is_empty(), "{refused:?}");
    world.calicoctl(&["delete", "workloadendpoint", "n1-cni-gone-eth0"], "");
    eventually("the endpoint is gone", || !world.host.ip(&["route"]).contains("calitool"));
}

#[test]
fn endpoints_that_appear_later_are_adopted() {
    let mut world = NodeFixture::new();
    let config = world.config();
    let pod: TestNamespace = world.container();
    let added = world.must("ADD", "c1", &pod.path(), &config);
    let endpoint =
        world.calicoctl(&["get", "workloadendpoint", "n1-cni-c1-eth0", "-o", "yaml", "--export"], "");
    forget(&mut world);
    world.calicoctl(&["delete", "workloadendpoint", "n1-cni-c1-eth0"], "");
    world.start(&[]);
    world.await_status();
    assert!(records(&world).is_empty());
    // Without an endpoint nothing is adopted, and nothing is torn down either.
    let refused = world.cni("ADD", "c1", &pod.path(), &config);
    assert!(
        !refused.success && refused.json["msg"].as_str().unwrap().contains("already exists"),
        "{refused:?}"
    );
    assert!(world.host.has_link("calic1") && world.stored("--keys-only").contains("/handle/net.c1"));
    world.calicoctl(&["apply", "-f", "-"], &endpoint);
    eventually("the container is adopted", || records(&world) == ["c1:eth0.json"]);
    assert_eq!(world.must("ADD", "c1", &pod.path(), &config).addresses(), added.addresses());
    // If the datastore loses the endpoint now, the container keeps its network and the endpoint is written back.
    world.calicoctl(&["delete", "workloadendpoint", "n1-cni-c1-eth0"], "");
    eventually("the endpoint is written back", || world.stored("--keys-only").contains("n1-cni-c1-eth0"));
    world.must("DEL", "c1", &pod.path(), &config);
    world.assert_clean("an adopted container is deleted");
}
