//! The MTU of containers follows the interface that carries their packets and the encapsulation.

use crate::world::{NodeFixture, TestNamespace, eventually};

fn mtu(pod: &TestNamespace) -> u64 {
    pod.json("link show dev eth0")[0]["mtu"].as_u64().unwrap()
}

fn file(world: &NodeFixture) -> String {
    std::fs::read_to_string(world.path("state/mtu")).unwrap_or_default()
}

#[test]
fn the_mtu_follows_the_underlying_network() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    world.start(&[("FELIX_HEALTHENABLED", "true")]);
    let page = || {
        let output = world.host.try_exec("curl -s http://localhost:9099/readiness");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let says = |file_says: &str, line: &str| {
        let picture = || format!("{}\n{}", file(&world), page());
        let so = || file(&world) == file_says && page().contains(line);
        tortie_testkit::eventually_showing(&format!("{file_says}: {line}"), so, picture);
    };
    let by_route = "eth0 carries the default route or routes to other nodes";
    says("1500", &format!("mtu: 1500: {by_route}\n"));
    let (first, second, third) = (world.container(), world.container(), world.container());
    world.must("ADD", "c1", &first.path(), &world.config());
    assert_eq!(mtu(&first), 1500);

    world.host.ip("link set eth0 mtu 1400");
    says("1400", &format!("mtu: 1400: {by_route}\n"));
    world.must("ADD", "c2", &second.path(), &world.config());
    assert_eq!((mtu(&first), mtu(&second)), (1500, 1400));
    let warning = "mtu: too large for what carries their packets: ";
    eventually("the older one is named", || page().contains(warning));
    assert!(page().contains(" 1500; start them again"), "{}", page());

    let pool = |spec: &str| {
        let patch = format!("{{\"spec\": {spec}}}");
        world.calicoctl(&["patch", "ippool", "default-ipv4-ippool", "-p", &patch], "");
    };
    pool(r#"{"vxlanMode": "CrossSubnet"}"#);
    says("1350", &format!("mtu: 1350: {by_route}; 50 of 1400 are for VXLAN\n"));
    world.must("ADD", "c3", &third.path(), &world.config());
    assert_eq!(mtu(&third), 1350);
    pool(r#"{"vxlanMode": "Never", "ipipMode": "Always"}"#);
    says("1380", &format!("mtu: 1380: {by_route}; 20 of 1400 are for IPIP\n"));
    world.felix("ipipMTU: 1300");
    says("1300", "mtu: 1300: ipipMTU is set\n");

    // With the original settings every container fits again.
    pool(r#"{"ipipMode": "Never"}"#);
    world.host.ip("link set eth0 mtu 1500");
    says("1500", &format!("mtu: 1500: {by_route}\n"));
    eventually("nobody is too large any more", || !page().contains(warning));
}
