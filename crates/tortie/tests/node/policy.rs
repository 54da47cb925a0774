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

#[test]
fn denials_are_watched_and_counted_by_rule() {
    let mut world = World::new();
    world.start(&[("FELIX_PROMETHEUSMETRICSENABLED", "true")]);
    let (one, two) = (world.container(), world.container());
    let config = world.config();
    let mut guarded = config.clone();
    guarded["tortie_labels"] = json!({"guarded": "yes"});
    world.must("ADD", "c1", &one.path(), &config);
    let addresses = world.must("ADD", "c2", &two.path(), &guarded).addresses();
    let rules = json!([
        {"action": "Log", "protocol": "ICMP"}, {"action": "Log", "protocol": "ICMPv6"},
        {"action": "Deny", "protocol": "ICMP"}, {"action": "Deny", "protocol": "ICMPv6"}, {"action": "Allow"},
    ]);
    world.calicoctl(&["apply", "-f", "-"], &policy(rules));
    let denied = |address: &str| !one.try_exec(&["ping", "-c", "1", "-W", "1", address]).status.success();
    eventually("the policy is in force", || addresses.iter().all(|address| denied(address)));

    // Verdicts as they happen, with the rule; packets that a rule logs with their addresses.
    let file = world.path("watched");
    let mut watch = world.host.command(crate::world::TORTIE);
    watch.args(["policy", "watch", "--interval", "100", "--policy", "gnp/big"]);
    let _watch = tortie_testkit::Process::start(watch.stdout(std::fs::File::create(&file).unwrap()));
    let watched = || std::fs::read_to_string(&file).unwrap();
    for (address, log, rule) in [(&addresses[0], "1", "3"), (&addresses[1], "2", "4")] {
        eventually("it is seen", || {
            assert!(denied(address));
            let lines = watched();
            let line = |verdict: &str, rule: &str, more: &str| {
                let rule = format!("gnp/big ingress rule {rule}  ");
                lines
                    .lines()
                    .any(|line| line.contains(verdict) && line.contains(&rule) && line.contains(more))
            };
            line("  deny    ", rule, " packet") && line("  log     ", log, &format!("-> {address}"))
        });
    }
    let only = world.host.try_exec(&[crate::world::TORTIE, "policy", "watch", "--interval", "1"]);
    assert!(!only.status.success(), "an interval that is too short is refused");

    let metric = |rule: &str| {
        let line = format!(
            "tortie_denied_packets_total{{policy=\"gnp/big\",direction=\"ingress\",rule=\"{rule}\"}} "
        );
        let output = world.host.try_exec(&["curl", "-s", "http://localhost:9091/metrics"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = text.lines().find_map(|found| found.strip_prefix(&line)?.parse::<u64>().ok());
        number.unwrap_or_default()
    };
    eventually("denials are in the metrics", || metric("3") > 0 && metric("4") > 0);
    assert_eq!(metric("5"), 0, "what is allowed is no denial");
}
