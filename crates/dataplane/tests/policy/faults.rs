//! Unusual datastores: contradictory, empty or very large policies, from the stored objects to real packets.

use crate::cluster::{PolicyEntry, PolicyNode, gnp, namespace, object};
use crate::namespace::{OpenNetns, TestNamespace, start};
use crate::plans::{POD_ONE_ADDRESSES, POD_TWO_ADDRESSES, reaches, two_pods};
use serde_json::{Value as Json, json};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;
use tortie_dataplane::{DataplaneHandle, ReportReceiver};
use tortie_model::{Kind, Resource, StoreValue};
use tortie_testkit::bind_when_free;

/// Returns an endpoint of this node in a namespace that allows everything.
fn endpoint(number: u8, labels: Json, addresses: &[&str]) -> PolicyEntry {
    let nets: Vec<String> = addresses
        .iter()
        .map(|address| format!("{address}/{}", if address.contains(':') { 128 } else { 32 }))
        .collect();
    let spec = json!({"orchestrator": "k8s", "node": "n1", "pod": format!("p{number}"), "endpoint": "eth0",
        "interfaceName": format!("cali{number}"), "ipNetworks": nets, "profiles": ["kns.shop"]});
    object(Kind::WorkloadEndpoint, "shop", &format!("n1-k8s-p{number}-eth0"), labels, spec)
}

/// A node whose kernel follows a datastore with pods one and two in a namespace that allows everything.
struct DatastoreFixture {
    node: TestNamespace,
    one: TestNamespace,
    two: TestNamespace,
    view: PolicyNode,
    dataplane: (DataplaneHandle, ReportReceiver),
}

impl DatastoreFixture {
    async fn new() -> DatastoreFixture {
        let (node, one, two) = two_pods().await;
        let dataplane = start(&node).await;
        let view = PolicyNode::with(&[
            namespace("shop", json!({})),
            endpoint(1, json!({"role": "client"}), &POD_ONE_ADDRESSES),
            endpoint(2, json!({"role": "server"}), &POD_TWO_ADDRESSES),
        ]);
        dataplane.0.replace(view.plan.clone()).await.unwrap();
        let world = DatastoreFixture { node, one, two, view, dataplane };
        world.is(true, true, "a datastore without policies");
        world
    }

    async fn put(&mut self, entries: &[PolicyEntry]) {
        let updates = self.view.put(entries);
        assert_eq!(self.dataplane.0.apply(updates).await.unwrap().failures, []);
    }

    async fn delete(&mut self, entry: &PolicyEntry) {
        let updates = self.view.delete(entry);
        assert_eq!(self.dataplane.0.apply(updates).await.unwrap().failures, []);
    }

    /// Asserts whether pod one reaches pod two over IPv4 and IPv6.
    #[track_caller]
    fn is(&self, v4: bool, v6: bool, what: &str) {
        assert_eq!(
            (reaches(&self.one, POD_TWO_ADDRESSES[0]), reaches(&self.one, POD_TWO_ADDRESSES[1])),
            (v4, v6),
            "{what}"
        );
    }
}

/// Returns a policy for ingress to pod two.
fn door(selector: &str, rules: Json) -> PolicyEntry {
    gnp("door", json!({"selector": selector, "types": ["Ingress"], "ingress": rules}))
}

const SERVER_SELECTOR: &str = "role == 'server'";

#[tokio::test(flavor = "multi_thread")]
async fn contradictions_and_emptiness_mean_what_they_say() {
    let mut world = DatastoreFixture::new().await;
    let nobody = "has(role) && !has(role)";
    let allow_from = |selector: &str| json!([{"action": "Allow", "source": {"selector": selector}}]);
    let (allow, deny) = (json!({"action": "Allow"}), json!({"action": "Deny"}));
    for (what, policy, open) in [
        ("a policy that selects nobody", door(nobody, json!([deny])), true),
        ("rules that match nobody", door(SERVER_SELECTOR, allow_from(nobody)), false),
        ("rules that match everybody", door(SERVER_SELECTOR, allow_from("all()")), true),
        ("a policy without rules", door(SERVER_SELECTOR, json!([])), false),
        ("a policy for everybody, allowing", door("all()", json!([allow])), true),
        ("a policy for everybody, denying", door("all()", json!([deny])), false),
        ("allowed and denied: the first rule counts", door(SERVER_SELECTOR, json!([allow, deny])), true),
        ("denied and allowed", door(SERVER_SELECTOR, json!([deny, allow])), false),
        (
            "two ports and none of them",
            door(
                SERVER_SELECTOR,
                json!([{"action": "Deny", "protocol": "TCP",
                "destination": {"ports": [80, 443], "notPorts": ["1:65535"]}}, allow]),
            ),
            true,
        ),
        (
            "what breaks the rules of its kind denies",
            door(SERVER_SELECTOR, json!([{"action": "Allow", "source": {"nets": ["10.0.0.5/24"]}}])),
            false,
        ),
    ] {
        world.put(&[policy]).await;
        world.is(open, open, what);
    }
    world.delete(&door(SERVER_SELECTOR, json!([]))).await;
    world.is(true, true, "without it");
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_of_missing_tiers_are_enforced_last() {
    let mut world = DatastoreFixture::new().await;
    let in_tier = |rules: Json| {
        gnp(
            "lost",
            json!({"tier": "gone", "selector": SERVER_SELECTOR, "types": ["Ingress"], "ingress": rules}),
        )
    };
    world.put(&[in_tier(json!([]))]).await;
    world.is(false, false, "such a tier ends in denial");
    world.put(&[in_tier(json!([{"action": "Allow", "protocol": "ICMP"}]))]).await;
    world.is(true, false, "its rules count");
    world.put(&[door(SERVER_SELECTOR, json!([{"action": "Allow"}]))]).await;
    world.is(true, true, "tiers that are there come first");
    world.put(&[door(SERVER_SELECTOR, json!([{"action": "Pass"}]))]).await;
    world.is(true, false, "and may leave it to the one that is not");
}

#[tokio::test(flavor = "multi_thread")]
async fn maximum_numbers_of_rules_and_nets_work() {
    let mut world = DatastoreFixture::new().await;
    let mut rules: Vec<Json> = (1..1024)
        .map(|port| json!({"action": "Deny", "protocol": "TCP", "destination": {"ports": [port]}}))
        .collect();
    rules.push(json!({"action": "Allow", "source": {"selector": "has(many)"}}));
    let set = |nets: Vec<String>| {
        object(Kind::GlobalNetworkSet, "", "many", json!({"many": ""}), json!({"nets": nets}))
    };
    // Ten thousand nets, each /24 with a /28 inside it; `near` adds a net that contains all of them.
    let far: Vec<String> = (0..5_000u32)
        .flat_map(|number| {
            let first = Ipv4Addr::from(0x6400_0000 + number * 512);
            [format!("{first}/24"), format!("{first}/28")]
        })
        .collect();
    let near = ["10.0.0.0/8", "10.65.0.0/24", "10.65.0.2/32", "fd80::/16", "100.0.0.0/8"].map(str::to_owned);
    world.put(&[door(SERVER_SELECTOR, json!(rules)), set(far.clone())]).await;
    world.is(false, false, "none of the nets");
    world.put(&[set(far.iter().cloned().chain(near.clone()).collect())]).await;
    world.is(true, true, "in several of them");
    world.put(&[set(far.iter().cloned().chain([near[2].clone()]).collect())]).await;
    world.is(true, false, "in one that was part of others");
    world.put(&[set(far)]).await;
    world.is(false, false, "in none any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_named_ports_as_can_be_written() {
    let mut world = DatastoreFixture::new().await;
    let (key, mut value) = endpoint(2, json!({"role": "server"}), &POD_TWO_ADDRESSES);
    let StoreValue::Resource(Resource::WorkloadEndpoint(two)) = &mut value else { panic!("{value:?}") };
    let port = json!([{"name": "p49", "protocol": "TCP", "port": 8080, "hostPort": 0, "hostIP": ""}]);
    two.spec.ports = serde_json::from_value(port).unwrap();
    world.put(&[(key, value)]).await;
    let bind = |address: &str| bind_when_free(|| TcpListener::bind(address)).unwrap();
    let listening = ["10.65.0.3:8080", "[fd80:65::3]:8080", "10.65.0.3:8081", "[fd80:65::3]:8081"];
    let _listeners = world.two.open().run(|| listening.map(bind)).unwrap();
    let connects = |world: &DatastoreFixture, to: &str| {
        let patience = Duration::from_secs(1);
        let to = to.parse().unwrap();
        world.one.open().run(|| TcpStream::connect_timeout(&to, patience).is_ok()).unwrap()
    };
    let names: Vec<String> = (0..50).map(|number| format!("p{number}")).collect();
    for (list, named, unnamed) in [("ports", true, false), ("notPorts", false, true)] {
        let rules = json!([{"action": "Allow", "protocol": "TCP", "destination": {list: names}}]);
        world.put(&[door(SERVER_SELECTOR, rules)]).await;
        let found = listening.map(|to| connects(&world, to));
        assert_eq!(found, [named, named, unnamed, unnamed], "{list}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_without_addresses_send_nothing_and_are_nobody() {
    let mut world = DatastoreFixture::new().await;
    let clients = json!([{"action": "Allow", "source": {"selector": "role == 'client'"}}]);
    world.put(&[door(SERVER_SELECTOR, clients)]).await;
    world.is(true, true, "it has addresses");
    world.put(&[endpoint(1, json!({"role": "client"}), &[])]).await;
    world.is(false, false, "it has none");
    assert!(world.view.plan.sets.values().all(|set| set.members.is_empty()), "{:?}", world.view.plan.sets);
    world.put(&[endpoint(1, json!({"role": "client"}), &POD_ONE_ADDRESSES[..1])]).await;
    world.is(true, false, "it has one of a family");
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_addresses_stay_until_both_endpoints_leave() {
    let mut world = DatastoreFixture::new().await;
    let friends = json!([{"action": "Allow", "source": {"selector": "has(friend)"}}]);
    let twin = endpoint(3, json!({"friend": ""}), &POD_ONE_ADDRESSES);
    world
        .put(&[
            door(SERVER_SELECTOR, friends),
            endpoint(1, json!({"friend": ""}), &POD_ONE_ADDRESSES),
            twin.clone(),
        ])
        .await;
    world.is(true, true, "both are friends");
    world.put(&[endpoint(1, json!({}), &POD_ONE_ADDRESSES)]).await;
    world.is(true, true, "one of those with the address is");
    world.delete(&twin).await;
    world.is(false, false, "none is");
    assert!(reaches(&world.two, POD_ONE_ADDRESSES[0]), "the address is still that of one");
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_tables_and_ours_work_independently() {
    let mut world = DatastoreFixture::new().await;
    let foreign = |verdict: &str| {
        format!(
            "table inet foreign {{ chain first {{ type filter hook forward priority -300; {verdict}; }};
             chain last {{ type filter hook forward priority 300; {verdict}; }}; }}"
        )
    };
    world.put(&[door(SERVER_SELECTOR, json!([{"action": "Deny"}]))]).await;
    world.node.nft(&foreign("accept"));
    world.is(false, false, "what they accept before and after us is still denied");
    world.put(&[door(SERVER_SELECTOR, json!([{"action": "Allow"}]))]).await;
    world.is(true, true, "allowed by all");
    world.node.nft(&format!("delete table inet foreign; {}", foreign("icmp type echo-request drop")));
    world.is(false, true, "what they drop is gone, whatever we allow");
    world.node.nft("delete table inet foreign");
    world.is(true, true, "without them");
}
