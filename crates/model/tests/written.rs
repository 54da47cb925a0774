//! The serialised form of objects: fields that are always present, their order, and the defaults.

#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::{Value, json};
use tortie_model::schema::json_schema;
use tortie_model::{Kind, Resource};

fn completed(kind: Kind, name: &str, rest: Value) -> Value {
    let mut object =
        json!({"kind": kind.name(), "apiVersion": "projectcalico.org/v3", "metadata": {"name": name}});
    if kind.is_namespaced() {
        object["metadata"]["namespace"] = json!("prod");
    }
    for (key, value) in rest.as_object().unwrap() {
        object[key] = value.clone();
    }
    let mut resource = Resource::from_user(object).unwrap_or_else(|error| panic!("{kind}: {error}"));
    resource.set_defaults();
    resource.to_value()
}

#[test]
fn some_things_are_written_even_when_empty() {
    for (kind, has_status) in [
        (Kind::Tier, true),
        (Kind::Node, true),
        (Kind::CalicoNodeStatus, true),
        (Kind::KubeControllersConfiguration, true),
        (Kind::IPPool, false),
        (Kind::BGPPeer, false),
        (Kind::FelixConfiguration, false),
    ] {
        let status = has_status.then(|| json!({}));
        assert_eq!(completed(kind, "x", json!({})).get("status"), status.as_ref(), "{kind}");
    }
    let port = json!({"name": "http", "protocol": "TCP", "port": 80});
    let endpoint = completed(Kind::WorkloadEndpoint, "", json!({"spec": {"ports": [port]}}));
    assert_eq!(
        endpoint["spec"]["ports"][0].to_string(),
        r#"{"name":"http","protocol":"TCP","port":80,"hostPort":0,"hostIP":""}"#
    );
    let ipam = Resource::new(Kind::IPAMConfiguration).to_value();
    assert_eq!(ipam["spec"].to_string(), r#"{"strictAffinity":false,"autoAllocateBlocks":false}"#);
}

#[test]
fn pools_are_completed_and_spelled_canonically() {
    let spec = |cidr: &str| completed(Kind::IPPool, "p", json!({"spec": {"cidr": cidr}}))["spec"].to_string();
    assert_eq!(
        spec("10.65.0.0/16"),
        concat!(
            r#"{"cidr":"10.65.0.0/16","vxlanMode":"Never","ipipMode":"Never","blockSize":26,"#,
            r#""nodeSelector":"all()","allowedUses":["Workload","Tunnel"],"assignmentMode":"Automatic"}"#
        )
    );
    assert!(
        spec("FD00:0:0:65::/64").starts_with(r#"{"cidr":"fd00:0:0:65::/64","#),
        "{}",
        spec("FD00:0:0:65::/64")
    );
    assert!(spec("fd00:0065::/48").contains(r#""cidr":"fd00:65::/48""#));
    assert!(spec("nonsense").contains(r#""cidr":"nonsense""#));
}

#[test]
fn settings_are_completed() {
    assert_eq!(
        completed(Kind::BGPConfiguration, "default", json!({}))["spec"],
        json!({"logSeverityScreen": "Info", "serviceLoadBalancerAggregation": "Enabled"})
    );
    assert_eq!(
        completed(Kind::IPAMConfiguration, "default", json!({}))["spec"],
        json!({"strictAffinity": false, "autoAllocateBlocks": true})
    );
    let template = json!({"generateName": "t", "interfacePattern": "eth0"});
    let controllers =
        json!({"node": {"hostEndpoint": {"templates": [template]}}, "loadBalancer": {}, "migration": {}});
    assert_eq!(
        completed(
            Kind::KubeControllersConfiguration,
            "default",
            json!({"spec": {"controllers": controllers}})
        )["spec"],
        json!({"healthChecks": "Enabled", "prometheusMetricsPort": 9094, "controllers": {
            "node": {
                "hostEndpoint": {"templates": [
                    {"generateName": "t", "interfacePattern": "eth0", "nodeSelector": "all()"}]},
                "leakGracePeriod": "15m0s"},
            "loadBalancer": {"assignIPs": "AllServices"},
            "migration": {"policyNameMigrator": "Enabled"}}})
    );
    let off = json!({"controllers": {}, "prometheusMetricsPort": 0, "healthChecks": "Disabled"});
    let spec = &completed(Kind::KubeControllersConfiguration, "default", json!({"spec": off}))["spec"];
    assert_eq!(*spec, off, "what is said stays");
}

#[test]
fn workload_endpoints_get_their_name_and_labels() {
    let spec = json!({"node": "rack1-n7", "orchestrator": "k8s", "pod": "web-0", "endpoint": "eth0"});
    let endpoint = completed(Kind::WorkloadEndpoint, "", json!({"spec": spec}));
    assert_eq!(endpoint["metadata"]["name"], "rack1--n7-k8s-web--0-eth0");
    assert_eq!(
        endpoint["metadata"]["labels"],
        json!({"projectcalico.org/namespace": "prod", "projectcalico.org/orchestrator": "k8s"})
    );
}

#[test]
fn numbers_keep_all_their_digits() {
    let block = json!({"cidr": "10.65.3.0/26", "sequenceNumber": 1772360430123456793u64,
        "sequenceNumberForAllocation": {"0": u64::MAX}});
    let written = completed(Kind::IPAMBlock, "b", json!({"spec": block}));
    assert_eq!(written["spec"]["sequenceNumber"], 1772360430123456793u64);
    assert_eq!(written["spec"]["sequenceNumberForAllocation"]["0"], u64::MAX);
}

#[test]
fn schemas_carry_limits_defaults_and_rules() {
    let spec = |kind: Kind| json_schema(kind)["properties"]["spec"].clone();
    let pool = spec(Kind::IPPool);
    assert_eq!(pool["required"], json!(["cidr"]));
    assert_eq!(pool["properties"]["cidr"], json!({"type": "string", "maxLength": 48}));
    assert_eq!(pool["properties"]["allowedUses"]["default"], json!(["Workload", "Tunnel"]));
    assert_eq!(pool["properties"]["vxlanMode"]["enum"], json!(["Never", "Always", "CrossSubnet"]));
    assert!(pool["x-kubernetes-validations"].as_array().is_some_and(|rules| rules.len() >= 8));
    let filter = spec(Kind::BGPFilter);
    let rule = &filter["properties"]["exportV4"]["items"];
    assert_eq!(rule["required"], json!(["action"]));
    assert_eq!(rule["properties"]["operations"]["maxItems"], 10);
    assert_eq!(rule["properties"]["priority"]["maximum"], 2147483646);
    assert_eq!(
        spec(Kind::IPAMBlock)["properties"]["allocations"]["items"],
        json!({"type": "integer", "nullable": true})
    );
    let felix = json_schema(Kind::FelixConfiguration);
    assert_eq!(
        felix["properties"]["spec"]["properties"]["floatingIPs"]["enum"],
        json!(["Enabled", "Disabled"])
    );
    assert!(felix["x-kubernetes-validations"].is_array());
    assert!(json_schema(Kind::ClusterInformation)["x-kubernetes-validations"].is_array());
}
