//! The kernel rejects an object that an ADD creates: the ADD fails, names the object and leaves nothing.

use crate::world::{NodeFixture, eventually};

/// One object of each kind by its name, with a part that occurs in no other object's name.
const REJECTED_OBJECTS: [&str; 18] = [
    "interface eth0",
    "interface calic1",
    "address 10.77.",
    "address fd77:",
    "route 169.254.1.1/32",
    "route 0.0.0.0/0",
    "route ::/0",
    "neighbour 169.254.1.1",
    "route 10.77.",
    "route fd77:",
    "neighbour 10.77.",
    "sysctl net.ipv4.conf.calic1",
    "sysctl net.ipv6.conf.calic1",
    "chain ",
    "rule ",
    "element calic1 . 10.77.",
    "element calic1 . fd77:",
    "element calic1 of map",
];

#[test]
fn a_rejected_object_fails_the_add_without_leaks() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    let faults = world.dir.path().join("faults");
    world.start(&[("TORTIE_FAULTS", faults.to_str().unwrap())]);
    let config = world.config();
    let table = |world: &NodeFixture| {
        let output = world.host.try_exec(&["nft", "list", "table", "inet", "tortie"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for object in REJECTED_OBJECTS {
        let pod = world.container();
        std::fs::write(&faults, object).unwrap();
        let said = world.cni("ADD", "c1", &pod.path(), &config);
        std::fs::remove_file(&faults).unwrap();
        assert!(
            !said.success && said.json.to_string().contains(object),
            "{object}: {said:?}\n{}",
            world.log()
        );
        world.assert_clean(object);
        assert!(!pod.ip(&["link"]).contains("eth0"), "{object}");
        eventually("nothing is in the table", || !table(&world).contains("calic1"));
        // After the fault is removed the same request succeeds.
        world.must("ADD", "c1", &pod.path(), &config);
        world.must("DEL", "c1", &pod.path(), &config);
        world.assert_clean(object);
    }
}

#[test]
fn a_route_in_the_way_fails_the_add() {
    let world = NodeFixture::with_pool("10.77.0.0/30");
    // Static routes of another owner, which must not be removed, for every address of the pool.
    for address in 0..4 {
        let net = format!("10.77.0.{address}/32");
        world.host.ip(&["route", "add", &net, "dev", "eth0", "proto", "static", "metric", "1024"]);
    }
    let pod = world.container();
    let said = world.cni("ADD", "c1", &pod.path(), &world.config());
    assert!(!said.success && said.json.to_string().contains("route 10.77.0."), "{said:?}\n{}", world.log());
    world.assert_clean("a failed ADD");
}
