//! Defaults and validation by kube-apiserver itself (CRD schemas and admission policies).

use super::agreement::both_are_of_one_opinion;
use super::{API, CustomResourceCluster, object};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tortie_model::{Kind, schema};

pub fn collection(kind: Kind) -> String {
    match kind.is_namespaced() {
        true => format!("{API}/namespaces/shop/{}", kind.plural()),
        false => format!("{API}/{}", kind.plural()),
    }
}

fn kind_of(object: &Value) -> Kind {
    Kind::from_name(object["kind"].as_str().unwrap()).unwrap()
}

#[test]
fn kubernetes_fills_in_and_refuses_by_itself() {
    let custom = CustomResourceCluster::new();
    let problems = [
        what_is_missing_is_filled_in(&custom),
        every_rule_refuses_and_names_the_field(&custom),
        both_are_of_one_opinion(&custom),
    ]
    .concat();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    built_in_tiers_stay(&custom);
}

/// Creates objects and compares the stored spec and labels with the expected defaults.
fn what_is_missing_is_filled_in(custom: &CustomResourceCluster) -> Vec<String> {
    let mut problems = Vec::new();
    let server = &custom.cluster.server;
    server.create(&collection(Kind::Tier), &object("Tier", "net", json!({"order": 5})));
    let allow = json!([{"action": "Allow"}]);
    let cases = [
        ("Tier", json!({"order": 7}), json!({"defaultAction": "Deny"})),
        (
            "GlobalNetworkPolicy",
            json!({"selector": "all()"}),
            json!({"tier": "default", "types": ["Ingress"]}),
        ),
        ("GlobalNetworkPolicy", json!({"egress": allow}), json!({"types": ["Egress"]})),
        ("GlobalNetworkPolicy", json!({"ingress": allow}), json!({"types": ["Ingress"]})),
        (
            "GlobalNetworkPolicy",
            json!({"tier": "net", "ingress": allow, "egress": allow}),
            json!({"tier": "net", "types": ["Ingress", "Egress"]}),
        ),
        (
            "GlobalNetworkPolicy",
            json!({"egress": allow, "types": ["Ingress"]}),
            json!({"types": ["Ingress"]}),
        ),
        ("NetworkPolicy", json!({}), json!({"tier": "default", "types": ["Ingress"]})),
        (
            "StagedNetworkPolicy",
            json!({"egress": allow}),
            json!({"tier": "default", "types": ["Egress"], "stagedAction": "Set"}),
        ),
        ("StagedGlobalNetworkPolicy", json!({"stagedAction": "Delete"}), json!({"tier": "default"})),
        (
            "StagedKubernetesNetworkPolicy",
            json!({"podSelector": {}}),
            json!({"policyTypes": ["Ingress"], "stagedAction": "Set"}),
        ),
        (
            "StagedKubernetesNetworkPolicy",
            json!({"podSelector": {}, "egress": [{}]}),
            json!({"policyTypes": ["Ingress", "Egress"]}),
        ),
        (
            "IPPool",
            json!({"cidr": "10.65.0.0/16"}),
            json!({"assignmentMode": "Automatic", "nodeSelector": "all()", "ipipMode": "Never", "vxlanMode": "Never"}),
        ),
        (
            "BlockAffinity",
            json!({"node": "n1", "cidr": "10.65.0.0/26", "state": "confirmed"}),
            json!({"deleted": false}),
        ),
    ];
    for (index, (kind, spec, filled)) in cases.into_iter().enumerate() {
        let mut sent = object(kind, &format!("filled-{index}"), spec);
        sent["metadata"]["labels"] = json!({"kept": "yes"});
        let kind = kind_of(&sent);
        let stored = server.create(&collection(kind), &sent);
        for (field, value) in filled.as_object().unwrap() {
            if stored["spec"][field] != *value {
                problems.push(format!("{kind} {field}: {} is not {value}", stored["spec"][field]));
            }
        }
        assert_eq!(stored["metadata"]["labels"]["kept"], "yes", "{stored}");
        if kind != Kind::StagedKubernetesNetworkPolicy && stored["spec"].get("tier").is_some() {
            assert_eq!(
                stored["metadata"]["labels"]["projectcalico.org/tier"], stored["spec"]["tier"],
                "{stored}"
            );
        }
    }
    for (kind, spec, filled) in [
        (
            "IPAMConfiguration",
            json!({}),
            json!({"autoAllocateBlocks": true, "strictAffinity": false, "maxBlocksPerHost": 0}),
        ),
        (
            "KubeControllersConfiguration",
            json!({"controllers": {"loadBalancer": {}, "migration": {}}}),
            json!({"healthChecks": "Enabled",
                "controllers": {"loadBalancer": {"assignIPs": "AllServices"}, "migration": {"policyNameMigrator": "Enabled"}}}),
        ),
    ] {
        let sent = object(kind, "default", spec);
        let stored = server.create(&collection(kind_of(&sent)), &sent);
        for (field, value) in filled.as_object().unwrap() {
            if stored["spec"][field] != *value {
                problems.push(format!("{kind} {field}: {} is not {value}", stored["spec"][field]));
            }
        }
    }
    // A policy that changes its tier gets the new tier in its label, whatever value the user wrote there.
    let path = format!("{}/filled-1", collection(Kind::GlobalNetworkPolicy));
    let moved = server.merge(
        &path,
        &json!({"spec": {"tier": "net"}, "metadata": {"labels": {"projectcalico.org/tier": "x"}}}),
    );
    assert_eq!(moved["metadata"]["labels"]["projectcalico.org/tier"], "net", "{moved}");
    problems
}

/// Returns field and message of the causes of a rejected request; empty if it was accepted.
fn causes(refusal: Result<Value, String>) -> Vec<(String, String)> {
    let Err(refusal) = refusal else { return Vec::new() };
    let status = &refusal[refusal.find('{').unwrap_or_else(|| panic!("{refusal}"))..];
    let status = serde_json::Deserializer::from_str(status).into_iter::<Value>().next().unwrap().unwrap();
    let listed = status["details"]["causes"].as_array().unwrap_or_else(|| panic!("{refusal}"));
    let text = |cause: &Value, key: &str| cause[key].as_str().unwrap_or_default().to_owned();
    listed.iter().map(|cause| (text(cause, "field"), text(cause, "message"))).collect()
}

/// Collects the messages of all rules in a schema.
fn messages(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            for rule in fields.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten()
            {
                found.insert(rule["message"].as_str().unwrap().to_owned());
            }
            fields.values().for_each(|inner| messages(inner, found));
        }
        Value::Array(items) => items.iter().for_each(|inner| messages(inner, found)),
        _ => {}
    }
}

/// Each case violates one rule; together they cover every rule.
fn every_rule_refuses_and_names_the_field(custom: &CustomResourceCluster) -> Vec<String> {
    let server = &custom.cluster.server;
    let mut left = BTreeSet::new();
    schema::crds().iter().for_each(|crd| messages(crd, &mut left));
    assert!(left.len() > 50, "{left:?}");
    let mut problems = Vec::new();
    let mut check = |what: &str, refusal: Result<Value, String>, field: &str, message: &str| {
        let causes = causes(refusal);
        let is_said = causes.iter().any(|(at, said)| at == field && said.contains(message));
        if !is_said {
            problems.push(format!("{what}: expected {field}: {message}, got {causes:?}"));
        }
        left.retain(|one| !causes.iter().any(|(_, said)| said.contains(one.as_str())));
    };
    for (kind, name, spec, field, message) in wrong() {
        let sent = object(kind, name, spec);
        let path = format!("{}?dryRun=All", collection(kind_of(&sent)));
        check(&sent.to_string(), server.send("POST", &path, Some(&sent)), field, message);
    }
    for (path, patch, field, message) in [
        ("ippools/filled-11", json!({"spec": {"cidr": "10.66.0.0/16"}}), "spec.cidr", "cannot be changed"),
        ("ippools/sized", json!({"spec": {"blockSize": 28}}), "spec.blockSize", "cannot be changed"),
        ("tiers/default", json!({"spec": {"order": 5}}), "spec", "tier default must have"),
        ("tiers/kube-admin", json!({"spec": {"order": 5}}), "spec", "tier kube-admin must have"),
        (
            "tiers/kube-baseline",
            json!({"spec": {"defaultAction": "Deny"}}),
            "spec",
            "tier kube-baseline must have",
        ),
    ] {
        if path == "ippools/sized" {
            server.create(
                &collection(Kind::IPPool),
                &object("IPPool", "sized", json!({"cidr": "10.70.0.0/16", "blockSize": 26})),
            );
        }
        let path = format!("{API}/{path}");
        let refusal = server.send_as("secret", "PATCH", &path, "application/merge-patch+json", Some(&patch));
        check(&path, refusal, field, message);
    }
    problems.extend(left.into_iter().map(|rule| format!("no case has met the rule: {rule}")));
    problems
}

type InvalidObjectCase = (&'static str, &'static str, Value, &'static str, &'static str);

fn wrong() -> Vec<InvalidObjectCase> {
    let mut cases = Vec::new();
    let mut add = |kind, name, spec, field, message| cases.push((kind, name, spec, field, message));
    for (spec, field, message) in [
        (json!({"cidr": "10.0.0.0/33"}), "spec.cidr", "must be a network"),
        (json!({"cidr": "10.0.0.1/16"}), "spec.cidr", "no bits set behind its prefix"),
        (json!({"cidr": "169.254.1.0/24"}), "spec.cidr", "link-local"),
        (json!({"cidr": "fe80::/64"}), "spec.cidr", "link-local"),
        (json!({"cidr": "10.0.0.0/16", "blockSize": 18}), "spec.blockSize", "between 20 and 32"),
        (json!({"cidr": "fd00::/64", "blockSize": 64}), "spec.blockSize", "between 116 and 128"),
        (json!({"cidr": "10.0.0.0/28"}), "spec.cidr", "smaller than one of its blocks"),
        (
            json!({"cidr": "10.0.0.0/16", "ipipMode": "Always", "vxlanMode": "Always"}),
            "spec.ipipMode",
            "cannot both be used",
        ),
        (json!({"cidr": "fd00::/64", "ipipMode": "Always"}), "spec.ipipMode", "IPIP cannot carry IPv6"),
        (
            json!({"cidr": "10.0.0.0/16", "allowedUses": ["LoadBalancer", "Workload"]}),
            "spec.allowedUses",
            "cannot be combined",
        ),
        (
            json!({"cidr": "10.0.0.0/16", "allowedUses": ["LoadBalancer"], "vxlanMode": "Always"}),
            "spec.allowedUses",
            "cannot be encapsulated",
        ),
        (
            json!({"cidr": "10.0.0.0/16", "allowedUses": ["LoadBalancer"], "disableBGPExport": true}),
            "spec.disableBGPExport",
            "must be false",
        ),
        (
            json!({"cidr": "10.0.0.0/16", "allowedUses": ["LoadBalancer"], "nodeSelector": "has(a)"}),
            "spec.nodeSelector",
            "must be all()",
        ),
        (
            json!({"cidr": "10.0.0.0/16", "namespaceSelector": "has(a)"}),
            "spec.namespaceSelector",
            "tunnel addresses",
        ),
    ] {
        add("IPPool", "wrong", spec, field, message);
    }
    for (spec, field, message) in [
        (
            json!({"peerIP": "192.0.2.1", "node": "n", "nodeSelector": "all()"}),
            "spec.nodeSelector",
            "cannot both be set",
        ),
        (json!({"peerIP": "192.0.2.1", "peerSelector": "all()"}), "spec.peerSelector", "cannot both be set"),
        (
            json!({"localWorkloadSelector": "all()", "peerIP": "192.0.2.1", "asNumber": 1}),
            "spec.peerIP",
            "cannot both be set",
        ),
        (
            json!({"localWorkloadSelector": "all()", "peerSelector": "all()", "asNumber": 1}),
            "spec.peerSelector",
            "localWorkloadSelector and peerSelector cannot both be set",
        ),
        (json!({"peerSelector": "all()", "asNumber": 64512}), "spec.asNumber", "together with peerSelector"),
        (json!({"localWorkloadSelector": "all()"}), "spec.asNumber", "asNumber must be set"),
        (json!({"reachableBy": "192.0.2.1"}), "spec.reachableBy", "needs a peerIP"),
        (
            json!({"reachableBy": "fd00::1", "peerIP": "192.0.2.1:179"}),
            "spec.reachableBy",
            "same address family",
        ),
        (
            json!({"peerIP": "192.0.2.1", "keepaliveTime": "soon"}),
            "spec.keepaliveTime",
            "span of time such as",
        ),
        (
            json!({"peerIP": "192.0.2.1", "keepOriginalNextHop": true, "nextHopMode": "Keep"}),
            "spec.keepOriginalNextHop",
            "together with nextHopMode",
        ),
    ] {
        add("BGPPeer", "wrong", spec, field, message);
    }
    for (spec, field, message) in [
        (
            json!({"nodeToNodeMeshEnabled": false, "nodeMeshPassword": {"secretKeyRef": {"name": "a", "key": "b"}}}),
            "spec.nodeMeshPassword",
            "nodeToNodeMeshEnabled is false",
        ),
        (
            json!({"nodeToNodeMeshEnabled": false, "nodeMeshMaxRestartTime": "2m0s"}),
            "spec.nodeMeshMaxRestartTime",
            "nodeToNodeMeshEnabled is false",
        ),
        (json!({"communities": [{"name": "a", "value": "1:2"}]}), "spec.communities", "prefixAdvertisements"),
        (
            json!({"serviceClusterIPs": [{"cidr": "10.96.0.1/12"}]}),
            "spec.serviceClusterIPs[0].cidr",
            "must be an address or have no bits set",
        ),
    ] {
        add("BGPConfiguration", "default", spec, field, message);
    }
    for (spec, field) in [
        (json!({"nodeToNodeMeshEnabled": true}), "spec.nodeToNodeMeshEnabled"),
        (json!({"asNumber": 64512}), "spec.asNumber"),
        (json!({"serviceLoadBalancerIPs": [{"cidr": "10.0.0.0/8"}]}), "spec.serviceLoadBalancerIPs"),
        (json!({"serviceExternalIPs": [{"cidr": "10.0.0.0/8"}]}), "spec.serviceExternalIPs"),
        (json!({"serviceClusterIPs": [{"cidr": "10.0.0.0/8"}]}), "spec.serviceClusterIPs"),
        (json!({"nodeMeshPassword": {"secretKeyRef": {"name": "a", "key": "b"}}}), "spec.nodeMeshPassword"),
        (json!({"nodeMeshMaxRestartTime": "2m0s"}), "spec.nodeMeshMaxRestartTime"),
    ] {
        add(
            "BGPConfiguration",
            "node.n1",
            spec,
            field,
            "can only be set on the BGPConfiguration named default",
        );
    }
    let filter = |rule: Value| json!({"exportV4": [rule]});
    for (rule, field, message) in [
        (
            json!({"action": "Accept", "cidr": "10.0.0.0/8"}),
            "spec.exportV4[0].matchOperator",
            "must both be set",
        ),
        (
            json!({"action": "Accept", "prefixLength": {"min": 8}}),
            "spec.exportV4[0].prefixLength",
            "needs a cidr",
        ),
        (
            json!({"action": "Reject", "operations": [{"setPriority": {"value": 5}}]}),
            "spec.exportV4[0].operations",
            "with the action Accept",
        ),
        (
            json!({"action": "Accept", "operations": [{}]}),
            "spec.exportV4[0].operations[0]",
            "exactly one operation",
        ),
    ] {
        add("BGPFilter", "wrong", filter(rule), field, message);
    }
    for (spec, field, message) in [
        (json!({"interfaceName": "eth0"}), "spec.node", "node must be set"),
        (json!({"node": "n1"}), "spec.interfaceName", "at least one of"),
    ] {
        add("HostEndpoint", "wrong", spec, field, message);
    }
    for (name, spec, field, message) in [
        (
            "wrong",
            json!({"routeTableRange": {"min": 1, "max": 50}, "routeTableRanges": [{"min": 1, "max": 50}]}),
            "spec.routeTableRange",
            "cannot both be set",
        ),
        (
            "wrong",
            json!({"natOutgoingAddress": "here"}),
            "spec.natOutgoingAddress",
            "must be an IPv4 address",
        ),
        (
            "wrong",
            json!({"deviceRouteSourceAddress": "fd00::1"}),
            "spec.deviceRouteSourceAddress",
            "must be an IPv4 address",
        ),
        (
            "wrong",
            json!({"deviceRouteSourceAddressIPv6": "10.0.0.1"}),
            "spec.deviceRouteSourceAddressIPv6",
            "must be an IPv6 address",
        ),
        ("default", json!({"nodeSelector": "all()"}), "spec.nodeSelector", "named default and node.<name>"),
        ("wrong", json!({"reportingInterval": "-1s"}), "spec.reportingInterval", "not negative"),
        ("wrong", json!({"mtuIfacePattern": "^(eth"}), "spec.mtuIfacePattern", "regular expression"),
        ("wrong", json!({"natPortRange": "9:8"}), "spec.natPortRange", "must not end before it begins"),
        ("wrong", json!({"iptablesMarkMask": 65536}), "spec.iptablesMarkMask", "at least two bits"),
        (
            "wrong",
            json!({"routeTableRanges": [{"min": 9, "max": 5}]}),
            "spec.routeTableRanges[0].min",
            "must not be greater than max",
        ),
    ] {
        add("FelixConfiguration", name, spec, field, message);
    }
    add("IPAMConfiguration", "second", json!({}), "metadata", "the name must be default");
    for (spec, field, message) in [
        (json!({"selector": "global()"}), "spec.selector", "global()"),
        (json!({"namespaceSelector": "has(a) && global()"}), "spec.namespaceSelector", "global()"),
        (json!({"serviceAccountSelector": "!global()"}), "spec.serviceAccountSelector", "global()"),
        (
            json!({"doNotTrack": true, "preDNAT": true, "applyOnForward": true}),
            "spec.preDNAT",
            "cannot both be true",
        ),
        (json!({"preDNAT": true}), "spec.applyOnForward", "preDNAT needs applyOnForward"),
        (json!({"doNotTrack": true}), "spec.applyOnForward", "doNotTrack needs applyOnForward"),
        (
            json!({"preDNAT": true, "applyOnForward": true, "egress": [{"action": "Allow"}]}),
            "spec.egress",
            "cannot have egress rules",
        ),
        (
            json!({"egress": [{"action": "Allow", "http": {"methods": ["GET"]}}]}),
            "spec.egress",
            "http cannot be used in egress",
        ),
        (
            json!({"egress": [{"action": "Allow", "source": {"services": {"name": "a", "namespace": "b"}}}]}),
            "spec.egress",
            "in their source",
        ),
        (
            json!({"ingress": [{"action": "Allow", "destination": {"services": {"name": "a", "namespace": "b"}}}]}),
            "spec.ingress",
            "in their destination",
        ),
        (
            json!({"egress": [{"action": "Allow", "destination": {"services": {"name": "a"}}}]}),
            "spec.egress",
            "need a namespace",
        ),
        (
            json!({"ingress": [{"action": "Allow", "source": {"services": {"name": "a"}}}]}),
            "spec.ingress",
            "need a namespace",
        ),
    ] {
        add("GlobalNetworkPolicy", "wrong", spec, field, message);
    }
    for (rule, field, message) in [
        (json!({"action": "Deny", "http": {"methods": ["GET"]}}), "http", "only valid on Allow"),
        (
            json!({"action": "Allow", "protocol": "UDP", "http": {"methods": ["GET"]}}),
            "protocol",
            "protocol TCP or unset",
        ),
        (
            json!({"action": "Allow", "protocol": "TCP", "icmp": {"type": 8}}),
            "protocol",
            "must be ICMP or ICMPv6",
        ),
        (json!({"action": "Allow", "protocol": "ICMP", "ipVersion": 6}), "ipVersion", "needs ipVersion 4"),
        (json!({"action": "Allow", "protocol": "ICMPv6", "ipVersion": 4}), "ipVersion", "needs ipVersion 6"),
        (json!({"action": "Allow", "notProtocol": 1, "ipVersion": 6}), "ipVersion", "notProtocol ICMP needs"),
        (
            json!({"action": "Allow", "notProtocol": "58", "ipVersion": 4}),
            "ipVersion",
            "notProtocol ICMPv6 needs",
        ),
        (
            json!({"action": "Allow", "source": {"ports": [80]}}),
            "protocol",
            "numbers of ports need a protocol",
        ),
        (
            json!({"action": "Allow", "protocol": "ICMP", "destination": {"ports": ["web"]}}),
            "protocol",
            "to match ports",
        ),
        (
            json!({"action": "Allow", "source": {"nets": ["10.0.0.1/8"]}}),
            "source.nets[0]",
            "no bits set behind",
        ),
        (json!({"action": "Allow", "protocol": "ICMP", "icmp": {"code": 1}}), "icmp.type", "code needs type"),
        (json!({"action": "Allow", "source": {"selector": "global()"}}), "source.selector", "should match"),
        (
            json!({"action": "Allow", "source": {"notSelector": "global()"}}),
            "source.notSelector",
            "should match",
        ),
        (
            json!({"action": "Allow", "source": {"nets": ["10.0.0.0/8"], "services": {"name": "a", "namespace": "b"}}}),
            "source.services",
            "cannot be combined",
        ),
        (
            json!({"action": "Allow", "http": {"paths": [{"exact": "/a", "prefix": "/b"}]}}),
            "http.paths[0]",
            "exactly one of exact and prefix",
        ),
    ] {
        // Leaked: the table is used until the test process ends.
        let field: &'static str = format!("spec.ingress[0].{field}").leak();
        add("NetworkPolicy", "wrong", json!({"ingress": [rule]}), field, message);
    }
    let ports = json!([{"action": "Allow", "destination": {"ports": [1], "services": {"name": "a", "namespace": "b"}}}]);
    add(
        "NetworkPolicy",
        "wrong",
        json!({"egress": ports}),
        "spec.egress[0].destination",
        "brings its own ports",
    );
    let staged = |rule: Value| json!({"podSelector": {}, "ingress": [rule]});
    for (spec, field, message) in [
        (
            staged(json!({"ports": [{"port": 90, "endPort": 80}]})),
            "spec.ingress[0].ports[0].endPort",
            "endPort needs",
        ),
        (staged(json!({"from": [{}]})), "spec.ingress[0].from[0]", "must have podSelector"),
        (
            staged(json!({"from": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]})),
            "spec.ingress[0].from[0].ipBlock",
            "cannot be combined",
        ),
        (json!({"policyTypes": ["Egress", "Egress"]}), "spec.policyTypes", "every entry once"),
    ] {
        add("StagedKubernetesNetworkPolicy", "wrong", spec, field, message);
    }
    let templates =
        |templates: Value| json!({"controllers": {"node": {"hostEndpoint": {"templates": templates}}}});
    let twice = json!({"generateName": "t", "interfacePattern": "x"});
    for (spec, field, message) in [
        (
            templates(json!([twice, twice])),
            "spec.controllers.node.hostEndpoint.templates",
            "generateName of every template must be different",
        ),
        (
            templates(json!([{"generateName": "t"}])),
            "spec.controllers.node.hostEndpoint.templates[0].interfaceCIDRs",
            "at least one of interfaceCIDRs",
        ),
    ] {
        add("KubeControllersConfiguration", "default", spec, field, message);
    }
    let deletion = json!({"stagedAction": "Delete", "selector": "all()"});
    add("StagedNetworkPolicy", "wrong", deletion, "spec.stagedAction", "nothing but the tier");
    let deletion = json!({"stagedAction": "Delete", "ingress": [{}]});
    add("StagedKubernetesNetworkPolicy", "wrong", deletion, "spec.stagedAction", "nothing else may be set");
    cases
}

fn built_in_tiers_stay(custom: &CustomResourceCluster) {
    for name in ["default", "kube-admin", "kube-baseline"] {
        let refused = custom.cluster.refused(&["delete", "tier", name], "");
        assert!(refused.contains(&format!("tier {name} is built in and cannot be deleted")), "{refused}");
    }
    custom.cluster.must(&["delete", "tier", "filled-0"], "");
    // Quoted text in a selector is not parsed as a function call.
    let policy = object("GlobalNetworkPolicy", "quoted", json!({"selector": "a == 'global()'"}));
    custom.cluster.must(&["create", "--dry-run=server", "-f", "-"], &policy.to_string());
}
