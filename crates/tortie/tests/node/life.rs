//! Containers are attached, exchange traffic and are detached.

use crate::world::{NodeFixture, eventually};
use serde_json::json;
use std::os::unix::fs::symlink;

#[test]
fn a_container_has_network_until_it_goes() {
    let world = NodeFixture::new();
    let (one, two) = (world.container(), world.container());
    let config = world.config();
    let first = world.must("ADD", "c1", &one.path(), &config);
    let second = world.must("ADD", "c2", &two.path(), &config);
    assert_eq!(first.json["interfaces"][0]["name"], "calic1");
    for address in second.addresses() {
        assert!(one.pings(&address), "{address}\n{}{}", world.host.ip(&["route"]), world.log());
    }
    let again = world.must("ADD", "c1", &one.path(), &config);
    assert_eq!(again.json, first.json, "the same again is answered with the same");
    assert!(world.host.ip(&["route"]).contains("blackhole 10.77.0."), "own blocks go nowhere");

    let mut checked = config.clone();
    checked["prevResult"] = first.json.clone();
    world.must("CHECK", "c1", &one.path(), &checked);
    one.ip(&["addr", "del", &format!("{}/32", first.addresses()[0]), "dev", "eth0"]);
    assert!(!world.cni("CHECK", "c1", &one.path(), &checked).success, "a lost address is noticed");

    for container in ["c1", "c1", "c2", "never-there"] {
        world.must("DEL", container, &one.path(), &config);
    }
    world.must("DEL", "c2", "", &config);
    assert!(!one.ip(&["link"]).contains("eth0"));
    world.assert_clean("DEL");
}

#[test]
fn cni_check_status_and_gc_work() {
    let world = NodeFixture::new();
    let (one, two) = (world.container(), world.container());
    let mut config = world.config();
    world.await_status();
    world.must("ADD", "c1", &one.path(), &config);
    world.must("ADD", "c2", &two.path(), &config);
    config["cni.dev/valid-attachments"] = json!([{"containerID": "c1", "ifname": "eth0"}]);
    world.must("GC", "", "", &config);
    assert_eq!(world.traces().iter().filter(|trace| trace.starts_with("cali")).count(), 1);
    world.must("CHECK", "c1", &one.path(), &config);
    config["cni.dev/valid-attachments"] = json!([]);
    world.must("GC", "", "", &config);
    world.assert_clean("GC");
    config["cniVersion"] = json!("1.0.0");
    assert_eq!(world.cni("GC", "", "", &config).code(), 1);
}

#[test]
fn results_and_addresses_are_as_asked_for() {
    let world = NodeFixture::new();
    let pod = world.container();
    let mut config = world.config();
    config["cniVersion"] = json!("0.2.0");
    config["ipam"] = json!({"type": "calico-ipam"});
    config["mtu"] = json!(1400);
    config["tortie_labels"] = json!({"role": "web"});
    let text = config.to_string();
    let args = "IP=10.77.0.99;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-7d9f-x2kq4";
    let said = world.plugin("calico", "ADD", "c1", &pod.path(), &text, args);
    assert_eq!(said.json["ip4"]["ip"], "10.77.0.99/32", "{said:?}");
    assert!(world.host.ip(&["link"]).contains("calif3fcd31e183"));
    assert!(pod.ip(&["link", "show", "eth0"]).contains("mtu 1400"));
    let endpoints = world.calicoctl(&["get", "wep", "-A", "-o", "yaml"], "");
    for part in ["role: web", "namespace: shop", "pod: cart-7d9f-x2kq4", "orchestrator: k8s"] {
        assert!(endpoints.contains(part), "{part} is not in {endpoints}");
    }
    let other = world.container();
    let taken = world.plugin("calico", "ADD", "c2", &other.path(), &text, "IP=10.77.0.99");
    assert_eq!(taken.code(), 999, "{taken:?}");
    // A new sandbox of the same pod takes over; deleting the old one does not affect it.
    let newer = args.replace("10.77.0.99", "10.77.0.98");
    let said = world.plugin("calico", "ADD", "c3", &other.path(), &text, &newer);
    assert!(said.success, "{said:?}");
    let old = world.plugin("calico", "DEL", "c1", &pod.path(), &text, args);
    assert!(old.success, "{old:?}");
    assert!(world.host.ip(&["route"]).contains("10.77.0.98 dev calif3fcd31e183"), "{}", world.log());
    assert!(world.plugin("calico", "DEL", "c3", &other.path(), &text, &newer).success);
    world.assert_clean("DEL");
}

#[test]
fn addresses_alone_can_be_had_too() {
    let world = NodeFixture::new();
    let text = world.config().to_string();
    let ipam = |command: &str| world.plugin("calico-ipam", command, "c1", "/none", &text, "");
    let first = ipam("ADD");
    assert_eq!(first.addresses().len(), 2, "{first:?}");
    assert_eq!(ipam("ADD").json, first.json);
    for _ in 0..2 {
        assert!(ipam("DEL").success);
    }
    world.assert_clean("DEL");
}

#[test]
fn endpoints_of_others_are_programmed_just_the_same() {
    let world = NodeFixture::new();
    let pod = world.container();
    world.host.ip(&[
        "link",
        "add",
        "califoreign",
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "netns",
        pod.name(),
    ]);
    world.host.ip(&["link", "set", "califoreign", "up"]);
    pod.ip(&["link", "set", "eth0", "up"]);
    let endpoint = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint",
        "metadata": {"name": "n1-other-vm1-eth0", "namespace": "default"},
        "spec": {"node": "n1", "orchestrator": "other", "workload": "vm1", "endpoint": "eth0",
                 "interfaceName": "califoreign", "ipNetworks": ["10.77.0.200/32"]},
    });
    world.calicoctl(&["apply", "-f", "-"], &endpoint.to_string());
    let routed = || world.host.ip(&["route"]).contains("10.77.0.200 dev califoreign");
    eventually("the route appears", routed);
    world.host.ip(&["route", "del", "10.77.0.200"]);
    eventually("the route is restored", routed);
    world.calicoctl(&["delete", "-f", "-"], &endpoint.to_string());
    eventually("the route goes", || !routed());
}

#[test]
fn addresses_can_come_from_another_plugin() {
    let world = NodeFixture::new();
    let pod = world.container();
    // Debian's unmodified host-local plugin.
    symlink("/usr/lib/cni/host-local", world.dir.path().join("bin/host-local")).unwrap();
    let data = world.dir.path().join("host-local");
    let mut config = world.config();
    config["ipam"] = json!({
        "type": "host-local", "dataDir": data, "routes": [{"dst": "10.0.0.0/8"}, {"dst": "fd00::/8"}],
        "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd88::/64"}]],
    });
    config["cniVersion"] = json!("1.0.0");
    let said = world.must("ADD", "c1", &pod.path(), &config);
    let held = || {
        let files = std::fs::read_dir(data.join("net")).unwrap();
        let names = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.contains("88")).filter(|name| !name.starts_with("last_")).count()
    };
    let addresses = said.addresses();
    assert!(addresses[0].starts_with("10.88.0.") && addresses[1].starts_with("fd88::"), "{addresses:?}");
    assert_eq!(held(), 2);
    assert!(pod.ip(&["route"]).contains("10.0.0.0/8 via 169.254.1.1"));
    assert!(world.host.ip(&["route"]).contains(&format!("{} dev calic1", addresses[0])));
    let second = world.container();
    for address in world.must("ADD", "c2", &second.path(), &config).addresses() {
        assert!(pod.pings(&address), "{address}\n{}", world.log());
    }
    // A request that the IPAM plugin rejects fails and leaves nothing behind.
    let before = world.traces();
    let mut full = config.clone();
    full["ipam"]["ranges"] =
        json!([[{"subnet": "10.88.0.0/24", "rangeStart": "10.88.0.2", "rangeEnd": "10.88.0.2"}]]);
    let other = world.container();
    assert!(!world.cni("ADD", "c3", &other.path(), &full).success);
    assert_eq!((world.traces(), held()), (before, 4));
    for (container, namespace) in [("c1", &pod), ("c2", &second), ("c2", &second)] {
        world.must("DEL", container, &namespace.path(), &config);
    }
    assert_eq!(held(), 0);
    world.assert_clean("DEL");
}

#[test]
fn what_happens_is_reported() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let reporting = [("FELIX_ENDPOINTREPORTINGENABLED", "true"), ("FELIX_HEALTHENABLED", "true")];
    // Settings can also be in felix.cfg; an environment variable takes precedence.
    std::fs::create_dir_all(world.dir.path().join("state")).unwrap();
    let settings = "[global]\nPrometheusMetricsEnabled = true\nHealthEnabled = false\n";
    std::fs::write(world.dir.path().join("state/felix.cfg"), settings).unwrap();
    world.start(&reporting);
    let pod = world.container();
    let config = world.config();
    let added = world.must("ADD", "c1", &pod.path(), &config);
    let key = "/calico/felix/v2/no-region/host/n1/workload/cni/default%2fc1/endpoint/eth0";
    eventually("the endpoint is said to be up", || world.stored_at(key) == r#"{"status":"up"}"#);
    let file = world.dir.path().join("run/endpoint-status/cni default%2Fc1 eth0");
    let file =
        || serde_json::from_str(&std::fs::read_to_string(&file).unwrap_or_default()).unwrap_or(json!({}));
    eventually("it has a file that says so", || file()["ifaceName"] == "calic1");
    assert_eq!(file()["ipv4Nets"], json!([format!("{}/32", added.addresses()[0])]));
    // A restart keeps the file and removes that of an endpoint that no longer exists.
    let stale = world.dir.path().join("run/endpoint-status/cni default%2Fc0 eth0");
    std::fs::write(&stale, "{}").unwrap();
    world.start(&reporting);
    eventually("the file of nobody goes", || !stale.exists());
    assert_eq!(file()["ifaceName"], "calic1");
    let page = |url: &str| {
        let output = world.host.try_exec(&["curl", "-s", "-w", "%{http_code}", url]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    eventually("the node is ready", || page("http://localhost:9099/readiness").ends_with("200"));
    assert!(page("http://localhost:9099/liveness").ends_with("200"));
    let metrics = page("http://localhost:9091/metrics");
    assert!(metrics.contains("felix_active_local_endpoints 1"), "{metrics}");
    let host_endpoint = |name: &str, interface: &str| {
        let head =
            format!("apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {{name: {name}}}");
        let object = format!("{{{head}, spec: {{node: n1, interfaceName: {interface}}}}}");
        world.calicoctl(&["apply", "-f", "-"], &object);
    };
    host_endpoint("uplink", "eth0");
    host_endpoint("spare", "eth9");
    let host_status = |name: &str| world.stored_at(&format!("/calico/felix/v1/host/n1/endpoint/{name}"));
    eventually("a host endpoint is up with its interface", || host_status("uplink") == r#"{"status":"up"}"#);
    eventually("and down without", || host_status("spare") == r#"{"status":"down"}"#);
    world.calicoctl(&["delete", "hostendpoint", "uplink", "spare"], "");
    eventually("they are no longer spoken of", || (host_status("uplink") + &host_status("spare")).is_empty());
    world.must("DEL", "c1", &pod.path(), &config);
    eventually("the endpoint is no longer spoken of", || world.stored_at(key).is_empty());
    eventually("its file is gone", || file() == json!({}));
}

/// The process keeps its name and arguments; only the number of malloc arenas is limited.
#[test]
fn a_node_has_few_heaps_by_default() {
    for (set, has) in [(None, "3"), (Some(("MALLOC_ARENA_MAX", "5")), "5")] {
        let mut world = NodeFixture::without_node("10.77.0.0/24");
        world.start(set.as_slice());
        let of = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", world.pid())).unwrap();
        let environment = of("environ");
        let set: Vec<&str> =
            environment.split('\0').filter_map(|set| set.strip_prefix("MALLOC_ARENA_MAX=")).collect();
        assert_eq!(set, [has]);
        assert_eq!(of("comm"), "tortie\n");
        assert!(of("cmdline").contains("\0node\0"), "{}", of("cmdline"));
    }
}
