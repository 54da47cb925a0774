//! Worked examples of the conversion of policies and rules, with the IDs of the sets.

use crate::cluster::{PolicyNode, gnp, id, namespace, np, object, pod, pod_with};
use serde_json::json;
use tortie_model::Kind;
use tortie_plan::{PlannedRule, PolicyKind, PortInterval, RuleSide, SetId, TierDefaultAction};

fn web() -> [crate::cluster::PolicyEntry; 3] {
    [
        namespace("shop", json!({})),
        pod("n1", "shop", "web-0", json!({"role": "web"}), "10.0.0.1/32"),
        pod("n2", "shop", "web-1", json!({"role": "web"}), "10.0.0.2/32"),
    ]
}

#[test]
fn a_network_policy_and_the_namespaces_it_allows() {
    let mut node = PolicyNode::with(&web());
    let source = json!({"namespaceSelector": "team == 'red'", "selector": "tier in {'edge','mesh'}"});
    let spec = json!({"selector": "role == 'web'", "ingress": [{"action": "Allow", "source": source}]});
    node.put(&[
        np("shop", "allow-web", spec),
        namespace("front", json!({"team": "red"})),
        pod("n2", "front", "edge-0", json!({"tier": "edge"}), "10.0.0.9/32"),
        pod("n2", "front", "core-0", json!({"tier": "core"}), "10.0.0.8/32"),
        pod("n2", "shop", "edge-1", json!({"tier": "edge"}), "10.0.0.7/32"),
    ]);
    let policy = &node.plan.policies[&id(PolicyKind::NetworkPolicy, "shop", "allow-web")];
    assert_eq!(policy.selector, "(role == \"web\" && projectcalico.org/namespace == \"shop\")");
    let set = "s:3ZBiMJ_Y9QQi8iQpPggPHUuZVpkKhSQcxBrZBA";
    assert_eq!(policy.ingress[0].source, RuleSide { sets: vec![SetId::new(set)], ..RuleSide::default() });
    assert_eq!(node.set(set), ["10.0.0.9/32"]);
    let tiers = &node.workload_policy("shop", "web-0").tiers;
    assert_eq!((tiers.len(), tiers[0].name.as_str(), tiers[0].end), (1, "default", TierDefaultAction::Deny));
    assert_eq!(tiers[0].ingress[..], [id(PolicyKind::NetworkPolicy, "shop", "allow-web")]);
    assert!(tiers[0].egress.is_empty());
}

#[test]
fn a_namespace_selector_excludes_host_endpoints() {
    let host = object(
        Kind::HostEndpoint,
        "",
        "eth0",
        json!({}),
        json!({"node": "n1", "interfaceName": "eth0", "expectedIPs": ["192.0.2.1"]}),
    );
    let mut node = PolicyNode::with(&web());
    node.put(&[
        host,
        namespace("shop", json!({"zone": "dmz"})),
        gnp("dmz", json!({"selector": "all()", "namespaceSelector": "zone == 'dmz' || has(public)"})),
        gnp("everyone", json!({})),
    ]);
    let policy = &node.plan.policies[&id(PolicyKind::GlobalNetworkPolicy, "", "dmz")];
    assert_eq!(
        policy.selector,
        "(has(projectcalico.org/namespace) && (pcns.zone == \"dmz\" || has(pcns.public)))"
    );
    let names = |tiers: &[tortie_plan::EndpointTier]| {
        tiers[0].ingress.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(names(&node.workload_policy("shop", "web-0").tiers), ["gnp/dmz", "gnp/everyone"]);
    assert_eq!(names(&node.plan.host_endpoints["eth0"].tiers), ["gnp/everyone"]);
}

#[test]
fn lone_not_selectors_match_outside_in_global_policies() {
    let mut node = PolicyNode::with(&web());
    let rules = json!({"ingress": [{"action": "Allow", "source": {"notSelector": "has(untrusted)"}}]});
    node.put(&[
        np("shop", "trusting", rules.clone()),
        gnp("trusting", rules),
        pod("n2", "shop", "bad-0", json!({"untrusted": ""}), "10.0.0.66/32"),
    ]);
    let side = node.rule("np/shop/trusting").source.clone();
    assert_eq!((side.sets.len(), side.not_sets.len()), (1, 0));
    assert_eq!(node.set(&side.sets[0].0), ["10.0.0.1/32", "10.0.0.2/32"]);
    let side = node.rule("gnp/trusting").source.clone();
    assert_eq!((side.sets.len(), side.not_sets.len()), (0, 1));
    assert_eq!(node.set(&side.not_sets[0].0), ["10.0.0.66/32"]);
}

#[test]
fn global_means_what_has_no_namespace() {
    let mut node = PolicyNode::with(&web());
    let rules = json!({"ingress": [{"action": "Allow", "source": {"namespaceSelector": "global()"}}]});
    let host = json!({"node": "n2", "interfaceName": "*", "expectedIPs": ["192.0.2.2", "2001:db8::2"]});
    node.put(&[
        np("shop", "hosts", rules),
        object(Kind::HostEndpoint, "", "n2-hep", json!({}), host),
        object(
            Kind::GlobalNetworkSet,
            "",
            "office",
            json!({}),
            json!({"nets": ["198.51.100.0/24", "0.0.0.0/0"]}),
        ),
        object(Kind::NetworkSet, "shop", "own", json!({}), json!({"nets": ["203.0.113.0/24"]})),
    ]);
    let side = node.rule("np/shop/hosts").source.clone();
    assert_eq!(
        node.set(&side.sets[0].0),
        ["0.0.0.0/0", "192.0.2.2/32", "198.51.100.0/24", "2001:db8::2/128"]
    );
}

#[test]
fn a_staged_kubernetes_policy() {
    let spec = json!({
        "podSelector": {
            "matchLabels": {"app": "api"},
            "matchExpressions": [{"key": "canary", "operator": "DoesNotExist"}],
        },
        "ingress": [{
            "ports": [
                {"protocol": "TCP", "port": 80}, {"port": 81}, {"protocol": "TCP", "port": "metrics"},
                {"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 90, "endPort": 95},
                {"protocol": "TCP", "port": 96},
            ],
            "from": [{"podSelector": {}}, {"namespaceSelector": {}, "podSelector": {"matchLabels": {"x": "y"}}}],
        }],
    });
    let staged = object(Kind::StagedKubernetesNetworkPolicy, "shop", "api", json!({}), spec);
    let node = PolicyNode::with(&[
        namespace("shop", json!({})),
        pod("n1", "shop", "api-0", json!({"app": "api"}), "10.0.0.3/32"),
        staged,
    ]);
    let name = id(PolicyKind::StagedKubernetesNetworkPolicy, "shop", "api");
    let policy = &node.plan.policies[&name];
    assert_eq!(
        policy.selector,
        "((projectcalico.org/orchestrator == \"k8s\" && app == \"api\" && !has(canary)) \
         && projectcalico.org/namespace == \"shop\")"
    );
    let protocols: Vec<_> = policy.ingress.iter().map(|rule| rule.protocol.unwrap()).collect();
    assert_eq!(protocols, [6, 6, 17, 17]);
    let [tcp1, tcp2, udp1, udp2] = &policy.ingress[..] else { panic!("{policy:#?}") };
    let range = |first, last| PortInterval { first, last };
    for tcp in [tcp1, tcp2] {
        assert_eq!(tcp.destination.ports, [range(80, 81), range(90, 96)]);
        assert_eq!(tcp.destination.named_ports.len(), 1);
    }
    assert_eq!(udp1.destination.ports, [range(53, 53)]);
    assert_eq!((&tcp1.source, &tcp2.source), (&udp1.source, &udp2.source));
    assert_ne!(tcp1.source, tcp2.source);
    assert_eq!(
        node.workload_policy("shop", "api-0").tiers[0].ingress[..],
        [name],
        "listed, though it decides nothing"
    );
}

#[test]
fn named_ports() {
    let port = |name: &str, protocol: &str, port: u16| json!({"name": name, "protocol": protocol, "port": port, "hostPort": 0, "hostIP": ""});
    let ports = json!([port("pg", "TCP", 5432), port("dns", "TCP", 53), port("dns", "UDP", 53)]);
    let mut node = PolicyNode::with(&web());
    let rule = |protocol: Option<&str>, side| match protocol {
        Some(protocol) => json!({"action": "Allow", "protocol": protocol, "destination": side}),
        None => json!({"action": "Allow", "destination": side}),
    };
    node.put(&[
        gnp(
            "pg",
            json!({"types": ["Ingress"], "ingress": [
            rule(Some("TCP"), json!({"selector": "role == 'db'", "ports": ["pg"]}))]}),
        ),
        gnp(
            "both",
            json!({"types": ["Ingress"], "ingress": [
            rule(Some("TCP"), json!({"selector": "role == 'db'", "ports": ["pg", 80, "1000:1010"]}))]}),
        ),
        gnp("dns", json!({"types": ["Ingress"], "ingress": [rule(None, json!({"ports": ["dns"]}))]})),
        pod_with("n2", "shop", "db-0", json!({"role": "db"}), "10.0.0.20/32", ports.clone()),
        pod_with("n2", "shop", "other-0", json!({}), "10.0.0.21/32", ports),
    ]);
    let pg = "n:ylqfGPx76RSi8sBg_YiB7tBTBweogZcMky94kA";
    let side = &node.rule("gnp/pg").destination;
    assert_eq!(*side, RuleSide { named_ports: vec![SetId::new(pg)], ..RuleSide::default() });
    assert_eq!(node.set(pg), ["10.0.0.20,6:5432"]);
    let side = &node.rule("gnp/both").destination;
    assert_eq!(side.sets, [SetId::new("s:rV61RKD1Q8wo61pyeB0j2rwE3eiBOFbx0SsYKg")]);
    assert_eq!(side.named_ports, [SetId::new(pg)]);
    assert_eq!(side.ports, [PortInterval { first: 80, last: 80 }, PortInterval { first: 1000, last: 1010 }]);
    let dns = &node.rule("gnp/dns").destination.named_ports[0];
    assert_eq!(node.set(&dns.0), ["10.0.0.20,6:53", "10.0.0.20,17:53", "10.0.0.21,6:53", "10.0.0.21,17:53"]);
}

#[test]
fn unknown_services_have_empty_sets() {
    let mut node = PolicyNode::with(&web());
    let service = json!({"services": {"name": "cart"}});
    let spec = json!({
        "ingress": [{"action": "Allow", "source": service}],
        "egress": [{"action": "Allow", "destination": service}],
    });
    node.put(&[np("shop", "cart", spec)]);
    let policy = &node.plan.policies[&id(PolicyKind::NetworkPolicy, "shop", "cart")];
    assert_eq!(
        policy.ingress[0].source.sets,
        [SetId::new("svcnoport:_3kvS4vpE69vGibofPE6tv0EbrhmMBHnDFo7NA")]
    );
    assert_eq!(
        policy.egress[0].destination.service,
        Some(SetId::new("svc:whfywhJOILB-_z1R002xyIPi8OAx5NseyDvddw"))
    );
    assert!(node.plan.sets.values().all(|set| set.members.is_empty()));
}

#[test]
fn names_that_older_peers_give_to_kubernetes_policies() {
    let mut node = PolicyNode::with(&web());
    node.put(&[
        np("shop", "knp.default.api", json!({})),
        gnp("kcnp.admin", json!({"tier": "kube-admin"})),
        gnp("kcnp.mine", json!({})),
    ]);
    let names: Vec<String> = node.plan.policies.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["gnp/kcnp.mine", "knp/shop/api", "kcnp/admin"]);
    let tiers: Vec<_> =
        node.workload_policy("shop", "web-0").tiers.iter().map(|t| (t.name.as_str(), t.end)).collect();
    assert_eq!(tiers, [("kube-admin", TierDefaultAction::Pass), ("default", TierDefaultAction::Deny)]);
}

#[test]
fn http_rules_match_nothing_without_a_proxy() {
    let mut node = PolicyNode::with(&web());
    let http = json!({"methods": ["GET"], "paths": [{"exact": "/healthz"}]});
    let entry = gnp(
        "web",
        json!({"selector": "role == 'web'", "ingress": [
            {"action": "Allow", "protocol": "TCP", "http": http}, {"action": "Deny", "http": http},
        ]}),
    );
    node.put(&[entry]);
    let needs_proxy = |node: &PolicyNode| {
        let policy = &node.plan.policies[&id(PolicyKind::GlobalNetworkPolicy, "", "web")];
        policy.ingress.iter().map(PlannedRule::needs_proxy).collect::<Vec<_>>()
    };
    // The rule that denies applies to whole connections.
    assert_eq!(needs_proxy(&node), [true, false]);
    let problems: Vec<String> = node.compute.problems().into_values().collect();
    assert_eq!(
        problems,
        [
            "ingress rule 1: http: the rule matches only on workloads with a proxy, and proxies of this node receive no \
          policy because policySyncPathPrefix is not set"
        ]
    );
    assert_eq!(node.compute.totals().unproxied_workloads, 1);

    let settings = |mode: &str| {
        object(Kind::FelixConfiguration, "", "default", json!({}), json!({"httpRulesWithoutProxy": mode}))
    };
    node.put(&[settings("Allow")]);
    assert_eq!(needs_proxy(&node), [false, false]);
    assert_eq!(node.compute.problems().len(), 0);
    assert_eq!(node.compute.totals().unproxied_workloads, 0);

    node.put(&[settings("Ignore")]);
    assert_eq!(needs_proxy(&node), [true, false]);
    // The policy of a node without a workload that it selects is no problem there.
    node.delete(&web()[1]);
    assert_eq!(node.compute.problems().len(), 0);
    assert_eq!(node.compute.totals().unproxied_workloads, 0);
}
