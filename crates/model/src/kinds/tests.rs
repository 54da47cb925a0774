//! Every rule about policies, sets, tiers and profiles: what is refused, at which path, and its accepted neighbours.

use crate::{API_VERSION, Resource};
use serde_json::{Value, json};

fn object(kind: &str, spec: Value) -> Value {
    let mut metadata = json!({"name": "x"});
    if kind != "GlobalNetworkPolicy" && crate::Kind::from_name(kind).unwrap().is_namespaced() {
        metadata["namespace"] = json!("prod");
    }
    json!({"kind": kind, "apiVersion": API_VERSION, "metadata": metadata, "spec": spec})
}

/// Path and reason of each failure, after defaults.
fn failures_of(value: &Value) -> Vec<(String, String)> {
    let mut resource = Resource::from_user(value.clone()).unwrap_or_else(|e| panic!("{value}: {e}"));
    resource.set_defaults();
    match resource.validate() {
        Ok(()) => Vec::new(),
        Err(error) => error.errors.into_iter().map(|e| (e.name, e.reason)).collect(),
    }
}

#[track_caller]
fn accepted(kind: &str, spec: Value) {
    let value = object(kind, spec);
    assert_eq!(failures_of(&value), [], "{value}");
}

/// Exactly one failure, at `path`, whose reason has `reason` in it.
#[track_caller]
fn refused(kind: &str, spec: Value, path: &str, reason: &str) {
    let value = object(kind, spec);
    let failures = failures_of(&value);
    assert!(
        failures.len() == 1 && failures[0].0 == path && failures[0].1.contains(reason),
        "{value}: expected {path} ({reason}), got {failures:?}"
    );
}

const GNP: &str = "GlobalNetworkPolicy";
const NP: &str = "NetworkPolicy";

#[track_caller]
fn rule_accepted(rule: Value) {
    accepted(NP, json!({ "ingress": [rule] }));
}

#[track_caller]
fn rule_refused(rule: Value, path: &str, reason: &str) {
    refused(NP, json!({ "ingress": [rule] }), &format!("Spec.Ingress[0].{path}"), reason);
}

#[test]
fn actions() {
    for action in ["Allow", "Deny", "Log", "Pass"] {
        rule_accepted(json!({"action": action}));
    }
    rule_refused(json!({"action": "allow"}), "Action", "must be one of Allow, Deny, Log, Pass");
    rule_refused(json!({}), "Action", "must be one of");
}

#[test]
fn ip_versions() {
    rule_accepted(json!({"action": "Allow", "ipVersion": 4}));
    rule_accepted(json!({"action": "Allow", "ipVersion": 6}));
    rule_refused(json!({"action": "Allow", "ipVersion": 5}), "IPVersion", "4 or 6");
}

#[test]
fn protocols() {
    for protocol in [
        json!("TCP"),
        json!("UDP"),
        json!("ICMP"),
        json!("ICMPv6"),
        json!("SCTP"),
        json!("UDPLite"),
        json!(1),
        json!(255),
    ] {
        rule_accepted(json!({"action": "Allow", "protocol": protocol}));
        rule_accepted(json!({"action": "Allow", "notProtocol": protocol}));
    }
    rule_refused(json!({"action": "Allow", "protocol": "tcp"}), "Protocol", "must be one of TCP, UDP");
    rule_refused(json!({"action": "Allow", "notProtocol": 0}), "NotProtocol", "between 1 and 255");
}

#[test]
fn ports_need_a_protocol_that_has_them() {
    for protocol in [json!("TCP"), json!("UDP"), json!("SCTP"), json!(6), json!(17), json!(132)] {
        let rule = json!({"action": "Allow", "protocol": protocol, "source": {"ports": [80, "1:5", "web"]}, "destination": {"notPorts": [1]}});
        rule_accepted(rule);
    }
    rule_accepted(json!({"action": "Allow", "destination": {"ports": ["web"]}}));
    rule_refused(
        json!({"action": "Allow", "destination": {"ports": [80]}}),
        "Destination.Ports",
        "need a protocol",
    );
    rule_refused(
        json!({"action": "Allow", "source": {"notPorts": ["web", "1:2"]}}),
        "Source.NotPorts",
        "need a protocol",
    );
    for protocol in [json!("ICMP"), json!("UDPLite"), json!(47)] {
        let rule = json!({"action": "Allow", "protocol": protocol, "source": {"ports": ["web"]}});
        rule_refused(rule, "Source.Ports", "TCP, UDP or SCTP");
    }
}

#[test]
fn ports_are_in_range_and_few() {
    let ports = |ports: Value| json!({"action": "Allow", "protocol": "TCP", "destination": {"ports": ports}});
    rule_refused(ports(json!([80, 0])), "Destination.Ports[1]", "between 1 and 65535");
    rule_refused(ports(json!(["0:9"])), "Destination.Ports[0]", "start at 1");
    rule_refused(ports(json!(["WEB"])), "Destination.Ports[0]", "port name");
    rule_refused(ports(json!(["a-name-of-16-char"])), "Destination.Ports[0]", "port name");
    rule_accepted(ports((1..=50).collect()));
    rule_refused(ports((1..=51).collect()), "Destination.Ports", "at most 50 items");
}

#[test]
fn icmp_needs_its_protocol() {
    for protocol in [json!("ICMP"), json!(1), json!("ICMPv6"), json!(58)] {
        rule_accepted(json!({"action": "Allow", "protocol": protocol, "icmp": {"type": 8, "code": 0}}));
    }
    rule_accepted(json!({"action": "Allow", "notICMP": {"type": 8}}));
    rule_accepted(json!({"action": "Allow", "protocol": "TCP", "notICMP": {"type": 8}}));
    rule_refused(json!({"action": "Allow", "icmp": {"type": 8}}), "Protocol", "must be ICMP or ICMPv6");
    rule_refused(
        json!({"action": "Allow", "protocol": "TCP", "icmp": {"type": 8}}),
        "Protocol",
        "must be ICMP or ICMPv6",
    );
}

#[test]
fn icmp_types_and_codes() {
    let icmp = |icmp: Value| json!({"action": "Allow", "protocol": "ICMP", "icmp": icmp});
    rule_accepted(icmp(json!({"type": 254, "code": 255})));
    rule_accepted(icmp(json!({})));
    rule_refused(icmp(json!({"type": 255})), "ICMP.Type", "between 0 and 254");
    rule_refused(icmp(json!({"type": -1})), "ICMP.Type", "between 0 and 254");
    rule_refused(icmp(json!({"type": 1, "code": 256})), "ICMP.Code", "between 0 and 255");
    rule_refused(icmp(json!({"code": 1})), "ICMP.Code", "needs type");
    rule_refused(json!({"action": "Allow", "notICMP": {"code": 1}}), "NotICMP.Code", "needs type");
}

#[test]
fn icmp_matches_the_ip_version() {
    rule_accepted(json!({"action": "Allow", "protocol": "ICMP", "ipVersion": 4}));
    rule_accepted(json!({"action": "Allow", "protocol": "ICMPv6", "ipVersion": 6}));
    rule_refused(json!({"action": "Allow", "protocol": "ICMP", "ipVersion": 6}), "Protocol", "ipVersion 4");
    rule_refused(json!({"action": "Allow", "notProtocol": 1, "ipVersion": 6}), "NotProtocol", "ipVersion 4");
    rule_refused(json!({"action": "Allow", "protocol": 58, "ipVersion": 4}), "Protocol", "ipVersion 6");
    rule_refused(
        json!({"action": "Allow", "notProtocol": "ICMPv6", "ipVersion": 4}),
        "NotProtocol",
        "ipVersion 6",
    );
}

#[test]
fn nets_are_masked_cidrs() {
    let nets = |nets: Value| json!({"action": "Allow", "source": {"nets": nets}});
    rule_accepted(nets(json!(["10.0.0.0/8", "1.2.3.4/32", "0.0.0.0/0"])));
    rule_accepted(nets(json!(["fd00::/8", "::/0"])));
    rule_refused(nets(json!(["10.0.0.0/8", "10.0.0.5/24"])), "Source.Nets[1]", "did you mean 10.0.0.0/24");
    rule_refused(nets(json!(["10.0.0.5"])), "Source.Nets[0]", "CIDR");
    rule_refused(nets(json!(["web"])), "Source.Nets[0]", "CIDR");
    rule_refused(nets(json!([""])), "Source.Nets[0]", "CIDR");
    let many =
        |n: usize| (0..n).map(|i| json!(format!("10.{}.{}.0/24", i / 256, i % 256))).collect::<Value>();
    rule_accepted(nets(many(256)));
    rule_refused(nets(many(257)), "Source.Nets", "at most 256 items");
}

#[test]
fn nets_are_of_one_family() {
    rule_refused(
        json!({"action": "Allow", "source": {"nets": ["10.0.0.0/8"]}, "destination": {"notNets": ["fd00::/8"]}}),
        "Destination.NotNets[0]",
        "must be IPv4",
    );
    rule_refused(
        json!({"action": "Allow", "ipVersion": 6, "source": {"nets": ["10.0.0.0/8"]}}),
        "Source.Nets[0]",
        "must be IPv6 like the ipVersion",
    );
    rule_accepted(json!({"action": "Allow", "ipVersion": 4, "source": {"nets": ["10.0.0.0/8"]}}));
}

#[test]
fn not_nets_leave_something() {
    for net in ["0.0.0.0/0", "::/0"] {
        rule_refused(
            json!({"action": "Allow", "source": {"notNets": [net]}}),
            "Source.NotNets[0]",
            "every address",
        );
    }
    rule_accepted(json!({"action": "Allow", "source": {"notNets": ["0.0.0.0/1"]}}));
}

#[test]
fn selectors() {
    for key in ["selector", "notSelector", "namespaceSelector"] {
        let name = format!("Source.{}{}", key[..1].to_uppercase(), &key[1..]);
        rule_accepted(json!({"action": "Allow", "source": {key: "role == 'db' && has(x)"}}));
        rule_refused(json!({"action": "Allow", "source": {key: "role =="}}), &name, "invalid selector");
        let long = format!("x == '{}'", "x".repeat(1020));
        rule_refused(json!({"action": "Allow", "source": {key: long}}), &name, "at most");
        rule_refused(json!({"action": "Allow", "source": {key: "global() || has(x)"}}), &name, "global()");
    }
    rule_accepted(json!({"action": "Allow", "source": {"namespaceSelector": " global( ) "}}));
    rule_refused(
        json!({"action": "Allow", "source": {"selector": "global()"}}),
        "Source.Selector",
        "global()",
    );
    rule_refused(
        json!({"action": "Allow", "source": {"notSelector": "global()"}}),
        "Source.NotSelector",
        "global()",
    );
    rule_refused(
        json!({"action": "Allow", "source": {"serviceAccounts": {"selector": "a =="}}}),
        "Source.ServiceAccounts.Selector",
        "invalid selector",
    );
    for key in ["selector", "serviceAccountSelector", "namespaceSelector"] {
        let name = format!("Spec.{}{}", key[..1].to_uppercase(), &key[1..]);
        accepted(GNP, json!({key: "role == 'db'"}));
        refused(GNP, json!({key: "global()"}), &name, "global()");
        refused(GNP, json!({key: "!"}), &name, "invalid selector");
    }
    refused(NP, json!({"selector": "has ()"}), "Spec.Selector", "invalid selector");
    refused(NP, json!({"serviceAccountSelector": "global()"}), "Spec.ServiceAccountSelector", "global()");
}

#[test]
fn services_stand_alone() {
    rule_accepted(json!({"action": "Allow", "source": {"services": {"name": "web", "namespace": "shop"}}}));
    for (key, value) in [
        ("nets", json!(["10.0.0.0/8"])),
        ("notNets", json!(["10.0.0.0/8"])),
        ("selector", json!("all()")),
        ("notSelector", json!("has(x)")),
        ("namespaceSelector", json!("all()")),
        ("serviceAccounts", json!({"names": ["a"]})),
    ] {
        let rule = json!({"action": "Allow", "source": {"services": {"name": "web"}, key: value}});
        rule_refused(rule, "Source.Services", &format!("cannot be combined with {key}"));
    }
    rule_refused(
        json!({"action": "Allow", "source": {"services": {}}}),
        "Source.Services.Name",
        "must not be empty",
    );
    rule_refused(
        json!({"action": "Allow", "source": {"services": {"name": "A_"}}}),
        "Source.Services.Name",
        "",
    );
}

#[test]
fn services_stand_at_the_far_end() {
    let egress = |rule: Value| json!({"egress": [rule]});
    accepted(NP, egress(json!({"action": "Allow", "destination": {"services": {"name": "web"}}})));
    refused(
        NP,
        egress(json!({"action": "Allow", "source": {"services": {"name": "web"}}})),
        "Spec.Egress[0].Source.Services",
        "egress",
    );
    rule_refused(
        json!({"action": "Allow", "destination": {"services": {"name": "web"}}}),
        "Destination.Services",
        "ingress",
    );
    for ports in ["ports", "notPorts"] {
        let rule = json!({"action": "Allow", "protocol": "TCP", "destination": {"services": {"name": "web"}, ports: [80]}});
        refused(NP, egress(rule), "Spec.Egress[0].Destination.Services", "ports");
    }
    refused(
        GNP,
        egress(json!({"action": "Allow", "destination": {"services": {"name": "web"}}})),
        "Spec.Egress[0].Destination.Services.Namespace",
        "global policy",
    );
    accepted(
        GNP,
        json!({"ingress": [{"action": "Allow", "source": {"services": {"name": "web", "namespace": "a"}}}]}),
    );
}

#[test]
fn http() {
    let http = |http: Value| json!({"action": "Allow", "http": http});
    rule_accepted(http(json!({"methods": ["GET", "PUT"], "paths": [{"exact": "/a"}, {"prefix": "/b/"}]})));
    rule_accepted(json!({"action": "Allow", "protocol": "TCP", "http": {"methods": ["GET"]}}));
    rule_accepted(json!({"action": "Allow", "protocol": 6, "http": {"methods": ["GET"]}}));
    rule_refused(json!({"action": "Deny", "http": {"methods": ["GET"]}}), "Action", "Allow");
    rule_refused(
        json!({"action": "Allow", "protocol": "UDP", "http": {"methods": ["GET"]}}),
        "Protocol",
        "TCP",
    );
    rule_refused(http(json!({"methods": ["GET", "GET"]})), "HTTP.Methods[1]", "duplicate");
    rule_refused(http(json!({"paths": [{"exact": "/a", "prefix": "/b"}]})), "HTTP.Paths[0]", "exactly one");
    rule_refused(http(json!({"paths": [{"exact": "/a"}, {}]})), "HTTP.Paths[1]", "exactly one");
    for path in ["a", "/a?b", "/a#b", "/a b"] {
        rule_refused(http(json!({"paths": [{"exact": path}]})), "HTTP.Paths[0].Exact", "must start with '/'");
        rule_refused(
            http(json!({"paths": [{"prefix": path}]})),
            "HTTP.Paths[0].Prefix",
            "must start with '/'",
        );
    }
    let long = format!("/{}", "a".repeat(1024));
    rule_refused(http(json!({"paths": [{"exact": long}]})), "HTTP.Paths[0].Exact", "1024");
    let methods = |n: usize| (0..n).map(|i| json!(format!("M{i}"))).collect::<Value>();
    rule_accepted(http(json!({"methods": methods(20)})));
    rule_refused(http(json!({"methods": methods(21)})), "HTTP.Methods", "at most 20");
    let paths = |n: usize| (0..n).map(|i| json!({"exact": format!("/{i}")})).collect::<Value>();
    rule_refused(http(json!({"paths": paths(21)})), "HTTP.Paths", "at most 20");
    refused(
        NP,
        json!({"egress": [{"action": "Allow", "http": {"methods": ["GET"]}}]}),
        "Spec.Egress[0].HTTP",
        "egress",
    );
}

#[test]
fn rule_annotations() {
    rule_accepted(json!({"action": "Allow", "metadata": {"annotations": {"team/Note": "anything at all"}}}));
    let rule = json!({"action": "Allow", "metadata": {"annotations": {"no good": ""}}});
    rule_refused(rule, "Metadata.Annotations", "annotation key");
    let rule = json!({"action": "Allow", "metadata": {"annotations": {"a": "x".repeat(262_144)}}});
    rule_refused(rule, "Metadata.Annotations", "bytes");
}

#[test]
fn rules_are_not_too_many() {
    let rules = |n: usize| vec![json!({"action": "Allow"}); n];
    accepted(NP, json!({"ingress": rules(1024), "egress": rules(1024)}));
    refused(NP, json!({"egress": rules(1025)}), "Spec.Egress", "at most 1024");
    refused("Profile", json!({"ingress": rules(1025)}), "Spec.Ingress", "at most 1024");
}

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
        refused(kind, json!({"nets": ["10.0.0.1/8"]}), "Spec.Nets[0]", "host bits");
        refused(kind, json!({"nets": ["1.1.1.1", "web"]}), "Spec.Nets[1]", "CIDR");
        refused(kind, json!({"nets": ["1.1.1.1", "1.1.1.1"]}), "Spec.Nets[1]", "duplicate");
        let mut value = object(kind, json!({}));
        value["metadata"]["labels"] = json!({"projectcalico.org/namespace": "x"});
        let failures = failures_of(&value);
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].0, "Metadata.Labels");
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
    // What only the schema of a CRD would refuse is not refused here.
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
fn fields_are_written_in_the_order_of_the_reference() {
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
