//! Live migration of virtual machines: announcements for a machine that arrives, and routes to one that has left.

use crate::router::{BirdRouter, NODE_AS, RouterConfig};
use crate::world::PeeringFixture;
use serde_json::json;
use tortie_testkit::{TestNamespace, eventually_showing};

const MACHINE_ADDRESSES: [&str; 2] = ["10.77.0.200", "fd77::c8"];
const MIGRATION_KEY: &str =
    "/calico/resources/v3/projectcalico.org/livemigrations/default/n1-openstack-vm-port";
/// LOCAL_PREF of metrics 512 and 1024.
const ELEVATED_LOCAL_PREF: &str = "BGP.local_pref: 2147483135";
const NORMAL_LOCAL_PREF: &str = "BGP.local_pref: 2147482623";

/// Starts a router in the node's own AS: only internal peers receive LOCAL_PREF.
fn internal(world: &PeeringFixture, announces: Vec<(String, String)>) -> BirdRouter {
    let router = world.router(RouterConfig { number: 2, asn: NODE_AS, announces, ..RouterConfig::default() });
    world.peer("router", &router, NODE_AS, &json!({}));
    world.wait_until_up(&router);
    router
}

/// Returns the attributes of the routes to the machine at the router, per family.
fn heard(router: &BirdRouter) -> [String; 2] {
    [false, true].map(|v6| {
        let own = |net: &str| net.split('/').next() == Some(MACHINE_ADDRESSES[usize::from(v6)]);
        let mut routes = router.heard(v6).into_iter();
        routes.find(|(net, _)| own(net)).map(|(_, attributes)| attributes).unwrap_or_default()
    })
}

fn kernel(world: &PeeringFixture, address: &str) -> String {
    let family = if address.contains(':') { "-6" } else { "-4" };
    world.host.ip(&format!("{family} route show {address}"))
}

fn end(host: &str) -> serde_json::Value {
    json!({"workloadEndpoint": {
        "hostname": host, "orchestratorID": "openstack", "workloadID": "default/vm", "endpointID": "port",
    }})
}

#[test]
fn migrated_machines_are_announced_with_a_better_preference() {
    let world = PeeringFixture::new();
    world.apply("FelixConfiguration", "default", &json!({"liveMigrationRouteConvergenceTime": "2s"}));
    let router = internal(&world, Vec::new());
    let machine = TestNamespace::new("vm");
    world.host.ip(&format!("link add cali77 type veth peer name eth0 netns {}", machine.name()));
    world.host.ip("link set cali77 up");
    machine.ip(&format!("addr add {}/32 dev eth0", MACHINE_ADDRESSES[0]));
    machine.exec(&["sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/eth0/arp_notify"]);
    machine.ip("link set eth0 up");
    // As OpenStack's plugin writes them, in this order.
    let migration = json!({
        "kind": "LiveMigration", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "n1-openstack-vm-port", "namespace": "default"},
        "spec": {"source": end("n2"), "target": end("n1")},
    });
    world.etcdctl(&["put", MIGRATION_KEY, &migration.to_string()]);
    let endpoint = json!({
        "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "n1-openstack-vm-port", "namespace": "default"},
        "spec": {
            "node": "n1", "orchestrator": "openstack", "workload": "vm", "endpoint": "port",
            "interfaceName": "cali77", "ipNetworks": [format!("{}/32", MACHINE_ADDRESSES[0]), format!("{}/128", MACHINE_ADDRESSES[1])],
        },
    });
    world.calicoctl(&["apply", "-f", "-"], &endpoint.to_string());
    let routes = || MACHINE_ADDRESSES.map(|address| kernel(&world, address));
    let picture = || format!("{:?}\n{:?}\n{}", routes(), heard(&router), world.picture());
    let guarded = || world.host.exec("nft list table inet tortie").contains("cali77");
    eventually_showing("its policy is there", guarded, picture);
    assert_eq!(routes().concat(), "", "it runs elsewhere\n{}", picture());
    assert_eq!(heard(&router).concat(), "", "{}", picture());

    let better = || routes().iter().all(|route| route.contains("dev cali77") && route.contains("metric 512"));
    let announced = || {
        if !better() {
            machine.ip("link set eth0 down");
            machine.ip("link set eth0 up");
        }
        better()
    };
    eventually_showing("it says that it runs and gets better routes", announced, picture);
    let all = |text: &str| heard(&router).iter().all(|attributes| attributes.contains(text));
    eventually_showing("the router hears of it", || all(ELEVATED_LOCAL_PREF), picture);

    world.etcdctl(&["del", MIGRATION_KEY]);
    let normal =
        || routes().iter().all(|route| route.contains("dev cali77") && route.contains("metric 1024"));
    eventually_showing("routes have settled", || normal() && all(NORMAL_LOCAL_PREF), picture);
}

#[test]
fn migrated_machines_are_reached_at_their_new_node() {
    let mut world = PeeringFixture::new();
    let pools = ["default-ipv4-ippool", "default-ipv6-ippool"];
    let addresses = world.pod("machine", pools);
    let announces = addresses
        .iter()
        .zip([32, 128])
        .map(|(address, length)| (format!("{address}/{length}"), "bgp_local_pref = 2147483135;".to_owned()));
    let router = internal(&world, announces.collect());
    let routes = || [kernel(&world, &addresses[0]), kernel(&world, &addresses[1])];
    let picture = || format!("{:?}\n{}", routes(), world.picture());
    let there = || {
        let gone = |route: &String| route.contains("metric 512") && !route.contains("dev cali");
        routes().iter().all(gone)
    };
    eventually_showing("it is reached at the router", there, picture);
    router.announce(false);
    let here = || routes().iter().all(|route| route.contains("dev cali") && route.contains("metric 1024"));
    eventually_showing("it is back", here, picture);
}
