//! Validation of rules.

use super::*;

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
    assert_eq!(failures_of(&object(NP, json!({"ingress": rules(1024), "egress": rules(1024)}))), []);
    refused(NP, json!({"egress": rules(1025)}), "Spec.Egress", "at most 1024");
    refused("Profile", json!({"ingress": rules(1025)}), "Spec.Ingress", "at most 1024");
}
