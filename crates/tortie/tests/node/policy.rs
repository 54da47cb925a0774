//! Policies that cannot take effect: they close what they are about, are reported, and hurt nobody else.

use crate::world::{World, eventually};
use serde_json::{Value, json};

fn policy(rules: Value) -> String {
    json!({
        "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "big"},
        "spec": {"selector": "guarded == 'yes'", "types": ["Ingress"], "ingress": rules},
    })
    .to_string()
}

#[test]
fn what_the_kernel_refuses_is_closed_and_reported_and_the_rest_goes_on() {
    let mut world = World::new();
    world.start(&[("FELIX_HEALTHENABLED", "true"), ("FELIX_PROMETHEUSMETRICSENABLED", "true")]);
    let page = |world: &World, url: &str| {
        let output = world.host.try_exec(&["curl", "-s", url]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let health = |world: &World| page(world, "http://localhost:9099/readiness");
    let metrics = |world: &World| page(world, "http://localhost:9091/metrics");
    let (one, two, three) = (world.container(), world.container(), world.container());
    let config = world.config();
    let mut guarded = config.clone();
    guarded["tortie_labels"] = json!({"guarded": "yes"});
    let first = world.must("ADD", "c1", &one.path(), &config).addresses();
    let second = world.must("ADD", "c2", &two.path(), &guarded).addresses();
    assert!(one.pings(&second[0]));

    // As much as the API takes, and more than a rule of the kernel can ask for.
    let names: Vec<String> = (0..50).map(|number| format!("port-{number}")).collect();
    let none = json!({"notPorts": names});
    let everything = json!({"action": "Deny", "protocol": "TCP", "source": none, "destination": none});
    let too_much = json!([everything, {"action": "Allow"}]);
    world.calicoctl(&["apply", "-f", "-"], &policy(too_much));
    eventually("it is reported", || health(&world).contains("in-gnp/big: closed, the kernel refuses it: "));
    eventually("it is counted", || metrics(&world).contains("tortie_refused_objects 1"));
    let unreachable =
        |address: &String| !one.try_exec(&["ping", "-c", "1", "-W", "1", address]).status.success();
    assert!(second.iter().all(unreachable), "{}", world.log());
    assert!(two.pings(&first[0]), "what it does not govern is open");
    let third = world.must("ADD", "c3", &three.path(), &config).addresses();
    assert!(one.pings(&third[0]), "others come and go");

    world.calicoctl(&["apply", "-f", "-"], &policy(json!([{"action": "Allow"}])));
    eventually("mended, it is no longer reported", || !health(&world).contains("big"));
    eventually("nor counted", || metrics(&world).contains("tortie_refused_objects 0"));
    assert!(second.iter().all(|address| one.pings(address)), "{}", world.log());
}
