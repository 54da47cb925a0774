//! A container in several networks: one interface, one endpoint, one profile per network.

use crate::world::{NodeFixture, PluginResult, TestNamespace, eventually};
use serde_json::{Value, json};

/// Returns the configuration of another network.
fn network(world: &NodeFixture, name: &str) -> Value {
    let mut config = world.config();
    config["name"] = json!(name);
    config
}

fn profiles(world: &NodeFixture, container: &str) -> Value {
    let name = format!("n1-cni-{container}-eth0");
    let endpoint = world.calicoctl(&["get", "wep", &name, "-n", "default", "-o", "json"], "");
    serde_json::from_str::<Value>(&endpoint).unwrap()["spec"]["profiles"].clone()
}

/// A container in the networks `net` and `blue`, beside one container in each of them.
struct JoinedContainer {
    world: NodeFixture,
    blue: Value,
    pods: [TestNamespace; 3],
    first: PluginResult,
}

impl JoinedContainer {
    fn new(mut world: NodeFixture, environment: &[(&str, &str)]) -> JoinedContainer {
        world.start(environment);
        let blue = network(&world, "blue");
        let pods = [world.container(), world.container(), world.container()];
        let first = world.must("ADD", "c1", &pods[0].path(), &world.config());
        world.must("ADD", "c2", &pods[1].path(), &world.config());
        world.must("ADD", "c3", &pods[2].path(), &blue);
        JoinedContainer { world, blue, pods, first }
    }

    fn join(&self) -> PluginResult {
        self.world.cni("ADD", "c1", &self.pods[0].path(), &self.blue)
    }

    fn netns(&self) -> String {
        self.pods[0].path()
    }

    /// Returns whether the container answers the container in `net` and the one in `blue`.
    fn answers(&self) -> [bool; 2] {
        let address = &self.first.addresses()[0];
        [self.pods[1].pings(address), self.pods[2].pings(address)]
    }

    /// Asserts that the second network added nothing but its profile.
    fn assert_one_of_everything(&self) {
        let pod = self.pods[0].ip("-o link");
        assert_eq!(pod.lines().count(), 2, "the loopback and one interface: {pod}");
        assert_eq!(self.world.host.ip("-o link").matches(": cali").count(), 3);
        let keys = self.world.stored("--keys-only");
        assert!(!keys.contains("handle/blue.c1"), "{keys}");
        assert_eq!(keys.matches("/workloadendpoints/").count(), 3, "{keys}");
    }

    fn assert_gone(&self) {
        for (container, pod) in [("c1", 0), ("c2", 1), ("c3", 2)] {
            let config = if pod == 2 { self.blue.clone() } else { self.world.config() };
            self.world.must("DEL", container, &self.pods[pod].path(), &config);
        }
        self.world.assert_clean("DEL");
    }
}

#[test]
fn a_second_network_shares_the_first_endpoint() {
    let mut it = JoinedContainer::new(NodeFixture::without_node("10.77.0.0/24"), &[]);
    assert_eq!(it.answers(), [true, false]);
    let (path, config) = (it.netns(), it.world.config());
    let said = it.join();
    assert_eq!(said.json["ips"], it.first.json["ips"], "{said:?}\n{}", it.world.log());
    assert_eq!(profiles(&it.world, "c1"), json!(["net", "blue"]));
    // The profile is in force when the plugin returns.
    assert_eq!(it.answers(), [true, true]);
    it.assert_one_of_everything();
    assert_eq!(it.join().json, said.json, "the same again is answered with the same");
    let first_again = it.world.must("ADD", "c1", &path, &config);
    assert_eq!(first_again.json, it.first.json);
    let mut checked = it.blue.clone();
    checked["prevResult"] = said.json.clone();
    it.world.must("CHECK", "c1", &path, &checked);
    let mut other = checked.clone();
    other["name"] = json!("green");
    assert!(!it.world.cni("CHECK", "c1", &path, &other).success, "a network that it is not in");

    it.world.start(&[]);
    it.world.must("CHECK", "c1", &path, &checked);
    it.world.must("CHECK", "c1", &path, &config);
    assert_eq!(it.answers(), [true, true], "{}", it.world.log());

    // Leave twice, as runtimes do: the first network stays.
    for _ in 0..2 {
        it.world.must("DEL", "c1", &path, &it.blue);
        assert_eq!(profiles(&it.world, "c1"), json!(["net"]));
    }
    it.world.must("CHECK", "c1", &path, &config);
    assert!(!it.world.cni("CHECK", "c1", &path, &checked).success, "it is not in this network any more");
    assert_eq!(it.answers(), [true, false]);
    it.assert_gone();
}

#[test]
fn further_networks_are_collected_with_the_first() {
    let it = JoinedContainer::new(NodeFixture::without_node("10.77.0.0/24"), &[]);
    let path = it.netns();
    // Runtimes that number interfaces request another one; the result names the existing one.
    let said = it.world.cni_at("eth1", "ADD", "c1", &path, &it.blue);
    assert_eq!(said.json["ips"], it.first.json["ips"], "{said:?}\n{}", it.world.log());
    assert_eq!(said.json["interfaces"][1]["name"], "eth0");
    it.assert_one_of_everything();
    let mut valid = it.blue.clone();
    let listed = |ifname: &str, container: &str| json!({"containerID": container, "ifname": ifname});
    valid["cni.dev/valid-attachments"] = json!([listed("eth1", "c1"), listed("eth0", "c3")]);
    it.world.must("GC", "", "", &valid);
    assert_eq!(profiles(&it.world, "c1"), json!(["net", "blue"]));
    valid["cni.dev/valid-attachments"] = json!([listed("eth0", "c3")]);
    it.world.must("GC", "", "", &valid);
    assert_eq!(profiles(&it.world, "c1"), json!(["net"]));

    let green = network(&it.world, "green");
    assert!(it.join().success);
    it.world.must("ADD", "c1", &path, &green);
    assert_eq!(profiles(&it.world, "c1"), json!(["net", "blue", "green"]));
    // When it is attached again after damage, it is in all its networks.
    it.pods[0].ip("link set eth0 down");
    let again = it.world.must("ADD", "c1", &path, &it.world.config());
    assert!(it.pods[2].pings(&again.addresses()[0]), "{}", it.world.log());
    assert_eq!(profiles(&it.world, "c1"), json!(["net", "blue", "green"]));
    it.world.must("DEL", "c1", &path, &it.world.config());
    for config in [&it.blue, &green] {
        it.world.must("DEL", "c1", &path, config);
    }
    it.assert_gone();
}

#[test]
fn kills_during_a_second_network_keep_the_first() {
    for step in ["join-journalled", "join-stored"] {
        let mut it =
            JoinedContainer::new(NodeFixture::without_node("10.77.0.0/24"), &[("TORTIE_FAILPOINT", step)]);
        assert_eq!(it.join().code(), 11, "{step}");
        it.world.start(&[]);
        eventually("what nobody heard of is taken back", || profiles(&it.world, "c1") == json!(["net"]));
        it.world.must("CHECK", "c1", &it.netns(), &it.world.config());
        it.assert_gone();
    }
    let mut it = JoinedContainer::new(
        NodeFixture::without_node("10.77.0.0/24"),
        &[("TORTIE_FAILPOINT", "part-journalled")],
    );
    assert!(it.join().success);
    assert_eq!(it.world.cni("DEL", "c1", &it.netns(), &it.blue).code(), 11);
    it.world.start(&[]);
    eventually("what was begun is finished", || profiles(&it.world, "c1") == json!(["net"]));
    it.assert_gone();

    // The plugin is killed, so that its result is lost.
    let world = NodeFixture::without_node("10.77.0.0/24");
    let hold = world.hold();
    let it = JoinedContainer::new(world, &[("TORTIE_FAILPOINT", &hold.failpoint("join-stored"))]);
    let text = it.blue.to_string();
    let mut plugin = it.world.begin("calico", "ADD", "c1", &it.netns(), &text, "");
    hold.wait();
    assert_eq!(profiles(&it.world, "c1"), json!(["net", "blue"]));
    plugin.kill().unwrap();
    plugin.wait().unwrap();
    hold.let_go();
    eventually("the network is left again", || profiles(&it.world, "c1") == json!(["net"]));
    it.world.must("CHECK", "c1", &it.netns(), &it.world.config());
    it.assert_gone();
}
