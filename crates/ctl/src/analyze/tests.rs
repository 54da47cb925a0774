use super::*;
use serde_json::{Value, json};
use tortie_model::kinds::NetworkWarning;
use tortie_model::{API_VERSION, Resource};

fn cluster(objects: Vec<Value>) -> PolicyCluster {
    let mut cluster = PolicyCluster::default();
    for mut object in objects {
        object["apiVersion"] = API_VERSION.into();
        let mut resource = Resource::from_user(object).unwrap();
        resource.set_defaults();
        resource.validate().unwrap();
        cluster.put(resource);
    }
    cluster
}

fn endpoint(name: &str, labels: Value) -> Value {
    json!({
        "kind": "WorkloadEndpoint",
        "metadata": {"name": format!("n1-k8s-{name}-eth0"), "namespace": "shop", "labels": labels},
        "spec": {
            "node": "n1", "orchestrator": "k8s", "endpoint": "eth0", "pod": name, "containerID": name,
            "interfaceName": format!("cali{name}"), "ipNetworks": [format!("10.65.0.{}/32", name.len())],
            "profiles": ["kns.shop"], "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        },
    })
}

fn policy(name: &str, spec: Value) -> Value {
    json!({"kind": "NetworkPolicy", "metadata": {"name": name, "namespace": "shop"}, "spec": spec})
}

/// Returns a cluster without mistakes: two pods with policy, a pool, a peer with a filter.
fn clean() -> Vec<Value> {
    vec![
        json!({"kind": "Node", "metadata": {"name": "n1", "labels": {"rack": "1"}}, "spec": {"bgp": {"ipv4Address": "192.0.2.1/24"}}}),
        json!({"kind": "Profile", "metadata": {"name": "kns.shop"}, "spec": {"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]}}),
        json!({"kind": "Tier", "metadata": {"name": "default"}, "spec": {}}),
        json!({"kind": "FelixConfiguration", "metadata": {"name": "default"}, "spec": {"healthEnabled": true}}),
        json!({"kind": "IPPool", "metadata": {"name": "pods"}, "spec": {"cidr": "10.65.0.0/16", "nodeSelector": "rack == '1'"}}),
        json!({"kind": "BGPFilter", "metadata": {"name": "own"}, "spec": {"exportV4": [{"action": "Accept"}]}}),
        json!({"kind": "BGPPeer", "metadata": {"name": "tor"}, "spec": {"peerIP": "192.0.2.9", "asNumber": 64513, "nodeSelector": "rack == '1'", "filters": ["own"]}}),
        endpoint("web", json!({"app": "web"})),
        endpoint("base", json!({"app": "db"})),
        policy(
            "web",
            json!({"order": 5, "selector": "app == 'web'", "types": ["Ingress", "Egress"],
            "ingress": [{"action": "Allow", "protocol": "TCP", "destination": {"ports": ["http"]}}],
            "egress": [{"action": "Allow", "destination": {"selector": "app == 'db'"}}]}),
        ),
        policy(
            "db",
            json!({"order": 5, "selector": "app == 'db'", "types": ["Ingress"],
            "ingress": [{"action": "Allow", "source": {"selector": "app == 'web'"}}]}),
        ),
    ]
}

fn found(more: Vec<Value>) -> Vec<(String, &'static str)> {
    let mut objects = clean();
    objects.extend(more);
    let interfaces = [("eth0", 1500), ("cali1", 1500)].map(|(name, mtu)| (name.to_owned(), mtu)).to_vec();
    let findings = run_checks(cluster(objects), Some("/nonexistent".into()), interfaces);
    for finding in &findings {
        assert!(!finding.reason.is_empty() && !finding.advice.is_empty(), "{finding:?}");
    }
    findings.into_iter().map(|finding| (finding.object, finding.check)).collect()
}

#[test]
fn a_clean_cluster_has_no_findings() {
    assert_eq!(found(vec![]), []);
    assert_eq!(finding::render(&[]), "No mistakes found.\n");
}

#[test]
fn invalid_selectors_are_named_as_invalid() {
    let rule = json!({"action": "Allow", "source": {"selector": "app = 'web'"}});
    let rule = json!({"order": 1, "selector": "app == 'web'", "types": ["Ingress"], "ingress": [rule]});
    for (object, name, part) in [
        (
            policy(
                "typo",
                json!({"selector": "app in web", "types": ["Ingress"], "ingress": [{"action": "Allow"}]}),
            ),
            "NetworkPolicy(shop/typo)",
            "spec.selector is no valid selector: \"app in web\": ",
        ),
        (
            policy("rule", rule),
            "NetworkPolicy(shop/rule)",
            "spec.ingress[0].source.selector is no valid selector: \"app = 'web'\": ",
        ),
        (
            json!({"kind": "IPPool", "metadata": {"name": "far"}, "spec": {"cidr": "10.66.0.0/16", "nodeSelector": "rack 7"}}),
            "IPPool(far)",
            "spec.nodeSelector is no valid selector: \"rack 7\": ",
        ),
        (
            json!({"kind": "BGPPeer", "metadata": {"name": "far"}, "spec": {"peerIP": "192.0.2.8", "asNumber": 64513, "nodeSelector": "has(rack"}}),
            "BGPPeer(far)",
            "spec.nodeSelector is no valid selector: \"has(rack\": ",
        ),
    ] {
        let mut all = cluster(clean());
        // As stored by a program that does not validate.
        let kind = tortie_model::Kind::from_name(object["kind"].as_str().unwrap()).unwrap();
        all.put(Resource::from_store(kind, object).unwrap());
        let found = run_checks(all, None, Vec::new());
        let [finding] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((finding.object.as_str(), finding.check), (name, "selector-invalid"));
        assert!(finding.reason.starts_with(part), "{finding:?}");
    }
}

#[test]
fn each_planted_mistake_is_found_alone() {
    let allow = json!({"action": "Allow"});
    let cases: Vec<(Vec<Value>, &str, &str)> = vec![
        (
            vec![policy("typo", json!({"selector": "app == 'wbe'", "ingress": [allow]}))],
            "NetworkPolicy(shop/typo)",
            "policy-selects-nothing",
        ),
        (
            vec![policy(
                "more",
                json!({"order": 1, "selector": "app == 'web'", "ingress": [{"action": "Allow", "source": {"selector": "app == 'gone'"}}]}),
            )],
            "NetworkPolicy(shop/more)",
            "rule-matches-nothing",
        ),
        (
            vec![policy(
                "port",
                json!({"order": 1, "selector": "app == 'web'", "ingress": [{"action": "Allow", "protocol": "TCP", "destination": {"ports": ["https"]}}]}),
            )],
            "NetworkPolicy(shop/port)",
            "rule-matches-nothing",
        ),
        (
            vec![policy(
                "health",
                json!({"order": 1, "selector": "app == 'web'", "ingress": [{"action": "Allow", "protocol": "TCP", "http": {"methods": ["GET"]}}]}),
            )],
            "NetworkPolicy(shop/health)",
            "http-without-proxy",
        ),
        (
            vec![policy(
                "zz",
                json!({"order": 9999, "selector": "app == 'web'", "ingress": [{"action": "Deny", "protocol": "UDP"}, allow, {"action": "Deny"}]}),
            )],
            "NetworkPolicy(shop/zz)",
            "rule-never-reached",
        ),
        (
            vec![
                json!({"kind": "Tier", "metadata": {"name": "early"}, "spec": {"order": 10}}),
                policy(
                    "early.a",
                    json!({"tier": "early", "selector": "app == 'web'", "types": ["Ingress"], "ingress": [{"action": "Deny", "protocol": "UDP"}]}),
                ),
            ],
            "Tier(early)",
            "tier-hides-later",
        ),
        (
            vec![{
                let mut other = endpoint("other", json!({"app": "db"}));
                other["spec"]["profiles"] = json!(["kns.nosuch"]);
                other
            }],
            "WorkloadEndpoint(shop/n1-k8s-other-eth0)",
            "profile-missing",
        ),
        (vec![endpoint("lonely", json!({"app": "new"}))], "Namespace(shop)", "pods-without-policy"),
        (
            vec![
                json!({"kind": "IPPool", "metadata": {"name": "far"}, "spec": {"cidr": "10.66.0.0/16", "nodeSelector": "rack == '7'"}}),
            ],
            "IPPool(far)",
            "pool-without-nodes",
        ),
        (
            vec![
                json!({"kind": "BGPPeer", "metadata": {"name": "far"}, "spec": {"peerIP": "192.0.2.8", "asNumber": 64513, "node": "n9"}}),
            ],
            "BGPPeer(far)",
            "peer-without-node",
        ),
        (
            vec![
                json!({"kind": "BGPPeer", "metadata": {"name": "far"}, "spec": {"peerIP": "192.0.2.8", "asNumber": 64513, "filters": ["nosuch"]}}),
            ],
            "BGPPeer(far)",
            "filter-missing",
        ),
        (
            vec![
                json!({"kind": "BGPPeer", "metadata": {"name": "far"}, "spec": {"peerIP": "192.0.2.8", "asNumber": 64513, "password": {"secretKeyRef": {"name": "bgp", "key": "far"}}}}),
            ],
            "BGPPeer(far)",
            "secret-missing",
        ),
        (
            vec![
                json!({"kind": "FelixConfiguration", "metadata": {"name": "node.n1"}, "spec": {"bpfEnabled": true}}),
            ],
            "FelixConfiguration",
            "setting-without-effect",
        ),
        (vec![node_with_warnings("n1", &[unrouted()])], "IPPool(pods)", "network-not-in-force"),
        (
            vec![
                json!({"kind": "FelixConfiguration", "metadata": {"name": "default"}, "spec": {"wireguardEnabled": true}}),
            ],
            "FelixConfiguration",
            "wireguard-not-in-force",
        ),
    ];
    assert!(cases.len() >= 10);
    for (objects, object, check) in cases {
        assert_eq!(found(objects.clone()), [(object.to_owned(), check)], "{objects:?}");
    }
}

fn unrouted() -> NetworkWarning {
    NetworkWarning {
        object: "IPPool(pods)".to_owned(),
        reason: "pods on other nodes are unreachable".to_owned(),
        advice: "set vxlanMode".to_owned(),
    }
}

fn node_with_warnings(name: &str, warnings: &[NetworkWarning]) -> Value {
    let mut node = json!({"kind": "Node", "metadata": {"name": name, "labels": {"rack": "1"}}, "spec": {"bgp": {"ipv4Address": "192.0.2.1/24"}}});
    node["metadata"]["annotations"] = json!({"tortie/network-warnings": json!(warnings).to_string()});
    node
}

#[test]
fn a_warning_of_many_nodes_is_one_finding() {
    let mut objects = clean();
    objects.extend(["n1", "n2", "n3", "n4"].map(|name| node_with_warnings(name, &[unrouted()])));
    let found = run_checks(cluster(objects), None, Vec::new());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].reason, "pods on other nodes are unreachable (on n1, n2, n3 and 1 more)");
    assert_eq!(found[0].advice, "Set vxlanMode.");
}

#[test]
fn unreachable_policies_are_reported() {
    let last = json!({"order": 9999, "selector": "app == 'web'", "types": ["Ingress"], "ingress": [{"action": "Allow", "protocol": "TCP"}]});
    let first = json!({"order": 1, "selector": "app == 'web'", "types": ["Ingress"], "ingress": [{"action": "Allow"}]});
    let found = found(vec![policy("last", last), policy("first", first)]);
    let hidden = |name: &str| (format!("NetworkPolicy(shop/{name})"), "policy-never-reached");
    assert_eq!(found, [hidden("last"), hidden("web")]);
}

#[test]
fn an_mtu_that_does_not_fit_is_found() {
    let interfaces = [("eth0", 1500), ("eth1", 9000), ("cali1", 1500), ("cali2", 9000)];
    let interfaces = interfaces.map(|(name, mtu)| (name.to_owned(), mtu)).to_vec();
    let found = run_checks(cluster(clean()), None, interfaces);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].check, "mtu-too-large");
    assert_eq!(found[0].reason, "workload interfaces have a larger MTU than eth0 (1500): cali2 (9000)");

    let mut objects = clean();
    objects.extend([
        json!({"kind": "Node", "metadata": {"name": "n2"}, "spec": {}}),
        json!({"kind": "FelixConfiguration", "metadata": {"name": "node.n2"}, "spec": {"vxlanMTU": 1400}}),
    ]);
    let found = run_checks(cluster(objects), None, Vec::new());
    let reasons: Vec<&str> = found
        .iter()
        .filter(|finding| finding.check == "mtu-differs")
        .map(|found| found.reason.as_str())
        .collect();
    assert_eq!(reasons, ["vxlanMTU is 0 on n1, 1400 on n2"]);
}

#[test]
fn warnings_cover_only_written_objects_that_match_endpoints() {
    let typo = policy("typo", json!({"selector": "app == 'wbe'", "ingress": [{"action": "Allow"}]}));
    let mut objects = clean();
    objects.push(typo.clone());
    let all = cluster(objects);
    let written = |object: &Value| -> Resource {
        let mut object = object.clone();
        object["apiVersion"] = API_VERSION.into();
        Resource::from_user(object).unwrap()
    };
    let text = warnings::render_warnings(all.clone(), &[written(&typo)], None);
    assert_eq!(
        text,
        "Warning: NetworkPolicy(shop/typo): its selector matches no endpoint\n\
         Compare the selector with the labels that `calicoctl get workloadendpoints -A -o yaml` shows; \
         the policy is not enforced anywhere.\n"
            .replace("Compare", "  Compare")
    );
    // Nodes have not received the written settings yet.
    let encrypting = json!({"kind": "FelixConfiguration", "metadata": {"name": "default"}, "spec": {"wireguardEnabled": true}});
    let mut objects = clean();
    objects.push(encrypting.clone());
    assert_eq!(warnings::render_warnings(cluster(objects), &[written(&encrypting)], None), "");
    // Findings about other objects are not reported.
    assert_eq!(warnings::render_warnings(all, &[written(&clean()[9])], None), "");
    // Without endpoints, a selector that matches nothing is not reported.
    assert_eq!(warnings::render_warnings(cluster(vec![typo.clone()]), &[written(&typo)], None), "");
}
