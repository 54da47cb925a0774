//! Validation of policies, sets, tiers and profiles.

use super::*;

#[test]
fn flags_of_global_policies() {
    accepted(GNP, json!({"preDNAT": true, "applyOnForward": true, "ingress": [{"action": "Deny"}]}));
    accepted(GNP, json!({"doNotTrack": true, "applyOnForward": true, "egress": [{"action": "Deny"}]}));
    refused(GNP, json!({"preDNAT": true}), "Spec.PreDNAT", "needs applyOnForward");
    refused(GNP, json!({"doNotTrack": true}), "Spec.DoNotTrack", "needs applyOnForward");
    refused(
        GNP,
        json!({"doNotTrack": true, "preDNAT": true, "applyOnForward": true}),
        "Spec.PreDNAT",
        "cannot be combined with doNotTrack",
    );
    refused(
        GNP,
        json!({"preDNAT": true, "applyOnForward": true, "types": ["Ingress", "Egress"]}),
        "Spec.PreDNAT",
        "type Egress",
    );
    refused(
        GNP,
        json!({"preDNAT": true, "applyOnForward": true, "types": ["Ingress"], "egress": [{"action": "Deny"}]}),
        "Spec.PreDNAT",
        "egress rules",
    );
}

#[test]
fn types_and_hints() {
    accepted(NP, json!({"types": ["Egress", "Ingress"], "performanceHints": ["AssumeNeededOnEveryNode"]}));
    refused(NP, json!({"types": ["Ingress", "Ingress"]}), "Spec.Types[1]", "duplicate");
    refused(NP, json!({"types": ["Both"]}), "Spec.Types[0]", "must be one of Ingress, Egress");
    refused(
        GNP,
        json!({"performanceHints": ["Fast"]}),
        "Spec.PerformanceHints[0]",
        "AssumeNeededOnEveryNode",
    );
    refused(
        GNP,
        json!({"performanceHints": ["AssumeNeededOnEveryNode", "AssumeNeededOnEveryNode"]}),
        "Spec.PerformanceHints[1]",
        "duplicate",
    );
    refused(GNP, json!({"tier": "a.b"}), "Spec.Tier", "lower case");
}

#[test]
fn everything_wrong_is_reported_together() {
    let spec =
        json!({"selector": "!", "types": ["X"], "ingress": [{"action": "Nod", "source": {"nets": ["x"]}}]});
    let failures = failures_of(&object(NP, spec));
    let paths: Vec<&str> = failures.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        ["Spec.Selector", "Spec.Types[0]", "Spec.Ingress[0].Action", "Spec.Ingress[0].Source.Nets[0]"]
    );
}

#[test]
fn policy_defaults() {
    let rules = json!([{"action": "Allow"}]);
    for (spec, types) in [
        (json!({}), json!(["Ingress"])),
        (json!({"ingress": rules}), json!(["Ingress"])),
        (json!({"egress": rules}), json!(["Egress"])),
        (json!({"ingress": rules, "egress": rules}), json!(["Ingress", "Egress"])),
        (json!({"types": ["Egress"]}), json!(["Egress"])),
    ] {
        for kind in [GNP, NP, "StagedGlobalNetworkPolicy", "StagedNetworkPolicy"] {
            let mut resource = Resource::from_user(object(kind, spec.clone())).unwrap();
            resource.set_defaults();
            let value = resource.to_value();
            assert_eq!(value["spec"]["types"], types, "{kind} {spec}");
            assert_eq!(value["spec"]["tier"], "default");
            assert_eq!(value["metadata"]["labels"], json!({"projectcalico.org/tier": "default"}));
            assert_eq!(value["spec"].get("stagedAction").is_some(), kind.starts_with("Staged"));
        }
    }
    let mut resource = Resource::from_user(object(GNP, json!({"tier": "web"}))).unwrap();
    resource.set_defaults();
    assert_eq!(resource.metadata().labels["projectcalico.org/tier"], "web");
}

#[test]
fn staged_policies() {
    for kind in ["StagedGlobalNetworkPolicy", "StagedNetworkPolicy"] {
        for action in ["Set", "Learn", "Ignore"] {
            accepted(kind, json!({"stagedAction": action, "selector": "all()", "order": 5}));
        }
        accepted(kind, json!({"stagedAction": "Delete", "tier": "web"}));
        refused(
            kind,
            json!({"stagedAction": "Drop"}),
            "Spec.StagedAction",
            "must be one of Set, Delete, Learn, Ignore",
        );
        for (key, value, path) in [
            ("selector", json!("all()"), "Selector"),
            ("order", json!(0), "Order"),
            ("types", json!(["Ingress"]), "Types"),
            ("ingress", json!([{"action": "Allow"}]), "Ingress"),
        ] {
            let spec = json!({"stagedAction": "Delete", key: value});
            refused(kind, spec, &format!("Spec.{path}"), "must be empty when stagedAction is Delete");
        }
        refused(kind, json!({"ingress": [{"action": "Nod"}]}), "Spec.Ingress[0].Action", "must be one of");
    }
    refused("StagedGlobalNetworkPolicy", json!({"preDNAT": true}), "Spec.PreDNAT", "needs applyOnForward");
}

#[test]
fn staged_kubernetes_policies() {
    const KIND: &str = "StagedKubernetesNetworkPolicy";
    accepted(
        KIND,
        json!({
            "podSelector": {"matchLabels": {"app": "db"}, "matchExpressions": [{"key": "x", "operator": "In", "values": ["a"]}]},
            "ingress": [{"ports": [{"protocol": "TCP", "port": 80, "endPort": 90}, {"port": "web"}, {}],
                         "from": [{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}],
            "egress": [{"to": [{"namespaceSelector": {"matchExpressions": [{"key": "y", "operator": "Exists"}]}}]}],
            "policyTypes": ["Ingress", "Egress"]
        }),
    );
    accepted(KIND, json!({"stagedAction": "Delete"}));
    refused(
        KIND,
        json!({"stagedAction": "Delete", "podSelector": {"matchLabels": {"a": "b"}}}),
        "Spec.PodSelector",
        "Delete",
    );
    refused(
        KIND,
        json!({"stagedAction": "Delete", "policyTypes": ["Ingress"]}),
        "Spec.PolicyTypes",
        "Delete",
    );
    let selector = |expression: Value| json!({"podSelector": {"matchExpressions": [expression]}});
    let at = "Spec.PodSelector.MatchExpressions[0]";
    refused(
        KIND,
        selector(json!({"key": "a", "operator": "Like"})),
        &format!("{at}.Operator"),
        "must be one of In",
    );
    refused(
        KIND,
        selector(json!({"key": "a", "operator": "In"})),
        &format!("{at}.Values"),
        "must not be empty",
    );
    refused(
        KIND,
        selector(json!({"key": "a", "operator": "Exists", "values": ["b"]})),
        &format!("{at}.Values"),
        "must be empty",
    );
    refused(KIND, selector(json!({"key": "", "operator": "Exists"})), &format!("{at}.Key"), "empty");
    refused(
        KIND,
        json!({"podSelector": {"matchLabels": {"a": "b c"}}}),
        "Spec.PodSelector.MatchLabels",
        "label value",
    );
    let ports = |port: Value| json!({"ingress": [{"ports": [port]}]});
    let at = "Spec.Ingress[0].Ports[0]";
    refused(
        KIND,
        ports(json!({"protocol": "ICMP"})),
        &format!("{at}.Protocol"),
        "must be one of TCP, UDP, SCTP",
    );
    refused(KIND, ports(json!({"port": 0})), &format!("{at}.Port"), "between 1 and 65535");
    refused(KIND, ports(json!({"port": "1:2"})), &format!("{at}.Port"), "number or a name");
    refused(
        KIND,
        ports(json!({"port": 90, "endPort": 80})),
        &format!("{at}.EndPort"),
        "between 90 and 65535",
    );
    refused(
        KIND,
        ports(json!({"port": "web", "endPort": 80})),
        &format!("{at}.EndPort"),
        "needs a port that is a number",
    );
    let peer = |peer: Value| json!({"egress": [{"to": [peer]}]});
    let at = "Spec.Egress[0].To[0]";
    refused(KIND, peer(json!({})), at, "must have podSelector");
    refused(
        KIND,
        peer(json!({"ipBlock": {"cidr": "10.0.0.1/8"}})),
        &format!("{at}.IPBlock.CIDR"),
        "host bits",
    );
    refused(
        KIND,
        peer(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}})),
        &format!("{at}.IPBlock.Except[0]"),
        "must lie inside",
    );
    refused(
        KIND,
        peer(json!({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}})),
        &format!("{at}.IPBlock"),
        "cannot be combined",
    );
    refused(KIND, json!({"policyTypes": ["Both"]}), "Spec.PolicyTypes[0]", "must be one of");
    refused(KIND, json!({"policyTypes": ["Egress", "Egress"]}), "Spec.PolicyTypes[1]", "duplicate");
    for (spec, types) in
        [(json!({}), json!(["Ingress"])), (json!({"egress": [{}]}), json!(["Ingress", "Egress"]))]
    {
        let mut resource = Resource::from_user(object(KIND, spec)).unwrap();
        resource.set_defaults();
        assert_eq!(resource.to_value()["spec"]["policyTypes"], types);
    }
}

#[test]
fn network_sets() {
    for kind in ["GlobalNetworkSet", "NetworkSet"] {
        accepted(kind, json!({"nets": ["10.0.0.0/8", "1.2.3.4", "fd00::/8", "fd00::1"]}));
        refused(kind, json!({"nets": ["1.1.1.1", "web"]}), "Spec.Nets[1]", "CIDR");
        // As in calicoctl, host bits are accepted: networks are masked and merged where they are used.
        accepted(kind, json!({"nets": ["10.0.0.1/8", "1.1.1.1"]}));
        // Duplicates are accepted here, but not by Kubernetes, which merges the list as a set.
        assert_eq!(failures_of(&object(kind, json!({"nets": ["1.1.1.1", "1.1.1.1"]}))), []);
        let mut value = object(kind, json!({}));
        value["metadata"]["labels"] = json!({"projectcalico.org/namespace": "x"});
        let failures = failures_of(&value);
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].0, "Metadata.Labels");
        assert_eq!(disagreement(&value), None);
    }
}

#[test]
fn tiers() {
    fn tier(name: &str, spec: Value) -> Value {
        json!({"kind": "Tier", "apiVersion": API_VERSION, "metadata": {"name": name}, "spec": spec})
    }
    for (name, order, action) in
        [("default", 1_000_000, "Deny"), ("kube-admin", 1000, "Pass"), ("kube-baseline", 10_000_000, "Pass")]
    {
        assert_eq!(failures_of(&tier(name, json!({}))), []);
        assert_eq!(failures_of(&tier(name, json!({"order": order, "defaultAction": action}))), []);
        assert_eq!(failures_of(&tier(name, json!({"order": 7})))[0].0, "Spec.Order");
        let other = if action == "Deny" { "Pass" } else { "Deny" };
        assert_eq!(failures_of(&tier(name, json!({"defaultAction": other})))[0].0, "Spec.DefaultAction");
    }
    accepted("Tier", json!({"order": 1.5, "defaultAction": "Pass"}));
    refused("Tier", json!({"defaultAction": "Allow"}), "Spec.DefaultAction", "must be one of Deny, Pass");
    assert_eq!(failures_of(&tier("a.b", json!({})))[0].0, "Metadata.Name");
    assert_eq!(failures_of(&tier(&"a".repeat(64), json!({})))[0].0, "Metadata.Name");

    let mut resource = Resource::from_user(tier("x", json!({}))).unwrap();
    resource.set_defaults();
    assert_eq!(
        resource.to_value().to_string(),
        r#"{"kind":"Tier","apiVersion":"projectcalico.org/v3","metadata":{"name":"x"},"spec":{"order":1000000,"defaultAction":"Deny"},"status":{}}"#
    );
}

#[test]
fn profiles() {
    accepted(
        "Profile",
        json!({"ingress": [{"action": "Allow"}], "labelsToApply": {"pcns.projectcalico.org/name": "x"}}),
    );
    refused("Profile", json!({"ingress": [{"action": "Nod"}]}), "Spec.Ingress[0].Action", "must be one of");
    refused(
        "Profile",
        json!({"egress": [{"action": "Allow", "destination": {"ports": [1]}}]}),
        "Spec.Egress[0].Destination.Ports",
        "protocol",
    );
    refused("Profile", json!({"labelsToApply": {"a": "b c"}}), "Spec.LabelsToApply", "label value");
    // Rules that exist only in the schema of a CRD do not apply to profiles.
    accepted("Profile", json!({"egress": [{"action": "Deny", "http": {"methods": ["GET"]}}]}));
}

#[test]
fn metadata() {
    let mut value = object(GNP, json!({}));
    value["metadata"] = json!({"name": "A.b.c", "namespace": "n", "labels": {"a": "b c", "": ""}, "annotations": {"a b": ""}});
    let failures = failures_of(&value);
    let paths: Vec<&str> = failures.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        ["Metadata.Name", "Metadata.Namespace", "Metadata.Labels", "Metadata.Labels", "Metadata.Annotations"]
    );
}

#[test]
fn older_and_empty_spellings_are_read() {
    let spec = json!({"ingress": [{"action": "Allow", "source": {}, "destination": {}, "http": null}], "egress": null, "order": 0});
    let resource = Resource::from_user(object(NP, spec)).unwrap();
    assert_eq!(resource.to_value()["spec"].to_string(), r#"{"order":0,"ingress":[{"action":"Allow"}]}"#);
}

#[test]
fn fields_are_written_in_calicos_order() {
    let text = concat!(
        r#"{"kind":"StagedGlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"x"},"spec":{"#,
        r#""stagedAction":"Set","tier":"t","order":1.5,"ingress":[{"action":"Allow","ipVersion":4,"protocol":"TCP","#,
        r#""icmp":{"type":1,"code":2},"notProtocol":17,"notICMP":{"type":3},"source":{"nets":["10.0.0.0/8"],"#,
        r#""selector":"all()","namespaceSelector":"all()","services":{"name":"a","namespace":"b"},"ports":["1:2"],"#,
        r#""notNets":["10.1.0.0/16"],"notSelector":"has(x)","notPorts":["web"],"serviceAccounts":{"names":["s"],"selector":"all()"}},"#,
        r#""destination":{"ports":[80]},"http":{"methods":["GET"],"paths":[{"exact":"/"}]},"metadata":{"annotations":{"a":"b"}}}],"#,
        r#""selector":"all()","types":["Ingress"],"doNotTrack":true,"preDNAT":true,"applyOnForward":true,"#,
        r#""serviceAccountSelector":"all()","namespaceSelector":"all()","performanceHints":["AssumeNeededOnEveryNode"]}}"#
    );
    let value: Value = serde_json::from_str(text).unwrap();
    assert_eq!(Resource::from_user(value).unwrap().to_value().to_string(), text);
}
