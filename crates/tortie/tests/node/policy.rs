//! Policies that cannot take effect close the endpoints that they select, are reported, and affect no others.

use crate::world::{NodeFixture, TORTIE, eventually};
use serde_json::{Value, json};
use std::process::Command;

fn policy(rules: Value) -> String {
    json!({
        "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "big"},
        "spec": {"selector": "guarded == 'yes'", "types": ["Ingress"], "ingress": rules},
    })
    .to_string()
}

#[test]
fn policy_rejected_by_the_kernel_fails_closed() {
    let mut world = NodeFixture::new();
    world.start(&[("FELIX_HEALTHENABLED", "true"), ("FELIX_PROMETHEUSMETRICSENABLED", "true")]);
    let page = |world: &NodeFixture, url: &str| {
        let output = world.host.try_exec(&["curl", "-s", url]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let health = |world: &NodeFixture| page(world, "http://localhost:9099/readiness");
    let metrics = |world: &NodeFixture| page(world, "http://localhost:9091/metrics");
    let (one, two, three) = (world.container(), world.container(), world.container());
    let config = world.config();
    let mut guarded = config.clone();
    guarded["tortie_labels"] = json!({"guarded": "yes"});
    let first = world.must("ADD", "c1", &one.path(), &config).addresses();
    let second = world.must("ADD", "c2", &two.path(), &guarded).addresses();
    assert!(one.pings(&second[0]));

    // The API accepts this rule, but it has more conditions than a kernel rule can hold.
    let names: Vec<String> = (0..50).map(|number| format!("port-{number}")).collect();
    let none = json!({"notPorts": names});
    let everything = json!({"action": "Deny", "protocol": "TCP", "source": none, "destination": none});
    let too_much = json!([everything, {"action": "Allow"}]);
    world.calicoctl(&["apply", "-f", "-"], &policy(too_much));
    eventually("it is reported", || health(&world).contains("in-gnp/big: closed: the kernel rejects it: "));
    eventually("it is counted", || metrics(&world).contains("tortie_refused_objects 1"));
    let unreachable = |address: &String| !one.reaches(address);
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
fn http_rules_open_nothing_without_a_proxy() {
    let mut world = NodeFixture::new();
    world.start(&[("FELIX_HEALTHENABLED", "true"), ("FELIX_PROMETHEUSMETRICSENABLED", "true")]);
    let page = |world: &NodeFixture, url: &str| {
        let output = world.host.try_exec(&["curl", "-s", url]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let metrics = |world: &NodeFixture| page(world, "http://localhost:9091/metrics");
    let (one, two) = (world.container(), world.container());
    let config = world.config();
    let mut guarded = config.clone();
    guarded["tortie_labels"] = json!({"guarded": "yes"});
    let first = world.must("ADD", "c1", &one.path(), &config).addresses();
    let second = world.must("ADD", "c2", &two.path(), &guarded).addresses();
    assert!(second.iter().all(|address| one.pings(address)), "{}", world.log());

    let get = json!([{"action": "Allow", "http": {"methods": ["GET"], "paths": [{"exact": "/healthz"}]}}]);
    world.calicoctl(&["apply", "-f", "-"], &policy(get));
    eventually("the rule is closed", || second.iter().all(|address| !one.reaches(address)));
    assert!(two.pings(&first[0]), "what the policy does not govern is open");
    eventually("it is counted", || metrics(&world).contains("tortie_workloads_without_http_proxy 1"));
    let health = page(&world, "http://localhost:9099/readiness");
    for line in [
        "http policy: workloads with rules whose http conditions no proxy enforces: 1",
        "ingress rule 1: http: the rule matches only on workloads with a proxy",
    ] {
        assert!(health.contains(line), "{health}");
    }

    let settings = |mode: &str| {
        json!({
            "apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration",
            "metadata": {"name": "default"}, "spec": {"httpRulesWithoutProxy": mode},
        })
        .to_string()
    };
    world.calicoctl(&["apply", "-f", "-"], &settings("Allow"));
    eventually("Calico's meaning", || second.iter().all(|address| one.pings(address)));
    eventually("no longer counted", || metrics(&world).contains("tortie_workloads_without_http_proxy 0"));
    world.calicoctl(&["apply", "-f", "-"], &settings("Ignore"));
    eventually("closed again", || second.iter().all(|address| !one.reaches(address)));
}

#[test]
fn denials_are_watched_and_counted_by_rule() {
    let mut world = NodeFixture::new();
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
    let denied = |address: &str| !one.reaches(address);
    eventually("the policy is in force", || addresses.iter().all(|address| denied(address)));

    // `policy watch` prints verdicts with their rule, and logged packets with their addresses.
    let file = world.path("watched");
    let mut watch = world.host.command(TORTIE);
    watch.args(["policy", "watch", "--interval", "100", "--policy", "gnp/big"]);
    let _watch = tortie_testkit::TestProcess::start(watch.stdout(std::fs::File::create(&file).unwrap()));
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
    let only = world.host.try_exec(&[TORTIE, "policy", "watch", "--interval", "1"]);
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

#[test]
fn rule_numbers_agree_and_tier_ends_are_counted() {
    let mut world = NodeFixture::new();
    world.start(&[("FELIX_PROMETHEUSMETRICSENABLED", "true")]);
    let (one, two) = (world.container(), world.container());
    let config = world.config();
    let mut guarded = config.clone();
    guarded["tortie_labels"] = json!({"guarded": "yes"});
    let from = world.must("ADD", "c1", &one.path(), &config).addresses();
    let to = world.must("ADD", "c2", &two.path(), &guarded).addresses();
    // The second rule denies IPv4; no rule matches IPv6.
    let rules = json!([{"action": "Allow", "protocol": "TCP"}, {"action": "Deny", "protocol": "ICMP"}]);
    world.calicoctl(&["apply", "-f", "-"], &policy(rules));
    let denied = |address: &str| !one.reaches(address);
    eventually("the policy is in force", || to.iter().all(|address| denied(address)));

    let explained = |family: usize, port: &str| {
        let args = ["explain", "--from", &from[family], "--to", &to[family], "--port", port];
        let mut command = Command::new(TORTIE);
        let output = command.args(args).env("ETCD_ENDPOINTS", world.socket()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let (by_rule, by_end) = (explained(0, "icmp/8"), explained(1, "icmpv6/128"));
    assert!(by_rule.contains("gnp/big, ingress rule 2"), "{by_rule}");
    assert!(by_end.contains("end of tier default"), "{by_end}");

    let output = world.host.try_exec(&[TORTIE, "policy", "counters", "-o", "json"]);
    let counters: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let counted = |policy: &str, rule: Value| {
        let matching = |counter: &&Value| {
            counter["policy"] == policy && counter["direction"] == "ingress" && counter["rule"] == rule
        };
        counters.iter().filter(matching).filter_map(|counter| counter["packets"].as_u64()).sum::<u64>()
    };
    assert!(counted("gnp/big", json!(2)) > 0, "{counters:#?}");
    assert_eq!(counted("gnp/big", json!(1)), 0, "{counters:#?}");
    assert!(counted("tier/default", json!("end")) > 0, "{counters:#?}");
    let table = world.host.try_exec(&[TORTIE, "policy", "counters"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let row = |policy: &str, rule: &str| {
        let words = [policy, "ingress", "normal", rule, "deny"];
        table.lines().any(|line| line.split_whitespace().take(words.len()).eq(words))
    };
    assert!(row("gnp/big", "2") && row("tier/default", "end"), "{table}");

    eventually("denials are in the metrics", || {
        let output = world.host.try_exec(&["curl", "-s", "http://localhost:9091/metrics"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        [("gnp/big", "2"), ("tier/default", "end")].iter().all(|(policy, rule)| {
            let labels = format!("{{policy=\"{policy}\",direction=\"ingress\",rule=\"{rule}\"}} ");
            text.contains(&format!("tortie_denied_packets_total{labels}"))
        })
    });
}
